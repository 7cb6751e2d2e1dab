//! Questions about values that several passes ask.

use of_ir::{Elements, Graph, OpId, Tensor, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;

/// The op that defines `v` and its attributes, if it is a `T`.
pub fn def<T: OpSpec>(g: &Graph, v: ValueId) -> Option<(OpId, T)> {
    let op = g.def_op(v)?;
    Some((op, as_op::<T>(g, op)?))
}

/// The fixed dimensions of a tensor value.
pub fn dims(g: &Graph, v: ValueId) -> Option<Vec<usize>> {
    g.ty(v).as_tensor()?.fixed_dims()
}

/// The one number that every element of a constant has.
pub fn splat(g: &Graph, v: ValueId) -> Option<f64> {
    /// Larger constants are data: looking through them costs more than it finds.
    const LARGEST: usize = 1 << 16;
    let t = g.constant(v)?;
    if t.is_empty() || t.len() > LARGEST {
        return None;
    }
    match t.elements() {
        Elements::Float(e) => e.iter().all(|x| x.to_bits() == e[0].to_bits()).then_some(e[0]),
        Elements::Int(e) => e.iter().all(|x| *x == e[0]).then(|| e[0] as f64),
        Elements::Str(_) => None,
    }
}

/// Whether `v` has exactly one reader.
pub fn single_use(g: &Graph, v: ValueId) -> bool {
    g.uses(v).len() == 1
}

/// A constant's integers.
pub fn ints(g: &Graph, v: ValueId) -> Option<Vec<i64>> {
    g.constant(v).as_ref().and_then(Tensor::to_i64s)
}
