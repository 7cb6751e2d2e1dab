//! Simulation of the ranks of a mesh: their actors, which wait for one another in rendezvous.
//!
//! Ranks are equivalent if they run the same template with the same costs and exchange data with equivalent ranks. Such
//! ranks always have the same state, so one of each class is simulated. Colour refinement of the communication graph gives
//! the classes (Weisfeiler, Leman, 1968). A mesh of 1,024 ranks with even splits is one class.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use of_plan::{ArgSource, Exec, MeshProgram, Plan, Program, Task, TaskGraph};

use super::queue::Random;
use super::{SimError, SimOptions, SimRank, Simulator, Template, Timeline, is_sound};

/// How ranks are simulated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RanksOptions {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Number of iterations; 0 counts as 1.
    pub iterations: u64,
    /// Number of ranks that compute at the same time, if they share the cores of a machine.
    pub cores: Option<usize>,
    /// The largest random delay of a task, relative to its cost.
    pub jitter: f64,
}

/// The result of a simulation of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct RanksTimeline {
    /// The classes of equivalent ranks.
    pub classes: Vec<RankClass>,
    /// The time at which the last rank ended.
    pub makespan_ns: u64,
}

/// Equivalent ranks: they have the same timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct RankClass {
    /// The ranks, ascending.
    pub ranks: Vec<u32>,
    /// Their template, an index in `Plan::programs`.
    pub program: u32,
    /// The timeline of each rank.
    pub timeline: Timeline,
    /// Bytes that each has for registers: all chunks, which are laid out before the run.
    pub chunk_bytes: u64,
    /// Bytes of the weights that each reads.
    pub weight_bytes: u64,
    /// Bytes of scratch memory.
    pub scratch_bytes: u64,
    /// Bytes of its parts of the inputs and outputs, which are copied to and from its registers.
    pub port_bytes: u64,
}

impl RankClass {
    /// Memory of each rank.
    pub fn memory_bytes(&self) -> u64 {
        self.chunk_bytes + self.weight_bytes + self.scratch_bytes + self.port_bytes
    }

    /// The share of the time until `makespan_ns` in which each worked on at least one task: its threads and its asynchronous transfers
    /// work at the same time.
    pub fn utilisation(&self, makespan_ns: u64) -> f64 {
        let mut work: Vec<(u64, u64)> =
            self.timeline.events.iter().map(|e| (e.start_ns + e.waited_ns, e.end_ns)).collect();
        work.sort_unstable();
        let (mut worked, mut until) = (0, 0);
        for (start, end) in work {
            worked += end.saturating_sub(start.max(until));
            until = until.max(end);
        }
        worked as f64 / makespan_ns.max(1) as f64
    }

    /// Nanoseconds that the tasks of each waited for a core.
    pub fn core_wait_ns(&self) -> u64 {
        self.timeline.events.iter().map(|e| e.core_wait_ns).sum()
    }
}

/// Runs the actors of all ranks of a mesh until they have ended. `costs_ns` says how long the tasks of a rank take, in
/// the order of its program's.
pub fn simulate_ranks(
    plan: &Plan,
    mesh: &MeshProgram,
    options: &RanksOptions,
    costs_ns: &mut dyn FnMut(u32, &Program) -> Vec<u64>,
) -> Result<RanksTimeline, SimError> {
    let setup = |problem: &str| SimError::Setup { program: mesh.name.clone(), problem: problem.into() };
    let count = mesh.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d as usize));
    if count != Some(mesh.ranks.len()) || mesh.ranks.is_empty() {
        return Err(setup("its ranks are not those of its shape"));
    }
    let mut templates: BTreeMap<u32, Template<'_>> = BTreeMap::new();
    for rank in &mesh.ranks {
        let Entry::Vacant(place) = templates.entry(rank.program) else { continue };
        let program = plan.programs.get(rank.program as usize).ok_or_else(|| setup("a program does not exist"))?;
        let graph = TaskGraph::of(program).filter(|graph| is_sound(program, graph));
        let graph = graph.ok_or_else(|| setup("the tasks and registers of a program do not agree"))?;
        let mut transfers = program.tasks.iter().flat_map(|task| program.transfers(task));
        if transfers.any(|(t, _)| t.check(&mesh.extents()).is_err()) {
            return Err(setup("a transfer is not one of its mesh"));
        }
        place.insert(Template::new(program, graph));
    }
    let apart = options.jitter > 0.0 || options.cores.is_some_and(|n| n < mesh.ranks.len());
    let groups = Groups::of(plan, mesh);
    let classes = if apart { (0..mesh.ranks.len()).collect() } else { groups.classes(mesh) };
    let sim_ranks = classes.iter().max().map_or(0, |last| last + 1);
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); sim_ranks];
    classes.iter().zip(0..).for_each(|(class, rank)| members[*class].push(rank));
    let mut random = Random(options.seed);
    let mut made = Vec::with_capacity(sim_ranks);
    for ranks in &members {
        let rank = ranks[0];
        let template = &templates[&mesh.ranks[rank as usize].program];
        let mut costs = costs_ns(rank, template.program);
        if costs.len() != template.program.tasks.len() {
            return Err(setup("there must be a cost for every task"));
        }
        if options.jitter > 0.0 {
            let late = |ns: u64, random: &mut Random| (ns as f64 * options.jitter * share(random.next())) as u64;
            costs.iter_mut().for_each(|ns| *ns = ns.saturating_add(late(*ns, &mut random)));
        }
        let rendezvous = |task: &Task| {
            let classes_of = |(transfer, _): (&of_plan::Transfer, _)| {
                let ranks = transfer.participants(&mesh.extents(), rank);
                let mut ranks: Vec<usize> = ranks.iter().map(|r| classes[*r as usize]).collect();
                ranks.sort_unstable();
                ranks.dedup();
                (transfer.id, ranks)
            };
            let together = template.program.transfers(task).filter(|(transfer, _)| !transfer.is_local());
            // Fused transfers are one rendezvous.
            let own = if matches!(task.exec, Some(Exec::Boxing(_))) { 1 } else { usize::MAX };
            together.take(own).map(classes_of).filter(|(_, ranks)| ranks.len() > 1).collect()
        };
        let rendezvous = template.program.tasks.iter().map(rendezvous).collect();
        made.push(SimRank::new(template, costs, rendezvous));
    }
    let run = SimOptions { seed: options.seed, iterations: options.iterations.max(1), ..SimOptions::default() };
    let timelines = Simulator::new(made, &run, options.cores.unwrap_or(usize::MAX)).run()?;
    let makespan_ns = timelines.iter().map(|t| t.makespan_ns).max().unwrap_or(0);
    let class = |(ranks, timeline): (Vec<u32>, Timeline)| {
        let program = mesh.ranks[ranks[0] as usize].program;
        let desc = &plan.programs[program as usize];
        let ports = desc.inputs.iter().chain(&desc.outputs);
        let port = |p: &of_plan::Port| p.dtype().byte_len(&p.dims).unwrap_or(0);
        RankClass {
            ranks,
            program,
            timeline,
            chunk_bytes: desc.chunks.iter().map(|c| c.bytes).sum(),
            weight_bytes: weights(plan, desc),
            scratch_bytes: scratch(desc),
            port_bytes: ports.map(port).sum(),
        }
    };
    Ok(RanksTimeline { classes: members.into_iter().zip(timelines).map(class).collect(), makespan_ns })
}

/// A random number as a fraction from 0 to 1.
fn share(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

/// Bytes of the weights that the tasks of a program read, each once.
fn weights(plan: &Plan, program: &Program) -> u64 {
    let args = |task: &Task| match &task.exec {
        Some(Exec::Kernel(e)) => e.args.clone(),
        Some(Exec::Backend(e)) => e.inputs.clone(),
        Some(Exec::Control(e)) => e.inputs.clone(),
        Some(Exec::Copy(e)) => vec![e.src.clone()],
        Some(Exec::Concat(e)) => e.parts.iter().map(|part| part.src.clone()).collect(),
        Some(Exec::Boxing(e)) => e.transfers().map(|(_, src, _)| src.clone()).collect(),
        _ => Vec::new(),
    };
    let mut read: Vec<(u64, u64)> = Vec::new();
    for arg in program.tasks.iter().flat_map(args) {
        if let Some(ArgSource::Weight(index)) = arg.source
            && let Some(weight) = plan.weights.get(index as usize)
        {
            read.push((weight.offset, weight.len));
        }
    }
    read.sort_unstable();
    read.dedup();
    read.into_iter().map(|(_, len)| len).sum()
}

fn scratch(program: &Program) -> u64 {
    let bytes = |task: &Task| match &task.exec {
        Some(Exec::Kernel(e)) => e.scratch_bytes,
        _ => 0,
    };
    program.tasks.iter().map(bytes).max().unwrap_or(0)
}

/// The ranks of each group along some axes, and each rank's group.
type Along = (Vec<Vec<u32>>, Vec<usize>);

/// The groups of ranks that exchange data, for every set of mesh axes of a transfer.
struct Groups {
    by_axes: HashMap<Vec<u32>, Along>,
    /// The sets of axes in order.
    axes: Vec<Vec<u32>>,
}

impl Groups {
    fn of(plan: &Plan, mesh: &MeshProgram) -> Self {
        let mut programs: Vec<u32> = mesh.ranks.iter().map(|r| r.program).collect();
        programs.sort_unstable();
        programs.dedup();
        let programs = programs.iter().filter_map(|p| plan.programs.get(*p as usize));
        let transfers = programs.flat_map(|p| p.tasks.iter().flat_map(|task| p.transfers(task)));
        let mut groups = Self { by_axes: HashMap::new(), axes: Vec::new() };
        let extents = mesh.extents();
        for (transfer, _) in transfers {
            if groups.by_axes.contains_key(&transfer.axes) {
                continue;
            }
            let (mut members, mut of_rank) = (Vec::new(), vec![usize::MAX; mesh.ranks.len()]);
            for rank in 0..mesh.ranks.len() {
                if of_rank[rank] == usize::MAX {
                    let ranks = transfer.group(&extents, rank as u32).ranks;
                    ranks.iter().for_each(|r| of_rank[*r as usize] = members.len());
                    members.push(ranks);
                }
            }
            groups.axes.push(transfer.axes.clone());
            groups.by_axes.insert(transfer.axes.clone(), (members, of_rank));
        }
        groups
    }

    /// For each rank its class: ranks of one class have the same template and exchange data with the same classes.
    fn classes(&self, mesh: &MeshProgram) -> Vec<usize> {
        let mut classes: Vec<usize> = number(mesh.ranks.iter().map(|r| r.program));
        loop {
            // The classes in each group, computed once for all its members.
            let grouped: Vec<(Vec<Vec<usize>>, &Vec<usize>)> = self
                .axes
                .iter()
                .map(|axes| {
                    let (members, of_rank) = &self.by_axes[axes];
                    let sorted = |ranks: &Vec<u32>| {
                        let mut sorted: Vec<usize> = ranks.iter().map(|r| classes[*r as usize]).collect();
                        sorted.sort_unstable();
                        sorted
                    };
                    (members.iter().map(sorted).collect(), of_rank)
                })
                .collect();
            let numbered: Vec<Vec<usize>> = grouped.iter().map(|(groups, _)| number(groups.iter())).collect();
            let key = |rank: usize| {
                let groups = numbered.iter().zip(&grouped).map(|(numbers, (_, of_rank))| numbers[of_rank[rank]]);
                (classes[rank], groups.collect::<Vec<_>>())
            };
            let next = number((0..classes.len()).map(key));
            if next == classes {
                return classes;
            }
            classes = next;
        }
    }
}

/// Numbers distinct values in the order in which they come; equal values get equal numbers.
fn number<T: std::hash::Hash + Eq>(things: impl Iterator<Item = T>) -> Vec<usize> {
    let mut known: HashMap<T, usize> = HashMap::new();
    let mut out = Vec::new();
    for thing in things {
        let next = known.len();
        out.push(*known.entry(thing).or_insert(next));
    }
    out
}
