//! Functions in which values may be computed in several ways: which way each is.
//!
//! The search over ways and layouts together gives the bound and a first choice. With the ways fixed what is left is a
//! search for layouts alone, which is easier: so the choice is settled by it, compared with that of the first operand of
//! each `of.either`, and improved one by one where there are few.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{Func, OpId, Rewriter};
use of_ops::OpSpec;
use of_ops::structural::Either;

use crate::decide::{decide, take};
use crate::search::Effort;
use crate::{MeshSpec, Model};

/// What was chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Settled {
    /// Seconds; no ways and layouts together take less.
    pub bound: f64,
    /// Every `of.either`, in order.
    pub ways: Vec<Way>,
}

/// The choice of one `of.either`.
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

/// Settles which operand each `of.either` of `func` takes: they go, and so does what was only there for the others. `None`
/// where there are none.
///
/// # Errors
/// When nothing fits, or what types ask for is not possible.
pub fn settle(func: &mut Func, mesh: &MeshSpec, memory: f64, effort: &Effort) -> Result<Option<Settled>, Diagnostics> {
    let g = &func.graph;
    let eithers: Vec<OpId> = g.region_ops(g.entry()).filter(|op| g.op(*op).name() == Either::NAME).collect();
    if eithers.is_empty() {
        return Ok(None);
    }
    let fixed = |ways: &[usize]| {
        let mut one = func.clone();
        let mut taken = vec![0; one.graph.op_slots()];
        eithers.iter().zip(ways).for_each(|(op, k)| taken[op.index()] = *k);
        take(&mut Rewriter::new(&mut one.graph, "shard"), &taken);
        one
    };
    let cost = |ways: &[usize]| -> Result<f64, Diagnostics> {
        let one = fixed(ways);
        let model = Model::new(&one, mesh)?;
        Ok(decide(&model, memory, effort)?.cost)
    };
    let model = Model::new(func, mesh)?;
    let together = decide(&model, memory, effort);
    let names = crate::explain::names(&model);
    let mut best: Option<(f64, Vec<usize>)> = None;
    let mut why: Option<Diagnostics> = None;
    let first = vec![0; eithers.len()];
    let found = together.as_ref().map(|d| eithers.iter().map(|op| d.lying.taken[op.index()]).collect::<Vec<_>>());
    for ways in found.iter().chain([&first]) {
        match cost(ways) {
            Ok(c) if best.as_ref().is_none_or(|(b, _)| c < *b) => best = Some((c, ways.clone())),
            Ok(_) => {}
            Err(e) => why = Some(e),
        }
    }
    let bound = together.as_ref().map_or(0.0, |d| d.bound);
    let Some((mut least, mut ways)) = best else {
        return Err(together.err().map(Diagnostic::into).or(why).unwrap_or_default());
    };
    let mut otherwise: Vec<Option<f64>> = vec![None; eithers.len()];
    for _ in 0..if eithers.len() <= FEW { PASSES } else { 0 } {
        let before = least;
        for (i, op) in eithers.iter().enumerate() {
            let kept = ways[i];
            let mut others = f64::INFINITY;
            for k in (0..g.op(*op).operands.len()).filter(|k| *k != kept) {
                let mut other = ways.clone();
                other[i] = k;
                let c = cost(&other).unwrap_or(f64::INFINITY);
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
    let value = |op: &OpId| names[g.op(*op).results[0].index()].clone();
    let made = eithers.iter().zip(&ways).zip(&otherwise);
    let list = made.map(|((op, taken), otherwise)| Way { value: value(op), taken: *taken, otherwise: *otherwise });
    let settled = Settled { bound: bound.min(least), ways: list.collect() };
    *func = fixed(&ways);
    Ok(Some(settled))
}
