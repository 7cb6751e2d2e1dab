//! Weights: parameters that products and convolutions multiply with.

use of_ir::{Graph, OpId, Tensor, ValueId};
use of_ops::contraction::{Gemm, MatMul};
use of_ops::list::as_op;
use of_ops::movement::Transpose;
use of_ops::nn::Conv;

use super::parameters::parameters;

/// A parameter that an op multiplies with.
pub(super) struct Weight {
    /// Its name.
    pub name: String,
    /// The constant.
    pub constant: OpId,
    /// Its value.
    pub value: Tensor,
    /// The product or convolution that reads it first.
    pub reader: OpId,
    /// The axis of the parameter that is summed over; for a convolution that of input channels.
    pub input_axis: usize,
    /// Whether the reader is a product of matrices, and the parameter a matrix.
    pub is_matrix: bool,
}

/// The axis of an op's second operand that is summed over.
fn summed_axis(g: &Graph, op: OpId, rank: usize) -> Option<usize> {
    if let Some(gemm) = as_op::<Gemm>(g, op) {
        return Some(usize::from(gemm.trans_b));
    }
    if as_op::<MatMul>(g, op).is_some() {
        return rank.checked_sub(2);
    }
    as_op::<Conv>(g, op).is_some_and(|conv| !conv.channels_last).then_some(1)
}

/// The op that multiplies with a value, directly or transposed, and the summed axis of the value.
fn reader(g: &Graph, v: ValueId, rank: usize) -> Option<(OpId, usize)> {
    g.uses(v).iter().find_map(|used| match as_op::<Transpose>(g, used.op) {
        Some(transpose) => {
            let (op, axis) = reader(g, g.op(used.op).results[0], rank)?;
            Some((op, *transpose.permutation(rank).ok()?.get(axis)?))
        }
        None if used.operand == 1 => Some((used.op, summed_axis(g, used.op, rank)?)),
        None => None,
    })
}

/// The weights of a function, in its order.
pub(super) fn weights(g: &Graph) -> Vec<Weight> {
    let weight = |(name, constant, value): (String, OpId, Tensor)| {
        let rank = value.dims().len();
        let (reader, input_axis) = reader(g, g.op(constant).results[0], rank)?;
        let is_matrix = rank == 2 && as_op::<Conv>(g, reader).is_none();
        Some(Weight { name, constant, value, reader, input_axis, is_matrix })
    };
    parameters(g).into_iter().filter_map(weight).collect()
}
