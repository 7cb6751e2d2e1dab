//! Sequences: requests that belong together, and the state that the server keeps between them.
//!
//! State is of two kinds: outputs that become inputs of the next request, as config.pbtxt says, and the variables of the plan. A
//! request has its sequence for itself while it runs; the others wait in the order of their arrival. Requests of different sequences
//! are joined into batches like any others, as states are ordinary inputs and outputs for the scheduler.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use of_plan::{ElementType, PlanFile, Port, Program};
use of_runtime::{Tensor, Value};
use tokio::sync::{Mutex as FairMutex, OwnedMutexGuard};

use crate::batch;
use crate::config::ModelConfig;
use crate::error::{ErrorKind, ServeError};
use crate::infer::{OutputTensor, SequenceId, SequenceStep, tensor};
use crate::memory::{Exceeded, MemoryBudget, StateMemory};
use crate::sequence_config::{ControlKind, Flag, State};
use crate::stats::Stats;
use crate::sync::lock;

/// The values of a plan's variables, in their order.
pub type VariableValues = Arc<Vec<Tensor>>;

/// What the variables of a plan are before a run.
#[derive(Clone, Debug, Default)]
pub enum Carried {
    /// The plan has none.
    #[default]
    Nothing,
    /// Their initial values.
    Initial,
    /// What a run of the same sequence left.
    Values(VariableValues),
}

/// The sequences of a version of a model.
pub struct Sequences {
    model: String,
    most: usize,
    idle: Duration,
    inputs: Vec<Source>,
    outputs: Vec<Sink>,
    states: Vec<InitialState>,
    has_variables: bool,
    copies_states: bool,
    table: Mutex<HashMap<SequenceId, Entry>>,
    stats: Arc<Stats>,
    /// Sequences that the counters show. Another version of the model may have the same counters.
    counted: AtomicU64,
    memory: Arc<MemoryBudget>,
}

/// Where the value of an input comes from.
enum Source {
    Client,
    Control(ControlKind, Vec<i64>),
    State(usize),
}

/// Where an output goes.
struct Sink {
    state: Option<usize>,
    shown: bool,
}

/// The value of a state before the first request.
struct InitialState {
    dtype: ElementType,
    /// Extents; the first one is that of the request where it has the rows of a batch.
    dims: Vec<i64>,
    has_rows: bool,
    /// The bytes of a row, or of all; zeros where there are none.
    bytes: Option<Bytes>,
}

struct Entry {
    slot: Arc<FairMutex<Slot>>,
    last: Instant,
}

/// How far a sequence is.
enum Slot {
    /// Its first request has not succeeded yet.
    New,
    /// Its state after the last request.
    Running { states: Vec<Tensor>, variables: Option<VariableValues>, memory: StateMemory },
    /// It has ended, or its first request failed.
    Ended,
}

/// A request that has its sequence for itself. Dropped without [`Turn::finish`], it leaves the state as it was.
pub struct Turn {
    sequences: Arc<Sequences>,
    step: SequenceStep,
    slot: OwnedMutexGuard<Slot>,
}

impl Sequences {
    /// The sequences of a model; `None` where it keeps no state.
    ///
    /// # Errors
    /// When the configuration does not fit the plan.
    pub fn new(
        model: &str,
        plan: &PlanFile,
        config: &ModelConfig,
        batches: bool,
        (stats, memory): (&Arc<Stats>, &Arc<MemoryBudget>),
    ) -> Result<Option<Sequences>, String> {
        let mut entries = plan.plan().programs.iter().filter(|program| !program.inner);
        let Some(program) = entries.next() else { return Ok(None) };
        check_variables(program, entries)?;
        let has_variables = !program.variables.is_empty();
        let Some(sequences) = config.sequences.clone().or_else(|| has_variables.then(Default::default)) else {
            return Ok(None);
        };
        let mut inputs: Vec<Source> = program.inputs.iter().map(|_| Source::Client).collect();
        let mut outputs: Vec<Sink> = program.outputs.iter().map(|_| Sink { state: None, shown: true }).collect();
        for control in sequences.controls {
            let at = find(&program.inputs, &control.input, "input")?;
            let (port, dtype) = (&program.inputs[at], control.kind.dtype());
            if port.dtype() != dtype {
                return Err(format!("control input '{}' is {}, and its control {dtype}", port.name, port.dtype()));
            }
            set(&mut inputs[at], Source::Control(control.kind, port.dims.clone()), &port.name)?;
        }
        let mut states = Vec::new();
        for state in &sequences.states {
            let (from, to) =
                (find(&program.outputs, &state.output, "output")?, find(&program.inputs, &state.input, "input")?);
            let port = &program.inputs[to];
            if program.outputs[from].dtype() != port.dtype() {
                let (output, other) = (&state.output, program.outputs[from].dtype());
                return Err(format!("state '{}' is {}, and its output '{output}' {other}", port.name, port.dtype()));
            }
            set(&mut inputs[to], Source::State(states.len()), &port.name)?;
            let sink = Sink { state: Some(states.len()), shown: config.outputs.contains(&state.output) };
            if std::mem::replace(&mut outputs[from], sink).state.is_some() {
                return Err(format!("output '{}' is the value of two states", state.output));
            }
            states.push(InitialState::new(state, port)?);
        }
        Ok(Some(Sequences {
            model: model.to_owned(),
            most: config.max_sequences.max(1),
            idle: config.max_sequence_idle,
            inputs,
            outputs,
            states,
            has_variables,
            copies_states: batches,
            table: Mutex::default(),
            stats: Arc::clone(stats),
            counted: AtomicU64::new(0),
            memory: Arc::clone(memory),
        }))
    }

    /// Whether clients give this input.
    pub fn shows_input(&self, number: usize) -> bool {
        matches!(self.inputs.get(number), Some(Source::Client))
    }

    /// Whether clients get this output.
    pub fn shows_output(&self, number: usize) -> bool {
        self.outputs.get(number).is_some_and(|sink| sink.shown)
    }

    /// Waits until a request has its sequence for itself.
    ///
    /// # Errors
    /// When there is no such sequence, or there are too many.
    pub async fn enter(self: &Arc<Self>, step: Option<&SequenceStep>) -> Result<Turn, ServeError> {
        let missing = || {
            let what = format!("model '{}' keeps state between requests", self.model);
            ServeError::invalid(format!("{what}: the request needs a sequence_id that is not 0 and not empty"))
        };
        let step = step.ok_or_else(missing)?.clone();
        let slot = match self.find_slot(&step)? {
            Ok(slot) => slot,
            Err(slot) => slot.lock_owned().await,
        };
        match &*slot {
            Slot::Running { .. } => {}
            Slot::New if step.start => {}
            Slot::New | Slot::Ended => return Err(self.unknown(&step.id)),
        }
        Ok(Turn { sequences: Arc::clone(self), step, slot })
    }

    /// The sequence of a request: its own already where it is the first request, or to wait for.
    fn find_slot(
        &self,
        step: &SequenceStep,
    ) -> Result<Result<OwnedMutexGuard<Slot>, Arc<FairMutex<Slot>>>, ServeError> {
        let now = Instant::now();
        let mut table = lock(&self.table);
        if !step.start {
            let found = table.get_mut(&step.id).filter(|entry| !entry.is_over(now, self.idle));
            let entry = found.ok_or_else(|| self.unknown(&step.id))?;
            entry.last = now;
            return Ok(Err(Arc::clone(&entry.slot)));
        }
        if table.len() >= self.most && !table.contains_key(&step.id) {
            self.forget_idle(&mut table, now);
            if table.len() >= self.most {
                let what = format!("model '{}' has {} sequences in progress", self.model, table.len());
                return Err(ServeError::new(ErrorKind::Exhausted, format!("{what}; try again later")));
            }
        }
        // A sequence of the same id begins again.
        let slot = Arc::new(FairMutex::new(Slot::New));
        let first = Arc::clone(&slot).try_lock_owned();
        table.insert(step.id.clone(), Entry { slot: Arc::clone(&slot), last: now });
        self.count(&table);
        self.stats.sequences_started.fetch_add(1, Relaxed);
        Ok(first.map_err(|_| slot))
    }

    fn unknown(&self, id: &SequenceId) -> ServeError {
        let what = format!("sequence {id} of model '{}' is not in progress", self.model);
        let idle = self.idle.as_secs_f64();
        ServeError::invalid(format!(
            "{what}: it has not begun, has ended, was idle for {idle} s, or the model was unloaded; \
             set sequence_start in its first request"
        ))
    }

    /// Ends sequences that have been idle for too long.
    pub fn end_idle(&self) {
        self.forget_idle(&mut lock(&self.table), Instant::now());
    }

    fn forget_idle(&self, table: &mut HashMap<SequenceId, Entry>, now: Instant) {
        let before = table.len();
        table.retain(|_, entry| !entry.is_over(now, self.idle));
        self.stats.sequences_timed_out.fetch_add((before - table.len()) as u64, Relaxed);
        self.count(table);
    }

    fn count(&self, table: &HashMap<SequenceId, Entry>) {
        let now = table.len() as u64;
        let before = self.counted.swap(now, Relaxed);
        self.stats.sequences.fetch_add(now.wrapping_sub(before), Relaxed);
    }

    /// Sequences in progress.
    pub fn running(&self) -> usize {
        lock(&self.table).len()
    }

    /// Whether a sequence is in progress.
    pub fn has(&self, id: &SequenceId) -> bool {
        let now = Instant::now();
        lock(&self.table).get(id).is_some_and(|entry| !entry.is_over(now, self.idle))
    }

    /// Ends a sequence that begins again in another version. Requests of it that wait or run still have their state.
    pub fn forget(&self, id: &SequenceId) {
        let mut table = lock(&self.table);
        table.remove(id);
        self.count(&table);
    }

    /// The inputs that a client gave, of all inputs.
    pub fn given(&self, inputs: Vec<Value>) -> Vec<Value> {
        inputs.into_iter().zip(&self.inputs).filter_map(|(v, s)| matches!(s, Source::Client).then_some(v)).collect()
    }
}

impl Entry {
    fn is_over(&self, now: Instant, idle: Duration) -> bool {
        // Requests that run or wait hold the slot, too.
        Arc::strong_count(&self.slot) == 1 && now.saturating_duration_since(self.last) >= idle
    }
}

impl Turn {
    /// All inputs of the plan, given those of the client.
    ///
    /// # Errors
    /// When a state has no place in memory.
    pub fn inputs(&self, given: Vec<Value>) -> Result<Vec<Value>, ServeError> {
        let rows = batch::rows(&given).and_then(|n| i64::try_from(n).ok()).unwrap_or(1);
        let mut given = given.into_iter();
        let missing = || ServeError::new(ErrorKind::Internal, "an input is missing");
        let value = |source: &Source| match source {
            Source::Client => given.next().ok_or_else(missing),
            Source::Control(kind, dims) => self.control(kind, dims, rows).map(Value::Tensor),
            Source::State(number) => match &*self.slot {
                Slot::Running { states, .. } if !self.step.start => {
                    states.get(*number).cloned().map(Value::Tensor).ok_or_else(missing)
                }
                _ => self.sequences.states.get(*number).ok_or_else(missing)?.value(rows).map(Value::Tensor),
            },
        };
        self.sequences.inputs.iter().map(value).collect()
    }

    /// The variables of the plan before the run.
    pub fn variables(&self) -> Carried {
        match &*self.slot {
            _ if !self.sequences.has_variables => Carried::Nothing,
            Slot::Running { variables: Some(values), .. } if !self.step.start => Carried::Values(Arc::clone(values)),
            _ => Carried::Initial,
        }
    }

    fn control(&self, kind: &ControlKind, dims: &[i64], rows: i64) -> Result<Tensor, ServeError> {
        let dims: Vec<i64> =
            dims.iter().enumerate().map(|(at, n)| if *n >= 0 { *n } else { if at == 0 { rows } else { 1 } }).collect();
        let count = dims.iter().try_fold(1_usize, |n, dim| n.checked_mul(usize::try_from(*dim).ok()?)).unwrap_or(0);
        let flag = |flag: &Flag, on: bool| {
            let element = if on { &flag.yes } else { &flag.no };
            Tensor::from_bytes(flag.dtype, dims.clone(), &element.repeat(count))
        };
        Ok(match kind {
            ControlKind::Start(values) => flag(values, self.step.start)?,
            ControlKind::End(values) => flag(values, self.step.end)?,
            ControlKind::Ready(values) => flag(values, true)?,
            ControlKind::Id(ElementType::String) => Tensor::from_strings(dims, vec![self.step.id.to_string(); count])?,
            ControlKind::Id(dtype) => {
                let SequenceId::Number(id) = self.step.id else {
                    let what = format!("model '{}' needs a number as sequence_id", self.sequences.model);
                    return Err(ServeError::invalid(what));
                };
                let len = usize::try_from(dtype.bits() / 8).unwrap_or(8).min(8);
                if len < 8 && id >> (8 * len) != 0 {
                    return Err(ServeError::invalid(format!("sequence_id {id} does not fit into {dtype}")));
                }
                Tensor::from_bytes(*dtype, dims, &id.to_le_bytes()[..len].repeat(count))?
            }
        })
    }

    /// Keeps the state that a run left, and returns the outputs for the client.
    ///
    /// # Errors
    /// When an output cannot be a state.
    pub fn finish(
        mut self,
        outputs: Vec<OutputTensor>,
        variables: Option<VariableValues>,
    ) -> Result<Vec<OutputTensor>, ServeError> {
        let mut states: Vec<Option<Tensor>> = self.sequences.states.iter().map(|_| None).collect();
        let mut shown = Vec::new();
        for (output, sink) in outputs.into_iter().zip(&self.sequences.outputs) {
            if let Some(state) = sink.state {
                // A part of a batch would keep the whole batch in memory.
                let data = match self.sequences.copies_states {
                    true => Bytes::copy_from_slice(&output.data),
                    false => output.data.clone(),
                };
                states[state] = Some(tensor(output.dtype, &output.shape, data)?);
            }
            if sink.shown {
                shown.push(output);
            }
        }
        let missing = || ServeError::new(ErrorKind::Internal, "the run gave no value for a state");
        let states = states.into_iter().collect::<Option<Vec<_>>>().ok_or_else(missing)?;
        if self.step.end {
            *self.slot = Slot::Ended;
            return Ok(shown);
        }
        let bytes = states.iter().chain(variables.iter().flat_map(|values| values.iter())).map(bytes_of).sum();
        let grown = |e: Exceeded| {
            let (id, Exceeded { used, limit }) = (&self.step.id, e);
            let what = format!("the state of sequence {id} of model '{}' needs {bytes} bytes", self.sequences.model);
            let of = format!("{used} of the {limit} bytes of --memory-budget are in use");
            ServeError::new(
                ErrorKind::Exhausted,
                format!("{what}, and {of}; try again when other sequences have ended"),
            )
        };
        match &mut *self.slot {
            Slot::Running { states: before, variables: variables_before, memory } => {
                memory.resize(bytes).map_err(grown)?;
                (*before, *variables_before) = (states, variables);
            }
            slot => {
                let mut memory = StateMemory::new(&self.sequences.memory);
                memory.resize(bytes).map_err(grown)?;
                *slot = Slot::Running { states, variables, memory };
            }
        }
        Ok(shown)
    }
}

/// The bytes of a tensor.
fn bytes_of(tensor: &Tensor) -> u64 {
    let texts = |texts: &[String]| texts.iter().map(|text| size_of::<String>() + text.len()).sum();
    tensor.bytes().map_or_else(|| tensor.strings().map_or(0, texts), <[u8]>::len) as u64
}

impl Drop for Sequences {
    fn drop(&mut self) {
        lock(&self.table).clear();
        self.count(&lock(&self.table));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if matches!(*self.slot, Slot::New) {
            *self.slot = Slot::Ended;
        }
        let ended = matches!(*self.slot, Slot::Ended);
        let mine = OwnedMutexGuard::mutex(&self.slot);
        let mut table = lock(&self.sequences.table);
        // Another sequence of the same id may have begun.
        let Some(entry) = table.get_mut(&self.step.id).filter(|entry| Arc::ptr_eq(&entry.slot, mine)) else { return };
        entry.last = Instant::now();
        if ended {
            table.remove(&self.step.id);
            self.sequences.count(&table);
        }
    }
}

impl ControlKind {
    fn dtype(&self) -> ElementType {
        match self {
            ControlKind::Start(flag) | ControlKind::End(flag) | ControlKind::Ready(flag) => flag.dtype,
            ControlKind::Id(dtype) => *dtype,
        }
    }
}

impl InitialState {
    fn new(state: &State, port: &Port) -> Result<InitialState, String> {
        let (name, dtype) = (&state.input, port.dtype());
        if let Some(stated) = state.dtype.filter(|stated| *stated != dtype) {
            return Err(format!("state '{name}' is {dtype} in the plan, and {stated} in the configuration"));
        }
        // The rows of a batch are not in the configuration.
        let stated = match state.dims.len() {
            0 => port.dims.clone(),
            n if n == port.dims.len() => state.dims.clone(),
            n if n + 1 == port.dims.len() => [&port.dims[..1], &state.dims[..]].concat(),
            n => {
                return Err(format!(
                    "state '{name}' has {} dimensions in the plan, and {n} in the configuration",
                    port.dims.len()
                ));
            }
        };
        let both = stated.iter().zip(&port.dims).map(|(stated, own)| match (stated, own) {
            (-1, own) => Some(*own),
            (stated, own) => (*own == -1 || stated == own).then_some(*stated),
        });
        let differ = || format!("state '{name}' is {:?} in the plan, and {stated:?} in the configuration", port.dims);
        let dims: Vec<i64> = both.collect::<Option<_>>().ok_or_else(differ)?;
        let has_rows = dims.first() == Some(&-1);
        if dims.iter().skip(1).any(|n| *n < 0) {
            return Err(format!("state '{name}' has open extents {dims:?}: state them in initial_state"));
        }
        let initial = InitialState { dtype, dims, has_rows, bytes: state.initial.clone().map(Bytes::from) };
        let wrong = |e: ServeError| format!("the initial state of '{name}': {}", e.message);
        initial.value(1).map(|_| initial).map_err(wrong)
    }

    fn value(&self, rows: i64) -> Result<Tensor, ServeError> {
        let mut dims = self.dims.clone();
        let rows = if self.has_rows { rows } else { 1 };
        if let Some(first) = dims.first_mut().filter(|_| self.has_rows) {
            *first = rows;
        }
        match (&self.bytes, self.dtype) {
            (Some(bytes), _) => {
                let rows = usize::try_from(rows).unwrap_or(0);
                let bytes = if rows == 1 { bytes.clone() } else { bytes.repeat(rows).into() };
                tensor(self.dtype, &dims, bytes)
            }
            (None, ElementType::String) => {
                let count = dims.iter().try_fold(1_usize, |n, dim| n.checked_mul(usize::try_from(*dim).ok()?));
                Ok(Tensor::from_strings(dims, vec![String::new(); count.unwrap_or(0)])?)
            }
            (None, dtype) => Ok(Tensor::zeros(dtype, dims)?),
        }
    }
}

/// Whether variables have values in a new sequence, and are the same in all programs.
fn check_variables<'p>(first: &Program, others: impl Iterator<Item = &'p Program>) -> Result<(), String> {
    if let Some(variable) = first.variables.iter().find(|variable| variable.initial.is_none()) {
        let name = &variable.name;
        return Err(format!(
            "the variable '{name}' has no initial value; compile the model with --variable OUTPUT={name}:zeros"
        ));
    }
    let types = |program: &Program| -> Vec<_> {
        program.variables.iter().map(|v| (v.name.clone(), v.dtype(), v.dims.clone())).collect()
    };
    for other in others {
        if types(other) != types(first) {
            return Err("the programs of the plan keep different variables".into());
        }
    }
    Ok(())
}

fn find(ports: &[Port], name: &str, kind: &str) -> Result<usize, String> {
    ports.iter().position(|port| port.name == name).ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|port| &port.name[..]).collect();
        format!("sequence_batching names the {kind} '{name}', and the model has {}", names.join(", "))
    })
}

fn set(source: &mut Source, to: Source, name: &str) -> Result<(), String> {
    match std::mem::replace(source, to) {
        Source::Client => Ok(()),
        _ => Err(format!("sequence_batching names the input '{name}' twice")),
    }
}
