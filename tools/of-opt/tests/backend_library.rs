//! The backend in a shared library that CONTRIBUTING.md describes: its commands, verbatim.

use std::path::Path;
use std::process::Command;

/// The line before the commands.
const MARK: &str = "<!-- tested by tools/of-opt/tests/backend_library.rs -->\n```sh\n";

#[test]
fn documented_commands_build_and_run_an_external_backend() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let guide = std::fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let commands = guide.split_once(MARK).and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("toy-backend").display().to_string();
    // Cargo builds the crates of the repository again for a crate outside of it. They run for a moment only: without optimisation it
    // takes a third of the time.
    let crates = ["codegen", "cuda-sys", "diag", "files", "ir", "library", "ops", "plan", "runtime"];
    let configs = crates.map(|name| {
        format!("--config=profile.release.package.of-{name}.opt-level=0 --config=profile.release.package.of-{name}.codegen-units=16")
    });
    let built = Path::new(env!("CARGO_BIN_EXE_of-opt")).parent().and_then(Path::parent).unwrap();
    let mut said = Vec::new();
    for line in commands.lines() {
        let line = line
            .replace("cargo run --release --", env!("CARGO_BIN_EXE_of-opt"))
            .replace("cargo build --release", &format!("cargo build --release {}", configs.join(" ")))
            .replace("toy-backend/target", &built.display().to_string())
            .replace("--out toy-backend", &format!("--out {made}"))
            .replace("toy-backend/Cargo.toml", &format!("{made}/Cargo.toml"));
        let mut sh = Command::new("sh");
        sh.args(["-c", &line]).current_dir(&root).env("CARGO_TARGET_DIR", built).env("CARGO_NET_OFFLINE", "true");
        let out = sh.env("OF_CACHE_DIR", dir.path()).output().unwrap();
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        assert!(out.status.success(), "{line}\n{}", text(&out.stderr));
        said.push(text(&out.stdout));
    }
    let [.., explained, run] = &said[..] else { panic!("there are too few commands") };
    assert!(explained.contains("toy: 3 ops in 1 subgraph, nothing is left out"), "{explained}");
    // The same numbers without the backend: the inputs that are made up are always the same.
    let plain = Command::new(env!("CARGO_BIN_EXE_of-opt"))
        .args(["run", "tests/lit/place/toy.of", "--shape", "x=4x8,w=4x8"])
        .current_dir(&root)
        .output()
        .unwrap();
    assert_eq!(*run, String::from_utf8_lossy(&plain.stdout));
    // A file that is not a library is rejected with a message.
    let none = root.join("README.md").display().to_string();
    let wrong = Command::new(env!("CARGO_BIN_EXE_of-opt"))
        .args(["run", "tests/lit/place/toy.of", "--shape", "x=4x8,w=4x8", "--library", &none])
        .current_dir(&root)
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("cannot be loaded"));
}
