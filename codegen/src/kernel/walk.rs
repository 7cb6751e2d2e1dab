//! Kernels that walk along one axis: the position of the largest element, running sums, folds of integers, the k largest.

use of_ir::DType;

use super::body::Reduce;
use super::extent::Extent;

/// A tensor seen as `[outer, n, inner]`, whose middle axis is walked.
#[derive(Clone, PartialEq, Debug)]
pub struct Axis {
    /// Product of the extents before it.
    pub outer: Extent,
    /// Its extent.
    pub n: Extent,
    /// Product of the extents after it.
    pub inner: Extent,
}

impl Axis {
    /// The axis number `axis` of a tensor of these extents.
    pub fn of(dims: &[Extent], axis: usize) -> Axis {
        Axis { outer: dims[..axis].iter().product(), n: dims[axis].clone(), inner: dims[axis + 1..].iter().product() }
    }
}

/// A walk along one axis, for each position of the other axes. Arguments are the tensor and the results.
#[derive(Clone, PartialEq, Debug)]
pub struct Walk {
    /// The axis.
    pub axis: Axis,
    /// Type of the elements of the tensor.
    pub dtype: DType,
    /// What is computed.
    pub kind: WalkKind,
}

/// What a [`Walk`] computes.
#[derive(Clone, PartialEq, Debug)]
pub enum WalkKind {
    /// The index of the largest or smallest element. NaN is better than any number.
    ArgExtremum {
        /// Whether the largest is searched.
        largest: bool,
        /// Whether the last of equal elements is taken, rather than the first.
        last: bool,
    },
    /// Running sums.
    CumulativeSum {
        /// Whether an element is left out of its own sum.
        exclusive: bool,
        /// Whether sums run from the end.
        reverse: bool,
    },
    /// All integers of the axis combined. Sums and products wrap.
    Fold(Reduce),
    /// The first elements in order, and their indices as another result.
    TopK {
        /// How many.
        k: Extent,
        /// Whether large elements come first.
        largest: bool,
    },
}
