//! Actor threads: each owns the actors of one of the plan's threads, delivers their messages and executes their tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use of_plan::{PlanFile, Program};

use crate::actor::{Action, Actor, ActorId, Msg};
use crate::bound_task::BoundTask;
use crate::bus::{Bus, ThreadMsg};
use crate::cancel::Canceller;
use crate::clock::Instant;
use crate::device::Scratch;
use crate::flight_recorder::{Event, FlightRecorder};
use crate::io::Ports;
use crate::objects::Objects;
use crate::pool::Pool;
use crate::profile::Clocks;
use crate::static_schedule::StaticSchedule;
use crate::symbols::Symbols;
use crate::sync::{Mutex, lock};
use crate::task_context::Context;
use crate::value_layout::ValueLayout;
use crate::{RunError, Variables};

/// What all threads of a session share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub plan: Arc<PlanFile>,
    pub program: usize,
    pub ports: Ports,
    pub objects: Objects,
    pub symbols: Symbols,
    pub layout: ValueLayout,
    pub pool: Arc<Pool>,
    pub clocks: Clocks,
    pub canceller: Arc<Canceller>,
    pub recorder: Arc<FlightRecorder>,
    /// Set while an iteration fails: work is skipped, and tokens still circulate, so that the actors are ready for
    /// the next iteration.
    pub failing: AtomicBool,
    /// The task before which the last run was cancelled.
    pub cancelled_before: AtomicU32,
    /// Set once a task of this run has begun to update a variable.
    pub updating: AtomicBool,
    pub failure: Mutex<Option<RunError>>,
    pub variables: Option<Arc<Variables>>,
}

impl Shared {
    pub fn program(&self) -> &Program {
        &self.plan.plan().programs[self.program]
    }

    /// Keeps the first failure of an iteration.
    pub fn fail(&self, error: RunError) {
        lock(&self.failure).get_or_insert(error);
        self.failing.store(true, Ordering::Release);
    }
}

/// The actors of one thread.
pub(crate) struct ActorThread {
    pub shared: Arc<Shared>,
    pub bus: Bus,
    /// In the order of their slots. A program with a schedule has one thread, so there the slot is the task's index.
    pub actors: Vec<Local>,
    /// The order of acts, in a program with microbatches.
    pub schedule: Option<StaticSchedule>,
    pub scratch: Scratch,
    /// Acts of an iteration.
    pub acts: usize,
    /// Acts that remain in this iteration.
    pub left: usize,
    /// Acts whose work is in flight, and how many of them are transfers.
    pub in_flight: usize,
    pub transfers: usize,
    /// For the caller's thread: others that have acts left.
    pub running: usize,
    /// Actors that have not ended.
    pub alive: usize,
}

/// An actor with its task's work.
pub(crate) struct Local {
    pub task: usize,
    pub actor: Actor,
    pub work: BoundTask,
    /// The iteration whose work is in flight, and its start time.
    pub begun: Option<(u64, Instant)>,
    /// Whether it updates variables.
    pub updates_any: bool,
    /// Those that it updates on the host.
    pub updates: Box<[usize]>,
}

impl ActorThread {
    /// Delivers local messages until there are none. In between, handles completions of asynchronous work.
    pub fn drain(&mut self) -> Result<(), RunError> {
        loop {
            while let Some((to, msg)) = self.bus.next_local() {
                self.deliver(to, msg)?;
                if self.in_flight > 0
                    && let Some(mail) = self.bus.poll()
                {
                    self.handle(mail)?;
                }
            }
            let Some(held) = self.schedule.as_mut().and_then(StaticSchedule::take_held) else { return Ok(()) };
            let msg = self.act(held);
            self.deliver(held as ActorId, msg)?;
        }
    }

    /// Does or launches the work of an actor that was held.
    fn act(&mut self, slot: usize) -> Msg {
        let Self { shared, actors, schedule, scratch, left, in_flight, transfers, .. } = self;
        let iteration = actors[slot].actor.iterations();
        work_of(shared, &mut actors[slot], schedule, iteration, scratch, (left, in_flight, transfers))
    }

    /// The next mail, if it comes within some time.
    pub fn wait(&self, timeout: Duration) -> Option<ThreadMsg> {
        if let Some(mail) = self.bus.poll() {
            return Some(mail);
        }
        self.shared.recorder.record(Event::ThreadWaits { thread: self.bus.thread() });
        // A thread that waits for transfers sleeps: the one that executes them needs a processor.
        self.bus.wait(timeout, self.in_flight > self.transfers)
    }

    /// Handles a message.
    pub fn handle(&mut self, mail: ThreadMsg) -> Result<(), RunError> {
        match mail {
            ThreadMsg::Actor(to, msg) => self.deliver(to, msg),
            ThreadMsg::Completed(actor, at) => self.completed(actor, at),
            ThreadMsg::IterationDone => {
                self.running = self.running.saturating_sub(1);
                Ok(())
            }
            ThreadMsg::Died => Err(RunError::Internal("an actor thread broke down".into())),
            ThreadMsg::Quit => Ok(()),
        }
    }

    /// Delivers a message and does all the work that follows from it at once.
    #[inline]
    pub fn deliver(&mut self, to: ActorId, msg: Msg) -> Result<(), RunError> {
        let Self { shared, bus, actors, schedule, scratch, left, in_flight, transfers, alive, .. } = self;
        let local = &mut actors[bus.slot(to)];
        let mut msg = msg;
        loop {
            let mut act = None;
            let mut reachable = true;
            let step = local.actor.on_message(msg, &mut |action| match action {
                Action::Send { to, msg } => reachable &= bus.send(to, msg),
                Action::Act { iteration } => act = Some(iteration),
                Action::Done => *alive -= 1,
            });
            step.map_err(|error| RunError::Internal(error.to_string()))?;
            if !reachable {
                return Err(RunError::Internal("a thread of the session is gone".into()));
            }
            let Some(iteration) = act else { return Ok(()) };
            if schedule.as_mut().is_some_and(|schedule| !schedule.admits(local.task)) {
                return Ok(());
            }
            msg = work_of(shared, local, schedule, iteration, scratch, (left, in_flight, transfers));
        }
    }

    /// Asynchronous work of an actor completed at time `at`: takes its results.
    fn completed(&mut self, to: ActorId, at: Instant) -> Result<(), RunError> {
        let local = &mut self.actors[self.bus.slot(to)];
        let Some((iteration, start)) = local.begun.take() else {
            let name = &self.shared.program().tasks[local.task].name;
            return Err(RunError::Internal(format!("task `{name}` completed without being in flight")));
        };
        let Local { task, work, .. } = local;
        let began = work.end(&context(&self.shared, *task, iteration, &self.scratch));
        let began = began.unwrap_or_else(|error| {
            self.shared.fail(error);
            None
        });
        match work {
            BoundTask::Backend(call) => {
                self.shared.clocks.add(*task, start, at, &call.after);
                self.shared.clocks.add_steps(*task, call.executable.step_times());
            }
            _ => self.shared.clocks.add(*task, began.unwrap_or(start), at, &[]),
        }
        self.transfers -= usize::from(work.is_transfer());
        acted(&self.shared, *task, iteration);
        self.shared.recorder.act_ends(*task, iteration);
        self.in_flight -= 1;
        self.left -= 1;
        if let Some(schedule) = &mut self.schedule {
            schedule.ended(&self.shared.program().tasks[*task]);
        }
        self.deliver(to, Msg::Acted)
    }

    /// Runs as one of the session's other threads, until its actors have ended.
    pub fn serve(mut self) {
        let pool = Arc::clone(&self.shared.pool);
        let _mode = pool.subnormals();
        while self.alive > 0 {
            let Some(mail) = self.wait(Duration::from_secs(3600)) else {
                continue;
            };
            if matches!(mail, ThreadMsg::Quit) {
                return;
            }
            if let Err(error) = self.handle(mail).and_then(|()| self.drain()) {
                self.shared.fail(error);
                self.bus.send_to_thread(0, ThreadMsg::Died);
                return;
            }
            if self.left == 0 {
                self.left = self.acts;
                self.bus.send_to_thread(0, ThreadMsg::IterationDone);
            }
        }
    }
}

/// Does or launches an actor's work, and returns the message that says so. Counts acts that are left and works in flight.
#[inline]
fn work_of(
    shared: &Shared,
    local: &mut Local,
    schedule: &mut Option<StaticSchedule>,
    iteration: u64,
    scratch: &Scratch,
    (left, in_flight, transfers): (&mut usize, &mut usize, &mut usize),
) -> Msg {
    if do_work(shared, local, iteration, scratch) {
        *in_flight += 1;
        *transfers += usize::from(local.work.is_transfer());
        if let Some(schedule) = schedule {
            schedule.launched(&shared.program().tasks[local.task]);
        }
        return Msg::Launched;
    }
    *left -= 1;
    schedule.iter_mut().for_each(StaticSchedule::advance);
    Msg::Acted
}

fn context<'a>(shared: &'a Shared, task: usize, iteration: u64, scratch: &'a Scratch) -> Context<'a> {
    let Shared { ports, objects, symbols, layout, pool, .. } = shared;
    Context { program: shared.program(), task, iteration, ports, objects, symbols, layout, pool, scratch }
}

/// Does the work of an actor, or enqueues it. Returns whether the work is in flight.
#[inline]
fn do_work(shared: &Shared, local: &mut Local, iteration: u64, scratch: &Scratch) -> bool {
    let Local { task, actor, work, begun, updates_any, updates } = local;
    work.set_part(actor.part());
    if !shared.failing.load(Ordering::Acquire) && shared.canceller.ends_run() {
        shared.cancelled_before.store(*task as u32, Ordering::Release);
        shared.fail(RunError::Cancelled);
    }
    if !shared.failing.load(Ordering::Acquire) {
        let start = (shared.clocks.is_on() || work.is_async()).then(Instant::now);
        // A transfer begins when the thread for transfers comes to it.
        if !work.is_transfer() {
            shared.recorder.act_begins(*task, iteration);
        }
        if *updates_any {
            shared.updating.store(true, Ordering::Release);
        }
        if !updates.is_empty() {
            shared.variables.iter().for_each(|variables| variables.before_update(updates));
        }
        match work.begin(&context(shared, *task, iteration, scratch)) {
            Ok(true) => {
                *begun = start.map(|start| (iteration, start));
                return true;
            }
            Ok(false) => {}
            Err(error) => shared.fail(error),
        }
        if let Some(start) = start {
            shared.clocks.add(*task, start, Instant::now(), &[]);
            if let BoundTask::Backend(call) = work {
                shared.clocks.add_steps(*task, call.executable.step_times());
            }
        }
    }
    acted(shared, *task, iteration);
    shared.recorder.act_ends(*task, iteration);
    false
}

/// Objects go on, and back to where they came from.
#[inline]
fn acted(shared: &Shared, task: usize, iteration: u64) {
    let objects = &shared.objects;
    if objects.any() {
        let desc = &shared.program().tasks[task];
        let own = |register: &&u32| !shared.layout.covers(**register);
        desc.produces.iter().filter(own).for_each(|&register| objects.produced(register, iteration));
        desc.consumes.iter().filter(own).for_each(|&register| objects.consumed(register, iteration));
    }
}
