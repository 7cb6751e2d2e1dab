//! A mesh session: the ranks of a mesh as threads of this process. It scatters inputs and gathers outputs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use of_plan::{MeshProgram, PlanFile, Program};

use crate::clock::Instant;
use crate::device::CodeMap;
use crate::error::panic_text;
use crate::memory_budget::check_memory;
use crate::mesh_ports::{check_inputs, gather, scatter, verified_mesh, zeros_for};
use crate::mesh_variables::MeshVariables;
use crate::session::{code_error, worker_count};
use crate::shared_memory::SharedMemory;
use crate::transport::Transport;
use crate::{
    Canceller, LoadError, Loader, Options, RankContext, RunError, Session, SessionError, TaskTiming, Value, Variables,
};

/// A program on a mesh, ready to run: a session for each rank, on a thread of its own. It takes whole inputs and gives
/// whole outputs.
pub struct MeshSession {
    plan: Arc<PlanFile>,
    mesh: usize,
    transport: Arc<SharedMemory>,
    ranks: Vec<Worker>,
    outcomes: Receiver<Outcome>,
    /// For each rank its parts of the inputs and outputs, allocated once.
    buffers: Vec<RankBuffers>,
    variables: Option<MeshVariables>,
    /// Whether a run gives variables other values.
    updates: bool,
    /// For each rank what ends its runs.
    cancellers: Vec<Arc<Canceller>>,
    /// What ends the run of all ranks.
    poll: Option<Poll>,
    step: Duration,
    threads: usize,
    poison: Option<String>,
}

/// A rank's thread.
struct Worker {
    jobs: Sender<Job>,
    handle: Option<JoinHandle<()>>,
}

/// A rank's parts of the inputs and outputs.
#[derive(Default)]
struct RankBuffers {
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

/// What a rank's thread reports when it is ready.
type Loaded = (RankBuffers, Option<Arc<Variables>>, Arc<Canceller>);

/// A condition, and how often the thread that called [`MeshSession::run`] evaluates it.
type Poll = (Duration, Box<dyn Fn() -> bool + Send>);

enum Job {
    Run(RankBuffers),
    Timings(Sender<Vec<TaskTiming>>),
    Reset,
    Profile(bool),
}

/// How a rank's run ended.
struct Outcome {
    rank: usize,
    began: Instant,
    ended: Instant,
    part_buffers: RankBuffers,
    result: Result<(), RunError>,
}

impl MeshSession {
    /// Proves that the ranks of a plan's mesh can run together, makes a session for each and starts their threads.
    /// [`Options::threads`] are those of all ranks together; each has one at least.
    pub fn new(
        plan: Arc<PlanFile>,
        mesh: usize,
        options: Options,
        loaders: &[Arc<dyn Loader>],
    ) -> Result<Self, SessionError> {
        Self::with(plan, mesh, options, loaders, None)
    }

    /// As [`MeshSession::new`], for another mesh of the plan of a session with variables, which both share. Of both, one runs at a time.
    ///
    /// # Errors
    /// As [`MeshSession::new`], and when ranks have other variables there.
    pub fn sharing(
        plan: Arc<PlanFile>,
        mesh: usize,
        options: Options,
        loaders: &[Arc<dyn Loader>],
        variables: &MeshVariables,
    ) -> Result<Self, SessionError> {
        Self::with(plan, mesh, options, loaders, Some(variables))
    }

    fn with(
        plan: Arc<PlanFile>,
        mesh: usize,
        options: Options,
        loaders: &[Arc<dyn Loader>],
        shared: Option<&MeshVariables>,
    ) -> Result<Self, SessionError> {
        let desc = verified_mesh(&plan, mesh, None)?;
        let code = CodeMap::new(&plan).map_err(|error| code_error(&plan, error))?;
        let code = Arc::new(code);
        let all = worker_count(options, plan.plan().environment.threads);
        let threads = (all / desc.ranks.len()).max(1);
        let budget = options.budget();
        let programs = desc.ranks.iter().filter_map(|rank| plan.plan().programs.get(rank.program as usize));
        check_memory(programs.map(|program| (program, 1)), budget)?;
        let options = Options { threads, memory: Some(budget), ..options };
        let transport = Arc::new(SharedMemory::new(desc.ranks.len()));
        let (done, outcomes) = channel();
        let mut ranks = Vec::with_capacity(desc.ranks.len());
        let mut loading = Vec::with_capacity(desc.ranks.len());
        for (rank, own) in desc.ranks.iter().enumerate() {
            let to_others = Arc::clone(&transport) as Arc<dyn Transport>;
            let rank_context = RankContext {
                rank: rank as u32,
                mesh: desc.extents(),
                weight_overrides: own.weight_overrides.clone(),
                transport: to_others,
            };
            let (plan, code, loaders, program) = (Arc::clone(&plan), Arc::clone(&code), loaders.to_vec(), own.program);
            let shared = shared.and_then(|shared| shared.of_rank(rank)).cloned();
            let load = move |rank_context: &RankContext| {
                let session =
                    Session::of_rank(&plan, program as usize, options, &code, &loaders, rank_context, shared)?;
                let part_buffers =
                    RankBuffers { inputs: zeros_for(&session.program().inputs)?, outputs: session.new_outputs() };
                let (variables, canceller) = (session.variables().cloned(), Arc::clone(session.canceller()));
                Ok((session, (part_buffers, variables, canceller)))
            };
            let (loaded, part_buffers) = channel();
            loading.push(part_buffers);
            let worker = Worker::start(rank_context, load, loaded, done.clone());
            ranks.push(worker.inspect_err(|_| transport.stop())?);
        }
        let gone = || Err(SessionError::Thread(std::io::Error::other("a rank's thread is gone")));
        let loaded: Vec<_> =
            loading.into_iter().map(|part_buffers| part_buffers.recv().unwrap_or_else(|_| gone())).collect();
        // A rank that stopped because of another does not know the cause.
        let silent = |e: &SessionError| matches!(e, SessionError::Load { source: LoadError::Stopped, .. });
        let (mut buffers, mut variables, mut failure) = (Vec::with_capacity(loaded.len()), Vec::new(), None);
        let mut cancellers = Vec::with_capacity(loaded.len());
        for part_buffers in loaded {
            match part_buffers {
                Ok((part_buffers, own, canceller)) => {
                    buffers.push(part_buffers);
                    variables.push(own);
                    cancellers.push(canceller);
                }
                Err(e) if failure.as_ref().is_none_or(silent) => failure = Some(e),
                Err(_) => {}
            }
        }
        if let Some(error) = failure {
            return Err(error);
        }
        #[cfg(feature = "tracing")]
        tracing::debug!(mesh = %desc.name, ranks = ranks.len(), threads, "session of ranks");
        Ok(Self {
            transport,
            ranks,
            outcomes,
            buffers,
            variables: MeshVariables::new(&plan, mesh, variables),
            updates: desc.ranks.iter().any(|rank| updates(&plan.plan().programs[rank.program as usize])),
            cancellers,
            poll: None,
            mesh,
            step: Duration::ZERO,
            threads: threads * desc.ranks.len(),
            plan: Arc::clone(&plan),
            poison: None,
        })
    }

    /// The program.
    pub fn program(&self) -> &MeshProgram {
        &self.plan.plan().meshes[self.mesh]
    }

    /// The template that a rank runs; `None` when there is no such rank.
    pub fn template(&self, rank: usize) -> Option<&Program> {
        let program = self.program().ranks.get(rank)?.program;
        self.plan.plan().programs.get(program as usize)
    }

    /// The values that it keeps between runs, where its program has variables.
    pub fn variables(&self) -> Option<&MeshVariables> {
        self.variables.as_ref()
    }

    /// A condition that ends a run of all ranks with [`RunError::Cancelled`]. The caller of [`MeshSession::run`] evaluates it at this
    /// interval while the ranks run.
    pub fn poll_with(&mut self, interval: Duration, condition: Box<dyn Fn() -> bool + Send>) {
        self.poll = Some((interval, condition));
    }

    /// Threads of all ranks together.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The time of the last run, from the first rank's start to the last one's end, without the scatter of inputs and the gather of
    /// outputs.
    pub fn step(&self) -> Duration {
        self.step
    }

    /// Runs the program on whole inputs.
    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, RunError> {
        if let Some(why) = &self.poison {
            return Err(RunError::Poisoned(why.clone()));
        }
        check_inputs(self.program(), inputs)?;
        let mut buffers = std::mem::take(&mut self.buffers);
        let cut = buffers
            .iter_mut()
            .enumerate()
            .try_for_each(|(rank, part_buffers)| scatter(self.program(), inputs, rank, &mut part_buffers.inputs));
        if let Err(error) = cut {
            self.buffers = buffers;
            return Err(error);
        }
        self.buffers.resize_with(buffers.len(), RankBuffers::default);
        for (worker, part_buffers) in self.ranks.iter().zip(buffers) {
            if worker.jobs.send(Job::Run(part_buffers)).is_err() {
                return Err(self.broken("a rank's thread is gone"));
            }
        }
        // A rank that stopped because of another does not know the cause.
        let silent = |e: &RunError| matches!(e, RunError::Rank { source, .. } if **source == RunError::Stopped);
        let (mut first, mut last, mut failure): (Option<Instant>, Option<Instant>, Option<RunError>) =
            Default::default();
        for _ in 0..self.ranks.len() {
            let Some(outcome) = self.outcome() else { return Err(self.broken("the ranks' threads are gone")) };
            first = Some(first.map_or(outcome.began, |t| t.min(outcome.began)));
            last = Some(last.map_or(outcome.ended, |t| t.max(outcome.ended)));
            self.buffers[outcome.rank] = outcome.part_buffers;
            match outcome.result {
                Ok(()) => {}
                Err(error) => {
                    let rank = RunError::Rank { rank: outcome.rank as u32, source: Box::new(error.clone()) };
                    if failure.as_ref().is_none_or(silent) {
                        failure = Some(rank);
                    }
                    if matches!(error, RunError::Panic { .. } | RunError::Internal(_) | RunError::Poisoned(_)) {
                        self.poison = Some(error.to_string());
                    }
                }
            }
        }
        let cancelled = self.cancellers.iter().any(|rank| rank.ends_run());
        self.cancellers.iter().for_each(|rank| rank.set(false));
        self.transport.restart();
        if let Some(error) = failure {
            if self.updates {
                self.variables.iter().for_each(MeshVariables::lose);
            }
            let is_cause = |e: &RunError| matches!(e, RunError::Rank { source, .. } if **source == RunError::Cancelled);
            return Err(if cancelled && (is_cause(&error) || silent(&error)) { RunError::Cancelled } else { error });
        }
        self.step = first.zip(last).map_or(Duration::ZERO, |(a, b)| b - a);
        let part = |rank: usize, part: usize| self.buffers.get(rank)?.outputs.get(part)?.as_tensor();
        (0..self.program().outputs.len()).map(|i| gather(self.program(), i, &part)).collect()
    }

    /// As [`crate::Session::set_profiling`], on all ranks.
    pub fn set_profiling(&self, on: bool) {
        for worker in &self.ranks {
            // A rank whose thread is gone runs no more.
            let _ = worker.jobs.send(Job::Profile(on));
        }
    }

    /// Time spent in each task of a rank since the session was made or reset; empty without profiling.
    pub fn timings(&self, rank: usize) -> Vec<TaskTiming> {
        let (to, from) = channel();
        let asked = self.ranks.get(rank).is_some_and(|worker| worker.jobs.send(Job::Timings(to)).is_ok());
        if asked { from.recv().unwrap_or_default() } else { Vec::new() }
    }

    /// Forgets the times taken so far.
    pub fn reset_timings(&self) {
        for worker in &self.ranks {
            // A rank whose thread is gone has no times.
            let _ = worker.jobs.send(Job::Reset);
        }
    }

    /// The next rank whose run has ended. Meanwhile the condition is evaluated.
    fn outcome(&self) -> Option<Outcome> {
        let Some((interval, condition)) = &self.poll else { return self.outcomes.recv().ok() };
        loop {
            match self.outcomes.recv_timeout(*interval) {
                Ok(outcome) => return Some(outcome),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if condition() => {
                    self.cancellers.iter().for_each(|rank| rank.set(true));
                    // Ranks that wait for one another run no task meanwhile.
                    self.transport.stop();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn broken(&mut self, what: &str) -> RunError {
        self.poison = Some(what.into());
        self.transport.stop();
        RunError::Internal(what.into())
    }
}

/// Whether tasks of a program write variables.
fn updates(program: &Program) -> bool {
    program.tasks.iter().any(|task| program.variables_written(task).next().is_some())
}

impl Drop for MeshSession {
    fn drop(&mut self) {
        // A closed channel ends a thread. All end at the same time, because executables may have a last rendezvous when they are dropped.
        self.ranks.iter_mut().for_each(|worker| worker.jobs = channel().0);
        for worker in &mut self.ranks {
            if let Some(handle) = worker.handle.take() {
                // A panic was caught and reported where it happened.
                let _ = handle.join();
            }
        }
    }
}

impl Worker {
    /// Starts the thread of the rank at a rank context, which loads its session, reports to `loaded`, and then does its jobs.
    fn start(
        rank_context: RankContext,
        load: impl FnOnce(&RankContext) -> Result<(Session, Loaded), SessionError> + Send + 'static,
        loaded: Sender<Result<Loaded, SessionError>>,
        done: Sender<Outcome>,
    ) -> Result<Self, SessionError> {
        let (jobs, inbox) = channel();
        let (rank, transport) = (rank_context.rank as usize, Arc::clone(&rank_context.transport));
        let work = move || {
            let panicked = |payload: Box<dyn std::any::Any + Send>| {
                let what = format!("a rank panicked while it was loaded: {}", panic_text(&*payload));
                Err(SessionError::Thread(std::io::Error::other(what)))
            };
            let mut session = match catch_unwind(AssertUnwindSafe(|| load(&rank_context))).unwrap_or_else(panicked) {
                Ok((session, part_buffers)) => {
                    // Who asked may be gone; then there are no jobs either.
                    let _ = loaded.send(Ok(part_buffers));
                    session
                }
                Err(error) => {
                    transport.stop();
                    let _ = loaded.send(Err(error));
                    return;
                }
            };
            for job in inbox {
                match job {
                    Job::Run(mut part_buffers) => {
                        let began = Instant::now();
                        let RankBuffers { inputs, outputs } = &mut part_buffers;
                        let run = catch_unwind(AssertUnwindSafe(|| session.run_into(inputs, outputs)));
                        let result = run.unwrap_or_else(|payload| {
                            Err(RunError::Internal(format!("a rank panicked: {}", panic_text(&*payload))))
                        });
                        if result.is_err() {
                            transport.stop();
                        }
                        if done.send(Outcome { rank, began, ended: Instant::now(), part_buffers, result }).is_err() {
                            return;
                        }
                    }
                    // Who asked may be gone.
                    Job::Timings(to) => drop(to.send(session.timings())),
                    Job::Reset => session.reset_timings(),
                    Job::Profile(on) => session.set_profiling(on),
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("of-rank-{rank}"));
        Ok(Self { jobs, handle: Some(thread.spawn(work).map_err(SessionError::Thread)?) })
    }
}
