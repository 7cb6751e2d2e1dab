//! `recompute`: offers recomputation (rematerialization) of activations that backward ops read.
//!
//! The forward ops are cut at cut points, where one value alone connects the layers of a model. Each
//! activation of a segment that backward ops read becomes an `of.alternatives` of the kept value and of a recomputed
//! copy. The copy is computed from the value at the segment's start, when first needed (Chen et al., "Training Deep
//! Nets with Sublinear Memory Cost", 2016). `shard` chooses value by value which are kept; copies that are not selected
//! are left out.
//!
//! This is rematerialization, also called activation or gradient checkpointing.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Func, IdMap, IdSet, OpId, Rewriter, Use, ValueId};
use of_ops::structural::{Alternatives, OptimizationBarrier};
use of_sharding::cut_points::{self, CutPoint, Phases};

use crate::{Pass, PassContext, each_func, pass_options};

pass_options! {
    /// Options of `recompute`.
    pub struct RecomputeOptions {
        /// Fewest ops of a segment
        ops: usize = 8,
    }
}

/// The pass.
pub struct Recompute;

impl Pass for Recompute {
    const NAME: &'static str = "recompute";
    const SUMMARY: &'static str = "offers recomputation of activations, which 'shard' may choose";
    type Options = RecomputeOptions;

    fn run(
        options: &RecomputeOptions,
        module: &mut of_ir::Module,
        _cx: &mut PassContext<'_>,
    ) -> Result<(), Diagnostics> {
        each_func(module, |f| Ok(recompute(f, options.ops)?))
    }
}

/// The forward ops between two cut points.
struct Segment {
    ops: Vec<OpId>,
    from: ValueId,
    to: ValueId,
}

/// Offers recomputation of every segment of at least `least` ops.
///
/// # Errors
/// None in practice: the ops exist already.
pub fn recompute(func: &mut Func, least: usize) -> Result<(), Diagnostic> {
    let g = &func.graph;
    let order: Vec<OpId> = g.region_ops(g.entry()).collect();
    let at: IdMap<OpId, usize> = order.iter().copied().zip(0..).collect();
    let Phases { forward, backward } = Phases::of(func);
    let mut segments = Vec::new();
    let mut start: Option<(usize, ValueId)> = None;
    for CutPoint { after: i, value, .. } in cut_points::cut_points(g, &forward) {
        match start {
            Some((from, _)) if i - from < least => continue,
            Some((from, before)) => {
                segments.push(Segment { ops: forward[from + 1..=i].to_vec(), from: before, to: value })
            }
            None => {}
        }
        start = Some((i, value));
    }
    let mut rw = Rewriter::new(&mut func.graph, Recompute::NAME);
    for p in segments {
        offer_recomputation(&mut rw, &p, &at, &backward)?;
    }
    Ok(())
}

fn offer_recomputation(
    rw: &mut Rewriter<'_>,
    segment: &Segment,
    at: &IdMap<OpId, usize>,
    backward: &IdSet<OpId>,
) -> Result<(), Diagnostic> {
    let g = rw.graph();
    let read = |v: ValueId| -> Vec<Use> { g.uses(v).iter().filter(|u| backward.contains(&u.op)).copied().collect() };
    let computed = |op: &&OpId| !g.op(**op).def.traits().constant;
    let results = segment.ops.iter().filter(computed).flat_map(|op| g.op(*op).results.iter().copied());
    let wanted: Vec<(ValueId, Vec<Use>)> =
        results.filter(|v| *v != segment.to).map(|v| (v, read(v))).filter(|(_, uses)| !uses.is_empty()).collect();
    let Some(first) = wanted.iter().flat_map(|(_, uses)| uses).map(|u| u.op).min_by_key(|op| at[op]) else {
        return Ok(());
    };
    // Ops of the segment that the wanted values need.
    let mut needed: IdSet<ValueId> = wanted.iter().map(|(v, _)| *v).collect();
    let mut copied: Vec<OpId> = Vec::new();
    for op in segment.ops.iter().rev().filter(computed) {
        let data = g.op(*op);
        if data.results.iter().any(|v| needed.contains(v)) {
            needed.extend(data.operands.iter().copied());
            copied.push(*op);
        }
    }
    let is_pure = |op: &OpId| !g.op(*op).def.traits().effect && g.op(*op).regions.is_empty();
    if !copied.iter().all(is_pure) {
        return Ok(());
    }
    rw.before(first);
    let mut values: IdMap<ValueId, ValueId> = IdMap::default();
    values.insert(segment.from, rw.create_one(OptimizationBarrier {}, &[segment.from])?);
    for op in copied.into_iter().rev() {
        rw.copy_op(op, &mut values);
    }
    for (v, uses) in wanted {
        let choice = rw.create_one(Alternatives {}, &[v, values[&v]])?;
        uses.iter().for_each(|u| rw.set_operand(u.op, u.operand as usize, choice));
    }
    Ok(())
}
