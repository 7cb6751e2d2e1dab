//! Reductions of columns, with elementwise ops in the same pass.

use crate::kernel::body::{Body, Node};
use crate::kernel::extent::Extent;

/// The fewest parts of a long reduction.
const MIN_PARTS: usize = 8;

/// The fewest rows of a part: its partial results are written and read once more.
const MIN_ROWS: usize = 64;

/// The most rows of a part: rounding errors increase with the length of a sum.
const MAX_ROWS: usize = 2048;

/// Elements that are worth several parts.
const MIN_ELEMENTS: usize = 1 << 16;

/// A body at each point of a space, reduced over its first axes. Its nodes of one number a row have one a column: reductions, which
/// stores alone read.
#[derive(Clone, PartialEq, Debug)]
pub struct ColumnWise {
    /// The scalar program.
    pub body: Body,
    /// The space.
    pub dims: Vec<Extent>,
    /// How many axes are reduced; they form the rows.
    pub outer: usize,
    /// The rows are divided into so many parts, by which the stores of reductions begin if there are several.
    pub parts: usize,
}

impl ColumnWise {
    /// Number of rows.
    pub fn rows(&self) -> Extent {
        self.dims[..self.outer].iter().product()
    }

    /// Number of columns.
    pub fn columns(&self) -> Extent {
        self.dims[self.outer..].iter().product()
    }

    /// Whether store `k` has one number a column.
    pub fn is_reduction(&self, k: usize) -> bool {
        matches!(self.body.nodes[self.body.stores[k].1].node, Node::Reduce(..))
    }

    /// A good number of parts for these rows and columns: enough for several workers, and for exact sums.
    pub fn best_parts(rows: &Extent, columns: &Extent) -> usize {
        let (rows, columns) = (rows.size_hint(), columns.size_hint());
        let parallel = if rows.saturating_mul(columns) >= MIN_ELEMENTS { MIN_PARTS.min(rows / MIN_ROWS) } else { 1 };
        rows.div_ceil(MAX_ROWS).max(parallel).max(1)
    }
}
