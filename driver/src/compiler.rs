//! The compiler: from a model and typed options to a compiled model.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use of_codegen::kernel::schedule::{self, Schedules};
use of_codegen::toolchain::cache::Cache;
use of_codegen::{Compiled, Summary};
use of_diag::Diagnostics;
use of_ir::{Func, Type};
use of_passes::specialize::Bindings;
use of_plan::PlanFile;
use of_tensorrt::Ranges;

use crate::backends::Backends;
use crate::generate::Generator;
use crate::input_files::Conversion;
use crate::mesh::{RankFuncs, RankSelection};
use crate::model::Model;
use crate::observer::{Observer, Silent};
use crate::options::{CompileOptions, MeshOptions, Precision, Search, SessionOptions, Target};
use crate::prepare::{main_func, module_of, prepare, verify};
use crate::session::{Session, check_memory};
use crate::{input_files, mesh, native_only, precision, shapes, tune, variables};

/// Compiles models. Each method sets one option; [`Compiler::compile`] does the work.
#[derive(Clone)]
pub struct Compiler<'o> {
    options: CompileOptions,
    shapes: Vec<String>,
    variants: Vec<String>,
    input_files: Vec<OsString>,
    observer: &'o dyn Observer,
}

impl Default for Compiler<'_> {
    fn default() -> Self {
        Compiler::new()
    }
}

impl<'o> Compiler<'o> {
    /// A compiler for this machine's CPU that keeps every dimension open that the model leaves open.
    pub fn new() -> Compiler<'o> {
        Compiler::with_options(CompileOptions::default())
    }

    /// A compiler with these options.
    pub fn with_options(options: CompileOptions) -> Compiler<'o> {
        let (shapes, variants, input_files) = Default::default();
        Compiler { options, shapes, variants, input_files, observer: &Silent }
    }

    /// The machine to generate code for.
    pub fn target(mut self, target: Target) -> Self {
        self.options.target = target;
        self
    }

    /// The number of worker threads that the plan is scheduled for; 0 takes all cores.
    pub fn threads(mut self, threads: usize) -> Self {
        self.options.threads = threads;
        self
    }

    /// Binds a named dimension of the model to a number.
    pub fn shape(mut self, dimension: &str, extent: usize) -> Self {
        self.shapes.push(format!("{dimension}={extent}"));
        self
    }

    /// Binds dimensions as text: `batch=8`, `x=1x3x224x224`, or ranges `batch=1:8:64` for engines of TensorRT.
    pub fn shapes(mut self, specs: &[String]) -> Self {
        self.shapes.extend_from_slice(specs);
        self
    }

    /// Adds a program for further shapes, such as `batch=8,seq=128`.
    pub fn variants(mut self, specs: &[String]) -> Self {
        self.variants.extend_from_slice(specs);
        self
    }

    /// Binds dimensions to the shapes of the inputs in these files.
    pub fn shapes_of_files(mut self, files: &[OsString]) -> Self {
        self.input_files.extend_from_slice(files);
        self
    }

    /// Adds a backend that executes the ops it supports, after those added before.
    pub fn backend(mut self, name: &str) -> Self {
        self.options.placement.backends.push(name.into());
        self
    }

    /// Shards the model over a mesh of devices.
    pub fn mesh(mut self, mesh: MeshOptions) -> Self {
        self.options.mesh = Some(mesh);
        self
    }

    /// Lowers products and convolutions to this precision; `calibration` names sets of calibration inputs.
    pub fn precision(mut self, precision: Precision, calibration: &[OsString]) -> Self {
        self.options.precision = precision;
        self.options.calibration = calibration.to_vec();
        self
    }

    /// Tunes register tiles by measurement for so long.
    pub fn tune(mut self, limit: Duration) -> Self {
        self.options.tuning = Some(limit);
        self
    }

    /// Where compiled kernels are kept.
    pub fn cache(mut self, cache: Cache) -> Self {
        self.options.cache = cache;
        self
    }

    /// Receives progress, warnings and notes.
    pub fn observer(mut self, observer: &'o dyn Observer) -> Self {
        self.observer = observer;
        self
    }

    /// Compiles a model: verification, precision lowering, passes, sharding, placement, tuning and code generation.
    ///
    /// # Errors
    /// When the model is invalid, shapes do not fit, or an op or an option is not supported.
    pub fn compile(&self, mut model: Model) -> Result<CompiledModel, Diagnostics> {
        verify(&model.module)?;
        main_func(&model.module)?;
        if let Some(func) = model.module.main_mut() {
            variables::declare(func, &self.options.variables)?;
        }
        precision::lower(&mut model, &self.options, self.observer)?;
        let (variants, ranges) = self.bindings(main_func(&model.module)?)?;
        let backends = Backends::with_ranges(&self.options, &ranges)?;
        let built = match &self.options.mesh {
            None => build(&model, &variants, &self.options, &backends, self.observer)?,
            Some(mesh) => build_mesh(&model, &variants, mesh, &self.options, &backends, self.observer)?,
        };
        Ok(CompiledModel { code: built.code, programs: built.programs, ops: built.ops, backends })
    }

    /// The bindings of every program of the plan, without duplicates, and ranges. A dimension that they leave open stays
    /// open: the program accepts every legal shape, and TensorRT's engines those in the ranges.
    fn bindings(&self, func: &Func) -> Result<(Vec<Bindings>, Ranges), Diagnostics> {
        let (mut base, mut ranges) = (Bindings::new(), Ranges::new());
        input_files::bind(&input_files::read(&self.input_files, func, &Conversion::default())?, func, &mut base)?;
        shapes::bind_ranges(&self.shapes, func, &mut base, &mut ranges)?;
        let mut all: Vec<Bindings> = Vec::new();
        if self.variants.is_empty() || !base.is_empty() || !ranges.is_empty() {
            all.push(base.clone());
        }
        for variant in &self.variants {
            // A variant overrides the base; dimensions that it does not name are those of the base.
            let mut overrides = Bindings::new();
            let specs: Vec<String> = variant.split(',').map(str::to_owned).collect();
            shapes::bind(&specs, func, &mut overrides)?;
            let merged: Bindings = base.iter().map(|(k, n)| (k.clone(), *n)).chain(overrides).collect();
            if !all.contains(&merged) {
                all.push(merged);
            }
        }
        Ok((all, ranges))
    }
}

/// A compiled model: a plan, and the backends that load it.
pub struct CompiledModel {
    code: Compiled,
    /// Programs of the plan, one for each set of shapes; for a mesh, the templates that its ranks share.
    pub programs: usize,
    /// Ops after all passes; 0 for a mesh.
    pub ops: usize,
    backends: Backends,
}

impl CompiledModel {
    /// Writes the plan to a file. `of_plan::PlanFile` and `of_runtime::Session` open it without the compiler.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Diagnostics> {
        Ok(self.code.write(path.as_ref())?)
    }

    /// The bytes of the plan.
    ///
    /// # Errors
    /// When the plan does not verify, which is a bug.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Diagnostics> {
        Ok(self.code.bytes()?)
    }

    /// The structure of the plan.
    pub fn plan(&self) -> &of_plan::Plan {
        self.code.plan()
    }

    /// The plan, as opened from a file.
    ///
    /// # Errors
    /// When the plan does not verify, which is a bug.
    pub fn open(&self) -> Result<PlanFile, Diagnostics> {
        Ok(self.code.open()?)
    }

    /// Numbers about the generated code: kernels, steps, peak memory, ops without native code.
    pub fn summary(&self) -> &Summary {
        &self.code.summary
    }

    /// Opens a session on the first program of the plan.
    ///
    /// # Errors
    /// When this machine cannot execute the plan.
    pub fn session(&self, options: &SessionOptions) -> Result<Session, Diagnostics> {
        Session::first(Arc::new(self.open()?), options, &self.backends)
    }

    /// Opens a session on each program of the plan, in their order: that of [`Compiler::shape`], if any, then those of
    /// [`Compiler::variants`]. They share weights, code, the values of variables, and memory for the values of runs, which follow one another.
    ///
    /// # Errors
    /// When this machine cannot execute the plan.
    pub fn sessions(&self, options: &SessionOptions) -> Result<Vec<Session>, Diagnostics> {
        Session::all(&Arc::new(self.open()?), options, &self.backends)
    }
}

/// What code generation made.
pub(crate) struct Built {
    /// The plan and its summary.
    pub code: Compiled,
    /// Name and type of each input of the first program.
    pub inputs: Vec<(String, Type)>,
    /// Programs of the plan.
    pub programs: usize,
    /// Ops of all programs.
    pub ops: usize,
}

/// Compiles a verified model for one set of bindings, for one rank or for the mesh of the options.
pub(crate) fn compile_bound(
    model: &Model,
    bindings: Bindings,
    options: &CompileOptions,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<Built, Diagnostics> {
    match &options.mesh {
        None => build(model, &[bindings], options, backends, observer),
        Some(mesh) => build_mesh(model, &[bindings], mesh, options, backends, observer),
    }
}

fn build(
    model: &Model,
    variants: &[Bindings],
    options: &CompileOptions,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<Built, Diagnostics> {
    let funcs = prepare(&model.module, variants, options, backends, observer)?;
    let schedules = match options.tuning {
        Some(limit) => tune::tune(&funcs, model, options, backends, limit, observer)?,
        None => Schedules::default(),
    };
    let code = Generator { model, options, backends, schedules: &schedules, observer }.compile(&funcs)?;
    check(&code, options)?;
    let ops = funcs.iter().map(|(_, f)| f.graph.walk().len()).sum();
    Ok(Built { code, inputs: funcs.first().map(|(_, f)| inputs_of(f)).unwrap_or_default(), programs: funcs.len(), ops })
}

/// A program of a plan that has several.
pub(crate) struct Job {
    /// Its name.
    pub name: String,
    /// What it runs.
    pub func: Func,
    /// The extents of open dimensions.
    pub bindings: Bindings,
}

/// Compiles functions to the programs of one plan, which share weights, kernels and variables.
pub(crate) fn compile_jobs(
    model: &Model,
    jobs: &[Job],
    options: &CompileOptions,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<Compiled, Diagnostics> {
    let mut funcs = Vec::with_capacity(jobs.len());
    for Job { name, func, bindings } in jobs {
        let module = module_of(func.clone(), &model.module);
        let prepared = prepare(&module, std::slice::from_ref(bindings), options, backends, observer)?;
        funcs.extend(prepared.into_iter().map(|(_, func)| (name.clone(), func)));
    }
    let code = Generator { model, options, backends, schedules: &schedule::NONE, observer }.compile(&funcs)?;
    check(&code, options)?;
    Ok(code)
}

/// Checks what the options demand of the plan.
fn check(code: &Compiled, options: &CompileOptions) -> Result<(), Diagnostics> {
    check_memory(code.plan(), options.memory)?;
    if options.require_native { native_only::check(code) } else { Ok(()) }
}

/// Compiles functions for the ranks of a mesh into one plan. The first decides on which ranks variables are, and how they are split.
pub(crate) fn compile_jobs_on_mesh(
    model: &Model,
    jobs: &[Job],
    mesh: &MeshOptions,
    options: &CompileOptions,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<Built, Diagnostics> {
    let mut entry_points: Vec<(&str, RankFuncs)> = Vec::with_capacity(jobs.len());
    // The stages of the others follow from where variables are, and they have no backward pass.
    let search = mesh.search.iter().copied().filter(|what| *what != Search::Recompute).collect();
    let of_others = MeshOptions { stages: None, search, ..mesh.clone() };
    for Job { name, func, bindings } in jobs {
        let module = module_of(func.clone(), &model.module);
        let funcs = match entry_points.first() {
            None => mesh::prepare(&module, bindings, mesh, options, RankSelection::All, backends, observer)?,
            Some((_, first)) => mesh::prepare_next(first, &module, bindings, &of_others, options, backends, observer)?,
        };
        entry_points.push((name, funcs));
    }
    let inputs = entry_points.first().map(|(_, funcs)| Ok::<_, Diagnostics>(inputs_of(main_func(&funcs.module)?)));
    let inputs = inputs.transpose()?.unwrap_or_default();
    let entry_points: Vec<(&str, &RankFuncs)> = entry_points.iter().map(|(name, funcs)| (*name, funcs)).collect();
    let generator = Generator { model, options, backends, schedules: &schedule::NONE, observer };
    let code = mesh::compile_entry_points(&entry_points, &generator)?;
    check(&code, options)?;
    let programs = code.plan().programs.len();
    Ok(Built { code, inputs, programs, ops: 0 })
}

/// Compiles a model for a mesh, with an entry point for each set of shapes.
fn build_mesh(
    model: &Model,
    variants: &[Bindings],
    mesh: &MeshOptions,
    options: &CompileOptions,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<Built, Diagnostics> {
    let func = main_func(&model.module)?;
    let job = |bindings: &Bindings| {
        let name = if variants.len() == 1 { "main".into() } else { shapes::program_name(bindings) };
        Job { name, func: func.clone(), bindings: bindings.clone() }
    };
    let jobs: Vec<Job> = variants.iter().map(job).collect();
    compile_jobs_on_mesh(model, &jobs, mesh, options, backends, observer)
}

fn inputs_of(func: &Func) -> Vec<(String, Type)> {
    func.inputs.iter().cloned().zip(func.input_types()).collect()
}
