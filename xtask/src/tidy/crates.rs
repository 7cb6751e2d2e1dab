//! Which crate may depend on which, and what every crate has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::workspace::{cargo, read};

/// What each crate may depend on, of the crates of this workspace; tests may depend on more.
const ALLOWED: &[(&str, &[&str])] = &[
    ("of-diag", &[]),
    ("of-files", &[]),
    ("of-ir", &["of-diag", "of-files"]),
    ("of-ops", &["of-diag", "of-ir"]),
    ("of-frontend", &["of-diag", "of-ir", "of-ops"]),
    ("of-onnx", &["of-diag", "of-files", "of-ir", "of-ops"]),
    ("of-sharding", &["of-diag", "of-ir", "of-ops"]),
    ("of-passes", &["of-diag", "of-files", "of-ir", "of-ops", "of-sharding"]),
    ("of-plan", &["of-files"]),
    ("of-codegen", &["of-diag", "of-ir", "of-ops", "of-passes", "of-plan"]),
    ("of-runtime", &["of-plan"]),
    ("of-lit", &[]),
    (
        "of-fuzz",
        &["of-diag", "of-ir", "of-ops", "of-onnx", "of-passes", "of-plan", "of-codegen", "of-runtime", "of-reference"],
    ),
    ("of-bench", &["of-ir", "of-ops", "of-passes", "of-codegen", "of-runtime", "of-reference"]),
    ("xtask", &[]),
];

/// What a backend may depend on: never another backend. Compilers that read ONNX get it from the crate that writes it,
/// and what is kept between runs is written whole.
const BACKEND: &[&str] = &["of-diag", "of-files", "of-ir", "of-ops", "of-onnx", "of-codegen", "of-plan", "of-runtime"];

struct Crate {
    name: String,
    folder: String,
    /// Crates of the workspace that it needs to build, and those that its tests need.
    needs: BTreeSet<String>,
    tests_need: BTreeSet<String>,
}

/// Everything that is wrong.
///
/// # Errors
/// When cargo does not describe the workspace.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let crates = crates(root)?;
    let mut wrong = graph(&crates);
    let architecture = read(&root.join("ARCHITECTURE.md"))?;
    for c in &crates {
        if !architecture.contains(&format!("| {} |", c.name)) {
            wrong.push(format!("ARCHITECTURE.md: the code map has no row for {}", c.name));
        }
        let manifest = read(&root.join(&c.folder).join("Cargo.toml"))?;
        if !manifest.contains("[lints]\nworkspace = true") {
            wrong.push(format!("{}/Cargo.toml: it does not take the lints of the workspace", c.folder));
        }
    }
    Ok(wrong)
}

fn graph(crates: &[Crate]) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let backends: Vec<&str> =
        crates.iter().filter(|c| c.folder.starts_with("backends/")).map(|c| c.name.as_str()).collect();
    let mut wrong = Vec::new();
    for c in crates {
        // The command line may use everything.
        let may: Vec<&str> = match c.folder.as_str() {
            f if f.starts_with("tools/") => crates.iter().map(|c| c.name.as_str()).filter(|n| *n != "xtask").collect(),
            f if f.starts_with("backends/") => BACKEND.to_vec(),
            // The driver uses everything except the tools above it.
            "driver" => crates.iter().filter(|c| !c.folder.starts_with("tools/")).map(|c| c.name.as_str()).collect(),
            _ => match allowed.get(c.name.as_str()) {
                Some(list) => list.to_vec(),
                None => {
                    wrong.push(format!(
                        "{}: xtask/src/tidy/crates.rs does not say what {} may depend on",
                        c.folder, c.name
                    ));
                    continue;
                }
            },
        };
        for n in c.needs.iter().filter(|n| !may.contains(&n.as_str())) {
            wrong.push(format!("{}/Cargo.toml: {} must not depend on {n}", c.folder, c.name));
        }
        let is_backend = backends.contains(&c.name.as_str());
        for n in c.tests_need.iter().filter(|n| is_backend && backends.contains(&n.as_str())) {
            wrong.push(format!("{}/Cargo.toml: not even the tests of a backend may depend on another, {n}", c.folder));
        }
    }
    wrong
}

fn crates(root: &Path) -> Result<Vec<Crate>, String> {
    let out = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .output()
        .map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let metadata: Value = serde_json::from_slice(&out.stdout).map_err(|e| e.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata gives no packages")?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
    let names: BTreeSet<String> = packages.iter().map(|p| text(&p["name"])).collect();
    let mut out = Vec::new();
    for p in packages {
        let manifest = text(&p["manifest_path"]);
        let folder = Path::new(&manifest)
            .parent()
            .and_then(|d| d.strip_prefix(root).ok())
            .ok_or("a crate lies outside the workspace")?;
        let needs = |dev: bool| {
            let list = p["dependencies"].as_array().into_iter().flatten();
            list.filter(|d| (d["kind"] == "dev") == dev)
                .map(|d| text(&d["name"]))
                .filter(|n| names.contains(n))
                .collect()
        };
        out.push(Crate {
            name: text(&p["name"]),
            folder: folder.to_string_lossy().replace('\\', "/"),
            needs: needs(false),
            tests_need: needs(true),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, folder: &str, needs: &[&str], tests_need: &[&str]) -> Crate {
        let set = |l: &[&str]| l.iter().map(|s| (*s).to_string()).collect();
        Crate { name: name.into(), folder: folder.into(), needs: set(needs), tests_need: set(tests_need) }
    }

    #[test]
    fn edges_that_the_design_does_not_have_are_found() {
        let wrong = graph(&[
            of("of-runtime", "runtime", &["of-plan", "of-ir"], &["of-ops"]),
            of("of-a", "backends/a", &["of-codegen"], &["of-b"]),
            of("of-b", "backends/b", &["of-a"], &[]),
            of("of-opt", "tools/of-opt", &["of-a", "of-b"], &[]),
            of("of-new", "new", &[], &[]),
        ]);
        assert_eq!(
            wrong,
            [
                "runtime/Cargo.toml: of-runtime must not depend on of-ir",
                "backends/a/Cargo.toml: not even the tests of a backend may depend on another, of-b",
                "backends/b/Cargo.toml: of-b must not depend on of-a",
                "new: xtask/src/tidy/crates.rs does not say what of-new may depend on",
            ]
        );
    }
}
