//! Sessions: runs of a plan on arrays of Python.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use of_diag::Diagnostics;
use of_driver::session::{find_program, named_mesh, numbered_entry_point, program_session, run_error, sharing_session};
use of_driver::{Backends, SessionOptions, error};
use of_plan::{PlanFile, Program};
use of_runtime::{RunError, Tensor, Value};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::array::View;
use crate::dlpack::{Shared, export};
use crate::error::{input_error, raised};
use crate::interrupt::{Interrupt, is_main_thread};
use crate::numpy::{self, Numpy};
use crate::plan::Plan;
use crate::ranks::{self, Connections, Ranks};
use crate::values::{from_value, to_value};
use crate::variables::{Values, Variables};

/// Executes a plan any number of times.
#[pyclass(frozen, module = "of_opt")]
pub struct Session {
    plan: Arc<PlanFile>,
    options: SessionOptions,
    backends: Backends,
    interrupt: Arc<Interrupt>,
    /// What its programs keep between runs; `None` where the plan has no variables.
    variables: Option<Arc<of_runtime::Variables>>,
    /// The entry point of a plan for a mesh; others are found by the inputs.
    mesh: usize,
    /// The ranks of a plan for a mesh.
    ranks: Option<Arc<Ranks>>,
    /// One run at a time.
    executors: Mutex<Executors>,
    /// The names of the inputs.
    names: Vec<String>,
}

/// What executes the programs that inputs have needed so far.
#[derive(Default)]
struct Executors {
    programs: HashMap<usize, of_runtime::Session>,
}

/// A result: an array that the run writes to, or what the run makes.
enum Room {
    Array(Py<PyAny>),
    Made,
    /// An array that what the run makes is copied to.
    CopiedTo(Py<PyAny>, View),
}

impl Session {
    /// Opens a program, whose runs this session's interruption ends.
    fn open(&self, number: usize) -> Result<of_runtime::Session, Diagnostics> {
        let session = match &self.variables {
            Some(shared) => sharing_session(&self.plan, number, &self.options, &self.backends, shared),
            None => program_session(Arc::clone(&self.plan), number, &self.options, &self.backends),
        }?;
        let interrupt = Arc::clone(&self.interrupt);
        session.canceller().poll_with(Box::new(move || interrupt.ends_run()));
        Ok(session)
    }

    fn program(&self, inputs: &[Value]) -> Result<(usize, Cow<'_, Program>), Diagnostics> {
        if !self.plan.plan().meshes.is_empty() {
            return Ok((0, numbered_entry_point(&self.plan, self.mesh)?));
        }
        let number = find_program(&self.plan, inputs)?;
        Ok((number, Cow::Borrowed(&self.plan.plan().programs[number])))
    }

    /// The values of the inputs, in the order of the model.
    fn inputs(&self, given: &Bound<'_, PyDict>, owners: &mut Vec<Py<PyAny>>) -> PyResult<Vec<Value>> {
        let py = given.py();
        let program = numbered_entry_point(&self.plan, self.mesh).map_err(|e| raised(py, &e))?;
        let mut values = Vec::with_capacity(program.inputs.len());
        for port in &program.inputs {
            let Some(value) = given.get_item(&port.name)? else {
                let what = format!("no value for input '{}'", port.name);
                return Err(input_error(py, what, None));
            };
            values.push(to_value(&value, port.dtype(), owners)?);
        }
        if given.len() != program.inputs.len() {
            let known = |name: &str| self.names.iter().any(|n| n == name);
            let unknown = given.keys().iter().map(|key| key.to_string()).find(|name| !known(name));
            let what = format!("the model has no input '{}'", unknown.unwrap_or_default());
            return Err(input_error(py, what, Some(&format!("its inputs are {}", self.names.join(", ")))));
        }
        Ok(values)
    }

    /// For each output, where its result goes, and the value for the run.
    fn rooms(
        &self,
        py: Python<'_>,
        program: &Program,
        given: Option<&Bound<'_, PyDict>>,
        owners: &mut Vec<Py<PyAny>>,
    ) -> PyResult<Vec<(Room, Value)>> {
        let mesh = !self.plan.plan().meshes.is_empty();
        let mut rooms = Vec::with_capacity(program.outputs.len());
        for port in &program.outputs {
            let own = given.map(|given| given.get_item(&port.name)).transpose()?.flatten();
            let dense = !port.object && port.dtype().bits() >= 8 && !mesh;
            let array = match own {
                Some(array) => array,
                None if dense => Numpy::get(py)?.empty(py, port.dtype(), &port.dims)?,
                None => {
                    rooms.push((Room::Made, Value::Optional(None)));
                    continue;
                }
            };
            let view = View::of(&array)?.filter(|view| view.is_dense && view.is_writable);
            let Some(view) = view.filter(|view| view.dtype == Some(port.dtype()) && port.dtype().bits() >= 8) else {
                let what = format!(
                    "the array for output '{}' is not a writable row-major array of {}",
                    port.name,
                    numpy::name(port.dtype())
                );
                return Err(input_error(py, what, None));
            };
            if !dense {
                rooms.push((Room::CopiedTo(array.unbind(), view), Value::Optional(None)));
                continue;
            }
            if view.dims != port.dims {
                let what = format!(
                    "the array for output '{}' has shape {:?} and must have {:?}",
                    port.name, view.dims, port.dims
                );
                return Err(input_error(py, what, None));
            }
            let tensor = Tensor::new(port.dtype(), view.dims.as_slice(), view.external());
            let tensor = tensor.map_err(|e| input_error(py, e.to_string(), None))?;
            owners.extend(view.owners);
            rooms.push((Room::Array(array.unbind()), tensor.into()));
        }
        if let Some(unknown) = given.and_then(|given| {
            let known = |name: &str| program.outputs.iter().any(|port| port.name == name);
            given.keys().iter().map(|key| key.to_string()).find(|name| !known(name))
        }) {
            return Err(input_error(py, format!("the model has no output '{unknown}'"), None));
        }
        Ok(rooms)
    }

    /// Executes a program, without Python's lock.
    fn execute(
        &self,
        number: usize,
        main: bool,
        inputs: &mut Vec<Value>,
        outputs: &mut Vec<Value>,
    ) -> Result<(), Failure> {
        let mut executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        self.interrupt.executed_by_main(main);
        if let Some(ranks) = &self.ranks {
            *outputs = ranks.run(std::mem::take(inputs), &self.interrupt)?;
            return Ok(());
        }
        let session = match executors.programs.entry(number) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(self.open(number)?),
        };
        match session.run_into(inputs, outputs) {
            Ok(()) => Ok(()),
            Err(RunError::Cancelled) => Err(Failure::Cancelled),
            Err(e) => {
                // A session that failed for good is made again by the next run.
                if matches!(e, RunError::Panic { .. } | RunError::Internal(_) | RunError::Poisoned(_)) {
                    executors.programs.remove(&number);
                }
                Err(Failure::Wrong(run_error(&e)))
            }
        }
    }
}

/// Why a run failed.
pub enum Failure {
    Cancelled,
    Wrong(Diagnostics),
}

impl From<Diagnostics> for Failure {
    fn from(list: Diagnostics) -> Self {
        Failure::Wrong(list)
    }
}

#[pymethods]
impl Session {
    /// Opens a session of a plan.
    #[new]
    #[pyo3(signature = (plan, *, threads = 0, memory = None, variables = None, ranks = None, entry_point = None, join_timeout = 60.0, peer_timeout = 10.0, tls = false))]
    #[allow(clippy::too_many_arguments, reason = "they are arguments by name of a Python class")]
    fn new(
        py: Python<'_>,
        plan: &Bound<'_, Plan>,
        threads: usize,
        memory: Option<u64>,
        variables: Option<&Bound<'_, Variables>>,
        ranks: Option<u32>,
        entry_point: Option<&str>,
        join_timeout: f64,
        peer_timeout: f64,
        tls: bool,
    ) -> PyResult<Session> {
        let plan = Arc::clone(&plan.get().file);
        let options = SessionOptions { threads, memory, ..SessionOptions::default() };
        let mesh = entry_point.map_or(Ok(0), |name| named_mesh(&plan, name)).map_err(|e| raised(py, &e))?;
        let first = numbered_entry_point(&plan, mesh).map_err(|e| raised(py, &e))?;
        let names = first.inputs.iter().map(|p| p.name.clone()).collect();
        drop(first);
        let (backends, interrupt, executors) = (Backends::builtin(), Arc::<Interrupt>::default(), Mutex::default());
        let variables = match variables.map(Bound::get) {
            Some(shared) if !Arc::ptr_eq(&shared.plan, &plan) => {
                let hint = "make both sessions from one Plan object";
                return Err(input_error(py, "the variables are those of another plan", Some(hint)));
            }
            // The ranks of a mesh have theirs.
            Some(Variables { values: Values::Ranks(_), .. }) => {
                let hint = "use one session for both";
                return Err(input_error(py, "sessions on a mesh do not share variables", Some(hint)));
            }
            Some(Variables { values: Values::One(shared), .. }) => Some(Arc::clone(shared)),
            Some(Variables { values: Values::None, .. }) | None => None,
        };
        let ranks = match ranks {
            Some(count) => {
                let (connections, worker) = (Connections::of(join_timeout, peer_timeout, tls)?, ranks::worker(py)?);
                let started = py.detach(|| Ranks::processes(&plan, mesh, &options, (count, worker), &connections));
                Some(Arc::new(started.map_err(|e| raised(py, &e))?))
            }
            None if plan.plan().meshes.is_empty() => None,
            None => Some(Arc::new(Ranks::threads(&plan, mesh, &options, &interrupt))),
        };
        let mut session = Session { plan, options, backends, interrupt, variables, mesh, ranks, executors, names };
        if let Some(program) = session.opened_first() {
            let opened = py.detach(|| session.open(program)).map_err(|e| raised(py, &e))?;
            session.variables = opened.variables().cloned();
            session.executors.lock().unwrap_or_else(PoisonError::into_inner).programs.insert(program, opened);
        }
        Ok(session)
    }

    /// Runs the plan. Returns the outputs by name.
    #[pyo3(signature = (inputs, outputs = None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyDict>,
        outputs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (results, program) = self.results(py, inputs, outputs)?;
        let named = PyDict::new(py);
        for (port, result) in program.outputs.iter().zip(results) {
            named.set_item(&port.name, result)?;
        }
        Ok(named)
    }

    /// As `run`; returns the outputs in the order of the model.
    #[pyo3(signature = (inputs, outputs = None))]
    fn run_list<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyDict>,
        outputs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.results(py, inputs, outputs)?.0)
    }

    /// As `run_list`, for values as DLPack capsules in the order of the model.
    #[pyo3(signature = (inputs, outputs))]
    fn run_capsules<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<Bound<'py, PyAny>>,
        outputs: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let row_major = || input_error(py, "a tensor is not row-major", Some("make it contiguous"));
        let shared =
            |capsule: &Bound<'py, PyAny>, writable| Shared::of_capsule(capsule, writable)?.ok_or_else(row_major);
        let value = |shared: Shared| -> PyResult<Value> {
            let tensor = Tensor::new(shared.dtype, shared.dims, shared.bytes);
            Ok(tensor.map_err(|e| input_error(py, e.to_string(), None))?.into())
        };
        // The capsules of the caller keep the memory alive.
        let mut values = inputs.iter().map(|i| value(shared(i, false)?)).collect::<PyResult<Vec<_>>>()?;
        let (number, program) = self.program(&values).map_err(|e| raised(py, &e))?;
        let mut rooms = Vec::with_capacity(outputs.len());
        for (output, port) in outputs.iter().zip(&program.outputs) {
            if output.is_none() {
                rooms.push(Value::Optional(None));
                continue;
            }
            let room = shared(output, true)?;
            if port.object || room.dtype != port.dtype() || room.dims != port.dims {
                let what = format!("the tensor for output '{}' has another type: {:?}", port.name, room.dims);
                return Err(input_error(py, what, Some(&format!("it is {}", port.type_text(&program)))));
            }
            rooms.push(value(room)?);
        }
        let main = is_main_thread(py)?;
        let run = || self.interrupt.during(|| self.execute(number, main, &mut values, &mut rooms));
        py.detach(run).map_err(|failure| self.exception(py, failure))?;
        let made = rooms.into_iter().zip(&outputs).map(|(value, output)| match (output.is_none(), value) {
            (false, _) => Ok(None),
            (true, Value::Tensor(tensor)) => {
                let (dtype, dims) = (tensor.dtype(), tensor.dims().to_vec());
                export(py, dtype, &dims, tensor.into_bytes().unwrap_or_default()).map(Some)
            }
            (true, _) => Err(input_error(py, "a result is no tensor", None)),
        });
        made.collect()
    }

    /// The values that stay in the session between runs, by name.
    #[getter]
    fn variables(&self) -> Variables {
        let values = match (&self.ranks, &self.variables) {
            (Some(ranks), _) => Values::Ranks(Arc::clone(ranks)),
            (None, Some(shared)) => Values::One(Arc::clone(shared)),
            (None, None) => Values::None,
        };
        Variables { plan: Arc::clone(&self.plan), values }
    }

    /// Ends the runs of this session that are in progress, from another thread.
    fn cancel(&self) {
        self.interrupt.cancel();
    }
}

impl Session {
    /// The program that a new session opens. A plan of one program that this machine cannot execute is an error then and not
    /// in the first run. Where there are variables, all programs share those of the first.
    fn opened_first(&self) -> Option<usize> {
        let plan = self.plan.plan();
        let mut entry_points = plan.programs.iter().enumerate().filter(|(_, program)| !program.inner);
        let (first, program) = entry_points.next().filter(|_| plan.meshes.is_empty())?;
        (entry_points.next().is_none() || !program.variables.is_empty()).then_some(first)
    }

    /// The exception for a failed run.
    fn exception(&self, py: Python<'_>, failure: Failure) -> PyErr {
        match failure {
            Failure::Wrong(list) => raised(py, &list),
            Failure::Cancelled => {
                let cancelled = || raised(py, &error(of_diag::Code::RUN, RunError::Cancelled.to_string()).into());
                self.interrupt.take_raised().unwrap_or_else(cancelled)
            }
        }
    }

    fn results<'py>(
        &self,
        py: Python<'py>,
        given: &Bound<'py, PyDict>,
        rooms: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Cow<'_, Program>)> {
        let mut owners = Vec::new();
        let mut inputs = self.inputs(given, &mut owners)?;
        let (number, program) = self.program(&inputs).map_err(|e| raised(py, &e))?;
        let (rooms, mut outputs): (Vec<Room>, Vec<Value>) =
            self.rooms(py, &program, rooms, &mut owners)?.into_iter().unzip();
        let main = is_main_thread(py)?;
        let run = || self.interrupt.during(|| self.execute(number, main, &mut inputs, &mut outputs));
        py.detach(run).map_err(|failure| self.exception(py, failure))?;
        drop(inputs);
        let results = rooms.into_iter().zip(outputs).zip(&program.outputs).map(|((room, value), port)| match room {
            Room::Array(array) => Ok(array.into_bound(py)),
            Room::Made => from_value(py, value),
            Room::CopiedTo(array, view) => {
                let tensor = value.as_tensor().filter(|t| t.dims() == view.dims && t.dtype() == port.dtype());
                let Some(bytes) = tensor.and_then(Tensor::bytes) else {
                    let got = value.as_tensor().map_or("no tensor".into(), |t| format!("{:?}", t.dims()));
                    let what =
                        format!("the array for output '{}' has shape {:?}, and the result {got}", port.name, view.dims);
                    return Err(input_error(py, what, None));
                };
                view.fill(bytes);
                Ok(array.into_bound(py))
            }
        });
        let results = results.collect::<PyResult<Vec<_>>>()?;
        drop(owners);
        Ok((results, program))
    }
}
