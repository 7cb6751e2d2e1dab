//! `cargo xtask proto`: the Rust types of ONNX's protocol buffers.

use crate::workspace::{cargo, run};

/// Generates `onnx/proto/onnx.rs` from `onnx/proto/onnx.proto`. The generator is a test of of-onnx, so that no build needs it.
///
/// # Errors
/// When the schema cannot be compiled.
pub fn generate() -> Result<(), String> {
    run(cargo().args(["test", "--package", "of-onnx", "--test", "proto"]).env("INSTA_UPDATE", "always"))
}
