//! Memory of a device: which values are alive at once, and what that takes.
//!
//! Arguments and constants take memory all the time, other values from the op that makes them to the last op that reads
//! them, where ops that are left out do neither. What an `of.either` or an `of.hold` takes lives until the last reader of
//! its result. What several readers see in another layout than it is made in is a copy, from the first of them to the
//! last; copies for one reader are not counted.

use std::collections::HashMap;
use std::rc::Rc;

use of_ir::{OpId, ValueDef, ValueId};

use crate::candidates::Candidate;
use crate::layout::{self, Layout};
use crate::model::{Model, Subject, is_alias, live_values};
use crate::search::{Matrix, Table, Usage};

/// How a function is run.
#[derive(Clone, PartialEq, Debug)]
pub struct Lying {
    /// How each value lies where it is made, by its position in the arena: `None` for everywhere, empty for what is left
    /// out.
    pub layouts: Vec<Option<Layout>>,
    /// Which operand each `of.either` takes, by its position in the arena; 0 for other ops.
    pub taken: Vec<usize>,
    /// How the readers of a value see it, where there are several.
    pub seen: Vec<Option<Layout>>,
}

impl Lying {
    /// Everything everywhere, and the first operand of each `of.either`.
    pub fn everywhere(model: &Model<'_>) -> Lying {
        let g = &model.func.graph;
        let none = vec![None; g.value_slots()];
        Lying { layouts: none.clone(), taken: vec![0; g.op_slots()], seen: none }
    }

    /// As these labels of the nodes say.
    pub fn of(model: &Model<'_>, labels: &[usize]) -> Lying {
        let mut out = Lying::everywhere(model);
        let made =
            |(node, result): &(usize, usize)| model.choices[*node].candidates[labels[*node]].results[*result].clone();
        out.layouts = model.made_by.iter().map(|m| m.as_ref().map(made)).collect();
        for ((subject, choices), label) in model.subjects.iter().zip(&model.choices).zip(labels) {
            let chosen = &choices.candidates[*label];
            match subject {
                Subject::Shared(v) => out.seen[v.index()] = Some(chosen.results[0].clone()),
                Subject::Op(op) if is_alias(model.func.graph.op(*op).name()) => {
                    out.taken[op.index()] = chosen.operands.iter().position(|l| !l.is_empty()).unwrap_or(0);
                }
                _ => {}
            }
        }
        out
    }

    /// How a copy lies that the readers of a value share.
    fn copy(&self, model: &Model<'_>, value: usize) -> Option<&Layout> {
        let seen = self.seen[value].as_ref().filter(|l| !l.is_empty())?;
        let made = self.layouts[value].clone().unwrap_or_else(|| model.broadcast());
        (*seen != made).then_some(seen)
    }
}

/// The share of a value that a device holds while it is alive, by the ops that make it and that read it last; there are none
/// for inputs and constants. It does not fall where a value lives longer.
pub type Held<'a> = dyn Fn(ValueId, Option<(usize, usize)>) -> f64 + 'a;

/// All of it.
pub const ALL: &Held<'static> = &|_, _| 1.0;

/// What is alive at which op.
struct Lives {
    /// Ops of the function in order.
    order: Vec<OpId>,
    /// For each value made by an op that is run, by its position in the arena: the op that makes it and the last one that
    /// reads it.
    spans: Vec<Option<(usize, usize)>>,
    /// For each value its first and its last reader.
    readers: Vec<Option<(usize, usize)>>,
}

impl Lives {
    fn of(model: &Model<'_>, lying: &Lying) -> Lives {
        let g = &model.func.graph;
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        // The last reader of each value; a value that is not read lives while it is made.
        let mut last: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut spans = vec![None; g.value_slots()];
        let mut readers: Vec<Option<(usize, usize)>> = vec![None; g.value_slots()];
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
                if !data.def.traits().terminator {
                    readers[v.index()] = Some((at, readers[v.index()].map_or(at, |(_, end)| end)));
                }
            }
            if !data.def.traits().constant {
                data.results.iter().for_each(|v| spans[v.index()] = Some((at, last[v.index()].unwrap_or(at))));
            }
        }
        Lives { order, spans, readers }
    }

    /// The position of the op at which most is alive, where values and copies have these sizes.
    fn peak(&self, size: &dyn Fn(usize) -> f64, copied: &dyn Fn(usize) -> f64) -> usize {
        let mut change = vec![0.0; self.order.len() + 1];
        let mut add = |span: &Option<(usize, usize)>, bytes: f64| {
            if let Some((from, to)) = span {
                change[*from] += bytes;
                change[*to + 1] -= bytes;
            }
        };
        for (i, (span, readers)) in self.spans.iter().zip(&self.readers).enumerate() {
            add(span, size(i));
            add(readers, copied(i));
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

/// What of the lives of values is certain, by their positions in the arena.
struct Certain {
    /// The last op that reads each in any case; where all may be left out, the first of them, as one is not if the value is
    /// made at all.
    ends: Vec<usize>,
    /// The first and the last op that read each in any case.
    readers: Vec<Option<(usize, usize)>>,
}

impl Model<'_> {
    /// Bytes of a device's memory that labels take at the op at this position, besides what is [`Model::fixed`].
    ///
    /// No choice takes less than its labels say: what only some readers need, which may all be left out, is not counted.
    pub fn memory(&self, at: usize, held: &Held<'_>) -> Usage {
        let g = &self.func.graph;
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        let lives = self.certain(&order);
        let mut position = vec![0usize; g.op_slots()];
        order.iter().enumerate().for_each(|(i, op)| position[op.index()] = i);
        let resident = |v: ValueId| g.def_op(v).is_none_or(|op| g.op(op).def.traits().constant);
        let start = |v: ValueId| g.def_op(v).map_or(0, |op| position[op.index()]);
        let alive = |v: ValueId| resident(v) || (start(v)..=lives.ends[v.index()]).contains(&at);
        let share = |l: &Layout| if l.is_empty() { 0.0 } else { layout::share(l, &self.shape) };
        let until = |v: ValueId, end: usize| {
            let part = held(v, if resident(v) { None } else { Some((start(v), end)) });
            self.transfers(v).map_or(0.0, |t| t.bytes * part)
        };
        let bytes = |v: ValueId| until(v, lives.ends[v.index()]);
        let mut usage = Usage::default();
        for (node, subject) in self.subjects.iter().enumerate() {
            let candidates = &self.choices[node].candidates;
            let of: Box<dyn Fn(&Candidate) -> f64> = match subject {
                Subject::Argument(v) => Box::new(move |c| bytes(*v) * share(&c.results[0])),
                // It keeps what it takes, where nobody else does.
                Subject::Op(op) if is_alias(g.op(*op).name()) => {
                    let data = g.op(*op);
                    let end = lives.ends[data.results[0].index()];
                    let kept = |v: ValueId| start(v) <= at && at <= end && !alive(v);
                    let held = data.operands.iter().map(|v| if kept(*v) { until(*v, end) } else { 0.0 });
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
            usage.nodes.push(candidates.iter().map(of).collect());
        }
        // Copies of what several readers see in another layout.
        let mut known: HashMap<(Table, u64), Rc<Matrix>> = HashMap::new();
        for (k, e) in self.problem.edges.iter().enumerate() {
            let Subject::Shared(v) = self.subjects[e.b] else { continue };
            let Some(t) = self.transfers(v).filter(|_| within(lives.readers[v.index()], at)) else { continue };
            let size = bytes(v);
            let copies = known.entry((e.matrix, size.to_bits())).or_insert_with(|| {
                let Matrix { rows, cols, .. } = *self.problem.tables.matrix(e.matrix);
                let copy = |to: usize| t.router.layouts.get(to).map_or(0.0, |l| size * share(l));
                let of = |from: usize, to: usize| if from == to { 0.0 } else { copy(to) };
                Rc::new(Matrix { rows, cols, data: (0..rows * cols).map(|i| of(i / cols, i % cols)).collect() })
            });
            usage.edges.insert(k, copies.clone());
        }
        usage
    }

    /// Bytes of a device's memory that no label says: constants that lie everywhere.
    pub fn fixed(&self, held: &Held<'_>) -> f64 {
        let g = &self.func.graph;
        let constants = g.region_ops(g.entry()).filter(|op| g.op(*op).def.traits().constant);
        let values = constants.flat_map(|op| g.op(op).results.iter().copied());
        let free = values.filter(|v| self.made_by[v.index()].is_none());
        free.map(|v| self.transfers(v).map_or(0.0, |t| t.bytes * held(v, None))).sum()
    }

    /// What of the lives of values holds however a function is run.
    fn certain(&self, order: &[OpId]) -> Certain {
        let g = &self.func.graph;
        let mut last: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut first: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut out = Certain { ends: vec![0; g.value_slots()], readers: vec![None; g.value_slots()] };
        for (at, op) in order.iter().enumerate().rev() {
            let data = g.op(*op);
            let optional = self.may_be_left_out(*op);
            for v in &data.results {
                let read = last[v.index()].or(if optional { first[v.index()] } else { None });
                out.ends[v.index()] = read.unwrap_or(at);
            }
            let either = is_alias(data.name());
            for v in data.operands.iter().copied().chain(crate::model::captured(g, *op)) {
                let until = if either { out.ends[data.results[0].index()] } else { at };
                if !either && !optional {
                    last[v.index()] = last[v.index()].max(Some(at));
                    if !data.def.traits().terminator {
                        let readers = &mut out.readers[v.index()];
                        *readers = Some((at, readers.map_or(at, |(_, end)| end)));
                    }
                }
                first[v.index()] = Some(first[v.index()].map_or(until, |f: usize| f.min(until)));
            }
        }
        out
    }

    /// Bytes of a value on a device.
    fn local(&self, value: usize, lying: &Lying) -> f64 {
        let Some(v) = self.func.graph.value_at(value) else { return 0.0 };
        let share = match &lying.layouts[value] {
            None => 1.0,
            Some(l) if l.is_empty() => 0.0,
            Some(l) => layout::share(l, &self.shape),
        };
        self.transfers(v).map_or(0.0, |t| t.bytes * share)
    }

    /// Bytes on a device of the copy that the readers of a value share.
    fn copied(&self, value: usize, lying: &Lying) -> f64 {
        let (Some(l), Some(v)) = (lying.copy(self, value), self.func.graph.value_at(value)) else { return 0.0 };
        self.transfers(v).map_or(0.0, |t| t.bytes * layout::share(l, &self.shape))
    }

    /// Where a device needs most memory, by the position of an op, and how many bytes it needs there.
    pub fn peak(&self, lying: &Lying, held: &Held<'_>) -> (usize, f64) {
        let g = &self.func.graph;
        let lives = Lives::of(self, lying);
        let size = |v: ValueId| self.local(v.index(), lying) * held(v, lives.spans[v.index()]);
        let copied = |v: ValueId| self.copied(v.index(), lying) * held(v, lives.spans[v.index()]);
        let peak = lives.peak(&|i| g.value_at(i).map_or(0.0, size), &|i| g.value_at(i).map_or(0.0, copied));
        let alive = |v: &ValueId| match g.def(*v) {
            ValueDef::Arg(r, _) => r == g.entry(),
            ValueDef::Result(op, _) if g.op(op).def.traits().constant => true,
            ValueDef::Result(..) => within(lives.spans[v.index()], peak),
        };
        let read = |v: &ValueId| within(lives.readers[v.index()], peak);
        let values = live_values(g);
        let made: f64 = values.iter().copied().filter(alive).map(size).sum();
        (peak, made + values.into_iter().filter(read).map(copied).sum::<f64>())
    }
}

fn within(span: Option<(usize, usize)>, at: usize) -> bool {
    span.is_some_and(|(from, to)| (from..=to).contains(&at))
}
