//! The program that README and the book show runs.

use std::process::Command;

#[test]
fn a_model_is_compiled_and_its_plan_deployed() {
    let dir = tempfile::tempdir().unwrap();
    // As the test was built, so that cargo has built it already.
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut run = Command::new(cargo);
    run.args(["run", "--quiet", "--offline", "--profile", profile, "--package", "of-driver"]);
    run.args(["--example", "compile_and_deploy"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let out = run.env("TMPDIR", dir.path()).env("OF_CACHE_DIR", dir.path().join("cache")).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(said.matches("compiled: Some([").count(), 3, "{said}");
    assert!(said.contains("deployed: Some([") && dir.path().join("digits.plan").is_file(), "{said}");
}
