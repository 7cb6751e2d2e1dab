//! Sums of a table of rows by keys that is never in memory: it is computed of two products, tile by tile, and multiplied
//! with lines of their operands.
//!
//! `out[row, :] = sum_key f(l0[row, :] r0[key, :], l1[row, :] r1[key, :]) r[key, :]` for each batch, or the same for keys
//! with rows added up. Arguments are `l0`, `l1`, `r0`, `r1`, the loads of the body and the results.

use crate::kernel::attention::MatrixLayout;
use crate::kernel::body::Body;
use crate::kernel::contraction::{AccessStrides, RowAxes};
use crate::kernel::extent::Extent;

/// What is computed of a table.
#[derive(Clone, PartialEq, Debug)]
pub struct ScoreMatrix {
    /// Extents of the batch axes.
    pub batch: Vec<Extent>,
    /// Rows of a batch.
    pub rows: Extent,
    /// Keys of a batch.
    pub keys: Extent,
    /// Terms of each product.
    pub depth: [Extent; 2],
    /// The operands of the products whose lines are rows.
    pub left: [MatrixLayout; 2],
    /// The operands whose lines are keys.
    pub right: [MatrixLayout; 2],
    /// What is computed at each row and key; its first anchor is the first product, the other one the second.
    pub body: Body,
    /// Whether rows are added up, for each key; else keys, for each row.
    pub over_rows: bool,
    /// What is added up.
    pub sums: Vec<Sum>,
}

/// A sum of elements of the table times lines of an operand.
#[derive(Clone, PartialEq, Debug)]
pub struct Sum {
    /// The node whose value multiplies the lines.
    pub node: usize,
    /// Which product's operand has the lines, which are along what is added up.
    pub factor: usize,
    /// Strides of the result along batch axes, lines and their elements.
    pub out: Vec<Extent>,
}

impl ScoreMatrix {
    /// How its loads go along.
    ///
    /// # Errors
    /// When one does not follow rows and keys.
    pub fn walks(&self) -> Result<Vec<AccessStrides>, String> {
        let dims = self.batch.iter().chain([&self.rows, &self.keys]).cloned().collect();
        let axes = RowAxes { dims, batch: self.batch.len(), outer: 0 };
        let walk = |l: &crate::kernel::body::Load| axes.walk(&l.strides);
        let followed = self.body.loads.iter().map(walk).collect::<Option<_>>();
        followed.ok_or_else(|| "an operand of the table does not follow its rows".into())
    }
}
