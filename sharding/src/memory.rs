//! Memory of a device: the peak over live values, and the memory limits of the search.
//!
//! Arguments and constants take memory throughout. Other values take memory over their live ranges (see
//! [`crate::liveness`]); ops that are left out take none. The operand that an `of.alternatives` or
//! `of.optimization_barrier` selects lives until the last reader of its result. Where several readers see a value in
//! another layout, they share a copy from the first of them to the last. Copies for one reader are not counted. The next value of a variable
//! takes no memory of its own where nothing reads the variable any more: it is written in its place.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use of_ir::{Graph, ValueDef, ValueId};

use crate::assignment::Assignment;
use crate::candidates::Candidate;
use crate::layout::{self, Layout};
use crate::liveness::{CertainLiveness, Device, Liveness, OpRange, is_resident};
use crate::model::{Model, NodeKind, is_alias, live_values};
use crate::search::{Matrix, MatrixId, Usage};

impl Model<'_> {
    /// Memory usage of labels at the op at this position, in bytes, without [`Model::fixed`].
    ///
    /// It is a lower bound: values that only optional readers need are not counted.
    pub fn memory(&self, at: usize, device: &dyn Device) -> Usage {
        let g = &self.func.graph;
        let liveness = CertainLiveness::of(self, device);
        let kept = |v: ValueId| is_source(g, v) && device.holds_source(v);
        let whole = |v: ValueId| self.transfers(v).map_or(0.0, |t| t.bytes);
        let share = |l: &Layout| if l.is_empty() { 0.0 } else { layout::share(l, &self.shape) };
        let life = |v: ValueId, span: OpRange| device.live_range(v, span, is_resident(g, device, v));
        // Bytes of the whole value that are live at the op.
        let bytes = |v: ValueId| match liveness.spans[v.index()] {
            _ if kept(v) => whole(v),
            Some(span) if self.is_in_place(v, span, &liveness.readers, device) => 0.0,
            Some(span) => whole(v) * life(v, span).at(at),
            None => 0.0,
        };
        let mut usage = Usage::default();
        let mut taken = HashSet::new();
        for (node, kind_of_node) in self.node_kinds.iter().enumerate() {
            let candidates = &self.choices[node].candidates;
            let of: Box<dyn Fn(&Candidate) -> f64> = match kind_of_node {
                NodeKind::Argument(v) => {
                    let bytes = bytes(*v);
                    Box::new(move |c| bytes * share(&c.results[0]))
                }
                // An alias keeps its operand live until its own last reader.
                NodeKind::Op(op) if is_alias(g.op(*op).name()) => {
                    let data = g.op(*op);
                    let end = liveness.spans[data.results[0].index()].map(|(_, end)| end);
                    let mut longer = |v: ValueId| match (liveness.spans[v.index()], end) {
                        (Some((start, _)), Some(end)) if !kept(v) && start <= end && is_resident(g, device, v) => {
                            let more = whole(v) * life(v, (start, end)).at(at) - bytes(v);
                            // Where several aliases may select one value, the first counts it.
                            if more > 0.0 && taken.insert(v) { more } else { 0.0 }
                        }
                        _ => 0.0,
                    };
                    let held: Vec<f64> = data.operands.iter().map(|v| longer(*v)).collect();
                    Box::new(move |c| held.iter().zip(&c.operands).map(|(b, l)| b * share(l)).sum())
                }
                NodeKind::Op(op) => {
                    let counted: Vec<f64> = g.op(*op).results.iter().map(|v| bytes(*v)).collect();
                    Box::new(move |c| counted.iter().zip(&c.results).map(|(b, l)| b * share(l)).sum())
                }
                NodeKind::Shared(_) | NodeKind::Output(_) => Box::new(|_| 0.0),
            };
            usage.nodes.push(candidates.iter().map(of).collect());
        }
        // Copies that several readers share.
        let mut known: HashMap<(MatrixId, u64), Rc<Matrix>> = HashMap::new();
        for (k, e) in self.problem.edges.iter().enumerate() {
            let NodeKind::Shared(v) = self.node_kinds[e.b] else { continue };
            let (Some(t), Some(span)) = (self.transfers(v), liveness.readers[v.index()]) else { continue };
            let size = t.bytes * device.live_range(v, span, false).at(at);
            if size == 0.0 {
                continue;
            }
            let copies = known.entry((e.matrix, size.to_bits())).or_insert_with(|| {
                let Matrix { rows, cols, .. } = *self.problem.interner.matrix(e.matrix);
                let copy = |to: usize| t.router.layouts.get(to).map_or(0.0, |l| size * share(l));
                let of = |from: usize, to: usize| if from == to { 0.0 } else { copy(to) };
                Rc::new(Matrix { rows, cols, data: (0..rows * cols).map(|i| of(i / cols, i % cols)).collect() })
            });
            usage.edges.insert(k, copies.clone());
        }
        usage
    }

    /// Bytes of a device's memory that no label decides: replicated constants.
    pub fn fixed(&self, device: &dyn Device) -> f64 {
        let g = &self.func.graph;
        let constants = g.region_ops(g.entry()).filter(|op| g.op(*op).def.traits().constant);
        let values = constants.flat_map(|op| g.op(op).results.iter().copied());
        let free = values.filter(|v| self.made_by[v.index()].is_none() && device.holds_source(*v));
        free.map(|v| self.transfers(v).map_or(0.0, |t| t.bytes)).sum()
    }

    /// Whether a value that lives from the first of these ops on is written where a variable is that nothing reads any more.
    fn is_in_place(&self, v: ValueId, (made, _): OpRange, readers: &[Option<OpRange>], device: &dyn Device) -> bool {
        let variable = self.next_of[v.index()].filter(|a| device.holds_source(*a));
        variable.is_some_and(|a| readers[a.index()].is_none_or(|(_, last)| last <= made))
    }

    /// Bytes of a value on a device.
    fn local(&self, value: usize, assignment: &Assignment) -> f64 {
        let Some(v) = self.func.graph.value_at(value) else { return 0.0 };
        let share = match &assignment.layouts[value] {
            None => 1.0,
            Some(l) if l.is_empty() => 0.0,
            Some(l) => layout::share(l, &self.shape),
        };
        self.transfers(v).map_or(0.0, |t| t.bytes * share)
    }

    /// Bytes on a device of the copy that the readers of a value share.
    fn copied(&self, value: usize, assignment: &Assignment) -> f64 {
        let (Some(l), Some(v)) = (assignment.shared_copy(self, value), self.func.graph.value_at(value)) else {
            return 0.0;
        };
        self.transfers(v).map_or(0.0, |t| t.bytes * layout::share(l, &self.shape))
    }

    /// The op position of peak memory of a device, and the bytes there.
    pub fn peak(&self, assignment: &Assignment, device: &dyn Device) -> (usize, f64) {
        let g = &self.func.graph;
        let liveness = Liveness::of(self, assignment, device);
        let values = live_values(g);
        let sources = values.iter().filter(|v| is_source(g, **v) && device.holds_source(**v));
        let kept: f64 = sources.map(|v| self.local(v.index(), assignment)).sum();
        let held = values.iter().flat_map(|v| {
            let i = v.index();
            let same = |a: &ValueId| assignment.layouts[a.index()] == assignment.layouts[i];
            let own = |span: &OpRange| {
                !(self.is_in_place(*v, *span, &liveness.readers, device) && self.next_of[i].as_ref().is_some_and(same))
            };
            let made = liveness.spans[i]
                .filter(own)
                .map(|s| (self.local(i, assignment), device.live_range(*v, s, is_resident(g, device, *v))));
            let copy = liveness.readers[i].map(|s| (self.copied(i, assignment), device.live_range(*v, s, false)));
            made.into_iter().chain(copy)
        });
        let (at, most) = liveness.peak(held);
        (at, kept + most)
    }
}

/// Whether a value is an argument of the function or a constant.
fn is_source(g: &Graph, v: ValueId) -> bool {
    match g.def(v) {
        ValueDef::Arg(r, _) => r == g.entry(),
        ValueDef::Result(op, _) => g.op(op).def.traits().constant,
    }
}
