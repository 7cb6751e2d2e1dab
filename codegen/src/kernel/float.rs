//! Element types that kernels compute in f32.

use of_ir::DType;

/// Whether values of this type are computed in f32: f32 itself, and 16-bit floats.
pub fn is_float(dtype: DType) -> bool {
    dtype == DType::F32 || is_half(dtype)
}

/// Whether this is a 16-bit float.
pub fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}
