//! A plan in execution: by one session, or by the ranks of a mesh.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use of_diag::{Code, Diagnostics};
use of_plan::{ElementType, InputDims, MeshPort, PlanFile, Port, Program};
use of_runtime::{
    ExecError, FrozenPart, LoadError, MeshSession, MeshVariables, RankSession, RankVariables, RunError, SessionError,
    SessionPool, TaskTiming, Tensor, Transport, Value, Variables,
};

use crate::backends::Backends;
use crate::error::error;
use crate::options::SessionOptions;

/// Executes one program of a plan any number of times.
pub struct Session {
    executor: Executor,
}

/// What executes a program.
enum Executor {
    /// One session.
    Single(Box<of_runtime::Session>),
    /// A session for each rank of a mesh.
    Mesh(Box<MeshSession>),
    /// One rank of a mesh, whose others are in processes of their own.
    Rank(Box<RankSession>),
}

/// The variables of a session: of one program, or of the ranks of a mesh.
#[derive(Clone, Copy, Debug)]
pub enum SessionVariables<'s> {
    /// Those of one program.
    One(&'s Arc<Variables>),
    /// Those of a mesh, of which each rank has its part.
    Ranks(&'s MeshVariables),
    /// Those of a mesh, of which this process has one rank's part. All ranks must set and get the same values in the same order.
    Rank(&'s RankVariables),
}

impl<'s> SessionVariables<'s> {
    /// Their names.
    pub fn names(self) -> Vec<&'s str> {
        self.types().into_iter().map(|(name, ..)| name).collect()
    }

    /// Name, element type and extents of each, whole.
    pub fn types(self) -> Vec<(&'s str, ElementType, &'s [i64])> {
        let of_port = |port: &'s MeshPort| (port.name.as_str(), port.dtype(), port.dims.as_slice());
        match self {
            SessionVariables::One(variables) => {
                variables.list().iter().map(|v| (v.name.as_str(), v.dtype(), v.dims.as_slice())).collect()
            }
            SessionVariables::Ranks(variables) => variables.list().iter().map(of_port).collect(),
            SessionVariables::Rank(variables) => variables.list().iter().map(of_port).collect(),
        }
    }

    /// The value of a variable, whole, on the rank that reports results: all ranks must ask for it, and those of other
    /// processes get `None`. It is lent as by [`SessionVariables::lend`].
    ///
    /// # Errors
    /// As [`SessionVariables::get`].
    pub fn lend_reported(self, name: &str) -> Result<Option<Tensor>, RunError> {
        match self {
            SessionVariables::Rank(variables) => variables.get_on_first(name),
            _ => self.lend(name).map(Some),
        }
    }

    /// The value of a variable, whole. Waits for a run that is under way.
    ///
    /// # Errors
    /// When there is no such variable, or it has no value.
    pub fn get(self, name: &str) -> Result<Tensor, RunError> {
        match self {
            SessionVariables::One(variables) => variables.get(name),
            SessionVariables::Ranks(variables) => variables.get(name),
            SessionVariables::Rank(variables) => variables.get(name),
        }
    }

    /// As [`SessionVariables::get`], without a copy where one session has the value whole: it stays in its place, and runs wait until the tensor
    /// and its clones are dropped.
    ///
    /// # Errors
    /// As [`SessionVariables::get`].
    pub fn lend(self, name: &str) -> Result<Tensor, RunError> {
        match self {
            SessionVariables::One(variables) => variables.lend(name),
            _ => self.get(name),
        }
    }

    /// Freezes all values as they are, for work that goes on while later runs update them; of a rank, the parts that it is to write. All
    /// ranks must do it. Waits for a run that is under way.
    ///
    /// # Errors
    /// When a variable has no value.
    pub fn freeze_parts(self) -> Result<Vec<FrozenPart>, RunError> {
        match self {
            SessionVariables::One(variables) => variables.freeze_parts(),
            SessionVariables::Ranks(variables) => variables.freeze_parts(),
            SessionVariables::Rank(variables) => variables.freeze_parts(),
        }
    }

    /// Sets the value of a variable. Waits for a run that is under way.
    ///
    /// # Errors
    /// When there is no such variable, or the value has another type.
    pub fn set(self, name: &str, value: &Tensor) -> Result<(), RunError> {
        match self {
            SessionVariables::One(variables) => variables.set(name, value),
            SessionVariables::Ranks(variables) => variables.set(name, value),
            SessionVariables::Rank(variables) => variables.set(name, value),
        }
    }

    /// Gives every variable its initial value; those without one have none afterwards.
    pub fn reset(self) {
        match self {
            SessionVariables::One(variables) => variables.reset(),
            SessionVariables::Ranks(variables) => variables.reset(),
            SessionVariables::Rank(variables) => variables.reset(),
        }
    }
}

/// The outputs of a run, by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    named: Vec<(String, Value)>,
}

impl Outputs {
    /// The output called `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.named.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// Names and values in the order of the model.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.named.iter().map(|(n, v)| (n.as_str(), v))
    }
}

impl std::ops::Index<&str> for Outputs {
    type Output = Value;

    /// # Panics
    /// When there is no output of this name.
    fn index(&self, name: &str) -> &Value {
        self.get(name).unwrap_or_else(|| panic!("the model has no output '{name}'"))
    }
}

/// The first entry point of a plan as callers see it; for a mesh, with the whole inputs and outputs.
///
/// # Errors
/// When the plan has no entry point.
pub fn entry_point(plan: &PlanFile) -> Result<Cow<'_, Program>, Diagnostics> {
    numbered_entry_point(plan, 0)
}

/// The number of the mesh with this name, among the entry points of a plan for a mesh.
///
/// # Errors
/// When there is none.
pub fn named_mesh(plan: &PlanFile, name: &str) -> Result<usize, Diagnostics> {
    let meshes = &plan.plan().meshes;
    meshes.iter().position(|mesh| mesh.name == name).ok_or_else(|| {
        let names: Vec<String> = meshes.iter().map(|mesh| format!("'{}'", mesh.name)).collect();
        let hint = match names.is_empty() {
            true => "the plan is for one rank, and a run takes the program that accepts its inputs".into(),
            false => format!("there are {}", names.join(", ")),
        };
        error(Code::INPUT, format!("the plan has no entry point '{name}' for a mesh")).hint(hint).into()
    })
}

/// As [`entry_point`], the entry point of this number.
///
/// # Errors
/// When the plan has none of this number.
pub fn numbered_entry_point(plan: &PlanFile, number: usize) -> Result<Cow<'_, Program>, Diagnostics> {
    let plan = plan.plan();
    if let Some(mesh) = plan.meshes.get(number) {
        let port = |p: &MeshPort| Port {
            name: p.name.clone(),
            dtype: p.dtype,
            dims: p.dims.clone(),
            object: p.is_open(),
            ..Port::default()
        };
        let (inputs, outputs) = (mesh.inputs.iter().map(port).collect(), mesh.outputs.iter().map(port).collect());
        return Ok(Cow::Owned(Program { name: mesh.name.clone(), inputs, outputs, ..Program::default() }));
    }
    let program = plan.programs.get(number).ok_or_else(|| error(Code::PLAN, "the plan holds no such program"))?;
    Ok(Cow::Borrowed(program))
}

impl Session {
    /// Opens the program of a plan that accepts the shapes of these inputs.
    ///
    /// # Errors
    /// When no program accepts them, or this machine cannot execute it.
    pub fn for_inputs(
        plan: Arc<PlanFile>,
        inputs: &[Value],
        options: &SessionOptions,
        backends: &Backends,
    ) -> Result<Session, Diagnostics> {
        if plan.plan().meshes.is_empty() {
            let program = find_program(&plan, inputs)?;
            return Session::for_program(plan, program, options, backends);
        }
        let mesh = find_mesh(&plan, inputs)?;
        let session = mesh_session(plan, mesh, options, backends)?;
        Ok(Session { executor: Executor::Mesh(Box::new(session)) })
    }

    /// Opens one rank of the mesh of a plan that accepts the shapes of these inputs. The other ranks are in processes of their
    /// own, which do the same. Every rank takes the whole inputs and gives the whole outputs.
    ///
    /// # Errors
    /// When no mesh accepts the inputs, or this machine cannot execute it.
    pub fn for_rank(
        plan: Arc<PlanFile>,
        inputs: &[Value],
        rank: usize,
        transport: Arc<dyn Transport>,
        options: &SessionOptions,
        backends: &Backends,
    ) -> Result<Session, Diagnostics> {
        let mesh = find_mesh(&plan, inputs)?;
        Session::as_rank(plan, mesh, rank, transport, options, backends)
    }

    /// Opens one rank of a mesh of a plan.
    pub(crate) fn as_rank(
        plan: Arc<PlanFile>,
        mesh: usize,
        rank: usize,
        transport: Arc<dyn Transport>,
        options: &SessionOptions,
        backends: &Backends,
    ) -> Result<Session, Diagnostics> {
        let session = RankSession::new(plan, mesh, rank, transport, runtime_options(options), &backends.loaders);
        Ok(Session { executor: Executor::Rank(Box::new(session.map_err(|e| session_error(&e))?)) })
    }

    /// Opens the first entry point of a plan.
    ///
    /// # Errors
    /// When this machine cannot execute it.
    pub fn first(plan: Arc<PlanFile>, options: &SessionOptions, backends: &Backends) -> Result<Session, Diagnostics> {
        Session::at(plan, 0, options, backends)
    }

    /// Opens every entry point of a plan, in their order; of a plan for a mesh, its ranks as threads. The sessions share weights, code, and
    /// the values of variables.
    ///
    /// # Errors
    /// When this machine cannot execute the plan, or its programs have different variables.
    pub fn all(
        plan: &Arc<PlanFile>,
        options: &SessionOptions,
        backends: &Backends,
    ) -> Result<Vec<Session>, Diagnostics> {
        let own = plan.plan();
        let entry_points: Vec<usize> = match own.meshes.is_empty() {
            true => (0..own.programs.len()).filter(|program| !own.programs[*program].inner).collect(),
            false => (0..own.meshes.len()).collect(),
        };
        let mut sessions: Vec<Session> = Vec::with_capacity(entry_points.len());
        for entry_point in entry_points {
            sessions.push(match sessions.first() {
                Some(first) => first.sharing(plan, entry_point, options, backends)?,
                None => Session::at(Arc::clone(plan), entry_point, options, backends)?,
            });
        }
        Ok(sessions)
    }

    /// Opens the entry point of this number: a mesh, or a program.
    ///
    /// # Errors
    /// When there is none, or this machine cannot execute it.
    pub fn at(
        plan: Arc<PlanFile>,
        entry_point: usize,
        options: &SessionOptions,
        backends: &Backends,
    ) -> Result<Session, Diagnostics> {
        if plan.plan().meshes.is_empty() {
            return Session::for_program(plan, entry_point, options, backends);
        }
        let session = mesh_session(plan, entry_point, options, backends)?;
        Ok(Session { executor: Executor::Mesh(Box::new(session)) })
    }

    /// Opens another entry point of the plan of this session, a mesh or a program. Both share the values of variables. One of them runs
    /// at a time; of ranks that are processes, all run the same one.
    ///
    /// # Errors
    /// When this machine cannot execute it, or its variables differ.
    pub fn sharing(
        &self,
        plan: &Arc<PlanFile>,
        entry_point: usize,
        options: &SessionOptions,
        backends: &Backends,
    ) -> Result<Session, Diagnostics> {
        let (own, loaders) = (runtime_options(options), &backends.loaders);
        let executor = match (&self.executor, self.variables()) {
            (Executor::Rank(first), _) => {
                let made = first.sharing(entry_point, own, loaders);
                Executor::Rank(Box::new(made.map_err(|e| session_error(&e))?))
            }
            (_, Some(SessionVariables::One(variables))) => {
                Executor::Single(Box::new(sharing_session(plan, entry_point, options, backends, variables)?))
            }
            (_, Some(SessionVariables::Ranks(variables))) => {
                let made = MeshSession::sharing(Arc::clone(plan), entry_point, own, loaders, variables);
                Executor::Mesh(Box::new(made.map_err(|e| session_error(&e))?))
            }
            _ => return Session::at(Arc::clone(plan), entry_point, options, backends),
        };
        Ok(Session { executor })
    }

    /// Opens a program of a plan.
    pub(crate) fn for_program(
        plan: Arc<PlanFile>,
        program: usize,
        options: &SessionOptions,
        backends: &Backends,
    ) -> Result<Session, Diagnostics> {
        let session = program_session(plan, program, options, backends)?;
        Ok(Session { executor: Executor::Single(Box::new(session)) })
    }

    /// Runs the program on inputs given by name, in any order.
    ///
    /// # Errors
    /// When an input is missing, unknown or does not fit, or a task fails.
    pub fn run<V: Into<Value> + Clone>(&mut self, inputs: &[(&str, V)]) -> Result<Outputs, Diagnostics> {
        let names = self.input_names();
        if let Some((unknown, _)) = inputs.iter().find(|(name, _)| !names.iter().any(|n| n == name)) {
            let hint = format!("its inputs are {}", names.join(", "));
            return Err(error(Code::INPUT, format!("the model has no input '{unknown}'")).hint(hint).into());
        }
        let value = |name: &String| {
            let found = inputs.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone().into());
            found.ok_or_else(|| Diagnostics::from(error(Code::INPUT, format!("no value for input '{name}'"))))
        };
        let ordered = names.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let outputs = self.run_values(ordered)?;
        Ok(Outputs { named: self.output_names().into_iter().zip(outputs).collect() })
    }

    /// Runs the program on inputs in the order of the model.
    ///
    /// # Errors
    /// When an input does not fit, or a task fails.
    pub fn run_values(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>, Diagnostics> {
        match &mut self.executor {
            Executor::Single(session) => session.run(inputs),
            Executor::Mesh(session) => session.run(&inputs),
            Executor::Rank(session) => session.run(&inputs),
        }
        .map_err(|e| run_error(&e))
    }

    /// A condition that ends a run early, evaluated about so often. Returns whether it is: only one rank of several processes has none.
    pub fn poll_with(&mut self, interval: Duration, condition: Box<dyn Fn() -> bool + Send + Sync>) -> bool {
        match &mut self.executor {
            Executor::Single(session) => session.canceller().poll_with(condition),
            Executor::Mesh(session) => {
                session.poll_with(interval, condition);
                true
            }
            Executor::Rank(_) => false,
        }
    }

    /// Buffers for the outputs of [`Session::run_timed`].
    pub fn new_outputs(&self) -> Vec<Value> {
        match &self.executor {
            Executor::Single(session) => session.new_outputs(),
            Executor::Mesh(_) | Executor::Rank(_) => Vec::new(),
        }
    }

    /// Runs the program into `outputs` and returns its duration. For a mesh, the duration excludes splitting the inputs
    /// and concatenating the outputs.
    ///
    /// # Errors
    /// When an input does not fit, or a task fails.
    pub fn run_timed(&mut self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<Duration, Diagnostics> {
        match &mut self.executor {
            Executor::Single(session) => {
                let start = Instant::now();
                session.run_into(inputs, outputs).map_err(|e| run_error(&e))?;
                Ok(start.elapsed())
            }
            Executor::Mesh(session) => {
                session.run(inputs).map_err(|e| run_error(&e))?;
                Ok(session.step())
            }
            Executor::Rank(session) => {
                session.run(inputs).map_err(|e| run_error(&e))?;
                Ok(session.step())
            }
        }
    }

    /// The time that devices computed in the last run, by their own clocks, without transfers from and to the host. `None`
    /// unless the session profiles and its backends measure ([`Backends::time_devices`]), or for a mesh. Work inside of
    /// branches and loops is not included.
    pub fn device_time(&self) -> Option<Duration> {
        let Executor::Single(session) = &self.executor else { return None };
        let timings = session.timings();
        let mut steps = timings.iter().flat_map(|t| &t.steps).map(|s| s.last).peekable();
        steps.peek().is_some().then(|| steps.sum())
    }

    /// Whether the tasks of the runs from now on are timed, whatever [`SessionOptions::profile`] says. Forgets earlier times.
    pub fn set_profiling(&self, on: bool) {
        match &self.executor {
            Executor::Single(session) => (session.set_profiling(on), session.reset_timings()),
            Executor::Mesh(session) => (session.set_profiling(on), session.reset_timings()),
            Executor::Rank(session) => (session.set_profiling(on), session.reset_timings()),
        };
    }

    /// The times of tasks since the session was made or [`Session::set_profiling`] was called: of each rank of a mesh in this process, or of
    /// the program.
    pub fn timings(&self) -> Vec<(Option<usize>, Vec<TaskTiming>)> {
        match &self.executor {
            Executor::Single(session) => vec![(None, session.timings())],
            Executor::Mesh(session) => {
                let ranks = 0..session.program().ranks.len();
                ranks.map(|rank| (Some(rank), session.timings(rank))).collect()
            }
            Executor::Rank(session) => vec![(Some(session.rank()), session.timings())],
        }
    }

    /// The values that it keeps between runs; `None` where the plan has no variables.
    pub fn variables(&self) -> Option<SessionVariables<'_>> {
        match &self.executor {
            Executor::Single(session) => session.variables().map(SessionVariables::One),
            Executor::Mesh(session) => session.variables().map(SessionVariables::Ranks),
            Executor::Rank(session) => session.variables().map(SessionVariables::Rank),
        }
    }

    /// Whether this process reports results: of ranks that are processes, the first one does.
    pub fn reports(&self) -> bool {
        !matches!(&self.executor, Executor::Rank(session) if session.rank() > 0)
    }

    /// Names of the inputs.
    pub fn input_names(&self) -> Vec<String> {
        match &self.executor {
            Executor::Single(session) => session.program().inputs.iter().map(|p| p.name.clone()).collect(),
            Executor::Mesh(session) => session.program().inputs.iter().map(|p| p.name.clone()).collect(),
            Executor::Rank(session) => session.program().inputs.iter().map(|p| p.name.clone()).collect(),
        }
    }

    /// Names of the outputs.
    pub fn output_names(&self) -> Vec<String> {
        match &self.executor {
            Executor::Single(session) => session.program().outputs.iter().map(|p| p.name.clone()).collect(),
            Executor::Mesh(session) => session.program().outputs.iter().map(|p| p.name.clone()).collect(),
            Executor::Rank(session) => session.program().outputs.iter().map(|p| p.name.clone()).collect(),
        }
    }
}

/// The mesh of a plan that accepts the shapes of these inputs.
fn find_mesh(plan: &PlanFile, inputs: &[Value]) -> Result<usize, Diagnostics> {
    let dims: Vec<InputDims<'_>> = inputs.iter().map(Value::input_dims).collect();
    let fits: Vec<_> = plan.plan().meshes.iter().map(|mesh| mesh.accepts(&dims)).collect();
    fits.iter().position(Result::is_ok).ok_or_else(|| {
        let why = fits.into_iter().find_map(Result::err).map(|e| e.to_string());
        error(Code::INPUT, why.unwrap_or_default()).into()
    })
}

fn runtime_options(options: &SessionOptions) -> of_runtime::Options {
    of_runtime::Options { threads: options.threads, profile: options.profile, memory: options.memory }
}

/// Opens a runtime session for a program of a plan.
///
/// # Errors
/// When this machine cannot execute it.
pub fn program_session(
    plan: Arc<PlanFile>,
    program: usize,
    options: &SessionOptions,
    backends: &Backends,
) -> Result<of_runtime::Session, Diagnostics> {
    of_runtime::Session::new(plan, program, runtime_options(options), &backends.loaders).map_err(|e| session_error(&e))
}

/// Opens a session for another program of a plan, which shares variables with a session that there is.
///
/// # Errors
/// When this machine cannot execute it, or its variables differ.
pub fn sharing_session(
    plan: &Arc<PlanFile>,
    program: usize,
    options: &SessionOptions,
    backends: &Backends,
    variables: &Arc<Variables>,
) -> Result<of_runtime::Session, Diagnostics> {
    let (plan, options) = (Arc::clone(plan), runtime_options(options));
    of_runtime::Session::sharing(plan, program, options, &backends.loaders, variables).map_err(|e| session_error(&e))
}

/// Opens a pool of `size` sessions for a program of a plan, which serve concurrent requests.
///
/// # Errors
/// When this machine cannot execute it.
pub fn session_pool(
    plan: &Arc<PlanFile>,
    program: usize,
    size: usize,
    options: &SessionOptions,
    backends: &Backends,
) -> Result<SessionPool, Diagnostics> {
    SessionPool::new(plan, program, runtime_options(options), size, &backends.loaders).map_err(|e| session_error(&e))
}

/// Opens a session of ranks for a mesh of a plan.
///
/// # Errors
/// When this machine cannot execute it.
pub fn mesh_session(
    plan: Arc<PlanFile>,
    mesh: usize,
    options: &SessionOptions,
    backends: &Backends,
) -> Result<MeshSession, Diagnostics> {
    MeshSession::new(plan, mesh, runtime_options(options), &backends.loaders).map_err(|e| session_error(&e))
}

/// The hint of errors about the memory budget.
pub(crate) const BUDGET_HINT: &str =
    "take smaller shapes, or a machine with more memory: --memory SIZE gives another budget";

/// Checks that a plan fits into a memory budget: each of its programs, and each rank of a mesh, on its own.
///
/// # Errors
/// When one does not; the error names its largest values.
pub(crate) fn check_memory(plan: &of_plan::Plan, budget: Option<u64>) -> Result<(), Diagnostics> {
    let budget = budget.unwrap_or_else(of_runtime::machine_memory);
    let checked = plan.programs.iter().try_for_each(|p| of_runtime::check_memory(std::iter::once((p, 1)), budget));
    checked.map_err(|e| session_error(&e))
}

/// Checks that the smallest entry point of a plan fits into a memory budget, before inputs are read.
///
/// # Errors
/// As [`check_memory`].
pub(crate) fn check_smallest(plan: &PlanFile, budget: Option<u64>) -> Result<(), Diagnostics> {
    let budget = budget.unwrap_or_else(of_runtime::machine_memory);
    let smallest = plan.plan().programs.iter().filter(|p| !p.inner).min_by_key(|p| p.peak_bytes);
    of_runtime::check_memory(smallest.map(|p| (p, 1)).into_iter(), budget).map_err(|e| session_error(&e))
}

fn session_error(e: &SessionError) -> Diagnostics {
    let code = match e {
        SessionError::Arch { .. }
        | SessionError::CpuFeature { .. }
        | SessionError::Module { .. }
        | SessionError::Ranks { .. }
        | SessionError::Backend { .. } => Code::UNSUPPORTED,
        SessionError::Load { source: LoadError::Unsupported(_), .. } => Code::UNSUPPORTED,
        SessionError::MemoryBudget { .. } => {
            return error(Code::LIMIT, e.to_string()).hint(BUDGET_HINT).into();
        }
        SessionError::Memory { .. } | SessionError::Thread(_) => Code::RUN,
        SessionError::Combine { .. } => Code::UNSUPPORTED,
        _ => Code::PLAN,
    };
    error(code, e.to_string()).into()
}

/// The index of the program of a plan that accepts the shapes of these inputs.
///
/// # Errors
/// When none does, or the plan is for a mesh.
pub fn find_program(plan: &PlanFile, inputs: &[Value]) -> Result<usize, Diagnostics> {
    if let Some(mesh) = plan.plan().meshes.first() {
        let what = format!("the plan is for {} ranks", mesh.ranks.len());
        return Err(error(Code::UNSUPPORTED, what).hint("run, bench and simulate accept it").into());
    }
    of_runtime::find_program(plan, inputs).map_err(|e| error(Code::INPUT, e.to_string()).into())
}

/// The diagnostic for a failed run.
pub fn run_error(e: &RunError) -> Diagnostics {
    let cause = match e {
        RunError::Rank { source, .. } => source,
        other => other,
    };
    let code = match cause {
        RunError::InputCount { .. } | RunError::Input { .. } | RunError::Variable { .. } => Code::INPUT,
        RunError::Task { source: ExecError::Unsupported(_), .. } => Code::UNSUPPORTED,
        RunError::Task { source: ExecError::Input(_), .. } => Code::INPUT,
        RunError::Task { source: ExecError::Memory(_), .. } => {
            return error(Code::LIMIT, e.to_string()).hint(BUDGET_HINT).into();
        }
        _ => Code::RUN,
    };
    error(code, e.to_string()).into()
}
