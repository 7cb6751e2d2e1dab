//! Ops that multiply and sum over an axis.

mod det;
mod einsum;
mod gemm;
mod matmul;

pub use det::Det;
pub use einsum::Einsum;
pub use gemm::Gemm;
pub use matmul::MatMul;
