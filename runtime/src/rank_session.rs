//! A rank session: one rank of a mesh in this process; the others are in processes of their own.

use std::sync::Arc;
use std::time::Duration;

use of_plan::{MeshProgram, PlanFile, Rates, TaskGraph};

use crate::clock::Instant;
use crate::device::CodeMap;
use crate::flight_recorder::{FlightRecorder, Phase};
use crate::memory_budget::check_memory;
use crate::mesh_ports::{check_inputs, held, scatter, verified_mesh, zeros_for};
use crate::rank_exchange::RankExchange;
use crate::rank_variables::RankVariables;
use crate::session::{code_error, worker_count};
use crate::transport::Transport;
use crate::{Loader, Options, RankContext, RunError, Session, SessionError, TaskTiming, Value, Variables};

/// One rank of a program on a mesh. Every rank takes the whole inputs, of which it reads its parts, and gives the whole
/// outputs.
pub struct RankSession {
    exchange: Arc<RankExchange>,
    session: Session,
    variables: Option<RankVariables>,
    /// Its parts of the inputs and outputs, allocated once.
    inputs: Vec<Value>,
    outputs: Vec<Value>,
    /// Runs that ended in order.
    runs: u64,
    step: Duration,
    failed: Option<String>,
}

impl RankSession {
    /// Proves that the ranks of a plan's mesh can run together, and makes the session of `rank`. All ranks must do so at the
    /// same time. [`Options::threads`] are those of this rank; 0 takes its share of what the plan was tuned for.
    ///
    /// # Errors
    /// When the plan does not verify, or this machine cannot run it.
    pub fn new(
        plan: Arc<PlanFile>,
        mesh: usize,
        rank: usize,
        transport: Arc<dyn Transport>,
        options: Options,
        loaders: &[Arc<dyn Loader>],
    ) -> Result<Self, SessionError> {
        let own = Self::with(RankExchange::new(plan, mesh, rank, transport), options, loaders, None)?;
        own.is_recorded();
        Ok(own)
    }

    /// As [`RankSession::new`], for another mesh of the plan of a session with variables, which both share. Of both, one runs at a time, the same
    /// on all ranks.
    ///
    /// # Errors
    /// As [`RankSession::new`], and when the rank has other variables there.
    pub fn sharing(&self, mesh: usize, options: Options, loaders: &[Arc<dyn Loader>]) -> Result<Self, SessionError> {
        Self::with(self.exchange.sharing(mesh), options, loaders, self.session.variables().cloned())
    }

    fn with(
        exchange: RankExchange,
        options: Options,
        loaders: &[Arc<dyn Loader>],
        shared: Option<Arc<Variables>>,
    ) -> Result<Self, SessionError> {
        let (plan, transport) = (exchange.plan(), exchange.shared_transport());
        let (mesh, rank) = (exchange.mesh(), exchange.rank());
        let desc = verified_mesh(&plan, mesh, Some(rank))?;
        let count = desc.ranks.len();
        let own = desc.ranks.get(rank).ok_or(SessionError::Rank { rank, count })?;
        let code = Arc::new(CodeMap::new(&plan).map_err(|error| code_error(&plan, error))?);
        let threads = match options.threads {
            0 => (worker_count(options, plan.plan().environment.threads) / count).max(1),
            threads => threads,
        };
        let budget = options.budget();
        check_memory(plan.plan().programs.get(own.program as usize).map(|p| (p, 1)).into_iter(), budget)?;
        let options = Options { threads, memory: Some(budget), ..options };
        let rank_context = RankContext {
            rank: rank as u32,
            mesh: desc.extents(),
            weight_overrides: own.weight_overrides.clone(),
            transport: Arc::clone(&transport),
        };
        let session = Session::of_rank(&plan, own.program as usize, options, &code, loaders, &rank_context, shared);
        let session = session.inspect_err(|error| {
            transport.fail(&error.to_string());
            transport.recorder().inspect(|recorder| recorder.failed(&error.to_string(), Phase::Failed));
        })?;
        // A rank that computes ends before its next task.
        let stops = Arc::clone(&transport);
        session.canceller().poll_with(Box::new(move || stops.stopped()));
        let (inputs, outputs) = (zeros_for(&session.program().inputs)?, session.new_outputs());
        let exchange = Arc::new(exchange);
        let variables = RankVariables::new(&exchange, session.variables().cloned());
        Ok(Self { exchange, session, variables, inputs, outputs, runs: 0, step: Duration::ZERO, failed: None })
    }

    /// Says in the rank's recording that it runs this program.
    fn is_recorded(&self) {
        let Some(recorder) = self.exchange.recorder() else { return };
        let program = self.session.program();
        let rates = TaskGraph::of(program).map(|graph| Rates::of(program, &graph));
        let acts_of = |rates: &Rates| {
            let tasks = 0..program.tasks.len();
            tasks.map(|task| self.runs * u64::from(rates.task(task))).collect()
        };
        let acts: Vec<u64> = rates.as_ref().map_or(Vec::new(), acts_of);
        recorder.runs(self.exchange.mesh(), self.own_program(), self.runs, &acts);
    }

    /// The number of the rank's program in the plan.
    fn own_program(&self) -> usize {
        self.program().ranks[self.rank()].program as usize
    }

    /// The program.
    pub fn program(&self) -> &MeshProgram {
        self.exchange.program()
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.exchange.rank()
    }

    /// As [`Session::set_profiling`].
    pub fn set_profiling(&self, on: bool) {
        self.session.set_profiling(on);
    }

    /// As [`Session::timings`].
    pub fn timings(&self) -> Vec<TaskTiming> {
        self.session.timings()
    }

    /// As [`Session::reset_timings`].
    pub fn reset_timings(&self) {
        self.session.reset_timings();
    }

    /// The values that it keeps between runs, where its program has variables.
    pub fn variables(&self) -> Option<&RankVariables> {
        self.variables.as_ref()
    }

    /// The time of this rank's last run, without the cut of inputs and the exchange of outputs.
    pub fn step(&self) -> Duration {
        self.step
    }

    /// Checks that whole inputs fit, without the other ranks.
    ///
    /// # Errors
    /// When one does not.
    pub fn check_inputs(&self, inputs: &[Value]) -> Result<(), RunError> {
        check_inputs(self.exchange.program(), inputs)
    }

    /// Runs the program on whole inputs, together with the other ranks, which must do the same. After an error no rank can run
    /// again.
    ///
    /// # Errors
    /// When an input does not fit, a task fails, or another rank does.
    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, RunError> {
        if let Some(why) = &self.failed {
            return Err(RunError::Poisoned(why.clone()));
        }
        let result = match self.begin(inputs) {
            // All ranks find the same, and may go on.
            Ok(Some(differing)) => return Err(differing),
            Ok(None) => self.run_together(inputs),
            Err(error) => Err(error),
        };
        result.map_err(|error| {
            let error = self.exchange.explain(error, Some(&self.session));
            self.failed = Some(error.to_string());
            error
        })
    }

    /// Checks the inputs; gives what they do not have in common with those of the other ranks.
    fn begin(&self, inputs: &[Value]) -> Result<Option<RunError>, RunError> {
        check_inputs(self.exchange.program(), inputs)?;
        let is_other = |recorder: &Arc<FlightRecorder>| !recorder.is_of(self.exchange.mesh(), self.own_program());
        if self.exchange.recorder().is_some_and(is_other) {
            self.is_recorded();
        }
        self.exchange.differing_extents(inputs)
    }

    fn run_together(&mut self, inputs: &[Value]) -> Result<Vec<Value>, RunError> {
        let program = self.exchange.program();
        scatter(program, inputs, self.exchange.rank(), &mut self.inputs)?;
        let start = Instant::now();
        self.session.run_into(&mut self.inputs, &mut self.outputs)?;
        self.step = start.elapsed();
        self.runs += 1;
        (0..program.outputs.len()).map(|index| self.whole_output(index)).collect()
    }

    /// An output, for which all ranks send their parts to all others.
    fn whole_output(&self, index: usize) -> Result<Value, RunError> {
        let position = held(self.program(), self.exchange.rank(), index);
        let own = position.and_then(|at| self.outputs.get(at)?.as_tensor());
        self.exchange.gather_output(index, own).map(Value::from)
    }
}

impl Drop for RankSession {
    fn drop(&mut self) {
        if self.failed.is_none() {
            self.exchange.recorder().inspect(|recorder| recorder.phase(Phase::Ended));
        }
    }
}
