//! Sums over a score matrix (rows by keys) that is never materialised: it is recomputed from two matrix products, tile by tile,
//! and multiplied by lines of their operands.
//!
//! `out[row, :] = sum_key f(l0[row, :] r0[key, :], l1[row, :] r1[key, :]) r[key, :]` for each batch, or the same for each key
//! summed over rows. Arguments are `l0`, `l1`, `r0`, `r1`, the loads of the body and the results.

use crate::kernel::attention::MatrixLayout;
use crate::kernel::body::Body;
use crate::kernel::contraction::{AccessStrides, RowAxes};
use crate::kernel::extent::Extent;

/// The sums over a recomputed score matrix.
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
    /// The computation at each row and key; its first anchor is the first product, the other one the second.
    pub body: Body,
    /// Whether sums run over rows, for each key; else over keys, for each row.
    pub over_rows: bool,
    /// The sums.
    pub sums: Vec<ScoreSum>,
}

/// A sum of elements of the score matrix times lines of an operand.
#[derive(Clone, PartialEq, Debug)]
pub struct ScoreSum {
    /// The node whose value multiplies the lines.
    pub node: usize,
    /// The product whose operand provides the lines; they run along the summed axis.
    pub factor: usize,
    /// Strides of the result along batch axes, lines and their elements.
    pub out: Vec<Extent>,
}

impl ScoreMatrix {
    /// The strides of each load along rows and keys.
    ///
    /// # Errors
    /// When a load does not follow rows and keys.
    pub fn load_strides(&self) -> Result<Vec<AccessStrides>, String> {
        let dims = self.batch.iter().chain([&self.rows, &self.keys]).cloned().collect();
        let axes = RowAxes { dims, batch: self.batch.len(), outer: 0 };
        let strides = |l: &crate::kernel::body::Load| axes.strides_of(&l.strides);
        let followed = self.body.loads.iter().map(strides).collect::<Option<_>>();
        followed.ok_or_else(|| "an operand of the score matrix does not follow its rows".into())
    }
}
