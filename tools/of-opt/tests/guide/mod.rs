//! Commands of CONTRIBUTING.md for crates outside of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The target folder of the running test.
pub fn target() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_of-opt")).parent().and_then(Path::parent).unwrap()
}

/// The commands that the guide has after the line `<!-- tested by TEST -->`, with the crate `name` made in `folder` and built in the
/// target folder of the test.
///
/// For a crate outside of the workspace cargo builds the crates of the repository again. They run for a moment only: without optimisation
/// that takes a third of the time, and all tests share what is built.
pub fn commands(test: &str, name: &str, folder: &Path) -> Vec<String> {
    let guide = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let mark = format!("<!-- tested by {test} -->\n```sh\n");
    let commands = guide.split_once(&mark).and_then(|(_, rest)| rest.split_once("```")).unwrap().0;
    let made = folder.join(name).display().to_string();
    let crates = ["codegen", "cuda-sys", "diag", "files", "ir", "library", "ops", "plan", "runtime"];
    let config = |c| {
        format!(
            " --config=profile.release.package.of-{c}.opt-level=0 --config=profile.release.package.of-{c}.codegen-units=16"
        )
    };
    let build = format!("cargo build --release{}", crates.map(config).concat());
    let line = |line: &str| {
        line.replace("cargo run --release --", env!("CARGO_BIN_EXE_of-opt"))
            .replace("cargo build --release", &build)
            .replace(&format!("{name}/target"), &target().display().to_string())
            .replace(&format!("--out {name}"), &format!("--out {made}"))
            .replace(&format!(" {name}/"), &format!(" {made}/"))
    };
    commands.lines().map(line).collect()
}

/// Runs a command in the root of the workspace, with the kernel cache in `folder`.
pub fn shell(line: &str, folder: &Path) -> Output {
    let mut sh = Command::new("sh");
    sh.args(["-c", line]).current_dir(root()).env("CARGO_TARGET_DIR", target()).env("CARGO_NET_OFFLINE", "true");
    sh.env("OF_CACHE_DIR", folder).output().unwrap()
}
