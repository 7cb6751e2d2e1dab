//! The queue of a model and the threads that run its requests.
//!
//! Each instance of a model has its own sessions, and a thread, so that no worker of the network runs a long kernel. The thread takes the
//! first request by priority and arrival, joins those behind it that fit, and answers each. A batch whose sizes run for the first time
//! is compared with its requests run alone: where a bit differs, the model's batching ends, and the requests get the results
//! of the runs alone.
//!
//! A short request that finds the queue empty and an instance idle runs on the thread that it arrived on ([`Scheduler::run_here`]):
//! handing it to another thread and back would take longer than the run.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use of_plan::PlanFile;
use of_runtime::{Loader, Session, TaskTiming, Tensor, Value, Workers};
use tokio::sync::oneshot;

use crate::batch;
use crate::config::ModelConfig;
use crate::error::{ErrorKind, ServeError};
use crate::infer::OutputTensor;
use crate::run_times::{Kind, RunTimes};
use crate::sequences::{Carried, VariableValues};
use crate::stats::{Stats, Timing, kind_of};
use crate::sync::lock;
use crate::traces::RunTrace;

/// A request in the queue.
pub struct Job {
    /// What runs.
    pub work: Work,
    /// Lower numbers run first.
    pub priority: u64,
    /// When it must have begun to run.
    pub deadline: Option<Instant>,
    /// Set when the client leaves.
    pub gone: Arc<AtomicBool>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<Answer, ServeError>>,
}

/// The run that a request asks for.
pub struct Work {
    /// The program that takes the inputs.
    pub program: usize,
    /// The inputs in the order of the program.
    pub inputs: Vec<Value>,
    /// When the request arrived.
    pub arrival: Instant,
    /// What the variables of the plan are before the run.
    pub carried: Carried,
    /// Whether its run is traced.
    pub traced: bool,
}

/// The outputs of a request, in the order of the program.
pub struct Answer {
    /// The outputs.
    pub outputs: Vec<OutputTensor>,
    /// How long its parts took.
    pub timing: Timing,
    /// What the variables of the plan are after the run.
    pub carried: Option<VariableValues>,
    /// The run, if it was traced.
    pub trace: Option<Arc<RunTrace>>,
}

/// Why a job was not accepted.
pub enum Refused {
    /// The model is unloaded or replaced: another version may take the job.
    Closed(Box<Job>),
    /// The queue is full.
    Full,
    /// It would begin to run behind its deadline: after this time.
    Late(Duration),
}

/// What the threads of a model share.
pub struct Shared {
    /// The plan.
    pub plan: Arc<PlanFile>,
    /// Loads what backends compiled.
    pub loaders: Vec<Arc<dyn Loader>>,
    /// Name of the model, for messages.
    pub name: String,
    /// How it is served.
    pub config: ModelConfig,
    /// How many workers a session takes; 0 is as many as the plan was tuned for.
    pub threads: usize,
    /// The workers, which all models share.
    pub workers: Workers,
    /// Whether the model has a batch axis and its configuration allows batches.
    pub batches: bool,
    /// Counters.
    pub stats: Arc<Stats>,
}

/// The queue of a model, and its threads.
pub struct Scheduler {
    inner: Arc<Inner>,
    instances: Vec<Arc<Mutex<Instance>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Inner {
    shared: Shared,
    queue: Mutex<Queue>,
    arrived: Condvar,
    checked: Mutex<Checked>,
    short: Short,
    times: Mutex<RunTimes>,
    /// For each instance when its run is expected to end.
    busy_until: Mutex<Vec<Instant>>,
}

/// Which runs are short.
///
/// A run is expected to be short if one with as many bytes of input was, and none with fewer was long since then.
#[derive(Default)]
struct Short {
    /// Inputs of fewer bytes take a short time.
    bytes: AtomicUsize,
}

impl Short {
    /// The longest short run. A thread of the network answers no other client meanwhile, and a hand-over takes about a fifth of it.
    const TIME: Duration = Duration::from_micros(100);

    fn expects(&self, bytes: usize) -> bool {
        bytes < self.bytes.load(Relaxed)
    }

    fn measured(&self, bytes: usize, time: Duration) {
        if time <= Self::TIME {
            self.bytes.fetch_max(bytes.saturating_add(1), Relaxed);
        } else {
            self.bytes.fetch_min(bytes, Relaxed);
        }
    }
}

#[derive(Default)]
struct Queue {
    /// By priority and arrival.
    jobs: BTreeMap<(u64, u64), Job>,
    next: u64,
    closed: bool,
}

/// What is known of the model's batches.
#[derive(Default)]
struct Checked {
    /// Rows of a batch, rows of a request in it, and the shapes of the rows, for which both give the same bits.
    same: HashSet<(usize, usize, Vec<Vec<i64>>)>,
    /// Why batching ended, if it did.
    off: Option<String>,
}

/// The longest run of a trial.
const TRIAL: Duration = Duration::from_secs(2);
/// How many combinations are remembered.
const MAX_CHECKED: usize = 1 << 14;

impl Scheduler {
    /// Starts the threads of a model. Each opens its session of the first program before this returns.
    ///
    /// # Errors
    /// When this machine cannot run the plan.
    pub fn start(shared: Shared) -> Result<Scheduler, String> {
        let count = shared.config.instances.max(1);
        let (queue, arrived, checked, short, times) = Default::default();
        let busy_until = Mutex::new(vec![Instant::now(); count]);
        let inner = Arc::new(Inner { shared, queue, arrived, checked, short, times, busy_until });
        let mut scheduler = Scheduler { inner, instances: Vec::with_capacity(count), threads: Mutex::default() };
        for number in 0..count {
            let instance = Arc::new(Mutex::new(Instance::new(&scheduler.inner, number).map_err(|e| e.message)?));
            scheduler.instances.push(Arc::clone(&instance));
            let inner = Arc::clone(&scheduler.inner);
            let name = format!("of-serve-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                while let Some(jobs) = inner.take() {
                    lock(&instance).serve(jobs);
                }
            });
            lock(&scheduler.threads).push(thread.map_err(|e| format!("no thread for a model: {e}"))?);
        }
        Ok(scheduler)
    }

    /// Runs a request on the calling thread, if it is expected to be short, nothing waits before it, an instance is idle, and it would
    /// not wait for others to form a batch. Otherwise gives it back.
    ///
    /// # Errors
    /// The outer one gives the work back; the inner one is for the client.
    pub fn run_here(&self, work: Work) -> Result<Result<Answer, ServeError>, Work> {
        let Shared { config, batches, .. } = &self.inner.shared;
        let waits = *batches && !config.max_queue_delay.is_zero();
        if waits || !self.inner.short.expects(input_bytes(&work.inputs)) {
            return Err(work);
        }
        let may_run = |queue: &Queue| queue.jobs.is_empty() && !queue.closed;
        if !may_run(&lock(&self.inner.queue)) {
            return Err(work);
        }
        let idle = self.instances.iter().find_map(|instance| match instance.try_lock() {
            Ok(idle) => Some(idle),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        match idle {
            Some(mut instance) => Ok(instance.run_alone(&work, Instant::now())),
            None => Err(work),
        }
    }

    /// Runs inputs on each instance. Statistics do not count it.
    ///
    /// # Errors
    /// When the plan does not take them, or the run fails.
    pub fn warm_up(&self, inputs: &[Value]) -> Result<(), ServeError> {
        let run = |instance: &Arc<Mutex<Instance>>| {
            let (kind, rows, time) = self.try_run(&mut lock(instance), inputs)?;
            lock(&self.inner.times).measured(kind, rows, time);
            Ok(())
        };
        self.instances.iter().try_for_each(run)
    }

    /// Runs inputs that no client sent on one instance, so that the time of a run is known before the first request. A run that takes
    /// longer than [`TRIAL`] is ended: requests are then admitted without it.
    ///
    /// # Errors
    /// When the plan does not take them, or the run fails or is ended.
    pub fn trial(&self, inputs: &[Value]) -> Result<(), ServeError> {
        let Some(instance) = self.instances.first() else { return Ok(()) };
        let mut instance = lock(instance);
        lock(&instance.current).until = Instant::now().checked_add(TRIAL);
        let ran = self.try_run(&mut instance, inputs);
        lock(&instance.current).until = None;
        let (kind, rows, time) = ran?;
        lock(&self.inner.times).guessed(kind, rows, time);
        Ok(())
    }

    /// Runs inputs, and returns what the run was like and its time.
    fn try_run(&self, instance: &mut Instance, inputs: &[Value]) -> Result<(Kind, usize, Duration), ServeError> {
        let dims: Vec<_> = inputs.iter().map(Value::input_dims).collect();
        let program = self.inner.shared.plan.find_program(&dims).map_err(|e| ServeError::invalid(e.to_string()))?;
        let (carried, arrival) = (Carried::Initial, Instant::now());
        let work = Work { program, inputs: inputs.to_vec(), arrival, carried, traced: false };
        instance.carry_in(program, &work.carried)?;
        let began = Instant::now();
        instance.run_program(program, work.inputs.clone(), false)?;
        Ok((kind_of_run(&work), batch::rows(inputs).unwrap_or(1), began.elapsed()))
    }

    /// Puts a job into the queue.
    ///
    /// # Errors
    /// When the queue is full or closed, or the job is expected to begin behind its deadline.
    pub fn submit(&self, job: Job) -> Result<(), Refused> {
        let mut queue = lock(&self.inner.queue);
        if queue.closed {
            return Err(Refused::Closed(Box::new(job)));
        }
        if queue.jobs.len() >= self.inner.shared.config.max_queue_size {
            queue.forget_gone();
            if queue.jobs.len() >= self.inner.shared.config.max_queue_size {
                return Err(Refused::Full);
            }
        }
        if let Some(deadline) = job.deadline
            && let Some(wait) = self.inner.expected_wait(&queue, &job)
            && Instant::now() + wait > deadline
        {
            return Err(Refused::Late(wait));
        }
        let key = (job.priority, queue.next);
        queue.next += 1;
        queue.jobs.insert(key, job);
        self.inner.shared.stats.pending.store(queue.jobs.len() as u64, Relaxed);
        drop(queue);
        match self.inner.shared.config.instances {
            0 | 1 => self.inner.arrived.notify_one(),
            // One of them may wait for more jobs of another shape.
            _ => self.inner.arrived.notify_all(),
        }
        Ok(())
    }

    /// Refuses further jobs; those in the queue still run.
    pub fn close(&self) {
        lock(&self.inner.queue).closed = true;
        self.inner.arrived.notify_all();
    }

    /// Waits until all jobs have run, after [`Scheduler::close`].
    pub fn join(&self) {
        for thread in lock(&self.threads).drain(..) {
            // Panics of a run are caught by the runtime; another one was printed where it happened.
            let _ = thread.join();
        }
    }

    /// Why batching ended, if it did.
    pub fn batching_is_off(&self) -> Option<String> {
        lock(&self.inner.checked).off.clone()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue {
    /// Drops jobs whose clients left, and answers those whose deadline has passed.
    fn forget_gone(&mut self) {
        let now = Instant::now();
        let over = |job: &Job| job.gone.load(Relaxed) || job.deadline.is_some_and(|deadline| deadline <= now);
        if !self.jobs.values().any(over) {
            return;
        }
        for (key, job) in std::mem::take(&mut self.jobs) {
            if !over(&job) {
                self.jobs.insert(key, job);
                continue;
            }
            let late = "the deadline passed while the request was in the queue";
            // The receiver may be gone.
            let _ = job.reply.send(Err(ServeError::new(ErrorKind::Deadline, late)));
        }
    }

    /// The keys of the jobs of the next batch, and when it must start although more would fit. `None` where it is complete.
    fn next_batch(
        &self,
        shared: &Shared,
        times: &Mutex<RunTimes>,
        may_batch: bool,
    ) -> (Vec<(u64, u64)>, Option<Instant>) {
        let Some((key, first)) = self.jobs.first_key_value() else { return (Vec::new(), None) };
        let limit = shared.config.max_batch_size;
        let rows = batch::rows(&first.work.inputs).filter(|rows| may_batch && *rows < limit);
        let Some(rows) = rows else { return (vec![*key], None) };
        let fits = |job: &Job| {
            batch::rows(&job.work.inputs).filter(|_| batch::same_rows(&job.work.inputs, &first.work.inputs))
        };
        let (mut keys, mut all, mut preferred) = (vec![*key], rows, 0);
        // The rows of the first job, of the first two, and so on.
        let mut sums = vec![rows];
        let sizes = &shared.config.preferred_batch_sizes;
        for (key, job) in self.jobs.iter().skip(1) {
            if sizes.contains(&all) {
                preferred = keys.len();
            }
            if all >= limit {
                break;
            }
            let Some(rows) = fits(job).filter(|rows| all + rows <= limit) else { continue };
            keys.push(*key);
            all += rows;
            sums.push(all);
        }
        if sizes.contains(&all) {
            preferred = keys.len();
        }
        if preferred > 0 {
            keys.truncate(preferred);
            return (keys, None);
        }
        let kind = kind_of_run(&first.work);
        if sizes.is_empty() && keys.len() > 1 {
            // A delay asks for large batches, where nothing is known.
            let unknown = shared.config.max_queue_delay.is_zero().then_some(0);
            if let Some(best) = lock(times).best(kind, &sums).or(unknown)
                && best + 1 < keys.len()
            {
                keys.truncate(best + 1);
                return (keys, None);
            }
        }
        if sizes.is_empty() && !shared.config.max_queue_delay.is_zero() && !lock(times).more_may_help(kind, all, limit)
        {
            return (keys, None);
        }
        let full = all >= sizes.last().copied().unwrap_or(limit).min(limit);
        let oldest = keys.iter().filter_map(|k| self.jobs.get(k)).map(|job| job.work.arrival).min();
        let until = oldest.map(|arrival| arrival + shared.config.max_queue_delay);
        (keys, until.filter(|_| !full))
    }
}

impl Inner {
    /// How long a job would wait until it begins to run. `None` where no run like it is known.
    fn expected_wait(&self, queue: &Queue, job: &Job) -> Option<Duration> {
        let (config, now) = (&self.shared.config, Instant::now());
        let (kind, rows) = (kind_of_run(&job.work), batch::rows(&job.work.inputs).unwrap_or(1));
        let each = match self.shared.batches {
            true => lock(&self.times).expected_row(kind, config.max_batch_size.max(rows))?.mul_f64(rows as f64),
            false => lock(&self.times).expected(kind, rows)?,
        };
        let before = match queue.jobs.last_key_value() {
            Some(((priority, _), _)) if *priority > job.priority => {
                queue.jobs.range(..=(job.priority, u64::MAX)).count()
            }
            _ => queue.jobs.len(),
        };
        let busy = lock(&self.busy_until);
        let running = busy.iter().min().map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        Some(running + each.mul_f64(before as f64 / busy.len().max(1) as f64))
    }

    /// An instance begins with jobs, which take a time that is expected, or has ended with them.
    fn busy(&self, instance: usize, jobs: &[Job]) {
        let rows = jobs.iter().map(|job| batch::rows(&job.work.inputs).unwrap_or(1)).sum();
        let expected = jobs.first().and_then(|job| lock(&self.times).expected(kind_of_run(&job.work), rows));
        if let Some(until) = lock(&self.busy_until).get_mut(instance) {
            *until = Instant::now() + expected.unwrap_or_default();
        }
    }

    fn measured(&self, work: &Work, rows: usize, time: Duration) {
        lock(&self.times).measured(kind_of_run(work), rows, time);
    }

    /// The jobs of the next batch; `None` at the end.
    fn take(&self) -> Option<Vec<Job>> {
        let shared = &self.shared;
        let mut queue = lock(&self.queue);
        loop {
            queue.forget_gone();
            let may_batch = shared.batches && lock(&self.checked).off.is_none();
            let (keys, until) = queue.next_batch(shared, &self.times, may_batch);
            let now = Instant::now();
            let wait = match until {
                _ if keys.is_empty() && queue.closed => return None,
                _ if keys.is_empty() => Duration::from_secs(3600),
                Some(until) if until > now && !queue.closed => until - now,
                _ => {
                    let jobs = keys.iter().filter_map(|key| queue.jobs.remove(key)).collect();
                    shared.stats.pending.store(queue.jobs.len() as u64, Relaxed);
                    if !queue.jobs.is_empty() {
                        self.arrived.notify_one();
                    }
                    return Some(jobs);
                }
            };
            let deadline = queue.jobs.values().filter_map(|job| job.deadline).min();
            let wait = deadline.map_or(wait, |at| wait.min(at.saturating_duration_since(now)));
            queue = self.arrived.wait_timeout(queue, wait).map_or_else(|e| e.into_inner().0, |(queue, _)| queue);
        }
    }
}

/// The sessions of an instance of a model.
struct Instance {
    inner: Arc<Inner>,
    number: usize,
    /// By program; further ones are opened when a request needs them.
    sessions: HashMap<usize, Session>,
    /// The values that the variables of a session have, if they are those of a sequence.
    held: HashMap<usize, Weak<Vec<Tensor>>>,
    /// What ends the run of now.
    current: Arc<Mutex<Current>>,
}

/// What ends a run before its end.
#[derive(Default)]
struct Current {
    /// For each job whether its client has left; the run ends when all have.
    gone: Vec<Arc<AtomicBool>>,
    /// The run of a trial ends at this time.
    until: Option<Instant>,
}

impl Current {
    fn ends_run(&self) -> bool {
        let all_left = !self.gone.is_empty() && self.gone.iter().all(|gone| gone.load(Relaxed));
        all_left || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

impl Instance {
    fn new(inner: &Arc<Inner>, number: usize) -> Result<Self, ServeError> {
        let (sessions, held, current) = Default::default();
        let mut instance = Self { inner: Arc::clone(inner), number, sessions, held, current };
        let programs = &inner.shared.plan.plan().programs;
        let first = programs.iter().position(|program| !program.inner).unwrap_or(0);
        instance.session(first)?;
        Ok(instance)
    }

    fn session(&mut self, program: usize) -> Result<&mut Session, ServeError> {
        if !self.sessions.contains_key(&program) {
            let shared = &self.inner.shared;
            let options = of_runtime::Options { threads: shared.threads, ..Default::default() };
            let session = Session::on_workers(&shared.plan, program, options, &shared.loaders, &shared.workers);
            let session = session.map_err(|e| ServeError::new(ErrorKind::Internal, e.to_string()))?;
            let current = Arc::clone(&self.current);
            session.canceller().poll_with(Box::new(move || lock(&current).ends_run()));
            self.sessions.insert(program, session);
        }
        let missing = || ServeError::new(ErrorKind::Internal, "the session was lost");
        self.sessions.get_mut(&program).ok_or_else(missing)
    }

    /// Runs a batch of jobs.
    fn serve(&mut self, jobs: Vec<Job>) {
        lock(&self.current).gone = jobs.iter().map(|job| Arc::clone(&job.gone)).collect();
        self.inner.busy(self.number, &jobs);
        self.run(jobs);
        self.inner.busy(self.number, &[]);
        lock(&self.current).gone.clear();
    }

    fn run(&mut self, jobs: Vec<Job>) {
        let start = Instant::now();
        let jobs = match jobs.len() {
            0 | 1 => jobs,
            _ => match self.run_batch(jobs, start) {
                Ok(()) => return,
                Err(jobs) => jobs,
            },
        };
        for job in jobs {
            let answer = self.run_alone(&job.work, start);
            let _ = job.reply.send(answer);
        }
    }

    fn run_alone(&mut self, work: &Work, start: Instant) -> Result<Answer, ServeError> {
        let mut timing = Timing { queue: start.saturating_duration_since(work.arrival), ..Timing::default() };
        let began = Instant::now();
        self.carry_in(work.program, &work.carried)?;
        let (values, tasks) = self.run_program(work.program, work.inputs.clone(), work.traced)?;
        let ran = Instant::now();
        let carried = self.carry_out(work.program)?;
        timing.run = began.elapsed();
        self.inner.short.measured(input_bytes(&work.inputs), timing.run);
        let rows = batch::rows(&work.inputs).unwrap_or(1);
        self.inner.measured(work, rows, timing.run);
        self.inner.shared.stats.ran(rows, &timing);
        let outputs = self.tensors(work.program, values)?;
        let trace =
            tasks.map(|tasks| RunTrace { run: Some((began, ran)), tasks, requests: 1, rows, ..RunTrace::default() });
        Ok(Answer { outputs, timing, carried, trace: trace.map(Arc::new) })
    }

    /// Gives the variables of a program the values of the sequence whose request runs next.
    fn carry_in(&mut self, program: usize, carried: &Carried) -> Result<(), ServeError> {
        let held = self.held.remove(&program);
        let Some(variables) = self.session(program)?.variables().cloned() else { return Ok(()) };
        match carried {
            Carried::Nothing => {}
            Carried::Initial => variables.reset(),
            // The run before was of the same sequence.
            Carried::Values(values) if held.is_some_and(|held| std::ptr::eq(held.as_ptr(), Arc::as_ptr(values))) => {}
            Carried::Values(values) => {
                let failed = |e: of_runtime::RunError| ServeError::new(ErrorKind::Internal, e.to_string());
                let mut pairs = variables.list().iter().zip(values.iter());
                pairs.try_for_each(|(variable, value)| variables.set(&variable.name, value)).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// The values of the variables after a run.
    fn carry_out(&mut self, program: usize) -> Result<Option<VariableValues>, ServeError> {
        let Some(variables) = self.session(program)?.variables().cloned() else { return Ok(None) };
        let values = variables.list().iter().map(|variable| variables.get(&variable.name));
        let failed = |e: of_runtime::RunError| ServeError::new(ErrorKind::Internal, e.to_string());
        let values = Arc::new(values.collect::<Result<Vec<_>, _>>().map_err(failed)?);
        self.held.insert(program, Arc::downgrade(&values));
        Ok(Some(values))
    }

    /// The outputs of a program, and the times of its tasks if it is traced.
    fn run_program(
        &mut self,
        program: usize,
        inputs: Vec<Value>,
        traced: bool,
    ) -> Result<(Vec<Value>, Option<Vec<TaskTiming>>), ServeError> {
        let session = self.session(program)?;
        if traced {
            session.set_profiling(true);
            session.reset_timings();
        }
        let result = session.run(inputs);
        let tasks = traced.then(|| {
            session.set_profiling(false);
            session.timings()
        });
        if let Err(of_runtime::RunError::Panic { .. } | of_runtime::RunError::Internal(_)) = result {
            // It cannot run again; the next request opens another one.
            self.sessions.remove(&program);
        }
        result.map(|values| (values, tasks)).map_err(|e| ServeError::new(kind_of(&e), e.to_string()))
    }

    fn tensors(&self, program: usize, values: Vec<Value>) -> Result<Vec<OutputTensor>, ServeError> {
        let ports = self.inner.shared.plan.plan().programs.get(program).map_or(&[][..], |p| &p.outputs[..]);
        values.into_iter().zip(ports).map(|(value, port)| OutputTensor::of_value(&port.name, value)).collect()
    }

    /// Runs jobs as one batch, and gives them back if they must run one by one.
    fn run_batch(&mut self, jobs: Vec<Job>, start: Instant) -> Result<(), Vec<Job>> {
        let inputs: Vec<&[Value]> = jobs.iter().map(|job| &job.work.inputs[..]).collect();
        let Some(joined) = batch::join(&inputs) else { return Err(jobs) };
        let dims: Vec<_> = joined.iter().map(Value::input_dims).collect();
        let Ok(program) = self.inner.shared.plan.find_program(&dims) else { return Err(jobs) };
        let mut timing = Timing { input: start.elapsed(), ..Timing::default() };
        let rows: Vec<usize> = jobs.iter().filter_map(|job| batch::rows(&job.work.inputs)).collect();
        let all = rows.iter().sum();
        let began = Instant::now();
        // A request that breaks a rule of an op must not fail the others: each then runs alone.
        let traced = jobs.iter().any(|job| job.work.traced);
        let Ok((values, tasks)) = self.run_program(program, joined, traced) else { return Err(jobs) };
        timing.run = began.elapsed();
        let ran = Instant::now();
        self.inner.measured(&jobs[0].work, all, timing.run);
        let Some(parts) = self.tensors(program, values).ok().and_then(|whole| split(&whole, &rows)) else {
            return Err(jobs);
        };
        timing.output = ran.elapsed();
        self.inner.shared.stats.ran(all, &timing);
        let shapes = batch::row_shapes(&jobs[0].work.inputs);
        let is_checked = {
            let checked = lock(&self.inner.checked);
            rows.iter().all(|rows| checked.same.contains(&(all, *rows, shapes.clone())))
        };
        if !is_checked {
            self.check(jobs, parts, &rows, shapes, start);
            return Ok(());
        }
        let trace = tasks.map(|tasks| {
            let (join, run) = (Some((start, start + timing.input)), Some((began, ran)));
            let split = Some((ran, ran + timing.output));
            Arc::new(RunTrace { join, run, split, tasks, requests: jobs.len(), rows: all })
        });
        for (job, outputs) in jobs.into_iter().zip(parts) {
            let queue = start.saturating_duration_since(job.work.arrival);
            let trace = trace.as_ref().filter(|_| job.work.traced).map(Arc::clone);
            let _ = job.reply.send(Ok(Answer { outputs, timing: Timing { queue, ..timing }, carried: None, trace }));
        }
        Ok(())
    }

    /// Answers jobs with the results of runs alone, and compares these with the results of their batch.
    fn check(
        &mut self,
        jobs: Vec<Job>,
        parts: Vec<Vec<OutputTensor>>,
        rows: &[usize],
        shapes: Vec<Vec<i64>>,
        start: Instant,
    ) {
        let all = rows.iter().sum();
        for ((job, part), rows) in jobs.into_iter().zip(parts).zip(rows) {
            let answer = self.run_alone(&job.work, start);
            if let Ok(Answer { outputs, .. }) = &answer {
                let mut checked = lock(&self.inner.checked);
                let different = outputs.iter().zip(&part).find(|(alone, batched)| alone != batched);
                match different {
                    None if checked.same.len() < MAX_CHECKED => {
                        checked.same.insert((all, *rows, shapes.clone()));
                    }
                    None => {}
                    Some((output, _)) if checked.off.is_none() => {
                        let why = format!(
                            "output '{}' of {rows} rows differs when they run in a batch of {all} rows",
                            output.name
                        );
                        tracing::warn!(model = self.inner.shared.name, "requests run one by one from now on: {why}");
                        checked.off = Some(why);
                    }
                    Some(_) => {}
                }
            }
            let _ = job.reply.send(answer);
        }
    }
}

/// What runs the time of a run is like.
fn kind_of_run(work: &Work) -> Kind {
    (work.program, input_bytes(&work.inputs) / batch::rows(&work.inputs).unwrap_or(1).max(1))
}

/// Bytes of the inputs of a request. Strings count as nothing: the time of a run hardly depends on them.
fn input_bytes(inputs: &[Value]) -> usize {
    inputs.iter().filter_map(|value| value.as_tensor()?.bytes()).map(<[u8]>::len).sum()
}

/// The results of each request of a batch, given its rows.
fn split(whole: &[OutputTensor], rows: &[usize]) -> Option<Vec<Vec<OutputTensor>>> {
    let mut start = 0;
    let part = |rows: &usize| {
        let part = whole.iter().map(|output| output.rows(start, *rows)).collect::<Option<Vec<_>>>();
        start += rows;
        part
    };
    rows.iter().map(part).collect()
}
