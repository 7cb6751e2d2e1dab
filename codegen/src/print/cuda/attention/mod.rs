//! Fused attention in one pass: a block keeps some rows of the left operand and iterates over tiles of keys and values. The next
//! tiles are copied to shared memory while the current ones are multiplied. Rows of scores are never complete: each tile
//! rescales the running maximum and sum of exponentials (online softmax).
//!
//! Source: Dao, FlashAttention-2, 2023. It requires a softmax of the scores, after any elementwise ops.

mod fma;
mod fragments;
mod printer;
mod tensor_core;

use crate::isa::{Isa, MmaPrecision};
use crate::kernel::attention::Attention;
use crate::kernel::body::Node;
use crate::kernel::extent::Extent;
use crate::print::Source;
use crate::print::cuda::attention::printer::Printer;
use crate::print::cuda::matrix_tile::MAX_HEAD_DIM;

/// The kernel.
///
/// # Errors
/// When the row-wise computation is no softmax, lines are too long, or an access does not follow the rows.
pub fn attention(a: &Attention, isa: &Isa) -> Result<Source, String> {
    let soft = a.softmax().ok_or("its rows are no softmax")?;
    // Ops before the softmax are elementwise on the scores.
    let mut row_body = a.row_body.clone();
    row_body.nodes.truncate(soft.argument + 1);
    if row_body.nodes.iter().any(|t| matches!(t.node, Node::Reduce(..))) {
        return Err("the argument of its softmax reduces whole rows".into());
    }
    row_body.nodes.iter_mut().filter(|t| t.node == Node::Load(a.scores_load)).for_each(|t| t.node = Node::Anchor);
    let number = |n: &usize| match *n {
        n if n == soft.row_max => Ok("row_max"),
        n if n == soft.row_sum => Ok("row_sum"),
        _ => Err("a row value with other readers is neither the maximum nor the sum of its softmax"),
    };
    let saved_row_stats = a.saved_row_stats.iter().map(number).collect::<Result<_, _>>()?;
    let known = |e: &Extent| e.number().filter(|n| *n <= MAX_HEAD_DIM).ok_or("its lines are too long for a GPU");
    let (depth, columns) = (known(&a.depth)?, known(&a.columns)?);
    let printer = Printer {
        a,
        softmax_argument: soft.argument,
        saved_row_stats,
        row_body: &row_body,
        scores_strides: a.load_strides(&a.scores, a.dims())?,
        row_body_strides: a.load_strides(&a.row_body, a.dims())?,
        epilogue_strides: a.load_strides(&a.epilogue, a.out_dims())?,
        to: a.output_strides()?,
        depth: depth.next_multiple_of(16),
        columns: if columns <= 32 { columns.next_multiple_of(16) } else { columns.next_multiple_of(64) },
        wide: depth.max(columns) > 64,
    };
    Ok(match MmaPrecision::of(isa, a.element) {
        Some(products) => tensor_core::kernel(&printer, products),
        None => fma::kernel(&printer),
    })
}
