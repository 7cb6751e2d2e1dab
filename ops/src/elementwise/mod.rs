//! Elementwise ops. Each primitive is a row of a table: name, documentation, scalar function, ONNX name.

mod activation;
mod binary;
mod bit_cast;
mod cast;
#[cfg(test)]
mod cast_tests;
mod is_inf;
mod select;
mod swiglu;
mod unary;
mod variadic;

pub use activation::*;
pub(crate) use binary::broadcast_dims;
pub use binary::*;
pub use bit_cast::BitCast;
pub use cast::Cast;
pub use is_inf::IsInf;
pub use select::Select;
pub use swiglu::SwiGlu;
pub use unary::*;
pub use variadic::{Clip, PRelu, VariadicMax, VariadicMean, VariadicMin, VariadicSum};
