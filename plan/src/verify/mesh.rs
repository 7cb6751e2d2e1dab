//! Deadlock analysis across ranks: a proof that the rendezvous of a mesh cannot deadlock, and that each rank's buffers hold
//! the data of its transfers.
//!
//! On every rank, transfers execute in ascending order of their numbers, enforced by edges of the task graph. All ranks of
//! a transfer's group take part in the same transfer. So of all waiting transfers, the one with the smallest number can
//! proceed: a rank that is missing there would have to wait at a smaller number. The condition is local to each pair of
//! successive transfers, so no search for a cycle is needed, and the finding names the pair that breaks the order.
//!
//! A program with microbatches runs or launches its transfers in the order of its schedule, several times. There the orders of all ranks
//! together must have no cycle. A rank comes to the place of a transfer when the transfers before it are over, because the proof of its program
//! lets its tasks wait for these alone. So of all that are not over, the first in a common order can proceed.
//!
//! An asynchronous transfer ends when its task does, and the edges of the graph are the same. A rank has one thread for them, which
//! executes them in the order of these edges. A local transfer, of which every rank has all that it needs, is no rendezvous.
//!
//! A rendezvous may be of several transfers, next to each other in that order. All participants have the same ones in it, so it is as one.
//!
//! A backend's executable may perform a rank's part of transfers itself, one after another. Then the executables of all
//! participants do, with the same backend.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::exec::bytes_left;
use super::{Finding, FindingKind, HappensBefore};
use crate::layout::{OPEN, coords};
use crate::mesh::parts;
use crate::task_graph::topological_order;
use crate::{
    ElementType, Exec, FusedSends, MeshPort, MeshProgram, Plan, Port, Program, Task, TaskGraph, Transfer, Weight,
};

/// The most ranks of a mesh.
const MAX_RANKS: usize = 1 << 16;
/// At most this many findings are reported.
const MAX_FINDINGS: usize = 16;

/// All findings about the plan's meshes. Their programs were verified one by one before.
pub(crate) fn check(plan: &Plan) -> Vec<Finding> {
    check_ranks(plan, None)
}

/// Those that concern one rank: its weights, ports and variables, its transfers with others, and the orders of transfers.
pub(crate) fn check_rank(plan: &Plan, rank: usize) -> Vec<Finding> {
    check_ranks(plan, Some(rank))
}

fn check_ranks(plan: &Plan, only: Option<usize>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut templates = HashSet::new();
    for mesh in &plan.meshes {
        let mut c = Checker { plan, mesh, findings: Vec::new() };
        c.mesh(only);
        templates.extend(mesh.ranks.iter().map(|r| r.program as usize));
        findings.append(&mut c.findings);
    }
    for (index, program) in plan.programs.iter().enumerate() {
        // A plan without a mesh may be part of another, whose ranks run it.
        let part = plan.meshes.is_empty() && program.inner;
        if !templates.contains(&index) && !part && transfers(program).next().is_some() {
            let message = "it takes part in transfers and no rank of a mesh runs it";
            findings.push(Finding::new(FindingKind::Ownership, format!("program `{}`", program.name), message));
        }
    }
    findings
}

/// The transfers of a program, each with its elements and the place of its task.
fn transfers(program: &Program) -> impl Iterator<Item = (usize, &Transfer, ElementType)> {
    let tasks = program.tasks.iter().enumerate();
    tasks.flat_map(move |(at, task)| program.transfers(task).map(move |(transfer, dtype)| (at, transfer, dtype)))
}

/// The numbers of the transfers of a program in the order in which they take place, each with its task.
fn sequence(program: &Program) -> Vec<(u32, &Task)> {
    let of = |task: usize| {
        let task = &program.tasks[task];
        program.transfers(task).map(move |(transfer, _)| (transfer.id, task))
    };
    match program.schedule.is_empty() {
        true => (0..program.tasks.len()).flat_map(of).collect(),
        false => program.sequence().flat_map(|phase| program.phases[phase].range()).flat_map(of).collect(),
    }
}

/// A transfer at its place in a schedule.
#[derive(Clone, Copy)]
struct ScheduledTransfer<'a> {
    id: u32,
    /// How many times it took place before in the run.
    act: u32,
    task: &'a Task,
}

impl fmt::Display for ScheduledTransfer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transfer {} of `{}` in microbatch {}", self.id, self.task.name, self.act)
    }
}

/// The use of a transfer by a task of a template.
#[derive(Clone, Copy)]
struct TransferUse<'a> {
    transfer: &'a Transfer,
    dtype: ElementType,
    /// The backend that performs it; empty where the runtime does.
    by: &'a str,
    /// The number of its rendezvous: that of its first transfer.
    rendezvous: u32,
    /// Index of its task.
    task: usize,
    /// How many times it takes place in a run.
    times: u32,
}

impl TransferUse<'_> {
    /// Whether two ranks' uses are one rendezvous.
    fn fits(&self, other: &TransferUse<'_>) -> bool {
        (self.transfer, self.dtype, self.by, self.rendezvous, self.times)
            == (other.transfer, other.dtype, other.by, other.rendezvous, other.times)
    }
}

/// A template's uses of transfers, by number.
type TemplateTransfers<'a> = BTreeMap<u32, TransferUse<'a>>;

struct Checker<'a> {
    plan: &'a Plan,
    mesh: &'a MeshProgram,
    findings: Vec<Finding>,
}

impl<'a> Checker<'a> {
    fn report(&mut self, kind: FindingKind, place: &str, message: impl Into<String>) {
        if self.findings.len() < MAX_FINDINGS {
            let place = format!("mesh `{}`{}{place}", self.mesh.name, if place.is_empty() { "" } else { ", " });
            self.findings.push(Finding::new(kind, place, message));
        }
    }

    fn mesh(&mut self, only: Option<usize>) {
        let count = self.mesh.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d as usize));
        let ranks = self.mesh.ranks.len();
        if count != Some(ranks) || ranks == 0 || ranks > MAX_RANKS {
            return self.report(
                FindingKind::Range,
                "",
                format!("{:?} is not a shape of {ranks} ranks", self.mesh.shape),
            );
        }
        if self.mesh.ranks.iter().any(|r| r.program as usize >= self.plan.programs.len()) {
            return self.report(FindingKind::Index, "", "a rank runs a program that does not exist");
        }
        let checked = || (0..ranks).filter(|rank| only.is_none_or(|only| only == *rank));
        for rank in checked() {
            self.weights(rank);
            self.ports(rank);
        }
        let templates: BTreeMap<u32, TemplateTransfers<'a>> = self
            .mesh
            .ranks
            .iter()
            .map(|r| r.program)
            .collect::<HashSet<u32>>()
            .into_iter()
            .map(|p| (p, self.template(p)))
            .collect();
        if self.findings.is_empty() {
            self.schedules(&templates);
            for rank in checked() {
                self.transfers(rank, &templates);
            }
        }
    }

    /// Programs with microbatches: every rank runs its transfers in the order of its schedule, and these orders have no cycle.
    fn schedules(&mut self, templates: &BTreeMap<u32, TemplateTransfers<'a>>) {
        let programs = || templates.keys().map(|index| &self.plan.programs[*index as usize]);
        if programs().all(|program| program.schedule.is_empty()) {
            return;
        }
        let mut numbers: HashMap<(u32, u32), u32> = HashMap::new();
        let (mut edges, mut steps) = (Vec::new(), Vec::new());
        for program in programs() {
            let mut acts: HashMap<u32, u32> = HashMap::new();
            let mut last: Option<(u32, ScheduledTransfer<'_>)> = None;
            for (id, task) in sequence(program) {
                let act = acts.entry(id).or_default();
                let own = ScheduledTransfer { id, act: *act, task };
                let next = numbers.len() as u32;
                let node = *numbers.entry((id, *act)).or_insert(next);
                *act += 1;
                if let Some((before, other)) = last.replace((node, own)) {
                    edges.push((before, node));
                    steps.push((program, other, own));
                }
            }
        }
        if let Err(cycle) = topological_order(numbers.len(), &edges) {
            let before = cycle.iter().cycle().skip(1);
            let step = |(node, before): (&u32, &u32)| {
                let at = edges.iter().position(|edge| edge == &(*before, *node));
                at.and_then(|at| steps.get(at))
                    .map(|(program, before, own)| format!("in `{}` {own} waits for {before}", program.name))
            };
            let steps: Vec<String> = cycle.iter().zip(before).filter_map(step).collect();
            let message = format!("the ranks' transfers deadlock: {}", steps.join("; "));
            self.report(FindingKind::Deadlock, "", message);
        }
    }

    fn program(&self, rank: usize) -> &'a Program {
        &self.plan.programs[self.mesh.ranks[rank].program as usize]
    }

    fn weights(&mut self, rank: usize) {
        let weight = |index: u32| self.plan.weights.get(index as usize);
        let same = |a: &Weight, b: &Weight| a.dtype == b.dtype && a.dims == b.dims && a.len == b.len;
        for entry in &self.mesh.ranks[rank].weight_overrides {
            let fits = weight(entry.original).zip(weight(entry.replacement)).is_some_and(|(a, b)| same(a, b));
            // Arguments were checked for alignment against the template's weight.
            let aligned = weight(entry.original)
                .zip(weight(entry.replacement))
                .is_some_and(|(a, b)| a.offset % crate::VALUE_ALIGN == b.offset % crate::VALUE_ALIGN);
            if !fits || !aligned {
                let message = format!("weight {} in place of {} is of another type", entry.replacement, entry.original);
                self.report(FindingKind::Type, &format!("rank {rank}"), message);
            }
        }
    }

    fn ports(&mut self, rank: usize) {
        let (program, mesh) = (self.program(rank), self.mesh);
        let place = format!("rank {rank}");
        if program.pipelined {
            self.report(FindingKind::Reserved, &place, "iterations of a program on a mesh do not overlap");
        }
        for (whole, own, what) in
            [(&mesh.inputs, &program.inputs, "inputs"), (&mesh.outputs, &program.outputs, "outputs")]
        {
            let parts = parts(whole, &coords(&mesh.extents(), rank));
            if parts.len() != own.len() || parts.iter().zip(own).any(|(i, o)| !self.fits(&whole[*i], o, rank)) {
                self.report(FindingKind::Type, &place, format!("its {what} are not its parts of the mesh's"));
            }
        }
        self.variables(rank, &place);
    }

    /// A rank has its parts of the mesh's variables, and no others.
    fn variables(&mut self, rank: usize, place: &str) {
        let (program, mesh) = (self.program(rank), self.mesh);
        let held = parts(&mesh.variables, &coords(&mesh.extents(), rank));
        let own = |whole: &MeshPort| program.variables.iter().find(|own| own.name == whole.name);
        let is_part = |whole: &MeshPort| {
            own(whole).is_some_and(|own| {
                let port = Port { dtype: own.dtype, dims: own.dims.clone(), ..Port::default() };
                whole.microbatches.is_none() && self.fits(whole, &port, rank)
            })
        };
        if held.len() != program.variables.len() || !held.iter().all(|i| is_part(&mesh.variables[*i])) {
            self.report(FindingKind::Type, place, "its variables are not its parts of the mesh's");
        }
    }

    /// Whether a rank's port is its part of the whole one.
    fn fits(&self, whole: &MeshPort, own: &Port, rank: usize) -> bool {
        let mesh = self.mesh.extents();
        // A port's layout is well formed if the identity transfer of it is.
        let axes = (0..mesh.len() as u32).collect();
        let (from, to) = (whole.layout.clone(), whole.layout.clone());
        let sound = Transfer { axes, dims: whole.dims.clone(), from, to, ..Transfer::default() }.check(&mesh).is_ok();
        let cut = |t: crate::Microbatches| {
            let extent = whole.dims.get(t.axis as usize);
            t.count > 0 && extent.is_some_and(|n| n % i64::from(t.count) == 0)
        };
        let cut = |t| !whole.is_open() && cut(t);
        sound && whole.microbatches.is_none_or(cut) && whole.dtype().bits() >= 8 && {
            let part = whole.block(&mesh, &coords(&mesh, rank), 0);
            let extent = |(d, (_, n)): (&i64, &(usize, usize))| if *d == OPEN { OPEN } else { *n as i64 };
            let part = whole.dims.iter().zip(&part).map(extent);
            let stacked = whole.microbatches.map(|t| i64::from(t.count));
            let part: Vec<i64> = stacked.into_iter().chain(part).collect();
            own.object == whole.is_open() && own.dtype == whole.dtype && own.dims == part
        }
    }

    /// The transfers of a template by their numbers.
    fn template(&mut self, index: u32) -> TemplateTransfers<'a> {
        let program = &self.plan.programs[index as usize];
        let mut out = BTreeMap::new();
        let order = TaskGraph::of(program).map(|graph| HappensBefore::within_iteration(program, &graph));
        let mut last: Option<(usize, u32)> = None;
        for (task, transfer, dtype) in transfers(program) {
            let place = format!("program `{}`, task `{}`", program.name, program.tasks[task].name);
            if let Err(why) = transfer.check(&self.mesh.extents()) {
                self.report(FindingKind::Type, &place, why);
                continue;
            }
            let id = transfer.id;
            let (scheduled, local) = (!program.schedule.is_empty(), transfer.is_local());
            if let Some((before, number)) = last.filter(|_| !scheduled && !local) {
                // A task performs its own transfers in their listed order.
                let edge = || order.as_ref().is_some_and(|r| r.before(before as u32, task as u32));
                if number >= id || !(before == task || edge()) {
                    let other = &program.tasks[before].name;
                    let message = format!("transfer {id} does not come after transfer {number} of `{other}`");
                    self.report(FindingKind::Deadlock, &place, message);
                }
            }
            // A local transfer waits for no rank, so it may come at any time.
            last = if local { last } else { Some((task, id)) };
            let (by, rendezvous) = match &program.tasks[task].exec {
                Some(Exec::Backend(exec)) => (&exec.backend[..], id),
                Some(Exec::Boxing(exec)) => ("", exec.transfer.id),
                _ => ("", id),
            };
            let times = program.times(task);
            if let Some(other) = out.insert(id, TransferUse { transfer, dtype, by, rendezvous, task, times })
                && !scheduled
            {
                let message = format!("transfer {id} is that of `{}`, too", program.tasks[other.task].name);
                self.report(FindingKind::Deadlock, &place, message);
            }
        }
        out
    }

    /// Checks that all participants of a rank's transfers agree, and that its buffers hold its parts.
    fn transfers(&mut self, rank: usize, templates: &BTreeMap<u32, TemplateTransfers<'a>>) {
        let mesh = self.mesh.extents();
        let own = self.mesh.ranks[rank].program;
        let program = self.program(rank);
        for mine in templates[&own].values() {
            let (t, task) = (mine.transfer, &program.tasks[mine.task]);
            let others =
                t.participants(&mesh, rank as u32).into_iter().map(|r| (r, self.mesh.ranks[r as usize].program));
            let mut others = others.filter(|(_, p)| *p != own);
            let odd = others.find(|(_, p)| !templates[p].get(&t.id).is_some_and(|o| o.fits(mine)));
            let place = format!("rank {rank}, task `{}`", task.name);
            if let Some((other, _)) = odd {
                let message = format!("rank {other} does not take part in the rendezvous of transfer {}", t.id);
                self.report(FindingKind::Deadlock, &place, message);
            }
            let Some(Exec::Boxing(exec)) = task.exec.as_ref().filter(|_| !t.is_open()) else { continue };
            let group = t.group(&mesh, rank as u32);
            let bytes =
                |after| (t.elements(&group, group.me, after) as u64).saturating_mul(u64::from(mine.dtype.bits() / 8));
            let Some((_, src, dst)) = exec.transfers().find(|(transfer, ..)| transfer.id == t.id) else { continue };
            let room = |register: u32| program.registers.get(register as usize)?.block().map(|block| block.bytes);
            let from = bytes_left(self.plan, program, src);
            if bytes(false) > from || bytes(true) > room(dst).unwrap_or(0) {
                self.report(FindingKind::Range, &place, "its parts of the tensor do not fit into its buffers");
            }
            if let Some(staging) = exec.staging.filter(|_| t.id == exec.transfer.id) {
                let sent = FusedSends::of(exec, &mesh, rank as u32).bytes(mine.dtype);
                if sent > room(staging).unwrap_or(0) {
                    self.report(FindingKind::Range, &place, "what it sends does not fit into the register for that");
                }
            }
        }
    }
}
