//! Which crate may depend on which, and what every crate has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::workspace::{cargo, read};

/// What each crate depends on, of the crates of this workspace: exactly these. Tests may need more.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("of-diag", &[]),
    ("of-signature", &[]),
    ("of-files", &[]),
    ("of-images", &[]),
    ("of-ir", &["of-diag", "of-files"]),
    ("of-ops", &["of-diag", "of-images", "of-ir"]),
    ("of-frontend", &["of-diag", "of-ir", "of-ops"]),
    ("of-onnx", &["of-diag", "of-files", "of-ir", "of-ops"]),
    ("of-stablehlo", &["of-diag", "of-ir", "of-ops"]),
    ("of-sharding", &["of-diag", "of-ir", "of-ops"]),
    ("of-passes", &["of-diag", "of-files", "of-ir", "of-ops", "of-sharding"]),
    ("of-plan", &["of-files"]),
    ("of-cuda-sys", &[]),
    ("of-emit", &["of-ir", "of-ops"]),
    ("of-codegen", &["of-diag", "of-ir", "of-ops", "of-plan", "of-cuda-sys"]),
    ("of-runtime", &["of-plan"]),
    ("of-cuda", &["of-diag", "of-ir", "of-ops", "of-plan", "of-cuda-sys", "of-codegen", "of-runtime"]),
    ("of-library", &["of-diag", "of-ir", "of-ops", "of-plan", "of-codegen", "of-runtime"]),
    ("of-mlir", &["of-diag", "of-ir", "of-ops", "of-plan", "of-emit", "of-codegen", "of-runtime"]),
    ("of-reference", &["of-diag", "of-ir", "of-ops", "of-plan", "of-codegen", "of-runtime"]),
    ("of-tensorrt", &["of-diag", "of-ir", "of-ops", "of-onnx", "of-plan", "of-codegen", "of-runtime"]),
    ("of-xla", &["of-diag", "of-ir", "of-ops", "of-plan", "of-emit", "of-codegen", "of-runtime"]),
    (
        "of-driver",
        &[
            "of-codegen",
            "of-cuda",
            "of-diag",
            "of-files",
            "of-frontend",
            "of-images",
            "of-ir",
            "of-library",
            "of-mlir",
            "of-onnx",
            "of-ops",
            "of-passes",
            "of-plan",
            "of-reference",
            "of-runtime",
            "of-sharding",
            "of-signature",
            "of-stablehlo",
            "of-tensorrt",
            "of-xla",
        ],
    ),
    ("of-lsp", &["of-diag", "of-ir", "of-ops", "of-passes"]),
    ("of-cli", &["of-diag", "of-telemetry"]),
    ("of-opt-serve", &["of-cli", "of-diag", "of-plan", "of-runtime", "of-serving", "of-signature"]),
    ("of-page", &["of-ir", "of-passes", "of-plan", "of-sharding"]),
    (
        "of-opt",
        &[
            "of-cli",
            "of-codegen",
            "of-cuda",
            "of-diag",
            "of-driver",
            "of-files",
            "of-ir",
            "of-lsp",
            "of-mlir",
            "of-objects",
            "of-onnx",
            "of-ops",
            "of-opt-serve",
            "of-page",
            "of-passes",
            "of-plan",
            "of-reference",
            "of-runtime",
            "of-serving",
            "of-signature",
            "of-sharding",
            "of-telemetry",
            "of-tensorrt",
            "of-transport",
            "of-xla",
        ],
    ),
    ("of-objects", &[]),
    ("of-telemetry", &[]),
    ("of-serving", &["of-objects", "of-plan", "of-runtime", "of-telemetry"]),
    ("of-transport", &["of-plan", "of-runtime"]),
    ("of-runtime-c", &["of-plan", "of-runtime", "of-signature", "of-transport"]),
    (
        "of-python",
        &[
            "of-codegen",
            "of-diag",
            "of-driver",
            "of-files",
            "of-ir",
            "of-onnx",
            "of-ops",
            "of-page",
            "of-passes",
            "of-plan",
            "of-runtime",
            "of-transport",
        ],
    ),
    ("of-bench", &["of-ir", "of-ops", "of-passes", "of-codegen", "of-runtime", "of-reference"]),
    (
        "of-fuzz",
        &[
            "of-diag",
            "of-driver",
            "of-ir",
            "of-ops",
            "of-onnx",
            "of-passes",
            "of-plan",
            "of-codegen",
            "of-runtime",
            "of-reference",
            "of-transport",
            "of-test-support",
        ],
    ),
    ("of-lit", &["of-test-support"]),
    (
        "of-test-support",
        &["of-diag", "of-ir", "of-ops", "of-sharding", "of-passes", "of-plan", "of-codegen", "of-runtime"],
    ),
    ("xtask", &["of-test-support"]),
];

/// What the line before the rules begins with.
const RULES: &str = "Dependencies point one way";

struct Crate {
    name: String,
    folder: String,
    /// Crates of the workspace that it needs to build, and those that its tests need.
    needs: BTreeSet<String>,
    tests_need: BTreeSet<String>,
    /// What the registry would refuse.
    unpublishable: Vec<String>,
}

/// Everything that is wrong.
///
/// # Errors
/// When cargo does not describe the workspace.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let crates = crates(root)?;
    let mut wrong = graph(&crates);
    wrong.extend(
        crates.iter().flat_map(|c| c.unpublishable.iter().map(|why| format!("{}/Cargo.toml: {why}", c.folder))),
    );
    let architecture = read(&root.join("ARCHITECTURE.md"))?;
    let rules = architecture.split_once(RULES).ok_or(format!("ARCHITECTURE.md has no line '{RULES}'"))?.1;
    // The indented lines below.
    let rules: Vec<&str> =
        rules.lines().skip(1).skip_while(|l| l.is_empty()).take_while(|l| l.starts_with("    ")).collect();
    wrong.extend(against(&rules.join("\n"), &crates));
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

/// Edges that the list lacks, and those that it has and no crate.
fn graph(crates: &[Crate]) -> Vec<String> {
    let list: BTreeMap<&str, &[&str]> = DEPENDENCIES.iter().copied().collect();
    let is_backend = |name: &str| crates.iter().any(|c| c.name == name && c.folder.starts_with("backends/"));
    let mut wrong = Vec::new();
    for c in crates {
        let (folder, name) = (&c.folder, &c.name);
        let Some(exact) = list.get(name.as_str()) else {
            wrong.push(format!("{folder}: xtask/src/tidy/crates.rs does not say what {name} depends on"));
            continue;
        };
        for n in c.needs.iter().filter(|n| !exact.contains(&n.as_str())) {
            wrong.push(format!("{folder}/Cargo.toml: {name} must not depend on {n}"));
        }
        for n in exact.iter().filter(|n| !c.needs.contains(**n)) {
            wrong.push(format!("xtask/src/tidy/crates.rs: {name} does not depend on {n} any more"));
        }
        for n in c.tests_need.iter().filter(|n| is_backend(name) && is_backend(n)) {
            wrong.push(format!("{folder}/Cargo.toml: not even the tests of a backend may depend on another, {n}"));
        }
    }
    wrong
}

/// Edges that ARCHITECTURE.md's rules, `a <- b` for "b may depend on a", do not have.
fn against(rules: &str, crates: &[Crate]) -> Vec<String> {
    let short = |c: &Crate| if c.folder.contains('/') { c.folder.clone() } else { c.name.replacen("of-", "", 1) };
    // `a`, `{a, b}` or `folder/{a, b}`.
    let set = |text: &str| -> Vec<String> {
        let (folder, names) = text.trim().split_once('{').unwrap_or(("", text));
        names.trim().trim_end_matches('}').split(',').map(|n| format!("{folder}{}", n.trim())).collect()
    };
    let mut direct: Vec<(String, String)> = Vec::new();
    for rule in rules.split([';', '\n']).filter(|r| r.contains("<-")) {
        let sets: Vec<Vec<String>> = rule.split("<-").map(set).collect();
        for pair in sets.windows(2) {
            direct.extend(pair[1].iter().flat_map(|b| pair[0].iter().map(move |a| (b.clone(), a.clone()))));
        }
    }
    let named = |rule: &str, name: &str| {
        rule == "everything" || rule == name || rule.strip_suffix('*').is_some_and(|folder| name.starts_with(folder))
    };
    let mut wrong = Vec::new();
    for c in crates.iter().filter(|c| !c.folder.starts_with("tests/")) {
        // What the rules allow, and what these may depend on.
        let (mut may, mut at) = (vec![short(c)], 0);
        while let Some(from) = may.get(at).cloned() {
            let next = direct.iter().filter(|(b, _)| named(b, &from)).map(|(_, a)| a.clone());
            let new: Vec<String> = next.filter(|a| !may.contains(a)).collect();
            may.extend(new);
            at += 1;
        }
        for need in crates.iter().filter(|n| c.needs.contains(&n.name) && !may.iter().any(|m| named(m, &short(n)))) {
            wrong.push(format!("ARCHITECTURE.md: no rule lets {} depend on {}", c.name, need.name));
        }
    }
    wrong
}

/// Why a registry would refuse a crate: a missing field, or a dependency with a version that is not published.
fn unpublishable(package: &Value, unpublished: &BTreeSet<&str>) -> Vec<String> {
    if package["publish"].is_array() {
        return Vec::new();
    }
    let fields = ["description", "license", "repository"].iter().filter(|f| package[**f].is_null());
    let mut wrong: Vec<String> = fields.map(|f| format!("a published crate has no {f}")).collect();
    let needs = package["dependencies"].as_array().into_iter().flatten();
    let unpublished = needs.filter(|d| d["name"].as_str().is_some_and(|n| unpublished.contains(n)));
    // Cargo omits dev-dependencies without a version from a package.
    let refused = unpublished.filter(|d| d["kind"] != "dev" || d["req"] != "*");
    wrong.extend(refused.map(|d| format!("{} is not published; only tests may need it, without a version", d["name"])));
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
    let unpublished = packages.iter().filter(|p| p["publish"].is_array()).filter_map(|p| p["name"].as_str()).collect();
    let mut out = Vec::new();
    for p in packages {
        let manifest = text(&p["manifest_path"]);
        let folder = Path::new(&manifest)
            .parent()
            .and_then(|d| d.strip_prefix(root).ok())
            .ok_or("a crate is outside the workspace")?;
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
            unpublishable: unpublishable(p, &unpublished),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, folder: &str, needs: &[&str], tests_need: &[&str]) -> Crate {
        let set = |l: &[&str]| l.iter().map(|s| (*s).to_string()).collect();
        Crate {
            name: name.into(),
            folder: folder.into(),
            needs: set(needs),
            tests_need: set(tests_need),
            unpublishable: Vec::new(),
        }
    }

    #[test]
    fn unpublishable_crates_are_reported() {
        let package = serde_json::json!({
            "publish": null, "description": "Text", "license": "Apache-2.0", "repository": null,
            "dependencies": [
                { "name": "support", "kind": "dev", "req": "*" },
                { "name": "support", "kind": null, "req": "*" },
                { "name": "support", "kind": "dev", "req": "^0.1.0" },
                { "name": "serde", "kind": null, "req": "^1" },
            ],
        });
        let refused = "\"support\" is not published; only tests may need it, without a version";
        let unpublished = BTreeSet::from(["support"]);
        assert_eq!(unpublishable(&package, &unpublished), ["a published crate has no repository", refused, refused]);
        assert!(unpublishable(&serde_json::json!({ "publish": [] }), &unpublished).is_empty());
    }

    #[test]
    fn unlisted_dependencies_are_reported() {
        let wrong = graph(&[
            of("of-runtime", "runtime", &["of-plan", "of-ir"], &["of-ops"]),
            of("of-files", "files", &[], &[]),
            of("of-plan", "plan", &[], &[]),
            of("of-xla", "backends/xla", DEPENDENCIES.iter().find(|d| d.0 == "of-xla").unwrap().1, &["of-mlir"]),
            of("of-mlir", "backends/mlir", DEPENDENCIES.iter().find(|d| d.0 == "of-mlir").unwrap().1, &[]),
            of("of-new", "new", &[], &[]),
        ]);
        assert_eq!(
            wrong,
            [
                "runtime/Cargo.toml: of-runtime must not depend on of-ir",
                "xtask/src/tidy/crates.rs: of-plan does not depend on of-files any more",
                "backends/xla/Cargo.toml: not even the tests of a backend may depend on another, of-mlir",
                "new: xtask/src/tidy/crates.rs does not say what of-new depends on",
            ]
        );
    }

    #[test]
    fn forbidden_dependencies_are_reported() {
        let crates = [
            of("of-ir", "ir", &[], &[]),
            of("of-plan", "plan", &["of-ir"], &[]),
            of("of-a", "backends/a", &["of-ir", "of-plan"], &[]),
            of("of-b", "backends/b", &["of-a"], &[]),
            of("of-opt", "tools/of-opt", &["of-a", "of-b"], &[]),
        ];
        let rules = "ir <- ops <- {plan, x}; plan <- backends/{a, b}\neverything <- tools/of-opt";
        assert_eq!(against(rules, &crates), ["ARCHITECTURE.md: no rule lets of-b depend on of-a"]);
    }
}
