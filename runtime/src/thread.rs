//! Actor threads: each owns the actors of one of the plan's threads and does their work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use of_plan::{PlanFile, Program};

use crate::RunError;
use crate::actor::{Action, Actor, ActorId, Msg};
use crate::bus::{Bus, Mail};
use crate::device::Scratch;
use crate::io::{Ports, lock};
use crate::objects::Objects;
use crate::pool::Pool;
use crate::profile::Clocks;
use crate::symbols::Symbols;
use crate::work::{Context, Work};

/// What all threads of a session share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub plan: Arc<PlanFile>,
    pub program: usize,
    pub ports: Ports,
    pub objects: Objects,
    pub symbols: Symbols,
    pub pool: Arc<Pool>,
    pub clocks: Clocks,
    /// Set while a piece fails: work is skipped, and the tokens still go their way, so that the actors are ready for
    /// the next piece.
    pub failing: AtomicBool,
    pub failure: Mutex<Option<RunError>>,
}

impl Shared {
    pub fn program(&self) -> &Program {
        &self.plan.plan().programs[self.program]
    }

    /// Keeps the first failure of a piece.
    pub fn fail(&self, error: RunError) {
        lock(&self.failure).get_or_insert(error);
        self.failing.store(true, Ordering::Release);
    }
}

/// The actors of one thread.
pub(crate) struct ActorThread {
    pub shared: Arc<Shared>,
    pub bus: Bus,
    /// In the order of their places.
    pub actors: Vec<Local>,
    pub scratch: Scratch,
    /// Acts that are left of this piece.
    pub left: usize,
    /// Actors that have not ended.
    pub alive: usize,
}

/// An actor with its task's work.
pub(crate) struct Local {
    pub task: usize,
    pub actor: Actor,
    pub work: Work,
}

impl ActorThread {
    /// Delivers local messages until there are none.
    pub fn drain(&mut self) -> Result<(), RunError> {
        while let Some((to, msg)) = self.bus.next_local() {
            self.deliver(to, msg)?;
        }
        Ok(())
    }

    /// Delivers a message and does all the work that follows from it at once.
    #[inline]
    pub fn deliver(&mut self, to: ActorId, msg: Msg) -> Result<(), RunError> {
        let Self { shared, bus, actors, scratch, left, alive } = self;
        let Local { task, actor, work } = &mut actors[bus.place(to)];
        let mut msg = msg;
        loop {
            let mut act = None;
            let mut reachable = true;
            let step = actor.on_message(msg, &mut |action| match action {
                Action::Send { to, msg } => reachable &= bus.send(to, msg),
                Action::Act { piece } => act = Some(piece),
                Action::Done => *alive -= 1,
            });
            step.map_err(|error| RunError::Internal(error.to_string()))?;
            if !reachable {
                return Err(RunError::Internal("a thread of the session is gone".into()));
            }
            let Some(piece) = act else { return Ok(()) };
            do_work(shared, *task, work, piece, scratch);
            *left -= 1;
            msg = Msg::Acted;
        }
    }

    /// Runs as one of the session's other threads, until its actors have ended.
    pub fn serve(mut self) {
        let count = self.actors.len();
        while self.alive > 0 {
            let Some(mail) = self.bus.wait(Duration::from_secs(3600)) else {
                continue;
            };
            let step = match mail {
                Mail::Actor(to, msg) => self.deliver(to, msg).and_then(|()| self.drain()),
                Mail::Quit => return,
                Mail::PieceDone | Mail::Died => Ok(()),
            };
            if let Err(error) = step {
                self.shared.fail(error);
                self.bus.mail(0, Mail::Died);
                return;
            }
            if self.left == 0 {
                self.left = count;
                self.bus.mail(0, Mail::PieceDone);
            }
        }
    }
}

#[inline]
fn do_work(shared: &Shared, task: usize, work: &mut Work, piece: u64, scratch: &Scratch) {
    let program = shared.program();
    let Shared { ports, objects, symbols, pool, clocks, .. } = shared;
    if !shared.failing.load(Ordering::Acquire) {
        let context = Context { program, task, piece, ports, objects, symbols, pool, scratch };
        let start = clocks.is_on().then(Instant::now);
        if let Err(error) = work.run(&context) {
            shared.fail(error);
        }
        if let Some(start) = start {
            clocks.add(task, start);
        }
    }
    if objects.any() {
        let desc = &program.tasks[task];
        desc.produces.iter().for_each(|&regst| objects.produced(regst, piece));
        desc.consumes.iter().for_each(|&regst| objects.consumed(regst, piece));
    }
}
