//! Kernels whose source or destination positions are computed or read from memory.
//!
//! [`Indexed`] computes each element of a result from its position; [`Scatter`] writes slices of an operand to indexed
//! positions. Negative indices count from the end of their axis; an index out of range ends the kernel with status 1.

use of_ir::DType;
use of_ops::nn::{Filter, Interpolation};

use super::body::ReduceKind;
use super::extent::Extent;
use super::window::{Divisor, WindowAxis};

/// A result whose elements are computed one by one.
#[derive(Clone, PartialEq, Debug)]
pub enum Indexed {
    /// The elements of a dense operand, in order.
    Dense {
        /// Number of elements.
        count: Extent,
        /// Bytes of an element.
        bytes: usize,
    },
    /// ONNX `GatherElements`: an index for each element of the result, along one axis.
    GatherElements {
        /// Extents of the data.
        from: Vec<Extent>,
        /// Extents of the indices and of the result.
        to: Vec<Extent>,
        /// The indexed axis.
        axis: usize,
        /// Type of the indices.
        index: DType,
        /// Bytes of an element.
        bytes: usize,
    },
    /// ONNX `GatherND`: an index tuple for each slice of the result.
    GatherSlices {
        /// Extents of the data.
        from: Vec<Extent>,
        /// Extents of the indices.
        indices: Vec<Extent>,
        /// Leading axes that data and indices share.
        batch: usize,
        /// Axes that a tuple indexes.
        index_depth: usize,
        /// Type of the indices.
        index: DType,
        /// Bytes of an element.
        bytes: usize,
    },
    /// ONNX `Tile`: repetition along each axis.
    Tile {
        /// Extents of the operand.
        from: Vec<Extent>,
        /// Extents of the result.
        to: Vec<Extent>,
        /// Bytes of an element.
        bytes: usize,
    },
    /// Padding with elements of the operand itself.
    Pad {
        /// Extents of the operand.
        from: Vec<Extent>,
        /// Extents of the result.
        to: Vec<Extent>,
        /// The padded axes.
        axes: Vec<PaddedAxis>,
        /// How elements beyond the border are filled.
        mode: PadMode,
        /// Bytes of an element.
        bytes: usize,
    },
    /// ONNX `Trilu`: the upper or lower triangle of matrices, zeros elsewhere.
    Triangle {
        /// Extents.
        dims: Vec<Extent>,
        /// Whether the upper triangle is kept.
        upper: bool,
        /// Type of the operand that selects the diagonal; `None` is the main diagonal.
        diagonal: Option<DType>,
        /// Bytes of an element.
        bytes: usize,
    },
    /// ONNX `ReverseSequence`: the first elements along the time axis, reversed for each batch.
    ReverseSequence {
        /// Extents.
        dims: Vec<Extent>,
        /// Number of lengths.
        lengths: Extent,
        /// The batch axis.
        batch: usize,
        /// The time axis.
        time: usize,
        /// Type of the lengths.
        index: DType,
        /// Bytes of an element.
        bytes: usize,
    },
    /// ONNX `OneHot`: the second of two values where the position along an axis is the index, else the first.
    OneHot {
        /// Product of the extents of the indices before the axis.
        outer: Extent,
        /// Extent of the axis.
        depth: Extent,
        /// Product of the extents of the indices after the axis.
        inner: Extent,
        /// Type of the indices.
        index: DType,
        /// Bytes of a value.
        bytes: usize,
    },
    /// ONNX `Range`: `start + i * delta`.
    Range {
        /// Extents of the result.
        dims: Vec<Extent>,
        /// Type of its elements.
        dtype: DType,
    },
    /// The positions of the maxima of a pool over `[N, C, ...]`, with the maxima as a second result.
    PoolArgMax {
        /// Extents of the input.
        input: Vec<Extent>,
        /// Extents of the result.
        dims: Vec<Extent>,
        /// The windows along the image axes.
        windows: Vec<WindowAxis>,
    },
    /// A pool over `[N, ..., C]`, element by element: for channels of unknown number, and windows along any number of axes.
    Pool {
        /// Extents of the input.
        input: Vec<Extent>,
        /// Extents of the result.
        dims: Vec<Extent>,
        /// The windows along the image axes.
        windows: Vec<WindowAxis>,
        /// What the mean of a window is divided by; `None` is the maximum.
        mean: Option<Divisor>,
        /// Type of the elements.
        dtype: DType,
    },
    /// Resizing with known extents: tables list the input elements and weights of each result element.
    ResizeByTable {
        /// Extents of the operand.
        from: Vec<Extent>,
        /// Extents of the result.
        to: Vec<Extent>,
        /// The resized axes.
        axes: Vec<TapTable>,
        /// Bytes of an element; elements are f32 where several are interpolated.
        bytes: usize,
    },
    /// Resizing with open extents: the kernel computes the input elements and weights of each result element.
    ResizeDynamic {
        /// Extents of the operand.
        from: Vec<Extent>,
        /// Extents of the result.
        to: Vec<Extent>,
        /// The resized axes, with their scales if known.
        axes: Vec<(usize, Option<f64>)>,
        /// The interpolation.
        interpolation: Interpolation,
        /// Bytes of an element; elements are f32 where several are interpolated.
        bytes: usize,
    },
}

/// Padding along one axis; negative numbers crop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PaddedAxis {
    /// The axis.
    pub axis: usize,
    /// Elements added before the first.
    pub before: Extent,
    /// Elements added after the last.
    pub after: Extent,
}

/// How elements beyond the border are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PadMode {
    /// The nearest element.
    Edge,
    /// The opposite end (periodic).
    Wrap,
    /// The mirror image, without repeating the border element.
    Reflect,
}

/// The input elements and weights of each result element along an axis.
#[derive(Clone, PartialEq, Debug)]
pub struct TapTable {
    /// The axis.
    pub axis: usize,
    /// Positions and weights, for each result element.
    pub taps: Vec<Vec<(usize, f64)>>,
    /// Maximum number of input elements of a result element.
    pub max_taps: usize,
}

/// Number of input elements of one result element along an axis.
pub fn filter_taps(filter: Filter) -> usize {
    match filter {
        Filter::Nearest(_) => 1,
        Filter::Linear => 2,
        Filter::Cubic(_) => 4,
    }
}

/// Writes slices of updates into a copy of the data at indexed positions, in order. Arguments are the data, the indices, the
/// updates and the result.
#[derive(Clone, PartialEq, Debug)]
pub struct Scatter {
    /// Extents of the data.
    pub to: Vec<Extent>,
    /// Extents of the indices.
    pub indices: Vec<Extent>,
    /// Extents of the updates.
    pub updates: Vec<Extent>,
    /// What the indices address.
    pub target: ScatterTarget,
    /// Type of the indices.
    pub index: DType,
    /// Type of the elements.
    pub dtype: DType,
    /// The reduction that combines an update with the existing element; `None` replaces it.
    pub combine: Option<ReduceKind>,
}

/// What the indices of a [`Scatter`] address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScatterTarget {
    /// Single elements, along this axis (ONNX `ScatterElements`).
    Elements(usize),
    /// Slices, by tuples of this many indices (ONNX `ScatterND`).
    Slices(usize),
}

impl Scatter {
    /// Elements of the result.
    pub fn total(&self) -> Extent {
        self.to.iter().product()
    }

    /// Number of slices.
    pub fn slices(&self) -> Extent {
        match self.target {
            ScatterTarget::Elements(_) => self.indices.iter().product(),
            ScatterTarget::Slices(_) => self.indices[..self.indices.len() - 1].iter().product(),
        }
    }

    /// Elements of a slice.
    pub fn inner(&self) -> Extent {
        match self.target {
            ScatterTarget::Elements(_) => 1usize.into(),
            ScatterTarget::Slices(index_depth) => self.to[index_depth..].iter().product(),
        }
    }
}
