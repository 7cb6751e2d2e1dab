//! Pipeline parallelism: cuts a function into pipeline stages, each on its own submesh, with a step split into
//! microbatches.
//!
//! A mesh axis of n devices makes S stages, for any S that divides n. Each stage has a submesh of its own, on which
//! layouts are searched as usual. With M microbatches, a step takes (M + S - 1) / M times what the slowest stage takes
//! for all of them. The other S - 1 slots fill and drain the pipeline (Huang et al., "GPipe", 2019). Forward and
//! backward microbatches alternate (1F1B), so that stage s holds the activations of min(S - s, M) microbatches
//! (Narayanan et al., "PipeDream", 2019).
//!
//! Transfers between stages may block their ranks, or overlap with computation. Then a stage takes the larger of the times of both, and holds
//! up to 2 (S - s) - 1 microbatches ([`PipelineShape::in_flight`]). Both are searched, and the faster one that fits is taken.
//!
//! Two lower bounds hold. All stages together take no less than the bound of the whole function on a mesh of that size,
//! so the slowest takes at least an S-th of it. A stage takes no less than the bound of its layers alone, within the
//! memory of its devices. From the second, dynamic programming over all cuts computes a bound, where there are few enough
//! layers. The larger of the two is the bound of each choice, and the minimum over choices that of all.
//!
//! The same stage bounds determine which cut to try first. The layouts of its stages are then searched jointly, with a
//! memory limit for each stage. The result replaces the bounds of these stages, and cuts are tried until no other
//! promises less.

mod cut;
mod device;
mod layers;
#[cfg(test)]
mod tests;
mod write;

use std::ops::Range;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Func, Graph, OpId};
use of_ops::time::schedule::PipelineShape;

use crate::MeshSpec;
use crate::alternatives::{self, JointSolution};
use crate::decide::{self, PreparedDecision};
use crate::microbatches::Microbatches;
use crate::model::Model;
use crate::search::Effort;
pub use write::write;

use cut::{CutSearch, StageBoundCache};
use layers::Layers;

/// A pipeline: numbers of stages and microbatches, and their cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Pipeline {
    /// The mesh axis that is cut.
    pub axis: usize,
    /// Number of stages; 1 for no pipeline.
    pub stages: usize,
    /// Microbatches per step.
    pub microbatches: usize,
    /// Whether transfers between stages overlap with computation. Stages then hold more microbatches.
    pub overlapped: bool,
    /// The submesh of a stage.
    pub mesh: MeshSpec,
    /// The last forward op of each stage but the last.
    pub last: Vec<OpId>,
    /// Seconds of each stage per step.
    pub seconds: Vec<f64>,
    /// Seconds per step.
    pub cost: f64,
    /// Lower bound for these numbers of stages and microbatches.
    pub bound: f64,
    /// Peak memory of a device in bytes.
    pub memory: f64,
}

/// Pipelines for several numbers of stages and microbatches.
#[derive(Clone, PartialEq, Debug)]
pub struct Pipelines {
    /// Those that fit, in order; the first has one stage.
    pub feasible: Vec<Pipeline>,
    /// Numbers of stages and microbatches that do not fit, and why.
    pub infeasible: Vec<(usize, usize, Diagnostic)>,
}

/// All numbers of stages with these numbers of microbatches. Each chooses its own operand of each `of.alternatives`.
///
/// Functions with layout annotations are not cut: their layouts refer to the whole mesh.
///
/// # Errors
/// When nothing fits.
pub fn pipelines(
    func: &Func,
    mesh: &MeshSpec,
    microbatches: &[usize],
    effort: &Effort,
) -> Result<Pipelines, Diagnostics> {
    let mut all = Pipelines { feasible: Vec::new(), infeasible: Vec::new() };
    let first = |d: Diagnostics| d.0.into_iter().next().unwrap_or_else(|| decide::no_stage_fits(func));
    match uncut(&mut func.clone(), mesh, effort) {
        Ok(p) => all.feasible.push(p),
        Err(why) => all.infeasible.push((1, 1, first(why))),
    }
    for (axis, a) in mesh.axes.iter().enumerate() {
        for stages in (2..=a.devices).filter(|s| a.devices % s == 0) {
            for m in microbatches {
                match along(&mut func.clone(), mesh, axis..axis + 1, None, (stages, *m), effort) {
                    Ok(s) => all.feasible.push(s.pipeline),
                    Err(why) => all.infeasible.push((stages, *m, first(why))),
                }
            }
        }
    }
    match all.infeasible.first() {
        Some((.., why)) if all.feasible.is_empty() => Err(why.clone().into()),
        _ => Ok(all),
    }
}

/// The parts of a mesh that layout annotations place values on: the stages are chosen by hand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parts {
    /// The mesh axis that is cut.
    pub axis: usize,
    /// The name of the mesh of each stage.
    pub names: Vec<String>,
}

impl Parts {
    /// The stage whose mesh has this name.
    fn stage(&self, mesh: &str) -> Option<usize> {
        self.names.iter().position(|name| name == mesh)
    }
}

/// The whole function on the whole mesh.
fn uncut(func: &mut Func, mesh: &MeshSpec, effort: &Effort) -> Result<Pipeline, Diagnostics> {
    let chosen = alternatives::choose(func, mesh, mesh.memory, effort)?;
    let d = decide::decide(&Model::new(func, mesh)?, mesh.memory, effort)?;
    Ok(Pipeline {
        axis: 0,
        stages: 1,
        microbatches: 1,
        overlapped: false,
        mesh: mesh.clone(),
        last: Vec::new(),
        seconds: vec![d.cost],
        cost: d.cost,
        bound: chosen.map_or(d.bound, |s| s.bound.min(d.bound)),
        memory: d.memory,
    })
}

/// The chosen stages and layouts, ready to be written by [`write`].
pub struct StagedFunction {
    /// The pipeline.
    pub pipeline: Pipeline,
    /// The layouts on the submesh of each stage.
    pub written: PreparedDecision,
    /// The stage of each op, by position in the arena.
    pub ops: Vec<usize>,
    /// The stage of each value, by position in the arena; for inputs and constants the first that reads them.
    pub values: Vec<usize>,
}

/// The fastest cut into this number of stages, with this number of microbatches, along the best mesh axis. It chooses
/// the operand of each `of.alternatives` by step time and memory. The bound covers all cuts, layouts and alternatives.
///
/// # Errors
/// When the layers cannot be cut this way, no mesh axis can, the function has layout annotations, or nothing fits.
pub fn choose(
    func: &mut Func,
    mesh: &MeshSpec,
    stages: usize,
    microbatches: usize,
    effort: &Effort,
) -> Result<StagedFunction, Diagnostics> {
    let axes = 0..if stages > 1 { mesh.axes.len() } else { 1 };
    along(func, mesh, axes, None, (stages, microbatches), effort)
}

/// The layouts where annotations choose the stage of each op. Annotated layouts are kept. An op without a placement is on the
/// last stage of its operands; one that reads nothing placed, on the first stage of its readers.
///
/// # Errors
/// When nothing fits, or an annotation is impossible.
pub fn choose_placed(
    func: &mut Func,
    mesh: &MeshSpec,
    parts: &Parts,
    microbatches: usize,
    effort: &Effort,
) -> Result<StagedFunction, Diagnostics> {
    along(func, mesh, parts.axis..parts.axis + 1, Some(parts), (parts.names.len(), microbatches), effort)
}

/// [`choose`] along some axes only, or [`choose_placed`].
fn along(
    func: &mut Func,
    mesh: &MeshSpec,
    axes: Range<usize>,
    parts: Option<&Parts>,
    sizes: (usize, usize),
    effort: &Effort,
) -> Result<StagedFunction, Diagnostics> {
    // Stage bounds are kept between the alternatives.
    let bounds: Vec<StageBoundCache> = axes.clone().map(|_| StageBoundCache::default()).collect();
    let search = |func: &Func, cutoff: f64| {
        let axes: Vec<(usize, &StageBoundCache)> = axes.clone().zip(&bounds).collect();
        fastest(func, mesh, &axes, parts, sizes, effort, cutoff)
    };
    let chosen = alternatives::choose_with(func, &|func, cutoff| {
        let StagedFunction { pipeline: p, written, .. } =
            search(func, cutoff).map_err(|(d, bound)| (d.into(), bound))?;
        Ok(JointSolution { cost: p.cost, bound: p.bound, selected: written.selected })
    })?;
    let mut staged = search(func, f64::INFINITY).map_err(|(d, _)| d)?;
    if let Some(s) = chosen {
        // The bound over all alternatives holds too.
        staged.pipeline.bound = staged.pipeline.bound.min(s.bound);
    }
    Ok(staged)
}

/// The fastest cut along some axes, if a step takes less than `cutoff` seconds; the one into `parts`, where they are given. An
/// error has a lower bound too.
fn fastest(
    func: &Func,
    mesh: &MeshSpec,
    axes: &[(usize, &StageBoundCache)],
    parts: Option<&Parts>,
    (stages, microbatches): (usize, usize),
    effort: &Effort,
    cutoff: f64,
) -> Result<StagedFunction, (Diagnostic, f64)> {
    let error = |what: String| Diagnostic::error(Code::SBP, func.loc.clone(), what);
    if parts.is_none() && placed(&func.graph) {
        return Err((
            error("the function has layout annotations: a function is cut into stages as a whole".into()),
            0.0,
        ));
    }
    let layers = parts.map_or_else(|| Layers::of(func), |parts| Layers::placed(func, parts));
    if stages > layers.cuts.len() + 1 {
        let what = format!("{stages} stages were requested, but there are only {} cut points", layers.cuts.len());
        return Err((error(what).note("a cut point is where one value alone is live"), 0.0));
    }
    let batches = Microbatches::of(func, microbatches).map_err(|d| (d, 0.0))?;
    let kinds = batches.kinds(&func.graph);
    let mut best: Option<(Pipeline, PreparedDecision, Vec<usize>)> = None;
    let (mut why, mut bound) = (None, f64::INFINITY);
    for (axis, bounds) in axes {
        let Some(own) = mesh.submesh(*axis, stages) else { continue };
        let model = Model::for_microbatches(func, &own, &|v| batches.part(&func.graph, v))
            .map_err(|d| (d.0.into_iter().next().unwrap_or_else(|| decide::no_stage_fits(func)), 0.0))?;
        // Transfers block their ranks, or they overlap and more microbatches are in flight.
        for overlapped in [false, true].into_iter().filter(|o| !o || CutSearch::may_overlap(&own, mesh, microbatches)) {
            let most = best.as_ref().map_or(cutoff, |(b, ..)| b.cost.min(cutoff));
            let shape = PipelineShape { stages, microbatches, training: layers.training, overlapped };
            match CutSearch::new(&layers, &kinds, shape, mesh, *axis).search(&model, effort, most, bounds) {
                Ok((p, d, last)) => {
                    bound = bound.min(p.bound);
                    if best.as_ref().is_none_or(|(b, ..)| p.cost < b.cost) {
                        best = Some((p, decide::prepare(&model, &d), last));
                    }
                }
                Err((e, least)) => {
                    bound = bound.min(least);
                    why = if overlapped { why } else { Some(e) };
                }
            }
        }
    }
    let none = || error(format!("no axis of the mesh {:?} can be cut into {stages} stages", mesh.shape()));
    let (mut pipeline, written, last) = best.ok_or_else(|| (why.unwrap_or_else(none), bound))?;
    pipeline.bound = bound.min(pipeline.cost);
    let stage = |layer: &usize| last.partition_point(|c| c < layer);
    let (ops, values) = (layers.ops.iter().map(stage).collect(), layers.values.iter().map(stage).collect());
    Ok(StagedFunction { pipeline, written, ops, values })
}

fn placed(g: &Graph) -> bool {
    (0..g.value_slots()).filter_map(|i| g.value_at(i)).any(|v| g.ty(v).as_tensor().is_some_and(|t| t.sbp.is_some()))
}
