//! The kernel IR: what a kernel computes, before a printer schedules and prints it.
//!
//! A kernel is a loop nest of one of a few kinds over expressions ([`Body`]) or over moved elements. Lowering makes nests and
//! knows no language; printers ([`crate::print`]) know nothing of ops.

use of_ir::DType;

use crate::kernel::attention::Attention;
use crate::kernel::body::{Body, Reduce};
use crate::kernel::contraction::{Contraction, RowAxes, Tile};
use crate::kernel::copy::{Gather, Piece};
use crate::kernel::extent::Extent;
use crate::kernel::indexed::{Indexed, Scatter};
use crate::kernel::roi_align::RoiAlign;
use crate::kernel::score_matrix::ScoreMatrix;
use crate::kernel::user_kernel::UserKernel;
use crate::kernel::walk::Walk;
use crate::kernel::window::Window;
use crate::kernel::winograd::Winograd;

/// A kernel before it is printed.
#[derive(Clone, PartialEq, Debug)]
pub enum Nest {
    /// A body at each point of a space.
    Elementwise {
        /// What is computed.
        body: Body,
        /// The space.
        dims: Vec<Extent>,
    },
    /// A body with reductions along rows.
    Rows {
        /// What is computed.
        body: Body,
        /// The space.
        dims: Vec<Extent>,
        /// How many of its last axes are a row.
        inner: usize,
    },
    /// A product or convolution with an epilogue.
    Contraction {
        /// What is multiplied.
        spec: Contraction,
        /// The register tile of a CPU.
        tile: Tile,
        /// The epilogue.
        body: Body,
        /// How the space of the epilogue follows the rows.
        axes: RowAxes,
        /// Strides of the stores along that space.
        out: Vec<Extent>,
    },
    /// Two products and the rows between them.
    Attention(Box<Attention>),
    /// Sums of a recomputed score matrix.
    ScoreMatrix(Box<ScoreMatrix>),
    /// A sliding window with an epilogue.
    Window {
        /// What is computed.
        spec: Window,
        /// The epilogue.
        body: Body,
    },
    /// A convolution by Winograd's algorithm with an epilogue.
    Winograd {
        /// What is computed.
        spec: Box<Winograd>,
        /// The epilogue.
        body: Body,
    },
    /// A reduction of f32 over any axes.
    Reduce {
        /// How elements combine.
        kind: Reduce,
        /// Extents of the input.
        dims: Vec<Extent>,
        /// Axes that are reduced.
        axes: Vec<usize>,
    },
    /// The same in parts, each along its share of the reduced elements: the results have the parts as a last axis. For
    /// GPUs, where few results would leave most of the machine idle.
    Partial {
        /// How elements combine.
        kind: Reduce,
        /// Extents of the input.
        dims: Vec<Extent>,
        /// Axes that are reduced.
        axes: Vec<usize>,
        /// Parts.
        parts: usize,
    },
    /// Boxes of elements that move.
    Copy {
        /// The boxes.
        pieces: Vec<Piece>,
        /// Bytes of an element.
        bytes: usize,
        /// Number of the argument that is written.
        out: usize,
    },
    /// A border around a tensor.
    Pad {
        /// Output extent, input extent and elements before, of each axis.
        axes: Vec<(Extent, Extent, Extent)>,
        /// Bytes of an element.
        bytes: usize,
        /// Bits of the elements of the border.
        fill: u64,
    },
    /// Rows that indices name.
    Gather(Gather),
    /// Elements whose positions are computed or read from memory.
    Indexed(Indexed),
    /// Slices that are written where indices say.
    Scatter(Scatter),
    /// Regions of images, pooled.
    RoiAlign(RoiAlign),
    /// A walk along an axis.
    Walk(Walk),
    /// Numbers that follow from extents, written to the only argument.
    ShapeValues {
        /// The numbers.
        values: Vec<Extent>,
        /// Their type.
        dtype: DType,
    },
    /// One element, copied to the second argument.
    CopyScalar(DType),
    /// The kernel that a user's op brings.
    User(UserKernel),
}
