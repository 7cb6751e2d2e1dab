//! Regions: runs of ops of bounded length that become an e-graph, and come back as the best ops that were found.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use egg::Id;
use of_diag::Diagnostic;
use of_ir::{Graph, OpId, RegionId, Rewriter, Type, ValueId};
use of_ops::structural::Alternatives;

use super::cost::Target;
use super::extract::{Problem, Solution};
use super::graph::{EGraph, is_listed};
use super::language::{Kind, Node};
use super::saturate::{Limits, Rules, Stop, saturate};

/// A run of ops of one block, and the op behind it.
pub struct Run {
    /// In order.
    pub ops: Vec<OpId>,
    next: OpId,
}

/// The runs of a block of up to `length` ops. What has regions or effects, or several results (whose number may be no
/// attribute), what the list does not know and what a user has placed stays as it is and ends a run.
pub fn runs(graph: &Graph, block: RegionId, length: usize) -> Vec<Run> {
    let (mut out, mut ops) = (Vec::new(), Vec::new());
    for op in graph.region_ops(block) {
        let plain = is_plain(graph, op);
        if !ops.is_empty() && (!plain || ops.len() >= length) {
            out.push(Run { ops: std::mem::take(&mut ops), next: op });
        }
        if plain {
            ops.push(op);
        }
    }
    out
}

fn is_plain(graph: &Graph, op: OpId) -> bool {
    let data = graph.op(op);
    let t = data.def.traits();
    let placed = |v: &ValueId| graph.ty(*v).as_tensor().is_some_and(|t| t.sbp.is_some());
    !t.terminator
        && !t.effect
        && data.regions.is_empty()
        && data.results.len() == 1
        && is_listed(graph, op)
        && !data.results.iter().any(placed)
}

/// What became of a run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Microseconds that the ops cost as they were, by the model.
    pub before: f64,
    /// Microseconds that they cost now.
    pub after: f64,
    /// No choice from the e-graph costs less.
    pub bound: f64,
    /// How long integer programs took to say so.
    pub solving: Duration,
    /// E-nodes.
    pub nodes: usize,
    /// Why the rules stopped.
    pub stop: Stop,
}

/// A run as an e-graph.
struct Region {
    graph: EGraph,
    /// Values from outside.
    leaves: Vec<ValueId>,
    classes: HashMap<ValueId, Id>,
    /// The ops as they were, in order.
    original: Vec<(Id, Node)>,
    /// The op that has such a form and such operands.
    existing: HashMap<(u32, Vec<ValueId>), OpId>,
}

/// How a run is rewritten.
#[derive(Clone, Copy)]
pub struct Task<'a> {
    /// The rules.
    pub rules: &'a Rules,
    /// What costs are of.
    pub target: &'a Target,
    /// When to stop.
    pub limits: &'a Limits,
    /// How long integer programs of the choice may take.
    pub exact: Duration,
    /// Ways to compute each value that are left for a later pass to choose from; 1 to choose now.
    pub ways: usize,
}

/// Rewrites a run; leaves it as it is where nothing better was found.
///
/// # Errors
/// When an op does not fit, a bug of a rule.
pub fn optimize(rw: &mut Rewriter<'_>, run: &Run, task: &Task<'_>) -> Result<Option<Outcome>, Diagnostic> {
    let Task { rules, target, limits, exact, ways } = *task;
    let inside: HashSet<OpId> = run.ops.iter().copied().collect();
    let results = run.ops.iter().flat_map(|op| rw.graph().op(*op).results.to_vec());
    let roots: Vec<ValueId> = results.filter(|v| rw.graph().uses(*v).iter().any(|u| !inside.contains(&u.op))).collect();
    let Some(mut region) = Region::of(rw.graph(), run) else { return Ok(None) };
    if roots.is_empty() {
        return Ok(None);
    }
    let before = region.cost(rw.graph(), run, &roots, target);
    let stop = saturate(&mut region.graph, rules, limits);
    let ids: Vec<Id> = roots.iter().map(|v| region.classes[v]).collect();
    let problem = Problem::new(&region.graph, target, &ids);
    let nodes = problem.size();
    let Some(solution) = problem.solve(&region.original) else { return Ok(None) };
    let started = Instant::now();
    let (bound, solution) = if exact.is_zero() { (0.0, solution) } else { problem.exact(solution, exact) };
    let solving = started.elapsed();
    let after = solution.cost.min(before);
    if ways > 1 {
        region.write_several(rw, run, &problem.several(&region.original, &solution, ways), &roots)?;
    } else if solution.cost < before - 1e-6 {
        region.write(rw, run, &problem, &solution, &roots)?;
    }
    Ok(Some(Outcome { before, after, bound, solving, nodes, stop }))
}

impl Region {
    /// `None` where an op is of a kind that e-graphs cannot hold, such as one with operands that are tuples.
    fn of(graph: &Graph, run: &Run) -> Option<Region> {
        let mut r = Region {
            graph: EGraph::default(),
            leaves: Vec::new(),
            classes: HashMap::new(),
            original: Vec::new(),
            existing: HashMap::new(),
        };
        for op in &run.ops {
            let data = graph.op(*op);
            let operands: Vec<Id> = data.operands.iter().map(|v| r.class(graph, *v)).collect();
            let id = r.graph.original(graph, *op, &operands)?;
            let form = r.graph.egg.analysis.forms.number(data.def, &data.attrs);
            r.original.push((id, Node { kind: Kind::Op(form), children: operands, made: None }));
            r.existing.entry((form, data.operands.to_vec())).or_insert(*op);
            for (k, v) in data.results.iter().enumerate() {
                let result = r.graph.result(id, k)?;
                if result != id {
                    let node = Node { kind: Kind::Result(k as u32), children: vec![id], made: None };
                    r.original.push((result, node));
                }
                r.classes.insert(*v, result);
            }
        }
        Some(r)
    }

    fn class(&mut self, graph: &Graph, v: ValueId) -> Id {
        if let Some(id) = self.classes.get(&v) {
            return *id;
        }
        let number = self.leaves.len() as u32;
        self.leaves.push(v);
        let id = self.graph.leaf(number, graph.ty(v), graph.constant(v));
        self.classes.insert(v, id);
        self.original.push((id, Node { kind: Kind::Leaf(number), children: Vec::new(), made: None }));
        id
    }

    /// What the ops that the roots need cost as they are.
    fn cost(&self, graph: &Graph, run: &Run, roots: &[ValueId], target: &Target) -> f64 {
        let mut needed: HashSet<ValueId> = roots.iter().copied().collect();
        let mut sum = 0.0;
        for op in run.ops.iter().rev() {
            let data = graph.op(*op);
            if data.results.iter().any(|v| needed.contains(v)) {
                needed.extend(data.operands.iter().copied());
                let known = self.graph.egg[self.classes[&data.results[0]]].data.known;
                let classes: Vec<Id> = data.operands.iter().map(|v| self.classes[v]).collect();
                sum += if known { 0.0 } else { target.cost(graph, *op, self.graph.joins(&classes)) };
            }
        }
        sum
    }

    /// Writes a solution behind the run, lets everything outside read it, and removes what nobody reads any more.
    fn write(
        &self,
        rw: &mut Rewriter<'_>,
        run: &Run,
        problem: &Problem<'_>,
        solution: &Solution,
        roots: &[ValueId],
    ) -> Result<(), Diagnostic> {
        rw.before(run.next);
        // The values of each class: several for a tuple.
        let mut values: HashMap<Id, Vec<ValueId>> = HashMap::new();
        for (class, node) in problem.taken(solution) {
            let made = self.values(rw, node, &values)?;
            values.insert(class, made);
        }
        for root in roots {
            rw.replace_uses(*root, values[&self.graph.egg.find(self.classes[root])][0]);
        }
        self.clear(rw, run);
        Ok(())
    }

    /// Writes several ways to compute each class behind the run, as operands of an `of.alternatives`.
    fn write_several(
        &self,
        rw: &mut Rewriter<'_>,
        run: &Run,
        classes: &[(Id, Vec<&Node>)],
        roots: &[ValueId],
    ) -> Result<(), Diagnostic> {
        rw.before(run.next);
        let inside: HashSet<OpId> = run.ops.iter().copied().collect();
        let outside = |v: &ValueId| rw.graph().uses(*v).iter().filter(|u| !inside.contains(&u.op)).copied().collect();
        let uses: Vec<Vec<of_ir::Use>> = roots.iter().map(outside).collect();
        let mut values: HashMap<Id, Vec<ValueId>> = HashMap::new();
        for (class, nodes) in classes {
            let mut ways: Vec<Vec<ValueId>> = Vec::new();
            for node in nodes {
                let made = self.values(rw, node, &values)?;
                if !ways.contains(&made) {
                    ways.push(made);
                }
            }
            let one: Vec<ValueId> = ways.iter().map(|w| w[0]).collect();
            let made = match ways.as_slice() {
                // Tuples are made in one way: their results are classes of their own.
                [only] => only.clone(),
                _ => vec![rw.create_one(Alternatives {}, &one)?],
            };
            values.insert(*class, made);
        }
        for (root, uses) in roots.iter().zip(uses) {
            let value = values[&self.graph.egg.find(self.classes[root])][0];
            uses.iter().for_each(|u| rw.set_operand(u.op, u.operand as usize, value));
        }
        self.clear(rw, run);
        Ok(())
    }

    /// The values of an e-node, several for a tuple, from those of its operands' classes.
    fn values(
        &self,
        rw: &mut Rewriter<'_>,
        node: &Node,
        values: &HashMap<Id, Vec<ValueId>>,
    ) -> Result<Vec<ValueId>, Diagnostic> {
        let operand = |i: usize| &values[&self.graph.egg.find(node.children[i])];
        Ok(match node.kind {
            Kind::Leaf(n) => vec![self.leaves[n as usize]],
            Kind::Result(k) => vec![operand(0)[k as usize]],
            Kind::Op(form) => {
                let operands: Vec<ValueId> = (0..node.children.len()).map(|i| operand(i)[0]).collect();
                match self.existing.get(&(form, operands.clone())) {
                    Some(op) => rw.graph().op(*op).results.to_vec(),
                    None => self.create(rw, node, &operands)?,
                }
            }
        })
    }

    /// Removes what nobody reads any more.
    fn clear(&self, rw: &mut Rewriter<'_>, run: &Run) {
        let mut left: BTreeSet<OpId> = run.ops.iter().copied().collect();
        while let Some(op) = left.pop_last() {
            if rw.graph().op(op).results.iter().all(|v| rw.graph().uses(*v).is_empty()) {
                // Its operands may be free now: those come earlier, as ids grow within a run or are looked at again.
                let operands: Vec<OpId> =
                    rw.graph().op(op).operands.iter().filter_map(|v| rw.graph().def_op(*v)).collect();
                rw.erase(op);
                left.extend(operands.into_iter().filter(|o| run.ops.contains(o) && rw.graph().is_live(*o)));
            }
        }
    }

    fn create(&self, rw: &mut Rewriter<'_>, node: &Node, operands: &[ValueId]) -> Result<Vec<ValueId>, Diagnostic> {
        let (Some((def, attrs)), Some(twin)) = (self.graph.form(node), node.made) else { return Ok(Vec::new()) };
        let scratch = self.graph.scratch();
        let twin = scratch.op(twin);
        let types: Vec<Type> = twin.results.iter().map(|v| scratch.ty(*v).clone()).collect();
        rw.set_location(twin.loc.clone());
        let op = rw.create_with_types((def, attrs.clone()), operands, &[], types)?;
        Ok(rw.graph().op(op).results.to_vec())
    }
}
