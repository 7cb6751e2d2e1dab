//! Equality saturation: applies rules until nothing is new or a limit is reached. Each round first searches, then
//! applies.

use std::collections::HashSet;
use std::time::Instant;

use egg::Id;
use of_diag::Location;
use of_ir::DType;

use super::graph::EGraph;
use super::rule::{Compiled, Rule, Search};
use super::view::{Equation, Term, View};

/// Limits of saturation.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// E-nodes.
    pub nodes: usize,
    /// Rounds.
    pub rounds: usize,
    /// Time limit as a last resort: results then depend on the machine.
    pub until: Option<Instant>,
}

/// Why saturation stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// No rule adds anything new.
    Saturated,
    /// The limit of rounds.
    Rounds,
    /// The limit of e-nodes.
    Nodes,
    /// The time limit.
    Time,
}

/// Compiled rules.
pub struct Rules {
    rules: Vec<(&'static Rule, Vec<Compiled>)>,
}

impl Rules {
    /// Compiles rules.
    pub fn new(rules: impl IntoIterator<Item = &'static Rule>) -> Rules {
        Rules { rules: rules.into_iter().map(|r| (r, r.search.compile())).collect() }
    }
}

/// Matches of one rule per round. A rule with more is banned for some rounds, each time twice as long, so that it does
/// not starve the others (as egg's `BackoffScheduler`).
const MATCH_LIMIT: usize = 1000;

/// Applies the rules. Those that are not exact are not applied to values that must keep every bit, of which `kept` are the
/// original ones.
pub fn saturate(graph: &mut EGraph, rules: &Rules, limits: &Limits, kept: &HashSet<Id>) -> StopReason {
    let mut bans = vec![(0usize, 0u32); rules.rules.len()];
    graph.egg.rebuild();
    for round in 0..limits.rounds {
        let mut found = Vec::new();
        let view = View::new(graph);
        let kept = view.rounded(kept);
        for ((rule, compiled), (until, times)) in rules.rules.iter().zip(&mut bans) {
            if round < *until {
                continue;
            }
            let mut equations = search(rule, compiled, &view);
            if !rule.exactness.keeps_roundings() {
                let float = |class: Id| view.dtype(class).is_none_or(DType::is_float);
                equations.retain(|e| !(kept.contains(&graph.egg.find(e.class)) && float(e.class)));
            }
            if equations.len() > MATCH_LIMIT << *times {
                *until = round + (2 << *times);
                *times += 1;
                continue;
            }
            found.extend(equations.into_iter().map(|e| (rule.name, e)));
            if limits.until.is_some_and(|t| Instant::now() > t) {
                return StopReason::Time;
            }
        }
        let mut changed = false;
        for (name, equation) in found {
            if graph.egg.total_number_of_nodes() > limits.nodes {
                graph.egg.rebuild();
                return StopReason::Nodes;
            }
            let before = graph.egg.total_number_of_nodes();
            let united = apply(graph, name, &equation).is_some_and(|id| graph.union(equation.class, id));
            changed |= united || graph.egg.total_number_of_nodes() > before;
        }
        graph.egg.rebuild();
        if !changed && bans.iter().all(|(until, _)| round >= *until) {
            return StopReason::Saturated;
        }
    }
    StopReason::Rounds
}

/// The equations that one rule finds.
pub fn search(rule: &Rule, compiled: &[Compiled], view: &View<'_>) -> Vec<Equation> {
    let mut out = Vec::new();
    match rule.search {
        Search::Text { .. } => compiled.iter().for_each(|c| c.find(view, &mut out)),
        Search::Code { find, .. } => find(view, &mut out),
    }
    out
}

/// Adds the right side of an equation.
pub fn apply(graph: &mut EGraph, rule: &str, equation: &Equation) -> Option<Id> {
    let loc = derive(rule, &equation.from);
    add(graph, &equation.term, &loc)
}

fn add(graph: &mut EGraph, term: &Term, loc: &Location) -> Option<Id> {
    match term {
        Term::Class(id) => Some(graph.egg.find(*id)),
        Term::Op(def, attrs, operands) => {
            let operands = operands.iter().map(|t| add(graph, t, loc)).collect::<Option<Vec<_>>>()?;
            let tuple = graph.add(*def, attrs, &operands, loc)?;
            graph.result(tuple, 0)
        }
    }
}

/// Prefix of the locations of this pass.
pub const BY: &str = "optimize/";

/// The location of an op made by a rule: the names of all rules involved, and the original locations.
pub fn derive(rule: &str, from: &[Location]) -> Location {
    let mut rules: Vec<&str> = Vec::new();
    let mut roots: Vec<&Location> = Vec::new();
    for l in from {
        match l {
            Location::Derived { by, from } if by.starts_with(BY) => {
                rules.extend(by[BY.len()..].split('+'));
                roots.extend(from.iter());
            }
            other => roots.push(other),
        }
    }
    rules.push(rule);
    let mut names: Vec<&str> = Vec::new();
    rules.into_iter().for_each(|r| {
        if !names.contains(&r) {
            names.push(r)
        }
    });
    Location::derived(format!("{BY}{}", names.join("+")), roots)
}
