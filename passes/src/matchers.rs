//! Matchers: queries about values that several passes share (defining op, constant, splat, single use).

use of_ir::{DType, Elements, Graph, OpId, Tensor, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;

/// The op that defines `v` with its attributes, if it is a `T`.
pub fn def<T: OpSpec>(g: &Graph, v: ValueId) -> Option<(OpId, T)> {
    let op = g.def_op(v)?;
    Some((op, as_op::<T>(g, op)?))
}

/// The fixed dimensions of a tensor value.
pub fn dims(g: &Graph, v: ValueId) -> Option<Vec<usize>> {
    g.ty(v).as_tensor()?.fixed_dims()
}

/// The number that every element of a constant has.
pub fn splat(g: &Graph, v: ValueId) -> Option<f64> {
    /// Larger constants are data: scanning them costs more than it gains.
    const MAX_ELEMENTS: usize = 1 << 16;
    let t = g.constant(v)?;
    if t.is_empty() || t.len() > MAX_ELEMENTS {
        return None;
    }
    match t.elements() {
        Elements::Float(e) => e.iter().all(|x| x.to_bits() == e[0].to_bits()).then_some(e[0]),
        Elements::Int(e) => e.iter().all(|x| *x == e[0]).then(|| e[0] as f64),
        Elements::Str(_) => None,
    }
}

/// Whether `v` has exactly one use.
pub fn single_use(g: &Graph, v: ValueId) -> bool {
    g.uses(v).len() == 1
}

/// The integers of a constant.
pub fn ints(g: &Graph, v: ValueId) -> Option<Vec<i64>> {
    g.constant(v).as_ref().and_then(Tensor::to_i64s)
}

/// Whether every value of `narrow` is representable in `wide`.
pub fn holds_all_values(wide: DType, narrow: DType) -> bool {
    use DType::{BF16, F16, F32, F64};
    match (narrow, wide) {
        (a, b) if a == b => true,
        (F16 | BF16, F32 | F64) | (F32, F64) => true,
        // A float of p bits of mantissa holds whole numbers up to 2^p.
        (_, F32 | F64) => narrow.int_range().is_some_and(|(lo, hi)| {
            let most = 1i128 << if wide == F32 { 24 } else { 53 };
            lo >= -most && hi <= most
        }),
        _ => match (narrow.int_range(), wide.int_range()) {
            (Some((a, b)), Some((lo, hi))) => lo <= a && b <= hi,
            _ => false,
        },
    }
}
