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
    /// The axis of the parameter that the result has; for a convolution that of output channels.
    pub output_axis: usize,
    /// Whether the reader is a product of matrices, and the parameter a matrix.
    pub is_matrix: bool,
    /// The convolution that reads the parameter as it is.
    pub conv: Option<Conv>,
}

/// The axes of an op's second operand that is summed over, and that the result has.
fn axes(g: &Graph, op: OpId, rank: usize) -> Option<[usize; 2]> {
    if let Some(gemm) = as_op::<Gemm>(g, op) {
        return Some(if gemm.trans_b { [1, 0] } else { [0, 1] });
    }
    if as_op::<MatMul>(g, op).is_some() {
        return rank.checked_sub(2).map(|axis| [axis, axis + 1]);
    }
    as_op::<Conv>(g, op).is_some_and(|conv| !conv.channels_last).then_some([1, 0])
}

/// The op that multiplies with a value, directly or transposed, and the axes of the value as [`axes`] has them.
fn reader(g: &Graph, v: ValueId, rank: usize) -> Option<(OpId, [usize; 2])> {
    g.uses(v).iter().find_map(|used| match as_op::<Transpose>(g, used.op) {
        Some(transpose) => {
            let (op, [input, output]) = reader(g, g.op(used.op).results[0], rank)?;
            let perm = transpose.permutation(rank).ok()?;
            Some((op, [*perm.get(input)?, *perm.get(output)?]))
        }
        None if used.operand == 1 => Some((used.op, axes(g, used.op, rank)?)),
        None => None,
    })
}

/// The weights of a function, in its order.
pub(super) fn weights(g: &Graph) -> Vec<Weight> {
    let weight = |(name, constant, value): (String, OpId, Tensor)| {
        let rank = value.dims().len();
        let (reader, [input_axis, output_axis]) = reader(g, g.op(constant).results[0], rank)?;
        let is_matrix = rank == 2 && as_op::<Conv>(g, reader).is_none();
        let is_read_directly = g.op(reader).operands[1] == g.op(constant).results[0];
        let conv = as_op::<Conv>(g, reader).filter(|_| is_read_directly);
        Some(Weight { name, constant, value, reader, input_axis, output_axis, is_matrix, conv })
    };
    parameters(g, &[]).into_iter().filter_map(weight).collect()
}
