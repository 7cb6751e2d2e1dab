//! Sessions: setting inputs and outputs, running, and looking at results.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use of_plan::{ElementType, PlanFile};
use of_runtime::{Canceller, Options, RunError, Tensor as OwnTensor, Value, Variables};

use crate::abi::{SessionOptions, Status, Tensor};
use crate::error::{Error, error, guarded, null, unknown};
use crate::memory::{external, put, reference, shape, strings};
use crate::plan::Plan;

/// A session with the values of its inputs and outputs. One thread at a time uses it.
pub struct Session {
    /// The plan, whose sessions may share variables.
    plan: Arc<PlanFile>,
    /// The values that stay between runs; `None` where the program has no variables.
    pub variables: Option<Arc<Variables>>,
    canceller: RunCanceller,
    state: Mutex<State>,
}

/// What ends the runs of a session.
enum RunCanceller {
    One(Arc<Canceller>),
    #[cfg(feature = "ranks")]
    Ranks(of_transport::GroupCanceller),
}

impl RunCanceller {
    fn set(&self, cancelled: bool) {
        match self {
            RunCanceller::One(canceller) => canceller.set(cancelled),
            #[cfg(feature = "ranks")]
            RunCanceller::Ranks(canceller) if cancelled => canceller.cancel(),
            // Ranks that have ended cannot run again.
            #[cfg(feature = "ranks")]
            RunCanceller::Ranks(_) => {}
        }
    }
}

pub struct State {
    pub executor: Executor,
    inputs: Vec<Value>,
    /// For each input, whether it is set.
    given: Vec<bool>,
    outputs: Vec<Value>,
    /// For each output, the caller's buffer for it.
    buffers: Vec<Option<Buffer>>,
    /// Whether `outputs` holds the results of a run.
    has_run: bool,
}

/// The caller's memory for an output.
struct Buffer {
    data: *mut u8,
    len: usize,
    /// Whether it holds the last result.
    filled: bool,
}

// SAFETY: the caller promises that no other thread uses the memory while a call lasts.
unsafe impl Send for Buffer {}

impl Session {
    /// A session of ranks that are processes.
    #[cfg(feature = "ranks")]
    pub fn of_ranks(plan: Arc<PlanFile>, ranks: crate::ranks::Ranks) -> Session {
        let canceller = RunCanceller::Ranks(ranks.canceller());
        let state = Mutex::new(State::new(Executor::Ranks(Box::new(ranks))));
        Session { plan, variables: None, canceller, state }
    }

    /// The state, which is this call's until it ends.
    pub fn state(&self) -> Result<MutexGuard<'_, State>, Error> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::WouldBlock) => Err(error(Status::Busy, "another thread uses the session")),
            Err(TryLockError::Poisoned(_)) => Err(error(Status::Internal, "the session panicked; make a new one")),
        }
    }
}

/// What executes the program of a session.
pub enum Executor {
    One(Box<of_runtime::Session>),
    #[cfg(feature = "ranks")]
    Ranks(Box<crate::ranks::Ranks>),
}

impl Executor {
    pub fn program(&self) -> &of_plan::Program {
        match self {
            Executor::One(session) => session.program(),
            #[cfg(feature = "ranks")]
            Executor::Ranks(ranks) => ranks.program(),
        }
    }

    fn new_outputs(&self) -> Vec<Value> {
        match self {
            Executor::One(session) => session.new_outputs(),
            #[cfg(feature = "ranks")]
            Executor::Ranks(ranks) => ranks.program().outputs.iter().map(|_| Value::Optional(None)).collect(),
        }
    }

    /// Whether a run writes an output of fixed extents to the caller's memory itself.
    fn writes_in_place(&self) -> bool {
        match self {
            Executor::One(_) => true,
            #[cfg(feature = "ranks")]
            Executor::Ranks(_) => false,
        }
    }

    fn run_into(&mut self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<(), RunError> {
        match self {
            Executor::One(session) => session.run_into(inputs, outputs),
            #[cfg(feature = "ranks")]
            Executor::Ranks(ranks) => {
                outputs.iter_mut().zip(ranks.run(inputs)?).for_each(|(to, value)| *to = value);
                Ok(())
            }
        }
    }
}

impl State {
    pub fn new(executor: Executor) -> Self {
        let inputs = executor.program().inputs.len();
        let outputs = executor.new_outputs();
        let buffers = outputs.iter().map(|_| None).collect();
        let inputs = (vec![Value::Optional(None); inputs], vec![false; inputs]);
        Self { executor, inputs: inputs.0, given: inputs.1, outputs, buffers, has_run: false }
    }

    /// The port of an input.
    fn input(&self, index: usize) -> Result<&of_plan::Port, Error> {
        let inputs = &self.executor.program().inputs;
        inputs.get(index).ok_or_else(|| unknown("input", index, inputs.len()))
    }

    /// Sets an input, if its type fits.
    pub fn set_input(&mut self, index: usize, value: Value) -> Result<(), Error> {
        let port = self.input(index)?;
        port.accepts(value.input_dims(), self.executor.program()).map_err(|problem| RunError::Input {
            input: port.name.clone(),
            index,
            problem,
        })?;
        (self.inputs[index], self.given[index]) = (value, true);
        Ok(())
    }

    /// Sets the memory of an output, or removes it.
    ///
    /// # Safety
    /// `data` is null or points to `len` bytes that stay valid until other memory is set.
    unsafe fn set_output(&mut self, index: usize, data: *mut c_void, len: usize) -> Result<(), Error> {
        let ports = &self.executor.program().outputs;
        let port = ports.get(index).ok_or_else(|| unknown("output", index, ports.len()))?;
        if port.dtype().bits() == 0 {
            let what =
                format!("output `{}` is {}, which has no bytes", port.name, port.type_text(self.executor.program()));
            return Err(error(Status::Unsupported, what));
        }
        if data.is_null() {
            let room = self.executor.new_outputs().into_iter().nth(index);
            (self.outputs[index], self.buffers[index]) = (room.unwrap_or(Value::Optional(None)), None);
            self.has_run = false;
            return Ok(());
        }
        // SAFETY: the caller promises it.
        let bytes = unsafe { external(data, len, port.dtype(), true) }?;
        // A value of fixed extents is written there by the run itself, and another one is copied after it.
        let value = match port.object || !self.executor.writes_in_place() {
            false => Value::Tensor(OwnTensor::new(port.dtype(), port.dims.as_slice(), bytes)?),
            true => Value::Optional(None),
        };
        self.outputs[index] = value;
        self.buffers[index] = Some(Buffer { data: data.cast(), len, filled: false });
        self.has_run = false;
        Ok(())
    }

    fn run(&mut self) -> Result<(), Error> {
        if let Some(missing) = self.given.iter().position(|given| !given) {
            let port = &self.executor.program().inputs[missing];
            let text = port.type_text(self.executor.program());
            let what = format!("input `{}` (number {missing}) is not set; it is {text}", port.name);
            return Err(error(Status::Input, what));
        }
        self.has_run = false;
        self.executor.run_into(&mut self.inputs, &mut self.outputs)?;
        self.has_run = true;
        self.fill_buffers()
    }

    /// Copies results of open extents to the caller's buffers.
    fn fill_buffers(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for (index, buffer) in self.buffers.iter_mut().enumerate() {
            let (Some(buffer), Some(tensor)) = (buffer, self.outputs[index].as_tensor()) else { continue };
            let Some(bytes) = tensor.bytes() else { continue };
            buffer.filled = bytes.len() <= buffer.len;
            if !buffer.filled {
                let name = &self.executor.program().outputs[index].name;
                let text = format!("output `{name}` has {} bytes, and its buffer {}", bytes.len(), buffer.len);
                result = result.and(Err(error(Status::Buffer, text)));
            } else if bytes.as_ptr() != buffer.data {
                // SAFETY: the caller promised so many bytes, and they overlap no memory of the session.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.data, bytes.len()) };
            }
        }
        result
    }

    /// A result of the last run.
    pub fn output(&self, index: usize) -> Result<&Value, Error> {
        let outputs = self.outputs.len();
        if index >= outputs {
            return Err(unknown("output", index, outputs));
        }
        if !self.has_run {
            return Err(error(
                Status::InvalidArgument,
                "there are no results: the session has not run since outputs were set",
            ));
        }
        Ok(&self.outputs[index])
    }

    /// A result of the last run that is a tensor.
    fn tensor(&self, index: usize) -> Result<&OwnTensor, Error> {
        let what = || {
            let name = &self.executor.program().outputs[index].name;
            format!("output `{name}` is a sequence or an optional value: of_session_output_value has it")
        };
        self.output(index)?.as_tensor().ok_or_else(|| error(Status::Unsupported, what()))
    }
}

/// A tensor for C, in its own memory.
pub fn view(tensor: &OwnTensor) -> Tensor {
    Tensor {
        dtype: tensor.dtype() as u32,
        rank: tensor.dims().len() as u32,
        dims: tensor.dims().as_ptr(),
        data: tensor.bytes().map_or(ptr::null(), <[u8]>::as_ptr).cast_mut().cast(),
        bytes: tensor.bytes().map_or(0, <[u8]>::len),
    }
}

/// `of_session_new`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_new(
    plan: *const Plan,
    options: *const SessionOptions,
    session: *mut *mut Session,
) -> Status {
    // SAFETY: the caller passes a plan, and options or null.
    guarded(|| unsafe { give_session(plan, options, None, session) })
}

/// Gives the caller a session, which shares the variables of another one if that is given.
///
/// # Safety
/// The pointers are null, or a plan, options, and memory for a pointer.
pub unsafe fn give_session(
    plan: *const Plan,
    options: *const SessionOptions,
    other: Option<&Session>,
    session: *mut *mut Session,
) -> Result<(), Error> {
    if session.is_null() {
        return Err(null("session"));
    }
    // SAFETY: the caller promises it.
    let (plan, given) = unsafe { (reference(plan, "plan")?, options.as_ref().copied().unwrap_or_default()) };
    let program = match plan.file.plan().meshes.is_empty() {
        true => plan.entry_point(given.program)?.program,
        // Refused, with the reason.
        false => 0,
    };
    let options = Options {
        threads: given.threads as usize,
        memory: Some(given.memory).filter(|&bytes| bytes > 0),
        ..Options::default()
    };
    if other.is_some_and(|other| !Arc::ptr_eq(&other.plan, &plan.file)) {
        return Err(error(Status::InvalidArgument, "`other` is a session of another plan"));
    }
    let file = Arc::clone(&plan.file);
    let opened = match other.and_then(|other| other.variables.as_ref()) {
        Some(shared) => of_runtime::Session::sharing(file, program, options, &[], shared)?,
        None => of_runtime::Session::new(file, program, options, &[])?,
    };
    let made = Session {
        plan: Arc::clone(&plan.file),
        variables: opened.variables().cloned(),
        canceller: RunCanceller::One(Arc::clone(opened.canceller())),
        state: Mutex::new(State::new(Executor::One(Box::new(opened)))),
    };
    // SAFETY: the caller promises it.
    unsafe { put(session, "session", Box::into_raw(Box::new(made))) }
}

/// `of_session_free`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_free(session: *mut Session) {
    guarded(|| {
        if !session.is_null() {
            // SAFETY: `of_session_new` made it, and the caller frees it once.
            drop(unsafe { Box::from_raw(session) });
        }
        Ok(())
    });
}

/// `of_session_set_input`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_set_input(session: *mut Session, index: usize, tensor: *const Tensor) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session and a tensor with its extents.
        let (session, tensor) = unsafe { (reference(session, "session")?, reference(tensor, "tensor")?) };
        let mut state = session.state()?;
        // SAFETY: as above.
        let (dtype, dims) = unsafe { shape(tensor) }?;
        if dtype == ElementType::String {
            return Err(error(Status::InvalidArgument, "text is set by of_session_set_input_text"));
        }
        // SAFETY: the caller promises that the elements stay valid until others are set.
        let bytes = unsafe { external(tensor.data, tensor.bytes, dtype, false) }?;
        state.set_input(index, OwnTensor::new(dtype, dims, bytes)?.into())
    })
}

/// `of_session_set_input_text`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_set_input_text(
    session: *mut Session,
    index: usize,
    rank: u32,
    dims: *const i64,
    text: *const *const c_char,
    lengths: *const usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session.
        let mut state = unsafe { reference(session, "session") }?.state()?;
        // SAFETY: the caller passes `rank` extents, and as many strings and lengths as they say.
        let (dims, strings) = unsafe { strings(rank, dims, text, lengths) }?;
        state.set_input(index, OwnTensor::from_strings(dims, strings)?.into())
    })
}

/// `of_session_set_output`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_set_output(
    session: *mut Session,
    index: usize,
    data: *mut c_void,
    bytes: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session, and memory that stays valid until other memory is set.
        unsafe { reference(session, "session")?.state()?.set_output(index, data, bytes) }
    })
}

/// `of_session_run`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_run(session: *mut Session) -> Status {
    // SAFETY: the caller passes a session.
    guarded(|| unsafe { reference(session, "session") }?.state()?.run())
}

/// `of_session_output`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_output(session: *mut Session, index: usize, tensor: *mut Tensor) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session.
        let state = unsafe { reference(session, "session") }?.state()?;
        let mut found = view(state.tensor(index)?);
        if let Some(buffer) = state.buffers[index].as_ref().filter(|buffer| buffer.filled) {
            found.data = buffer.data.cast();
        }
        // SAFETY: the caller passes memory for a tensor.
        unsafe { put(tensor, "tensor", found) }
    })
}

/// `of_session_output_text`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_output_text(
    session: *mut Session,
    index: usize,
    element: usize,
    text: *mut *const c_char,
    length: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session.
        let state = unsafe { reference(session, "session") }?.state()?;
        let strings = state.tensor(index)?.strings();
        let strings =
            strings.ok_or_else(|| error(Status::InvalidArgument, format!("output number {index} is not text")))?;
        let string = strings.get(element).ok_or_else(|| unknown("string", element, strings.len()))?;
        // SAFETY: the caller passes memory for a pointer and a number.
        unsafe { put(text, "text", string.as_ptr().cast()).and_then(|()| put(length, "length", string.len())) }
    })
}

/// `of_session_cancel`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_cancel(session: *mut Session, cancelled: i32) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session.
        unsafe { reference(session, "session") }?.canceller.set(cancelled != 0);
        Ok(())
    })
}
