//! Ops that multiply and sum over an axis.

mod einsum;
mod gemm;
mod matmul;

pub use einsum::Einsum;
pub use gemm::Gemm;
pub use matmul::MatMul;
