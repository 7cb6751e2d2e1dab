//! Functions in which values may be computed in several ways: which way each is.
//!
//! The search over ways and layouts together gives the bound and a first choice. With the ways fixed what is left is a
//! search for layouts alone, which is easier: so the choice is settled by it, compared with those of the first and of the last
//! operand of each `of.alternatives`, and improved one by one where there are few.

use of_diag::Diagnostics;
use of_ir::{Func, OpId, Rewriter};
use of_ops::OpSpec;
use of_ops::structural::Alternatives;

use crate::decide::{decide_within, take, too_large};
use crate::memory::Whole;
use crate::search::Effort;
use crate::{MeshSpec, Model, explain};

/// What a search for everything that a function leaves open found.
#[derive(Clone, PartialEq, Debug)]
pub struct Searched {
    /// Seconds of one execution.
    pub cost: f64,
    /// Nothing takes less.
    pub bound: f64,
    /// Which operand each `of.alternatives` takes, by its position in the arena; 0 for other ops.
    pub taken: Vec<usize>,
}

/// What was chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Settled {
    /// Seconds; no ways and layouts together take less.
    pub bound: f64,
    /// Every `of.alternatives`, in order.
    pub ways: Vec<Way>,
}

/// The choice of one `of.alternatives`.
#[derive(Clone, PartialEq, Debug)]
pub struct Way {
    /// What people call its value.
    pub value: String,
    /// The operand that is taken.
    pub taken: usize,
    /// Seconds that a step takes more with the best of the others, where that was searched.
    pub otherwise: Option<f64>,
}

/// With more of them ways are not compared one by one.
const FEW: usize = 24;
/// Times in which all are looked at.
const PASSES: usize = 3;

/// Settles which operand each `of.alternatives` of `func` takes: they go, and so does what was only there for the others. `None`
/// where there are none.
///
/// # Errors
/// When nothing fits, or what types ask for is not possible.
pub fn settle(func: &mut Func, mesh: &MeshSpec, memory: f64, effort: &Effort) -> Result<Option<Settled>, Diagnostics> {
    settle_by(func, &|func, _enough| {
        let model = Model::new(func, mesh).map_err(|d| (d, 0.0))?;
        let found = decide_within(&model, &model.problem, &[&Whole], memory, effort);
        let d = found.map_err(|e| (too_large(&model, memory, e.least).into(), e.bound))?;
        Ok(Searched { cost: d.cost, bound: d.bound, taken: d.lying.taken })
    })
}

/// Why a search found nothing, and what no choice costs less than.
pub type NotFound = (Diagnostics, f64);

/// The same with another search, such as that for stages, which may give up where nothing takes less than so many seconds.
///
/// # Errors
/// What the search says where it finds nothing.
pub fn settle_by(
    func: &mut Func,
    search: &dyn Fn(&Func, f64) -> Result<Searched, NotFound>,
) -> Result<Option<Settled>, Diagnostics> {
    let g = &func.graph;
    let alternatives: Vec<OpId> = g.region_ops(g.entry()).filter(|op| g.op(*op).name() == Alternatives::NAME).collect();
    if alternatives.is_empty() {
        return Ok(None);
    }
    let fixed = |ways: &[usize]| {
        let mut one = func.clone();
        let mut taken = vec![0; one.graph.op_slots()];
        alternatives.iter().zip(ways).for_each(|(op, k)| taken[op.index()] = *k);
        take(&mut Rewriter::new(&mut one.graph, "shard"), &taken);
        one
    };
    let cost = |ways: &[usize], enough: f64| search(&fixed(ways), enough).map(|s| s.cost);
    let together = search(func, f64::INFINITY);
    let names = explain::names(func);
    // What was found, all that is kept, and all that is computed again, which may fit where nothing was found.
    let found = together.as_ref().ok().map(|d| alternatives.iter().map(|op| d.taken[op.index()]).collect::<Vec<_>>());
    let first = vec![0; alternatives.len()];
    let last: Vec<usize> = alternatives.iter().map(|op| g.op(*op).operands.len() - 1).collect();
    let (mut least, mut ways) = (f64::INFINITY, last.clone());
    let mut why: Option<Diagnostics> = None;
    for other in found.into_iter().chain([first, last]) {
        match cost(&other, least) {
            Ok(c) if c < least => (least, ways) = (c, other),
            Ok(_) => {}
            Err((e, _)) => why = Some(e),
        }
    }
    let bound = together.as_ref().map_or_else(|(_, bound)| *bound, |d| d.bound);
    let mut otherwise: Vec<Option<f64>> = vec![None; alternatives.len()];
    for _ in 0..if alternatives.len() <= FEW { PASSES } else { 0 } {
        let before = least;
        for (i, op) in alternatives.iter().enumerate() {
            let kept = ways[i];
            let mut others = f64::INFINITY;
            for k in (0..g.op(*op).operands.len()).filter(|k| *k != kept) {
                let mut other = ways.clone();
                other[i] = k;
                let c = cost(&other, least).unwrap_or(f64::INFINITY);
                if c < least {
                    others = others.min(least);
                    (least, ways) = (c, other);
                } else {
                    others = others.min(c);
                }
            }
            otherwise[i] = Some(others - least).filter(|x| x.is_finite());
        }
        if least >= before {
            break;
        }
    }
    if least.is_infinite() {
        return Err(together.err().map(|(e, _)| e).or(why).unwrap_or_default());
    }
    let value = |op: &OpId| names[g.op(*op).results[0].index()].clone();
    let made = alternatives.iter().zip(&ways).zip(&otherwise);
    let list = made.map(|((op, taken), otherwise)| Way { value: value(op), taken: *taken, otherwise: *otherwise });
    let settled = Settled { bound: bound.min(least), ways: list.collect() };
    *func = fixed(&ways);
    Ok(Some(settled))
}
