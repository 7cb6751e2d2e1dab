//! Updates of small variables share a kernel, and compute the bits that they compute alone.

use std::sync::Arc;

use of_codegen::{CompileOptions, Isa, Target, compile, rewrite};
use of_frontend::Builder;
use of_frontend::training::{Arithmetic, Hyperparameters, StepNumbers, named};
use of_ir::{DType, Func, Tensor, Type};
use of_ops::sample::Rng;
use of_ops::training::InitialValue;
use of_plan::{Exec, PlanFile, Program};
use of_reference::{Reference, to_runtime};
use of_runtime::{Options, Session};
use of_test_support::plans as support;

/// One step of an optimizer for parameters of so many elements, which are called by their numbers.
fn plan(optimizer: &str, parameters: &[(usize, usize)]) -> Arc<PlanFile> {
    let optimizer = named(optimizer, &Hyperparameters { momentum: Some(0.9), ..Default::default() }).unwrap();
    let mut b = Builder::new("step");
    let number = Type::fixed(DType::F32, &[]);
    let step = StepNumbers { rate: b.input("rate", number.clone()), count: b.input("count", number) };
    let mut sum = None;
    for (name, elements) in parameters {
        let ty = Type::fixed(DType::F32, &[*elements]);
        let gradient = b.input(&format!("g{name}"), ty.clone());
        let first = Rng::new(*name as u64).tensor(DType::F32, &[*elements], -1.0, 1.0);
        let p = b.variable(&format!("p{name}"), ty.clone(), Some(InitialValue::Tensor(first)));
        let states = optimizer.states().into_iter();
        let states: Vec<_> =
            states.map(|state| b.variable(&format!("{state}{name}"), ty.clone(), Some(InitialValue::Zeros))).collect();
        let mut a = Arithmetic::new(&mut b);
        let (next, new) = optimizer.update(&mut a, step, p, gradient, &states).unwrap();
        let own = a.sum(gradient).unwrap();
        sum = Some(match sum {
            None => own,
            Some(sum) => a.add(sum, own).unwrap(),
        });
        b.set_next(p, next).unwrap();
        states.into_iter().zip(new).for_each(|(old, new)| b.set_next(old, new).unwrap());
    }
    let module = b.finish(&[("sum", sum.unwrap())]).unwrap_or_else(|d| panic!("{d}"));
    let attrs = module.main().unwrap().attrs.clone();
    let func = Func { attrs, ..support::after_passes(module) };
    let func = rewrite::for_isa(&func, Isa::host()).unwrap().into_owned();
    let options = CompileOptions::new(Target::new(Isa::host(), &[&Reference]), support::cache());
    let compiled = compile(&[("step".into(), &func)], &options).unwrap_or_else(|d| panic!("{d}"));
    assert!(compiled.summary.not_emitted.is_empty());
    Arc::new(compiled.open().unwrap_or_else(|d| panic!("{d}")))
}

/// The number of variables that each kernel updates, in ascending order.
fn updates(program: &Program) -> Vec<usize> {
    let mut out = Vec::new();
    for task in &program.tasks {
        let count = program.variables_written(task).count();
        if count > 0 {
            assert!(matches!(task.exec, Some(Exec::Kernel(_))), "{}", task.name);
            out.push(count);
        }
    }
    out.sort_unstable();
    out
}

/// Names and bytes of the variables after three steps.
fn trained(plan: &Arc<PlanFile>, parameters: &[(usize, usize)]) -> Vec<(String, Vec<u8>)> {
    let options = Options { threads: 2, ..Default::default() };
    let mut session = Session::new(Arc::clone(plan), 0, options, &[Arc::new(Reference)]).unwrap();
    for step in 1..=3u64 {
        let gradient = |(name, elements): &(usize, usize)| {
            Rng::new(100 * step + *name as u64).tensor(DType::F32, &[*elements], -1.0, 1.0)
        };
        let numbers = [Tensor::scalar(0.01f32), Tensor::scalar(step as f32)];
        let inputs = numbers.into_iter().chain(parameters.iter().map(gradient));
        session.run(inputs.map(|x| to_runtime(&x.into()).unwrap()).collect()).unwrap();
    }
    let variables = session.variables().unwrap();
    let value = |name: &str| variables.get(name).unwrap().bytes().unwrap().to_vec();
    variables.list().iter().map(|v| (v.name.clone(), value(&v.name))).collect()
}

#[test]
fn updates_together_have_the_bits_of_updates_alone() {
    for (optimizer, states) in [("sgd", 1), ("adam", 2), ("adamw", 2), ("rmsprop", 2), ("adadelta", 2), ("ftrl", 2)] {
        let parameters: Vec<(usize, usize)> = (0..4).map(|name| (name, 37)).collect();
        let whole = plan(optimizer, &parameters);
        assert_eq!(updates(&whole.plan().programs[0]), [4 * (1 + states)], "{optimizer}");
        let program = &whole.plan().programs[0];
        let in_place = program.registers.iter().filter(|r| !r.inplace_of.is_empty()).count();
        assert_eq!(in_place, 4 * (1 + states), "{optimizer}: the memory of variables");
        let together = trained(&whole, &parameters);
        for own in &parameters {
            let alone = plan(optimizer, &[*own]);
            assert_eq!(updates(&alone.plan().programs[0]), [1 + states], "{optimizer}");
            for (name, bytes) in trained(&alone, &[*own]) {
                let found = together.iter().find(|(known, _)| *known == name).unwrap();
                assert!(found.1 == bytes, "{optimizer}: {name} has other bits");
            }
        }
    }
}

#[test]
fn updates_of_other_sizes_have_kernels_of_their_own() {
    // Three of 16 elements, two of 24, and large ones, which are not worth it.
    let parameters = [(0, 16), (1, 24), (2, 16), (3, 2048), (4, 24), (5, 2048), (6, 16)];
    let whole = plan("adam", &parameters);
    assert_eq!(updates(&whole.plan().programs[0]), [3, 3, 6, 9]);
    // A kernel has an end: 40 updates of 12 ops are several kernels.
    let many: Vec<(usize, usize)> = (0..40).map(|name| (name, 8)).collect();
    let kernels = updates(&plan("adam", &many).plan().programs[0]);
    assert!((4..=8).contains(&kernels.len()) && kernels.iter().sum::<usize>() == 120, "{kernels:?}");
}
