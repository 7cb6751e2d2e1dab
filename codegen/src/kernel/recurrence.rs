//! Recurrences: loops whose iterations multiply rows of a state with matrices that do not change.
//!
//! A kernel runs all iterations for a block of rows, because no row reads another one. The state is in the results of the loop, which
//! hold its last value in the end; other values of an iteration are in scratch memory. An iteration is a sequence of stages: products
//! with epilogues, and elementwise programs.

use of_ir::DType;

use crate::isa::Isa;
use crate::kernel::body::{Body, Load, Node};
use crate::kernel::contraction::{Contraction, Tile};
use crate::kernel::extent::Extent;
use crate::kernel::tile_choice;

/// What an access reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// This argument of those that are read.
    Read(usize),
    /// This argument of those that are written.
    Write(usize),
    /// This buffer of scratch memory, which holds the rows of a block.
    Scratch(usize),
}

/// Where the rows of a stage lie. All numbers are in elements.
#[derive(Clone, PartialEq, Debug)]
pub struct Access {
    /// The memory.
    pub memory: Memory,
    /// Offset of the first element in the first iteration.
    pub offset: Extent,
    /// Distance to the element of the next iteration.
    pub per_iteration: Extent,
    /// Distance between rows.
    pub row: Extent,
    /// Distance between the elements of a row.
    pub column: Extent,
}

/// A product with its epilogue.
#[derive(Clone, PartialEq, Debug)]
pub struct Product {
    /// The product, of all rows.
    pub spec: Contraction,
    /// Its register tile.
    pub tile: Tile,
    /// The left operand.
    pub left: Access,
    /// The right operand.
    pub right: Access,
    /// The epilogue.
    pub body: Body,
    /// Its loads.
    pub loads: Vec<Access>,
    /// Its only store.
    pub store: Access,
}

/// A part of an iteration.
#[derive(Clone, PartialEq, Debug)]
pub enum Stage {
    /// A product with its epilogue.
    Product(Box<Product>),
    /// A program at each element of the rows.
    Elementwise {
        /// The program.
        body: Body,
        /// Elements of a row.
        columns: usize,
        /// Its loads.
        loads: Vec<Access>,
        /// Its stores.
        stores: Vec<Access>,
    },
}

impl Stage {
    /// The stage that copies rows from one place to others.
    pub fn copy(load: Load, columns: usize, from: Access, to: Vec<Access>) -> Stage {
        let mut body = Body::default();
        let (value, dtype) = (load.value, load.dtype);
        body.loads.push(load);
        let node = body.push(Node::Load(0), dtype, false);
        body.stores = vec![(value, node); to.len()];
        Stage::Elementwise { body, columns, loads: vec![from], stores: to }
    }

    /// Every access that reads.
    pub fn reads(&self) -> Vec<&Access> {
        match self {
            Stage::Product(p) => p.loads.iter().chain([&p.left, &p.right]).collect(),
            Stage::Elementwise { loads, .. } => loads.iter().collect(),
        }
    }
}

/// A loop of stages. Arguments are those that are read, then those that are written.
#[derive(Clone, PartialEq, Debug)]
pub struct Recurrence {
    /// Number of iterations.
    pub trips: Extent,
    /// Number of rows.
    pub rows: Extent,
    /// Rows of a block.
    pub block: usize,
    /// Number of arguments that are read.
    pub reads: usize,
    /// Element type and elements of a row of each buffer of scratch memory.
    pub scratch: Vec<(DType, usize)>,
    /// What runs once before the loop.
    pub start: Vec<Stage>,
    /// An iteration.
    pub stages: Vec<Stage>,
}

/// The register tile of the products of a recurrence, whose weights are read once for each tile of rows. `spec` is the largest one.
pub fn tile(spec: &Contraction, isa: &Isa) -> Tile {
    /// Vectors of a tile of one row: enough independent sums to hide the latency of an addition.
    const SINGLE_ROW_VECTORS: usize = 8;
    // Few rows are as likely as many: remainders have as many columns.
    if spec.inner.0.number().is_none() {
        return Tile { rows: 6, vectors: if isa.registers >= 32 { 4 } else { 2 } };
    }
    if spec.inner.0.is(1) {
        let vectors = spec.columns.size_hint().div_ceil(isa.lanes);
        return Tile { rows: 1, vectors: vectors.div_ceil(vectors.div_ceil(SINGLE_ROW_VECTORS)).max(1) };
    }
    tile_choice::choose_tile(spec, isa)
}
