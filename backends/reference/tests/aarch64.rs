//! Kernels that the compiler in process compiles for AArch64, run by an emulator of that processor, against the interpreter.

use std::path::Path;

use of_codegen::kernel::schedule::NONE;
use of_codegen::lower::lower;
use of_codegen::toolchain::cache::Cache;
use of_codegen::toolchain::machine;
use of_codegen::{CompileOptions, CpuCode, Isa, Target, rewrite};
use of_ir::{Blob, DType, Func, Module, Tensor};
use of_ops::nn::MatMulInteger;
use of_ops::sample::Rng;
use of_ops::{Op, Value, interpret};
use of_plan::{Environment, PlanBuilder, PlanFile, PlanInfo};
use of_reference::Reference;
use of_test_support::aarch64::{self, Programs};
use of_test_support::compare::{Tolerance, assert_close, difference};
use of_test_support::{op, plans};

/// As for kernels of other processors.
const ROUNDING: Tolerance = Tolerance { relative: 2e-6, of_largest: 2e-6, ..Tolerance::EXACT };
const EXTREMES: Tolerance = Tolerance { of_largest: 1e-5, of_largest_16_bit: 8e-3, steps: 1, ..Tolerance::EXACT };

fn isa() -> &'static Isa {
    Isa::by_name("aarch64").unwrap()
}

fn target() -> Target<'static> {
    Target { cpu_code: CpuCode::Machine, schedules: &NONE, ..Target::new(isa(), &[&Reference]) }
}

/// How many kernels are emitted, and the reasons why others are not; none where a function has other parts than kernels.
fn kernels(f: &Func) -> Option<Result<usize, String>> {
    let mut module = Module::default();
    module.funcs.insert("main".into(), f.clone());
    let f = plans::after_passes(module);
    let f = rewrite::for_isa(&f, isa()).unwrap_or_else(|d| panic!("{d}"));
    let mut builder = PlanBuilder::new(PlanInfo::default(), Environment::default());
    let lowered = lower(&f, &target(), None, None, &mut builder).unwrap_or_else(|d| panic!("{d}"));
    if lowered.kernels.is_empty() || !lowered.inner.is_empty() || !lowered.not_native.is_empty() {
        return None;
    }
    Some(
        lowered
            .kernels
            .iter()
            .map(|k| machine::compile(&k.body, isa()))
            .collect::<Result<Vec<_>, _>>()
            .map(|k| k.len()),
    )
}

/// The plan of a function, all of whose kernels are emitted.
fn plan(f: &Func) -> PlanFile {
    let mut module = Module::default();
    module.funcs.insert("main".into(), f.clone());
    let f = plans::after_passes(module);
    let plan = plans::compile_for(&f, &CompileOptions::new(target(), Cache::none())).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(plan.summary.compiled, 0, "nothing is compiled");
    plan.open().unwrap_or_else(|d| panic!("{d}"))
}

/// Functions to run, each with its name, the values that the interpreter computes, and a tolerance.
#[derive(Default)]
struct Batch {
    programs: Programs,
    wanted: Vec<(String, Vec<Value>, Tolerance)>,
}

impl Batch {
    /// Adds a function whose kernels all are emitted; false where a plan needs what the emulated machine has not.
    fn add(&mut self, what: String, f: &Func, inputs: &[Value], want: Vec<Value>, tolerance: Tolerance) -> bool {
        let added = self.programs.add(&plan(f), inputs).is_ok();
        if added {
            self.wanted.push((what, want, tolerance));
        }
        added
    }

    /// Runs all, and compares.
    fn check(&self, machine: &aarch64::Machine) {
        let results = machine.run(&self.programs).unwrap_or_else(|why| panic!("{why}, of {:?}", self.names()));
        let mut wrong = Vec::new();
        for (got, (what, want, tolerance)) in results.iter().zip(&self.wanted) {
            let why = match got {
                Ok(got) => difference(got, want, *tolerance),
                Err(why) => Some(why.clone()),
            };
            wrong.extend(why.map(|why| format!("{what}: {why}")));
        }
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), self.wanted.len(), wrong.join("\n"));
    }

    fn names(&self) -> Vec<&str> {
        self.wanted.iter().map(|(what, ..)| &what[..]).collect()
    }
}

#[test]
fn emitted_kernels_agree_with_the_interpreter() {
    let Some(machine) = aarch64::machine() else { return };
    let (mut batch, mut count, mut refused, mut only_compiled) = (Batch::default(), 0, Vec::new(), 0);
    for o in op::functions(4, false) {
        let Ok(want) = interpret::run_graph(&o.func.graph, &o.inputs) else { continue };
        match kernels(&o.func) {
            None => continue,
            Some(Ok(n)) => count += n,
            Some(Err(why)) => {
                refused.push(format!("{} (seed {}): {why}", o.decl.name(), o.seed));
                continue;
            }
        }
        let what = format!("{} (seed {})", o.decl.name(), o.seed);
        if !batch.add(what.clone(), &o.func, &o.inputs, want, ROUNDING.for_op(&*o.op)) {
            only_compiled += 1;
            continue;
        }
        let Some(inputs) = plans::with_extremes(&o.inputs, o.seed) else { continue };
        let Ok(want) = interpret::run_graph(&o.func.graph, &inputs) else { continue };
        batch.add(format!("{what} on extremes"), &o.func, &inputs, want, EXTREMES);
    }
    println!(
        "{count} kernels are emitted, {} functions are refused; {} programs run, {only_compiled} are only compiled",
        refused.len(),
        batch.programs.len()
    );
    assert!(batch.programs.len() > 500, "{} programs run", batch.programs.len());
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    batch.check(&machine);
}

#[test]
fn kernels_of_open_extents_are_emitted() {
    let (mut count, mut refused) = (0, Vec::new());
    for o in op::functions(2, true) {
        match kernels(&o.func) {
            None => {}
            Some(Ok(n)) => count += n,
            Some(Err(why)) => refused.push(format!("{} (seed {}): {why}", o.decl.name(), o.seed)),
        }
    }
    println!("{count} kernels of open extents are emitted, {} functions are refused", refused.len());
    assert!(count > 300, "{count} kernels are emitted");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn emitted_kernels_agree_on_16_bit_floats() {
    let Some(machine) = aarch64::machine() else { return };
    for dtype in [DType::F16, DType::BF16] {
        let unit = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        let tolerance = Tolerance { relative: 8.0 * unit, of_largest: 8.0 * unit, ..Tolerance::EXACT };
        let mut batch = Batch::default();
        for (decl, seed, sample) in op::samples(1) {
            let narrowed = |v: &Value| match v {
                Value::Tensor(t) if t.dtype() == DType::F32 => {
                    Tensor::from_elements(dtype, t.dims().to_vec(), t.elements()).unwrap().into()
                }
                other => other.clone(),
            };
            let operands: Vec<Value> = sample.operands.iter().map(narrowed).collect();
            // Some ops are of f32 alone.
            if op::function(&*sample.op, &operands, true).is_none() {
                continue;
            }
            let Some((f, inputs)) = op::function(&*sample.op, &operands, false) else { continue };
            let Ok(want) = interpret::run_graph(&f.graph, &inputs) else { continue };
            let Some(Ok(_)) = kernels(&f) else { continue };
            let what = format!("{} of {dtype} (seed {seed})", decl.name());
            batch.add(what, &f, &inputs, want, tolerance.for_op(&*sample.op));
        }
        let count = batch.programs.len();
        println!("{count} ops of {dtype} run");
        assert!(count > 40, "{count} ops of {dtype} run");
        batch.check(&machine);
    }
}

#[test]
fn products_of_bytes_are_exact() {
    let Some(machine) = aarch64::machine() else { return };
    let mut batch = Batch::default();
    for seed in 0..40 {
        let mut r = Rng::new(seed);
        let (dtype, low, high) = if seed % 2 == 0 { (DType::U8, 0.0, 255.0) } else { (DType::I8, -128.0, 127.0) };
        let (rows, k, columns) = (r.int(1, 40) as usize, r.pick(&[4, 16, 20, 48, 64, 68]), r.int(1, 70) as usize);
        let operands: [Value; 2] =
            [r.tensor(dtype, &[rows, k], low, high).into(), r.tensor(DType::I8, &[k, columns], -128.0, 127.0).into()];
        let op = MatMulInteger {};
        let build = (op.decl().as_def(), op.attrs());
        let (graph, inputs) = op::build(build, &operands, |i, _| i > 0, |ty| ty).unwrap();
        let f = Func::numbered(graph);
        let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
        assert!(batch.add(format!("bytes (seed {seed})"), &f, &inputs, want, Tolerance::EXACT));
    }
    batch.check(&machine);
}

/// The digits of the example, which its images show.
const DIGITS: [usize; 8] = [7, 0, 3, 9, 1, 4, 8, 2];

#[test]
fn a_model_recognizes_digits() {
    let Some(machine) = aarch64::machine() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits");
    let mut module = of_onnx::import_file(&folder.join("digits.onnx"), &Default::default()).unwrap();
    let mut manager = of_passes::Manager::default();
    manager.append("specialize{N=8}").unwrap();
    manager.run(&mut module, &mut |_| ()).unwrap();
    let f = module.main().unwrap().clone();
    // What follows the header of the file are eight images.
    let file = std::fs::read(folder.join("images.npy")).unwrap();
    let pixels = Blob::new(file[file.len() - 4 * 8 * 64..].to_vec());
    let images: Value = Tensor::from_bytes(DType::F32, vec![8, 1, 8, 8], pixels).unwrap().into();
    let want = interpret::run_graph(&f.graph, std::slice::from_ref(&images)).unwrap();
    assert_eq!(plan(&f).bytes(), plan(&f).bytes(), "two compilations differ");
    let mut programs = Programs::default();
    programs.add(&plan(&f), &[images]).unwrap();
    let got = machine.run(&programs).unwrap().remove(0).unwrap();
    assert_close("digits", &got, &want, ROUNDING);
    let scores = plans::tensors(&got)[0].to_f64s().unwrap();
    let best = |row: &[f64]| (0..10).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    assert_eq!(scores.chunks(10).map(best).collect::<Vec<_>>(), DIGITS);
}
