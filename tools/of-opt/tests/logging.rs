//! What `-v` and `RUST_LOG` show on stderr.

use std::path::Path;
use std::process::Command;

/// Stderr of a run of passes on the model of digits.
fn log(args: &[&str], rust_log: Option<&str>) -> String {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
    let mut command = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    command.env_remove("RUST_LOG").arg("inspect").arg(model).args(args);
    if let Some(directives) = rust_log {
        command.env("RUST_LOG", directives);
    }
    let out = command.output().unwrap();
    assert!(out.status.success());
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn flags_set_the_level() {
    assert!(!log(&[], None).contains("INFO"));
    assert!(log(&["-v"], None).contains("INFO importing"));
    assert!(log(&["-v"], Some("")).contains("INFO importing"));
}

#[test]
fn rust_log_sets_levels_by_module() {
    assert!(log(&[], Some("info")).contains("INFO importing"));
    assert!(log(&[], Some("of=info,of_codegen=off")).contains("INFO importing"));
    assert!(!log(&["-v"], Some("of=warn")).contains("INFO importing"));
}

#[test]
fn a_malformed_rust_log_is_reported() {
    let text = log(&["-v"], Some("a=b=c"));
    assert!(text.contains("RUST_LOG='a=b=c' has no effect"), "{text}");
    assert!(text.contains("INFO importing"), "{text}");
}
