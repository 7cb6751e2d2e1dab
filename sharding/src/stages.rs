//! Pipelines: the layers of a function in stages, each on its own part of the mesh, with a step cut into microbatches.
//!
//! A mesh axis of n devices makes S stages, for any S that divides n; each stage has a mesh of its own, on which layouts are
//! searched as ever. Where M microbatches pass through, a step takes (M + S - 1) / M times what the slowest stage takes for
//! all of them: S - 1 of its turns are spent filling and draining (Huang et al., "GPipe", 2019). Forward and backward turns
//! alternate, so that stage s holds what min(S - s, M) microbatches keep for their backward ops (Narayanan et al.,
//! "PipeDream", 2019).
//!
//! All stages together take no less than the search's bound for the whole function on a mesh of that size, so the slowest
//! takes no less than its S-th part. A stage of given layers takes no less than the search's bound for these alone, within
//! the memory of its devices and whatever lies how beside them; of all cuts, the one whose slowest stage takes least by that
//! measure is a bound too, where there are few enough layers to solve each run of them. The larger one is the bound of each
//! choice, and the least of them that of all.
//!
//! The same table says which cut to try first. What its stages take is then searched together, with a limit of memory for
//! each of them, and says what such stages take rather than the bound; so cuts are tried until no other one promises less.

mod cut;
mod device;
mod levels;
#[cfg(test)]
mod tests;

use std::ops::Range;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Func, Graph, OpId};

use crate::MeshSpec;
use crate::alternatives::{self, Searched};
use crate::decide::{self, Written};
use crate::microbatches::Microbatches;
use crate::model::Model;
use crate::search::Effort;
use cut::{Alone, Cut};
use levels::Levels;

/// Stages and microbatches, and what comes of them.
#[derive(Clone, PartialEq, Debug)]
pub struct Pipeline {
    /// The mesh axis that is cut.
    pub axis: usize,
    /// Stages; 1 for none.
    pub stages: usize,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// The mesh of a stage.
    pub mesh: MeshSpec,
    /// For each stage its last forward op; the last one has the rest.
    pub last: Vec<OpId>,
    /// For each stage the seconds that it takes for a step.
    pub seconds: Vec<f64>,
    /// Seconds of a step.
    pub cost: f64,
    /// No cut and no layouts with so many stages and microbatches take less.
    pub bound: f64,
    /// Bytes of a device's memory, where most are taken.
    pub memory: f64,
}

/// Choices of stages and microbatches.
#[derive(Clone, PartialEq, Debug)]
pub struct Pipelines {
    /// Those that fit, in order; the first has neither.
    pub fit: Vec<Pipeline>,
    /// Stages and microbatches that do not fit, and why.
    pub unfit: Vec<(usize, usize, Diagnostic)>,
}

/// Every choice of stages and of these microbatches. Each settles for itself which operand each `of.alternatives` takes.
///
/// Functions whose types say how something lies are not cut: their layouts are of the whole mesh.
///
/// # Errors
/// When nothing fits.
pub fn pipelines(
    func: &Func,
    mesh: &MeshSpec,
    microbatches: &[usize],
    effort: &Effort,
) -> Result<Pipelines, Diagnostics> {
    let mut all = Pipelines { fit: Vec::new(), unfit: Vec::new() };
    let first = |d: Diagnostics| d.0.into_iter().next().unwrap_or_else(|| decide::nothing(func));
    match uncut(&mut func.clone(), mesh, effort) {
        Ok(p) => all.fit.push(p),
        Err(why) => all.unfit.push((1, 1, first(why))),
    }
    for (axis, a) in mesh.axes.iter().enumerate() {
        for stages in (2..=a.devices).filter(|s| a.devices % s == 0) {
            for m in microbatches {
                match along(&mut func.clone(), mesh, axis..axis + 1, (stages, *m), effort) {
                    Ok(s) => all.fit.push(s.pipeline),
                    Err(why) => all.unfit.push((stages, *m, first(why))),
                }
            }
        }
    }
    match all.unfit.first() {
        Some((.., why)) if all.fit.is_empty() => Err(why.clone().into()),
        _ => Ok(all),
    }
}

/// The whole function on the whole mesh.
fn uncut(func: &mut Func, mesh: &MeshSpec, effort: &Effort) -> Result<Pipeline, Diagnostics> {
    let settled = alternatives::settle(func, mesh, mesh.memory, effort)?;
    let d = decide::decide(&Model::new(func, mesh)?, mesh.memory, effort)?;
    Ok(Pipeline {
        axis: 0,
        stages: 1,
        microbatches: 1,
        mesh: mesh.clone(),
        last: Vec::new(),
        seconds: vec![d.cost],
        cost: d.cost,
        bound: settled.map_or(d.bound, |s| s.bound.min(d.bound)),
        memory: d.memory,
    })
}

/// Stages and layouts that were chosen, ready to be written.
pub struct Staged {
    /// What they are.
    pub pipeline: Pipeline,
    /// How everything lies on the mesh of its stage.
    pub written: Written,
    /// The stage of each op, by its position in the arena.
    pub ops: Vec<usize>,
    /// The stage of each value, likewise; of inputs and constants the first that reads them.
    pub values: Vec<usize>,
}

/// The fastest cut into so many stages through which so many microbatches pass, along the axis of `mesh` for which it is.
/// Settles which operand each `of.alternatives` takes, by what a step takes so and by what devices hold; no cut, layouts and ways
/// together take less than the bound.
///
/// # Errors
/// When the layers cannot be cut so, no axis of the mesh can, types say already how something lies, or nothing fits.
pub fn choose(
    func: &mut Func,
    mesh: &MeshSpec,
    stages: usize,
    microbatches: usize,
    effort: &Effort,
) -> Result<Staged, Diagnostics> {
    let axes = 0..if stages > 1 { mesh.axes.len() } else { 1 };
    along(func, mesh, axes, (stages, microbatches), effort)
}

/// The same along some axes alone.
fn along(
    func: &mut Func,
    mesh: &MeshSpec,
    axes: Range<usize>,
    sizes: (usize, usize),
    effort: &Effort,
) -> Result<Staged, Diagnostics> {
    // What is found out about stages is kept from one choice of ways to the next.
    let alone: Vec<Alone> = axes.clone().map(|_| Alone::default()).collect();
    let search = |func: &Func, enough: f64| {
        let axes: Vec<(usize, &Alone)> = axes.clone().zip(&alone).collect();
        fastest(func, mesh, &axes, sizes, effort, enough)
    };
    let settled = alternatives::settle_by(func, &|func, enough| {
        let Staged { pipeline: p, written, .. } = search(func, enough).map_err(|(d, bound)| (d.into(), bound))?;
        Ok(Searched { cost: p.cost, bound: p.bound, taken: written.taken })
    })?;
    let mut staged = search(func, f64::INFINITY).map_err(|(d, _)| d)?;
    if let Some(s) = settled {
        // No choice of the function as it was takes less.
        staged.pipeline.bound = staged.pipeline.bound.min(s.bound);
    }
    Ok(staged)
}

/// The fastest along some axes, if a step takes less than `enough` seconds; an error says too what nothing that fits takes
/// less than.
fn fastest(
    func: &Func,
    mesh: &MeshSpec,
    axes: &[(usize, &Alone)],
    (stages, microbatches): (usize, usize),
    effort: &Effort,
    enough: f64,
) -> Result<Staged, (Diagnostic, f64)> {
    let error = |what: String| Diagnostic::error(Code::SBP, func.loc.clone(), what);
    if placed(&func.graph) {
        return Err((error("types say how something lies: a function is cut into stages as a whole".into()), 0.0));
    }
    let levels = Levels::of(func);
    if stages > levels.cuts.len() + 1 {
        let what = format!("{stages} stages are asked for, there are {} places to cut at", levels.cuts.len());
        return Err((error(what).note("a cut is where all that follows needs one value alone"), 0.0));
    }
    let turns = Microbatches::of(func, microbatches).map_err(|d| (d, 0.0))?;
    let spread = turns.spread(&func.graph);
    let mut best: Option<(Pipeline, Written, Vec<usize>)> = None;
    let (mut why, mut bound) = (None, f64::INFINITY);
    for (axis, alone) in axes {
        let Some(own) = mesh.stage(*axis, stages) else { continue };
        let model = Model::of_turns(func, &own, &|v| turns.part(&func.graph, v))
            .map_err(|d| (d.0.into_iter().next().unwrap_or_else(|| decide::nothing(func)), 0.0))?;
        let most = best.as_ref().map_or(enough, |(b, ..)| b.cost.min(enough));
        match Cut::new(&levels, &spread, (stages, microbatches), mesh, *axis).search(&model, effort, most, alone) {
            Ok((p, d, last)) => {
                bound = bound.min(p.bound);
                if best.as_ref().is_none_or(|(b, ..)| p.cost < b.cost) {
                    best = Some((p, decide::prepare(&model, &d), last));
                }
            }
            Err((e, least)) => {
                bound = bound.min(least);
                why = Some(e);
            }
        }
    }
    let none = || error(format!("no axis of the mesh {:?} is cut into {stages} stages", mesh.shape()));
    let (mut pipeline, written, last) = best.ok_or_else(|| (why.unwrap_or_else(none), bound))?;
    pipeline.bound = bound.min(pipeline.cost);
    let stage = |level: &usize| last.partition_point(|c| c < level);
    let (ops, values) = (levels.ops.iter().map(stage).collect(), levels.values.iter().map(stage).collect());
    Ok(Staged { pipeline, written, ops, values })
}

fn placed(g: &Graph) -> bool {
    (0..g.value_slots()).filter_map(|i| g.value_at(i)).any(|v| g.ty(v).as_tensor().is_some_and(|t| t.sbp.is_some()))
}
