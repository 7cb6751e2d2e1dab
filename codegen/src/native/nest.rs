//! The kernel IR: what a kernel computes, before a printer of the target's language schedules and prints it.
//!
//! A kernel is a loop nest of one of a few kinds over expressions ([`Body`]) or over moved elements. Lowering makes nests
//! and knows nothing of languages; [`Nest::print`] asks the printers in this folder for C, or those in `cuda/`.

use super::attention::{self, Attention};
use super::contraction::{self, Contraction, RowAxes, Tile};
use super::copy::{self, Gather, Piece};
use super::index::{self, Points, Scatter};
use super::region::Regions;
use super::table::Table;
use super::walk::Walk;
use super::window::{self, Window};
use super::{Extent, Isa, Source, elementwise, reduce, rowwise};
use crate::cuda;
use crate::lower::body::{Body, Reduce};

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
    /// Sums of a table of two products.
    Table(Box<Table>),
    /// A sliding window with an epilogue.
    Window {
        /// What is computed.
        spec: Window,
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
    /// Elements whose places are computed.
    Points(Points),
    /// Slices that are written where indices say.
    Scatter(Scatter),
    /// Regions of images, pooled.
    Regions(Regions),
    /// A walk along an axis.
    Walk(Walk),
    /// Statements that run once.
    Once(String),
    /// What an op that this compiler does not know brings for GPUs.
    Own(Own),
}

/// A kernel in an op's own words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Own {
    /// Declarations of its arguments.
    pub head: String,
    /// Statements.
    pub text: String,
    /// How often they run.
    pub count: usize,
    /// By one thread each time, which is number `i`; else by a block, number `block`.
    pub per_thread: bool,
}

impl Nest {
    /// The kernel in the language of `isa`.
    ///
    /// # Errors
    /// Why it has none.
    pub fn print(&self, isa: &Isa) -> Result<Source, String> {
        if isa.is_gpu() {
            return cuda::print(self, isa);
        }
        Ok(match self {
            Nest::Elementwise { body, dims } => elementwise::elementwise(body, dims, isa),
            Nest::Rows { body, dims, inner } => rowwise::rowwise(body, dims, *inner, isa)?,
            Nest::Contraction { spec, tile, body, axes, out } => {
                contraction::contraction(spec, *tile, body, axes, out, isa)?
            }
            Nest::Attention(a) => attention::attention(a, isa)?,
            Nest::Table(_) => return Err("tables that are not in memory are for GPUs".into()),
            Nest::Window { spec, body } => window::window(spec, body, isa)?,
            Nest::Reduce { kind, dims, axes } => reduce::reduce(*kind, dims, axes, isa),
            Nest::Partial { .. } => return Err("reductions in parts are for GPUs".into()),
            Nest::Copy { pieces, bytes, out } => copy::copy(pieces, *bytes, *out, isa),
            Nest::Pad { axes, bytes, fill } => copy::pad(axes, *bytes, *fill),
            Nest::Gather(gather) => gather.source(),
            Nest::Points(points) => points.clone().source(),
            Nest::Scatter(scatter) => index::scatter(scatter.clone()),
            Nest::Regions(regions) => regions.source(),
            Nest::Walk(walk) => walk.source(),
            Nest::Once(body) => Source::new(body.clone(), 1usize.into(), 1),
            Nest::Own(_) => return Err("its kernel for CPUs is in the library that it comes from".into()),
        })
    }
}
