//! `unflatten-rows`: products of flattened rows become products of the tensors that these rows come from.
//!
//! Exporters write a linear layer of a tensor of several axes as a reshape to a matrix, a product, and a reshape back. In that matrix no
//! axis is the batch where the batch was not the first one: attention of PyTorch has rows (position, sample). So neither devices nor
//! microbatches could split the batch there. Without the reshapes the axis remains.

use std::collections::HashMap;

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Graph, Module, OpId, Rewriter, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::{Gemm, MatMul};
use of_ops::elementwise::Add;
use of_ops::maps::is_elementwise;
use of_ops::movement::Reshape;

use crate::builders::{reshape_to, transpose_by};
use crate::matchers::{def, dims, single_use};
use crate::{NoOptions, Pass, PassContext, each_op};

/// The pass.
pub struct UnflattenRows;

impl Pass for UnflattenRows {
    const NAME: &'static str = "unflatten-rows";
    const SUMMARY: &'static str = "computes products of flattened rows on the axes that the rows come from";
    type Options = NoOptions;

    fn run(_options: &NoOptions, module: &mut Module, cx: &mut PassContext<'_>) -> Result<(), Diagnostics> {
        let changes = each_op(module, Self::NAME, rewrite)?;
        cx.count("changes", changes);
        Ok(())
    }
}

/// reshape(f(reshape(x), …)) = f(reshape(x), …), where f computes row by row and the outer reshape splits the rows
fn rewrite(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    if g.op(op).name() != Reshape::NAME {
        return Ok(false);
    }
    let Some(to) = dims(g, g.op(op).results[0]) else { return Ok(false) };
    let Some(Rows { ops, sources }) = Rows::of(g, op, &to) else { return Ok(false) };
    rw.rewrite(op, &ops);
    // What takes the place of each value of rows.
    let mut whole: HashMap<ValueId, ValueId> = HashMap::new();
    for (flat, columns) in sources {
        let dims = [&to[..to.len() - 1], &[columns]].concat();
        whole.insert(flat, reshape_to(rw, flat, &dims)?);
    }
    for f in ops {
        rw.set_location(rw.graph().op(f).loc.clone());
        let of = |v: &ValueId| whole.get(v).copied().unwrap_or(*v);
        let operands: Vec<ValueId> = rw.graph().op(f).operands.iter().map(of).collect();
        let y = match of_ops::list::as_op::<Gemm>(rw.graph(), f) {
            Some(gemm) => {
                let b = if gemm.trans_b { rw.create_one(transpose_by(&[1, 0]), &operands[1..2])? } else { operands[1] };
                let product = rw.create_one(MatMul {}, &[operands[0], b])?;
                operands.get(2).map_or(Ok(product), |c| rw.create_one(Add {}, &[product, *c]))?
            }
            None => {
                let (def, attrs) = (rw.graph().op(f).def, rw.graph().op(f).attrs.clone());
                rw.create_one((def, attrs), &operands)?
            }
        };
        whole.insert(rw.graph().op(f).results[0], y);
    }
    let y = rw.graph().op(op).operands[0];
    rw.replace(op, &[whole[&y]]);
    Ok(true)
}

/// Ops in a row between two reshapes, at most.
const MAX_DEPTH: usize = 64;

/// What computes the rows that a reshape splits.
struct Rows {
    /// The ops behind the reshapes that make the rows, operands first. Nothing else reads their results.
    ops: Vec<OpId>,
    /// The results of these reshapes, and their columns.
    sources: Vec<(ValueId, usize)>,
}

impl Rows {
    /// Those behind `op`, whose result has the extents `to`.
    fn of(g: &Graph, op: OpId, to: &[usize]) -> Option<Rows> {
        let y = g.op(op).operands[0];
        let from = dims(g, y)?;
        if from.len() != 2 || to.len() < 3 || to.last() != from.last() {
            return None;
        }
        let mut rows = Rows { ops: Vec::new(), sources: Vec::new() };
        rows.add(g, y, from[0], MAX_DEPTH)?;
        let multiplies = |f: &OpId| matches!(g.op(*f).name(), MatMul::NAME | Gemm::NAME);
        rows.ops.iter().any(multiplies).then_some(rows)
    }

    /// Adds what computes `v`, a matrix of so many rows, each from one row of others; `None` where something else does.
    fn add(&mut self, g: &Graph, v: ValueId, rows: usize, depth: usize) -> Option<()> {
        let own = dims(g, v).filter(|d| d.len() == 2 && d[0] == rows)?;
        if def::<Reshape>(g, v).is_some() {
            if self.sources.iter().all(|(source, _)| *source != v) {
                self.sources.push((v, own[1]));
            }
            return Some(());
        }
        let (f, depth) = (g.def_op(v).filter(|_| single_use(g, v))?, depth.checked_sub(1)?);
        for operand in row_operands(g, f)? {
            self.add(g, operand, rows, depth)?;
        }
        self.ops.push(f);
        Some(())
    }
}

/// The operands of an op whose rows it reads one by one, where all others are the same for each row; `None` for any other op.
fn row_operands(g: &Graph, op: OpId) -> Option<Vec<ValueId>> {
    let operands = &g.op(op).operands;
    let is_shared = |v: &ValueId| dims(g, *v).is_some_and(|d| d.iter().rev().skip(1).all(|d| *d == 1));
    if let Some(gemm) = of_ops::list::as_op::<Gemm>(g, op) {
        let plain = !gemm.trans_a && gemm.alpha == 1.0 && gemm.beta == 1.0;
        return (plain && operands.get(2).is_none_or(is_shared)).then(|| operands[..1].to_vec());
    }
    if g.op(op).name() == MatMul::NAME {
        return (dims(g, operands[1])?.len() == 2).then(|| operands[..1].to_vec());
    }
    let of_rows = operands.iter().copied().filter(|v| !is_shared(v));
    is_elementwise(g.op(op).name()).then(|| of_rows.collect())
}
