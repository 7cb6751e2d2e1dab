//! From a module to functions that are ready for code generation: verification, specialization, passes, placement.

use of_diag::{Code, Diagnostics, Severity};
use of_ir::{Func, Module, Rewriter, TensorType, Type};
use of_ops::OpSpec;
use of_ops::boxing::{
    AllGather, AllReduce, AllToAll, LocalSlice, ReduceScatter, Reshard, Send, ShardingConstraint, ToPartial,
};
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

/// Ops that change the layout of a tensor, and on the one global view of it nothing.
const LAYOUT_CHANGES: [&str; 9] = [
    ShardingConstraint::NAME,
    Send::NAME,
    AllGather::NAME,
    AllReduce::NAME,
    AllToAll::NAME,
    ToPartial::NAME,
    Reshard::NAME,
    ReduceScatter::NAME,
    LocalSlice::NAME,
];

/// Removes placements, layouts and the ops that change them: the model as one device runs it, and as other formats have it.
pub fn remove_placements(module: &mut Module) {
    if module.meshes.is_empty() {
        return;
    }
    module.meshes.clear();
    for func in module.funcs.values_mut() {
        let mut rw = Rewriter::new(&mut func.graph, "layout");
        for op in rw.graph().walk() {
            if LAYOUT_CHANGES.contains(&rw.graph().op(op).name()) {
                let whole = rw.graph().op(op).operands[0];
                rw.replace(op, &[whole]);
            }
        }
        for i in 0..rw.graph().value_slots() {
            let Some(v) = rw.graph().value_at(i) else { continue };
            if let Some(t) = rw.graph().ty(v).as_tensor().filter(|t| t.sbp.is_some()).cloned() {
                rw.set_type(v, Type::Tensor(TensorType { sbp: None, ..t }));
            }
        }
    }
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
        remove_placements(&mut single);
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
