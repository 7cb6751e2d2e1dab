//! Programs are built from the crates of the workspace's tests: with other features, cargo would build each crate again.

use std::collections::BTreeSet;

use crate::workspace::cargo;

/// Packages that CI builds alone.
const ALONE: &[&str] = &["of-opt", "of-python"];

/// Crates that have other features in a build of one package than in a build of the workspace.
///
/// # Errors
/// When cargo does not tell the features.
pub fn check() -> Result<Vec<String>, String> {
    let workspace = features(&["--workspace", "--edges", "normal,build,dev"])?;
    let mut wrong = Vec::new();
    for package in ALONE {
        for other in features(&["--package", package, "--edges", "normal,build"])?.difference(&workspace) {
            wrong.push(format!(
                "{package} alone builds {other}, and the workspace builds it with other features: name those in its Cargo.toml"
            ));
        }
    }
    Ok(wrong)
}

/// Lines `crate version [features]` of a build.
fn features(selection: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut tree = cargo();
    tree.args(["tree", "--prefix", "none", "--format", "{p} [{f}]"]).args(selection);
    let out = tree.output().map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&out.stderr)));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).filter(|line| !line.is_empty()).collect())
}
