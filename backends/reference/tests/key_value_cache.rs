//! Attention with a cache of keys and values, in native code: prefill and decode are programs of one plan that share the cache.

use std::sync::Arc;

use of_codegen::{CompileOptions, Isa, Target, compile, rewrite};
use of_frontend::Builder;
use of_frontend::nn::{Init, Layer, MultiHeadAttention};
use of_ir::{DType, Func, Module, Tensor, Type};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_plan::{Exec, PlanFile};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, Session, Variables};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::plans as support;

const BATCH: usize = 2;
const SIZE: usize = 32;
/// Positions of the cache.
const LENGTH: usize = 8;

fn layer() -> MultiHeadAttention {
    MultiHeadAttention::new(&mut Init::new(5), SIZE, 4).unwrap().causal()
}

/// The attention of all positions together.
fn whole(x: &Tensor) -> Tensor {
    let mut b = Builder::new("whole");
    let v = b.input("x", Type::fixed(DType::F32, x.dims()));
    let y = layer().apply(&mut b, v).unwrap();
    let m = b.finish(&[("y", y)]).unwrap();
    match interpret::run_graph(&m.main().unwrap().graph, &[x.clone().into()]).unwrap().remove(0) {
        Value::Tensor(y) => y,
        _ => panic!("no tensor"),
    }
}

/// The attention of so many new tokens, with a cache.
fn cached(tokens: usize) -> Module {
    let mut b = Builder::new("cached");
    let x = b.input("x", Type::fixed(DType::F32, &[BATCH, tokens, SIZE]));
    let position = b.input("position", Type::fixed(DType::I64, &[]));
    let y = b.within("attention", |b| layer().apply_cached(b, x, LENGTH, position)).unwrap_or_else(|d| panic!("{d}"));
    b.finish(&[("y", y)]).unwrap_or_else(|d| panic!("{d}"))
}

/// A plan with a program for each of these numbers of tokens.
fn plan(tokens: &[usize]) -> Arc<PlanFile> {
    let attributes = |tokens: usize| {
        let module = cached(tokens);
        let attrs = module.main().unwrap().attrs.clone();
        Func { attrs, ..support::after_passes(module) }
    };
    let funcs: Vec<(String, Func)> = tokens
        .iter()
        .map(|n| (format!("of {n}"), rewrite::for_isa(&attributes(*n), Isa::host()).unwrap().into_owned()))
        .collect();
    let funcs: Vec<(String, &Func)> = funcs.iter().map(|(name, f)| (name.clone(), f)).collect();
    let options = CompileOptions::new(Target::new(Isa::host(), &[&Reference]), support::cache());
    Arc::new(compile(&funcs, &options).unwrap_or_else(|d| panic!("{d}")).open().unwrap_or_else(|d| panic!("{d}")))
}

/// Sessions of all programs of a plan, which share variables.
fn sessions(plan: &Arc<PlanFile>) -> (Vec<Session>, Arc<Variables>) {
    let options = Options { threads: 2, ..Default::default() };
    let first = Session::new(Arc::clone(plan), 0, options, &[Arc::new(Reference)]).unwrap();
    let shared = Arc::clone(first.variables().unwrap());
    let others = 1..plan.plan().programs.len();
    let others =
        others.map(|i| Session::sharing(Arc::clone(plan), i, options, &[Arc::new(Reference)], &shared).unwrap());
    (std::iter::once(first).chain(others).collect(), shared)
}

/// Positions `from..to` of `[BATCH, positions, SIZE]`.
fn part(x: &Tensor, from: usize, to: usize) -> Tensor {
    let (all, positions) = (x.as_slice::<f32>().unwrap(), x.dims()[1]);
    let samples = (0..BATCH).map(|n| &all[(n * positions + from) * SIZE..(n * positions + to) * SIZE]);
    Tensor::from_slice(&[BATCH, to - from, SIZE], &samples.flatten().copied().collect::<Vec<f32>>()).unwrap()
}

fn run(session: &mut Session, x: &Tensor, position: i64) -> Result<Tensor, of_runtime::RunError> {
    let inputs = [x.clone().into(), Tensor::scalar(position).into()];
    let out = session.run(inputs.iter().map(|v| to_runtime(v).unwrap()).collect())?;
    match from_runtime(&out[0]).unwrap() {
        Value::Tensor(y) => Ok(y),
        _ => panic!("no tensor"),
    }
}

#[test]
fn prefill_and_decode_equal_the_attention_of_all_positions() {
    let x = Rng::new(3).tensor(DType::F32, &[BATCH, LENGTH, SIZE], -1.0, 1.0);
    let want = whole(&x);
    let plan = plan(&[1, 5]);
    let (mut sessions, variables) = sessions(&plan);
    let close = |what: &str, got: Tensor, from: usize, to: usize| {
        assert_close(what, &[got.into()], &[part(&want, from, to).into()], Tolerance::elementwise(1e-5));
    };
    for position in 0..LENGTH {
        let y = run(&mut sessions[0], &part(&x, position, position + 1), position as i64).unwrap();
        close(&format!("token {position}"), y, position, position + 1);
    }
    // What earlier runs left behind the position is not seen.
    let y = run(&mut sessions[1], &part(&x, 0, 5), 0).unwrap();
    close("the first five", y, 0, 5);
    for position in 5..LENGTH {
        let y = run(&mut sessions[0], &part(&x, position, position + 1), position as i64).unwrap();
        close(&format!("token {position} after the first five"), y, position, position + 1);
    }
    // Three and then five.
    variables.reset();
    for position in 0..3 {
        run(&mut sessions[0], &part(&x, position, position + 1), position as i64).unwrap();
    }
    let y = run(&mut sessions[1], &part(&x, 3, 8), 3).unwrap();
    close("the last five", y, 3, 8);
}

#[test]
fn a_run_writes_the_new_tokens_alone() {
    let plan = plan(&[1, 5]);
    for program in &plan.plan().programs {
        let mut written: Vec<usize> = program.tasks.iter().flat_map(|t| program.variables_written(t)).collect();
        written.sort_unstable();
        assert_eq!(written, [0, 1], "{}", program.name);
        for task in program.tasks.iter().filter(|t| program.variables_written(t).next().is_some()) {
            assert!(matches!(task.exec, Some(Exec::Kernel(_))), "{}: a whole cache is copied", program.name);
        }
        let in_place = program.registers.iter().filter(|r| !r.inplace_of.is_empty()).count();
        assert_eq!(in_place, 2, "{}", program.name);
    }
    // The positions that a run does not write keep their bits.
    let (mut sessions, variables) = sessions(&plan);
    let marks = of_runtime::Tensor::from_elements([2, 4, 8, 8], &[7.5f32; 512]).unwrap();
    let name = variables.list()[0].name.clone();
    assert_eq!(name, "attention.keys");
    variables.set(&name, &marks).unwrap();
    let x = Rng::new(4).tensor(DType::F32, &[BATCH, 1, SIZE], -1.0, 1.0);
    run(&mut sessions[0], &x, 6).unwrap();
    let after = variables.get(&name).unwrap().to_elements::<f32>().unwrap();
    let changed: Vec<bool> = after.chunks(8).map(|row| row != [7.5; 8]).collect();
    assert!(changed.chunks(8).all(|positions| *positions == [false, false, false, false, false, false, true, false]));
}

#[test]
fn positions_outside_of_the_cache_are_errors() {
    let (mut sessions, variables) = sessions(&plan(&[1, 5]));
    let x = Rng::new(4).tensor(DType::F32, &[BATCH, 5, SIZE], -1.0, 1.0);
    for position in [4, -1] {
        let error = run(&mut sessions[1], &x, position).unwrap_err().to_string();
        assert!(error.contains("index"), "{error}");
        // A reset gives the cache a value again.
        variables.reset();
        run(&mut sessions[1], &x, 3).unwrap();
    }
}
