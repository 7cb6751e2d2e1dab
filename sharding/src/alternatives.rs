//! Chooses an operand for each `of.alternatives`.
//!
//! The joint search over alternatives and layouts gives the lower bound and a first choice. With the alternatives
//! fixed, the remaining search for layouts is easier. So this fixed search costs each choice: the joint one, all first
//! operands, and all last operands. Where there are few alternatives, local search then improves them one by one.

use of_diag::Diagnostics;
use of_ir::{Func, OpId, Rewriter};
use of_ops::OpSpec;
use of_ops::structural::Alternatives;

use crate::decide::{decide_within, memory_error, select_alternatives};
use crate::liveness::WholeFunction;
use crate::search::Effort;
use crate::value_names::value_names;
use crate::{MeshSpec, Model};

/// The result of a search over alternatives and layouts together.
#[derive(Clone, PartialEq, Debug)]
pub struct JointSolution {
    /// Seconds per execution.
    pub cost: f64,
    /// Lower bound of the cost.
    pub bound: f64,
    /// The selected operand of each `of.alternatives`, by position in the arena; 0 for other ops.
    pub selected: Vec<usize>,
}

/// The choices for all `of.alternatives` of a function.
#[derive(Clone, PartialEq, Debug)]
pub struct ChosenAlternatives {
    /// Lower bound in seconds over all alternatives and layouts.
    pub bound: f64,
    /// One entry for each `of.alternatives`, in order.
    pub choices: Vec<ChosenAlternative>,
}

/// The choice for one `of.alternatives`.
#[derive(Clone, PartialEq, Debug)]
pub struct ChosenAlternative {
    /// Name of its result.
    pub value: String,
    /// The selected operand.
    pub operand: usize,
    /// Additional seconds of a step with the best other operand, where the local search tried it.
    pub penalty: Option<f64>,
}

/// Local search runs where there are at most this many alternatives.
const MAX_REFINED: usize = 24;
/// Rounds of local search.
const REFINE_ROUNDS: usize = 3;

/// Chooses an operand for each `of.alternatives` of `func` and replaces the op by it. Ops that only the other operands
/// need are erased. `None` where there are no alternatives.
///
/// # Errors
/// When nothing fits, or a layout annotation is impossible.
pub fn choose(
    func: &mut Func,
    mesh: &MeshSpec,
    memory: f64,
    effort: &Effort,
) -> Result<Option<ChosenAlternatives>, Diagnostics> {
    choose_with(func, &|func, _cutoff| {
        let model = Model::new(func, mesh).map_err(|d| (d, 0.0))?;
        let found = decide_within(&model, &model.problem, &[&WholeFunction], memory, effort);
        let d = found.map_err(|e| (memory_error(&model, memory, e.least).into(), e.bound))?;
        Ok(JointSolution { cost: d.cost, bound: d.bound, selected: d.assignment.selected })
    })
}

/// The error of a search that found nothing, and a lower bound of the cost of any solution.
pub type Infeasible = (Diagnostics, f64);

/// [`choose`] with another search, such as that for pipeline stages. The search gets a cutoff in seconds: it may stop
/// once it knows that nothing is faster.
///
/// # Errors
/// The error of the search where it finds nothing.
pub fn choose_with(
    func: &mut Func,
    search: &dyn Fn(&Func, f64) -> Result<JointSolution, Infeasible>,
) -> Result<Option<ChosenAlternatives>, Diagnostics> {
    let g = &func.graph;
    let alternatives: Vec<OpId> = g.region_ops(g.entry()).filter(|op| g.op(*op).name() == Alternatives::NAME).collect();
    if alternatives.is_empty() {
        return Ok(None);
    }
    let fixed = |selected: &[usize]| {
        let mut fixed = func.clone();
        let mut by_op = vec![0; fixed.graph.op_slots()];
        alternatives.iter().zip(selected).for_each(|(op, k)| by_op[op.index()] = *k);
        select_alternatives(&mut Rewriter::new(&mut fixed.graph, "shard"), &by_op);
        fixed
    };
    let cost = |selected: &[usize], cutoff: f64| search(&fixed(selected), cutoff).map(|s| s.cost);
    let joint = search(func, f64::INFINITY);
    let names = value_names(func);
    // The joint solution, keep everything, and recompute everything. The last may fit where the joint search found
    // nothing.
    let found = joint.as_ref().ok().map(|d| alternatives.iter().map(|op| d.selected[op.index()]).collect::<Vec<_>>());
    let first = vec![0; alternatives.len()];
    let last: Vec<usize> = alternatives.iter().map(|op| g.op(*op).operands.len() - 1).collect();
    let (mut best_cost, mut selected) = (f64::INFINITY, last.clone());
    let mut error: Option<Diagnostics> = None;
    for other in found.into_iter().chain([first, last]) {
        match cost(&other, best_cost) {
            Ok(c) if c < best_cost => (best_cost, selected) = (c, other),
            Ok(_) => {}
            Err((e, _)) => error = Some(e),
        }
    }
    let bound = joint.as_ref().map_or_else(|(_, bound)| *bound, |d| d.bound);
    let mut penalty: Vec<Option<f64>> = vec![None; alternatives.len()];
    for _ in 0..if alternatives.len() <= MAX_REFINED { REFINE_ROUNDS } else { 0 } {
        let before = best_cost;
        for (i, op) in alternatives.iter().enumerate() {
            let kept = selected[i];
            let mut runner_up = f64::INFINITY;
            for k in (0..g.op(*op).operands.len()).filter(|k| *k != kept) {
                let mut other = selected.clone();
                other[i] = k;
                let c = cost(&other, best_cost).unwrap_or(f64::INFINITY);
                if c < best_cost {
                    runner_up = runner_up.min(best_cost);
                    (best_cost, selected) = (c, other);
                } else {
                    runner_up = runner_up.min(c);
                }
            }
            penalty[i] = Some(runner_up - best_cost).filter(|x| x.is_finite());
        }
        if best_cost >= before {
            break;
        }
    }
    if best_cost.is_infinite() {
        return Err(joint.err().map(|(e, _)| e).or(error).unwrap_or_default());
    }
    let choice = |((op, operand), penalty): ((&OpId, &usize), &Option<f64>)| ChosenAlternative {
        value: names[g.op(*op).results[0].index()].clone(),
        operand: *operand,
        penalty: *penalty,
    };
    let choices = alternatives.iter().zip(&selected).zip(&penalty).map(choice).collect();
    let chosen = ChosenAlternatives { bound: bound.min(best_cost), choices };
    *func = fixed(&selected);
    Ok(Some(chosen))
}
