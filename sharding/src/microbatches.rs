//! Microbatches: which values of a training step each microbatch has its own part of.
//!
//! The microbatches act as a mesh axis in time. Data is split along it, and parameters are replicated. The layouts of
//! all other values along this axis are searched as on any mesh. Split and partial values are computed once per
//! microbatch, replicated values once. Partial values, such as gradients of parameters, are accumulated. Nothing else
//! may pass between microbatches.
//!
//! Partial gradients of microbatches are summed: gradient accumulation.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic};
use of_ir::{Func, Graph, IdMap, NdSbp, OpId, PartialKind, Rewriter, Sbp, TensorType, Type, ValueId};
use of_ops::training::data_inputs;

use crate::decide;
use crate::mesh::{MeshAxis, MeshSpec};
use crate::model::{Model, NodeKind};
use crate::search::Effort;

/// How a value relates to the microbatches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MicrobatchKind {
    /// Each microbatch has a part of it.
    Split,
    /// Each microbatch adds a term of full size to it.
    Accumulated,
    /// Made once, before the microbatches, and read by each of them.
    Shared,
    /// Of full size between the ops that make and read it.
    Whole,
}

/// The layouts of a function along the microbatch axis.
pub struct Microbatches {
    pub(crate) count: usize,
    /// By position of the values in the arena; replicated where absent.
    pub(crate) values: Vec<Sbp>,
    /// The layouts in which ops read their operands.
    pub(crate) reads_as: IdMap<(OpId, usize), Sbp>,
}

/// The layout along the microbatches in which `op` reads an operand of layout `made`.
pub(crate) fn read_layout(g: &Graph, reads_as: &IdMap<(OpId, usize), Sbp>, op: OpId, operand: usize, made: Sbp) -> Sbp {
    match (reads_as.get(&(op, operand)), made) {
        (Some(how), _) => *how,
        (None, Sbp::Partial(_)) => Sbp::Broadcast,
        (None, _) if g.op(op).def.traits().terminator => made,
        (None, _) => Sbp::Broadcast,
    }
}

/// Whether a value is a constant that each microbatch has a part of in this layout. Zeros are terms of zeros, such as the first states of
/// regions that add up.
pub(crate) fn has_parts(g: &Graph, v: ValueId, layout: Sbp) -> bool {
    match layout {
        Sbp::Split(_) | Sbp::Broadcast => g.def_op(v).is_some_and(|op| g.op(op).def.traits().constant),
        Sbp::Partial(kind) => kind == PartialKind::Sum && g.constant(v).is_some_and(|value| value.is_zero()),
    }
}

/// The values inside of the regions of an op.
pub(crate) fn inside(g: &Graph, op: OpId) -> Vec<ValueId> {
    let mut out = Vec::new();
    for region in &g.op(op).regions {
        out.extend(g.region_args(*region));
        for inner in g.region_ops(*region) {
            out.extend(&g.op(inner).results);
            out.extend(inside(g, inner));
        }
    }
    out
}

/// Checks that every operand is of the same microbatch, replicated, or an accumulated partial value. `layout` is that of a value
/// along the microbatches.
///
/// # Errors
/// When microbatches depend on one another in another way.
pub(crate) fn check(
    g: &Graph,
    layout: &dyn Fn(ValueId) -> Sbp,
    reads_as: &IdMap<(OpId, usize), Sbp>,
) -> Result<(), Diagnostic> {
    for op in g.region_ops(g.entry()) {
        let data = g.op(op);
        for (i, v) in data.operands.iter().enumerate() {
            let made = layout(*v);
            let ask = read_layout(g, reads_as, op, i, made);
            let fits = made == ask || matches!((made, ask), (Sbp::Partial(_), Sbp::Broadcast)) || has_parts(g, *v, ask);
            if !fits {
                let what = format!(
                    "'{}' reads with layout {ask} along the microbatches a value of layout {made}",
                    data.name()
                );
                let d = Diagnostic::error(Code::SBP, data.loc.clone(), what);
                return Err(d.note("microbatches are independent; only partial values are accumulated over them"));
            }
        }
        let captures = g.captured(op).into_iter().any(|v| matches!(layout(v), Sbp::Split(_)));
        if !data.def.traits().terminator && captures {
            let what = format!("the regions of '{}' read values that differ between microbatches", data.name());
            let d = Diagnostic::error(Code::SBP, data.loc.clone(), what);
            return Err(d.hint("make them operands: states or scan inputs"));
        }
    }
    Ok(())
}

/// Why there are no layouts without transfers between microbatches: the first op that has none, behind those that have. `func` states the
/// layouts of its inputs.
fn dependence(func: &Func, mesh: &MeshSpec, allowed: &dyn Fn(&crate::Layout, &crate::Layout) -> bool) -> Diagnostic {
    let g = &func.graph;
    let ops: Vec<OpId> = g.region_ops(g.entry()).filter(|op| !g.op(*op).def.traits().terminator).collect();
    let layouts = |count: usize| -> Option<Vec<Option<crate::Layout>>> {
        let model = Model::of_first_ops(func, mesh, allowed, count).ok()?;
        let d = decide::decide(&model, mesh.memory, &Effort::default()).ok().filter(|d| d.cost.is_finite())?;
        Some(decide::layouts_with_regions(&model, &d))
    };
    // Where a number of ops has layouts, fewer have them.
    let (mut some, mut none) = (0, ops.len() + 1);
    while some + 1 < none {
        let middle = some.midpoint(none);
        if layouts(middle).is_some() { some = middle } else { none = middle }
    }
    let note = "microbatches are independent; only partial values are accumulated over them";
    let Some(op) = ops.get(some) else {
        let what = "an output depends on all microbatches in another way than as a sum, a maximum or a minimum";
        return Diagnostic::error(Code::SBP, func.loc.clone(), what).note(note);
    };
    let known = layouts(some).unwrap_or_default();
    let layout = |v: &ValueId| match known.get(v.index()) {
        Some(Some(l)) => l.first().map_or("-".into(), Sbp::to_string),
        _ => Sbp::Broadcast.to_string(),
    };
    let operands: Vec<String> = g.op(*op).operands.iter().map(layout).collect();
    let what = format!(
        "'{}' cannot be computed microbatch by microbatch: its operands have the layouts {} along the microbatches",
        g.op(*op).name(),
        operands.join(", ")
    );
    Diagnostic::error(Code::SBP, g.op(*op).loc.clone(), what).note(note)
}

impl Microbatches {
    /// A single microbatch.
    pub fn one(func: &Func) -> Microbatches {
        Microbatches { count: 1, values: vec![Sbp::Broadcast; func.graph.value_slots()], reads_as: HashMap::default() }
    }

    /// The layouts for `count` microbatches. It splits the inputs of data that are as long as the first one, along
    /// their first axis. Where this is impossible it splits the first input alone.
    ///
    /// # Errors
    /// When the count does not divide that extent, or microbatches depend on one another other than by partial values.
    pub fn of(func: &Func, count: usize) -> Result<Microbatches, Diagnostic> {
        if count <= 1 {
            return Ok(Microbatches::one(func));
        }
        let g = &func.graph;
        let error = |what: String| Diagnostic::error(Code::SBP, func.loc.clone(), what);
        let data = data_inputs(func);
        let first = |v: &ValueId| g.ty(*v).as_tensor().and_then(|t| t.fixed_dims()?.first().copied());
        let extent = data.iter().find_map(first);
        let extent = extent.ok_or_else(|| {
            error("no input of known extents can be split into microbatches".into())
                .hint("give numbers to open dimensions (--shape)")
        })?;
        if extent % count != 0 {
            return Err(error(format!("a batch of {extent} cannot be split into {count} equal microbatches")));
        }
        let mesh = MeshSpec {
            device: "microbatches".into(),
            memory: 1e30,
            bandwidth: 1e12,
            caches: Vec::new(),
            overhead: 0.0,
            cores: None,
            flops: [("other".to_string(), 1e12)].into_iter().collect(),
            pointwise: None,
            axes: vec![MeshAxis { devices: count, bandwidth: 1e3, latency: 1e-3, cache: Vec::new() }],
        };
        let as_long: Vec<ValueId> = data.into_iter().filter(|v| first(v) == Some(extent)).collect();
        let cut = |sources: &[ValueId]| {
            let mut own = func.clone();
            let mut rw = Rewriter::new(&mut own.graph, "microbatches");
            for v in g.args() {
                if let Type::Tensor(t) = rw.graph().ty(*v).clone() {
                    // Values that are left out would be no larger than split ones.
                    let how = if sources.contains(v) { Sbp::Split(0) } else { Sbp::Broadcast };
                    let sbp = NdSbp { mesh: "microbatches".into(), axes: [how].into_iter().collect() };
                    rw.set_type(*v, Type::Tensor(TensorType { sbp: Some(sbp), ..t }));
                }
            }
            own
        };
        // A weight may happen to be as long as the batch. Where splitting all inputs of that length fails, the first
        // alone may work.
        let (own, first_alone) = (cut(&as_long), cut(&as_long[..as_long.len().min(1)]));
        let one = |d: of_diag::Diagnostics| {
            d.0.into_iter().next().unwrap_or_else(|| error("it cannot be split into microbatches".into()))
        };
        let combined = |from: &crate::Layout, to: &crate::Layout| {
            from == to || matches!((from[0], to[0]), (Sbp::Partial(_), Sbp::Broadcast))
        };
        let mut model = Model::with_allowed_transfers(&own, &mesh, &combined).map_err(one)?;
        let found_in = |model: &Model<'_>| {
            decide::decide(model, mesh.memory, &Effort::default()).ok().filter(|d| d.cost.is_finite())
        };
        let mut found = found_in(&model);
        if found.is_none() && as_long.len() > 1 {
            let other = Model::with_allowed_transfers(&first_alone, &mesh, &combined).map_err(one)?;
            found = found_in(&other);
            if found.is_some() {
                model = other;
            }
        }
        let Some(d) = found else { return Err(dependence(&own, &mesh, &combined)) };
        let only = |l: &crate::Layout| l.first().copied().unwrap_or(Sbp::Broadcast);
        let mut reads_as = HashMap::default();
        for (node, kind_of_node) in model.node_kinds.iter().enumerate() {
            let NodeKind::Op(op) = kind_of_node else { continue };
            let chosen = &model.choices[node].candidates[d.labels[node]];
            chosen.operands.iter().enumerate().for_each(|(i, l)| {
                reads_as.insert((*op, i), only(l));
            });
        }
        // A value that is left out would be no larger than a split one.
        let how = |l: &Option<crate::Layout>| match l {
            Some(l) => l.first().copied().unwrap_or(Sbp::Split(0)),
            None => Sbp::Broadcast,
        };
        let values = decide::layouts_with_regions(&model, &d).iter().map(how).collect();
        Ok(Microbatches { count, values, reads_as })
    }

    /// The kind of each value of `g`, by position in the arena.
    pub(crate) fn kinds(&self, g: &Graph) -> Vec<MicrobatchKind> {
        let reads = |op: OpId, operand: usize| self.reads_as.get(&(op, operand)).copied().unwrap_or(Sbp::Broadcast);
        let varies = |op: OpId| {
            let data = g.op(op);
            data.results.iter().any(|v| self.value(*v) != Sbp::Broadcast)
                || (0..data.operands.len()).any(|i| reads(op, i) != Sbp::Broadcast)
        };
        let one = |v: ValueId| {
            let mut uses = g.uses(v).iter();
            match self.value(v) {
                Sbp::Split(_) => MicrobatchKind::Split,
                Sbp::Partial(_) if uses.any(|u| reads(u.op, u.operand as usize) == Sbp::Broadcast) => {
                    MicrobatchKind::Accumulated
                }
                Sbp::Broadcast if self.count > 1 && uses.any(|u| varies(u.op)) => MicrobatchKind::Shared,
                Sbp::Partial(_) | Sbp::Broadcast => MicrobatchKind::Whole,
            }
        };
        (0..g.value_slots()).map(|i| g.value_at(i).map_or(MicrobatchKind::Whole, one)).collect()
    }

    /// The extents of the part of a value in one microbatch, where that is smaller than the whole.
    pub(crate) fn part(&self, g: &Graph, v: ValueId) -> Option<Vec<usize>> {
        let Sbp::Split(axis) = self.value(v) else { return None };
        let mut dims = g.ty(v).as_tensor()?.fixed_dims()?;
        *dims.get_mut(usize::from(axis))? /= self.count;
        Some(dims)
    }

    pub(crate) fn value(&self, v: ValueId) -> Sbp {
        self.values.get(v.index()).copied().unwrap_or(Sbp::Broadcast)
    }
}
