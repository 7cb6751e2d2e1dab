//! Errors of sessions and runs.

use std::any::Any;

use of_plan::Finding;

use crate::{ExecError, LoadError, ValueError};

/// Why a session could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The plan has no such program.
    #[error("the plan has {count} programs and no number {index}")]
    Program {
        /// The requested number.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The plan does not verify.
    #[error("the plan does not verify: {}{}", .0[0], if .0.len() > 1 { format!(" (and {} more)", .0.len() - 1) } else { String::new() })]
    Invalid(Vec<Finding>),
    /// The plan is for another kind of processor.
    #[error("the plan is for {plan} and this machine is {machine}; compile the model for this machine")]
    Arch {
        /// The architecture of the plan.
        plan: String,
        /// The architecture of the machine.
        machine: &'static str,
    },
    /// The processor lacks a feature.
    #[error(
        "the plan's kernels need the CPU feature `{feature}`, which this machine lacks; compile the model for this machine"
    )]
    CpuFeature {
        /// The feature.
        feature: String,
    },
    /// The host of WebAssembly refuses a kernel.
    #[error(
        "the host refuses the module of kernel `{kernel}`; it may lack vectors of 128 bits (SIMD), or its console has the reason"
    )]
    Module {
        /// The kernel.
        kernel: String,
    },
    /// The plan is for several ranks.
    #[error("the plan is for {ranks} ranks, and this session is one")]
    Ranks {
        /// How many ranks.
        ranks: u32,
    },
    /// The plan has no such mesh.
    #[error("the plan has {count} meshes and no number {index}")]
    Mesh {
        /// The requested number.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The mesh has no such rank.
    #[error("the mesh has {count} ranks and no number {rank}")]
    Rank {
        /// The requested rank.
        rank: usize,
        /// How many there are.
        count: usize,
    },
    /// A task takes part in a rendezvous, and there are no other ranks.
    #[error("the program is one rank's, and runs only together with those of the other ranks")]
    Alone,
    /// A transfer combines elements that do not combine, or that do not fit their buffers.
    #[error("task `{task}` cannot combine partial values of {dtype}")]
    Combine {
        /// The task.
        task: String,
        /// The element type.
        dtype: &'static str,
    },
    /// A task needs a backend that was not registered.
    #[error(
        "task {task} has no native code: it needs the backend `{backend}`, and this program has {available}; 'of-opt compile \
         --require-native' refuses such a model, and says why"
    )]
    Backend {
        /// The task, and the ops that it comes from.
        task: String,
        /// The backend.
        backend: String,
        /// The registered backends, as text.
        available: String,
    },
    /// A backend could not load an executable.
    #[error("backend `{backend}` cannot load task `{task}`: {source}")]
    Load {
        /// The task.
        task: String,
        /// The backend.
        backend: String,
        /// The underlying error.
        source: LoadError,
    },
    /// The machine code that would run is not what the plan's structure names.
    #[error(
        "the machine code of kernel `{kernel}` does not match its hash in the plan: the plan was changed after it was compiled, or \
         while it was read; compile the model again"
    )]
    Code {
        /// Name of the kernel.
        kernel: String,
    },
    /// A constant of text is malformed.
    #[error("weight `{weight}` is no list of as many strings as its extents say")]
    Strings {
        /// The weight.
        weight: String,
    },
    /// The values take more memory than they may.
    #[error("the values take {needed} of memory, and the budget is {budget}; the largest: {largest}")]
    MemoryBudget {
        /// What they take, with a unit.
        needed: String,
        /// What they may take, with a unit.
        budget: String,
        /// The largest values: name, type, bytes, place.
        largest: String,
    },
    /// Sessions cannot share variables, or a plan's do not fit.
    #[error("the variables do not match: {0}")]
    Variables(String),
    /// Memory could not be allocated.
    #[error("cannot get {bytes} bytes of memory for {what}: {source}")]
    Memory {
        /// The use of the memory.
        what: String,
        /// Number of bytes.
        bytes: u64,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Why a run gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Several runs at once of a program whose memory is planned for one.
    #[error("program `{program}` is not pipelined: its memory is planned for one run at a time")]
    NotPipelined {
        /// The program.
        program: String,
    },
    /// Too many or too few inputs.
    #[error("the program takes {expected} inputs ({names}) and {got} were given")]
    InputCount {
        /// How many it takes.
        expected: usize,
        /// Their names.
        names: String,
        /// How many were given.
        got: usize,
    },
    /// An input has the wrong type.
    #[error("input `{input}` (number {index}) {problem}")]
    Input {
        /// Name of the input.
        input: String,
        /// Its number.
        index: usize,
        /// What does not fit: expected and got.
        problem: String,
    },
    /// A variable has no value, another type, or does not exist.
    #[error("variable `{name}` {problem}")]
    Variable {
        /// Name of the variable.
        name: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The caller's output buffers are not as many as the outputs.
    #[error("the program gives {expected} outputs and room for {got} was given")]
    OutputCount {
        /// How many it gives.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// A task failed. The session can run again.
    #[error("task `{task}` failed{place}: {source}")]
    Task {
        /// The task.
        task: String,
        /// ` at ` and the locations of its ops, or nothing.
        place: String,
        /// The underlying error.
        source: ExecError,
    },
    /// A task panicked. The session cannot run again.
    #[error("task `{task}` panicked: {message}")]
    Panic {
        /// The task.
        task: String,
        /// The underlying error.
        message: String,
    },
    /// A task gave a value that its register cannot hold, or none.
    #[error("task `{task}` gave register `{register}` {problem}")]
    Output {
        /// The task.
        task: String,
        /// The register.
        register: String,
        /// What is wrong.
        problem: String,
    },
    /// The caller ended the run. The session can run again.
    #[error("the run was cancelled")]
    Cancelled,
    /// Another rank failed, so that this one stopped.
    #[error("another rank stopped")]
    Stopped,
    /// Another process failed, so that this one stopped: which rank, and how.
    #[error("{0}")]
    Peer(String),
    /// A rank failed, and all others stopped.
    #[error("rank {rank}: {source}")]
    Rank {
        /// The rank.
        rank: u32,
        /// Its error.
        source: Box<RunError>,
    },
    /// The session cannot run again after an earlier failure.
    #[error("the session cannot run again after an earlier failure ({0}); make a new one")]
    Poisoned(String),
    /// An invariant of the runtime does not hold.
    #[error("internal error of the runtime: {0}")]
    Internal(String),
}

impl From<ValueError> for ExecError {
    fn from(error: ValueError) -> Self {
        ExecError::Failed(error.to_string())
    }
}

/// The message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
