//! `recompute`: what backward ops read of forward ones may be computed again instead of being kept.
//!
//! The forward ops are cut where all that follows needs one value alone: between the layers of a model. What backward ops
//! read of a piece becomes an `of.alternatives` of the value that was kept and of a copy of the piece, computed of the value
//! before it when it is first needed (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Which of them
//! are kept is for `shard` to choose, value by value; copies that nothing takes are left out.

use std::collections::{HashMap, HashSet};

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Func, OpId, Rewriter, Use, ValueId};
use of_ops::structural::{Alternatives, OptimizationBarrier};
use of_sharding::cuts::{self, Phases};

use crate::{Pass, PassContext, each_func, pass_options};

pass_options! {
    /// Options of `recompute`.
    pub struct RecomputeOptions {
        /// Ops of a piece at least
        ops: usize = 8,
    }
}

/// The pass.
pub struct Recompute;

impl Pass for Recompute {
    const NAME: &'static str = "recompute";
    const SUMMARY: &'static str = "what backward ops read may be computed again, as 'shard' chooses";
    type Options = RecomputeOptions;

    fn run(
        options: &RecomputeOptions,
        module: &mut of_ir::Module,
        _cx: &mut PassContext<'_>,
    ) -> Result<(), Diagnostics> {
        each_func(module, |f| Ok(recompute(f, options.ops)?))
    }
}

/// Forward ops between two values of which each is all that the ops behind it need.
struct Piece {
    ops: Vec<OpId>,
    from: ValueId,
    to: ValueId,
}

/// Offers to compute every piece of at least `least` ops again.
///
/// # Errors
/// None in practice: the ops exist already.
pub fn recompute(func: &mut Func, least: usize) -> Result<(), Diagnostic> {
    let g = &func.graph;
    let order: Vec<OpId> = g.region_ops(g.entry()).collect();
    let at: HashMap<OpId, usize> = order.iter().copied().zip(0..).collect();
    let Phases { forward, backward } = Phases::of(func);
    let mut pieces = Vec::new();
    let mut start: Option<(usize, ValueId)> = None;
    for (i, value) in cuts::cuts(g, &forward) {
        match start {
            Some((from, _)) if i - from < least => continue,
            Some((from, before)) => pieces.push(Piece { ops: forward[from + 1..=i].to_vec(), from: before, to: value }),
            None => {}
        }
        start = Some((i, value));
    }
    let mut rw = Rewriter::new(&mut func.graph, Recompute::NAME);
    for p in pieces {
        offer(&mut rw, &p, &at, &backward)?;
    }
    Ok(())
}

fn offer(
    rw: &mut Rewriter<'_>,
    piece: &Piece,
    at: &HashMap<OpId, usize>,
    backward: &HashSet<OpId>,
) -> Result<(), Diagnostic> {
    let g = rw.graph();
    let read = |v: ValueId| -> Vec<Use> { g.uses(v).iter().filter(|u| backward.contains(&u.op)).copied().collect() };
    let computed = |op: &&OpId| !g.op(**op).def.traits().constant;
    let results = piece.ops.iter().filter(computed).flat_map(|op| g.op(*op).results.iter().copied());
    let wanted: Vec<(ValueId, Vec<Use>)> =
        results.filter(|v| *v != piece.to).map(|v| (v, read(v))).filter(|(_, uses)| !uses.is_empty()).collect();
    let Some(first) = wanted.iter().flat_map(|(_, uses)| uses).map(|u| u.op).min_by_key(|op| at[op]) else {
        return Ok(());
    };
    // What the wanted values need of the piece.
    let mut needed: HashSet<ValueId> = wanted.iter().map(|(v, _)| *v).collect();
    let mut copied: Vec<OpId> = Vec::new();
    for op in piece.ops.iter().rev().filter(computed) {
        let data = g.op(*op);
        if data.results.iter().any(|v| needed.contains(v)) {
            needed.extend(data.operands.iter().copied());
            copied.push(*op);
        }
    }
    let again = |op: &OpId| !g.op(*op).def.traits().effect && g.op(*op).regions.is_empty();
    if !copied.iter().all(again) {
        return Ok(());
    }
    rw.before(first);
    let mut values: HashMap<ValueId, ValueId> = HashMap::new();
    values.insert(piece.from, rw.create_one(OptimizationBarrier {}, &[piece.from])?);
    for op in copied.into_iter().rev() {
        rw.copy_op(op, &mut values);
    }
    for (v, uses) in wanted {
        let either = rw.create_one(Alternatives {}, &[v, values[&v]])?;
        uses.iter().for_each(|u| rw.set_operand(u.op, u.operand as usize, either));
    }
    Ok(())
}
