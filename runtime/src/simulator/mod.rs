//! The seeded simulator: drives the actors of a program through random orders of delivery, checks the runtime's
//! promises on the way, and gives a timeline. The same seed always gives the same run.

mod live;
mod queue;

use std::collections::VecDeque;

use of_plan::{Links, Program};

use crate::actor::{Action, Actor, ActorId, Msg, ProtocolError};
use live::Live;
use queue::{Event, Queue};

/// What is simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Seed of the random orders and latencies.
    pub seed: u64,
    /// Pieces to run.
    pub pieces: u64,
    /// Nanoseconds that each task takes, in the order of the tasks; empty for 1000 each.
    pub costs_ns: Vec<u64>,
    /// Messages take a random time up to this many nanoseconds; 0 gives the timeline of an ideal bus.
    pub latency_ns: u64,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self { seed: 0, pieces: 1, costs_ns: Vec::new(), latency_ns: 0 }
    }
}

/// A task at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimEvent {
    /// Index of the task.
    pub task: usize,
    /// The piece it worked on.
    pub piece: u64,
    /// When it began, in nanoseconds.
    pub start_ns: u64,
    /// When it ended, in nanoseconds.
    pub end_ns: u64,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Every act, in the order of their ends.
    pub events: Vec<SimEvent>,
    /// When the last act ended.
    pub makespan_ns: u64,
    /// The most bytes of registers that were live at one time; registers that work in place count once each.
    pub peak_live_bytes: u64,
}

/// A promise that did not hold.
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
    /// Nothing can go on and not everything has ended.
    #[error("deadlock at {at_ns} ns: {} never ended", .waiting.join(", "))]
    Deadlock {
        /// When.
        at_ns: u64,
        /// The tasks that wait.
        waiting: Vec<String>,
    },
    /// A register was filled while another one in the same memory was live.
    #[error("at {at_ns} ns task `{task}` fills `{regst}` over the live register `{live}`")]
    Overlap {
        /// When.
        at_ns: u64,
        /// Who.
        task: String,
        /// What it filled.
        regst: String,
        /// What it destroyed.
        live: String,
    },
    /// A task worked on a piece out of order, or on a register that holds another piece.
    #[error("at {at_ns} ns task `{task}` works on piece {piece} out of order")]
    Order {
        /// When.
        at_ns: u64,
        /// Who.
        task: String,
        /// Which piece.
        piece: u64,
    },
    /// An actor got a message that it cannot get.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// Runs a program's actors until all have ended.
pub fn simulate(program: &Program, options: &SimOptions) -> Result<Timeline, SimError> {
    let setup = |problem: &str| SimError::Setup { program: program.name.clone(), problem: problem.into() };
    let links = Links::of(program).ok_or_else(|| setup("a register names a task that does not exist"))?;
    if !is_sound(program, &links) {
        return Err(setup("its tasks and registers do not agree"));
    }
    if !options.costs_ns.is_empty() && options.costs_ns.len() != program.tasks.len() {
        return Err(setup("there must be a cost for every task"));
    }
    if options.pieces == 0 {
        return Err(setup("there must be at least one piece"));
    }
    Simulator::new(program, &links, options).run()
}

/// Whether the actors can be made and wired: what the verifier checks first. The simulator also takes programs that the
/// verifier refuses for deadlock or overlap, to show them failing.
fn is_sound(program: &Program, links: &Links) -> bool {
    let in_order = program.regsts.iter().zip(0..).all(|(regst, id)| regst.id == id && regst.num > 0);
    let tasks = || program.tasks.iter().zip(0u32..);
    let mine = |regst: &u32, task| links.producer.get(*regst as usize) == Some(&task);
    let read = |regst: &u32, task| links.consumers.get(*regst as usize).is_some_and(|all| all.contains(&task));
    let known = tasks().all(|(desc, task)| {
        desc.produces.iter().all(|regst| mine(regst, task)) && desc.consumes.iter().all(|regst| read(regst, task))
    });
    // Each side lists as many ends as the other, so none is missing.
    let produced: usize = program.tasks.iter().map(|task| task.produces.len()).sum();
    let consumed: usize = program.tasks.iter().map(|task| task.consumes.len()).sum();
    let ends: usize = links.consumers.iter().map(Vec::len).sum();
    in_order && known && produced == program.regsts.len() && consumed == ends && !program.threads.is_empty()
}

/// A thread of the plan: it does one thing at a time.
#[derive(Default)]
struct SimThread {
    busy: bool,
    inbox: VecDeque<(ActorId, Msg)>,
}

struct Simulator<'a> {
    program: &'a Program,
    options: &'a SimOptions,
    actors: Vec<Actor>,
    /// For each task, its thread.
    thread_of: Vec<usize>,
    threads: Vec<SimThread>,
    queue: Queue,
    live: Live<'a>,
    timeline: Timeline,
    now: u64,
    /// Acts until the piece is over, where pieces do not overlap.
    left: usize,
    started: u64,
}

impl<'a> Simulator<'a> {
    fn new(program: &'a Program, links: &'a Links, options: &'a SimOptions) -> Self {
        let place = |task: &of_plan::Task| program.threads.iter().position(|thread| thread.id == task.thread);
        Self {
            program,
            options,
            actors: Actor::of_program(program, links),
            thread_of: program.tasks.iter().map(|task| place(task).unwrap_or(0)).collect(),
            threads: program.threads.iter().map(|_| SimThread::default()).collect(),
            queue: Queue::new(options.seed, options.latency_ns),
            live: Live::new(program, links),
            timeline: Timeline::default(),
            now: 0,
            left: 0,
            started: 0,
        }
    }

    fn run(mut self) -> Result<Timeline, SimError> {
        self.start();
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            match event {
                Event::Deliver { to, msg } => {
                    let thread = self.thread_of[to as usize];
                    self.threads[thread].inbox.push_back((to, msg));
                    self.go_on(thread)?;
                }
                Event::Finish { task, piece, start } => self.finish(task, piece, start)?,
            }
        }
        if self.actors.iter().all(Actor::is_done) {
            return Ok(self.timeline);
        }
        let waiting = self.actors.iter().zip(&self.program.tasks).filter(|(actor, _)| !actor.is_done());
        let waiting = waiting.map(|(_, task)| format!("`{}`", task.name)).collect();
        Err(SimError::Deadlock { at_ns: self.now, waiting })
    }

    /// Starts the next piece, or all of them where pieces may overlap; after the last one comes the end.
    fn start(&mut self) {
        let pieces = if self.program.pipelined { self.options.pieces } else { 1 };
        let over = self.started == self.options.pieces;
        let msg = if over { Msg::Stop } else { Msg::Start { pieces } };
        for source in 0..self.actors.len() {
            if self.actors[source].is_source() {
                self.queue.send(self.now, u32::MAX, source as ActorId, msg);
            }
        }
        if over {
            self.left = usize::MAX;
            return;
        }
        self.started += pieces;
        self.left = self.actors.len() * pieces as usize;
    }

    /// Lets an idle thread handle its inbox until it has work to do.
    fn go_on(&mut self, thread: usize) -> Result<(), SimError> {
        while !self.threads[thread].busy {
            let Some((to, msg)) = self.threads[thread].inbox.pop_front() else {
                break;
            };
            self.handle(to, msg)?;
        }
        Ok(())
    }

    fn handle(&mut self, to: ActorId, msg: Msg) -> Result<(), SimError> {
        let mut act = None;
        let (queue, now) = (&mut self.queue, self.now);
        self.actors[to as usize].on_message(msg, &mut |action| match action {
            Action::Send { to: receiver, msg } => queue.send(now, to, receiver, msg),
            Action::Act { piece } => act = Some(piece),
            Action::Done => {}
        })?;
        let Some(piece) = act else { return Ok(()) };
        let task = to as usize;
        self.live.begin(task, piece, self.now)?;
        self.timeline.peak_live_bytes = self.timeline.peak_live_bytes.max(self.live.bytes());
        self.threads[self.thread_of[task]].busy = true;
        let cost = self.options.costs_ns.get(task).copied().unwrap_or(1000);
        self.queue.at(self.now.saturating_add(cost), Event::Finish { task, piece, start: self.now });
        Ok(())
    }

    fn finish(&mut self, task: usize, piece: u64, start: u64) -> Result<(), SimError> {
        self.timeline.events.push(SimEvent { task, piece, start_ns: start, end_ns: self.now });
        self.timeline.makespan_ns = self.now;
        self.live.end(task, piece);
        let thread = self.thread_of[task];
        self.threads[thread].busy = false;
        self.handle(task as ActorId, Msg::Acted)?;
        self.left -= 1;
        if self.left == 0 {
            self.start();
        }
        self.go_on(thread)
    }
}
