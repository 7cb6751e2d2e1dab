//! `proto/onnx.rs` is committed, so that no build needs the generator. `cargo xtask proto` writes it.

use std::path::Path;

#[test]
fn generated_messages_match_the_schema() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let schema = protox::compile(["onnx.proto"], [&folder]).unwrap();
    let out = tempfile::tempdir().unwrap();
    // `Bytes` fields are slices of what is decoded: tensor data is not copied.
    prost_build::Config::new().bytes(["."]).out_dir(out.path()).compile_fds(schema).unwrap();
    let generated = std::fs::read_to_string(out.path().join("onnx.rs")).unwrap();
    let path = folder.join("onnx.rs");
    // As for snapshots, so that `cargo xtask bless` updates all.
    if std::env::var_os("INSTA_UPDATE").is_some_and(|v| v == "always") {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(generated == committed, "{} differs from its schema, run 'cargo xtask proto'", path.display());
}
