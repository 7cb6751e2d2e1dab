//! Output streams that are closed, pipes that nothing reads, and what stderr gets without a terminal.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx")
}

fn of_opt(dir: &TempDir) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    c.env("OF_CACHE_DIR", dir.path().join("cache")).env_remove("RUST_LOG").current_dir(dir.path());
    c
}

/// A pipe that nothing reads.
fn without_reader() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Command lines that print to stderr: notes, logs, diagnostics, tables, usage.
const TO_STDERR: &[(&[&str], i32)] = &[
    (&["compile", "MODEL", "-o", "out.plan"], 0),
    (&["compile", "MODEL", "-o", "out.plan", "-vv"], 0),
    (&["inspect", "MODEL", "-vvv"], 0),
    (&["MODEL", "--passes=simplify", "--time-passes", "--print-changed", "-o", "/dev/null"], 0),
    (&["inspect", "no-such-file.onnx"], 2),
    (&["compile"], 2),
];

#[test]
fn a_closed_stderr_changes_no_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    for (args, code) in TO_STDERR {
        let args = args.iter().map(|a| if *a == "MODEL" { digits() } else { a.into() });
        let status = of_opt(&dir).args(args.clone()).stdout(Stdio::null()).stderr(without_reader()).status().unwrap();
        assert_eq!(status.code(), Some(*code), "{args:?}");
        // No stream at all.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 2>&-", "sh", env!("CARGO_BIN_EXE_of-opt")]).args(args.clone());
        let status = shell.env("OF_CACHE_DIR", dir.path().join("cache")).current_dir(dir.path()).stdout(Stdio::null());
        assert_eq!(status.status().unwrap().code(), Some(*code), "{args:?}");
    }
}

/// As a program that SIGPIPE ends: code 141, and nothing on stderr.
#[test]
fn a_pipe_that_nothing_reads_ends_the_program_quietly() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["ops", "--markdown"][..], &["man"], &["completions", "bash"], &["passes"], &["cache", "--json"]] {
        let out = of_opt(&dir).args(args).stdout(without_reader()).output().unwrap();
        assert_eq!((out.status.code(), String::from_utf8_lossy(&out.stderr).as_ref()), (Some(141), ""), "{args:?}");
    }
    let script = "\"$0\" ops --markdown | head -n 1";
    let out = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_of-opt")]).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty());
    assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), 1);
}

#[test]
fn progress_goes_to_a_terminal_or_a_verbose_log() {
    let dir = tempfile::tempdir().unwrap();
    let said = |flags: &[&str]| {
        let out = of_opt(&dir).arg("compile").arg(digits()).args(["-o", "out.plan"]).args(flags).output().unwrap();
        assert!(out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    let quiet = said(&[]);
    for step in ["importing", "running passes", "generating code", "compiling kernels", "pass ", "\r", "\u{1b}"] {
        assert!(!quiet.contains(step), "'{step}' in {quiet}");
    }
    let verbose = said(&["-v"]);
    assert!(verbose.contains("running passes") && verbose.contains("generating code"), "{verbose}");
}
