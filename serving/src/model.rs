//! A loaded version of a model: its plan, what clients may know of it, and its scheduler.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use of_plan::{ElementType, PlanFile, Port, Program};
use of_runtime::{Loader, Tensor, Value, Workers};
use tokio::sync::oneshot;

use crate::batch;
use crate::classification;
use crate::config::ModelConfig;
use crate::datatype;
use crate::ensemble::Ensemble;
use crate::error::{ErrorKind, ServeError};
use crate::infer::{InferRequest, OutputPlace, OutputTensor, RequestedOutput, SequenceId};
use crate::memory::MemoryBudget;
use crate::scheduler::{Answer, Job, Refused, Scheduler, Shared, Work};
use crate::sequences::{Carried, Sequences};
use crate::stats::{Stats, Timing};
use crate::warmup::{self, Warmup};

/// An input or output as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Element type, one of those that the protocol has.
    pub dtype: ElementType,
    /// Extents; -1 where one is open, or differs between the programs of the plan.
    pub shape: Vec<i64>,
}

/// A loaded version of a model.
pub struct ModelVersion {
    /// Name of the model.
    pub name: String,
    /// Number of the version.
    pub version: u64,
    /// Inputs.
    pub inputs: Vec<TensorInfo>,
    /// Outputs.
    pub outputs: Vec<TensorInfo>,
    /// How it is served.
    pub config: ModelConfig,
    /// Whether requests may be batched.
    pub batches: bool,
    /// Bytes of its own weights and kernels, and of the values of all instances.
    pub memory: u64,
    /// Counters.
    pub stats: Arc<Stats>,
    plan: Arc<PlanFile>,
    scheduler: Scheduler,
    sequences: Option<Arc<Sequences>>,
}

/// Opens the plan in a file, or compiles the model in it. The error says why that is not possible.
pub type OpenFile = dyn Fn(&Path) -> Result<PlanFile, String> + Send + Sync;

/// Merges the models of an ensemble into one plan.
pub type OpenEnsemble = dyn Fn(&Ensemble) -> Result<PlanFile, String> + Send + Sync;

/// What opens the files of models. The server has no compiler of its own.
pub struct Opener {
    /// Opens a plan, or compiles a model.
    pub open: Box<OpenFile>,
    /// Compiles the models of an ensemble as one plan.
    pub open_ensemble: Box<OpenEnsemble>,
    /// Load what backends compiled.
    pub loaders: Vec<Arc<dyn Loader>>,
}

/// An answered request.
pub struct InferResponse {
    /// The version that ran.
    pub model: Arc<ModelVersion>,
    /// The outputs that the client asked for, each with where it goes.
    pub outputs: Vec<(OutputTensor, OutputPlace)>,
}

/// A request that the version did not take, since it is unloaded.
pub enum Failed {
    /// Another version may run these inputs.
    Closed(Vec<Value>),
    /// An error for the client.
    Error(ServeError),
}

impl From<ServeError> for Failed {
    fn from(e: ServeError) -> Self {
        Failed::Error(e)
    }
}

/// Notices that the client leaves: the future of its request is then dropped before the answer is there.
struct Client<'m> {
    gone: Arc<AtomicBool>,
    stats: &'m Stats,
    arrival: Instant,
    answered: bool,
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.gone.store(true, Relaxed);
            self.stats.failed(ErrorKind::Cancelled, self.arrival.elapsed());
        }
    }
}

impl ModelVersion {
    /// Opens the sessions of a plan and starts its threads.
    ///
    /// # Errors
    /// When the plan cannot be served, or this machine cannot run it.
    pub fn load(
        name: &str,
        version: u64,
        plan: Arc<PlanFile>,
        (loaders, threads, workers): (&[Arc<dyn Loader>], usize, &Workers),
        config: ModelConfig,
        stats: Arc<Stats>,
        budget: &Arc<MemoryBudget>,
    ) -> Result<ModelVersion, String> {
        let entries: Vec<&Program> = plan.plan().programs.iter().filter(|program| !program.inner).collect();
        let first = *entries.first().ok_or("the plan has no program for one rank")?;
        if !plan.plan().meshes.is_empty() {
            return Err("the plan is for several ranks, which the server does not start".into());
        }
        let (mut inputs, mut outputs) = (infos(&entries, |p| &p.inputs)?, infos(&entries, |p| &p.outputs)?);
        let has_axis = batch::has_batch_axis(first);
        if config.batching_is_required && !has_axis {
            return Err("max_batch_size is given, and the inputs and outputs have no open dimension 0 in common; \
                        compile the model without --shape, or set max_batch_size to 0"
                .into());
        }
        let batches = has_axis && config.max_batch_size > 1 && first.variables.is_empty();
        let warmups = warmup_values(&config, &inputs)?;
        let trial = if warmups.is_empty() { warmup::row_of_zeros(&inputs) } else { None };
        let sequences = Sequences::new(name, &plan, &config, batches, (&stats, budget))?.map(Arc::new);
        if let Some(sequences) = &sequences {
            let (mut input, mut output) = (0.., 0..);
            inputs.retain(|_| input.next().is_some_and(|number| sequences.shows_input(number)));
            outputs.retain(|_| output.next().is_some_and(|number| sequences.shows_output(number)));
        }
        let memory = ModelVersion::memory_of(&plan, &config);
        let shared = Shared {
            plan: Arc::clone(&plan),
            loaders: loaders.to_vec(),
            name: name.to_owned(),
            config: config.clone(),
            threads,
            workers: workers.clone(),
            batches,
            stats: Arc::clone(&stats),
        };
        let scheduler = Scheduler::start(shared)?;
        for (warmup, values) in config.warmups.iter().zip(warmups) {
            let ran = (0..warmup.count).try_for_each(|_| scheduler.warm_up(&values));
            ran.map_err(|e| format!("the warm-up '{}' does not run: {}", warmup.name.escape_debug(), e.message))?;
        }
        if let Some(Err(e)) = trial.map(|values| scheduler.trial(&values)) {
            // Zeros may be no input that the model takes.
            tracing::debug!(model = name, version, "a row of zeros does not run: {}", e.message);
        }
        Ok(ModelVersion {
            name: name.to_owned(),
            version,
            inputs,
            outputs,
            config,
            batches,
            memory,
            stats,
            plan,
            scheduler,
            sequences,
        })
    }

    /// Bytes of weights and kernels, and of the values of all instances, as far as the plan knows their extents. Weights that it reads
    /// from plans of other models do not count.
    pub fn memory_of(plan: &PlanFile, config: &ModelConfig) -> u64 {
        let entries = plan.plan().programs.iter().filter(|program| !program.inner);
        let values = entries.map(|program| program.peak_bytes).max().unwrap_or(0);
        let own = plan.file_len().saturating_sub(plan.shared_bytes());
        own.saturating_add(values.saturating_mul(config.instances.max(1) as u64))
    }

    /// Its plan.
    pub fn plan(&self) -> &Arc<PlanFile> {
        &self.plan
    }

    /// Refuses further requests. Those that were accepted still run.
    pub fn close(&self) {
        self.scheduler.close();
    }

    /// Waits until all accepted requests are answered, after [`ModelVersion::close`].
    pub fn join(&self) {
        self.scheduler.join();
    }

    /// Why batching ended, if it did.
    pub fn batching_is_off(&self) -> Option<String> {
        self.scheduler.batching_is_off()
    }

    /// The inputs of a request in the order of the plan.
    ///
    /// # Errors
    /// When one is missing, unknown or given twice.
    pub fn order(&self, given: Vec<(String, Tensor)>) -> Result<Vec<Value>, ServeError> {
        let mut ordered: Vec<Option<Value>> = self.inputs.iter().map(|_| None).collect();
        for (name, tensor) in given {
            let Some(at) = self.inputs.iter().position(|input| input.name == name) else {
                let names: Vec<&str> = self.inputs.iter().map(|input| &input.name[..]).collect();
                let what = format!("model '{}' has no input '{}'", self.name, name.escape_debug());
                return Err(ServeError::invalid(format!("{what}; its inputs are {}", names.join(", "))));
            };
            if ordered[at].replace(tensor.into()).is_some() {
                return Err(ServeError::invalid(format!("input '{name}' is given twice")));
            }
        }
        let missing = |(info, value): (&TensorInfo, Option<Value>)| {
            value.ok_or_else(|| {
                ServeError::invalid(format!("input '{}' of model '{}' is missing", info.name, self.name))
            })
        };
        self.inputs.iter().zip(ordered).map(missing).collect()
    }

    /// Runs a request. Dropping the future cancels it.
    ///
    /// # Errors
    /// When the inputs do not fit, the queue is full or closed, or the run fails.
    pub async fn infer(
        self: &Arc<Self>,
        request: &InferRequest,
        inputs: Vec<Value>,
        arrival: Instant,
    ) -> Result<InferResponse, Failed> {
        let wanted = self.wanted(&request.outputs)?;
        let Some(sequences) = &self.sequences else {
            if request.sequence.is_some() {
                let what = format!("model '{}' keeps no state between requests; leave out sequence_id", self.name);
                return Err(ServeError::invalid(what).into());
            }
            let Answer { outputs, timing, .. } = self.run(request, inputs, arrival, Carried::Nothing).await?;
            return Ok(self.answered(outputs, &wanted, arrival, &timing)?);
        };
        let turn = sequences.enter(request.sequence.as_ref()).await?;
        let inputs = turn.inputs(inputs)?;
        let given = |failed| match failed {
            Failed::Closed(inputs) => Failed::Closed(sequences.given(inputs)),
            error => error,
        };
        let ran = self.run(request, inputs, arrival, turn.variables()).await.map_err(given)?;
        let outputs = turn.finish(ran.outputs, ran.carried)?;
        Ok(self.answered(outputs, &wanted, arrival, &ran.timing)?)
    }

    /// Runs the program that takes all these inputs.
    async fn run(
        &self,
        request: &InferRequest,
        inputs: Vec<Value>,
        arrival: Instant,
        carried: Carried,
    ) -> Result<Answer, Failed> {
        let dims: Vec<_> = inputs.iter().map(Value::input_dims).collect();
        let program = self.plan.find_program(&dims).map_err(|e| ServeError::invalid(e.to_string()))?;
        if let Some(rows) =
            batch::rows(&inputs).filter(|n| self.config.batching_is_required && *n > self.config.max_batch_size)
        {
            let what = format!("the request has {rows} rows, and max_batch_size is {}", self.config.max_batch_size);
            return Err(ServeError::invalid(what).into());
        }
        let priority = self.priority(request)?;
        let trace = request.trace.as_ref().map(|trace| (trace, Instant::now()));
        let work = Work { program, inputs, arrival, carried, traced: trace.is_some() };
        let answer = match self.scheduler.run_here(work) {
            Ok(answer) => answer?,
            Err(work) => self.run_queued(request, work, priority).await?,
        };
        if let (Some((trace, queued)), Some(run)) = (trace, &answer.trace) {
            trace.ran(queued, run);
        }
        Ok(answer)
    }

    fn answered(
        self: &Arc<Self>,
        outputs: Vec<OutputTensor>,
        wanted: &[(usize, RequestedOutput)],
        arrival: Instant,
        timing: &Timing,
    ) -> Result<InferResponse, ServeError> {
        let rows = outputs.first().and_then(|output| output.shape.first().copied()).filter(|_| self.batches);
        let outputs = place(outputs, wanted)?;
        self.stats.succeeded(rows.map_or(1, |n| n.max(0) as u64), arrival.elapsed(), timing);
        Ok(InferResponse { model: Arc::clone(self), outputs })
    }

    /// Ends sequences that have been idle for too long.
    pub fn end_idle_sequences(&self) {
        if let Some(sequences) = &self.sequences {
            sequences.end_idle();
        }
    }

    /// Sequences in progress.
    pub fn running_sequences(&self) -> usize {
        self.sequences.as_ref().map_or(0, |sequences| sequences.running())
    }

    /// Whether a sequence is in progress.
    pub fn has_sequence(&self, id: &SequenceId) -> bool {
        self.sequences.as_ref().is_some_and(|sequences| sequences.has(id))
    }

    /// Ends a sequence that begins again in another version.
    pub fn forget_sequence(&self, id: &SequenceId) {
        if let Some(sequences) = &self.sequences {
            sequences.forget(id);
        }
    }

    /// Whether requests belong to sequences.
    pub fn has_sequences(&self) -> bool {
        self.sequences.is_some()
    }

    /// Puts a request into the queue and waits for its answer.
    async fn run_queued(&self, request: &InferRequest, work: Work, priority: u64) -> Result<Answer, Failed> {
        let gone = Arc::new(AtomicBool::new(false));
        let (reply, answer) = oneshot::channel();
        let arrival = work.arrival;
        let deadline = self.timeout(request).and_then(|timeout| arrival.checked_add(timeout));
        let job = Job { work, priority, deadline, gone: Arc::clone(&gone), reply };
        self.scheduler.submit(job).map_err(|refused| match refused {
            Refused::Closed(job) => Failed::Closed(job.work.inputs),
            Refused::Late(wait) => {
                let what = format!(
                    "model '{}' is busy: the request would begin in {} ms, behind its deadline; try again later",
                    self.name,
                    wait.as_millis()
                );
                ServeError::new(ErrorKind::Exhausted, what).into()
            }
            Refused::Full => {
                let most = self.config.max_queue_size;
                let what = format!("the queue of model '{}' is full: {most} requests wait; try again later", self.name);
                ServeError::new(ErrorKind::Exhausted, what).into()
            }
        })?;
        let mut client = Client { gone, stats: &self.stats, arrival, answered: false };
        let answer = answer.await;
        client.answered = true;
        let ended = || ServeError::new(ErrorKind::Internal, "the run ended without an answer");
        Ok(answer.map_err(|_| ended())??)
    }

    fn timeout(&self, request: &InferRequest) -> Option<Duration> {
        request.timeout.filter(|_| self.config.allow_timeout_override).or(self.config.default_timeout)
    }

    fn priority(&self, request: &InferRequest) -> Result<u64, ServeError> {
        let levels = self.config.priority_levels;
        match request.priority {
            0 => Ok(self.config.default_priority),
            n if levels > 0 && n > levels => Err(ServeError::invalid(format!(
                "priority {n} is none of the {levels} levels of model '{}'",
                self.name
            ))),
            n => Ok(n),
        }
    }

    /// For each output to return, its number.
    fn wanted(&self, requested: &[RequestedOutput]) -> Result<Vec<(usize, RequestedOutput)>, ServeError> {
        if requested.is_empty() {
            return Ok((0..self.outputs.len()).map(|number| (number, RequestedOutput::default())).collect());
        }
        let find = |output: &RequestedOutput| {
            let at = self.outputs.iter().position(|info| info.name == output.name).ok_or_else(|| {
                let names: Vec<&str> = self.outputs.iter().map(|info| &info.name[..]).collect();
                let what = format!("model '{}' has no output '{}'", self.name, output.name.escape_debug());
                ServeError::invalid(format!("{what}; its outputs are {}", names.join(", ")))
            })?;
            Ok((at, output.clone()))
        };
        requested.iter().map(find).collect()
    }
}

/// The outputs that a client asked for.
fn place(
    outputs: Vec<OutputTensor>,
    wanted: &[(usize, RequestedOutput)],
) -> Result<Vec<(OutputTensor, OutputPlace)>, ServeError> {
    let one = |(number, request): &(usize, RequestedOutput)| {
        let missing = || ServeError::new(ErrorKind::Internal, "the run gave too few outputs");
        let output = outputs.get(*number).cloned().ok_or_else(missing)?;
        let output = match request.classes {
            0 => output,
            count => classification::classify(&output, count)?,
        };
        Ok((output, request.place.clone()))
    };
    wanted.iter().map(one).collect()
}

/// The inputs of each warm-up.
fn warmup_values(config: &ModelConfig, inputs: &[TensorInfo]) -> Result<Vec<Vec<Value>>, String> {
    let values = |warmup: &Warmup| {
        let values = warmup.values(inputs, config.batching_is_required);
        values.map_err(|why| format!("the warm-up '{}' does not fit: {why}", warmup.name.escape_debug()))
    };
    config.warmups.iter().map(values).collect()
}

/// The inputs or outputs that all programs have in common.
fn infos(programs: &[&Program], ports: impl Fn(&Program) -> &[Port]) -> Result<Vec<TensorInfo>, String> {
    let first = programs.first().map(|program| ports(program)).unwrap_or_default();
    let info = |(number, port): (usize, &Port)| {
        let dtype = port.dtype();
        if datatype::name(dtype).is_none() {
            return Err(format!("'{}' is {dtype}, which the protocol lacks", port.name));
        }
        let mut shape = port.dims.clone();
        for other in programs.iter().filter_map(|program| ports(program).get(number)) {
            match other.dims.len() == shape.len() {
                true => shape.iter_mut().zip(&other.dims).filter(|(a, b)| a != b).for_each(|(a, _)| *a = -1),
                false => return Err(format!("'{}' has several ranks in the plan", port.name)),
            }
        }
        Ok(TensorInfo { name: port.name.clone(), dtype, shape })
    };
    first.iter().enumerate().map(info).collect()
}
