//! Several requests at once.

use std::sync::{Arc, Condvar, Mutex};

use of_plan::PlanFile;

use crate::io::lock;
use crate::pool::Pool;
use crate::session::worker_count;
use crate::{Loader, Options, RunError, Session, SessionError, Value};

/// A program that several callers run at the same time, each in a lane of its own: a session with a copy of every register,
/// on its share of the workers. Weights and code are there once. More workers for one request make it faster, more lanes
/// make more of them a second, since what is shared out among workers has to wait for the slowest of them.
pub struct SessionPool {
    idle: Mutex<Idle>,
    freed: Condvar,
}

struct Idle {
    sessions: Vec<Session>,
    /// Lanes that still work, those that run now included.
    alive: usize,
    /// What broke the last one that does not.
    broken: Option<String>,
}

impl SessionPool {
    /// So many lanes, one at least, for a program of a plan. [`Options::threads`] are those of all lanes together; each has
    /// one at least.
    ///
    /// # Errors
    /// When this machine cannot run the program.
    pub fn new(
        plan: &Arc<PlanFile>,
        program: usize,
        options: Options,
        lanes: usize,
        loaders: &[Arc<dyn Loader>],
    ) -> Result<SessionPool, SessionError> {
        let lanes = lanes.max(1);
        let threads = (worker_count(options, plan.plan().environment.threads) / lanes).max(1);
        let code = Session::code(plan)?;
        let session = |_| {
            let pool = Pool::new(threads).map_err(SessionError::Thread)?;
            Session::inner(plan, program, (Arc::new(pool), Arc::clone(&code)), loaders, 0)
        };
        let sessions = (0..lanes).map(session).collect::<Result<Vec<_>, _>>()?;
        let idle = Idle { alive: sessions.len(), sessions, broken: None };
        Ok(SessionPool { idle: Mutex::new(idle), freed: Condvar::new() })
    }

    /// Runs the program on these inputs in a lane that is free, as soon as there is one.
    ///
    /// # Errors
    /// Those of [`Session::run`]. A lane that cannot run again is given up; the others go on.
    pub fn run(&self, inputs: Vec<Value>) -> Result<Vec<Value>, RunError> {
        self.with(|session| session.run(inputs))
    }

    /// The same without giving memory away or taking any: [`Session::run_into`].
    ///
    /// # Errors
    /// Those of [`Session::run_into`]. A lane that cannot run again is given up; the others go on.
    pub fn run_into(&self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<(), RunError> {
        self.with(|session| session.run_into(inputs, outputs))
    }

    /// Room for the outputs of [`SessionPool::run_into`]: [`Session::new_outputs`].
    ///
    /// # Errors
    /// When no lane can run any more.
    pub fn new_outputs(&self) -> Result<Vec<Value>, RunError> {
        self.with(|session| Ok(session.new_outputs()))
    }

    fn with<T>(&self, run: impl FnOnce(&mut Session) -> Result<T, RunError>) -> Result<T, RunError> {
        let mut lane = Lane { lanes: self, session: Some(self.take()?) };
        match &mut lane.session {
            Some(session) => run(session),
            None => Err(RunError::Internal("a lane without a session".into())),
        }
    }

    fn take(&self) -> Result<Session, RunError> {
        let mut idle = lock(&self.idle);
        loop {
            if let Some(session) = idle.sessions.pop() {
                return Ok(session);
            }
            if idle.alive == 0 {
                return Err(RunError::Poisoned(idle.broken.clone().unwrap_or_default()));
            }
            idle = self.freed.wait(idle).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

/// A session on loan, which goes back however the run ends.
struct Lane<'a> {
    lanes: &'a SessionPool,
    session: Option<Session>,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let mut idle = lock(&self.lanes.idle);
        match session.poison() {
            None => idle.sessions.push(session),
            Some(why) => {
                idle.alive -= 1;
                idle.broken = Some(why.to_owned());
            }
        }
        // Those who wait for the last lane must learn that it is gone.
        if idle.alive == 0 { self.lanes.freed.notify_all() } else { self.lanes.freed.notify_one() }
    }
}
