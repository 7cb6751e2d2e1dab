//! Executables: code that a backend loads from the plan's payload and the runtime calls.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use of_plan::{BackendExec, ElementType, Exec, Program, Task};

use crate::{RankContext, Value};

/// A dense tensor in borrowed memory.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    /// Element type.
    pub dtype: ElementType,
    /// Extents.
    pub dims: &'a [i64],
    /// Row-major elements.
    pub bytes: &'a [u8],
}

/// A dense tensor in someone else's memory, to be filled.
#[derive(Debug)]
pub struct TensorMut<'a> {
    /// Element type.
    pub dtype: ElementType,
    /// Extents.
    pub dims: &'a [i64],
    /// Row-major elements; what they hold before is not defined.
    pub bytes: &'a mut [u8],
}

/// An input of an executable.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// Memory that the plan laid out.
    Dense(TensorRef<'a>),
    /// A value that the runtime owns.
    Object(&'a Value),
}

/// An output of an executable.
#[derive(Debug)]
pub enum ValueMut<'a> {
    /// Memory that the plan laid out; all of it must be filled, unless all readers have a handle ([`Executable::handle`]).
    Dense(TensorMut<'a>),
    /// A value that the runtime will own; it must be set.
    Object(&'a mut Option<Value>),
}

/// A handle of a value that an executable leaves in its backend's memory, such as a device's. Its type is known to the
/// backend only.
pub type Handle = Arc<dyn Any + Send + Sync>;

/// The memory of a backend for the value of a variable. Its executables use it through the handle ([`LoadContext`]).
pub trait DeviceVariable: Send + Sync {
    /// The handle by which executables of the backend find it.
    fn handle(&self) -> Handle;

    /// Sets the value. No executable uses it meanwhile.
    ///
    /// # Errors
    /// When the device fails.
    fn upload(&self, bytes: &[u8]) -> Result<(), ExecError>;

    /// Reads the value. No executable changes it meanwhile.
    ///
    /// # Errors
    /// When the device fails.
    fn download(&self, bytes: &mut [u8]) -> Result<(), ExecError>;
}

/// The kinds of readers of an executable's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    /// Executables of the same backend, which receive its handle if there is one.
    pub inside: bool,
    /// Other tasks, which read it in host memory.
    pub outside: bool,
}

/// The time of a step that an executable ran on its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// What the step does.
    pub name: String,
    /// How long it took, by the device's clock.
    pub time: Duration,
}

/// Code that a backend loaded. It belongs to one task and is called by one thread at a time.
pub trait Executable: Send {
    /// Computes the outputs from the inputs, which come in the order of the plan.
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError>;

    /// The handle of an output, by its number: other executables of the backend that read the output must read it by this, so
    /// that it need not be filled where no other task reads it ([`LoadContext::readers`]).
    fn handle(&self, _output: usize) -> Option<Handle> {
        None
    }

    /// The steps of the last run, in order, with their times by the device's clock. Empty unless the loader was asked to
    /// measure them. The steps may differ between runs.
    fn step_times(&self) -> &[StepTime] {
        &[]
    }

    /// Its asynchronous interface, if it has one: then it is begun and ended instead of run. The answer never changes.
    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        None
    }
}

/// The completion callback of asynchronous work, successful or not. It is called once, from any thread.
pub type OnComplete = Arc<dyn Fn() + Send + Sync>;

/// An executable with asynchronous work, such as that of a device. Meanwhile its actor thread executes independent tasks. An
/// executable that is dropped with work in flight waits for it or cancels it.
pub trait AsyncExecutable {
    /// Launches the work and returns. The inputs have been read by then, so their memory may be reused. `on_complete` is
    /// called when the work completes. After an error nothing was launched.
    ///
    /// Inputs and outputs that executables of the backend pass by handle only have no bytes. The consumer of such a value may
    /// begin before its producer completes; its work then waits for the producer's on the device.
    fn begin(&mut self, inputs: &[ValueRef<'_>], on_complete: &OnComplete) -> Result<(), ExecError>;

    /// Fills the outputs with the results of the work, or returns its error. It waits for the work if that is still in flight.
    fn end(&mut self, outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError>;
}

/// The context in which a loader loads an executable.
#[derive(Clone, Copy, Debug)]
pub struct LoadContext<'a> {
    /// The program.
    pub program: &'a Program,
    /// The task.
    pub task: &'a Task,
    /// What the task runs.
    pub exec: &'a BackendExec,
    /// Worker threads that the session has.
    pub threads: usize,
    /// Which device it is for, where the machine has several: the number of the rank, 0 without ranks. A backend whose
    /// machine has fewer counts on from its first.
    pub device: usize,
    /// Where the program is one of several ranks: what an executable that does transfers needs. Ranks load at the same time,
    /// each on its own thread, in the order of its tasks, so a loader may hold a rendezvous.
    pub rank_context: Option<&'a RankContext>,
    /// For each input, the handle of it that another executable of the backend gave ([`Executable::handle`]), or that of a
    /// variable that the backend keeps ([`Loader::variables`]).
    pub handles: &'a [Option<Handle>],
    /// For each output that is the next value of a variable, the handle of that variable: the value must be left there.
    pub output_handles: &'a [Option<Handle>],
}

impl LoadContext<'_> {
    /// The readers of an output, by its number. An object, or a register with several copies, counts as read by other tasks.
    pub fn readers(&self, output: usize) -> Readers {
        let register = self.exec.outputs.get(output).and_then(|id| self.program.registers.get(*id as usize));
        let Some(register) = register.filter(|r| r.copies == 1 && r.block().is_some()) else {
            return Readers { inside: false, outside: true };
        };
        let inside = |t: &&Task| matches!(&t.exec, Some(Exec::Backend(e)) if e.backend == self.exec.backend);
        let readers = || self.program.tasks.iter().filter(|t| register.consumers.contains(&t.id));
        Readers { inside: readers().any(|t| inside(&t)), outside: readers().any(|t| !inside(&t)) }
    }
}

/// Converts payload bytes into executables; registered when a session is made.
pub trait Loader: Send + Sync {
    /// The backend's name, as plans write it.
    fn backend(&self) -> &str;

    /// Memory of the backend for variables of so many bytes each, which executables such as that of the payload keep there; `None`
    /// where they take variables from the host.
    ///
    /// # Errors
    /// When there is no such device, or it has too little memory.
    fn variables(
        &self,
        _payload: &[u8],
        _device: usize,
        _bytes: &[u64],
    ) -> Result<Option<Vec<Arc<dyn DeviceVariable>>>, LoadError> {
        Ok(None)
    }

    /// Loads an executable.
    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError>;
}

/// Why an executable could not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The inputs need something that the backend does not support.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The inputs break a rule of an op, such as an index out of range.
    #[error("bad input: {0}")]
    Input(String),
    /// A value takes more memory than is left of the budget.
    #[error("{0}")]
    Memory(String),
    /// Another rank failed, so that this one stopped.
    #[error("another rank stopped")]
    Stopped,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// Why an executable could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The payload needs something that the backend does not support on this machine.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The payload is not what the backend wrote.
    #[error("malformed payload: {0}")]
    Payload(String),
    /// Another rank failed to load, so that this one stopped.
    #[error("another rank stopped")]
    Stopped,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}
