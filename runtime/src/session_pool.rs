//! The session pool: concurrent requests to one program, each in its own session.

use std::sync::Arc;

use of_plan::PlanFile;

use crate::memory_budget::check_memory;
use crate::pool::Pool;
use crate::session::{Resources, worker_count};
use crate::sync::{Condvar, Mutex, lock, wait};
use crate::{Loader, Options, RunError, Session, SessionError, Value, Variables};

/// A pool of sessions of one program, for concurrent callers. Each session has its own registers and an equal share of the
/// workers; weights and code are shared. More workers per session reduce latency. More sessions raise throughput, since
/// a parallel loop waits for its slowest worker.
pub struct SessionPool {
    idle: Mutex<Idle>,
    freed: Condvar,
}

struct Idle {
    sessions: Vec<Session>,
    /// Number of sessions that can still run, those running now included.
    alive: usize,
    /// Why the last unusable session failed.
    broken: Option<String>,
}

impl SessionPool {
    /// A pool of `sessions` sessions, at least one, of a program. [`Options::threads`] is the total of all sessions; each has
    /// at least one.
    ///
    /// # Errors
    /// When this machine cannot run the program.
    pub fn new(
        plan: &Arc<PlanFile>,
        program: usize,
        options: Options,
        sessions: usize,
        loaders: &[Arc<dyn Loader>],
    ) -> Result<SessionPool, SessionError> {
        let sessions = sessions.max(1);
        let threads = (worker_count(options, plan.plan().environment.threads) / sessions).max(1);
        let code = Session::code(plan)?;
        // Each session has a share of the budget, as of the workers.
        let budget = options.budget();
        check_memory(plan.plan().programs.get(program).map(|desc| (desc, sessions as u64)).into_iter(), budget)?;
        let share = Some(budget / sessions as u64);
        // They share the variables, so runs that update them follow one another.
        let desc = plan.plan().programs.get(program);
        let variables = desc.map(|desc| Variables::new(plan, desc, None)).transpose()?.flatten().map(Arc::new);
        let session = |_| {
            let pool = Pool::new(threads, plan.plan().environment.keep_subnormals).map_err(SessionError::Thread)?;
            let resources = Resources { variables: variables.clone(), ..Resources::new(pool, Arc::clone(&code)) };
            Ok(Session::inner(plan, program, resources, loaders, 0, share)?.live(None))
        };
        let sessions = (0..sessions).map(session).collect::<Result<Vec<_>, _>>()?;
        let idle = Idle { alive: sessions.len(), sessions, broken: None };
        Ok(SessionPool { idle: Mutex::new(idle), freed: Condvar::new() })
    }

    /// Runs the program on these inputs in the next free session.
    ///
    /// # Errors
    /// Those of [`Session::run`]. A session that cannot run again is removed from the pool.
    pub fn run(&self, inputs: Vec<Value>) -> Result<Vec<Value>, RunError> {
        self.with(|session| session.run(inputs))
    }

    /// The same with the caller's buffers: [`Session::run_into`].
    ///
    /// # Errors
    /// Those of [`Session::run_into`]. A session that cannot run again is removed from the pool.
    pub fn run_into(&self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<(), RunError> {
        self.with(|session| session.run_into(inputs, outputs))
    }

    /// Buffers for the outputs of [`SessionPool::run_into`]: [`Session::new_outputs`].
    ///
    /// # Errors
    /// When no session can run any more.
    pub fn new_outputs(&self) -> Result<Vec<Value>, RunError> {
        self.with(|session| Ok(session.new_outputs()))
    }

    fn with<T>(&self, run: impl FnOnce(&mut Session) -> Result<T, RunError>) -> Result<T, RunError> {
        let mut session = PooledSession { pool: self, session: Some(self.take()?) };
        match &mut session.session {
            Some(session) => run(session),
            None => Err(RunError::Internal("the pool has no session left".into())),
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
            idle = wait(&self.freed, idle);
        }
    }
}

/// A session on loan, which goes back however the run ends.
struct PooledSession<'a> {
    pool: &'a SessionPool,
    session: Option<Session>,
}

impl Drop for PooledSession<'_> {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let mut idle = lock(&self.pool.idle);
        match session.poison() {
            None => idle.sessions.push(session),
            Some(why) => {
                idle.alive -= 1;
                idle.broken = Some(why.to_owned());
            }
        }
        // Callers that wait for the last session must see that it is gone.
        if idle.alive == 0 { self.pool.freed.notify_all() } else { self.pool.freed.notify_one() }
    }
}
