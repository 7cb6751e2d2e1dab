//! Typed options of compilation and of sessions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use of_codegen::CpuCode;
use of_codegen::Limits;
use of_codegen::toolchain::cache::Cache;
use of_diag::{Code, Diagnostics};

use crate::error::error;

/// How a model is compiled. `CompileOptions::default()` compiles for this machine's CPU.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Worker threads that the plan is scheduled for; 0 takes all cores.
    pub threads: usize,
    /// The machine that code is generated for.
    pub target: Target,
    /// Passes before code generation, as text for [`of_passes::Manager::parse`]; `None` takes the target's pipeline.
    pub pipeline: Option<String>,
    /// Whether large convolutions may use Winograd's algorithm, whose rounding errors are up to three times as large.
    pub winograd: bool,
    /// Where the machine code of kernels for the CPU comes from: from this program, or from the machine's C compiler.
    pub cpu_code: CpuCode,
    /// Whether kernels for the CPU compute with subnormal numbers. Otherwise they read and write them as zeros, because a
    /// processor takes up to a hundred times as long for an operation on one.
    pub keep_subnormals: bool,
    /// Precision of products and convolutions.
    pub precision: Precision,
    /// Sets of calibration inputs: folders as [`crate::input_files`] reads them, folders of such folders, or `NAME=FILE`.
    pub calibration: Vec<OsString>,
    /// The mesh of devices to shard the model over; `None` compiles for one rank.
    pub mesh: Option<MeshOptions>,
    /// Inputs whose values the session keeps: `OUTPUT=INPUT`, the output being the next value, or `OUTPUT=INPUT:zeros` for one
    /// that is zeros at first.
    pub variables: Vec<String>,
    /// Which backends execute which ops.
    pub placement: PlacementOptions,
    /// Whether a model is refused that needs more than the runtime, which an op without native code does: it runs on a backend.
    pub require_native: bool,
    /// Autotuning of register tiles by measurement: for how long. `Some(Duration::ZERO)` only takes the schedules that
    /// the cache holds; `None` takes the cost model's choice.
    pub tuning: Option<Duration>,
    /// The memory budget: the most bytes that the plan's values may take when it runs; `None` is this machine's memory.
    pub memory: Option<u64>,
    /// Limits on the compilation's own time and memory, checked between passes and kernels.
    pub limits: Limits,
    /// Where compiled kernels and tuned schedules are kept.
    pub cache: Cache,
    /// Whether the plan says which pass replaced which op by what.
    pub record_rewrites: bool,
    /// Folder for reproducers: the IR before a pass that fails. `None` writes none.
    pub reproducers: Option<PathBuf>,
    /// Command-line flags that the plan records as its provenance.
    pub recorded_flags: Vec<String>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            threads: 0,
            target: Target::host(),
            pipeline: None,
            winograd: true,
            cpu_code: CpuCode::default(),
            keep_subnormals: false,
            precision: Precision::Model,
            calibration: Vec::new(),
            mesh: None,
            variables: Vec::new(),
            placement: PlacementOptions::default(),
            require_native: false,
            tuning: None,
            memory: None,
            limits: Limits::default(),
            cache: Cache::user(),
            record_rewrites: false,
            reproducers: Some(std::env::temp_dir()),
            recorded_flags: Vec::new(),
        }
    }
}

impl CompileOptions {
    /// The number of worker threads: [`CompileOptions::threads`], or all cores where that is 0.
    pub fn worker_threads(&self) -> usize {
        worker_threads(self.threads)
    }
}

/// `threads`, or the number of cores where it is 0.
pub fn worker_threads(threads: usize) -> usize {
    if threads > 0 { threads } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// What code is generated for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Target {
    /// Name of the CPU's instruction set (`of_codegen::isa::ISAS`); `None` takes the best of this machine.
    pub isa: Option<String>,
    /// Architecture of the GPU that executes the whole model, such as `sm_90` or `sm_90+tf32`; `None` is the CPU.
    pub cuda: Option<String>,
}

impl Target {
    /// The CPU of this machine, with its best instruction set.
    pub fn host() -> Target {
        Target::default()
    }

    /// A CPU with the instruction set of this name.
    pub fn cpu(isa: impl Into<String>) -> Target {
        Target { isa: Some(isa.into()), cuda: None }
    }

    /// A CUDA GPU of this architecture, such as `sm_90`; it executes every op.
    pub fn cuda(arch: impl Into<String>) -> Target {
        Target { isa: None, cuda: Some(arch.into()) }
    }

    /// Parses `cpu` or `cuda:ARCH`.
    ///
    /// # Errors
    /// When the text is neither.
    pub fn parse(text: &str) -> Result<Target, Diagnostics> {
        match (text, cuda_arch(text)) {
            ("cpu", _) => Ok(Target::host()),
            (_, Some(arch)) => Ok(Target::cuda(arch)),
            _ => Err(error(Code::INPUT, format!("unknown target '{text}'"))
                .hint("choose from cpu, cuda:sm_90, cuda:emulated")
                .into()),
        }
    }
}

/// The architecture in `cuda:sm_90`.
pub(crate) fn cuda_arch(name: &str) -> Option<&str> {
    name.strip_prefix(of_cuda::NAME)?.strip_prefix(':')
}

/// Precision of products and convolutions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// The precision that the model's types state.
    #[default]
    Model,
    /// 8-bit integers, with ranges from calibration inputs; sums are exact.
    Int8,
    /// Operands rounded to bf16, sums in f32.
    Bf16,
    /// Operands rounded to f16, sums in f32.
    F16,
}

/// A mesh of devices, and how a model is sharded over it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeshOptions {
    /// `NAME[AxB]`, such as `cpu[2]`, or the path of a file that describes a mesh.
    pub mesh: String,
    /// What the sharding search chooses in addition to layouts.
    pub search: Vec<Search>,
    /// Pipeline parallelism; `None` is one stage.
    pub stages: Option<Stages>,
    /// Layouts of inputs and variables that are chosen by hand: `NAME=S(0),B`, with a component for each axis of the mesh. `*` in a
    /// name stands for any text.
    pub layouts: Vec<String>,
}

/// What the sharding search chooses together with the layouts of tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// Which of the equivalent ops that the rewrite rules of `optimize` find are executed.
    Rewrites,
    /// Which values of the forward pass are kept for the backward pass, and which are recomputed.
    Recompute,
}

/// Pipeline stages and microbatches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stages {
    /// Pipeline stages, each on a part of the mesh.
    pub stages: i64,
    /// Microbatches of a step.
    pub microbatches: i64,
}

/// Which backends execute which ops. Native code executes the ops that no backend is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementOptions {
    /// Names of backends, in order of preference; `cuda:ARCH` is a GPU.
    pub backends: Vec<String>,
    /// `OP=BACKEND`: ops that are given to a backend whatever it costs. OP is an op's name, the name of an ONNX node, or
    /// a location.
    pub pins: Vec<String>,
    /// The least number of ops in a cluster that a backend is given; `None` is 1, 0 keeps clusters whatever they cost.
    pub min_ops: Option<usize>,
}

/// How a session executes a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// Worker threads; 0 takes the number that the plan was compiled for.
    pub threads: usize,
    /// Whether the session measures the time of every task.
    pub profile: bool,
    /// The memory budget: the most bytes that the plan's values may take; `None` is this machine's memory.
    pub memory: Option<u64>,
}
