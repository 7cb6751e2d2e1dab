//! Microbatches in a plan: runs of native code against the interpreter, and what does not depend on their number.

use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::{CompileOptions, Target, compile, rewrite};
use of_ir::{Attr, Func, text};
use of_ops::sample::Rng;
use of_ops::training::{CARRIED, VARIABLES};
use of_ops::{Value, interpret};
use of_plan::{Exec, FindingKind, PlanFile, Program, ScheduleLoop, TaskKind};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::simulator::{SimOptions, simulate};
use of_runtime::{Options, Session};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::plans as support;

fn function(source: &str) -> Func {
    let module = text::parse_module(source, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    support::after_passes(module)
}

fn plan(func: &Func) -> Arc<PlanFile> {
    let options = CompileOptions::new(Target::new(Isa::host(), &[&Reference]), support::cache());
    let own = rewrite::for_isa(func, Isa::host()).unwrap().into_owned();
    let compiled = compile(&[("main".to_string(), &own)], &options).unwrap_or_else(|d| panic!("{d}"));
    Arc::new(compiled.open().unwrap_or_else(|d| panic!("{d}")))
}

fn session(plan: &Arc<PlanFile>) -> Session {
    let options = Options { threads: 2, profile: false, ..Default::default() };
    Session::new(Arc::clone(plan), 0, options, &[Arc::new(Reference)]).unwrap_or_else(|e| panic!("{e}"))
}

fn inputs(func: &Func, r: &mut Rng) -> Vec<Value> {
    let one = |v: &of_ir::ValueId| {
        let ty = func.graph.ty(*v).as_tensor().unwrap().clone();
        r.tensor(ty.dtype, &ty.fixed_dims().unwrap(), -1.0, 1.0).into()
    };
    func.graph.args().iter().map(one).collect()
}

/// Three runs of a function in one session equal the interpreter.
fn check(what: &str, source: &str) -> Arc<PlanFile> {
    let func = function(source);
    let plan = plan(&func);
    let mut session = session(&plan);
    let mut r = Rng::new(7);
    for run in 0..3 {
        let given = inputs(&func, &mut r);
        let want = interpret::run_graph(&func.graph, &given).unwrap_or_else(|d| panic!("{what}: {d}"));
        let given = given.iter().map(|v| to_runtime(v).unwrap()).collect();
        let got = session.run(given).unwrap_or_else(|e| panic!("{what}: {e}"));
        let got: Vec<Value> = got.iter().map(|v| from_runtime(v).unwrap()).collect();
        assert_close(&format!("{what}, run {run}"), &got, &want, Tolerance::elementwise(1e-5));
    }
    plan
}

/// A layer on microbatches, its sum over all of them, and its gradient by hand.
fn step(count: usize) -> String {
    format!(
        "func @main(%x: tensor<{count}x8x16xf32>, %w: tensor<16x24xf32>, %b: tensor<24xf32>) -> (tensor<{count}x8x24xf32>, tensor<16x24xf32>, tensor<24xf32>) {{
  %scale = of.exp %b : (tensor<24xf32>) -> tensor<24xf32>
  %xt = of.unpack %x : (tensor<{count}x8x16xf32>) -> tensor<8x16xf32>
  %p = of.matmul %xt, %w : (tensor<8x16xf32>, tensor<16x24xf32>) -> tensor<8x24xf32>
  %s = of.mul %p, %scale : (tensor<8x24xf32>, tensor<24xf32>) -> tensor<8x24xf32>
  %y = of.tanh %s : (tensor<8x24xf32>) -> tensor<8x24xf32>
  %t = of.transpose %xt {{perm = [1, 0]}} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %g = of.matmul %t, %y : (tensor<16x8xf32>, tensor<8x24xf32>) -> tensor<16x24xf32>
  %sum = of.accumulate %g {{count = {count}, kind = \"sum\"}} : (tensor<16x24xf32>) -> tensor<16x24xf32>
  %axis = of.constant {{value = dense<[0]> : tensor<1xi64>}} : () -> tensor<1xi64>
  %r = of.reduce_max %y, %axis {{keepdims = false}} : (tensor<8x24xf32>, tensor<1xi64>) -> tensor<24xf32>
  %max = of.accumulate %r {{count = {count}, kind = \"max\"}} : (tensor<24xf32>) -> tensor<24xf32>
  %n = of.sub %w, %sum : (tensor<16x24xf32>, tensor<16x24xf32>) -> tensor<16x24xf32>
  %all = of.pack %y {{count = {count}}} : (tensor<8x24xf32>) -> tensor<{count}x8x24xf32>
  of.return %all, %n, %max : (tensor<{count}x8x24xf32>, tensor<16x24xf32>, tensor<24xf32>) -> ()
}}
"
    )
}

fn program(plan: &PlanFile) -> &Program {
    &plan.plan().programs[0]
}

#[test]
fn microbatches_equal_the_interpreter() {
    for count in [1, 2, 5, 16] {
        let plan = check(&format!("{count} microbatches"), &step(count));
        let kinds: Vec<i32> = program(&plan).tasks.iter().map(|task| task.kind).collect();
        for kind in [TaskKind::Unpack, TaskKind::Pack, TaskKind::Acc] {
            assert!(kinds.contains(&(kind as i32)), "{kind:?}");
        }
    }
}

#[test]
fn sizes_of_plans_do_not_depend_on_the_number_of_microbatches() {
    let sizes = |count: usize| {
        let plan = check("size", &step(count));
        let program = program(&plan).clone();
        let ports: u64 =
            program.inputs.iter().chain(&program.outputs).map(|p| 4 * p.dims.iter().product::<i64>() as u64).sum();
        (
            program.tasks.len(),
            program.schedule.iter().map(|t| t.phases.len()).sum::<usize>(),
            program.peak_bytes - ports,
        )
    };
    assert_eq!(sizes(4), sizes(32));
}

#[test]
fn variables_are_updated_once_in_a_run() {
    let mut func = function(&step(4));
    // The weights are a variable whose next value is the second output.
    func.attrs.set(CARRIED, Attr::Ints(vec![-1, 1, -1]));
    func.attrs.set(VARIABLES, Attr::Ints(vec![1]));
    let plan = plan(&func);
    let mut session = session(&plan);
    let mut r = Rng::new(3);
    let mut state = inputs(&func, &mut r);
    let of_runtime::Value::Tensor(tensor) = to_runtime(&state[1]).unwrap() else { panic!("no tensor") };
    session.variables().unwrap().set("w", &tensor).unwrap();
    for run in 0..3 {
        let fresh = inputs(&func, &mut r);
        (state[0], state[2]) = (fresh[0].clone(), fresh[2].clone());
        let want = interpret::run_graph(&func.graph, &state).unwrap_or_else(|d| panic!("{d}"));
        let given = [0, 2].map(|i: usize| to_runtime(&state[i]).unwrap()).to_vec();
        let got: Vec<Value> = session.run(given).unwrap().iter().map(|v| from_runtime(v).unwrap()).collect();
        assert_close(&format!("run {run}"), &got, &[want[0].clone(), want[2].clone()], Tolerance::elementwise(1e-5));
        let next = from_runtime(&session.variables().unwrap().get("w").unwrap().into()).unwrap();
        assert_close(&format!("weights {run}"), &[next], &want[1..2], Tolerance::elementwise(1e-5));
        state[1] = want[1].clone();
    }
}

#[test]
fn simulator_runs_the_schedule() {
    let plan = plan(&function(&step(6)));
    let options = SimOptions { iterations: 2, ..SimOptions::default() };
    let timeline = simulate(program(&plan), &options).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(timeline.events.len(), 2 * program(&plan).acts());
}

/// The verifier refuses schedules that run a task too early or too often, and steps past a buffer.
#[test]
fn broken_schedules_are_refused() {
    let plan = plan(&function(&step(4)));
    let verify = |change: &dyn Fn(&mut Program)| {
        let mut own = plan.plan().clone();
        change(&mut own.programs[0]);
        own.programs[0].peak_bytes = own.programs[0].chunks.iter().map(|c| c.bytes).sum();
        of_plan::verify(&own)
    };
    assert_eq!(verify(&|_| ()), Ok(()));
    let refused = |kind, change: &dyn Fn(&mut Program)| {
        let findings = verify(change).expect_err("it was accepted");
        assert!(findings.iter().any(|f| f.kind == kind), "{kind:?}: {findings:?}");
    };
    refused(FindingKind::Deadlock, &|p| {
        let mut schedule: Vec<ScheduleLoop> = p.schedule.clone();
        schedule.reverse();
        p.schedule = schedule;
    });
    refused(FindingKind::Range, &|p| p.schedule.push(ScheduleLoop { phases: vec![0], times: 1 }));
    refused(FindingKind::Index, &|p| p.phases[0].tasks -= 1);
    refused(FindingKind::Range, &|p| {
        let steps = p.tasks.iter_mut().filter_map(|task| match &mut task.exec {
            Some(Exec::Copy(exec)) if exec.dst_step > 0 => Some(exec),
            _ => None,
        });
        steps.for_each(|exec| exec.dst_step += 64);
    });
    refused(FindingKind::Type, &|p| (p.phases, p.schedule) = (Vec::new(), Vec::new()));
}
