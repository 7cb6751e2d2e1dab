//! Microbatches and stages in the graph: a step is cut into turns, each op becomes one op a turn, and what one stage needs
//! of another is an `of.place` from mesh to mesh.
//!
//! Microbatches are a mesh axis in time. Data is split along it, parameters are whole; how everything else lies there is
//! searched as on any mesh. Then all turns are written side by side: what is split or partial along that axis is made once a
//! turn, what is whole once. Partial values, such as gradients of parameters, are combined turn by turn; nothing else
//! may pass between turns.
//!
//! The order of the ops is the schedule: each rank does its own in the order in which they stand. Forward and backward
//! turns alternate as soon as a stage may (1F1B: Narayanan et al., "PipeDream", 2019), and a transfer stands right
//! before the turn that needs it. Ranks meet in the order of the graph, so no order can deadlock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use of_diag::{Code, Diagnostic};
use of_ir::{Attr, Func, Graph, NdSbp, OpId, PartialKind, Rewriter, Sbp, TensorType, Type, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::{Place, TURNS_INPUTS, TURNS_OUTPUTS};
use of_ops::elementwise::{Add, Max, Min, Mul};
use of_ops::structural::Constant;
use of_ops::training::CARRIED;

use crate::cuts::Phases;
use crate::decide;
use crate::local::make_part;
use crate::mesh::{MeshAxis, MeshSpec};
use crate::model::{Model, Subject};
use crate::search::Effort;
use crate::stages::Staged;

/// When a value is there, where a step is cut into turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spread {
    /// A part of it in each turn.
    Cut,
    /// A part of a sum, of its whole size, in each turn.
    Summed,
    /// Made once, before the turns, and read in each of them.
    EveryTurn,
    /// Of its whole size between the ops that make and read it.
    Once,
}

/// How everything lies along the axis of turns.
pub struct Microbatches {
    count: usize,
    /// By position in the arena of values; whole where nothing is said.
    values: Vec<Sbp>,
    /// What ops read.
    asked: HashMap<(OpId, usize), Sbp>,
}

impl Microbatches {
    /// One turn, in which everything is.
    pub fn one(func: &Func) -> Microbatches {
        Microbatches { count: 1, values: vec![Sbp::Broadcast; func.graph.value_slots()], asked: HashMap::new() }
    }

    /// The turns of `count` microbatches: inputs that no output carries on and that are as long as the first such one are
    /// cut along their first axis, or where that is not possible the first one alone.
    ///
    /// # Errors
    /// When that extent does not divide, or turns need of one another what is no partial value.
    pub fn of(func: &Func, count: usize) -> Result<Microbatches, Diagnostic> {
        if count <= 1 {
            return Ok(Microbatches::one(func));
        }
        let g = &func.graph;
        let error = |what: String| Diagnostic::error(Code::SBP, func.loc.clone(), what);
        let carried: Vec<i64> = func.attrs.typed(CARRIED).unwrap_or_default();
        let data = |i: usize| !carried.contains(&(i as i64));
        let first = |v: &ValueId| g.ty(*v).as_tensor().and_then(|t| t.fixed_dims()?.first().copied());
        let extent = g.args().iter().enumerate().filter(|(i, _)| data(*i)).find_map(|(_, v)| first(v));
        let extent = extent.ok_or_else(|| error("there is no input to cut into microbatches".into()))?;
        if extent % count != 0 {
            return Err(error(format!("a batch of {extent} is not cut into {count} equal microbatches")));
        }
        let mesh = MeshSpec {
            device: "turns".into(),
            memory: 1e30,
            bandwidth: 1e12,
            caches: Vec::new(),
            overhead: 0.0,
            cores: None,
            flops: [("other".to_string(), 1e12)].into_iter().collect(),
            pointwise: None,
            axes: vec![MeshAxis { devices: count, bandwidth: 1e3, latency: 1e-3, short: Vec::new() }],
        };
        let as_long: Vec<ValueId> = g.args().iter().enumerate().filter(|(i, _)| data(*i)).map(|(_, v)| *v).collect();
        let as_long: Vec<ValueId> = as_long.into_iter().filter(|v| first(v) == Some(extent)).collect();
        let cut = |sources: &[ValueId]| {
            let mut own = func.clone();
            let mut rw = Rewriter::new(&mut own.graph, "turns");
            for v in g.args() {
                if let Type::Tensor(t) = rw.graph().ty(*v).clone() {
                    let how = if sources.contains(v) { Sbp::Split(0) } else { Sbp::Broadcast };
                    let sbp = NdSbp { mesh: "turns".into(), axes: [how].into_iter().collect() };
                    rw.set_type(*v, Type::Tensor(TensorType { sbp: Some(sbp), ..t }));
                }
            }
            own
        };
        // A weight may happen to be as long as the batch: where all that is as long is not cut, the first alone may be.
        let (own, first_alone) = (cut(&as_long), cut(&as_long[..as_long.len().min(1)]));
        let one = |d: of_diag::Diagnostics| d.0.into_iter().next().unwrap_or_else(|| error("it has no turns".into()));
        let combined = |from: &crate::Layout, to: &crate::Layout| {
            from == to || matches!((from[0], to[0]), (Sbp::Partial(_), Sbp::Broadcast))
        };
        let mut model = Model::limited(&own, &mesh, &combined).map_err(one)?;
        let found_in = |model: &Model<'_>| {
            decide::decide(model, mesh.memory, &Effort::default()).ok().filter(|d| d.cost.is_finite())
        };
        let mut found = found_in(&model);
        if found.is_none() && as_long.len() > 1 {
            let other = Model::limited(&first_alone, &mesh, &combined).map_err(one)?;
            found = found_in(&other);
            if found.is_some() {
                model = other;
            }
        }
        if found.is_none() {
            // What would pass between turns is named later.
            model = Model::new(&own, &mesh).map_err(one)?;
            found = Some(decide::decide(&model, mesh.memory, &Effort::default())?);
        }
        let Some(d) = found else { return Err(error("it has no turns".into())) };
        let only = |l: &crate::Layout| l.first().copied().unwrap_or(Sbp::Broadcast);
        let mut asked = HashMap::new();
        for (node, subject) in model.subjects.iter().enumerate() {
            let Subject::Op(op) = subject else { continue };
            let chosen = &model.choices[node].candidates[d.labels[node]];
            chosen.operands.iter().enumerate().for_each(|(i, l)| {
                asked.insert((*op, i), only(l));
            });
        }
        // What is left out would be no larger than what is cut.
        let how = |l: &Option<crate::Layout>| match l {
            Some(l) => l.first().copied().unwrap_or(Sbp::Split(0)),
            None => Sbp::Broadcast,
        };
        let values = d.lying.layouts.iter().map(how).collect();
        Ok(Microbatches { count, values, asked })
    }

    /// How the values of `g` are spread, by their positions in the arena.
    pub(crate) fn spread(&self, g: &Graph) -> Vec<Spread> {
        let asks = |op: OpId, operand: usize| self.asked.get(&(op, operand)).copied().unwrap_or(Sbp::Broadcast);
        let varies = |op: OpId| {
            let data = g.op(op);
            data.results.iter().any(|v| self.value(*v) != Sbp::Broadcast)
                || (0..data.operands.len()).any(|i| asks(op, i) != Sbp::Broadcast)
        };
        let one = |v: ValueId| {
            let mut uses = g.uses(v).iter();
            match self.value(v) {
                Sbp::Split(_) => Spread::Cut,
                Sbp::Partial(_) if uses.any(|u| asks(u.op, u.operand as usize) == Sbp::Broadcast) => Spread::Summed,
                Sbp::Broadcast if self.count > 1 && uses.any(|u| varies(u.op)) => Spread::EveryTurn,
                Sbp::Partial(_) | Sbp::Broadcast => Spread::Once,
            }
        };
        (0..g.value_slots()).map(|i| g.value_at(i).map_or(Spread::Once, one)).collect()
    }

    /// The extents of what is there of a value in one turn, where that is less than the whole.
    pub(crate) fn part(&self, g: &Graph, v: ValueId) -> Option<Vec<usize>> {
        let Sbp::Split(axis) = self.value(v) else { return None };
        let mut dims = g.ty(v).as_tensor()?.fixed_dims()?;
        *dims.get_mut(usize::from(axis))? /= self.count;
        Some(dims)
    }

    fn value(&self, v: ValueId) -> Sbp {
        self.values.get(v.index()).copied().unwrap_or(Sbp::Broadcast)
    }
}

/// When the forward and backward turns of each stage begin, by stage and turn, where a backward turn takes as long as two
/// forward ones; and when all is over.
fn schedule(stages: usize, turns: usize, training: bool) -> (Vec<Vec<usize>>, Vec<Vec<usize>>, usize) {
    const UNSET: usize = usize::MAX;
    let mut forward = vec![vec![UNSET; turns]; stages];
    let mut backward = vec![vec![UNSET; turns]; stages];
    // What each stage does, in order: forward turns ahead, then one of each kind in turn.
    let work = |s: usize| -> Vec<(bool, usize)> {
        if !training {
            return (0..turns).map(|m| (true, m)).collect();
        }
        let ahead = (stages - s).min(turns);
        let mut list: Vec<(bool, usize)> = (0..ahead).map(|m| (true, m)).collect();
        for m in 0..turns {
            list.push((false, m));
            if ahead + m < turns {
                list.push((true, ahead + m));
            }
        }
        list
    };
    let work: Vec<Vec<(bool, usize)>> = (0..stages).map(work).collect();
    let (mut next, mut free) = (vec![0; stages], vec![1; stages]);
    loop {
        let mut changed = false;
        for s in 0..stages {
            while let Some((is_forward, m)) = work[s].get(next[s]).copied() {
                let after = |start: usize, takes: usize| if start == UNSET { None } else { Some(start + takes) };
                let ready = match (is_forward, s) {
                    (true, 0) => Some(0),
                    (true, _) => after(forward[s - 1][m], 1),
                    (false, _) if s + 1 == stages => after(forward[s][m], 1),
                    (false, _) => after(backward[s + 1][m], 2),
                };
                let Some(ready) = ready else { break };
                let start = ready.max(free[s]);
                (if is_forward { &mut forward } else { &mut backward })[s][m] = start;
                free[s] = start + if is_forward { 1 } else { 2 };
                next[s] += 1;
                changed = true;
            }
        }
        if !changed {
            return (forward, backward, free.into_iter().max().unwrap_or(1));
        }
    }
}

/// Writes stages and turns into `func`, whose meshes are called `names`, one for each stage.
///
/// # Errors
/// When turns need of one another what is no partial value, or something else of the graph cannot be cut.
pub fn write(
    func: &mut Func,
    staged: &Staged,
    turns: &Microbatches,
    names: &[String],
) -> Result<(), of_diag::Diagnostics> {
    let mesh = names.first().map_or("mesh", String::as_str);
    decide::write(func, &staged.written, mesh)?;
    *func = Build::new(func, staged, turns, names)?.run()?;
    Ok(())
}

/// The turn of what is made once, and the one in which partial values of all turns are combined.
const ONCE: usize = 0;
const TOTAL: usize = usize::MAX;

/// A value on the mesh of a stage, in a turn.
type Key = (ValueId, usize, usize);

/// What is made: an op in a turn, or a value sent to another stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum What {
    Op(OpId, usize),
    Send(Key),
}

struct Build<'a> {
    func: &'a Func,
    g: &'a Graph,
    turns: &'a Microbatches,
    names: &'a [String],
    /// Stages and, for places that were inserted, how their operands are read; by position in the arena.
    stage_of_op: Vec<usize>,
    stage_of_value: Vec<usize>,
    /// How values lie along the axis of turns.
    along: Vec<Sbp>,
    asked: HashMap<(OpId, usize), Sbp>,
    made: HashMap<Key, ValueId>,
    /// Partial values of how many turns were combined, and what they are so far.
    sums: HashMap<ValueId, (usize, Option<ValueId>)>,
}

impl<'a> Build<'a> {
    fn new(func: &'a Func, staged: &Staged, turns: &'a Microbatches, names: &'a [String]) -> Result<Self, Diagnostic> {
        let g = &func.graph;
        let mut b = Build {
            func,
            g,
            turns,
            names,
            stage_of_op: vec![0; g.op_slots()],
            stage_of_value: vec![0; g.value_slots()],
            along: vec![Sbp::Broadcast; g.value_slots()],
            asked: turns.asked.clone(),
            made: HashMap::new(),
            sums: HashMap::new(),
        };
        for v in g.args() {
            b.stage_of_value[v.index()] = staged.values[v.index()];
            b.along[v.index()] = turns.value(*v);
        }
        for op in g.region_ops(g.entry()) {
            let data = g.op(op);
            // What was inserted is where its operand is.
            let known = staged.ops.get(op.index()).copied().filter(|_| !inserted(g, turns, staged, op));
            let stage = known.unwrap_or_else(|| data.operands.first().map_or(0, |v| b.stage_of_value[v.index()]));
            b.stage_of_op[op.index()] = stage;
            for v in &data.results {
                b.stage_of_value[v.index()] = stage;
                b.along[v.index()] = match known {
                    Some(_) => turns.value(*v),
                    None => b.placed(*v, data.operands[0], op),
                };
            }
        }
        b.check()?;
        Ok(b)
    }

    /// How a value lies along turns that an inserted place makes: combined where all its readers want it so.
    fn placed(&mut self, result: ValueId, operand: ValueId, op: OpId) -> Sbp {
        let made = self.along[operand.index()];
        let whole = |u: &of_ir::Use| self.ask(u.op, u.operand as usize, made) == Sbp::Broadcast;
        let how = match made {
            Sbp::Partial(_) if self.g.uses(result).iter().all(whole) => Sbp::Broadcast,
            other => other,
        };
        self.asked.insert((op, 0), how);
        how
    }

    /// How `op` reads an operand that lies like this.
    fn ask(&self, op: OpId, operand: usize, made: Sbp) -> Sbp {
        match (self.asked.get(&(op, operand)), made) {
            (Some(how), _) => *how,
            (None, Sbp::Partial(_)) => Sbp::Broadcast,
            (None, _) if self.g.op(op).def.traits().terminator => made,
            (None, _) => Sbp::Broadcast,
        }
    }

    fn is_constant(&self, v: ValueId) -> bool {
        self.g.def_op(v).is_some_and(|op| self.g.op(op).def.traits().constant)
    }

    /// Every operand comes from the own turn, is whole, or combines partial values.
    fn check(&self) -> Result<(), Diagnostic> {
        for op in self.g.region_ops(self.g.entry()) {
            let data = self.g.op(op);
            for (i, v) in data.operands.iter().enumerate() {
                let made = self.along[v.index()];
                let ask = self.ask(op, i, made);
                let fits = made == ask
                    || matches!((made, ask), (Sbp::Partial(_), Sbp::Broadcast))
                    || (self.is_constant(*v) && !matches!(ask, Sbp::Partial(_)));
                if !fits {
                    let what = format!("'{}' reads as {ask} along the microbatches what lies as {made}", data.name());
                    let d = Diagnostic::error(Code::SBP, data.loc.clone(), what);
                    return Err(d.note("microbatches are computed apart; only partial values are combined over them"));
                }
            }
            let inside = self.g.captured(op);
            if (!data.regions.is_empty() && self.varies(op))
                || inside.iter().any(|v| self.along[v.index()] != Sbp::Broadcast)
            {
                let what = format!("'{}' has regions, which are not cut into microbatches", data.name());
                return Err(Diagnostic::error(Code::SBP, data.loc.clone(), what));
            }
        }
        Ok(())
    }

    /// Whether an op is done once a turn.
    fn varies(&self, op: OpId) -> bool {
        let data = self.g.op(op);
        let reads = |(i, v): (usize, &ValueId)| self.ask(op, i, self.along[v.index()]) != Sbp::Broadcast;
        !data.def.traits().terminator
            && !data.def.traits().constant
            && (data.results.iter().any(|v| self.along[v.index()] != Sbp::Broadcast)
                || data.operands.iter().enumerate().any(reads))
    }

    fn stage(&self, v: ValueId) -> usize {
        self.stage_of_value[v.index()]
    }

    /// In which turns a value is read by an op in its turn `t`.
    fn turn(&self, op: OpId, operand: usize, v: ValueId, t: usize) -> usize {
        let made = self.along[v.index()];
        match (made, self.ask(op, operand, made)) {
            (Sbp::Broadcast, _) => ONCE,
            (Sbp::Partial(_), Sbp::Broadcast) => TOTAL,
            _ => t,
        }
    }

    /// The values that `op` reads in turn `t` on its stage; constants are everywhere.
    fn reads(&self, op: OpId, t: usize) -> Vec<Key> {
        let data = self.g.op(op);
        let own = self.stage_of_op[op.index()];
        let operands = data.operands.iter().enumerate().map(|(i, v)| (*v, self.turn(op, i, *v, t)));
        let inside = self.g.captured(op).into_iter().map(|v| (v, ONCE));
        operands.chain(inside).filter(|(v, _)| !self.is_constant(*v)).map(|(v, turn)| (v, turn, own)).collect()
    }

    /// What the terminator reads: outputs that are carried on lie where their inputs do.
    fn outputs(&self) -> Vec<Vec<Key>> {
        let carried: Vec<i64> = self.func.attrs.typed(CARRIED).unwrap_or_default();
        let outputs = self.g.outputs().iter().enumerate().map(|(i, v)| {
            let input = carried.get(i).and_then(|k| usize::try_from(*k).ok()).and_then(|k| self.g.args().get(k));
            let stage = input.map_or(self.stage(*v), |a| self.stage(*a));
            match self.along[v.index()] {
                _ if self.is_constant(*v) => vec![(*v, ONCE, stage)],
                Sbp::Broadcast => vec![(*v, ONCE, stage)],
                Sbp::Partial(_) => vec![(*v, TOTAL, stage)],
                Sbp::Split(_) => (0..self.turns.count).map(|t| (*v, t, stage)).collect(),
            }
        });
        outputs.collect()
    }

    /// What makes a value in a turn on the stage where it is made.
    fn makers(&self, v: ValueId, turn: usize) -> Vec<What> {
        let Some(op) = self.g.def_op(v) else { return Vec::new() };
        match turn {
            TOTAL => (0..self.turns.count).map(|t| What::Op(op, t)).collect(),
            t => vec![What::Op(op, t)],
        }
    }

    /// Everything that is made, in order.
    fn order(&self) -> Vec<What> {
        let g = self.g;
        let ops: Vec<OpId> = g
            .region_ops(g.entry())
            .filter(|op| !g.op(*op).def.traits().constant && !g.op(*op).def.traits().terminator)
            .collect();
        let behind = Phases::of(self.func).backward;
        let training = !behind.is_empty();
        let (forward, backward, end) = schedule(self.names.len(), self.turns.count, training);
        // Ops that are done once begin all or end all, as they need something of the turns or not.
        let mut late: HashMap<OpId, bool> = HashMap::new();
        for op in &ops {
            let of = |v: ValueId| g.def_op(v).is_some_and(|d| self.varies(d) || late.get(&d) == Some(&true));
            let is_late = self.reads(*op, ONCE).into_iter().any(|(v, ..)| of(v));
            late.insert(*op, is_late);
        }
        let start = |op: OpId, t: usize| {
            let s = self.stage_of_op[op.index()];
            match (self.varies(op), late[&op]) {
                (true, _) if behind.contains(&op) => backward[s][t],
                (true, _) => forward[s][t],
                (false, true) => end,
                (false, false) => 0,
            }
        };
        let mut nodes: Vec<(What, (usize, usize, usize, usize))> = Vec::new();
        let mut at: HashMap<What, usize> = HashMap::new();
        let mut sends: BTreeMap<Key, (usize, usize)> = BTreeMap::new();
        let mut send = |key: Key, when: (usize, usize)| {
            if self.stage(key.0) != key.2 {
                let first = sends.entry(key).or_insert(when);
                *first = (*first).min(when);
            }
        };
        // Readers come behind what they read, so that what was inserted for them learns when it is needed.
        let mut needed: HashMap<(ValueId, usize), usize> = HashMap::new();
        for (position, op) in ops.iter().enumerate().rev() {
            for t in (0..if self.varies(*op) { self.turns.count } else { 1 }).rev() {
                let readers = g.op(*op).results.iter().filter_map(|v| {
                    let own = needed.get(&(*v, t)).copied();
                    own.into_iter().chain(needed.get(&(*v, TOTAL)).copied()).min()
                });
                let when = match readers.min() {
                    Some(first) if g.op(*op).name() == Place::NAME => first.max(start(*op, t)),
                    _ => start(*op, t),
                };
                for key in self.reads(*op, t) {
                    let first = needed.entry((key.0, key.1)).or_insert(when);
                    *first = (*first).min(when);
                    send(key, (when, position));
                }
                at.insert(What::Op(*op, t), nodes.len());
                nodes.push((What::Op(*op, t), (when, 1, self.stage_of_op[op.index()], position)));
            }
        }
        self.outputs().into_iter().flatten().for_each(|key| send(key, (end, ops.len())));
        for (key, (when, position)) in sends {
            at.insert(What::Send(key), nodes.len());
            nodes.push((What::Send(key), (when, 0, key.2, position)));
        }
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        let mut missing = vec![0; nodes.len()];
        for (node, (what, _)) in nodes.iter().enumerate() {
            let read: Vec<What> = match what {
                What::Op(op, t) => self
                    .reads(*op, *t)
                    .into_iter()
                    .flat_map(|key| {
                        let sent = self.stage(key.0) != key.2;
                        if sent { vec![What::Send(key)] } else { self.makers(key.0, key.1) }
                    })
                    .collect(),
                What::Send((v, t, _)) => self.makers(*v, *t),
            };
            for from in read.iter().filter_map(|w| at.get(w)) {
                readers[*from].push(node);
                missing[node] += 1;
            }
        }
        // What is ready in the order of the schedule; ties as the function has them.
        let key = |node: usize| Reverse((nodes[node].1, matches!(nodes[node].0, What::Op(_, t) if t > 0), node));
        let mut ready: BinaryHeap<_> = (0..nodes.len()).filter(|n| missing[*n] == 0).map(key).collect();
        let mut out = Vec::with_capacity(nodes.len());
        while let Some(Reverse((.., node))) = ready.pop() {
            out.push(nodes[node].0);
            for r in &readers[node] {
                missing[*r] -= 1;
                if missing[*r] == 0 {
                    ready.push(key(*r));
                }
            }
        }
        out
    }

    /// The type of a value on a stage, in a turn.
    fn ty(&self, v: ValueId, stage: usize) -> Type {
        let Type::Tensor(t) = self.g.ty(v) else { return self.g.ty(v).clone() };
        let mesh = self.names[stage].as_str();
        let sbp = t.sbp.as_ref().map(|s| NdSbp { mesh: mesh.into(), axes: s.axes.clone() });
        match (self.part(v), t.fixed_dims()) {
            (Some(part), Some(whole)) if part != whole => {
                Type::Tensor(TensorType { sbp, ..TensorType::fixed(t.dtype, &part) })
            }
            _ => Type::Tensor(TensorType { sbp, ..t.clone() }),
        }
    }

    /// Extents of a value in one turn.
    fn part(&self, v: ValueId) -> Option<Vec<usize>> {
        let mut dims = self.g.ty(v).as_tensor()?.fixed_dims()?;
        if let Sbp::Split(d) = self.along[v.index()] {
            *dims.get_mut(usize::from(d))? /= self.turns.count;
        }
        Some(dims)
    }

    fn run(mut self) -> Result<Func, Diagnostic> {
        let order = self.order();
        let mut out = Func {
            graph: Graph::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            attrs: self.func.attrs.clone(),
            loc: self.func.loc.clone(),
        };
        let entry = out.graph.entry();
        let mut rw = Rewriter::new(&mut out.graph, "turns");
        let (mut cuts_in, mut cuts_out) = (Vec::new(), Vec::new());
        let mut first_of_arg = Vec::new();
        for (v, name) in self.g.args().iter().zip(&self.func.inputs) {
            first_of_arg.push(out.inputs.len() as i64);
            let count = self.slices(*v, &mut cuts_in);
            for t in 0..count {
                let arg = rw.add_arg(entry, self.ty(*v, self.stage(*v)), self.g.name(*v).cloned());
                self.made.insert((*v, t, self.stage(*v)), arg);
                out.inputs.push(if count > 1 { format!("{name}/{t}") } else { name.clone() });
            }
        }
        for what in order {
            match what {
                What::Op(op, t) => self.op(&mut rw, op, t)?,
                What::Send(key) => {
                    let (v, t, stage) = key;
                    let from = self.value(&mut rw, (v, t, self.stage(v)), None)?;
                    let to = match self.ty(v, stage) {
                        Type::Tensor(TensorType { sbp: Some(to), .. }) => to,
                        _ => return Err(self.error(v, "it does not say how it lies, and is read by another stage")),
                    };
                    let loc = self.g.def_op(v).map_or(&self.func.loc, |op| &self.g.op(op).loc);
                    rw.set_location(loc.clone());
                    let sent = rw.create_one(Place { to }, &[from])?;
                    self.made.insert(key, sent);
                }
            }
        }
        let carried: Vec<i64> = self.func.attrs.typed(CARRIED).unwrap_or_default();
        let (mut results, mut carried_on) = (Vec::new(), Vec::new());
        for (i, keys) in self.outputs().into_iter().enumerate() {
            self.slices(self.g.outputs()[i], &mut cuts_out);
            let (name, cut) = (&self.func.outputs[i], keys.len() > 1);
            for key in keys {
                results.push(self.value(&mut rw, key, None)?);
                out.outputs.push(if cut { format!("{name}/{}", key.1) } else { name.clone() });
                let input = carried.get(i).and_then(|k| usize::try_from(*k).ok()).and_then(|k| first_of_arg.get(k));
                carried_on.push(input.copied().unwrap_or(-1));
            }
        }
        rw.create(of_ops::structural::Return {}, &results)?;
        if !carried.is_empty() {
            out.attrs.set(CARRIED, Attr::Ints(carried_on));
        }
        if self.turns.count > 1 {
            out.attrs.set(TURNS_INPUTS, Attr::Ints(cuts_in));
            out.attrs.set(TURNS_OUTPUTS, Attr::Ints(cuts_out));
        }
        Ok(out)
    }

    /// Into how many slices an input or output is cut, which is noted with the axis.
    fn slices(&self, v: ValueId, cuts: &mut Vec<i64>) -> usize {
        let (count, axis) = match self.along[v.index()] {
            Sbp::Split(d) if !self.is_constant(v) => (self.turns.count, d),
            _ => (1, 0),
        };
        cuts.extend([count as i64, i64::from(axis)]);
        count
    }

    fn error(&self, v: ValueId, what: &str) -> Diagnostic {
        let loc = self.g.def_op(v).map_or_else(|| self.func.loc.clone(), |op| self.g.op(op).loc.clone());
        Diagnostic::error(Code::SBP, loc, format!("{}: {what}", self.g.ty(v)))
    }

    /// A value on a stage; constants are made where they are read, of a turn alone where they are `cut`.
    fn value(&mut self, rw: &mut Rewriter<'_>, key: Key, cut: Option<(u8, usize)>) -> Result<ValueId, Diagnostic> {
        let (v, turn, stage) = key;
        if !self.is_constant(v) {
            return self.made.get(&key).copied().ok_or_else(|| self.error(v, "it is read before it is computed"));
        }
        let key = (v, cut.map_or(turn, |(_, t)| t + 1), stage);
        if let Some(made) = self.made.get(&key) {
            return Ok(*made);
        }
        let made = match (cut, self.g.constant(v), self.g.def_op(v)) {
            (Some((axis, t)), Some(value), _) => {
                let mut block: Vec<(usize, usize)> = value.dims().iter().map(|d| (0, *d)).collect();
                let whole = block.get(usize::from(axis)).map_or(0, |b| b.1);
                let n = whole / self.turns.count;
                if n * self.turns.count != whole || n == 0 {
                    return Err(self.error(v, "a constant is not cut into equal parts"));
                }
                block[usize::from(axis)] = (t * n, n);
                let part = crate::local::cut(&value, &block);
                let value = part.ok_or_else(|| self.error(v, "elements of less than a byte are not split"))?;
                let made = rw.create_one(Constant { value }, &[])?;
                if let (Type::Tensor(t), Type::Tensor(of)) = (rw.graph().ty(made).clone(), self.ty(v, stage)) {
                    rw.set_type(made, Type::Tensor(TensorType { sbp: of.sbp, ..t }));
                }
                made
            }
            (_, _, Some(op)) => {
                let copy = rw.clone_op(self.g, op, &mut HashMap::new());
                let made = rw.graph().op(copy).results[0];
                if let (Type::Tensor(whole), Type::Tensor(of)) = (self.g.ty(v).clone(), self.ty(v, stage)) {
                    rw.set_type(made, Type::Tensor(TensorType { sbp: of.sbp, ..whole }));
                }
                made
            }
            _ => return Err(self.error(v, "it is no constant")),
        };
        self.made.insert(key, made);
        Ok(made)
    }

    fn op(&mut self, rw: &mut Rewriter<'_>, op: OpId, t: usize) -> Result<(), Diagnostic> {
        let g = self.g;
        let data = g.op(op);
        let stage = self.stage_of_op[op.index()];
        rw.set_location(data.loc.clone());
        let mut operands = Vec::with_capacity(data.operands.len());
        for (i, v) in data.operands.iter().enumerate() {
            let made = self.along[v.index()];
            let cut = match self.ask(op, i, made) {
                Sbp::Split(d) => Some((d, t)),
                _ => None,
            };
            operands.push(self.value(rw, (*v, self.turn(op, i, *v, t), stage), cut)?);
        }
        let results = if !data.regions.is_empty() {
            let mut map = HashMap::new();
            for (v, made) in data.operands.iter().zip(&operands) {
                map.insert(*v, *made);
            }
            for v in g.captured(op) {
                let made = self.value(rw, (v, ONCE, stage), None)?;
                map.insert(v, made);
            }
            let copy = rw.clone_op(g, op, &mut map);
            rw.graph().op(copy).results.to_vec()
        } else if data.name() == Place::NAME {
            let Type::Tensor(TensorType { sbp: Some(to), .. }) = self.ty(data.results[0], stage) else {
                return Err(self.error(data.results[0], "a transfer does not say where to"));
            };
            vec![rw.create_one(Place { to }, &operands)?]
        } else {
            make_part(rw, g, op, &mut operands, |v| self.part(v))?;
            let made = rw.create((data.def, data.attrs.clone()), &operands)?;
            rw.graph().op(made).results.to_vec()
        };
        for (v, made) in data.results.iter().zip(results) {
            let ty = self.ty(*v, stage);
            let fixed = |t: &Type| t.as_tensor().and_then(TensorType::fixed_dims);
            if let (Some(a), Some(b)) = (fixed(rw.graph().ty(made)), fixed(&ty))
                && a != b
            {
                let what = format!("'{}' makes {a:?} in a turn, where {b:?} is its part", data.name());
                return Err(self.error(*v, &what));
            }
            rw.set_type(made, ty);
            if let Some(name) = g.name(*v) {
                rw.set_name(made, name.clone());
            }
            self.made.insert((*v, t, stage), made);
            if let Sbp::Partial(kind) = self.along[v.index()] {
                self.combine(rw, *v, made, kind)?;
            }
        }
        Ok(())
    }

    /// Combines what a turn makes with what those before it made, where someone reads it combined.
    fn combine(
        &mut self,
        rw: &mut Rewriter<'_>,
        v: ValueId,
        own: ValueId,
        kind: PartialKind,
    ) -> Result<(), Diagnostic> {
        let whole = |u: &of_ir::Use| self.ask(u.op, u.operand as usize, Sbp::Partial(kind)) == Sbp::Broadcast;
        if !self.g.uses(v).iter().any(whole) {
            return Ok(());
        }
        let (done, so_far) = self.sums.get(&v).copied().unwrap_or((0, None));
        let sum = match so_far {
            None => own,
            Some(x) => {
                let sum = match kind {
                    PartialKind::Sum => rw.create_one(Add {}, &[x, own])?,
                    PartialKind::Max => rw.create_one(Max {}, &[x, own])?,
                    PartialKind::Min => rw.create_one(Min {}, &[x, own])?,
                    PartialKind::Prod => rw.create_one(Mul {}, &[x, own])?,
                };
                let ty = rw.graph().ty(own).clone();
                rw.set_type(sum, ty);
                sum
            }
        };
        self.sums.insert(v, (done + 1, Some(sum)));
        if done + 1 == self.turns.count {
            self.made.insert((v, TOTAL, self.stage(v)), sum);
        }
        Ok(())
    }
}

/// Whether an op came with the layouts: a place that the search knew nothing of.
fn inserted(g: &Graph, turns: &Microbatches, staged: &Staged, op: OpId) -> bool {
    g.op(op).name() == Place::NAME
        && (op.index() >= staged.ops.len() || g.op(op).results.iter().any(|v| v.index() >= turns.values.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_forward_one_backward() {
        // Three stages, four microbatches: no stage waits but while it fills and drains.
        let (f, b, end) = schedule(3, 4, true);
        assert_eq!(f[0][..3], [1, 2, 3]);
        assert_eq!((f[2][0], b[2][0], b[1][0], b[0][0]), (3, 4, 6, 8));
        assert_eq!(end, 1 + 3 * (4 + 3 - 1));
        for s in 0..3 {
            // A stage keeps no more microbatches than there are stages behind it, and itself.
            let kept = |m: usize| (0..=m).filter(|k| b[s][*k] > f[s][m]).count();
            assert!((0..4).all(|m| kept(m) <= 3 - s), "stage {s}");
        }
        let (f, _, end) = schedule(2, 3, false);
        assert_eq!((f, end), (vec![vec![1, 2, 3], vec![2, 3, 4]], 5));
    }
}
