//! Native code of every op against the interpreter, on the samples of the op, on this CPU and on the emulated GPU.
//!
//! The snapshots list the executor of each op. An op without native code runs in the interpreter, so it is pinned in the
//! snapshot and not compared.

use of_codegen::{CompileOptions, CpuCode, Isa, Target};
use of_ir::{DType, Func, Module, Tensor};
use of_ops::elementwise::Cast;
use of_ops::{Value, interpret};
use of_plan::PlanFile;
use of_reference::Reference;
use of_test_support::claims::Claims;
use of_test_support::compare::{Tolerance, assert_close, difference};
use of_test_support::op;
use of_test_support::plans::{self, emulated_gpu};

/// Tolerance: native code rounds each sum and each step of an expansion.
const ROUNDING: Tolerance = Tolerance { relative: 2e-6, of_largest: 2e-6, ..Tolerance::EXACT };
/// Next to elements that are NaN or infinite; expansions of composites may round to another integer there.
const EXTREMES: Tolerance = Tolerance { of_largest: 1e-5, of_largest_16_bit: 8e-3, steps: 1, ..Tolerance::EXACT };

/// The plan of `f` after the passes, and the ops in it without native code.
fn planned(f: &Func, isa: &'static Isa) -> (PlanFile, Vec<String>) {
    let mut module = Module::default();
    module.funcs.insert("main".into(), f.clone());
    // `machine_code.rs` has the kernels of the compiler in process.
    let target = Target { cpu_code: CpuCode::C, ..Target::new(isa, &[&Reference]) };
    let options = CompileOptions::new(target, plans::cache());
    let compiled = plans::compile_for(&plans::after_passes(module), &options).unwrap_or_else(|d| panic!("{d}"));
    let interpreted = compiled.summary.not_native.iter().map(|l| l.op.clone()).collect();
    (compiled.open().unwrap_or_else(|d| panic!("{d}")), interpreted)
}

/// Compares every op with the interpreter, and returns the native ones.
fn every_op(isa: &'static Isa, seeds: u64, symbols: bool) -> Claims {
    let mut claims = Claims::default();
    for o in op::functions(seeds, symbols) {
        let want = match interpret::run_graph(&o.func.graph, &o.inputs) {
            // Symbols may be bound to extents that the op rejects.
            Err(_) if symbols => continue,
            want => want.unwrap_or_else(|d| panic!("{}: {d}", o.decl.name())),
        };
        let (plan, interpreted) = planned(&o.func, isa);
        claims.add(o.decl.name(), interpreted.is_empty(), || {
            format!("{} run in the interpreter", interpreted.join(", "))
        });
        if interpreted.is_empty() {
            let what = format!("{} (seed {}, {})", o.decl.name(), o.seed, isa.name);
            assert_close(
                &what,
                &plans::run(plan, Reference, &o.inputs, 1 + (o.seed as usize % 2)),
                &want,
                ROUNDING.for_op(&*o.op),
            );
        }
    }
    claims
}

#[test]
fn every_op_agrees_with_the_interpreter() {
    let claims = every_op(Isa::host(), 4, false);
    insta::assert_snapshot!("native", claims);
}

#[test]
fn every_op_agrees_on_the_baseline_instruction_set() {
    if let Some(isa) = Isa::by_name("x86-64").filter(|i| i.arch == std::env::consts::ARCH) {
        insta::assert_snapshot!("native_baseline", every_op(isa, 2, false));
    }
}

#[test]
fn every_op_agrees_where_extents_are_symbols() {
    insta::assert_snapshot!("native_symbols", every_op(Isa::host(), 3, true));
}

#[test]
fn every_op_agrees_on_an_emulated_gpu() {
    if let Some(isa) = emulated_gpu() {
        insta::assert_snapshot!("cuda_emulated", every_op(isa, 2, false));
    }
}

#[test]
fn every_op_agrees_on_an_emulated_gpu_where_extents_are_symbols() {
    if let Some(isa) = emulated_gpu() {
        insta::assert_snapshot!("cuda_emulated_symbols", every_op(isa, 1, true));
    }
}

/// With an element that is NaN, infinite or -0. The functions are those of other tests, whose kernels are cached.
fn every_op_on_extremes(isa: &'static Isa, seeds: u64) {
    let (mut compared, mut apart) = (0, Vec::new());
    for o in op::functions(seeds, false) {
        let Some(inputs) = plans::with_extremes(&o.inputs, o.seed) else { continue };
        let Ok(want) = interpret::run_graph(&o.func.graph, &inputs) else { continue };
        let (plan, interpreted) = planned(&o.func, isa);
        if !interpreted.is_empty() {
            continue;
        }
        compared += 1;
        if let Some(why) = difference(&plans::run(plan, Reference, &inputs, 1), &want, EXTREMES) {
            apart.push(format!("{} (seed {}): {why}", o.decl.name(), o.seed));
        }
    }
    assert!(apart.is_empty(), "{} of {compared}:\n{}", apart.len(), apart.join("\n"));
}

#[test]
fn every_op_agrees_on_extremes() {
    every_op_on_extremes(Isa::host(), 4);
}

#[test]
fn every_op_agrees_on_extremes_on_an_emulated_gpu() {
    if let Some(isa) = emulated_gpu() {
        every_op_on_extremes(isa, 2);
    }
}

/// Every op that takes 16-bit floats in the place of f32. The interpreter computes exactly and rounds once, native code
/// wherever the expansion of a composite has a value.
fn every_op_in(dtype: DType, isa: &'static Isa) -> Claims {
    let unit = if dtype == DType::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
    let tolerance = Tolerance { relative: 8.0 * unit, of_largest: 8.0 * unit, ..Tolerance::EXACT };
    let mut claims = Claims::default();
    for (decl, seed, sample) in op::samples(1) {
        let mut converted = 0;
        let operands: Vec<Value> = sample.operands.iter().map(|v| narrowed(v, dtype, &mut converted)).collect();
        if decl.traits().effect || converted == 0 {
            continue;
        }
        let Some((f, inputs)) = op::function(&*sample.op, &operands, true) else { continue };
        let Ok(want) = interpret::run_graph(&f.graph, &inputs) else { continue };
        let (plan, interpreted) = planned(&f, isa);
        claims
            .add(decl.name(), interpreted.is_empty(), || format!("{} run in the interpreter", interpreted.join(", ")));
        if interpreted.is_empty() {
            let what = format!("{} of {dtype} (seed {seed}, {})", decl.name(), isa.name);
            assert_close(&what, &plans::run(plan, Reference, &inputs, 1), &want, tolerance.for_op(&*sample.op));
        }
    }
    claims
}

/// The value, of type `dtype` where it is f32.
fn narrowed(v: &Value, dtype: DType, count: &mut usize) -> Value {
    match v {
        Value::Tensor(t) if t.dtype() == DType::F32 => {
            *count += 1;
            Tensor::from_elements(dtype, t.dims().to_vec(), t.elements()).unwrap().into()
        }
        other => other.clone(),
    }
}

#[test]
fn every_op_agrees_on_16_bit_floats() {
    insta::assert_snapshot!("native_f16", every_op_in(DType::F16, Isa::host()));
    insta::assert_snapshot!("native_bf16", every_op_in(DType::BF16, Isa::host()));
}

#[test]
fn every_op_agrees_on_16_bit_floats_on_an_emulated_gpu() {
    if let Some(isa) = emulated_gpu() {
        insta::assert_snapshot!("cuda_emulated_f16", every_op_in(DType::F16, isa));
    }
}

/// All 16-bit floats become f32, and f32 between and beyond them the nearest of them, as the interpreter says.
#[test]
fn conversions_of_16_bit_floats_are_exact() {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let near = |bits: u32| [bits.wrapping_sub(1), bits, bits.wrapping_add(1)];
    for dtype in [DType::F16, DType::BF16] {
        let bytes = all.iter().flat_map(|h| h.to_le_bytes()).collect::<Vec<u8>>();
        let narrow = Tensor::from_bytes(dtype, vec![all.len()], of_ir::Blob::new(bytes)).unwrap();
        // Rounding changes halfway between adjacent values: test that point and its neighbours.
        let values: Vec<f32> = narrow.to_f64s().unwrap().iter().map(|x| *x as f32).collect();
        let middles = values.windows(2).map(|w| (w[0] + w[1]) / 2.0);
        let floats: Vec<f32> = middles.flat_map(|m| near(m.to_bits())).map(f32::from_bits).collect();
        let floats = Tensor::from_slice(&[floats.len()], &floats).unwrap();
        for (x, to) in [(narrow, DType::F32), (floats, dtype)] {
            let (f, inputs) = op::function(&Cast::to(to), &[x.into()], false).unwrap();
            let want = interpret::run_graph(&f.graph, &inputs).unwrap();
            let isas = ["avx2", "x86-64"].into_iter().filter_map(Isa::by_name).filter(|i| i.runs_here());
            for isa in isas.chain([Isa::host()]).chain(emulated_gpu()) {
                let (plan, interpreted) = planned(&f, isa);
                assert_eq!(interpreted, [""; 0], "{to} on {}", isa.name);
                assert_close(
                    &format!("{to} on {}", isa.name),
                    &plans::run(plan, Reference, &inputs, 1),
                    &want,
                    Tolerance::EXACT,
                );
            }
        }
    }
}
