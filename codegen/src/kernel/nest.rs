//! The kernel IR: the computation of a kernel, before a printer schedules and prints it.
//!
//! A kernel is a loop nest of one of a few kinds over expressions ([`Body`]) or over moved elements. Lowering builds nests
//! independently of the language; printers ([`crate::print`]) are independent of ops.

use of_ir::DType;

use crate::kernel::attention::Attention;
use crate::kernel::axis_scan::AxisScan;
use crate::kernel::body::{Body, ReduceKind};
use crate::kernel::columnwise::ColumnWise;
use crate::kernel::contraction::{Contraction, RowAxes, Tile};
use crate::kernel::copy::{CopyBox, Fill, Gather};
use crate::kernel::depthwise_weight_gradient::DepthwiseWeightGradient;
use crate::kernel::extent::Extent;
use crate::kernel::indexed::{Indexed, Scatter};
use crate::kernel::max_pool_gradient::MaxPoolGradient;
use crate::kernel::recurrence::Recurrence;
use crate::kernel::roi_align::RoiAlign;
use crate::kernel::score_matrix::ScoreMatrix;
use crate::kernel::user_kernel::UserKernel;
use crate::kernel::window::Window;
use crate::kernel::winograd::Winograd;

/// A kernel before it is printed.
#[derive(Clone, PartialEq, Debug)]
pub enum Nest {
    /// A body at each point of a space.
    Elementwise {
        /// The scalar program.
        body: Body,
        /// The space.
        dims: Vec<Extent>,
    },
    /// A body with reductions along rows.
    RowWise {
        /// The scalar program.
        body: Body,
        /// The space.
        dims: Vec<Extent>,
        /// How many trailing axes form a row.
        inner: usize,
    },
    /// A body with reductions along columns.
    ColumnWise(ColumnWise),
    /// A product or convolution with an epilogue.
    Contraction {
        /// The contraction.
        spec: Contraction,
        /// The register tile for CPUs.
        tile: Tile,
        /// The epilogue.
        body: Body,
        /// How the space of the epilogue maps to the rows.
        axes: RowAxes,
        /// Strides of the stores along that space.
        out: Vec<Extent>,
    },
    /// Two contractions and the row-wise ops between them.
    Attention(Box<Attention>),
    /// A loop that multiplies rows of its state with matrices.
    Recurrence(Box<Recurrence>),
    /// Sums of a recomputed score matrix.
    ScoreMatrix(Box<ScoreMatrix>),
    /// A sliding window with an epilogue.
    Window {
        /// The window.
        spec: Window,
        /// The epilogue.
        body: Body,
    },
    /// A convolution by Winograd's algorithm with an epilogue.
    Winograd {
        /// The convolution.
        spec: Box<Winograd>,
        /// The epilogue.
        body: Body,
    },
    /// Filters by tap, `[Cout / width, taps, Cin, width]`, transformed for Winograd's algorithm.
    WinogradFilters(Box<Winograd>),
    /// A reduction of f32 over any axes.
    Reduce {
        /// How elements combine.
        kind: ReduceKind,
        /// Extents of the input.
        dims: Vec<Extent>,
        /// Axes that are reduced.
        axes: Vec<usize>,
    },
    /// A reduction split into parts, each over a share of the reduced elements: the results have the parts as their last axis.
    /// For GPUs, which few results would leave mostly idle.
    SplitReduction {
        /// How elements combine.
        kind: ReduceKind,
        /// Extents of the input.
        dims: Vec<Extent>,
        /// Axes that are reduced.
        axes: Vec<usize>,
        /// Number of parts.
        parts: usize,
    },
    /// Boxes of elements to copy.
    Copy {
        /// The boxes.
        boxes: Vec<CopyBox>,
        /// Bytes of an element.
        bytes: usize,
        /// Index of the argument that is written.
        out: usize,
    },
    /// A border around a tensor.
    Pad {
        /// Output extent, input extent and elements before, of each axis.
        axes: Vec<(Extent, Extent, Extent)>,
        /// Bytes of an element.
        bytes: usize,
        /// The elements of the border.
        fill: Fill,
    },
    /// Rows selected by indices.
    Gather(Gather),
    /// Elements whose positions are computed or read from memory.
    Indexed(Indexed),
    /// Slices written to indexed positions.
    Scatter(Scatter),
    /// Regions of images, pooled (`RoiAlign`).
    RoiAlign(RoiAlign),
    /// The gradient of a depthwise convolution for its weights.
    DepthwiseWeightGradient(DepthwiseWeightGradient),
    /// The gradient of a max pool.
    MaxPoolGradient(MaxPoolGradient),
    /// A scan along an axis.
    AxisScan(AxisScan),
    /// Values computed from extents, written to the only argument.
    ShapeValues {
        /// The values.
        values: Vec<Extent>,
        /// Their type.
        dtype: DType,
    },
    /// One element, copied to the second argument.
    CopyScalar(DType),
    /// The kernel of a user op.
    User(UserKernel),
}

impl Nest {
    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Nest::Elementwise { .. } => "elementwise",
            Nest::RowWise { .. } => "row_wise",
            Nest::ColumnWise(_) => "column_wise",
            Nest::Contraction { .. } => "contraction",
            Nest::Attention(_) => "attention",
            Nest::Recurrence(_) => "recurrence",
            Nest::ScoreMatrix(_) => "score_matrix",
            Nest::Window { .. } => "window",
            Nest::Winograd { .. } => "winograd",
            Nest::WinogradFilters(_) => "winograd_filters",
            Nest::Reduce { .. } => "reduce",
            Nest::SplitReduction { .. } => "split_reduction",
            Nest::Copy { .. } => "copy",
            Nest::Pad { .. } => "pad",
            Nest::Gather(_) => "gather",
            Nest::Indexed(_) => "indexed",
            Nest::Scatter(_) => "scatter",
            Nest::RoiAlign(_) => "roi_align",
            Nest::DepthwiseWeightGradient(_) => "depthwise_weight_gradient",
            Nest::MaxPoolGradient(_) => "max_pool_gradient",
            Nest::AxisScan(_) => "axis_scan",
            Nest::ShapeValues { .. } => "shape_values",
            Nest::CopyScalar(_) => "copy_scalar",
            Nest::User(_) => "user",
        }
    }
}
