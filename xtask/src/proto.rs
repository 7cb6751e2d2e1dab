//! `cargo xtask proto`: the Rust types of protocol buffers: ONNX's, and those of the model server.

use crate::workspace::{cargo, run};

/// Generates `onnx/proto/onnx.rs` and `serving/proto/inference.rs`. The generators are tests of their crates, so that no build needs them.
///
/// # Errors
/// When the schema cannot be compiled.
pub fn generate() -> Result<(), String> {
    run(cargo()
        .args(["test", "--package", "of-onnx", "--package", "of-serving", "--test", "proto"])
        .env("INSTA_UPDATE", "always"))
}
