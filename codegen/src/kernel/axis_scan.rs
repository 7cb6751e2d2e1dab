//! Scans along one axis: arg max, cumulative sums, integer reductions, top k.

use of_ir::DType;

use super::body::ReduceKind;
use super::extent::Extent;

/// A tensor as `[outer, n, inner]`, scanned along the middle axis.
#[derive(Clone, PartialEq, Debug)]
pub struct ScanAxis {
    /// Product of the extents before the axis.
    pub outer: Extent,
    /// Extent of the axis.
    pub n: Extent,
    /// Product of the extents after the axis.
    pub inner: Extent,
}

impl ScanAxis {
    /// The axis with index `axis` of a tensor of these extents.
    pub fn of(dims: &[Extent], axis: usize) -> ScanAxis {
        ScanAxis {
            outer: dims[..axis].iter().product(),
            n: dims[axis].clone(),
            inner: dims[axis + 1..].iter().product(),
        }
    }
}

/// A scan along one axis (arg max, cumulative sum, reduction, top k), for each position of the other axes. Arguments are the tensor and the results.
#[derive(Clone, PartialEq, Debug)]
pub struct AxisScan {
    /// The axis.
    pub axis: ScanAxis,
    /// Type of the elements of the tensor.
    pub dtype: DType,
    /// The computation.
    pub kind: AxisScanKind,
}

/// The computation of an [`AxisScan`].
#[derive(Clone, PartialEq, Debug)]
pub enum AxisScanKind {
    /// The index of the largest or smallest element. NaN takes precedence over any number.
    ArgExtremum {
        /// Whether the largest element is selected.
        largest: bool,
        /// Whether the last of equal elements is selected; otherwise the first.
        last: bool,
    },
    /// Running sums.
    CumulativeSum {
        /// Whether an element is excluded from its sum.
        exclusive: bool,
        /// Whether sums run from the end.
        reverse: bool,
    },
    /// A reduction of integers. Sums and products wrap.
    Reduce(ReduceKind),
    /// The first k elements in order, with their indices as a second result.
    TopK {
        /// The number k.
        k: Extent,
        /// Whether the order is descending.
        largest: bool,
    },
}
