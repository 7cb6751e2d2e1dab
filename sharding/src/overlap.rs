//! The order of a step's ops in which transfers between ranks overlap with computation.
//!
//! `insert-boxing` puts a collective where its result is read: gathers of parameters before the layers that read them, and reductions of
//! gradients, updates and gathers of new parameters behind the whole backward pass. A rank executes transfers one after another, in one
//! order on all ranks, so this order decides what can be under way while it computes. This is list scheduling with two resources, the
//! device and its link, whose times the mesh estimates:
//!
//! - A reduction that others wait for follows the op that makes its operand; so do the sums of gradients, as long as nothing else waits for
//!   transfers. Where something does, they come when they fit into the time until then.
//! - Small sums come one after another (`small_sums.rs`), so that several are one rendezvous.
//! - A gather of a value that is there at the beginning of the step comes when the link has nothing else to do, or soon has not, in the
//!   order of readers.
//! - Updates, which only the next step needs, run when the sums that they read are there and the link waits for their results, or when the
//!   device has nothing else to do, and at the end: first those whose results are sent, as soon as their sums are there.
//! - What computes a gradient runs as soon as its operands are there, so before the gradient of the layer's input.
//! - Other ops keep their order.
//!
//! Where more ops wait for transfers than there are sums, as with the statistics of batch normalizations, only reductions move.
//!
//! A step with microbatches has parts ([`TimeShape`]), each of which is scheduled by itself, behind what the parts before it made.

mod scheduler;
mod small_sums;

use std::collections::HashMap;

use of_diag::Diagnostic;
use of_ir::{Func, Graph, OpId, Rewriter, ValueId};
use of_ops::OpSpec;
use of_ops::boxing::Send;
use of_ops::time::TimeShape;
use of_ops::training::CARRIED;
use of_ops::work::{bytes, is_view};

use crate::boxing::CollectiveKind;
use crate::layout::{self, Layout};
use crate::lower::collective;
use crate::overlappable::is_heavy;
use crate::{Meshes, cost};
use scheduler::Scheduler;

/// The part of a device's memory that gathered values may take before they are read.
const GATHERED_EARLY: f64 = 1.0 / 16.0;

/// The part of a step's computation by which a sum may be late.
const SLACK: f64 = 1.0 / 16.0;

/// Orders the ops of a step so that transfers overlap with computation. A function of pipeline stages is left as it is: there the schedule
/// of the pipeline says when transfers take place. Returns the number of ops that moved.
///
/// # Errors
/// When the function's microbatches contradict each other.
pub fn overlap_transfers(func: &mut Func, meshes: &Meshes) -> Result<usize, Diagnostic> {
    let g = &func.graph;
    let has_effects = |op: OpId| g.op(op).def.traits().effect;
    let time = TimeShape::of(g, g.entry())?;
    let is_in_pipeline = |op: OpId| time.is_some() && g.op(op).name() == Send::NAME;
    if g.region_ops(g.entry()).any(|op| has_effects(op) || is_in_pipeline(op)) {
        return Ok(0);
    }
    let step = StepOps::of(func, time.as_ref(), meshes);
    if !step.roles.iter().any(|role| *role != Role::Main) {
        return Ok(0);
    }
    let mut order = Vec::with_capacity(step.ops.len());
    for part in 0..=step.parts.iter().copied().max().unwrap_or(0) {
        order.extend(small_sums::gather_small_sums(&step, g, meshes, &Scheduler::new(&step, part).run()));
    }
    let count = order.iter().enumerate().filter(|(place, op)| place != *op).count();
    if count > 0 {
        let order: Vec<OpId> = order.into_iter().map(|op| step.ops[op]).chain(step.terminator).collect();
        let mut rw = Rewriter::new(&mut func.graph, "overlap-transfers");
        for pair in order.windows(2).rev() {
            rw.move_before(pair[0], pair[1]);
        }
    }
    Ok(count)
}

/// What an op is for the schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// It keeps its place among its like.
    Main,
    /// It reduces partial values for other ops of this step, and follows its operand.
    Reduction,
    /// It makes the sum of a gradient, or sends what is needed for it.
    Sum,
    /// Only a sum reads it, and it needs one op alone, such as a transposition. It follows that.
    ForSum,
    /// It gathers a value that is there at the beginning.
    Early,
    /// Only the next step needs it, and it needs such a transfer.
    Update,
    /// A constant, or what only updates read and inputs alone make. It precedes its first reader.
    OnDemand,
}

/// The ops of a step, by their places.
struct StepOps {
    ops: Vec<OpId>,
    terminator: Option<OpId>,
    /// The part of the step that each is in; 0 where there are no microbatches.
    parts: Vec<usize>,
    /// The ops that come before each: those that it reads, and for the next value of a variable the readers of the current one.
    needs: Vec<Vec<usize>>,
    followers: Vec<Vec<usize>>,
    roles: Vec<Role>,
    /// Whether an op sends anything, and whether it does or a transfer needs it.
    is_transfer: Vec<bool>,
    leads_to_transfer: Vec<bool>,
    seconds: Vec<f64>,
    /// Bytes of a device's part of the results.
    bytes: Vec<f64>,
    /// Bytes of early gathers that may be there before they are read.
    room: f64,
    /// By how many seconds a sum may be late, and early gathers may be launched before the link is free.
    slack: f64,
    /// The ops of role `Main` in the order in which they are placed.
    main: Vec<usize>,
}

impl StepOps {
    fn of(func: &Func, time: Option<&TimeShape>, meshes: &Meshes) -> StepOps {
        let g = &func.graph;
        let all: Vec<OpId> = g.region_ops(g.entry()).collect();
        let (ops, last): (Vec<OpId>, Vec<OpId>) = all.into_iter().partition(|op| !g.op(*op).def.traits().terminator);
        let mut made: HashMap<ValueId, usize> = HashMap::new();
        for (place, op) in ops.iter().enumerate() {
            g.op(*op).results.iter().for_each(|value| _ = made.insert(*value, place));
        }
        let reads = |op: &OpId| g.op(*op).operands.iter().copied().chain(g.captured(*op)).collect::<Vec<ValueId>>();
        let mut readers: HashMap<ValueId, Vec<usize>> = HashMap::new();
        let mut needs: Vec<Vec<usize>> = Vec::with_capacity(ops.len());
        for (place, op) in ops.iter().enumerate() {
            let values = reads(op);
            let mut from: Vec<usize> = values.iter().filter_map(|value| made.get(value).copied()).collect();
            from.sort_unstable();
            from.dedup();
            needs.push(from);
            values.into_iter().for_each(|value| readers.entry(value).or_default().push(place));
        }
        let kinds: Vec<Option<CollectiveKind>> = ops.iter().map(|op| collective(g.op(*op).name())).collect();
        let sends = |kind: &Option<CollectiveKind>| {
            kind.is_some_and(|kind| !matches!(kind, CollectiveKind::LocalSlice | CollectiveKind::ToPartial))
        };
        let is_transfer: Vec<bool> = kinds.iter().map(sends).collect();
        let carried: Vec<i64> = func.attrs.typed(CARRIED).unwrap_or_default();
        let variable = |output: usize| usize::try_from(*carried.get(output)?).ok();
        let results: Vec<usize> = (0..)
            .zip(g.outputs())
            .filter(|(i, _)| variable(*i).is_none())
            .filter_map(|(_, v)| made.get(v).copied())
            .collect();
        let parts: Vec<usize> = ops.iter().map(|op| time.map_or(0, |time| time.op(*op))).collect();
        let roles = roles(g, (&ops, &parts), &needs, &kinds, &is_transfer, &results);
        for (output, value) in g.outputs().iter().enumerate() {
            // So the next value may be computed in the place of the current one.
            let current = variable(output).and_then(|input| g.args().get(input));
            if let (Some(current), Some(next)) =
                (current, made.get(value).copied().filter(|op| roles[*op] == Role::Update))
            {
                let is_before = |reader: &usize| *reader < next && parts[*reader] <= parts[next];
                let before = readers.get(current).into_iter().flatten().copied().filter(is_before);
                needs[next].extend(before.collect::<Vec<_>>());
            }
        }
        let mut followers: Vec<Vec<usize>> = vec![Vec::new(); ops.len()];
        for (place, needs) in needs.iter_mut().enumerate() {
            needs.sort_unstable();
            needs.dedup();
            needs.iter().for_each(|op| followers[*op].push(place));
        }
        let mut leads_to_transfer = is_transfer.clone();
        for place in (0..ops.len()).rev() {
            leads_to_transfer[place] |= followers[place].iter().any(|reader| leads_to_transfer[*reader]);
        }
        let seconds = (0..ops.len()).map(|place| match is_transfer[place] {
            true => transfer_seconds(g, ops[place], kinds[place], meshes),
            false => compute_seconds(g, ops[place], meshes),
        });
        let seconds: Vec<f64> = seconds.collect();
        let held = |op: &OpId| g.op(*op).results.iter().map(|value| part_bytes(g, *value, meshes)).sum();
        let bytes = ops.iter().map(held).collect();
        let slack = (0..ops.len()).filter(|op| !is_transfer[*op]).map(|op| seconds[op]).sum::<f64>() * SLACK;
        let room = meshes.ranks().memory * GATHERED_EARLY;
        let main = gradients_first(&roles, &needs, &followers);
        let terminator = last.first().copied();
        StepOps {
            ops,
            terminator,
            parts,
            needs,
            followers,
            roles,
            is_transfer,
            leads_to_transfer,
            seconds,
            bytes,
            room,
            slack,
            main,
        }
    }

    fn is_on_demand(&self, op: usize) -> bool {
        self.roles[op] == Role::OnDemand
    }

    /// Whether other ops of this step wait for a transfer that cannot come earlier.
    fn waits(&self, op: usize) -> bool {
        self.is_transfer[op] && matches!(self.roles[op], Role::Reduction | Role::Main) && self.seconds[op] > 0.0
    }

    /// For each op of a part, the next transfer there that others wait for, and the device's seconds from the op's beginning until then.
    fn until_wait(&self, part: usize) -> Vec<(usize, f64)> {
        let mut next = (self.ops.len(), f64::INFINITY);
        let mut out = vec![next; self.ops.len()];
        for op in (0..self.ops.len()).rev().filter(|op| self.parts[*op] == part) {
            match self.roles[op] {
                _ if self.waits(op) => next = (op, 0.0),
                Role::Main => next.1 += self.seconds[op],
                _ => {}
            }
            out[op] = next;
        }
        out
    }

    /// The first op that reads the results of another.
    fn first_reader(&self, op: usize) -> usize {
        self.followers[op].first().copied().unwrap_or(self.ops.len())
    }
}

/// The role of each op. `results` are those that make outputs which are no variables.
fn roles(
    g: &Graph,
    (ops, parts): (&[OpId], &[usize]),
    needs: &[Vec<usize>],
    kinds: &[Option<CollectiveKind>],
    is_transfer: &[bool],
    results: &[usize],
) -> Vec<Role> {
    let is_reduction = |op: usize| matches!(kinds[op], Some(CollectiveKind::AllReduce | CollectiveKind::ReduceScatter));
    // What reductions and outputs of this step need, and what needs the transfers of gradients.
    let (mut needed, mut reduced) = (vec![false; ops.len()], vec![false; ops.len()]);
    results.iter().for_each(|op| needed[*op] = true);
    for op in (0..ops.len()).rev() {
        if needed[op] || is_reduction(op) {
            needs[op].iter().for_each(|from| needed[*from] = true);
        }
    }
    let is_constant = |op: usize| g.op(ops[op]).def.traits().constant;
    let made: HashMap<ValueId, usize> =
        (0..).zip(ops).flat_map(|(place, op)| g.op(*op).results.iter().map(move |v| (*v, place))).collect();
    // The one operand that is no constant.
    let only_operand = |op: usize| {
        let mut operands =
            g.op(ops[op]).operands.iter().filter(|v| !made.get(v).is_some_and(|from| is_constant(*from)));
        operands.next().filter(|_| operands.next().is_none()).copied()
    };
    // What is there at the beginning: inputs, their views and slices, and what a little work makes of one, such as a transposed one.
    let (mut given, mut there, mut is_sum) = (vec![false; ops.len()], vec![false; ops.len()], vec![false; ops.len()]);
    for op in 0..ops.len() {
        reduced[op] = needs[op].iter().any(|from| reduced[*from] || is_reduction(*from) || is_sum[*from]);
        let data = g.op(ops[op]);
        let is_slice = kinds[op] == Some(CollectiveKind::LocalSlice);
        given[op] = (is_slice || is_constant(op) || is_view(data.name())) && needs[op].iter().all(|from| given[*from]);
        let is_light = !is_transfer[op] && only_operand(op).is_some() && !is_heavy(g, ops[op]);
        there[op] = (is_light || is_constant(op)) && needs[op].iter().all(|from| there[*from]);
        let early = needs[op].iter().all(|from| there[*from]);
        is_sum[op] = !needed[op] && !early && (is_reduction(op) || (is_transfer[op] && !reduced[op]));
    }
    let role = |op: usize| match () {
        () if is_sum[op] => Role::Sum,
        () if is_reduction(op) && !needs[op].iter().all(|from| given[*from]) => Role::Reduction,
        () if reduced[op] && !needed[op] => Role::Update,
        () if is_transfer[op] && !is_reduction(op) && needs[op].iter().all(|from| there[*from]) => Role::Early,
        () => Role::Main,
    };
    let mut roles: Vec<Role> = (0..ops.len()).map(role).collect();
    let only_maker = |op: usize| only_operand(op).and_then(|v| made.get(&v).copied());
    let mut followers = vec![0u32; ops.len()];
    needs.iter().flatten().for_each(|from| followers[*from] += 1);
    for sum in (0..ops.len()).filter(|op| roles[*op] == Role::Sum).collect::<Vec<_>>() {
        let mut at = only_maker(sum);
        while let Some(op) = at
            && roles[op] == Role::Main
            && followers[op] == 1
            && !is_transfer[op]
            && let Some(from) = only_maker(op)
        {
            roles[op] = Role::ForSum;
            at = Some(from);
        }
    }
    let mut of_inputs = vec![false; ops.len()];
    for op in 0..ops.len() {
        of_inputs[op] = !is_transfer[op] && needs[op].iter().all(|from| of_inputs[*from]);
    }
    // Whether some op reads it, and whether all of them are for updates.
    let mut readers = vec![(false, true); ops.len()];
    for op in (0..ops.len()).rev() {
        let for_updates = of_inputs[op] && !needed[op] && readers[op] == (true, true);
        if roles[op] == Role::Main && (for_updates || is_constant(op)) {
            roles[op] = Role::OnDemand;
        }
        let for_update = matches!(roles[op], Role::Update) || for_updates;
        needs[op].iter().for_each(|from| readers[*from] = (true, readers[*from].1 && for_update));
    }
    for part in 0..=parts.iter().copied().max().unwrap_or(0) {
        let own = || (0..ops.len()).filter(|op| parts[*op] == part);
        let sums = own().filter(|op| roles[*op] == Role::Sum).count();
        let waits = own().filter(|op| is_transfer[*op] && matches!(roles[*op], Role::Main | Role::Reduction)).count();
        if waits > sums {
            // Each of them would wait for what is under way.
            own().collect::<Vec<_>>().into_iter().for_each(|op| {
                let is_reduction = matches!(roles[op], Role::Sum | Role::Reduction);
                roles[op] = if is_reduction { Role::Reduction } else { Role::Main };
            });
        }
    }
    roles
}

/// The ops of role `Main`: each keeps its place, but what only sums read, with what only that reads, comes when its operands are there.
fn gradients_first(roles: &[Role], needs: &[Vec<usize>], followers: &[Vec<usize>]) -> Vec<usize> {
    // The op that makes what sums read, for it and for what it alone reads.
    let mut gradient: Vec<Option<usize>> = vec![None; roles.len()];
    for op in (0..roles.len()).rev().filter(|op| roles[*op] == Role::Main && !followers[*op].is_empty()) {
        let first = gradient[followers[op][0]];
        gradient[op] = match () {
            () if followers[op].iter().all(|reader| matches!(roles[*reader], Role::Sum | Role::ForSum)) => Some(op),
            () if followers[op].iter().all(|reader| gradient[*reader] == first) => first,
            () => None,
        };
    }
    // The last op that each of them waits for.
    let mut after = vec![0; roles.len()];
    for op in (0..roles.len()).filter(|op| gradient[*op].is_some()) {
        let of = gradient[op];
        let others = needs[op].iter().copied().filter(|from| gradient[*from] != of && roles[*from] != Role::OnDemand);
        if let (Some(of), Some(last)) = (of, others.max()) {
            after[of] = last.max(after[of]);
        }
    }
    let mut main: Vec<usize> = (0..roles.len()).filter(|op| roles[*op] == Role::Main).collect();
    main.sort_by_key(|op| gradient[*op].map_or((*op, false, *op), |of| (after[of], true, *op)));
    main
}

fn layout_of(g: &Graph, value: ValueId) -> Option<(&str, &Layout)> {
    g.ty(value).as_tensor()?.sbp.as_ref().map(|sbp| (&*sbp.mesh, &sbp.axes))
}

/// Bytes of a device's part of a value.
fn part_bytes(g: &Graph, value: ValueId, meshes: &Meshes) -> f64 {
    let share = layout_of(g, value).map_or(1.0, |(mesh, layout)| layout::share(layout, &meshes.spec(mesh).shape()));
    bytes(g.ty(value)) * share
}

/// Seconds of an op on a device that has its part.
fn compute_seconds(g: &Graph, op: OpId, meshes: &Meshes) -> f64 {
    let data = g.op(op);
    let values = data.operands.iter().chain(&data.results);
    let known: Vec<(f64, &str, &Layout)> =
        values.filter_map(|v| layout_of(g, *v).map(|(mesh, layout)| (bytes(g.ty(*v)), mesh, layout))).collect();
    let Some((_, mesh, _)) = known.first() else { return 0.0 };
    let spec = meshes.spec(mesh);
    let values: Vec<(f64, &Layout)> = known.iter().map(|(bytes, _, layout)| (*bytes, *layout)).collect();
    match of_ops::work::of(g, op) {
        work if work.flops == 0.0 && work.bytes() == 0.0 => 0.0,
        _ => cost::seconds(cost::work(g, op, spec), &values, spec, &spec.shape()) + spec.overhead,
    }
}

/// Seconds for which a transfer occupies a device's link.
fn transfer_seconds(g: &Graph, op: OpId, kind: Option<CollectiveKind>, meshes: &Meshes) -> f64 {
    let data = g.op(op);
    let (Some(from), Some(to)) = (data.operands.first(), data.results.first()) else { return 0.0 };
    let Some((mesh, _)) = layout_of(g, *from) else { return 0.0 };
    let spec = meshes.spec(mesh);
    let along: Vec<i64> = data.attrs.typed("axes").unwrap_or_default();
    let axes: Vec<_> = along.iter().filter_map(|axis| spec.axes.get(usize::try_from(*axis).ok()?)).collect();
    let devices = axes.iter().map(|axis| axis.devices).product::<usize>().max(1) as f64;
    let rate = axes.iter().map(|axis| axis.bandwidth).fold(f64::INFINITY, f64::min);
    let latency = axes.iter().map(|axis| axis.latency).fold(0.0, f64::max);
    let held = part_bytes(g, *from, meshes).max(part_bytes(g, *to, meshes));
    let times = if kind == Some(CollectiveKind::AllReduce) { 2.0 } else { 1.0 };
    latency * times + times * held * (devices - 1.0) / devices / rate
}

#[cfg(test)]
mod tests {
    use of_ir::{Attr, DType, NdSbp, PartialKind, Sbp, TensorType, Type};
    use of_ops::boxing::{AllGather, AllReduce, ReduceScatter};
    use of_ops::contraction::MatMul;
    use of_ops::elementwise::{Exp, Mul, Sub};
    use of_ops::structural::Return;
    use of_ops::time::{Accumulate, Unpack};

    use super::*;
    use crate::MeshSpec;

    const SUM: Sbp = Sbp::Partial(PartialKind::Sum);

    /// A function under construction. Ops have names.
    struct Maker {
        graph: Graph,
        names: HashMap<OpId, &'static str>,
    }

    fn on_mesh(sbp: Sbp) -> NdSbp {
        NdSbp { mesh: "m".into(), axes: [sbp].into_iter().collect() }
    }

    impl Maker {
        fn new() -> Self {
            Maker { graph: Graph::new(), names: HashMap::new() }
        }

        fn input(&mut self, sbp: Sbp) -> ValueId {
            let entry = self.graph.entry();
            let Type::Tensor(ty) = Type::fixed(DType::F32, &[1024, 1024]) else { unreachable!() };
            let ty = Type::Tensor(TensorType { sbp: Some(on_mesh(sbp)), ..ty });
            Rewriter::new(&mut self.graph, "test").add_arg(entry, ty, None)
        }

        fn op(&mut self, name: &'static str, op: impl of_ir::NewOp, operands: &[ValueId], sbp: Sbp) -> ValueId {
            let mut rw = Rewriter::new(&mut self.graph, "test");
            let value = rw.create_one(op, operands).unwrap();
            let mut ty = rw.graph().ty(value).clone();
            if let Type::Tensor(t) = &mut ty {
                t.sbp = Some(on_mesh(sbp));
            }
            rw.set_type(value, ty);
            self.names.insert(self.graph.def_op(value).unwrap(), name);
            value
        }

        /// The same for values of so many elements.
        fn vector(&mut self, name: &'static str, from: ValueId, elements: usize, sbp: Sbp) -> ValueId {
            let value = self.op(name, Exp {}, &[from], sbp);
            let Type::Tensor(ty) = Type::fixed(DType::F32, &[elements]) else { unreachable!() };
            let ty = Type::Tensor(TensorType { sbp: Some(on_mesh(sbp)), ..ty });
            Rewriter::new(&mut self.graph, "test").set_type(value, ty);
            value
        }

        fn product(&mut self, name: &'static str, operands: [ValueId; 2], sbp: Sbp) -> ValueId {
            self.op(name, MatMul {}, &operands, sbp)
        }

        fn gather(&mut self, name: &'static str, from: ValueId) -> ValueId {
            let sharding = on_mesh(Sbp::Broadcast);
            self.op(name, AllGather { axes: vec![0], sharding }, &[from], Sbp::Broadcast)
        }

        fn reduce(&mut self, name: &'static str, from: ValueId) -> ValueId {
            let sharding = on_mesh(Sbp::Broadcast);
            self.op(name, AllReduce { axes: vec![0], sharding }, &[from], Sbp::Broadcast)
        }

        fn scatter(&mut self, name: &'static str, from: ValueId) -> ValueId {
            let sharding = on_mesh(Sbp::Split(0));
            self.op(name, ReduceScatter { axes: vec![0], sharding }, &[from], Sbp::Split(0))
        }

        /// The names of the ops in the order for a mesh whose devices send so many bytes a second.
        fn ordered(self, outputs: &[ValueId], carried: &[i64], bandwidth: f64) -> String {
            let Maker { mut graph, names } = self;
            Rewriter::new(&mut graph, "test").create(Return {}, outputs).unwrap();
            let mut func = Func::numbered(graph);
            func.attrs.set(CARRIED, Attr::Ints(carried.to_vec()));
            let mut mesh = MeshSpec::named("cpu[2]").unwrap();
            mesh.axes[0].bandwidth = bandwidth;
            let meshes = Meshes::from(&mesh);
            overlap_transfers(&mut func, &meshes).unwrap();
            let g = &func.graph;
            let ops: Vec<OpId> = g.region_ops(g.entry()).collect();
            for (place, op) in ops.iter().enumerate() {
                let made = |v: &ValueId| g.def_op(*v).is_none_or(|from| ops[..place].contains(&from));
                assert!(g.op(*op).operands.iter().all(made), "an op comes before its operands");
            }
            assert_eq!(overlap_transfers(&mut func, &meshes).unwrap(), 0, "the order is not final");
            ops.iter().filter_map(|op| names.get(op).copied()).collect::<Vec<_>>().join(" ")
        }
    }

    #[test]
    fn reductions_that_others_read_follow_what_makes_their_operands() {
        let mut m = Maker::new();
        let x = m.input(Sbp::Broadcast);
        let a = m.op("a", Exp {}, &[x], SUM);
        let b = m.op("b", Mul {}, &[a, x], SUM);
        let last = m.op("last", Exp {}, &[x], Sbp::Broadcast);
        // The sum of the second comes first, and both are at the end.
        let of_b = m.reduce("+b", b);
        let of_a = m.reduce("+a", a);
        assert_eq!(m.ordered(&[last, of_a, of_b], &[-1, -1, -1], 8e9), "a +a b +b last");
    }

    /// A step of two layers whose parameters are split over the devices.
    fn split_parameters(bandwidth: f64) -> String {
        let mut m = Maker::new();
        let (x, w1, w2) = (m.input(Sbp::Split(0)), m.input(Sbp::Split(0)), m.input(Sbp::Split(0)));
        let whole1 = m.gather("get1", w1);
        let y1 = m.product("y1", [x, whole1], Sbp::Split(0));
        let whole2 = m.gather("get2", w2);
        let y2 = m.product("y2", [y1, whole2], Sbp::Split(0));
        let d2 = m.product("dw2", [y1, y2], SUM);
        let dy1 = m.product("dy1", [y2, whole2], Sbp::Split(0));
        let d1 = m.product("dw1", [x, dy1], SUM);
        let g1 = m.scatter("+1", d1);
        let next1 = m.op("next1", Sub {}, &[w1, g1], Sbp::Split(0));
        let g2 = m.scatter("+2", d2);
        let next2 = m.op("next2", Sub {}, &[w2, g2], Sbp::Split(0));
        m.ordered(&[next1, next2], &[1, 2], bandwidth)
    }

    #[test]
    fn gathers_come_a_layer_early_and_updates_in_the_order_of_their_sums() {
        // The first sum is there before the second, and its update fills the time until then.
        assert_eq!(
            split_parameters(8e9),
            "get1 y1 get2 y2 dw2 +2 dy1 dw1 +1 next2 next1".replace("y1 get2", "get2 y1")
        );
        assert_eq!(split_parameters(1e8), "get1 get2 y1 y2 dw2 +2 dy1 dw1 +1 next2 next1");
    }

    #[test]
    fn gradients_come_before_those_of_the_layers_input() {
        let mut m = Maker::new();
        let (x, w1, w2) = (m.input(Sbp::Split(0)), m.input(Sbp::Broadcast), m.input(Sbp::Broadcast));
        let y1 = m.product("y1", [x, w1], Sbp::Split(0));
        let y2 = m.product("y2", [y1, w2], Sbp::Split(0));
        let dy1 = m.product("dy1", [y2, w2], Sbp::Split(0));
        let dx = m.product("dx", [dy1, w1], Sbp::Split(0));
        // What only the gradient reads does not come before its other operand is there.
        let turned = m.op("turn", Exp {}, &[y1], Sbp::Split(1));
        let d2 = m.product("dw2", [turned, y2], SUM);
        let g2 = m.reduce("+2", d2);
        let d1 = m.product("dw1", [x, dy1], SUM);
        let g1 = m.reduce("+1", d1);
        let new1 = m.op("new1", Sub {}, &[w1, g1], Sbp::Broadcast);
        let new2 = m.op("new2", Sub {}, &[w2, g2], Sbp::Broadcast);
        let want = "y1 y2 turn dw2 +2 dy1 dw1 +1 dx new2 new1";
        assert_eq!(m.ordered(&[dx, new1, new2], &[-1, 1, 2], 8e9), want);
    }

    #[test]
    fn parameters_that_are_turned_before_they_are_gathered_come_early() {
        let mut m = Maker::new();
        let (x, w1, w2) = (m.input(Sbp::Split(0)), m.input(Sbp::Broadcast), m.input(Sbp::Split(0)));
        let y1 = m.product("y1", [x, w1], Sbp::Split(0));
        let turned = m.op("turn", Exp {}, &[w2], Sbp::Split(0));
        let whole = m.gather("get", turned);
        let y2 = m.product("y2", [y1, whole], Sbp::Split(0));
        assert_eq!(m.ordered(&[y2], &[-1], 8e9), "turn get y1 y2");
    }

    /// A step whose parameters are whole on all devices, and whose updates are split.
    #[test]
    fn new_parameters_are_sent_during_the_backward_pass() {
        let mut m = Maker::new();
        let (x, w1, w2) = (m.input(Sbp::Split(0)), m.input(Sbp::Broadcast), m.input(Sbp::Broadcast));
        let y1 = m.product("y1", [x, w1], Sbp::Split(0));
        let y2 = m.product("y2", [y1, w2], Sbp::Split(0));
        let d2 = m.product("dw2", [y1, y2], SUM);
        let dy1 = m.product("dy1", [y2, w2], Sbp::Split(0));
        let more = m.product("more", [dy1, dy1], Sbp::Split(0));
        let d1 = m.product("dw1", [x, more], SUM);
        let g1 = m.scatter("+1", d1);
        let next1 = m.op("next1", Exp {}, &[g1], Sbp::Split(0));
        let new1 = m.gather("send1", next1);
        let g2 = m.scatter("+2", d2);
        let next2 = m.op("next2", Exp {}, &[g2], Sbp::Split(0));
        let new2 = m.gather("send2", next2);
        let (w3, whole) = (m.input(Sbp::Broadcast), m.gather("get", more));
        let d3 = m.op("d3", Mul {}, &[whole, whole], Sbp::Broadcast);
        let new3 = m.op("new3", Sub {}, &[w3, d3], Sbp::Broadcast);
        // The next value of the second parameter may take its place when `dy1` has read it. A gradient that is the sum over gathered values
        // comes as early as the others. At the end, what is sent precedes what is not: `new3` takes place during the last transfer.
        let want = "y1 y2 dw2 +2 dy1 next2 send2 more get dw1 +1 d3 next1 send1 new3";
        assert_eq!(m.ordered(&[new1, new2, new3], &[1, 2, 3], 8e9), want);
    }

    #[test]
    fn where_most_transfers_are_waited_for_gathers_stay() {
        let mut m = Maker::new();
        let (x, w) = (m.input(Sbp::Split(0)), m.input(Sbp::Split(0)));
        let part = m.op("part", Exp {}, &[x], SUM);
        let mean = m.reduce("mean", part);
        let y = m.product("y", [x, mean], Sbp::Split(0));
        let again = m.op("again", Exp {}, &[y], SUM);
        let mean = m.reduce("mean2", again);
        let whole = m.gather("get", w);
        let z = m.product("z", [mean, whole], Sbp::Split(0));
        let dw = m.product("dw", [x, z], SUM);
        let late = m.op("late", Exp {}, &[z], Sbp::Split(0));
        let g = m.scatter("+w", dw);
        let next = m.op("next", Sub {}, &[w, g], Sbp::Split(0));
        assert_eq!(m.ordered(&[late, next], &[-1, 1], 8e9), "part mean y again mean2 get z dw +w late next");
    }

    #[test]
    fn sums_come_behind_a_reduction_that_others_wait_for() {
        let mut m = Maker::new();
        let (x, w) = (m.input(Sbp::Split(0)), m.input(Sbp::Broadcast));
        let dw = m.product("dw", [x, w], SUM);
        let part = m.op("part", Exp {}, &[x], SUM);
        let mean = m.reduce("mean", part);
        let dx = m.product("dx", [x, mean], Sbp::Split(0));
        let y = m.product("y", [dx, mean], Sbp::Split(0));
        let g = m.scatter("+w", dw);
        let whole = m.gather("whole", g);
        let next = m.op("next", Sub {}, &[w, whole], Sbp::Broadcast);
        // It would be under way while `part` takes no time, and `mean` would wait for it.
        assert_eq!(m.ordered(&[y, next], &[-1, 1], 1e8), "dw part mean +w dx y whole next");
    }

    #[test]
    fn parts_of_a_step_with_microbatches_are_ordered_by_themselves() {
        let mut m = Maker::new();
        let (data, w1, w2) = (m.input(Sbp::Split(1)), m.input(Sbp::Split(0)), m.input(Sbp::Split(0)));
        let stack = Type::fixed(DType::F32, &[4, 1024, 1024]);
        let Type::Tensor(stack) = stack else { unreachable!() };
        let stack = Type::Tensor(TensorType { sbp: Some(on_mesh(Sbp::Split(1))), ..stack });
        Rewriter::new(&mut m.graph, "test").set_type(data, stack);
        let x = m.op("x", Unpack {}, &[data], Sbp::Split(0));
        let whole2 = m.gather("get2", w2);
        let whole1 = m.gather("get1", w1);
        let y1 = m.product("y1", [x, whole1], Sbp::Split(0));
        let y2 = m.product("y2", [y1, whole2], Sbp::Split(0));
        let d2 = m.product("dw2", [y1, y2], SUM);
        let collect = || Accumulate { count: 4, kind: "sum".into() };
        let d2 = m.op("all2", collect(), &[d2], SUM);
        let dy1 = m.product("dy1", [y2, whole2], Sbp::Split(0));
        let d1 = m.product("dw1", [x, dy1], SUM);
        let d1 = m.op("all1", collect(), &[d1], SUM);
        let g1 = m.scatter("+1", d1);
        let next1 = m.op("next1", Sub {}, &[w1, g1], Sbp::Split(0));
        let g2 = m.scatter("+2", d2);
        let next2 = m.op("next2", Sub {}, &[w2, g2], Sbp::Split(0));
        // Gathers are launched in the order of their readers, and sums before the first update waits for one.
        let order = m.ordered(&[next1, next2], &[1, 2], 8e9);
        assert_eq!(order, "get1 get2 x y1 y2 dw2 all2 dy1 dw1 all1 +1 +2 next1 next2");
    }

    #[test]
    fn small_sums_come_one_after_another() {
        let mut m = Maker::new();
        let x = m.input(Sbp::Split(0));
        let (mut last, mut next) = (m.product("y", [x, x], Sbp::Split(0)), Vec::new());
        let layers: [[&'static str; 4]; 4] = [
            ["dw4", "+w4", "db4", "+b4"],
            ["dw3", "+w3", "db3", "+b3"],
            ["dw2", "+w2", "db2", "+b2"],
            ["dw1", "+w1", "db1", "+b1"],
        ];
        for [dw, of_w, db, of_b] in layers {
            // 2,000 floats take as long as the latency.
            let (w, b) = (m.product(dw, [last, x], SUM), m.vector(db, last, 900, SUM));
            next.extend([m.reduce(of_w, w), m.reduce(of_b, b)]);
            last = m.product("dx", [last, x], Sbp::Split(0));
        }
        let carried: Vec<i64> = next.iter().map(|_| 0).collect();
        let order = m.ordered(&next, &carried, 8e9);
        let sums: Vec<&str> = order.split(' ').filter(|name| name.starts_with('+')).collect();
        assert_eq!(sums, ["+w4", "+w3", "+b4", "+b3", "+w2", "+b2", "+b1", "+w1"], "{order}");
    }
}
