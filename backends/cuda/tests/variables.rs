//! Variables that stay on the device between runs: on the emulated GPU against the interpreter, and on a stub driver that prints the
//! bus transfers.

mod common;

use std::sync::Arc;

use common::{cache, emulated, function_of, numbers, said, stub, to_runtime};
use of_codegen::{Backend, CompileOptions, Isa, Target, compile, place};
use of_cuda::{Cuda, Device};
use of_ir::{Attr, Func};
use of_ops::sample::Rng;
use of_ops::training::{CARRIED, VARIABLES};
use of_ops::{Value, interpret};
use of_plan::{Exec, PlanFile};
use of_runtime::{Options, RunError, Session};
use of_test_support::compare::{Tolerance, assert_numbers_close};

/// A step of gradient descent with momentum on a linear layer: inputs `x`, `i`, variables `w`, `m`.
const TRAIN: &str = "func @main(%x: tensor<4x8xf32>, %i: tensor<4xi64>, %w: tensor<8x8xf32>, %m: tensor<8x8xf32>)
    -> (tensor<4x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %rows = of.gather %w, %i {axis = 0}\n  %h = of.matmul %x, %w\n  %y = of.add %h, %rows\n  %t = of.tanh %y
  %xt = of.transpose %x {perm = [1, 0]}\n  %g = of.matmul %xt, %t\n  %n = of.add %m, %g
  %rate = of.constant {value = dense<0.01> : tensor<f32>}\n  %d = of.mul %n, %rate\n  %v = of.sub %w, %d
  of.return %t, %v, %n\n}\n";

/// A use of the same variables that changes none.
const EVAL: &str = "func @main(%x: tensor<4x8xf32>, %i: tensor<4xi64>, %w: tensor<8x8xf32>, %m: tensor<8x8xf32>)
    -> (tensor<4x8xf32>) {\n  %h = of.matmul %x, %w\n  %r = of.gather %m, %i {axis = 0}\n  %y = of.add %h, %r
  of.return %y\n}\n";

/// A product that the stub of cuBLASLt computes is the next value of `w`.
const PRODUCT: &str =
    "func @main(%x: tensor<16x16xf32>, %w: tensor<16x16xf32>) -> (tensor<16x16xf32>, tensor<16x16xf32>) {
  %n = of.matmul %x, %w\n  %y = of.matmul %x, %n\n  of.return %y, %n\n}\n";

/// The function of a text in which these inputs are variables, and outputs next values.
fn with_variables(text: &str, variables: &[i64], carried: &[i64]) -> Func {
    let mut func = function_of(text);
    func.attrs.set(VARIABLES, Attr::Ints(variables.to_vec()));
    func.attrs.set(CARRIED, Attr::Ints(carried.to_vec()));
    func
}

/// One plan of several programs, each as a whole on the device.
fn plan_of(funcs: &[(&str, Func)], arch: &str) -> Arc<PlanFile> {
    let backend = Cuda::new(arch, cache()).unwrap();
    let mut funcs: Vec<(String, Func)> = funcs.iter().map(|(name, f)| ((*name).to_string(), f.clone())).collect();
    for (_, f) in &mut funcs {
        place::entirely(&mut [f], &backend).unwrap_or_else(|d| panic!("{d}"));
    }
    let backends: [&dyn Backend; 1] = [&backend];
    let options = CompileOptions::new(Target::new(Isa::host(), &backends), cache());
    let funcs: Vec<(String, &Func)> = funcs.iter().map(|(name, f)| (name.clone(), f)).collect();
    Arc::new(compile(&funcs, &options).unwrap_or_else(|d| panic!("{d}")).open().unwrap_or_else(|d| panic!("{d}")))
}

fn session(plan: &Arc<PlanFile>) -> Session {
    Session::new(Arc::clone(plan), 0, Options::default(), &[Arc::new(Device::default())]).unwrap()
}

fn close(what: &str, got: &of_runtime::Value, want: &Value) {
    let Value::Tensor(want) = want else { panic!("no tensor") };
    let tolerance = Tolerance { absolute: 1e-5, ..Tolerance::of_largest(1e-5) };
    assert_numbers_close(what, &numbers(got), &want.to_f64s().unwrap(), tolerance);
}

/// A training on the emulated GPU and by the interpreter, which are compared.
struct Training {
    func: Func,
    plan: Arc<PlanFile>,
    session: Session,
    values: Vec<Value>,
    r: Rng,
}

impl Training {
    fn new() -> Training {
        let func = with_variables(TRAIN, &[2, 3], &[-1, 2, 3]);
        let eval = with_variables(EVAL, &[2, 3], &[-1]);
        let plan = plan_of(&[("train", func.clone()), ("eval", eval)], "emulated");
        let session = session(&plan);
        let mut r = Rng::new(3);
        let values: Vec<Value> = [(), ()].map(|()| r.f32s(&[8, 8])).to_vec();
        let mut own = Training { func, plan, session, values, r };
        own.set();
        own
    }

    /// Gives the session the interpreter's values.
    fn set(&mut self) {
        for (name, value) in ["w", "m"].iter().zip(&self.values) {
            let of_runtime::Value::Tensor(tensor) = to_runtime(value) else { panic!("no tensor") };
            self.session.variables().unwrap().set(name, &tensor).unwrap();
        }
    }

    fn inputs(&mut self) -> [Value; 2] {
        let rows: Vec<i64> = (0..4).map(|k| (k * 3) % 8).collect();
        [self.r.f32s(&[4, 8]), of_ir::Tensor::from_i64s(&rows).into()]
    }

    fn step(&mut self) {
        let inputs = self.inputs();
        let want = interpret::run_graph(&self.func.graph, &[&inputs[..], &self.values].concat()).unwrap();
        let got = self.session.run(inputs.iter().map(to_runtime).collect()).unwrap();
        assert_eq!(got.len(), 1);
        close("a result of a step", &got[0], &want[0]);
        self.values = want[1..].to_vec();
    }

    fn compare(&self) {
        for (name, want) in ["w", "m"].iter().zip(&self.values) {
            close(name, &self.session.variables().unwrap().get(name).unwrap().into(), want);
        }
    }
}

#[test]
fn executables_update_variables_on_the_device() {
    if !emulated() {
        return;
    }
    let mut training = Training::new();
    let program = &training.plan.plan().programs[0];
    let updates = |exec: fn(&Exec) -> bool| {
        let updating = program.tasks.iter().filter(|task| task.exec.as_ref().is_some_and(exec));
        updating.map(|task| program.variables_written(task).count()).sum::<usize>()
    };
    assert_eq!((updates(|e| matches!(e, Exec::Backend(_))), updates(|e| matches!(e, Exec::Copy(_)))), (2, 0));
    for step in 0..4 {
        training.step();
        // In some steps the values stay on the device.
        if step % 2 == 1 {
            training.compare();
        }
    }
    training.values = [(), ()].map(|()| training.r.f32s(&[8, 8])).to_vec();
    training.set();
    training.step();
    training.compare();
    // A value that is lent is the newest one.
    training.step();
    let lent = training.session.variables().unwrap().lend("m").unwrap();
    close("m", &lent.into(), &training.values[1]);
}

#[test]
fn programs_of_a_plan_share_variables_on_the_device() {
    if !emulated() {
        return;
    }
    let mut training = Training::new();
    let variables = Arc::clone(training.session.variables().unwrap());
    let loaders: [Arc<dyn of_runtime::Loader>; 1] = [Arc::new(Device::default())];
    let mut eval = Session::sharing(Arc::clone(&training.plan), 1, Options::default(), &loaders, &variables).unwrap();
    let func = function_of(EVAL);
    for _ in 0..3 {
        training.step();
        let inputs = training.inputs();
        let want = interpret::run_graph(&func.graph, &[&inputs[..], &training.values].concat()).unwrap();
        let got = eval.run(inputs.iter().map(to_runtime).collect()).unwrap();
        close("an evaluation", &got[0], &want[0]);
    }
    training.compare();
}

#[test]
fn frozen_values_outlive_updates_on_the_device() {
    if !emulated() {
        return;
    }
    let mut training = Training::new();
    training.step();
    let (frozen, old) = (training.session.variables().unwrap().freeze().unwrap(), training.values.clone());
    training.step();
    // The copy to the host comes before the frozen values are read.
    training.compare();
    for (index, old) in old.iter().enumerate() {
        let bytes = frozen.copy(index).unwrap();
        let now = of_runtime::Tensor::from_bytes(of_plan::ElementType::F32, vec![8, 8], &bytes).unwrap();
        close("a frozen value", &now.into(), old);
    }
}

#[test]
fn a_failed_update_on_the_device_loses_the_values() {
    if !emulated() {
        return;
    }
    let mut training = Training::new();
    training.step();
    let wrong: Value = of_ir::Tensor::from_i64s(&[0, 1, 2, 8]).into();
    let inputs = [training.r.f32s(&[4, 8]), wrong];
    let error = training.session.run(inputs.iter().map(to_runtime).collect()).unwrap_err();
    assert!(matches!(error, RunError::Task { .. }), "{error}");
    let error = training.session.variables().unwrap().get("w").unwrap_err().to_string();
    assert!(error.contains("is lost"), "{error}");
    training.set();
    training.step();
    training.compare();
}

/// Runs in a process that has a driver.
#[test]
#[ignore = "run by another test, in a process whose environment names a driver"]
fn on_a_driver() {
    let func = with_variables(PRODUCT, &[1], &[-1, 1]);
    let mut session = session(&plan_of(&[("main", func.clone())], "sm_90+cublaslt"));
    let mut r = Rng::new(5);
    let mut value = r.f32s(&[16, 16]);
    let of_runtime::Value::Tensor(first) = to_runtime(&value) else { panic!("no tensor") };
    session.variables().unwrap().set("w", &first).unwrap();
    for _ in 0..3 {
        let x = r.f32s(&[16, 16]);
        let want = interpret::run_graph(&func.graph, &[x.clone(), value]).unwrap();
        let got = session.run(vec![to_runtime(&x)]).unwrap();
        close("a result", &got[0], &want[0]);
        value = want[1].clone();
    }
    eprintln!("all runs are done");
    close("w", &session.variables().unwrap().get("w").unwrap().into(), &value);
    println!("it agrees");
}

#[test]
fn variables_do_not_cross_the_bus_in_runs() {
    let dir = tempfile::tempdir().unwrap();
    let library = stub(dir.path());
    let library = library.to_str().unwrap();
    let variables = [("OF_CUDA_DRIVER", library), ("OF_CUBLASLT", library), ("STUB_SAYS", "1")];
    let out = said("on_a_driver", &variables);
    assert!(out.contains("it agrees"), "{out}");
    // A run is a replay of the recording, in which `x` goes up and `y` comes down. The variable goes up before the first run, and
    // comes down when it is asked for.
    let crossed: Vec<&str> = out.lines().filter(|l| l.ends_with(" 1024") || l.starts_with("all runs")).collect();
    let want = ["up 1024", "down 1024", "up whole 1024", "all runs are done", "down whole 1024"];
    assert_eq!(crossed, want, "{out}");
}
