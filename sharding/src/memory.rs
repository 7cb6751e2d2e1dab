//! Memory of a device: which values are alive at once, and what that takes.
//!
//! Arguments and constants take memory all the time, other values from the op that makes them to the last op that reads
//! them, where ops that are left out do neither. What an `of.either` or an `of.hold` takes lives until the last reader of
//! its result. Copies that are transferred to be read are not counted.

use of_ir::{OpId, ValueDef, ValueId};

use crate::candidates::Candidate;
use crate::layout::{self, Layout};
use crate::model::{Model, Subject, is_alias, live_values};

/// How a function is run: how each value lies, `None` for everywhere, and which operand each `of.either` takes.
pub struct Lying<'a> {
    /// By position of the value in the arena; empty for what is not made.
    pub layouts: &'a [Option<Layout>],
    /// By position of the op in the arena.
    pub taken: &'a [usize],
}

/// How much of what is computed is alive at once.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Alive {
    /// The share of a value that is made, as where a step is cut into microbatches; inputs and constants are whole.
    pub share: f64,
    /// Whether a choice must fit as a whole, and not only by what its labels say.
    pub whole: bool,
}

/// All of it.
pub const ALL: Alive = Alive { share: 1.0, whole: true };

/// What is alive at which op.
struct Lives {
    /// Ops of the function in order.
    order: Vec<OpId>,
    /// For each value made by an op that is run, by its position in the arena: the op that makes it and the last one that
    /// reads it.
    spans: Vec<Option<(usize, usize)>>,
}

impl Lives {
    fn of(model: &Model<'_>, lying: &Lying<'_>) -> Lives {
        let g = &model.func.graph;
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        // The last reader of each value; a value that is not read lives while it is made.
        let mut last: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut spans = vec![None; g.value_slots()];
        for (at, op) in order.iter().enumerate().rev() {
            let data = g.op(*op);
            if model.may_be_left_out(*op) && data.results.iter().all(|v| last[v.index()].is_none()) {
                continue;
            }
            if is_alias(data.name()) {
                let end = last[data.results[0].index()];
                let taken = data.operands[lying.taken[op.index()]];
                last[taken.index()] = last[taken.index()].max(end);
                continue;
            }
            for v in data.operands.iter().copied().chain(crate::model::captured(g, *op)) {
                last[v.index()] = last[v.index()].max(Some(at));
            }
            if !data.def.traits().constant {
                data.results.iter().for_each(|v| spans[v.index()] = Some((at, last[v.index()].unwrap_or(at))));
            }
        }
        Lives { order, spans }
    }

    /// The position of the op at which most is alive.
    fn peak(&self, size: &dyn Fn(usize) -> f64) -> usize {
        let mut change = vec![0.0; self.order.len() + 1];
        for (i, span) in self.spans.iter().enumerate() {
            if let Some((from, to)) = span {
                change[*from] += size(i);
                change[*to + 1] -= size(i);
            }
        }
        let (mut sum, mut best) = (0.0, (0.0, 0));
        for (i, c) in change.iter().enumerate() {
            sum += c;
            if sum > best.0 {
                best = (sum, i);
            }
        }
        best.1
    }
}

impl Model<'_> {
    /// Bytes of a device's memory that each label of each node takes at the op at which most is taken where it is run so;
    /// of what is made only a share is alive.
    ///
    /// No choice takes less than its labels say: what only some readers need, which may all be left out, is not counted.
    pub fn memory(&self, lying: &Lying<'_>, alive_share: f64) -> Vec<Vec<f64>> {
        let g = &self.func.graph;
        let lives = Lives::of(self, lying);
        let peak = lives.peak(&|i| self.local(i, lying));
        let ends = self.certain_ends(&lives.order);
        let mut at = vec![0usize; g.op_slots()];
        lives.order.iter().enumerate().for_each(|(i, op)| at[op.index()] = i);
        let resident = |v: ValueId| g.def_op(v).is_none_or(|op| g.op(op).def.traits().constant);
        let start = |v: ValueId| g.def_op(v).map_or(0, |op| at[op.index()]);
        let alive = |v: ValueId| resident(v) || (start(v)..=ends[v.index()]).contains(&peak);
        let mut memory = Vec::with_capacity(self.subjects.len());
        for (node, subject) in self.subjects.iter().enumerate() {
            let candidates = &self.choices[node].candidates;
            let share = |l: &Layout| if l.is_empty() { 0.0 } else { layout::share(l, &self.shape) };
            let part = |v: ValueId| if resident(v) { 1.0 } else { alive_share };
            let bytes = |v: ValueId| self.transfers(v).map_or(0.0, |t| t.bytes * part(v));
            let of: Box<dyn Fn(&Candidate) -> f64> = match subject {
                Subject::Argument(v) => Box::new(move |c| bytes(*v) * share(&c.results[0])),
                // It keeps what it takes, where nobody else does.
                Subject::Op(op) if is_alias(g.op(*op).name()) => {
                    let data = g.op(*op);
                    let until = ends[data.results[0].index()];
                    let kept = move |v: ValueId| start(v) <= peak && peak <= until && !alive(v);
                    let held = data.operands.iter().map(|v| if kept(*v) { bytes(*v) } else { 0.0 });
                    let held: Vec<f64> = held.collect();
                    Box::new(move |c| held.iter().zip(&c.operands).map(|(b, l)| b * share(l)).sum())
                }
                Subject::Op(op) => {
                    let results = g.op(*op).results.iter().enumerate().filter(|(_, v)| alive(**v));
                    let counted: Vec<(usize, f64)> = results.map(|(i, v)| (i, bytes(*v))).collect();
                    Box::new(move |c| counted.iter().map(|(i, b)| b * share(&c.results[*i])).sum())
                }
                Subject::Shared(_) | Subject::Output(_) => Box::new(|_| 0.0),
            };
            memory.push(candidates.iter().map(of).collect());
        }
        memory
    }

    /// For each value the last op that reads it in any case; where all may be left out, the first of them, as one is not
    /// if the value is made at all.
    fn certain_ends(&self, order: &[OpId]) -> Vec<usize> {
        let g = &self.func.graph;
        let mut certain: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut first: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut ends = vec![0; g.value_slots()];
        for (at, op) in order.iter().enumerate().rev() {
            let data = g.op(*op);
            let optional = self.may_be_left_out(*op);
            for v in &data.results {
                let read = certain[v.index()].or(if optional { first[v.index()] } else { None });
                ends[v.index()] = read.unwrap_or(at);
            }
            let either = is_alias(data.name());
            for v in data.operands.iter().copied().chain(crate::model::captured(g, *op)) {
                let until = if either { ends[data.results[0].index()] } else { at };
                if !either && !optional {
                    certain[v.index()] = certain[v.index()].max(Some(at));
                }
                first[v.index()] = Some(first[v.index()].map_or(until, |f: usize| f.min(until)));
            }
        }
        ends
    }

    /// Bytes of a value on a device.
    fn local(&self, value: usize, lying: &Lying<'_>) -> f64 {
        let Some(v) = self.func.graph.value_at(value) else { return 0.0 };
        let share = match &lying.layouts[value] {
            None => 1.0,
            Some(l) if l.is_empty() => 0.0,
            Some(l) => layout::share(l, &self.shape),
        };
        self.transfers(v).map_or(0.0, |t| t.bytes * share)
    }

    /// Bytes that a device needs when most is taken.
    pub fn peak(&self, lying: &Lying<'_>) -> f64 {
        self.peak_of(lying, &|_, _| 1.0)
    }

    /// The same where it holds a share of each value, by the ops that make it and that read it last; there are none for
    /// inputs and constants.
    pub fn peak_of(&self, lying: &Lying<'_>, share: &dyn Fn(ValueId, Option<(usize, usize)>) -> f64) -> f64 {
        let g = &self.func.graph;
        let lives = Lives::of(self, lying);
        let size = |v: ValueId| self.local(v.index(), lying) * share(v, lives.spans[v.index()]);
        let peak = lives.peak(&|i| g.value_at(i).map_or(0.0, size));
        let alive = |v: &ValueId| match g.def(*v) {
            ValueDef::Arg(r, _) => r == g.entry(),
            ValueDef::Result(op, _) if g.op(op).def.traits().constant => true,
            ValueDef::Result(..) => lives.spans[v.index()].is_some_and(|(from, to)| (from..=to).contains(&peak)),
        };
        live_values(g).into_iter().filter(alive).map(size).sum()
    }
}
