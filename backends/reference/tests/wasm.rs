//! Kernels for WebAssembly, run by the runtime's module in Node.js, against the interpreter.

use of_codegen::kernel::schedule::NONE;
use of_codegen::toolchain::cache::Cache;
use of_codegen::{CompileOptions, Isa, Target, rewrite};
use of_ir::{Func, Module};
use of_ops::interpret;
use of_plan::PlanFile;
use of_reference::Reference;
use of_test_support::compare::{Tolerance, difference};
use of_test_support::wasm::{self, Programs};
use of_test_support::{op, plans};

/// As for kernels of other processors.
const ROUNDING: Tolerance = Tolerance { relative: 2e-6, of_largest: 2e-6, ..Tolerance::EXACT };

/// The plan of a function; `None` where it has other parts than kernels.
fn plan(f: &Func) -> Option<PlanFile> {
    let isa = Isa::by_name("wasm32").unwrap();
    let mut module = Module::default();
    module.funcs.insert("main".into(), f.clone());
    let f = plans::after_passes(module);
    let f = rewrite::for_isa(&f, isa).unwrap_or_else(|d| panic!("{d}"));
    let target = Target { schedules: &NONE, ..Target::new(isa, &[&Reference]) };
    let plan = plans::compile_for(&f, &CompileOptions::new(target, Cache::none())).unwrap_or_else(|d| panic!("{d}"));
    let plan = plan.open().unwrap_or_else(|d| panic!("{d}"));
    let tasks = plan.plan().programs.iter().flat_map(|program| &program.tasks);
    let native = tasks.filter_map(|task| task.exec.as_ref()).all(|e| !matches!(e, of_plan::Exec::Backend(_)));
    native.then_some(plan)
}

/// Runs functions with known or open extents, one sample of each op, and compares with the interpreter.
fn agree(open: bool, least: usize) {
    let Some(machine) = wasm::machine() else { return };
    let (mut programs, mut wanted) = (Programs::default(), Vec::new());
    for o in op::functions(1, open) {
        let Ok(want) = interpret::run_graph(&o.func.graph, &o.inputs) else { continue };
        let Some(plan) = plan(&o.func) else { continue };
        if programs.add(&plan, &o.inputs).is_ok() {
            wanted.push((format!("{} (seed {})", o.decl.name(), o.seed), want, ROUNDING.for_op(&*o.op)));
        }
    }
    println!("{} programs run", programs.len());
    assert!(programs.len() > least, "{} programs run", programs.len());
    let results = machine.run(&programs).unwrap();
    let mut wrong = Vec::new();
    for (got, (what, want, tolerance)) in results.iter().zip(&wanted) {
        let why = match got {
            Ok(got) => difference(got, want, *tolerance),
            Err(why) => Some(why.clone()),
        };
        wrong.extend(why.map(|why| format!("{what}: {why}")));
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), wanted.len(), wrong.join("\n"));
}

#[test]
fn kernels_agree_with_the_interpreter() {
    agree(false, 100);
}

#[test]
fn kernels_of_open_extents_agree_with_the_interpreter() {
    agree(true, 50);
}
