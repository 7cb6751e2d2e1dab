//! Arguments that several commands share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Instant;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use of_cli::quantity;
use of_diag::{Code, Diagnostics};
use of_driver::input_files::Conversion;
use of_driver::{
    Cache, CompileOptions, CpuCode, ImageOptions, MeshOptions, PlacementOptions, Precision, Search, Stages, Target,
    error,
};

use crate::{exit, limits};

/// When the program started: a time limit counts from here.
pub static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Shapes for a model whose dimensions have names.
#[derive(Args, Debug, Clone, Default)]
pub struct Shapes {
    /// Extent of a named dimension (batch=8) or shape of an input (x=1x3x224x224). Comma-separated or repeated. For
    /// engines of TensorRT, MIN:OPT:MAX is a range (batch=1:8:64)
    #[arg(long = "shape", value_name = "NAME=DIMS", value_delimiter = ',')]
    pub shape: Vec<String>,
}

/// Flags of every command that compiles.
#[derive(Args, Debug, Clone, Default)]
pub struct Codegen {
    /// Worker threads; 0 takes all cores
    #[arg(long, value_name = "T", value_parser = threads)]
    pub threads: Option<usize>,
    /// What to compile for: cpu, or cuda:ARCH for one GPU alone (sm_80, sm_90, sm_100; emulated is one that the CPU emulates).
    /// ARCH+tf32 multiplies f32 on tensor cores in TF32, ARCH+tf32x3 emulates f32 by three TF32 products (3xTF32), ARCH+bf16
    /// and ARCH+f16 round operands to those types. Append +cublaslt or +cudnn last to call these libraries for matmuls and
    /// convolutions
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// Instruction set to compile for, instead of this machine's best
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// Passes before code generation, instead of the target's pipeline
    #[arg(long, value_name = "PIPELINE")]
    pub passes: Option<String>,
    /// Compiler of CPU kernels [default: machine]. -v lists the kernels that are left to the C compiler, with reasons
    #[arg(long, value_enum, value_name = "SOURCE")]
    pub cpu_code: Option<CpuCodeArg>,
    /// Subnormal numbers (below 1.2e-38 in f32) in CPU kernels: read and written as zeros, or computed with, which takes a
    /// processor up to a hundred times as long
    #[arg(long, value_enum, value_name = "MODE", default_value = "flush")]
    pub subnormals: SubnormalsArg,
    /// Disable Winograd convolutions, whose rounding errors are up to three times as large
    #[arg(long)]
    pub no_winograd: bool,
    /// Record in the plan which pass and rule replaced which op by what; 'of-opt inspect' prints it
    #[arg(long)]
    pub record_rewrites: bool,
    /// Compute products and convolutions in this precision, and report how outputs change on the --calibration data
    #[arg(long, value_enum, value_name = "PRECISION")]
    pub precision: Option<PrecisionArg>,
    /// Calibration data set: folders as --inputs takes them, folders of such folders, or NAME=FILE
    #[arg(long, value_name = "DIR|NAME=FILE", num_args = 1.., requires = "precision", required_if_eq("precision", "int8"))]
    pub calibration: Vec<OsString>,
    /// Run on the ranks of a mesh: NAME[AxB], such as cpu[2], or a file that describes one. Ranks are threads of this
    /// process, and share --threads among them. With --target or --backend cuda:ARCH each has a GPU
    #[arg(long, value_name = "MESH", value_parser = OsStringValueParser::new().try_map(mesh))]
    pub mesh: Option<String>,
    /// Layout of an input or variable on the mesh, chosen by hand: NAME=S(0), with a component for each axis of the mesh
    /// (NAME=S(0),B). * in NAME stands for any text. The search chooses all others. May be repeated
    #[arg(long, value_name = "NAME=LAYOUT", requires = "mesh")]
    pub layout: Vec<String>,
    /// Search these jointly with the layouts. Without --mesh for one device. 'recompute' keeps within --memory
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub joint_search: Vec<SearchArg>,
    /// Cut the layers into S pipeline stages, each on a part of the mesh
    #[arg(long, value_name = "S", requires = "mesh", value_parser = clap::value_parser!(i64).range(1..))]
    pub stages: Option<i64>,
    /// Cut a step into M microbatches, which pass through the stages. Without --mesh on one device, which then keeps the
    /// activations of one microbatch. 'explain' compares several numbers
    #[arg(long, value_name = "M", value_delimiter = ',', value_parser = clap::value_parser!(i64).range(1..))]
    pub microbatches: Vec<i64>,
    /// Backends in order of preference; ops that none claims are compiled natively. cuda:ARCH is a GPU
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Placement", conflicts_with = "target")]
    pub backend: Vec<String>,
    /// Pin ops to a backend (or to 'native'), ignoring the cost model: of.softmax=xla, or the name of an ONNX node, or a location
    #[arg(long, value_name = "OP=BACKEND", help_heading = "Placement", conflicts_with = "target")]
    pub pin: Vec<String>,
    /// Minimum number of ops of a backend's subgraph; 0 disables this and the cost check
    #[arg(long, value_name = "OPS", help_heading = "Placement")]
    pub min_subgraph_size: Option<usize>,
    /// Neither read nor write the kernel cache
    #[arg(long)]
    pub no_cache: bool,
    /// The plan's memory budget: refuse a plan, and a run, whose values take more than this: 300MB, 4GiB. Checked when the
    /// plan is made, when it is loaded, and for each value whose size is known only then [default: this machine's memory,
    /// or what its control group grants; for 'explain', that of a device of the mesh]
    #[arg(long, value_name = "SIZE", help_heading = "Limits", value_parser = quantity::size)]
    pub memory: Option<u64>,
}

/// More threads than any machine has cores.
const MAX_THREADS: usize = 4096;

/// A number of threads.
fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n <= MAX_THREADS);
    number.ok_or_else(|| format!("threads are a number from 0 to {MAX_THREADS}"))
}

/// A mesh, which the plan names as text.
fn mesh(name: OsString) -> Result<String, &'static str> {
    name.into_string().map_err(|_| "the name of a file that describes a mesh must be UTF-8; rename it")
}

impl Codegen {
    /// The flags as typed options of the driver.
    ///
    /// # Errors
    /// When --target names no target, or --microbatches several numbers.
    pub fn options(&self) -> Result<CompileOptions, Diagnostics> {
        if self.microbatches.len() > 1 {
            return Err(crate::exit::usage("--microbatches takes one number here; 'explain' compares several").into());
        }
        let target = self.target.as_deref().map_or(Ok(Target::host()), Target::parse)?;
        Ok(CompileOptions {
            threads: self.threads.unwrap_or(0),
            target: Target { isa: self.isa.clone(), ..target },
            pipeline: self.passes.clone(),
            winograd: !self.no_winograd,
            record_rewrites: self.record_rewrites,
            cpu_code: self.cpu_code.map_or(CpuCode::default(), CpuCodeArg::code),
            keep_subnormals: self.subnormals == SubnormalsArg::Keep,
            precision: self.precision(),
            calibration: self.calibration.clone(),
            mesh: self.mesh_options(),
            placement: PlacementOptions {
                backends: self.backend.clone(),
                pins: self.pin.clone(),
                min_ops: self.min_subgraph_size,
            },
            memory: self.memory,
            limits: limits::of_compilations(),
            cache: if self.no_cache { Cache::none() } else { Cache::user() },
            ..CompileOptions::default()
        })
    }

    /// The mesh of --mesh, with --joint-search, --stages and --microbatches. One device is a mesh of one.
    pub fn mesh_options(&self) -> Option<MeshOptions> {
        let search = self.joint_search.iter().map(|s| match s {
            SearchArg::Rewrites => Search::Rewrites,
            SearchArg::Recompute => Search::Recompute,
        });
        let on_one = !self.joint_search.is_empty() || !self.microbatches.is_empty();
        let mesh = self.mesh.clone().or_else(|| on_one.then(|| ONE_DEVICE.to_owned()))?;
        Some(MeshOptions { mesh, search: search.collect(), stages: self.pipeline(), layouts: self.layout.clone() })
    }

    /// The numbers of stages and microbatches. Of several numbers of microbatches the first counts.
    fn pipeline(&self) -> Option<Stages> {
        let microbatches = self.microbatches.first().copied();
        (self.stages.is_some() || microbatches.is_some())
            .then(|| Stages { stages: self.stages.unwrap_or(1), microbatches: microbatches.unwrap_or(1) })
    }

    fn precision(&self) -> Precision {
        match self.precision {
            None | Some(PrecisionArg::Model) => Precision::Model,
            Some(PrecisionArg::Int8) => Precision::Int8,
            Some(PrecisionArg::Bf16) => Precision::Bf16,
            Some(PrecisionArg::F16) => Precision::F16,
        }
    }

    /// Rejects compilation flags that have no effect on a plan, except those in `allowed`.
    ///
    /// # Errors
    /// The first such flag.
    pub fn check_no_compile_flags(&self, allowed: &[&str]) -> Result<(), Diagnostics> {
        let flags = [
            ("--mesh", self.mesh.is_some()),
            ("--layout", !self.layout.is_empty()),
            ("--stages", self.stages.is_some()),
            ("--microbatches", !self.microbatches.is_empty()),
            ("--joint-search", !self.joint_search.is_empty()),
            ("--passes", self.passes.is_some()),
            ("--precision", self.precision.is_some()),
            ("--target", self.target.is_some()),
            ("--isa", self.isa.is_some()),
            ("--no-winograd", self.no_winograd),
            ("--record-rewrites", self.record_rewrites),
            ("--cpu-code", self.cpu_code.is_some()),
            ("--subnormals", self.subnormals == SubnormalsArg::Keep),
            ("--backend", !self.backend.is_empty()),
            ("--pin", !self.pin.is_empty()),
            ("--min-subgraph-size", self.min_subgraph_size.is_some()),
        ];
        match flags.into_iter().find(|(flag, given)| *given && !allowed.contains(flag)) {
            Some((flag, _)) => {
                let what = format!("a plan is compiled already: {flag} has no effect on it");
                Err(error(Code::INPUT, what).hint(format!("give {flag} to 'compile', or give the model")).into())
            }
            None => Ok(()),
        }
    }
}

/// What the sharding search chooses in addition to layouts.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchArg {
    /// Which of the equivalent ops that the rules of 'optimize' find are executed
    Rewrites,
    /// Which values of the forward pass are kept for the backward pass, and which are recomputed
    Recompute,
}

/// The mesh of a search on one device.
const ONE_DEVICE: &str = "cpu[1]";

/// Compilers of kernels for CPUs.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuCodeArg {
    /// The machine's C compiler
    C,
    /// The compiler in this program, for AVX2 and AVX-512. The C compiler compiles kernels that it refuses, and those for
    /// other processors
    Machine,
}

impl CpuCodeArg {
    fn code(self) -> CpuCode {
        match self {
            CpuCodeArg::C => CpuCode::C,
            CpuCodeArg::Machine => CpuCode::Machine,
        }
    }
}

/// What kernels for a CPU do with subnormal numbers.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SubnormalsArg {
    /// Read and write them as zeros
    #[default]
    Flush,
    /// Compute with them
    Keep,
}

/// Precisions of products and convolutions.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrecisionArg {
    /// As the model's types state
    Model,
    /// 8-bit integers, with ranges from the calibration inputs; sums are exact
    Int8,
    /// Operands rounded to bf16, sums in f32; uses bf16 instructions where the CPU has them
    Bf16,
    /// Operands rounded to f16, whose range is small; sums in f32
    F16,
}

/// Input files.
#[derive(Args, Debug, Clone, Default)]
pub struct InputFiles {
    /// A folder with input_0.pb, input_1.npy … or NAME.npy, or files: NAME=FILE, FILE in order, FILE.npz. An image (.png,
    /// .jpg, …) is scaled to the size of the input
    #[arg(long = "inputs", value_name = "DIR|NAME=FILE", num_args = 1..)]
    pub inputs: Vec<OsString>,
    /// Convert the numbers of input files to the element types of the model; a value that the type cannot hold is an error
    #[arg(long, requires = "inputs")]
    pub cast: bool,
    /// Mean of each image channel, subtracted from pixels scaled to 0..1: 0.485,0.456,0.406
    #[arg(long, value_name = "M,…", value_delimiter = ',', requires = "inputs")]
    pub image_mean: Vec<f64>,
    /// Standard deviation of each image channel, which divides pixels after the mean is subtracted: 0.229,0.224,0.225
    #[arg(long, value_name = "S,…", value_delimiter = ',', requires = "inputs")]
    pub image_std: Vec<f64>,
}

impl InputFiles {
    /// How the files become values.
    ///
    /// # Errors
    /// When a standard deviation is not positive, or a mean is not finite.
    pub fn conversion(&self) -> Result<Conversion, Diagnostics> {
        Ok(Conversion { cast: self.cast, image: image_options(&self.image_mean, &self.image_std)? })
    }
}

/// How pixels become numbers.
///
/// # Errors
/// When a standard deviation is not positive, or a mean is not finite.
pub fn image_options(mean: &[f64], std: &[f64]) -> Result<ImageOptions, Diagnostics> {
    if std.iter().any(|s| !s.is_finite() || *s <= 0.0) || mean.iter().any(|m| !m.is_finite()) {
        return Err(exit::usage("--image-mean takes numbers, and --image-std positive numbers").into());
    }
    Ok(ImageOptions { mean: mean.to_vec(), std: std.to_vec() })
}

/// A model file.
#[derive(Args, Debug, Clone)]
pub struct ModelFile {
    /// Model: .onnx, .of or .plan, detected by their content
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Initializers that are also graph inputs, to be imported as inputs instead of constants. Comma-separated or
    /// repeated. Those that --inputs has values for need not be named
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub initializer_input: Vec<String>,
}
