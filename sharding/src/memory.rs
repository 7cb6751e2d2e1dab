//! Memory of a device: which values are alive at once, and what that takes.
//!
//! Arguments and constants take memory all the time, other values from the op that makes them to the last op that reads
//! them, where ops that are left out do neither. What an `of.alternatives` or an `of.optimization_barrier` takes lives until the last reader of
//! its result. What several readers see in another layout than it is made in is a copy, from the first of them to the
//! last; copies for one reader are not counted.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use of_ir::{Graph, OpId, ValueDef, ValueId};

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
    /// Which operand each `of.alternatives` takes, by its position in the arena; 0 for other ops.
    pub taken: Vec<usize>,
    /// How the readers of a value see it, where there are several.
    pub seen: Vec<Option<Layout>>,
}

impl Lying {
    /// Everything everywhere, and the first operand of each `of.alternatives`.
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

/// What a kind of device runs, and what it holds: everything, where it does not say otherwise.
pub trait Device {
    /// Whether it runs an op.
    fn runs(&self, _op: OpId) -> bool {
        true
    }

    /// Whether an argument or a constant lies on it.
    fn keeps(&self, _v: ValueId) -> bool {
        true
    }

    /// How it holds a value that is alive from the first of these ops to the second one; it makes it, or is sent it where it
    /// is first read. It never holds less where that is longer.
    fn life(&self, _v: ValueId, span: Span, _made: bool) -> Life {
        Life::of(1.0, span)
    }
}

/// The positions of two ops, the first and the last.
pub type Span = (usize, usize);

/// How a device holds a value: shares of it, each from op to op.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Life(pub [(f64, Span); 2]);

impl Life {
    /// One share.
    pub fn of(share: f64, span: Span) -> Life {
        Life([(share, span), (0.0, span)])
    }

    /// What of a value is there at an op.
    fn at(&self, at: usize) -> f64 {
        self.0.iter().filter(|(_, (from, to))| (*from..=*to).contains(&at)).map(|(share, _)| share).sum()
    }
}

/// A device that runs all of a function.
pub struct Whole;

impl Device for Whole {}

/// `span` and one more op.
fn with(span: &mut Option<Span>, other: Span) {
    *span = Some(span.map_or(other, |(from, to)| (from.min(other.0), to.max(other.1))));
}

/// `span`, if there is one, as far as to an op.
fn until(span: &mut Option<Span>, end: Option<usize>) {
    if let (Some((_, to)), Some(end)) = (span, end) {
        *to = end.max(*to);
    }
}

/// The earlier of two ops, where there are any.
fn earlier(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    a.into_iter().chain(b).min()
}

/// What is alive at which op on a device, by the positions of values in the arena.
struct Lives {
    /// The number of ops.
    ops: usize,
    /// The op that makes a value or reads it first on this device, and the last one that reads it there; none of sources
    /// that are kept.
    spans: Vec<Option<Span>>,
    /// For each value its first and its last reader on this device.
    readers: Vec<Option<Span>>,
}

impl Lives {
    fn of(model: &Model<'_>, lying: &Lying, device: &dyn Device) -> Lives {
        let g = &model.func.graph;
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        // Which values are read at all, from where to where on this device, and where first on another one.
        let mut read = vec![false; g.value_slots()];
        let mut here: Vec<Option<Span>> = vec![None; g.value_slots()];
        let mut away: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut spans = vec![None; g.value_slots()];
        let mut readers: Vec<Option<Span>> = vec![None; g.value_slots()];
        for (at, op) in order.iter().enumerate().rev() {
            let data = g.op(*op);
            if model.may_be_left_out(*op) && data.results.iter().all(|v| !read[v.index()]) {
                continue;
            }
            if is_alias(data.name()) {
                let taken = data.operands[lying.taken[op.index()]];
                let result = data.results[0].index();
                read[taken.index()] |= read[result];
                if let Some(span) = here[result] {
                    with(&mut here[taken.index()], span);
                }
                away[taken.index()] = earlier(away[taken.index()], away[result]);
                continue;
            }
            for v in data.operands.iter().copied().chain(g.captured(*op)) {
                read[v.index()] = true;
                // Results stay where they are made.
                if data.def.traits().terminator {
                    if lies(g, device, v) {
                        with(&mut here[v.index()], (at, at));
                    }
                } else if device.runs(*op) {
                    with(&mut here[v.index()], (at, at));
                    with(&mut readers[v.index()], (at, at));
                } else {
                    away[v.index()] = Some(at);
                }
            }
            if data.def.traits().constant {
                continue;
            }
            for v in &data.results {
                let own = here[v.index()];
                // What others read is there until it is sent, right before they do.
                let end = own.map(|(_, end)| end).max(away[v.index()]);
                let made = device.runs(*op).then(|| (at, end.unwrap_or(at)));
                spans[v.index()] = made.or(own);
                if made.is_some() {
                    until(&mut readers[v.index()], away[v.index()]);
                }
            }
        }
        for v in g.args() {
            if device.keeps(*v) {
                until(&mut readers[v.index()], away[v.index()]);
            } else {
                spans[v.index()] = here[v.index()];
            }
        }
        Lives { ops: order.len(), spans, readers }
    }

    /// The position of the op at which most is held, and how much, where these are the bytes that live so.
    fn peak(&self, held: impl Iterator<Item = (f64, Life)>) -> (usize, f64) {
        let mut change = vec![0.0; self.ops + 1];
        for (bytes, Life(shares)) in held {
            for (share, (from, to)) in shares {
                change[from] += bytes * share;
                change[to + 1] -= bytes * share;
            }
        }
        let (mut sum, mut best) = (0.0, (0, 0.0));
        for (i, c) in change.iter().enumerate() {
            sum += c;
            if sum > best.1 {
                best = (i, sum);
            }
        }
        best
    }
}

/// Whether a value lies on a device where it comes from.
fn lies(g: &Graph, device: &dyn Device, v: ValueId) -> bool {
    g.def_op(v).map_or_else(|| device.keeps(v), |op| device.runs(op))
}

/// What of the lives of values on a device is certain, by their positions in the arena.
struct Certain {
    /// From the op that makes a value, or reads it first on this device in any case, to the last one that reads it there in
    /// any case; where all its readers may be left out and are on this device, to the first of them, as one is not if the
    /// value is made at all.
    spans: Vec<Option<Span>>,
    /// The first and the last op that read each in any case.
    readers: Vec<Option<Span>>,
}

impl Model<'_> {
    /// Bytes of a device's memory that labels take at the op at this position, besides what is [`Model::fixed`].
    ///
    /// No choice takes less than its labels say: what only some readers need, which may all be left out, is not counted.
    pub fn memory(&self, at: usize, device: &dyn Device) -> Usage {
        let g = &self.func.graph;
        let lives = self.certain(device);
        let kept = |v: ValueId| is_source(g, v) && device.keeps(v);
        let whole = |v: ValueId| self.transfers(v).map_or(0.0, |t| t.bytes);
        let share = |l: &Layout| if l.is_empty() { 0.0 } else { layout::share(l, &self.shape) };
        let life = |v: ValueId, span: Span| device.life(v, span, lies(g, device, v));
        // Bytes of the whole value that are there.
        let bytes = |v: ValueId| match lives.spans[v.index()] {
            _ if kept(v) => whole(v),
            Some(span) => whole(v) * life(v, span).at(at),
            None => 0.0,
        };
        let mut usage = Usage::default();
        let mut taken = HashSet::new();
        for (node, subject) in self.subjects.iter().enumerate() {
            let candidates = &self.choices[node].candidates;
            let of: Box<dyn Fn(&Candidate) -> f64> = match subject {
                Subject::Argument(v) => {
                    let bytes = bytes(*v);
                    Box::new(move |c| bytes * share(&c.results[0]))
                }
                // It keeps what it takes for longer than anybody does in any case.
                Subject::Op(op) if is_alias(g.op(*op).name()) => {
                    let data = g.op(*op);
                    let end = lives.spans[data.results[0].index()].map(|(_, end)| end);
                    let mut longer = |v: ValueId| match (lives.spans[v.index()], end) {
                        (Some((start, _)), Some(end)) if !kept(v) && start <= end && lies(g, device, v) => {
                            let more = whole(v) * life(v, (start, end)).at(at) - bytes(v);
                            // Of several that may take one value it is counted for the first.
                            if more > 0.0 && taken.insert(v) { more } else { 0.0 }
                        }
                        _ => 0.0,
                    };
                    let held: Vec<f64> = data.operands.iter().map(|v| longer(*v)).collect();
                    Box::new(move |c| held.iter().zip(&c.operands).map(|(b, l)| b * share(l)).sum())
                }
                Subject::Op(op) => {
                    let counted: Vec<f64> = g.op(*op).results.iter().map(|v| bytes(*v)).collect();
                    Box::new(move |c| counted.iter().zip(&c.results).map(|(b, l)| b * share(l)).sum())
                }
                Subject::Shared(_) | Subject::Output(_) => Box::new(|_| 0.0),
            };
            usage.nodes.push(candidates.iter().map(of).collect());
        }
        // Copies of what several readers see in another layout.
        let mut known: HashMap<(Table, u64), Rc<Matrix>> = HashMap::new();
        for (k, e) in self.problem.edges.iter().enumerate() {
            let Subject::Shared(v) = self.subjects[e.b] else { continue };
            let (Some(t), Some(span)) = (self.transfers(v), lives.readers[v.index()]) else { continue };
            let size = t.bytes * device.life(v, span, false).at(at);
            if size == 0.0 {
                continue;
            }
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
    pub fn fixed(&self, device: &dyn Device) -> f64 {
        let g = &self.func.graph;
        let constants = g.region_ops(g.entry()).filter(|op| g.op(*op).def.traits().constant);
        let values = constants.flat_map(|op| g.op(op).results.iter().copied());
        let free = values.filter(|v| self.made_by[v.index()].is_none() && device.keeps(*v));
        free.map(|v| self.transfers(v).map_or(0.0, |t| t.bytes)).sum()
    }

    /// What of the lives of values holds however a function is run.
    fn certain(&self, device: &dyn Device) -> Certain {
        let g = &self.func.graph;
        let order: Vec<OpId> = g.region_ops(g.entry()).collect();
        // Readers of each value on this device: those that are certain, and the one that comes first.
        let mut surely: Vec<Option<Span>> = vec![None; g.value_slots()];
        let mut first: Vec<Option<usize>> = vec![None; g.value_slots()];
        // Whether others read it too, and the first that does so in any case.
        let mut elsewhere = vec![false; g.value_slots()];
        let mut away: Vec<Option<usize>> = vec![None; g.value_slots()];
        let mut out = Certain { spans: vec![None; g.value_slots()], readers: vec![None; g.value_slots()] };
        for (at, op) in order.iter().enumerate().rev() {
            let data = g.op(*op);
            let (optional, runs) = (self.may_be_left_out(*op), device.runs(*op));
            for v in &data.results {
                let own = surely[v.index()];
                let one = first[v.index()].filter(|_| optional && !elsewhere[v.index()]);
                let end = own.map(|(_, end)| end).max(away[v.index()]);
                let made = runs.then(|| (at, end.or(one).unwrap_or(at)));
                out.spans[v.index()] = made.or(own);
                if runs {
                    until(&mut out.readers[v.index()], away[v.index()]);
                }
            }
            let (either, terminator) = (is_alias(data.name()), data.def.traits().terminator);
            for v in data.operands.iter().copied().chain(g.captured(*op)) {
                let here = if terminator { lies(g, device, v) } else { runs };
                if !here {
                    elsewhere[v.index()] = true;
                    away[v.index()] = if either || optional || terminator { away[v.index()] } else { Some(at) };
                    continue;
                }
                if !either && !optional {
                    with(&mut surely[v.index()], (at, at));
                    if !terminator {
                        with(&mut out.readers[v.index()], (at, at));
                    }
                }
                let result = if either { out.spans[data.results[0].index()] } else { None };
                let end = result.map_or(at, |(_, end)| end);
                first[v.index()] = Some(first[v.index()].map_or(end, |f: usize| f.min(end)));
            }
        }
        for v in g.args() {
            out.spans[v.index()] = surely[v.index()];
            if device.keeps(*v) {
                until(&mut out.readers[v.index()], away[v.index()]);
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
    pub fn peak(&self, lying: &Lying, device: &dyn Device) -> (usize, f64) {
        let g = &self.func.graph;
        let lives = Lives::of(self, lying, device);
        let values = live_values(g);
        let sources = values.iter().filter(|v| is_source(g, **v) && device.keeps(**v));
        let kept: f64 = sources.map(|v| self.local(v.index(), lying)).sum();
        let held = values.iter().flat_map(|v| {
            let i = v.index();
            let made = lives.spans[i].map(|s| (self.local(i, lying), device.life(*v, s, lies(g, device, *v))));
            let copy = lives.readers[i].map(|s| (self.copied(i, lying), device.life(*v, s, false)));
            made.into_iter().chain(copy)
        });
        let (at, most) = lives.peak(held);
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
