//! The backend in a shared library that CONTRIBUTING.md describes: its commands, verbatim.

mod guide;

use std::process::Command;

use guide::root;

#[test]
fn documented_commands_build_and_run_an_external_backend() {
    let dir = tempfile::tempdir().unwrap();
    let mut said = Vec::new();
    for line in guide::commands("tools/of-opt/tests/backend_library.rs", "toy-backend", dir.path()) {
        let out = guide::shell(&line, dir.path());
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        assert!(out.status.success(), "{line}\n{}", text(&out.stderr));
        said.push(text(&out.stdout));
    }
    let [.., explained, run] = &said[..] else { panic!("there are too few commands") };
    assert!(explained.contains("toy: 3 ops in 1 subgraph, nothing is left out"), "{explained}");
    // The same numbers without the backend: the inputs that are made up are always the same.
    let plain = Command::new(env!("CARGO_BIN_EXE_of-opt"))
        .args(["run", "tests/lit/place/toy.of", "--shape", "x=4x8,w=4x8"])
        .current_dir(root())
        .output()
        .unwrap();
    assert_eq!(*run, String::from_utf8_lossy(&plain.stdout));
    // A file that is not a library is rejected with a message.
    let none = root().join("README.md").display().to_string();
    let wrong = Command::new(env!("CARGO_BIN_EXE_of-opt"))
        .args(["run", "tests/lit/place/toy.of", "--shape", "x=4x8,w=4x8", "--library", &none])
        .current_dir(root())
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("cannot be loaded"));
}
