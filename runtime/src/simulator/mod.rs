//! The simulator: drives the actors of a program through seeded random message orders, checks the runtime's invariants,
//! and gives a timeline. The same seed always gives the same run.
//!
//! Ranks with equal behaviour are simulated once: see [`ranks`].

mod liveness;
mod machine;
mod queue;
mod ranks;
mod reuse;

pub use machine::{CacheLevel, Link, Machine};
pub use ranks::{RankClass, RanksOptions, RanksTimeline, simulate_ranks};

use std::collections::{BTreeMap, VecDeque};

use of_plan::{Program, TaskGraph};

use crate::actor::{Action, Actor, ActorId, Msg, ProtocolError};
use crate::static_schedule::StaticSchedule;
use liveness::LiveRegisters;
use queue::{Event, Queue};

/// Options of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Seed of the random orders and latencies.
    pub seed: u64,
    /// Number of iterations.
    pub iterations: u64,
    /// Nanoseconds that each task takes, in the order of the tasks; empty for 1000 each.
    pub costs_ns: Vec<u64>,
    /// Messages take a random time up to this many nanoseconds; 0 gives the timeline of an ideal bus.
    pub latency_ns: u64,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { seed: 0, iterations: 1, costs_ns: Vec::new(), latency_ns: 0 }
    }
}

/// One execution of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimEvent {
    /// Index of the task.
    pub task: usize,
    /// The iteration it worked on; acts are counted where a task acts several times in one.
    pub iteration: u64,
    /// When it began, in nanoseconds.
    pub start_ns: u64,
    /// When it ended, in nanoseconds.
    pub end_ns: u64,
    /// How much of this it waited, for other ranks or for a core. It waits first, and works from then on.
    pub waited_ns: u64,
    /// How much of [`SimEvent::waited_ns`] it waited for a core.
    pub core_wait_ns: u64,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Every act, in the order of their ends.
    pub events: Vec<SimEvent>,
    /// When the last act ended.
    pub makespan_ns: u64,
    /// The most bytes of registers that were live at one time; registers that work in place count once each.
    pub peak_live_bytes: u64,
}

/// An invariant that does not hold, or options that do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The options do not fit the program, or its registers name tasks that do not exist.
    #[error("cannot simulate program `{program}`: {problem}")]
    Setup {
        /// The program.
        program: String,
        /// What is wrong.
        problem: String,
    },
    /// Deadlock: no actor can act, and some have not ended.
    #[error("deadlock at {at_ns} ns: {} never ended", .waiting.join(", "))]
    Deadlock {
        /// The time in nanoseconds.
        at_ns: u64,
        /// The tasks that wait.
        waiting: Vec<String>,
    },
    /// A register was filled while another one in the same memory was live.
    #[error("at {at_ns} ns task `{task}` fills `{register}` over the live register `{live}`")]
    Overlap {
        /// The time in nanoseconds.
        at_ns: u64,
        /// The task.
        task: String,
        /// The register that it filled.
        register: String,
        /// The live register in the same memory.
        live: String,
    },
    /// A task worked on an iteration out of order, or on a register that holds another iteration.
    #[error("at {at_ns} ns task `{task}` acts on iteration {iteration} out of order")]
    Order {
        /// The time in nanoseconds.
        at_ns: u64,
        /// The task.
        task: String,
        /// Which iteration.
        iteration: u64,
    },
    /// An actor received a message that is invalid in its state.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// Runs a program's actors until all have ended.
pub fn simulate(program: &Program, options: &SimOptions) -> Result<Timeline, SimError> {
    let setup = |problem: &str| SimError::Setup { program: program.name.clone(), problem: problem.into() };
    let graph = TaskGraph::of(program).ok_or_else(|| setup("a register names a task that does not exist"))?;
    if !is_sound(program, &graph) {
        return Err(setup("its tasks and registers do not agree"));
    }
    if !options.costs_ns.is_empty() && options.costs_ns.len() != program.tasks.len() {
        return Err(setup("there must be a cost for every task"));
    }
    if options.iterations == 0 {
        return Err(setup("there must be at least one iteration"));
    }
    let template = Template::new(program, graph);
    let costs: Vec<u64> = match options.costs_ns.as_slice() {
        [] => vec![1000; program.tasks.len()],
        given => given.to_vec(),
    };
    let sim_rank = SimRank::new(&template, costs, Vec::new());
    let mut timelines = Simulator::new(vec![sim_rank], options, usize::MAX).run()?;
    Ok(timelines.pop().unwrap_or_default())
}

/// Whether the actors can be created and connected, which the verifier checks first. The simulator also takes programs that the
/// verifier refuses for deadlock or overlap, to show them failing.
fn is_sound(program: &Program, graph: &TaskGraph) -> bool {
    let in_order = program.registers.iter().zip(0..).all(|(register, id)| register.id == id && register.copies > 0);
    let tasks = || program.tasks.iter().zip(0u32..);
    let mine = |register: &u32, task| graph.producer.get(*register as usize) == Some(&task);
    let read = |register: &u32, task| graph.consumers.get(*register as usize).is_some_and(|all| all.contains(&task));
    let known = tasks().all(|(desc, task)| {
        desc.produces.iter().all(|register| mine(register, task))
            && desc.consumes.iter().all(|register| read(register, task))
    });
    // Each side lists as many ends as the other, so none is missing.
    let produced: usize = program.tasks.iter().map(|task| task.produces.len()).sum();
    let consumed: usize = program.tasks.iter().map(|task| task.consumes.len()).sum();
    let ends: usize = graph.consumers.iter().map(Vec::len).sum();
    in_order && known && produced == program.registers.len() && consumed == ends && !program.threads.is_empty()
}

/// A program, and the data that all its ranks share.
struct Template<'a> {
    program: &'a Program,
    graph: TaskGraph,
    neighbours: Vec<Vec<u32>>,
    /// For each task, its thread.
    thread_of: Vec<usize>,
    /// For each task, whether it is a transfer that the rank's thread for transfers executes.
    concurrent: Vec<bool>,
}

impl<'a> Template<'a> {
    fn new(program: &'a Program, graph: TaskGraph) -> Self {
        let place = |task: &of_plan::Task| program.threads.iter().position(|thread| thread.id == task.thread);
        let thread_of = program.tasks.iter().map(|task| place(task).unwrap_or(0)).collect();
        let concurrent = program.concurrent_transfers();
        Self { program, graph, neighbours: liveness::neighbours(program), thread_of, concurrent }
    }
}

/// A thread of the plan: it does one thing at a time.
#[derive(Default)]
struct SimThread {
    busy: bool,
    inbox: VecDeque<(ActorId, Msg)>,
}

/// A simulated rank: the only one, a rank of a mesh, or a class of equivalent ranks.
struct SimRank<'a> {
    template: &'a Template<'a>,
    actors: Vec<Actor>,
    schedule: Option<StaticSchedule>,
    threads: Vec<SimThread>,
    /// The thread of asynchronous transfers: whether it is busy, and what was launched, task and iteration.
    transferring: bool,
    launched: VecDeque<(usize, u64)>,
    live: LiveRegisters<'a>,
    timeline: Timeline,
    costs_ns: Vec<u64>,
    /// For each task its rendezvous in order: number, and the simulated ranks that take part, this one
    /// included.
    rendezvous: Vec<Vec<(u32, Vec<usize>)>>,
    /// Acts until the iteration is over, where iterations do not overlap.
    left: usize,
    started: u64,
}

impl<'a> SimRank<'a> {
    fn new(template: &'a Template<'a>, costs_ns: Vec<u64>, rendezvous: Vec<Vec<(u32, Vec<usize>)>>) -> Self {
        let program = template.program;
        Self {
            template,
            actors: Actor::of_program(program, &template.graph),
            transferring: false,
            launched: VecDeque::new(),
            schedule: StaticSchedule::of(program),
            threads: program.threads.iter().map(|_| SimThread::default()).collect(),
            live: LiveRegisters::new(program, &template.graph, &template.neighbours),
            timeline: Timeline::default(),
            costs_ns,
            rendezvous,
            left: 0,
            started: 0,
        }
    }
}

/// A task that is ready to be worked on.
#[derive(Clone, Copy)]
struct Ready {
    sim_rank: usize,
    task: usize,
    iteration: u64,
    since: u64,
    /// How many rendezvous it has passed.
    passed: usize,
    /// How long the work takes.
    cost: u64,
    /// Since when it waits for a core, where none was idle.
    queued: Option<u64>,
}

struct Simulator<'a> {
    options: &'a SimOptions,
    sim_ranks: Vec<SimRank<'a>>,
    queue: Queue,
    now: u64,
    /// Ranks that wait in a rendezvous, by the number of the transfer and its participants.
    rendezvous: BTreeMap<(u32, Vec<usize>, u64), Vec<Ready>>,
    /// Cores that are idle, and the tasks that wait for one.
    cores: usize,
    waiting: VecDeque<Ready>,
}

impl<'a> Simulator<'a> {
    fn new(sim_ranks: Vec<SimRank<'a>>, options: &'a SimOptions, cores: usize) -> Self {
        let queue = Queue::new(options.seed, options.latency_ns);
        Self { options, sim_ranks, queue, now: 0, rendezvous: BTreeMap::new(), cores, waiting: VecDeque::new() }
    }

    fn run(mut self) -> Result<Vec<Timeline>, SimError> {
        for sim_rank in 0..self.sim_ranks.len() {
            self.start(sim_rank);
        }
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            match event {
                Event::Deliver { sim_rank, to, msg } => {
                    let thread = self.sim_ranks[sim_rank].template.thread_of[to as usize];
                    self.sim_ranks[sim_rank].threads[thread].inbox.push_back((to, msg));
                    self.go_on(sim_rank, thread)?;
                }
                Event::Finish { sim_rank, event } => self.finish(sim_rank, event)?,
            }
        }
        let stuck = self.sim_ranks.iter().flat_map(|sim_rank| {
            let tasks = sim_rank.actors.iter().zip(&sim_rank.template.program.tasks);
            tasks.filter(|(actor, _)| !actor.is_done()).map(|(_, task)| format!("`{}`", task.name))
        });
        let waiting: Vec<String> = stuck.collect();
        if waiting.is_empty() {
            return Ok(self.sim_ranks.into_iter().map(|sim_rank| sim_rank.timeline).collect());
        }
        Err(SimError::Deadlock { at_ns: self.now, waiting })
    }

    /// Starts the next iteration, or all of them where iterations may overlap; after the last one the sources stop.
    fn start(&mut self, sim_rank: usize) {
        let Self { sim_ranks, queue, options, now, .. } = self;
        let own = &mut sim_ranks[sim_rank];
        let iterations = if own.template.program.pipelined { options.iterations } else { 1 };
        let over = own.started == options.iterations;
        for source in 0..own.actors.len() {
            if own.actors[source].is_source() {
                let times = u64::from(own.template.program.times(source));
                let msg = if over { Msg::Stop } else { Msg::Start { iterations: iterations * times } };
                queue.send(*now, sim_rank, (u32::MAX, source as ActorId), msg);
            }
        }
        if over {
            own.left = usize::MAX;
            return;
        }
        own.started += iterations;
        own.left = own.template.program.acts() * iterations as usize;
    }

    /// Lets an idle thread handle its inbox until it has work to do.
    fn go_on(&mut self, sim_rank: usize, thread: usize) -> Result<(), SimError> {
        while !self.sim_ranks[sim_rank].threads[thread].busy {
            let own = &mut self.sim_ranks[sim_rank];
            if let Some((to, msg)) = own.threads[thread].inbox.pop_front() {
                self.handle(sim_rank, to, msg)?;
            } else if let Some(task) = own.schedule.as_mut().and_then(StaticSchedule::take_held) {
                let iteration = own.actors[task].iterations();
                self.begin(sim_rank, task, iteration)?;
            } else {
                break;
            }
        }
        Ok(())
    }

    fn handle(&mut self, sim_rank: usize, to: ActorId, msg: Msg) -> Result<(), SimError> {
        let mut act = None;
        let (queue, now) = (&mut self.queue, self.now);
        let own = &mut self.sim_ranks[sim_rank];
        own.actors[to as usize].on_message(msg, &mut |action| match action {
            Action::Send { to: receiver, msg } => queue.send(now, sim_rank, (to, receiver), msg),
            Action::Act { iteration } => act = Some(iteration),
            Action::Done => {}
        })?;
        let Some(iteration) = act else { return Ok(()) };
        if own.schedule.as_mut().is_some_and(|schedule| !schedule.admits(to as usize)) {
            return Ok(());
        }
        self.begin(sim_rank, to as usize, iteration)
    }

    /// Begins the work of a task.
    fn begin(&mut self, sim_rank: usize, task: usize, iteration: u64) -> Result<(), SimError> {
        let own = &mut self.sim_ranks[sim_rank];
        if own.template.concurrent[task] {
            own.launched.push_back((task, iteration));
            if let Some(schedule) = &mut own.schedule {
                schedule.launched(&own.template.program.tasks[task]);
            }
            self.handle(sim_rank, task as ActorId, Msg::Launched)?;
            return self.next_transfer(sim_rank);
        }
        own.threads[own.template.thread_of[task]].busy = true;
        self.work_on(sim_rank, task, iteration)
    }

    /// Begins the next of the transfers that were launched, when the one before it has ended.
    fn next_transfer(&mut self, sim_rank: usize) -> Result<(), SimError> {
        let own = &mut self.sim_ranks[sim_rank];
        if own.transferring {
            return Ok(());
        }
        let Some((task, iteration)) = own.launched.pop_front() else { return Ok(()) };
        own.transferring = true;
        self.work_on(sim_rank, task, iteration)
    }

    fn work_on(&mut self, sim_rank: usize, task: usize, iteration: u64) -> Result<(), SimError> {
        let now = self.now;
        let own = &mut self.sim_ranks[sim_rank];
        own.live.begin(task, iteration, own.actors[task].part(), now)?;
        own.timeline.peak_live_bytes = own.timeline.peak_live_bytes.max(own.live.bytes());
        let cost = own.costs_ns[task];
        self.go_to(Ready { sim_rank, task, iteration, since: now, passed: 0, cost, queued: None });
        Ok(())
    }

    /// Proceeds to the next rendezvous of a task, or to its work.
    fn go_to(&mut self, ready: Ready) {
        match self.sim_ranks[ready.sim_rank].rendezvous.get(ready.task).and_then(|all| all.get(ready.passed)) {
            Some(next) => self.rendezvous(ready, next.clone()),
            None => self.work(ready),
        }
    }

    /// A rank arrives at a rendezvous. When all participants have arrived, the transfer takes as long as for the slowest.
    fn rendezvous(&mut self, ready: Ready, (id, others): (u32, Vec<usize>)) {
        let (all, key) = (others.len(), (id, others, ready.iteration));
        let here = self.rendezvous.entry(key.clone()).or_default();
        here.push(ready);
        if here.len() < all {
            return;
        }
        let here = self.rendezvous.remove(&key).unwrap_or_default();
        let cost = here.iter().map(|r| r.cost).max().unwrap_or(0);
        here.into_iter().for_each(|r| self.go_to(Ready { cost, passed: r.passed + 1, ..r }));
    }

    /// Executes a task as soon as a core is free.
    fn work(&mut self, ready: Ready) {
        if self.cores == 0 {
            return self.waiting.push_back(Ready { queued: Some(self.now), ..ready });
        }
        self.cores -= 1;
        let Ready { sim_rank, task, iteration, since, cost, queued, .. } = ready;
        let event = SimEvent {
            task,
            iteration,
            start_ns: since,
            end_ns: self.now.saturating_add(cost),
            waited_ns: self.now - since,
            core_wait_ns: queued.map_or(0, |queued| self.now - queued),
        };
        self.queue.at(event.end_ns, Event::Finish { sim_rank, event });
    }

    fn finish(&mut self, sim_rank: usize, event: SimEvent) -> Result<(), SimError> {
        let SimEvent { task, iteration, .. } = event;
        let own = &mut self.sim_ranks[sim_rank];
        own.timeline.events.push(event);
        own.timeline.makespan_ns = event.end_ns;
        own.live.end(task, iteration, own.actors[task].part());
        let thread = own.template.thread_of[task];
        match own.template.concurrent[task] {
            true => own.transferring = false,
            false => own.threads[thread].busy = false,
        }
        if let Some(schedule) = &mut own.schedule {
            schedule.ended(&own.template.program.tasks[task]);
        }
        self.cores += 1;
        self.handle(sim_rank, task as ActorId, Msg::Acted)?;
        self.next_transfer(sim_rank)?;
        self.sim_ranks[sim_rank].left -= 1;
        if self.sim_ranks[sim_rank].left == 0 {
            self.start(sim_rank);
        }
        self.go_on(sim_rank, thread)?;
        // Ranks share the cores in the order of arrival.
        while self.cores > 0
            && let Some(next) = self.waiting.pop_front()
        {
            self.work(next);
        }
        Ok(())
    }
}
