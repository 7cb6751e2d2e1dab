//! Segments: sequences of ops of bounded length that become an e-graph, and are replaced by the extracted ops.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use egg::Id;
use of_diag::Diagnostic;
use of_ir::{Graph, IdMap, IdSet, OpId, RegionId, Rewriter, Type, ValueId};
use of_ops::structural::Alternatives;

use super::cost::Target;
use super::extract::{Problem, Solution};
use super::graph::{EGraph, is_listed};
use super::language::{Kind, Node};
use super::saturate::{Limits, Rules, StopReason, saturate};

/// A sequence of ops of one block, and the op after it.
pub struct Segment {
    /// The ops, in order.
    pub ops: Vec<OpId>,
    next: OpId,
}

/// The segments of a block of up to `length` ops. Ops with regions, effects or several results, unknown ops and
/// annotated ops stay, and end a segment.
pub fn segments(graph: &Graph, block: RegionId, length: usize) -> Vec<Segment> {
    let (mut out, mut ops) = (Vec::new(), Vec::new());
    for op in graph.region_ops(block) {
        let plain = is_plain(graph, op);
        if !ops.is_empty() && (!plain || ops.len() >= length) {
            out.push(Segment { ops: std::mem::take(&mut ops), next: op });
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

/// The result for a segment.
#[derive(Clone, Copy, Debug)]
pub struct SegmentResult {
    /// Cost of the original ops in microseconds, by the model.
    pub before: f64,
    /// Their cost now.
    pub after: f64,
    /// Lower bound over the e-graph.
    pub bound: f64,
    /// Time spent on exact extraction.
    pub solving: Duration,
    /// Number of e-nodes.
    pub nodes: usize,
    /// Why saturation stopped.
    pub stop: StopReason,
}

/// A segment as an e-graph.
struct SegmentGraph {
    graph: EGraph,
    /// Values from outside.
    leaves: Vec<ValueId>,
    classes: IdMap<ValueId, Id>,
    /// The original ops, in order.
    original: Vec<(Id, Node)>,
    /// The existing op with given attributes and operands.
    existing: HashMap<(u32, Vec<ValueId>), OpId>,
}

/// How a segment is optimized.
#[derive(Clone, Copy)]
pub struct SegmentConfig<'a> {
    /// The rules.
    pub rules: &'a Rules,
    /// The cost model.
    pub target: &'a Target,
    /// Limits of saturation.
    pub limits: &'a Limits,
    /// Time limit of exact extraction.
    pub exact: Duration,
    /// Values that must keep every bit.
    pub kept: &'a IdSet<ValueId>,
    /// Alternatives kept per value for a later pass; 1 to choose now.
    pub alternatives: usize,
}

/// Optimizes a segment; leaves it unchanged where nothing is cheaper.
///
/// # Errors
/// When an op does not fit, a bug of a rule.
pub fn optimize(
    rw: &mut Rewriter<'_>,
    segment: &Segment,
    task: &SegmentConfig<'_>,
) -> Result<Option<SegmentResult>, Diagnostic> {
    let SegmentConfig { rules, target, limits, exact, kept, alternatives } = *task;
    let inside: IdSet<OpId> = segment.ops.iter().copied().collect();
    let results = segment.ops.iter().flat_map(|op| rw.graph().op(*op).results.to_vec());
    let roots: Vec<ValueId> = results.filter(|v| rw.graph().uses(*v).iter().any(|u| !inside.contains(&u.op))).collect();
    let Some(mut seg) = SegmentGraph::of(rw.graph(), segment) else { return Ok(None) };
    if roots.is_empty() {
        return Ok(None);
    }
    let before = seg.cost(rw.graph(), segment, &roots, target);
    let kept = seg.classes.iter().filter(|(v, _)| kept.contains(v)).map(|(_, class)| *class).collect();
    let stop = saturate(&mut seg.graph, rules, limits, &kept);
    let ids: Vec<Id> = roots.iter().map(|v| seg.classes[v]).collect();
    let problem = Problem::new(&seg.graph, target, &ids);
    let nodes = problem.size();
    let Some(solution) = problem.solve(&seg.original) else { return Ok(None) };
    let started = Instant::now();
    let (bound, solution) = if exact.is_zero() { (0.0, solution) } else { problem.exact(solution, exact) };
    let solving = started.elapsed();
    let after = solution.cost.min(before);
    if alternatives > 1 {
        seg.write_alternatives(rw, segment, &problem.alternatives(&seg.original, &solution, alternatives), &roots)?;
    } else if solution.cost < before - 1e-6 {
        seg.write(rw, segment, &problem, &solution, &roots)?;
    }
    Ok(Some(SegmentResult { before, after, bound, solving, nodes, stop }))
}

impl SegmentGraph {
    /// `None` where e-graphs cannot hold an op, such as one with tuple operands.
    fn of(graph: &Graph, segment: &Segment) -> Option<SegmentGraph> {
        let mut r = SegmentGraph {
            graph: EGraph::default(),
            leaves: Vec::new(),
            classes: HashMap::default(),
            original: Vec::new(),
            existing: HashMap::default(),
        };
        for op in &segment.ops {
            let data = graph.op(*op);
            let operands: Vec<Id> = data.operands.iter().map(|v| r.class(graph, *v)).collect();
            let id = r.graph.original(graph, *op, &operands)?;
            let form = r.graph.egg.analysis.ops.number(data.def, &data.attrs);
            r.original.push((id, Node { kind: Kind::Op(form), children: operands, scratch_op: None }));
            r.existing.entry((form, data.operands.to_vec())).or_insert(*op);
            for (k, v) in data.results.iter().enumerate() {
                let result = r.graph.result(id, k)?;
                if result != id {
                    let node = Node { kind: Kind::Result(k as u32), children: vec![id], scratch_op: None };
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
        self.original.push((id, Node { kind: Kind::Leaf(number), children: Vec::new(), scratch_op: None }));
        id
    }

    /// The cost of the original ops that the roots need.
    fn cost(&self, graph: &Graph, segment: &Segment, roots: &[ValueId], target: &Target) -> f64 {
        let mut needed: IdSet<ValueId> = roots.iter().copied().collect();
        let mut sum = 0.0;
        for op in segment.ops.iter().rev() {
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

    /// Writes a solution after the segment, redirects all outside uses, and erases dead ops.
    fn write(
        &self,
        rw: &mut Rewriter<'_>,
        segment: &Segment,
        problem: &Problem<'_>,
        solution: &Solution,
        roots: &[ValueId],
    ) -> Result<(), Diagnostic> {
        rw.before(segment.next);
        // The values of each class; several for a tuple.
        let mut values: HashMap<Id, Vec<ValueId>> = HashMap::new();
        for (class, node) in problem.selected(solution) {
            let made = self.values(rw, node, &values)?;
            values.insert(class, made);
        }
        for root in roots {
            rw.replace_uses(*root, values[&self.graph.egg.find(self.classes[root])][0]);
        }
        self.clear(rw, segment);
        Ok(())
    }

    /// Writes several alternatives per class after the segment, as operands of an `of.alternatives`.
    fn write_alternatives(
        &self,
        rw: &mut Rewriter<'_>,
        segment: &Segment,
        classes: &[(Id, Vec<&Node>)],
        roots: &[ValueId],
    ) -> Result<(), Diagnostic> {
        rw.before(segment.next);
        let inside: IdSet<OpId> = segment.ops.iter().copied().collect();
        let outside = |v: &ValueId| rw.graph().uses(*v).iter().filter(|u| !inside.contains(&u.op)).copied().collect();
        let uses: Vec<Vec<of_ir::Use>> = roots.iter().map(outside).collect();
        let mut values: HashMap<Id, Vec<ValueId>> = HashMap::new();
        for (class, nodes) in classes {
            let mut alternatives: Vec<Vec<ValueId>> = Vec::new();
            for node in nodes {
                let made = self.values(rw, node, &values)?;
                if !alternatives.contains(&made) {
                    alternatives.push(made);
                }
            }
            let firsts: Vec<ValueId> = alternatives.iter().map(|w| w[0]).collect();
            let made = match alternatives.as_slice() {
                // Tuples have one alternative: their results are classes of their own.
                [only] => only.clone(),
                _ => vec![rw.create_one(Alternatives {}, &firsts)?],
            };
            values.insert(*class, made);
        }
        for (root, uses) in roots.iter().zip(uses) {
            let value = values[&self.graph.egg.find(self.classes[root])][0];
            uses.iter().for_each(|u| rw.set_operand(u.op, u.operand as usize, value));
        }
        self.clear(rw, segment);
        Ok(())
    }

    /// The values of an e-node from those of its operand classes; several for a tuple.
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

    /// Erases dead ops.
    fn clear(&self, rw: &mut Rewriter<'_>, segment: &Segment) {
        let mut left: BTreeSet<OpId> = segment.ops.iter().copied().collect();
        while let Some(op) = left.pop_last() {
            if rw.graph().op(op).results.iter().all(|v| rw.graph().uses(*v).is_empty()) {
                // Its operands may be dead now. They come earlier.
                let operands: Vec<OpId> =
                    rw.graph().op(op).operands.iter().filter_map(|v| rw.graph().def_op(*v)).collect();
                rw.erase(op);
                left.extend(operands.into_iter().filter(|o| segment.ops.contains(o) && rw.graph().is_live(*o)));
            }
        }
    }

    fn create(&self, rw: &mut Rewriter<'_>, node: &Node, operands: &[ValueId]) -> Result<Vec<ValueId>, Diagnostic> {
        let (Some((def, attrs)), Some(op)) = (self.graph.op_and_attrs(node), node.scratch_op) else {
            return Ok(Vec::new());
        };
        let scratch = self.graph.scratch();
        let made = scratch.op(op);
        let types: Vec<Type> = made.results.iter().map(|v| scratch.ty(*v).clone()).collect();
        rw.set_location(made.loc.clone());
        let op = rw.create_with_types((def, attrs.clone()), operands, &[], types)?;
        Ok(rw.graph().op(op).results.to_vec())
    }
}
