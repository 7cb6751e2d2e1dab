//! From a module to a plan and a session: the one place that calls passes, code generation and runtime in order.

use std::sync::Arc;

use of_codegen::kernel::schedule::Schedules;
use of_codegen::toolchain::cache::Cache;
use of_codegen::{CompileOptions, Compiled, Progress, Target};
use of_codegen::{Isa, Language};
use of_diag::{Code, Diagnostics, Severity};
use of_ir::{Func, Module};
use of_passes::specialize::Bindings;
use of_passes::{Manager, PIPELINE_FILE};
use of_plan::PlanFile;
use of_runtime::{ExecError, LoadError, MeshSession, RunError, Session, SessionError, SessionPool, Value};

use crate::backends::{self, Backends};
use crate::cli::Codegen;
use crate::console::Console;
use crate::exit;
use crate::model::Source;
use crate::shapes;

/// The pipeline that prepares a function for code generation on the CPU.
pub const CPU_PIPELINE: &str = "cpu";

/// The entry function.
///
/// # Errors
/// When there is none.
pub fn main_func(module: &Module) -> Result<&Func, Diagnostics> {
    module.main().ok_or_else(|| {
        let what = format!("the module has {} functions and none is called 'main'", module.funcs.len());
        exit::error(Code::NAME, what).into()
    })
}

/// A function for each set of numbers, after all passes and with ops placed on backends, under the name of its program.
///
/// # Errors
/// When a pass fails: shapes do not fit, or a pass is broken. When a backend does not run what it is given by hand.
pub fn prepare(
    module: &Module,
    variants: &[Bindings],
    codegen: &Codegen,
    backends: &Backends,
    console: &mut Console,
) -> Result<Vec<(String, Func)>, Diagnostics> {
    let mut prepared = passed(module, variants, codegen, console)?;
    let mut funcs: Vec<&mut Func> = prepared.iter_mut().map(|(_, f)| f).collect();
    for placement in backends.place(&mut funcs, codegen)?.iter().flatten() {
        backends::say(placement, console);
    }
    Ok(prepared)
}

/// The same before ops are placed on backends.
///
/// # Errors
/// As [`prepare`].
pub fn passed(
    module: &Module,
    variants: &[Bindings],
    codegen: &Codegen,
    console: &mut Console,
) -> Result<Vec<(String, Func)>, Diagnostics> {
    let func = main_func(module)?;
    let text = codegen.passes.as_deref().unwrap_or(CPU_PIPELINE);
    console.renderer.sources.add(PIPELINE_FILE, text);
    let mut prepared = Vec::with_capacity(variants.len());
    for bindings in variants {
        let _progress = console.progress("running passes");
        let mut own = Module { name: module.name.clone(), meshes: module.meshes.clone(), ..Module::default() };
        own.funcs.insert("main".into(), func.clone());
        let mut manager = Manager::default();
        manager.add::<of_passes::Specialize>(bindings.clone()).append(text)?;
        manager.settings.reproducers = Some(std::env::temp_dir());
        let report = manager.run(&mut own, &mut |s| eprint!("{s}"))?;
        console.report(&report.warnings);
        tracing::debug!("\n{}", report.table());
        if let Some(f) = own.funcs.swap_remove("main") {
            prepared.push((shapes::program_name(bindings), f));
        }
    }
    Ok(prepared)
}

/// Compiles prepared functions into one plan.
///
/// # Errors
/// When an op is not supported or a kernel cannot be compiled.
pub fn compile(
    funcs: &[(String, Func)],
    source: &Source,
    codegen: &Codegen,
    backends: &Backends,
    flags: Vec<String>,
    schedules: &Schedules,
    console: &Console,
) -> Result<Compiled, Diagnostics> {
    let funcs: Vec<(String, &Func)> = funcs.iter().map(|(n, f)| (n.clone(), f)).collect();
    with_options(source, codegen, backends, flags, schedules, console, |options| of_codegen::compile(&funcs, options))
}

/// Compiles something as the flags say, with progress.
///
/// # Errors
/// Those of the compilation, and an instruction set that is none.
pub fn with_options<T>(
    source: &Source,
    codegen: &Codegen,
    backends: &Backends,
    flags: Vec<String>,
    schedules: &Schedules,
    console: &Console,
    compile: impl FnOnce(&CompileOptions<'_>) -> Result<T, Diagnostics>,
) -> Result<T, Diagnostics> {
    let progress = console.progress("generating code");
    let compilers = backends.compilers();
    let reporter = progress.reporter();
    let options = CompileOptions {
        model: source.module.name.clone(),
        flags,
        inputs: vec![(source.file.clone(), source.hash)],
        threads: u32::try_from(threads(codegen.threads)).unwrap_or(u32::MAX),
        target: Target {
            winograd: !codegen.no_winograd,
            schedules,
            ..Target::new(isa(codegen.isa.as_deref())?, &compilers)
        },
        cache: cache(codegen),
        progress: Some(Arc::new(move |p| match p {
            Progress::Kernels(done, all) => reporter.at("compiling kernels", done, all),
        })),
    };
    compile(&options)
}

/// Where compiled kernels are kept.
pub fn cache(codegen: &Codegen) -> Cache {
    if codegen.no_cache { Cache::none() } else { Cache::user() }
}

/// The number of threads that a flag asks for: all cores without it.
pub fn threads(flag: Option<usize>) -> usize {
    match flag {
        Some(n) if n > 0 => n,
        _ => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// The instruction set called `name`, else the best of this machine.
///
/// # Errors
/// When there is none of that name.
pub fn isa(name: Option<&str>) -> Result<&'static Isa, Diagnostics> {
    let Some(name) = name else { return Ok(Isa::host()) };
    Isa::by_name(name).filter(|i| i.language != Language::Cuda).ok_or_else(|| {
        let known = of_codegen::isa::ISAS.iter().filter(|i| i.language != Language::Cuda);
        let known: Vec<_> = known.map(|i| i.name).collect();
        exit::error(Code::INPUT, format!("there is no instruction set '{name}'"))
            .hint(format!("choose from {}", known.join(", ")))
            .into()
    })
}

/// Makes a session for the program of a plan.
///
/// # Errors
/// When this machine cannot run it.
pub fn session(
    plan: Arc<PlanFile>,
    program: usize,
    threads: Option<usize>,
    profile: bool,
    backends: &Backends,
) -> Result<Session, Diagnostics> {
    let options = of_runtime::Options { threads: threads.unwrap_or(0), profile };
    Session::new(plan, program, options, &backends.loaders).map_err(|e| session_error(&e))
}

/// Makes so many lanes for a program of a plan.
///
/// # Errors
/// When this machine cannot run it.
pub fn lanes(
    plan: &Arc<PlanFile>,
    program: usize,
    threads: usize,
    lanes: usize,
    backends: &Backends,
) -> Result<SessionPool, Diagnostics> {
    let options = of_runtime::Options { threads, profile: false };
    SessionPool::new(plan, program, options, lanes, &backends.loaders).map_err(|e| session_error(&e))
}

/// Makes a session of ranks for a mesh of a plan.
///
/// # Errors
/// When this machine cannot run it.
pub fn mesh_session(
    plan: Arc<PlanFile>,
    mesh: usize,
    threads: Option<usize>,
    profile: bool,
    backends: &Backends,
) -> Result<MeshSession, Diagnostics> {
    let options = of_runtime::Options { threads: threads.unwrap_or(0), profile };
    MeshSession::new(plan, mesh, options, &backends.loaders).map_err(|e| session_error(&e))
}

fn session_error(e: &SessionError) -> Diagnostics {
    let code = match e {
        SessionError::Arch { .. }
        | SessionError::CpuFeature { .. }
        | SessionError::Ranks { .. }
        | SessionError::Backend { .. } => Code::UNSUPPORTED,
        SessionError::Load { source: LoadError::Unsupported(_), .. } => Code::UNSUPPORTED,
        SessionError::Memory { .. } | SessionError::Thread(_) => Code::RUN,
        SessionError::Combine { .. } => Code::UNSUPPORTED,
        _ => Code::PLAN,
    };
    exit::error(code, e.to_string()).into()
}

/// The program of a plan that takes these inputs.
///
/// # Errors
/// When none does.
pub fn find_program(plan: &PlanFile, inputs: &[Value]) -> Result<usize, Diagnostics> {
    if let Some(mesh) = plan.plan().meshes.first() {
        let what = format!("the plan is for {} ranks", mesh.ranks.len());
        return Err(exit::error(Code::UNSUPPORTED, what).hint("run, bench and simulate take it").into());
    }
    of_runtime::find_program(plan, inputs).map_err(|e| exit::error(Code::INPUT, e.to_string()).into())
}

/// The diagnostic for a run that failed.
pub fn run_error(e: &RunError) -> Diagnostics {
    let cause = match e {
        RunError::Rank { source, .. } => source,
        other => other,
    };
    let code = match cause {
        RunError::InputCount { .. } | RunError::Input { .. } => Code::INPUT,
        RunError::Task { source: ExecError::Unsupported(_), .. } => Code::UNSUPPORTED,
        RunError::Task { source: ExecError::Input(_), .. } => Code::INPUT,
        _ => Code::RUN,
    };
    exit::error(code, e.to_string()).into()
}

/// Checks a module before anything is done with it.
///
/// # Errors
/// Everything that is wrong.
pub fn verify(module: &Module) -> Result<(), Diagnostics> {
    of_ir::verify_module(module)
        .map_err(|d| Diagnostics(d.0.into_iter().filter(|d| d.severity == Severity::Error).collect()))
}
