//! The ranks of a job, their links and messages, and what happens next.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use of_plan::{Rates, Runs};
use of_runtime::actor::{Action, Actor, ActorId, Msg};
use of_runtime::{Chunk, StaticSchedule, TransferBlock};

use super::jobs::{Job, RankProgram};
use super::stream::{Damage, Pipe, Stream};
use crate::exchange::{Exchange, Link, Step};
use crate::peer::PeerInfo;
use crate::shared::{OwnMemory, SharedLink};
use crate::stream_link::StreamLink;

/// More events than any schedule has.
const MAX_EVENTS: u64 = 3_000_000;

/// How a schedule ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Ranks that ended in order, with an error, and that crashed.
    pub done: u64,
    pub failed: u64,
    pub crashed: u64,
    pub events: u64,
    /// Whether a rank was cut off, or bytes were damaged.
    pub damage: bool,
    /// Blocks that were taken.
    pub blocks: u64,
}

/// A fault, and in which event it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Crash(usize),
    Cut(usize),
    Damage(Damage),
}

/// What a rank's monitor hears.
#[derive(Clone, Debug)]
enum Control {
    Stop(String),
    Lost(String),
    Bye(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Status {
    Runs,
    Done,
    Failed,
    Crashed,
}

/// What a thread does.
enum Busy<'a> {
    Computes(ActorId),
    /// With the sender of the next chunk, and its place in the block.
    Exchanges(ActorId, Exchange<'a>, (usize, usize)),
}

impl Busy<'_> {
    fn describe(&self, rank: &Rank<'_>) -> String {
        match self {
            Busy::Computes(actor) => format!("task {actor}"),
            Busy::Exchanges(actor, exchange, _) => {
                let link = |r: u32| rank.links[r as usize].as_ref().map(|link| format!("{r}: {}", link.describe()));
                let links: Vec<String> = exchange.waited_for().into_iter().filter_map(link).collect();
                format!("task {actor} in transfer {:?} waits for {links:?}", rank.own.transfer[*actor as usize])
            }
        }
    }
}

struct Rank<'a> {
    me: u32,
    job: &'a Job,
    own: &'a RankProgram,
    rates: Rates,
    actors: Vec<Actor>,
    /// The order in which the thread runs the tasks, where there are microbatches.
    schedule: Option<StaticSchedule>,
    /// For each task, whether it is a transfer that the thread of transfers executes.
    concurrent: Vec<bool>,
    /// Such transfers that were launched, with the number of their acts; one after the other is executed.
    launched: VecDeque<(ActorId, u64)>,
    /// Those that are over, which their actors do not know yet.
    completed: VecDeque<ActorId>,
    /// Acts that ended, of each task.
    acts: Vec<u64>,
    /// Messages from thread to thread.
    queues: Vec<VecDeque<(ActorId, Msg)>>,
    /// What each thread does; the last one is the thread of asynchronous transfers.
    busy: Vec<Option<Busy<'a>>>,
    links: Vec<Option<Link<Stream>>>,
    memory: Option<Rc<OwnMemory>>,
    started: u64,
    left: usize,
    status: Status,
    /// Why it was stopped, or failed.
    stopped: Option<String>,
    /// Whether the work of tasks is left out, so that the tokens go round to the end of the step.
    failing: bool,
    gone: Vec<bool>,
    control: VecDeque<Control>,
    /// For each transfer and step, and each block, how often it was taken.
    taken: u64,
    /// For each transfer the runs of its blocks.
    runs: &'a [Vec<Runs>],
    froms: &'a [Vec<u32>],
}

pub struct World<'w> {
    job: &'w Job,
    rng: &'w mut fastrand::Rng,
}

impl<'w> World<'w> {
    pub fn new(job: &'w Job, rng: &'w mut fastrand::Rng) -> Self {
        World { job, rng }
    }

    pub fn run(self) -> Result<Outcome, String> {
        let World { job, rng } = self;
        let runs: Vec<Vec<Runs>> = job
            .transfers
            .iter()
            .map(|blocks| {
                let whole = |len: usize| Runs::of(&[(0, len)], &[(0, len)]);
                blocks.iter().map(|b| whole(b.bytes[0].len())).collect()
            })
            .collect();
        let count = job.ranks.len();
        // For each rank and transfer, who sends to it.
        let from = |rank: u32, blocks: &Vec<super::jobs::Block>| -> Vec<u32> {
            blocks.iter().filter(|b| b.to == rank).map(|b| b.from).collect()
        };
        let froms: Vec<Vec<Vec<u32>>> =
            (0..count as u32).map(|rank| job.transfers.iter().map(|b| from(rank, b)).collect()).collect();
        let (links, pipes, memories) = connect(count, rng)?;
        let mut ranks: Vec<Rank<'_>> = Vec::new();
        for ((me, links), memory) in (0..count as u32).zip(links).zip(memories) {
            let own = &job.ranks[me as usize];
            let threads = own.program.threads.len();
            ranks.push(Rank {
                me,
                job,
                own,
                rates: Rates::of(&own.program, &own.graph),
                actors: Actor::of_program(&own.program, &own.graph),
                schedule: StaticSchedule::of(&own.program),
                concurrent: own.program.concurrent_transfers(),
                launched: VecDeque::new(),
                completed: VecDeque::new(),
                acts: vec![0; own.program.tasks.len()],
                queues: vec![VecDeque::new(); threads * threads],
                busy: (0..=threads).map(|_| None).collect(),
                links,
                memory,
                started: 0,
                left: 0,
                status: Status::Runs,
                stopped: None,
                failing: false,
                gone: vec![false; count],
                control: VecDeque::new(),
                taken: 0,
                runs: &runs,
                froms: &froms[me as usize],
            });
        }
        for rank in &mut ranks {
            rank.start_step();
        }
        let victim = rng.usize(..count);
        let fault = match rng.u32(..100) {
            0..50 => Fault::None,
            50..70 => Fault::Crash(victim),
            70..80 => Fault::Cut(victim),
            80..86 => Fault::Damage(Damage::Flip),
            86..91 => Fault::Damage(Damage::Lose),
            91..96 => Fault::Damage(Damage::Repeat),
            _ => Fault::Damage(Damage::Swap),
        };
        let at = rng.u64(..200 * count as u64);
        let mut state =
            Sim { ranks, pipes, fault, at, fired: false, lost: None, detected: false, damage: false, events: 0 };
        state.run(rng)
    }
}

struct Sim<'a> {
    ranks: Vec<Rank<'a>>,
    /// From, to, and the bytes that are under way.
    pipes: Vec<(usize, usize, Rc<RefCell<Pipe>>)>,
    fault: Fault,
    at: u64,
    fired: bool,
    /// The connection that lost bytes, which the system gives up in the end.
    lost: Option<usize>,
    detected: bool,
    damage: bool,
    events: u64,
}

impl Sim<'_> {
    fn run(&mut self, rng: &mut fastrand::Rng) -> Result<Outcome, String> {
        let all = self.ranks.len() + self.pipes.len();
        let mut idle = 0;
        while self.events < MAX_EVENTS {
            self.events += 1;
            self.inject(rng);
            // A crash or cut is noticed at some time; at the latest when nothing else happens.
            if self.fired && !self.detected && rng.u32(..100) == 0 {
                self.detect();
            }
            let which = rng.usize(..all);
            let progress = self.act(which, rng)?;
            if progress {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < 2 * all {
                continue;
            }
            let mut any = false;
            for which in 0..all {
                any |= self.act(which, rng)?;
            }
            if any {
                idle = 0;
            } else if self.ranks.iter().all(|rank| rank.status != Status::Runs) {
                return self.outcome();
            } else if !self.give_up() {
                return Err(format!("stuck: {}", self.describe()));
            }
        }
        Err(format!("no end after {} events: {}", self.events, self.describe()))
    }

    /// One thing that a rank or a connection does. Returns whether there was one.
    fn act(&mut self, which: usize, rng: &mut fastrand::Rng) -> Result<bool, String> {
        let Some(pipe) = which.checked_sub(self.ranks.len()) else {
            let (progress, news) = self.ranks[which].act(rng)?;
            for control in news {
                self.tell(which, &control);
            }
            return Ok(progress);
        };
        let (_, _, stream) = &self.pipes[pipe];
        let mut stream = stream.borrow_mut();
        if !stream.can_deliver() {
            return Ok(false);
        }
        let damage = match self.fault {
            Fault::Damage(damage) if self.events >= self.at && !self.damage => Some(damage),
            _ => None,
        };
        if stream.deliver(damage, rng) {
            self.damage = true;
            if damage == Some(Damage::Lose) {
                self.lost = Some(pipe);
            }
        }
        Ok(true)
    }

    /// Passes a rank's news to the monitors of the others that it reaches.
    fn tell(&mut self, from: usize, control: &Control) {
        let cut = |rank: usize| self.fired && matches!(self.fault, Fault::Cut(victim) if victim == rank);
        let unreachable: Vec<bool> = (0..self.ranks.len()).map(|to| to == from || cut(from) || cut(to)).collect();
        for (rank, _) in self.ranks.iter_mut().zip(unreachable).filter(|(_, unreachable)| !unreachable) {
            rank.control.push_back(control.clone());
        }
        if matches!(control, Control::Bye(_)) {
            self.close(from);
        }
    }

    /// A process ends: its connections are closed.
    fn close(&mut self, rank: usize) {
        for (from, to, pipe) in &self.pipes {
            let mut pipe = pipe.borrow_mut();
            pipe.closed |= *from == rank;
            // Nothing reads it any more. What the other end sends is refused.
            pipe.reset |= *to == rank;
        }
    }

    fn inject(&mut self, rng: &mut fastrand::Rng) {
        if self.fired || self.events < self.at {
            return;
        }
        match self.fault {
            Fault::Crash(victim) if self.ranks[victim].status == Status::Runs => {
                self.ranks[victim].crash(rng);
                self.close(victim);
            }
            Fault::Cut(victim) if self.ranks[victim].status == Status::Runs => {
                self.damage = true;
                for (from, to, pipe) in &self.pipes {
                    pipe.borrow_mut().cut |= *from == victim || *to == victim;
                }
            }
            _ => return,
        }
        self.fired = true;
    }

    /// The monitors notice a crash or a cut.
    fn detect(&mut self) {
        self.detected = true;
        let (Fault::Crash(victim) | Fault::Cut(victim)) = self.fault else { return };
        let cut = matches!(self.fault, Fault::Cut(_));
        for (rank, other) in self.ranks.iter_mut().zip(0..) {
            if other != victim {
                rank.control.push_back(Control::Lost(format!("rank {victim} is lost")));
            } else if cut {
                rank.control.push_back(Control::Lost("rank 0 or another is lost".into()));
            }
        }
    }

    /// What the system does when nothing happens for long. Returns whether that was something.
    fn give_up(&mut self) -> bool {
        if self.fired && !self.detected {
            self.detect();
            return true;
        }
        let Some(lost) = self.lost.take() else { return false };
        let (a, b, _) = self.pipes[lost];
        let between =
            |(from, to, _): &&(usize, usize, Rc<RefCell<Pipe>>)| (*from, *to) == (a, b) || (*from, *to) == (b, a);
        self.pipes.iter().filter(between).for_each(|(.., pipe)| pipe.borrow_mut().reset = true);
        true
    }

    fn outcome(&self) -> Result<Outcome, String> {
        let count = |status: Status| self.ranks.iter().filter(|rank| rank.status == status).count() as u64;
        let (done, failed, crashed) = (count(Status::Done), count(Status::Failed), count(Status::Crashed));
        let faulty = self.damage || self.fired;
        for rank in &self.ranks {
            match rank.status {
                Status::Done => rank.check_end()?,
                Status::Failed if !faulty => {
                    return Err(format!("rank {} failed without a fault: {:?}", rank.me, rank.stopped));
                }
                Status::Failed if !rank.stopped.as_ref().is_some_and(|why| why.contains("rank ")) => {
                    return Err(format!("rank {} names no rank: {:?}", rank.me, rank.stopped));
                }
                _ => {}
            }
        }
        let blocks = self.ranks.iter().map(|rank| rank.taken).sum();
        Ok(Outcome { done, failed, crashed, events: self.events, damage: self.damage, blocks })
    }

    fn describe(&self) -> String {
        let rank = |r: &Rank<'_>| {
            let waits: Vec<String> = r.busy.iter().flatten().map(|busy| busy.describe(r)).collect();
            format!(
                "rank {} {:?}, {} acts left of step {}, stopped {:?}, {}",
                r.me,
                r.status,
                r.left,
                r.started,
                r.stopped,
                waits.join(", ")
            )
        };
        let ranks: Vec<String> = self.ranks.iter().map(rank).collect();
        format!("{}; fault {:?} {}", ranks.join("; "), self.fault, self.fired || self.damage)
    }
}

impl<'a> Rank<'a> {
    fn thread_of(&self, actor: ActorId) -> usize {
        self.own.program.tasks[actor as usize].thread as usize
    }

    /// Starts the next step, or all that may overlap.
    fn start_step(&mut self) {
        let acts = self.own.program.acts();
        let steps = if self.own.program.pipelined { self.job.steps } else { 1 };
        self.started += steps;
        self.left = acts * steps as usize;
        for actor in 0..self.actors.len() as ActorId {
            if self.actors[actor as usize].is_source() {
                let (thread, times) = (self.thread_of(actor), u64::from(self.own.program.times(actor as usize)));
                self.queues[thread].push_back((actor, Msg::Start { iterations: steps * times }));
            }
        }
    }

    /// Threads with actors.
    fn threads(&self) -> usize {
        self.own.program.threads.len()
    }

    /// Does one thing. Returns whether there was one, and what the other ranks' monitors hear.
    fn act(&mut self, rng: &mut fastrand::Rng) -> Result<(bool, Vec<Control>), String> {
        if matches!(self.status, Status::Crashed) {
            return Ok((false, Vec::new()));
        }
        if let Some(control) = if rng.bool() { self.control.pop_front() } else { None } {
            return Ok((true, self.hear(control)));
        }
        if self.status != Status::Runs {
            return Ok((self.control.pop_front().is_some(), Vec::new()));
        }
        let threads = self.busy.len();
        let first = rng.usize(..threads);
        for thread in (0..threads).map(|n| (first + n) % threads) {
            let (progress, news) = self.act_on(thread, rng)?;
            if progress {
                return Ok((true, news.into_iter().collect()));
            }
        }
        Ok(match self.control.pop_front() {
            Some(control) => (true, self.hear(control)),
            None => (false, Vec::new()),
        })
    }

    fn hear(&mut self, control: Control) -> Vec<Control> {
        match control {
            Control::Bye(rank) => self.gone[rank as usize] = true,
            Control::Stop(why) => _ = self.stopped.get_or_insert(why),
            Control::Lost(why) if self.status == Status::Runs && self.stopped.is_none() => {
                self.stopped = Some(why.clone());
                return vec![Control::Stop(why)];
            }
            Control::Lost(_) => {}
        }
        Vec::new()
    }

    fn act_on(&mut self, thread: usize, rng: &mut fastrand::Rng) -> Result<(bool, Option<Control>), String> {
        match self.busy[thread].take() {
            Some(Busy::Computes(actor)) => self.end(thread, actor).map(|news| (true, news)),
            Some(Busy::Exchanges(actor, exchange, next)) => self.exchange(thread, actor, exchange, next),
            None if thread == self.threads() => {
                let Some((actor, act)) = self.launched.pop_front() else { return Ok((false, None)) };
                if !self.failing {
                    self.check_act(actor, act)?;
                }
                self.busy[thread] = Some(self.work(actor, act));
                Ok((true, None))
            }
            None => {
                let over = self.completed.front().copied().filter(|actor| self.thread_of(*actor) == thread);
                if let Some(actor) = over.filter(|_| rng.bool()) {
                    self.completed.pop_front();
                    return self.finish(thread, actor).map(|news| (true, news));
                }
                let held = if thread == 0 { self.schedule.as_mut().and_then(StaticSchedule::take_held) } else { None };
                if let Some(held) = held {
                    let act = self.actors[held].iterations();
                    self.begin(thread, held as ActorId, act)?;
                    return Ok((true, None));
                }
                let threads = self.threads();
                let first = rng.usize(..threads);
                for from in (0..threads).map(|n| (first + n) % threads) {
                    if let Some((to, msg)) = self.queues[from * threads + thread].pop_front() {
                        self.deliver(thread, to, msg)?;
                        return Ok((true, None));
                    }
                }
                let Some(actor) = over else { return Ok((false, None)) };
                self.completed.pop_front();
                self.finish(thread, actor).map(|news| (true, news))
            }
        }
    }

    /// A step of a rendezvous, as `ProcessTransport` does it.
    fn exchange(
        &mut self,
        thread: usize,
        actor: ActorId,
        mut exchange: Exchange<'a>,
        mut next: (usize, usize),
    ) -> Result<(bool, Option<Control>), String> {
        if self.stopped.is_some() {
            self.failing = true;
            return self.end(thread, actor).map(|news| (true, news));
        }
        let step = self.acts[actor as usize] as usize;
        let id = self.own.transfer[actor as usize].unwrap_or_default();
        let (me, job, froms) = (self.me, self.job, &self.froms[id]);
        let (mut wrong, mut taken) = (None, 0);
        let mut take = |chunk: Chunk<'_>| {
            let Chunk { sender, at, of, block } = chunk;
            let is_it = |b: &&super::jobs::Block| (b.from, b.to) == (froms[sender], me);
            let want = job.transfers[id].iter().find(is_it).map(|b| b.bytes[step].as_slice());
            taken += u64::from(chunk.is_last());
            let is_right = want.filter(|want| want.len() == of).and_then(|want| want.get(at..at + block.len()));
            if is_right != Some(block.bytes) || (sender, at) != next || at % Chunk::ALIGN != 0 {
                wrong =
                    Some(format!("rank {me} took wrong data of rank {} in transfer {id}, step {step}", froms[sender]));
            }
            next = if chunk.is_last() { (sender + 1, 0) } else { (sender, at + block.len()) };
        };
        let memory = self.memory.as_deref();
        let advanced = exchange.advance(&mut self.links, memory, None, &mut take);
        self.taken += taken;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let gone = &self.gone;
        let advanced = match advanced {
            Ok(Step::Idle) => {
                exchange.check_peers(&mut self.links, memory, |rank| gone[rank as usize]).map(|()| Step::Idle)
            }
            other => other,
        };
        match advanced {
            Ok(Step::Done) => self.end(thread, actor).map(|news| (true, news)),
            Ok(step) => {
                self.busy[thread] = Some(Busy::Exchanges(actor, exchange, next));
                Ok((step == Step::Progress, None))
            }
            Err(why) => {
                self.stopped = Some(why.clone());
                self.failing = true;
                let end = self.end(thread, actor)?;
                // The rank may have ended its step with this act.
                Ok((true, Some(end.unwrap_or(Control::Stop(why)))))
            }
        }
    }

    fn deliver(&mut self, thread: usize, to: ActorId, msg: Msg) -> Result<(), String> {
        let threads = self.threads();
        let mut act = None;
        let (own, queues) = (self.own, &mut self.queues);
        let send = |queues: &mut Vec<VecDeque<(ActorId, Msg)>>, to: ActorId, msg| {
            let receiver = own.program.tasks[to as usize].thread as usize;
            queues[thread * threads + receiver].push_back((to, msg));
        };
        let step = self.actors[to as usize].on_message(msg, &mut |action| match action {
            Action::Send { to, msg } => send(queues, to, msg),
            Action::Act { iteration } => act = Some(iteration),
            Action::Done => {}
        });
        step.map_err(|e| e.to_string())?;
        let Some(iteration) = act else { return Ok(()) };
        if self.schedule.as_mut().is_some_and(|schedule| !schedule.admits(to as usize)) {
            return Ok(());
        }
        self.begin(thread, to, iteration)
    }

    /// An actor acts: its thread does the work, or launches it.
    fn begin(&mut self, thread: usize, to: ActorId, iteration: u64) -> Result<(), String> {
        let concurrent = self.concurrent[to as usize];
        if concurrent && let Some(schedule) = &mut self.schedule {
            schedule.launched(&self.own.program.tasks[to as usize]);
        }
        if concurrent && !self.failing {
            self.launched.push_back((to, iteration));
            return self.deliver(thread, to, Msg::Launched);
        }
        // A transfer that is left out does not wait for those that were launched.
        if !concurrent {
            self.check_act(to, iteration)?;
        }
        self.busy[thread] = Some(self.work(to, iteration));
        Ok(())
    }

    fn work(&self, to: ActorId, iteration: u64) -> Busy<'a> {
        let id = self.own.transfer[to as usize].filter(|_| !self.failing);
        match id {
            None => Busy::Computes(to),
            Some(id) => {
                let blocks = self.job.transfers[id].iter().zip(&self.runs[id]).filter(|(b, _)| b.from == self.me);
                let blocks: Vec<TransferBlock<'a>> = blocks
                    .map(|(b, block)| TransferBlock {
                        to: b.to,
                        bytes: &b.bytes[iteration as usize],
                        block,
                        element: 1,
                    })
                    .collect();
                // Most take blocks in chunks.
                let in_chunks = !(iteration + id as u64 + u64::from(self.me)).is_multiple_of(4);
                let exchange = Exchange::new(self.me, id as u32, &blocks, &self.froms[id]).in_chunks(in_chunks);
                Busy::Exchanges(to, exchange, (0, 0))
            }
        }
    }

    /// A task has ended its work. Returns the news of the rank's end, where this was the last one.
    fn end(&mut self, thread: usize, actor: ActorId) -> Result<Option<Control>, String> {
        self.acts[actor as usize] += 1;
        if thread == self.threads() {
            self.completed.push_back(actor);
            return Ok(None);
        }
        self.finish(thread, actor)
    }

    /// The actor of a task learns that its work has ended.
    fn finish(&mut self, thread: usize, actor: ActorId) -> Result<Option<Control>, String> {
        self.left -= 1;
        if let Some(schedule) = &mut self.schedule {
            schedule.ended(&self.own.program.tasks[actor as usize]);
        }
        self.deliver(thread, actor, Msg::Acted)?;
        if self.left > 0 {
            return Ok(None);
        }
        if self.failing {
            self.status = Status::Failed;
            return Ok(Some(Control::Stop(self.stopped.clone().unwrap_or_default())));
        }
        if self.started < self.job.steps {
            self.start_step();
            return Ok(None);
        }
        self.status = Status::Done;
        Ok(Some(Control::Bye(self.me)))
    }

    /// A task may act only on the next value, where its inputs are full and an output copy is free.
    fn check_act(&self, actor: ActorId, iteration: u64) -> Result<(), String> {
        let task = &self.own.program.tasks[actor as usize];
        let wrong = |what: &str| Err(format!("rank {}, task {actor} acts on {iteration} {what}", self.me));
        if iteration != self.acts[actor as usize] {
            return wrong("out of order");
        }
        let done =
            |task: u32, register: u32| self.acts[task as usize] / u64::from(self.rates.period(task as usize, register));
        let graph = &self.own.graph;
        if task.consumes.iter().any(|r| done(graph.producer[*r as usize], *r) <= iteration) {
            return wrong("before its input is full");
        }
        let full = |r: &u32| {
            let copies = u64::from(self.own.program.registers[*r as usize].copies);
            graph.consumers[*r as usize].iter().any(|reader| done(*reader, *r) + copies <= iteration)
        };
        if task.produces.iter().any(full) {
            return wrong("while no copy of its output is free");
        }
        Ok(())
    }

    /// After the end every block was taken once, and the actors end with all credits back.
    fn check_end(&self) -> Result<(), String> {
        let times = |blocks: &Vec<super::jobs::Block>| blocks.first().map_or(0, |block| block.bytes.len());
        let sent = self.froms.iter().zip(&self.job.transfers).map(|(froms, blocks)| froms.len() * times(blocks));
        let sent: usize = sent.sum();
        if self.taken != sent as u64 {
            return Err(format!("rank {} took {} blocks, and {sent} were sent", self.me, self.taken));
        }
        let mut actors = self.actors.clone();
        let mut queue: VecDeque<(ActorId, Msg)> = self.queues.iter().flatten().copied().collect();
        let sources = (0..actors.len() as ActorId).filter(|a| actors[*a as usize].is_source());
        queue.extend(sources.map(|actor| (actor, Msg::Stop)).collect::<Vec<_>>());
        while let Some((to, msg)) = queue.pop_front() {
            let step = actors[to as usize].on_message(msg, &mut |action| {
                if let Action::Send { to, msg } = action {
                    queue.push_back((to, msg));
                }
            });
            step.map_err(|e| e.to_string())?;
        }
        match actors.iter().all(Actor::is_done) {
            true => Ok(()),
            false => Err(format!("rank {}: an actor did not end, so a credit is missing", self.me)),
        }
    }

    /// The process ends at once. A message in shared memory may be written in part.
    fn crash(&mut self, rng: &mut fastrand::Rng) {
        self.status = Status::Crashed;
        if let Some(memory) = &self.memory {
            for link in self.links.iter_mut().flatten() {
                if let Link::Shared(link) = link {
                    link.tear(memory, rng);
                }
            }
        }
    }
}

type Links = Vec<Vec<Option<Link<Stream>>>>;
type Pipes = Vec<(usize, usize, Rc<RefCell<Pipe>>)>;
type Memories = Vec<Option<Rc<OwnMemory>>>;

/// Connects all ranks with one another: over streams, or through shared memory.
fn connect(count: usize, rng: &mut fastrand::Rng) -> Result<(Links, Pipes, Memories), String> {
    let text = |e: std::io::Error| e.to_string();
    let shares = rng.u32(..8) == 0;
    let memory = |_| if shares { OwnMemory::new(count).map(|m| Some(Rc::new(m))) } else { Ok(None) };
    let memories: Memories = (0..count).map(memory).collect::<Result<_, _>>().map_err(text)?;
    let mut links: Links = (0..count).map(|_| (0..count).map(|_| None).collect()).collect();
    let mut pipes: Pipes = Vec::new();
    let peer = |rank: usize| PeerInfo {
        rank: rank as u32,
        address: SocketAddr::from(([127, 0, 0, 1], 1)),
        host: "host".into(),
        pid: 1,
    };
    for a in 0..count {
        for b in a + 1..count {
            if let (Some(of_a), Some(of_b)) = (&memories[a], &memories[b])
                && rng.u32(..4) > 0
            {
                let link = |own: usize, theirs: &OwnMemory, other: usize| {
                    SharedLink::connected(theirs, own as u32, &peer(other)).map(Link::Shared)
                };
                links[a][b] = Some(link(a, of_b, b).map_err(text)?);
                links[b][a] = Some(link(b, of_a, a).map_err(text)?);
                continue;
            }
            let (there, back) = (Rc::new(RefCell::new(Pipe::default())), Rc::new(RefCell::new(Pipe::default())));
            let mut end = |outgoing: &Rc<RefCell<Pipe>>, incoming: &Rc<RefCell<Pipe>>, other: usize| {
                let (outgoing, incoming) = (Rc::clone(outgoing), Rc::clone(incoming));
                let held = (rng.u32(..3) == 0).then(Vec::new);
                Link::Stream(StreamLink::over(peer(other), Stream { held, outgoing, incoming, rng: rng.fork() }))
            };
            links[a][b] = Some(end(&there, &back, b));
            links[b][a] = Some(end(&back, &there, a));
            pipes.push((a, b, there));
            pipes.push((b, a, back));
        }
    }
    Ok((links, pipes, memories))
}
