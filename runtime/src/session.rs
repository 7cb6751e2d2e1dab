//! A session: a program with its arena, kernels, executables and actor threads, ready to run.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use of_plan::{
    Chunk, ElementType, Exec, FindError, Finding, FindingKind, InputDims, PlanFile, Program, TaskGraph,
    have_same_places,
};

use crate::actor::{Actor, ActorId, Msg};
use crate::binder::Binder;
use crate::bound_task::BoundTask;
use crate::bus::{ActorLocations, ThreadMsg, connect};
use crate::cancel::Canceller;
use crate::control::InnerProgram;
use crate::device::{Arena, CodeError, CodeMap, Scratch};
use crate::error::panic_text;
use crate::flight_recorder::{self, FlightRecorder};
use crate::io::{CheckedInputs, Ports};
use crate::launch_notifications::LaunchNotifications;
use crate::memory_budget::check_memory;
use crate::objects::Objects;
use crate::pool::Pool;
use crate::profile::{Clocks, TaskTiming};
use crate::static_schedule::StaticSchedule;
use crate::symbols::Symbols;
use crate::sync::lock;
use crate::thread::{ActorThread, Local, Shared};
use crate::transfer_thread::TransferThread;
use crate::value_layout::ValueLayout;
use crate::variables::Places;
use crate::workers::Workers;
use crate::{Loader, RankContext, RunError, SessionError, Tensor, Value, Variables, cpu};

/// How a session is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Workers that share a task's loop, the calling thread included; 0 takes as many as the plan was tuned for.
    pub threads: usize,
    /// Whether to take the time of every task.
    pub profile: bool,
    /// The memory budget: the most bytes that the program's values may take. `None` is what [`crate::machine_memory`] says.
    pub memory: Option<u64>,
}

impl Options {
    /// Bytes that values may take.
    pub(crate) fn budget(self) -> u64 {
        self.memory.unwrap_or_else(crate::machine_memory)
    }
}

/// A program with its memory, kernels, executables and threads. It runs any number of times.
pub struct Session {
    shared: Arc<Shared>,
    /// The actors of the plan's first thread, which the caller drives.
    caller: ActorThread,
    /// All sources, on whatever thread they live, and how many times they act in a run.
    sources: Vec<(ActorId, u64)>,
    others: Vec<JoinHandle<()>>,
    checked_inputs: CheckedInputs,
    variables: Option<SessionVariables>,
    poison: Option<String>,
    retired: bool,
    /// Executes asynchronous transfers. It ends last.
    _transfers: Option<TransferThread>,
}

/// The variables of a session's program.
#[derive(Clone)]
struct SessionVariables {
    values: Arc<Variables>,
    /// Those that its tasks read before a run updates them.
    reads: Arc<Places>,
    /// Those that it updates.
    writes: Arc<Places>,
}

impl SessionVariables {
    /// Of a program whose executables are loaded.
    fn new(values: Arc<Variables>, program: &Program) -> Self {
        let backends = program.tasks.iter().filter_map(|task| match &task.exec {
            Some(Exec::Backend(exec)) => Some((task.id, &exec.backend[..])),
            _ => None,
        });
        let backends: HashMap<u64, &str> = backends.collect();
        let kept = |index: usize, task: &u64| backends.get(task).is_some_and(|by| values.is_kept_by(index, by));
        let (mut reads, mut writes) = (Places::default(), Places::default());
        for task in &program.tasks {
            for index in program.variables_written(task) {
                (if kept(index, &task.id) { &mut writes.on_device } else { &mut writes.on_host }).push(index);
            }
            let read = task.produces.iter().filter(|_| task.exec.is_none());
            for register in read.filter_map(|&id| program.registers.get(id as usize)) {
                let Some(index) = program.variable_of(register) else { continue };
                if register.consumers.iter().any(|task| kept(index, task)) {
                    reads.on_device.push(index);
                }
                if register.consumers.iter().any(|task| !kept(index, task)) {
                    reads.on_host.push(index);
                }
            }
        }
        Self { reads: Arc::new(reads), writes: Arc::new(writes), values }
    }
}

/// What the programs of a session share.
#[derive(Clone)]
pub(crate) struct Resources {
    pub pool: Arc<Pool>,
    pub code: Arc<CodeMap>,
    pub canceller: Arc<Canceller>,
    /// Where sessions share their variables.
    pub variables: Option<Arc<Variables>>,
}

impl Resources {
    /// For a session of its own.
    pub fn new(pool: impl Into<Arc<Pool>>, code: Arc<CodeMap>) -> Self {
        Self { pool: pool.into(), code, canceller: Arc::default(), variables: None }
    }
}

/// The program of a plan that takes these inputs.
pub fn find_program(plan: &PlanFile, inputs: &[Value]) -> Result<usize, FindError> {
    let dims: Vec<InputDims<'_>> = inputs.iter().map(Value::input_dims).collect();
    plan.find_program(&dims)
}

impl Session {
    /// Verifies a program, lays out its memory, maps its kernels, loads its executables and starts its threads.
    pub fn new(
        plan: Arc<PlanFile>,
        program: usize,
        options: Options,
        loaders: &[Arc<dyn Loader>],
    ) -> Result<Self, SessionError> {
        Self::alone(&plan, program, options, loaders, None)
    }

    /// As [`Session::new`], for another program of the plan of a session with variables, which both share.
    pub fn sharing(
        plan: Arc<PlanFile>,
        program: usize,
        options: Options,
        loaders: &[Arc<dyn Loader>],
        variables: &Arc<Variables>,
    ) -> Result<Self, SessionError> {
        Self::alone(&plan, program, options, loaders, Some(Arc::clone(variables)))
    }

    /// As [`Session::new`], with workers that other sessions have, too.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn on_workers(
        plan: &Arc<PlanFile>,
        program: usize,
        options: Options,
        loaders: &[Arc<dyn Loader>],
        workers: &Workers,
    ) -> Result<Self, SessionError> {
        let environment = &plan.plan().environment;
        let threads = worker_count(options, environment.threads);
        let code = Self::code(plan)?;
        let pool = workers.pool(threads, environment.keep_subnormals).map_err(SessionError::Thread)?;
        Ok(Self::with(plan, program, options, Resources::new(pool, code), loaders, None, 0)?.live(None))
    }

    /// With workers and a map of the code of its own.
    fn alone(
        plan: &Arc<PlanFile>,
        program: usize,
        options: Options,
        loaders: &[Arc<dyn Loader>],
        variables: Option<Arc<Variables>>,
    ) -> Result<Self, SessionError> {
        let threads = worker_count(options, plan.plan().environment.threads);
        let code = Self::code(plan)?;
        let pool = Pool::new(threads, plan.plan().environment.keep_subnormals).map_err(SessionError::Thread)?;
        let resources = Resources { variables, ..Resources::new(pool, code) };
        Ok(Self::with(plan, program, options, resources, loaders, None, 0)?.live(None))
    }

    /// The kernels of a plan for one rank, which this processor can run.
    pub(crate) fn code(plan: &Arc<PlanFile>) -> Result<Arc<CodeMap>, SessionError> {
        let ranks = plan.plan().environment.ranks;
        if ranks > 1 {
            return Err(SessionError::Ranks { ranks });
        }
        cpu::check(&plan.plan().environment, !plan.plan().code.is_empty())?;
        CodeMap::new(plan).map(Arc::new).map_err(|error| code_error(plan, error))
    }

    /// The program of one of several ranks, which share their code. The plan's meshes were verified. It has the variables of another
    /// session of the rank, or its own.
    pub(crate) fn of_rank(
        plan: &Arc<PlanFile>,
        program: usize,
        options: Options,
        code: &Arc<CodeMap>,
        loaders: &[Arc<dyn Loader>],
        rank_context: &RankContext,
        variables: Option<Arc<Variables>>,
    ) -> Result<Self, SessionError> {
        let pool = Pool::new(options.threads, plan.plan().environment.keep_subnormals).map_err(SessionError::Thread)?;
        let resources = Resources { variables, ..Resources::new(pool, Arc::clone(code)) };
        let rank = rank_context.rank;
        let session = Self::with(plan, program, options, resources, loaders, Some(rank_context), rank as usize)?;
        Ok(session.live(Some(rank)))
    }

    /// A program that a task of another session runs, or a session of a pool: on given workers and device, with
    /// shared code.
    pub(crate) fn inner(
        plan: &Arc<PlanFile>,
        program: usize,
        resources: Resources,
        loaders: &[Arc<dyn Loader>],
        device: usize,
        memory: Option<u64>,
    ) -> Result<Self, SessionError> {
        Self::with(plan, program, Options { memory, ..Options::default() }, resources, loaders, None, device)
    }

    fn with(
        plan: &Arc<PlanFile>,
        program: usize,
        options: Options,
        resources: Resources,
        loaders: &[Arc<dyn Loader>],
        rank_context: Option<&RankContext>,
        device: usize,
    ) -> Result<Self, SessionError> {
        let count = plan.plan().programs.len();
        let desc = plan.plan().programs.get(program).ok_or(SessionError::Program { index: program, count })?;
        plan.verify_program(program).map_err(SessionError::Invalid)?;
        let graph = TaskGraph::of(desc).ok_or_else(|| SessionError::Invalid(vec![unlinked(desc)]))?;
        let threads = resources.pool.threads();

        let budget = options.budget();
        check_memory(std::iter::once((desc, 1)), budget)?;
        let variables = variables(plan, desc, &resources, rank_context)?;
        let arena = Arc::new(arena(plan, desc, variables.as_deref(), rank_context)?);
        let handles = HashMap::new();
        let inner = |program| -> Result<Box<dyn InnerProgram>, SessionError> {
            Ok(Box::new(Self::inner(
                plan,
                program,
                resources.clone(),
                loaders,
                device,
                Some(budget - desc.peak_bytes),
            )?))
        };
        let code = Arc::clone(&resources.code);
        let recorder = recorder(desc, rank_context)?;
        let thread = rank_context.map(|rank| TransferThread::of(desc, &rank.transport, &recorder, &resources.pool));
        let thread = thread.transpose().map_err(SessionError::Thread)?.flatten();
        let mut binder = Binder {
            plan,
            program: desc,
            arena,
            code,
            loaders,
            threads,
            inner: &inner,
            rank_context,
            transfers: thread.as_ref(),
            device,
            handles,
            variables: variables.as_deref(),
        };
        let mut bound_tasks = desc.tasks.iter().map(|task| binder.work(task)).collect::<Result<Vec<_>, _>>()?;
        let notifications = LaunchNotifications::of(desc, &graph, &bound_tasks, &binder.handles);
        notifications.apply(desc, &graph, &mut bound_tasks);

        let shared = Arc::new(Shared {
            program,
            ports: Ports::new(desc),
            objects: Objects::new(desc, budget - desc.peak_bytes),
            symbols: Symbols::new(desc),
            layout: ValueLayout::new(desc, &graph, &bound_tasks),
            pool: Arc::clone(&resources.pool),
            canceller: Arc::clone(&resources.canceller),
            recorder,
            clocks: Clocks::new(bound_tasks.iter().map(BoundTask::is_async).collect(), options.profile),
            failing: AtomicBool::new(false),
            cancelled_before: AtomicU32::new(u32::MAX),
            updating: AtomicBool::new(false),
            failure: Default::default(),
            plan: Arc::clone(plan),
            variables: variables.clone(),
        });
        let bytes = scratch_bytes(desc);
        let scratch = Scratch::new(bytes, threads - 1).map_err(|source| memory("scratch", bytes, source))?;
        let mut actors = Actor::of_program(desc, &graph);
        notifications.enable(desc, &mut actors);
        let sources = actors.iter().zip(0..).filter(|(actor, _)| actor.is_source());
        let sources = sources.map(|(_, id)| (id, u64::from(desc.times(id as usize)))).collect();
        let locals = actors.into_iter().zip(bound_tasks).enumerate();
        let variables = variables.map(|values| SessionVariables::new(values, desc));
        let on_host = |index: &usize| variables.as_ref().is_none_or(|own| !own.writes.on_device.contains(index));
        let locals = locals
            .map(|(task, (actor, work))| {
                let written: Vec<usize> = desc.variables_written(&desc.tasks[task]).collect();
                let updates_any = !written.is_empty();
                let updates = written.into_iter().filter(on_host).collect();
                Local { task, actor, work, begun: None, updates_any, updates }
            })
            .collect();
        let mut ends = actor_threads(&shared, desc, &graph, locals, &scratch)?.into_iter();
        let caller = ends.next().ok_or_else(|| SessionError::Invalid(vec![unlinked(desc)]))?;
        let (others, checked_inputs) = (Vec::new(), CheckedInputs::default());
        let mut session = Self {
            shared,
            caller,
            sources,
            others,
            checked_inputs,
            variables,
            poison: None,
            retired: false,
            _transfers: thread,
        };
        for end in ends {
            session.spawn(end)?;
        }
        #[cfg(feature = "tracing")]
        tracing::debug!(program = %session.program().name, threads, tasks = session.program().tasks.len(), "session");
        Ok(session)
    }

    /// Lists it among those of this process whose actors can be shown.
    pub(crate) fn live(self, rank: Option<u32>) -> Self {
        flight_recorder::register(rank, &self.shared);
        self
    }

    fn spawn(&mut self, thread: ActorThread) -> Result<(), SessionError> {
        let shared = Arc::clone(&self.shared);
        let caller = thread.bus.to_caller();
        let serve = move || {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| thread.serve())) {
                shared.fail(RunError::Internal(format!("an actor thread panicked: {}", panic_text(&*payload))));
                // When the caller's thread is gone too nothing waits for the message.
                let _ = caller.map(|caller| caller.send(ThreadMsg::Died));
            }
        };
        let name = format!("of-actors-{}", self.others.len() + 1);
        self.others.push(std::thread::Builder::new().name(name).spawn(serve).map_err(SessionError::Thread)?);
        Ok(())
    }

    /// The program.
    pub fn program(&self) -> &Program {
        self.shared.program()
    }

    /// Workers that share a task's loop, the calling thread included.
    pub fn threads(&self) -> usize {
        self.shared.pool.threads()
    }

    /// The values that it keeps between runs, where its program has variables.
    pub fn variables(&self) -> Option<&Arc<Variables>> {
        self.variables.as_ref().map(|variables| &variables.values)
    }

    /// The task that would have come next when the last run was cancelled.
    pub(crate) fn cancelled_before(&self) -> Option<&of_plan::Task> {
        self.program().tasks.get(self.shared.cancelled_before.load(Ordering::Acquire) as usize)
    }

    /// What ends runs of this session early, from any thread.
    pub fn canceller(&self) -> &Arc<Canceller> {
        &self.shared.canceller
    }

    /// Why it cannot run again, if it cannot.
    pub(crate) fn poison(&self) -> Option<&str> {
        self.poison.as_deref()
    }

    /// Runs the program on these inputs.
    pub fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>, RunError> {
        self.run_pipelined(inputs, 1)
    }

    /// Runs the program without giving memory away or taking any: inputs are left as they were, and outputs of dense
    /// ports are written into the tensors that are there, if they have the right type (see [`Session::new_outputs`]).
    pub fn run_into(&mut self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<(), RunError> {
        self.check(inputs)?;
        let expected = self.program().outputs.len();
        if outputs.len() != expected {
            return Err(RunError::OutputCount { expected, got: outputs.len() });
        }
        let ports = &Arc::clone(&self.shared).ports;
        let given = inputs.iter_mut().zip(&ports.inputs).chain(outputs.iter_mut().zip(&ports.outputs));
        given.for_each(|(value, slot)| *lock(slot) = Some(std::mem::replace(value, Value::Optional(None))));
        let result = self.run_guarded(1);
        let taken = inputs.iter_mut().zip(&ports.inputs).chain(outputs.iter_mut().zip(&ports.outputs));
        taken.for_each(|(value, slot)| *value = lock(slot).take().unwrap_or(Value::Optional(None)));
        result
    }

    /// Runs a pipelined program so many times on the same inputs. Where registers have several copies, a run begins before the one before has
    /// ended, so that the slowest task alone decides how many there are in a time. Gives the outputs of the last run.
    ///
    /// # Errors
    /// As [`Session::run`], and when the program is not pipelined, which of several runs at once is an error. After a run that fails,
    /// the others do nothing.
    pub fn run_pipelined(&mut self, inputs: Vec<Value>, runs: u32) -> Result<Vec<Value>, RunError> {
        if runs != 1 && !self.program().pipelined {
            return Err(RunError::NotPipelined { program: self.program().name.clone() });
        }
        self.check(&inputs)?;
        for (slot, value) in self.shared.ports.inputs.iter().zip(inputs) {
            *lock(slot) = Some(value);
        }
        let result = self.run_guarded(runs);
        self.shared.ports.inputs.iter().for_each(|slot| *lock(slot) = None);
        let outputs: Vec<_> = self.shared.ports.outputs.iter().map(|slot| lock(slot).take()).collect();
        result?;
        let missing = || RunError::Internal("an output was never fetched".into());
        outputs.into_iter().map(|value| value.ok_or_else(missing)).collect()
    }

    /// Room for the outputs: zeros of the right types; the run stores dynamic outputs there.
    pub fn new_outputs(&self) -> Vec<Value> {
        let room = |port: &of_plan::Port| {
            let dense = port.dtype() != ElementType::Unknown && !port.object;
            let tensor = dense.then(|| Tensor::zeros(port.dtype(), port.dims.as_slice()).ok()).flatten();
            tensor.map_or(Value::Optional(None), Value::Tensor)
        };
        self.program().outputs.iter().map(room).collect()
    }

    /// Ends the session in order: the sources stop, the end spreads along the registers, and the actors retire. Dropping
    /// the session does the same and keeps silent about what went wrong.
    pub fn close(mut self) -> Result<(), RunError> {
        if let Some(why) = &self.poison {
            return Err(RunError::Poisoned(why.clone()));
        }
        let result = self.retire();
        // The other threads wait for an end that never comes, so they get the command to quit.
        self.poison = result.as_ref().err().map(RunError::to_string);
        result
    }

    /// Whether the tasks of the runs from now on are timed, whatever [`Options::profile`] says.
    pub fn set_profiling(&self, on: bool) {
        self.shared.clocks.switch(on);
    }

    /// Time spent in each task since the session was made or reset; empty without profiling.
    pub fn timings(&self) -> Vec<TaskTiming> {
        self.shared.clocks.timings(self.program())
    }

    /// Forgets the times taken so far.
    pub fn reset_timings(&self) {
        self.shared.clocks.reset();
    }

    fn check(&mut self, inputs: &[Value]) -> Result<(), RunError> {
        match &self.poison {
            Some(why) => return Err(RunError::Poisoned(why.clone())),
            None => self.checked_inputs.check(self.shared.program(), &self.shared.symbols, inputs)?,
        }
        let Shared { layout, symbols, objects, plan, .. } = &*self.shared;
        layout.prepare(self.program(), plan, symbols, objects);
        Ok(())
    }

    /// Runs so many iterations; what leaves the actors in an unknown state poisons the session.
    fn run_guarded(&mut self, runs: u32) -> Result<(), RunError> {
        let variables = self.variables.clone();
        let run = variables.as_ref().map(|own| own.values.begin(&own.reads)).transpose()?;
        // Should the caller's thread unwind, this stays.
        self.poison = Some("a run was interrupted".into());
        let step = self.shared.recorder.step_begins();
        let result = self.run_actors(runs);
        self.shared.recorder.step_ends(step);
        let failure = lock(&self.shared.failure).take();
        self.shared.failing.store(false, Ordering::Release);
        let result = failure.map_or(result, Err);
        let fatal = matches!(result, Err(RunError::Panic { .. } | RunError::Internal(_)));
        if let (Some(mut run), Some(own)) = (run, &variables) {
            if fatal {
                run.interrupted();
            }
            run.end(&own.writes, result.is_ok(), self.shared.updating.swap(false, Ordering::AcqRel));
        }
        self.poison = result.as_ref().err().filter(|_| fatal).map(RunError::to_string);
        result
    }

    /// Iterations from the sources to the end. All actors are then ready for the next one.
    fn run_actors(&mut self, runs: u32) -> Result<(), RunError> {
        let _mode = self.shared.pool.subnormals();
        let caller = &mut self.caller;
        caller.left = caller.acts * runs as usize;
        caller.running = self.others.len() * runs as usize;
        for &(source, iterations) in &self.sources {
            caller.bus.send(source, Msg::Start { iterations: iterations * u64::from(runs) });
        }
        loop {
            caller.drain()?;
            if caller.left == 0 && caller.running == 0 {
                return Ok(());
            }
            if self.others.is_empty() && caller.in_flight == 0 {
                return Err(RunError::Internal(stalled(caller)));
            }
            if let Some(mail) = caller.wait(Duration::from_secs(3600)) {
                caller.handle(mail)?;
            }
        }
    }

    /// End-of-run. Does nothing when the actors of this thread have ended already.
    fn retire(&mut self) -> Result<(), RunError> {
        if std::mem::replace(&mut self.retired, true) {
            return Ok(());
        }
        for &(source, _) in &self.sources {
            self.caller.bus.send(source, Msg::Stop);
        }
        loop {
            self.caller.drain()?;
            if self.caller.alive == 0 {
                return Ok(());
            }
            if self.others.is_empty() {
                return Err(RunError::Internal(stalled(&self.caller)));
            }
            match self.caller.wait(Duration::from_secs(1)) {
                Some(mail) => self.caller.handle(mail)?,
                None => return Err(RunError::Internal("the actors did not end".into())),
            }
        }
    }
}

impl InnerProgram for Session {
    fn program(&self) -> &Program {
        Session::program(self)
    }

    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>, RunError> {
        Session::run(self, inputs)
    }

    fn run_into(&mut self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<(), RunError> {
        Session::run_into(self, inputs, outputs)
    }

    fn new_outputs(&self) -> Vec<Value> {
        Session::new_outputs(self)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let retired = self.poison.is_none() && self.retire().is_ok();
        if !retired {
            for thread in 1..=self.others.len() {
                self.caller.bus.send_to_thread(thread as u32, ThreadMsg::Quit);
            }
        }
        for handle in self.others.drain(..) {
            // A panic of the thread was caught and reported where it happened.
            let _ = handle.join();
        }
    }
}

/// As many workers as requested; otherwise as many as the plan was tuned for, as far as the machine has cores for them.
pub(crate) fn worker_count(options: Options, tuned: u32) -> usize {
    if options.threads > 0 {
        return options.threads;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (tuned as usize).clamp(1, cores)
}

fn arena(
    plan: &Arc<PlanFile>,
    program: &Program,
    variables: Option<&Variables>,
    rank: Option<&RankContext>,
) -> Result<Arena, SessionError> {
    let shared = |chunk: &Chunk, len| variables.and_then(|variables| variables.memory(chunk, len));
    let arena = Arena::with(Arc::clone(plan), &program.chunks, &|chunk, len| match (shared(chunk, len), rank) {
        (Some(shared), _) => Ok(shared),
        (None, Some(rank)) => rank.transport.memory(len),
        (None, None) => Ok(Arc::new(of_plan::zeroed_pages(len)?.into())),
    });
    arena.map_err(|(chunk, source)| memory(&format!("chunk {chunk}"), program.chunks[chunk].bytes, source))
}

/// The recorder of a rank's transport, or one of the program's actors alone.
fn recorder(program: &Program, rank: Option<&RankContext>) -> Result<Arc<FlightRecorder>, SessionError> {
    if let Some(recorder) = rank.and_then(|rank| rank.transport.recorder()) {
        return Ok(Arc::clone(recorder));
    }
    let tasks = program.tasks.len();
    let own = FlightRecorder::in_memory(tasks);
    own.map(Arc::new).map_err(|source| memory("the states of actors", tasks as u64 * 8, source))
}

/// The variables of a program: shared ones, or new ones with their initial values.
fn variables(
    plan: &Arc<PlanFile>,
    program: &Program,
    resources: &Resources,
    rank: Option<&RankContext>,
) -> Result<Option<Arc<Variables>>, SessionError> {
    match &resources.variables {
        _ if program.variables.is_empty() => Ok(None),
        Some(shared) if have_same_places(shared.list(), &program.variables) => Ok(Some(Arc::clone(shared))),
        Some(_) => Err(SessionError::Variables(format!("program `{}` has others", program.name))),
        None => Ok(Variables::new(plan, program, rank)?.map(Arc::new)),
    }
}

/// Deals the actors to the plan's threads. The first thread is the caller's; others without tasks are left out.
fn actor_threads(
    shared: &Arc<Shared>,
    program: &Program,
    graph: &TaskGraph,
    locals: Vec<Local>,
    scratch: &Scratch,
) -> Result<Vec<ActorThread>, SessionError> {
    let used = |id: &u32| program.tasks.iter().any(|task| task.thread == *id);
    let mut ids: Vec<u32> = program.threads.iter().map(|thread| thread.id).collect();
    let caller = ids.first().copied();
    ids.retain(|id| Some(*id) == caller || used(id));
    let mut dealt: Vec<Vec<Local>> = ids.iter().map(|_| Vec::new()).collect();
    let mut locations = ActorLocations { thread: Vec::new(), slot: Vec::new() };
    for local in locals {
        let id = program.tasks[local.task].thread;
        let thread = ids.iter().position(|&other| other == id).unwrap_or(0);
        locations.thread.push(thread as u32);
        locations.slot.push(dealt[thread].len() as u32);
        dealt[thread].push(local);
    }
    let capacities = locations.capacities(program, graph, ids.len());
    let ends = connect(&capacities, &Arc::new(locations)).into_iter().zip(dealt).enumerate();
    let ends = ends.map(|(number, (bus, mut actors))| {
        for local in &mut actors {
            match &mut local.work {
                BoundTask::Backend(call) if call.is_async => {
                    call.on_complete = bus.on_complete(local.task as ActorId);
                }
                BoundTask::Transfer(call) => call.on_complete = bus.on_complete(local.task as ActorId),
                _ => {}
            }
        }
        let scratch = if number == 0 { Ok(scratch.clone()) } else { scratch.for_thread() };
        let scratch = scratch.map_err(|source| memory("scratch", scratch_bytes(program), source))?;
        let alive = actors.len();
        // Programs with a schedule have one thread.
        let schedule = StaticSchedule::of(program).filter(|_| number == 0);
        let acts_of = |local: &Local| program.tasks[local.task].acts_per_iteration() as usize;
        let acts = if schedule.is_some() { program.acts() } else { actors.iter().map(acts_of).sum() };
        let (shared, in_flight, transfers, running) = (Arc::clone(shared), 0, 0, 0);
        Ok(ActorThread {
            shared,
            bus,
            actors,
            schedule,
            scratch,
            acts,
            left: acts,
            in_flight,
            transfers,
            running,
            alive,
        })
    });
    ends.collect()
}

fn scratch_bytes(program: &Program) -> u64 {
    let bytes = program.tasks.iter().map(|task| match &task.exec {
        Some(of_plan::Exec::Kernel(exec)) => exec.scratch_bytes,
        _ => 0,
    });
    bytes.max().unwrap_or(0)
}

/// The error of a session whose kernels cannot be mapped.
pub(crate) fn code_error(plan: &PlanFile, error: CodeError) -> SessionError {
    match error {
        CodeError::Io(source) => memory("kernels", plan.file_len(), source),
        CodeError::Refused(kernel) => SessionError::Module { kernel },
        CodeError::Changed(kernel) => SessionError::Code { kernel },
    }
}

pub(crate) fn memory(what: &str, bytes: u64, source: std::io::Error) -> SessionError {
    SessionError::Memory { what: what.into(), bytes, source }
}

fn stalled(thread: &ActorThread) -> String {
    format!("the actors stalled with {} acts and {} actors left", thread.left, thread.alive)
}

fn unlinked(program: &Program) -> Finding {
    Finding {
        kind: FindingKind::Index,
        place: format!("program `{}`", program.name),
        message: "a register names a task that does not exist".into(),
    }
}
