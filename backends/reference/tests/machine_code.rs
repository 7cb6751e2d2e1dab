//! Kernels that the compiler in process compiles, against the interpreter, on the samples of every op and for every instruction set
//! that it has. `every_op.rs` compares the same kernels from the machine's C compiler within the same tolerance.
//!
//! The snapshots list which ops have such kernels only, and why the C compiler compiles the others.

use of_codegen::kernel::schedule::NONE;
use of_codegen::lower::{Lowered, lower};
use of_codegen::toolchain::machine;
use of_codegen::{CompileOptions, CpuCode, Isa, Target, rewrite};
use of_ir::{DType, Dim, Func, Module, Tensor, Type};
use of_ops::nn::{ConvInteger, MatMulInteger};
use of_ops::sample::Rng;
use of_ops::{Op, Value, interpret};
use of_plan::{Environment, PlanBuilder, PlanFile, PlanInfo};
use of_reference::Reference;
use of_test_support::claims::Claims;
use of_test_support::compare::{Tolerance, assert_close, difference};
use of_test_support::op;
use of_test_support::plans;

/// As for kernels in C.
const ROUNDING: Tolerance = Tolerance { relative: 2e-6, of_largest: 2e-6, ..Tolerance::EXACT };
const EXTREMES: Tolerance = Tolerance { of_largest: 1e-5, of_largest_16_bit: 8e-3, steps: 1, ..Tolerance::EXACT };

/// The instruction sets of the compiler that this machine has.
fn instruction_sets() -> Vec<&'static Isa> {
    ["avx2", "avx512", "avx512vnni", "avx512bf16", "avx512amx"]
        .into_iter()
        .filter_map(Isa::by_name)
        .filter(|isa| isa.runs_here())
        .collect()
}

fn target(isa: &'static Isa) -> Target<'static> {
    Target { cpu_code: CpuCode::Machine, schedules: &NONE, ..Target::new(isa, &[&Reference]) }
}

/// The function after the passes, and its kernels.
fn lowered(f: &Func, isa: &'static Isa) -> (Func, Lowered) {
    let mut module = Module::default();
    module.funcs.insert("main".into(), f.clone());
    let f = plans::after_passes(module);
    let f = rewrite::for_isa(&f, isa).unwrap_or_else(|d| panic!("{d}"));
    let mut builder = PlanBuilder::new(PlanInfo::default(), Environment::default());
    let lowered = lower(&f, &target(isa), None, None, &mut builder).unwrap_or_else(|d| panic!("{d}"));
    (f.into_owned(), lowered)
}

/// The plan of a function whose kernels all are compiled in process; else the reason why not.
fn emitted(f: &Func, isa: &'static Isa) -> Result<Option<PlanFile>, String> {
    let (f, lowered) = lowered(f, isa);
    let compile = || lowered.kernels.iter().map(|k| machine::compile(&k.body, isa)).collect::<Result<Vec<_>, _>>();
    let first = compile()?;
    if first.is_empty() || !lowered.inner.is_empty() || !lowered.not_native.is_empty() {
        return Ok(None);
    }
    assert_eq!(first, compile()?, "two compilations differ");
    let plan = plans::compile_for(&f, &CompileOptions::new(target(isa), of_codegen::toolchain::cache::Cache::none()));
    let plan = plan.unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(plan.summary.compiled, 0, "nothing is compiled");
    Ok(Some(plan.open().unwrap_or_else(|d| panic!("{d}"))))
}

/// Compares every op whose kernels are emitted with the interpreter, also on inputs with NaN, infinities and -0.
fn every_op(isa: &'static Isa, seeds: u64, symbols: bool) -> Claims {
    let (mut claims, mut apart) = (Claims::default(), Vec::new());
    for o in op::functions(seeds, symbols) {
        let Ok(want) = interpret::run_graph(&o.func.graph, &o.inputs) else { continue };
        let plan = emitted(&o.func, isa);
        if let Ok(None) = plan {
            continue;
        }
        claims.add(o.decl.name(), plan.is_ok(), || plan.as_ref().err().cloned().unwrap_or_default());
        let Ok(Some(plan)) = plan else { continue };
        let what = format!("{} (seed {}, {})", o.decl.name(), o.seed, isa.name);
        assert_close(
            &what,
            &plans::run(plan, Reference, &o.inputs, 1 + (o.seed as usize % 2)),
            &want,
            ROUNDING.for_op(&*o.op),
        );
        let Some(inputs) = plans::with_extremes(&o.inputs, o.seed) else { continue };
        let Ok(want) = interpret::run_graph(&o.func.graph, &inputs) else { continue };
        let Ok(Some(plan)) = emitted(&o.func, isa) else { continue };
        if let Some(why) = difference(&plans::run(plan, Reference, &inputs, 1), &want, EXTREMES) {
            apart.push(format!("{what} on extremes: {why}"));
        }
    }
    assert!(apart.is_empty(), "{}", apart.join("\n"));
    claims
}

#[test]
fn emitted_kernels_agree_with_the_interpreter() {
    for isa in instruction_sets() {
        insta::assert_snapshot!(format!("emitted_{}", isa.name), every_op(isa, 4, false));
    }
}

#[test]
fn emitted_kernels_agree_where_extents_are_symbols() {
    for isa in instruction_sets() {
        insta::assert_snapshot!(format!("emitted_{}_symbols", isa.name), every_op(isa, 3, true));
    }
}

#[test]
fn emitted_kernels_agree_on_16_bit_floats() {
    for (isa, dtype) in instruction_sets().into_iter().flat_map(|isa| [(isa, DType::F16), (isa, DType::BF16)]) {
        let unit = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        let tolerance = Tolerance { relative: 8.0 * unit, of_largest: 8.0 * unit, ..Tolerance::EXACT };
        let mut compared = 0;
        for (decl, seed, sample) in op::samples(1) {
            let operands: Vec<Value> = sample.operands.iter().map(|v| narrowed(v, dtype)).collect();
            let Some((f, inputs)) = op::function(&*sample.op, &operands, true) else { continue };
            let Ok(want) = interpret::run_graph(&f.graph, &inputs) else { continue };
            let Ok(Some(plan)) = emitted(&f, isa) else { continue };
            let what = format!("{} of {dtype} (seed {seed}, {})", decl.name(), isa.name);
            assert_close(&what, &plans::run(plan, Reference, &inputs, 1), &want, tolerance.for_op(&*sample.op));
            compared += 1;
        }
        assert!(compared > 40, "{compared} ops of {dtype} are emitted for {}", isa.name);
    }
}

/// The value, of type `dtype` where it is f32.
fn narrowed(v: &Value, dtype: DType) -> Value {
    match v {
        Value::Tensor(t) if t.dtype() == DType::F32 => {
            Tensor::from_elements(dtype, t.dims().to_vec(), t.elements()).unwrap().into()
        }
        other => other.clone(),
    }
}

/// A product or convolution of bytes with constant weights: parts of tiles, runs that do not fill a register, several rows of an image
/// in a tile.
fn product_of_bytes(seed: u64) -> (Box<dyn Op>, Vec<Value>) {
    let mut r = Rng::new(seed);
    let (dtype, low, high) = if r.int(0, 1) == 0 { (DType::U8, 0.0, 255.0) } else { (DType::I8, -128.0, 127.0) };
    let (k, columns) = (r.pick(&[4, 16, 20, 48, 64, 68, 96, 128, 192]), r.int(1, 70) as usize);
    let (op, x, w): (Box<dyn Op>, Vec<usize>, Vec<usize>) = if r.int(0, 1) == 0 {
        (Box::new(MatMulInteger {}), vec![r.int(1, 80) as usize, k], vec![k, columns])
    } else {
        let (stride, area) = (r.int(1, 2), r.pick(&[1, 3]));
        let conv = ConvInteger {
            strides: vec![stride; 2],
            pads: vec![area as i64 / 2; 4],
            dilations: vec![1; 2],
            group: 1,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        let x = vec![r.int(1, 2) as usize, k, r.int(3, 15) as usize, r.int(3, 40) as usize];
        (Box::new(conv), x, vec![columns, k, area, area])
    };
    let operands = vec![r.tensor(dtype, &x, low, high).into(), r.tensor(DType::I8, &w, -128.0, 127.0).into()];
    (op, operands)
}

#[test]
fn products_of_bytes_are_exact() {
    for (isa, seed) in instruction_sets().into_iter().flat_map(|isa| (0..40).map(move |seed| (isa, seed))) {
        let (op, operands) = product_of_bytes(seed);
        // The weights are constants; the number of rows or samples is a symbol in every third function.
        let mut first = true;
        let ty = |ty: Type| {
            ty.map_dims(&mut |d| match std::mem::take(&mut first) && seed % 3 == 0 {
                true => Dim::symbol("n"),
                false => d.clone(),
            })
        };
        let (graph, inputs) = op::build((op.decl().as_def(), op.attrs()), &operands, |i, _| i > 0, ty).unwrap();
        let f = Func::numbered(graph);
        let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("seed {seed}: {d}"));
        let what = format!("{} of bytes (seed {seed}, {})", op.decl().name(), isa.name);
        let plan = emitted(&f, isa).unwrap_or_else(|why| panic!("{what}: {why}"));
        let plan = plan.unwrap_or_else(|| panic!("{what} has no kernels"));
        assert_close(&what, &plans::run(plan, Reference, &inputs, 1), &want, Tolerance::EXACT);
        if seed < 4 {
            let target = Target { cpu_code: CpuCode::C, ..target(isa) };
            let plan = plans::compile_for(&f, &CompileOptions::new(target, plans::cache()))
                .unwrap_or_else(|d| panic!("{what} in C: {d}"));
            let plan = plan.open().unwrap_or_else(|d| panic!("{what} in C: {d}"));
            assert_close(&what, &plans::run(plan, Reference, &inputs, 1), &want, Tolerance::EXACT);
        }
    }
}
