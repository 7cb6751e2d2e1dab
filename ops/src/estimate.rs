//! Estimates from types alone: elements, bytes, and the arithmetic of products.

use of_ir::{Dim, OpView, TensorType, Type};

/// What a symbol counts in an extent, so that an open dimension has a cost at all.
pub const OPEN: i64 = 64;

/// A dimension as a number, symbols being [`OPEN`].
pub fn extent(d: &Dim) -> f64 {
    let n = d.as_const().or_else(|| d.substitute(&|_| Some(Dim::from(OPEN))).as_const());
    n.unwrap_or(OPEN).max(0) as f64
}

/// Number of elements of a type: those of a tensor, 1 where not even the rank is known, 0 of anything else.
pub fn elements(ty: &Type) -> f64 {
    match ty {
        Type::Tensor(TensorType { shape: Some(s), .. }) => s.iter().map(extent).product(),
        Type::Tensor(_) => 1.0,
        _ => 0.0,
    }
}

/// Bytes of a value of a type; a string counts 16.
pub fn bytes(ty: &Type) -> f64 {
    let bits = ty.as_tensor().and_then(|t| t.dtype.bits()).unwrap_or(128);
    elements(ty) * bits as f64 / 8.0
}

/// Arithmetic of a product of matrices: a multiply-add for each element of the result and each of the inner axis.
pub(crate) fn product(cx: &OpView<'_>, results: &[Type]) -> Option<f64> {
    let inner = cx.ty(0)?.as_tensor()?.shape.as_ref()?.last().map(extent)?;
    Some(2.0 * inner * elements(results.first()?))
}

/// Arithmetic of a filter with weights `[C, K, kernel…]` as operand 1 that is applied at every position of C channels,
/// of which `at` has one number each.
pub(crate) fn filter(cx: &OpView<'_>, at: &Type) -> Option<f64> {
    let weights = cx.ty(1)?.as_tensor()?.shape.as_ref()?;
    Some(2.0 * elements(at) * weights[1..].iter().map(extent).product::<f64>())
}
