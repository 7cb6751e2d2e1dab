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

/// `1 / c` if a product with it is the quotient by `c`, bit for bit: for powers of two whose reciprocal is normal.
pub fn exact_reciprocal(c: f32) -> Option<f32> {
    let r = 1.0 / c;
    let power_of_two = c.to_bits() << 9 == 0;
    (power_of_two && c.is_normal() && r.is_normal()).then_some(r)
}
