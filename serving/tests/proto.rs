//! `proto/inference.rs` is committed, so that no build needs the generator. `cargo xtask proto` writes it.

use std::path::Path;

#[test]
fn generated_code_matches_the_schema() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let schema = protox::compile(["grpc_service.proto"], [&folder]).unwrap();
    let out = tempfile::tempdir().unwrap();
    // `Bytes` fields are slices of what is decoded: tensor data is not copied.
    let generator = tonic_prost_build::configure().bytes(".").btree_map(".").build_transport(false);
    generator.out_dir(out.path()).compile_fds(schema).unwrap();
    let generated = std::fs::read_to_string(out.path().join("inference.rs")).unwrap();
    let path = folder.join("inference.rs");
    // As for snapshots, so that `cargo xtask bless` updates all.
    if std::env::var_os("INSTA_UPDATE").is_some_and(|v| v == "always") {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(generated == committed, "{} differs from its schema, run 'cargo xtask proto'", path.display());
}
