//! Executables: code that a backend loads from the plan's payload and the runtime calls.

use std::any::Any;
use std::sync::Arc;

use of_plan::{BackendExec, ElementType, Exec, Program, Task};

use crate::{RankContext, Value};

/// A dense tensor in someone else's memory.
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
    /// Memory that the plan laid out; all of it must be filled, unless all who read it have a handle ([`Executable::handle`]).
    Dense(TensorMut<'a>),
    /// A value that the runtime will own; it must be set.
    Object(&'a mut Option<Value>),
}

/// A handle of a value that an executable leaves where its backend computes, such as a device's memory. What it is, is the
/// backend's own affair.
pub type Handle = Arc<dyn Any + Send + Sync>;

/// Who reads an output of an executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readers {
    /// Executables of the same backend: they get the handle of it, if there is one.
    pub inside: bool,
    /// Anybody else, who finds it in the memory of the host.
    pub outside: bool,
}

/// Code that a backend loaded. It belongs to one task and is called by one thread at a time.
pub trait Executable: Send {
    /// Computes the outputs from the inputs, which come in the order of the plan.
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError>;

    /// The handle of an output, by its number: other executables of the backend that read the output must read it by this, so
    /// that it need not be filled where nobody else reads it ([`LoadContext::readers`]).
    fn handle(&self, _output: usize) -> Option<Handle> {
        None
    }

    /// Itself, where its work goes on beside the host: then it is begun and ended rather than run. It says the same every time.
    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        None
    }
}

/// Says that work which was begun is over, well or not; from any thread, once.
pub type OnComplete = Arc<dyn Fn() + Send + Sync>;

/// An executable whose work goes on beside the host, such as a device's. While it does, its thread does what need not wait for
/// it. An executable that is dropped meanwhile waits for its work or gives it up.
pub trait AsyncExecutable {
    /// Puts the work on its way and comes back. The inputs are read by then: they may be others' afterwards. `over` is called
    /// once the work is over, unless this is an error, after which nothing is on its way.
    ///
    /// Inputs and outputs that executables of the backend hand on by a handle alone have no bytes: the one that reads such a
    /// value may be begun before the one that makes it is over, and has its work wait for the other's where they compute.
    fn begin(&mut self, inputs: &[ValueRef<'_>], over: &OnComplete) -> Result<(), ExecError>;

    /// Fills the outputs with what the work made, or says why it failed. It waits for the work if that is not over.
    fn end(&mut self, outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError>;
}

/// What a loader may want to know of the task that it loads an executable for.
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
    /// each on its own thread, and come to their tasks in order, so that they may meet there.
    pub rank_context: Option<&'a RankContext>,
    /// For each input, the handle of it that another executable of the backend gave ([`Executable::handle`]).
    pub handles: &'a [Option<Handle>],
}

impl LoadContext<'_> {
    /// Who reads an output, by its number. A value that is no dense tensor of one place is left to anybody.
    pub fn readers(&self, output: usize) -> Readers {
        let regst = self.exec.outputs.get(output).and_then(|id| self.program.regsts.get(*id as usize));
        let Some(regst) = regst.filter(|r| r.num == 1 && r.block().is_some()) else {
            return Readers { inside: false, outside: true };
        };
        let inside = |t: &&Task| matches!(&t.exec, Some(Exec::Backend(e)) if e.backend == self.exec.backend);
        let readers = || self.program.tasks.iter().filter(|t| regst.consumers.contains(&t.id));
        Readers { inside: readers().any(|t| inside(&t)), outside: readers().any(|t| !inside(&t)) }
    }
}

/// Turns payload bytes into executables; registered when a session is made.
pub trait Loader: Send + Sync {
    /// The backend's name, as plans write it.
    fn backend(&self) -> &str;

    /// Loads an executable.
    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError>;
}

/// Why an executable could not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The inputs ask for something that the backend does not do.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The inputs break a rule of an op, such as an index out of range.
    #[error("bad input: {0}")]
    Input(String),
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
    /// The payload asks for something that the backend does not do on this machine.
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
