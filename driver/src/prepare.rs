//! From a module to functions that are ready for code generation: verification, specialization, passes, placement.

use of_diag::{Code, Diagnostics, Severity};
use of_ir::{Func, Module};
use of_passes::specialize::Bindings;
use of_passes::{CPU_PIPELINE, Manager, PIPELINE_FILE};

use crate::backends::Backends;
use crate::codegen_passes;
use crate::error::error;
use crate::observer::{Observer, checkpoint, report};
use crate::options::CompileOptions;
use crate::shapes;

/// The function of a module.
///
/// # Errors
/// When it has none, or several: no op calls a function, so all but one would be dropped.
pub fn main_func(module: &Module) -> Result<&Func, Diagnostics> {
    match module.main() {
        Some(func) if module.funcs.len() == 1 => Ok(func),
        _ => {
            let names: Vec<String> = module.funcs.keys().map(|n| format!("@{n}")).collect();
            if names.is_empty() {
                return Err(error(Code::NAME, "the module has no function").into());
            }
            let what = format!("the module has {} functions, and one alone can be compiled: ", names.len());
            Err(error(Code::NAME, what + &names.join(", ")).hint("keep one function in a text").into())
        }
    }
}

/// Verifies a module.
///
/// # Errors
/// Every violated invariant.
pub fn verify(module: &Module) -> Result<(), Diagnostics> {
    of_ir::verify_module(module)
        .map_err(|d| Diagnostics(d.0.into_iter().filter(|d| d.severity == Severity::Error).collect()))
}

/// A module that holds `func` alone, with the name and meshes of `module`.
pub(crate) fn module_of(func: Func, module: &Module) -> Module {
    let mut single = Module { name: module.name.clone(), meshes: module.meshes.clone(), ..Module::default() };
    single.funcs.insert("main".into(), func);
    single
}

/// As [`module_of`], for a compilation: the graph records rewrites if the options say so.
pub(crate) fn module_to_compile(func: Func, module: &Module, options: &CompileOptions) -> Module {
    let mut single = module_of(func, module);
    if options.record_rewrites {
        single.funcs.values_mut().for_each(|func| func.graph.record_rewrites());
    }
    single
}

/// One function for each set of shape bindings, after all passes and with its ops placed on backends, under the name of
/// its program.
///
/// # Errors
/// When a pass fails (shapes do not fit, or a pass is broken), or a backend does not execute an op that is pinned to it.
pub fn prepare(
    module: &Module,
    variants: &[Bindings],
    options: &CompileOptions,
    backends: &Backends,
    observer: &dyn Observer,
) -> Result<Vec<(String, Func)>, Diagnostics> {
    let mut prepared = run_passes(module, variants, options, observer)?;
    let mut funcs: Vec<&mut Func> = prepared.iter_mut().map(|(_, f)| f).collect();
    if let Some(placements) = backends.place(&mut funcs, options)? {
        observer.placed(&placements, None);
    }
    codegen_passes::run(&mut funcs, module, options, observer)?;
    Ok(prepared)
}

/// The functions of [`prepare`] before their ops are placed on backends.
///
/// # Errors
/// When a pass fails.
pub fn run_passes(
    module: &Module,
    variants: &[Bindings],
    options: &CompileOptions,
    observer: &dyn Observer,
) -> Result<Vec<(String, Func)>, Diagnostics> {
    let func = main_func(module)?;
    let text = options.pipeline.as_deref().unwrap_or(CPU_PIPELINE);
    observer.source(PIPELINE_FILE, text);
    let mut prepared = Vec::with_capacity(variants.len());
    for bindings in variants {
        let activity = observer.begin("running passes");
        let mut single = module_to_compile(func.clone(), module, options);
        let mut manager = Manager::default();
        manager.add::<of_passes::Specialize>(bindings.clone()).append(text)?;
        manager.settings.reproducers.clone_from(&options.reproducers);
        manager.checkpoint = checkpoint(&activity, &options.limits);
        let run = manager.run(&mut single, &mut |s| observer.ir(s))?;
        report(observer, &run.warnings);
        tracing::debug!("\n{}", run.table());
        if let Some(f) = single.funcs.swap_remove("main") {
            prepared.push((shapes::program_name(bindings), f));
        }
    }
    Ok(prepared)
}
