//! The command line as data.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use of_diag::{Code, Diagnostics};
use of_driver::{Cache, CompileOptions, MeshOptions, PlacementOptions, Precision, Search, Stages, Target, error};

use crate::commands::{
    bench, compile, completions, explain, export, import, inspect, man, measure, ops, opt, passes, profile, run,
    simulate, verify,
};

/// A tensor compiler: imports ONNX models, rewrites them, compiles them to plans and runs those.
#[derive(Parser, Debug)]
#[command(name = "of-opt", version, max_term_width = 120)]
#[command(override_usage = "of-opt [OPTIONS] IN.of\n       of-opt <COMMAND> [OPTIONS] …")]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 bad input, 3 not supported.\n\
    Environment: RUST_LOG (log levels by module), NO_COLOR, CC (the C compiler), OF_CACHE_DIR (compiled kernels),\n    OF_PJRT_PLUGIN (XLA's plugin).")]
pub struct Cli {
    /// What to do; without it IN.of goes through passes and is printed.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Running passes.
    #[command(flatten)]
    pub opt: opt::Opt,
    /// Messages.
    #[command(flatten)]
    pub messages: MessageOptions,
    /// A shared library that holds ops, a backend, or both; may be repeated
    #[arg(long, global = true, value_name = "PATH", help_heading = "Libraries")]
    pub library: Vec<PathBuf>,
}

/// Options of messages on stderr.
#[derive(Args, Debug, Clone, Default)]
pub struct MessageOptions {
    /// Print more: -v steps and decisions, -vv details, -vvv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Messages")]
    pub verbose: u8,
    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Messages")]
    pub quiet: bool,
    /// When to use colours
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Messages")]
    pub color: Color,
}

/// When to use colours.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Turn an ONNX model into IR text
    Import(import::Import),
    /// Turn a model into an ONNX model
    Export(export::Export),
    /// Compile a model to a plan
    Compile(compile::Compile),
    /// Run a model or plan on given inputs
    Run(run::Run),
    /// Measure how long a model or plan takes
    Bench(bench::Bench),
    /// Show where the time of a run goes, and how far each kernel is from the machine's limits
    Profile(profile::Profile),
    /// Say what is in a plan or model
    Inspect(inspect::Inspect),
    /// Check a plan or model without running it
    Verify(verify::Verify),
    /// Say how a model would lie on a mesh of devices, and why
    Explain(explain::Explain),
    /// Predict how long a model or plan takes on the ranks of a mesh, and what memory
    Simulate(simulate::Simulate),
    /// Measure this machine, as a mesh of its cores that simulate and explain take
    Measure(measure::Measure),
    /// List passes and pipelines
    Passes(passes::Passes),
    /// List ops, or show one in full
    Ops(ops::Ops),
    /// List what can execute ops on this machine
    Backends,
    /// Print a script that completes this command line in a shell
    Completions(completions::Completions),
    /// Print the manual page, or write all of them into a folder
    Man(man::ManPages),
}

/// Shapes for a model whose dimensions have names.
#[derive(Args, Debug, Clone, Default)]
pub struct Shapes {
    /// Numbers for named dimensions (batch=8) or the shape of an input (x=1x3x224x224); commas or repetition join
    /// several. Where engines of TensorRT are compiled, MIN:OPT:MAX is a range (batch=1:8:64)
    #[arg(long = "shape", value_name = "NAME=DIMS", value_delimiter = ',')]
    pub shape: Vec<String>,
}

/// Flags of every command that compiles.
#[derive(Args, Debug, Clone, Default)]
pub struct Codegen {
    /// Worker threads; 0 takes all cores
    #[arg(long, value_name = "T", value_parser = threads)]
    pub threads: Option<usize>,
    /// What to compile for: cpu, or cuda:ARCH for one GPU alone (sm_80, sm_90, sm_100; shim is one that the CPU emulates).
    /// ARCH+tf32 multiplies f32 on tensor cores with ten bits of mantissa, ARCH+tf32x3 in three such products, ARCH+bf16
    /// and ARCH+f16 with operands of those types. Behind all else +cublaslt makes products, and +cudnn convolutions, calls of
    /// those libraries
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// Instruction set to compile for, instead of this machine's best
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// Passes before code generation, instead of the target's pipeline
    #[arg(long, value_name = "PIPELINE")]
    pub passes: Option<String>,
    /// Convolutions by direct sums only. Without it large ones take Winograd's algorithm, whose rounding errors are up to
    /// three times as large
    #[arg(long)]
    pub no_winograd: bool,
    /// Compute products and convolutions in this precision. What that changes on the --calibration data is reported
    #[arg(long, value_enum, value_name = "PRECISION", conflicts_with = "mesh")]
    pub precision: Option<PrecisionArg>,
    /// Sets of inputs that the model is to do well on: folders as --inputs takes them, folders of such folders, or NAME=FILE
    #[arg(long, value_name = "DIR|NAME=FILE", num_args = 1.., requires = "precision", required_if_eq("precision", "int8"))]
    pub calibration: Vec<String>,
    /// Run on the ranks of a mesh: NAME[AxB], such as cpu[2], or a file that describes one. Ranks are threads of this
    /// process, and share --threads among them. With --target or --backend cuda:ARCH each has a GPU
    #[arg(long, value_name = "MESH")]
    pub mesh: Option<String>,
    /// What is chosen together with how tensors lie on the mesh
    #[arg(long, value_name = "WHAT", value_delimiter = ',', requires = "mesh")]
    pub search: Vec<SearchArg>,
    /// Cut the layers into S stages, each on a part of the mesh, and a step into M microbatches that pass through them
    #[arg(long, value_name = "S[xM]", requires = "mesh", value_parser = Stages::parse)]
    pub stages: Option<Stages>,
    /// Backends for whatever they take, best first; the rest is native code. cuda:ARCH is a GPU
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Placement", conflicts_with = "target")]
    pub backend: Vec<String>,
    /// Give ops to a backend (or to 'native') whatever it costs: of.softmax=xla, or the name of an ONNX node, or a location
    #[arg(long, value_name = "OP=NAME", help_heading = "Placement", conflicts_with = "target")]
    pub backend_for: Vec<String>,
    /// Dissolve subgraphs of fewer ops; 0 keeps every subgraph, whatever it costs
    #[arg(long, value_name = "OPS", help_heading = "Placement")]
    pub min_subgraph_size: Option<usize>,
    /// Compile every kernel anew and keep none
    #[arg(long)]
    pub no_cache: bool,
}

/// More threads than any machine has cores.
const MOST_THREADS: usize = 4096;

/// A number of threads.
fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n <= MOST_THREADS);
    number.ok_or_else(|| format!("threads are a number from 0 to {MOST_THREADS}"))
}

impl Codegen {
    /// The flags as typed options of the driver.
    ///
    /// # Errors
    /// When --target names no target.
    pub fn options(&self) -> Result<CompileOptions, Diagnostics> {
        let target = self.target.as_deref().map_or(Ok(Target::host()), Target::parse)?;
        Ok(CompileOptions {
            threads: self.threads.unwrap_or(0),
            target: Target { isa: self.isa.clone(), ..target },
            pipeline: self.passes.clone(),
            winograd: !self.no_winograd,
            precision: self.precision(),
            calibration: self.calibration.clone(),
            mesh: self.mesh_options(),
            placement: PlacementOptions {
                backends: self.backend.clone(),
                pins: self.backend_for.clone(),
                min_ops: self.min_subgraph_size,
            },
            cache: if self.no_cache { Cache::none() } else { Cache::user() },
            ..CompileOptions::default()
        })
    }

    /// The mesh of --mesh, with --search and --stages.
    pub fn mesh_options(&self) -> Option<MeshOptions> {
        let search = self.search.iter().map(|s| match s {
            SearchArg::Rewrites => Search::Rewrites,
            SearchArg::Recompute => Search::Recompute,
        });
        let mesh = self.mesh.clone()?;
        Some(MeshOptions { mesh, search: search.collect(), stages: self.stages })
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
            ("--stages", self.stages.is_some()),
            ("--search", !self.search.is_empty()),
            ("--passes", self.passes.is_some()),
            ("--precision", self.precision.is_some()),
            ("--target", self.target.is_some()),
            ("--no-winograd", self.no_winograd),
            ("--backend", !self.backend.is_empty()),
            ("--backend-for", !self.backend_for.is_empty()),
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
    /// A folder with input_0.pb, input_1.npy … or NAME.npy, or files: NAME=FILE, FILE in order, FILE.npz
    #[arg(long = "inputs", value_name = "DIR|NAME=FILE", num_args = 1..)]
    pub inputs: Vec<String>,
}

/// A model file.
#[derive(Args, Debug, Clone)]
pub struct ModelFile {
    /// Model: .onnx, .of or .plan, detected by their content
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Initializers of an ONNX model that are inputs too and become inputs, instead of constants; commas or repetition
    /// join several. Those that --inputs has values for need not be named
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub initializer_input: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_are_accepted_anywhere() {
        let c = Cli::try_parse_from(["of-opt", "-v", "inspect", "x.onnx"]).unwrap();
        assert_eq!(c.messages.verbose, 1);
        let c = Cli::try_parse_from(["of-opt", "inspect", "x.onnx", "-vv"]).unwrap();
        assert_eq!(c.messages.verbose, 2);
        let c = Cli::try_parse_from(["of-opt", "x.of", "--passes=dce", "-q"]).unwrap();
        assert!(c.command.is_none() && c.messages.quiet);
    }
}
