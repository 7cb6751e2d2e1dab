//! Elementwise ops. Each primitive is a row of a table: name, documentation, scalar function, ONNX name.

mod binary;
mod unary;

pub use binary::*;
pub use unary::*;
