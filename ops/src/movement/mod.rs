//! Ops that move elements without computing: they take every element type, strings and packed integers included.

mod bounds;
mod build;
pub(crate) mod cells;
mod compress;
mod concat;
mod constant_of_shape;
mod depth_space;
mod expand;
mod eye_like;
mod gather;
mod gather_elements;
mod gather_nd;
mod index;
mod nonzero;
mod one_hot;
mod pad;
mod range;
mod reshape;
mod reverse_sequence;
mod scatter_elements;
mod scatter_gradient;
mod scatter_nd;
mod slice;
pub(crate) mod spec;
mod split;
mod squeeze;
mod tensor_scatter;
mod tile;
mod transpose;
mod trilu;
mod unique;

pub(crate) use concat::concat;
pub(crate) use split::pieces;

pub use compress::Compress;
pub use concat::Concat;
pub use constant_of_shape::ConstantOfShape;
pub use depth_space::{DepthToSpace, SpaceToDepth};
pub use expand::Expand;
pub use eye_like::EyeLike;
pub use gather::Gather;
pub use gather_elements::GatherElements;
pub use gather_nd::GatherNd;
pub use nonzero::NonZero;
pub use one_hot::OneHot;
pub use pad::Pad;
pub use range::Range;
pub use reshape::Reshape;
pub use reverse_sequence::ReverseSequence;
pub use scatter_elements::ScatterElements;
pub use scatter_nd::ScatterNd;
pub use slice::Slice;
pub use split::Split;
pub use squeeze::{Flatten, Squeeze, Unsqueeze};
pub use tensor_scatter::TensorScatter;
pub use tile::Tile;
pub use transpose::{Transpose, swap_last_axes};
pub use trilu::Trilu;
pub use unique::Unique;

use of_diag::Diagnostic;
use of_ir::{DType, Dim, OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use crate::Inferred;
use crate::structural::{Constant, ShapeOf};

/// The most axes that a tensor may get, and the most elements of a tensor that holds dimensions.
pub const MAX_AXES: usize = 64;

/// The longest list of indices that a gradient rule writes into the graph.
const MAX_LIST_LENGTH: usize = 1 << 24;

/// Partial values of every kind pass through an op that copies elements of operand 0; the others are broadcast.
fn partials(operands: usize) -> Vec<SbpSignature> {
    PartialKind::ALL.into_iter().map(|k| first_only(operands, Sbp::Partial(k), Sbp::Partial(k))).collect()
}

/// The signature: operand 0 is `from`, the others are broadcast, the result is `to`.
fn first_only(operands: usize, from: Sbp, to: Sbp) -> SbpSignature {
    let mut list = vec![Sbp::Broadcast; operands.max(1)];
    list[0] = from;
    SbpSignature::new(&list, &[to])
}

/// A split of `axis`; tensors of more than 255 axes are not split.
fn split(axis: usize) -> Option<Sbp> {
    u8::try_from(axis).ok().map(Sbp::Split)
}

/// Dimensions of a tensor value.
fn to_shape(dims: &[usize]) -> Vec<Dim> {
    dims.iter().map(|d| Dim::from(*d)).collect()
}

/// A constant tensor of integers.
fn ints(rw: &mut Rewriter<'_>, values: &[i64]) -> Result<ValueId, Diagnostic> {
    rw.create_one(Constant { value: Tensor::from_i64s(values) }, &[])
}

/// Zeros of the type and shape of `v`.
pub fn zeros_like(rw: &mut Rewriter<'_>, v: ValueId) -> Result<ValueId, Diagnostic> {
    let dtype = rw.graph().ty(v).as_tensor().map_or(DType::F32, |t| t.dtype);
    let zero = Constant::number(rw, 0.0, dtype)?;
    let dims = rw.create_one(ShapeOf { start: None, end: None }, &[v])?;
    rw.create_one(Expand {}, &[zero, dims])
}

/// What is known at compile time about an optional operand of integers.
enum Known {
    LeftOut,
    Unknown,
    Value(Vec<i64>),
}

/// Operand `i` as integers.
fn known(cx: &OpView<'_>, i: usize) -> Known {
    match (cx.operand(i), cx.ints(i)) {
        (None, _) => Known::LeftOut,
        (_, Some(v)) => Known::Value(v),
        (_, None) => Known::Unknown,
    }
}

/// The type of a tensor of `dtype` whose dimensions are the elements of operand 0.
pub(crate) fn shape_operand_result(cx: &OpView<'_>, dtype: DType) -> Inferred {
    let spec = cx.tensor(0)?;
    if !spec.dtype.is_int() || spec.rank().is_some_and(|r| r != 1) {
        return Err(OpError::ty("the shape must be an integer tensor of rank 1"));
    }
    let dims = match (cx.dims(0), spec.fixed_dims().as_deref()) {
        (Some(d), _) => d,
        (None, Some([n])) if *n <= MAX_AXES => vec![Dim::unknown(); *n],
        (None, Some(_)) => return Err(OpError::shape("a tensor cannot have so many axes")),
        (None, None) => return Ok(vec![Type::Tensor(TensorType::unranked(dtype))]),
    };
    if let Some(d) = dims.iter().find(|d| d.as_const().is_some_and(|c| c < 0)) {
        return Err(OpError::shape(format!("a dimension is {d}")));
    }
    Ok(vec![Type::tensor(dtype, dims)])
}
