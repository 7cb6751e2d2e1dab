//! Programs of a plan that have the same variables run one at a time, in the same memory. The only test of its process, whose resident
//! memory it measures.

use std::sync::Arc;

use of_codegen::{CompileOptions, Isa, Target, compile, rewrite};
use of_ir::{Attr, Func, text};
use of_ops::training::{CARRIED, VARIABLES};
use of_plan::{ElementType, PlanFile};
use of_reference::Reference;
use of_runtime::{Options, Session, Tensor};
use of_test_support::plans as support;

/// Elements of what a step and an evaluation read: 32 MiB.
const LEN: u64 = 8 << 20;

fn function(source: &str, carried: &[i64]) -> Func {
    let module = text::parse_module(source, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let mut func = support::after_passes(module);
    func.attrs.set(CARRIED, Attr::Ints(carried.to_vec()));
    func.attrs.set(VARIABLES, Attr::Ints(vec![0]));
    func
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
#[cfg(target_os = "linux")]
fn an_evaluation_takes_the_memory_of_the_step() {
    let step = format!(
        r"func @main(%v: tensor<f32>, %x: tensor<{LEN}xf32>) -> (tensor<f32>) {{
  %none = of.none
  %sum = of.reduce_sum %x, %none {{keepdims = false}} : (tensor<{LEN}xf32>, none) -> tensor<f32>
  %next = of.add %v, %sum : (tensor<f32>, tensor<f32>) -> tensor<f32>
  of.return %next : (tensor<f32>) -> ()
}}"
    );
    let evaluation = format!(
        r"func @main(%v: tensor<f32>, %x: tensor<{LEN}xf32>) -> (tensor<f32>) {{
  %none = of.none
  %most = of.reduce_max %x, %none {{keepdims = false}} : (tensor<{LEN}xf32>, none) -> tensor<f32>
  %y = of.mul %v, %most : (tensor<f32>, tensor<f32>) -> tensor<f32>
  of.return %y : (tensor<f32>) -> ()
}}"
    );
    let (step, evaluation) = (function(&step, &[0]), function(&evaluation, &[-1]));
    let funcs = [("step", &step), ("evaluation", &evaluation)]
        .map(|(name, f)| (name.to_string(), rewrite::for_isa(f, Isa::host()).unwrap().into_owned()));
    let funcs: Vec<(String, &Func)> = funcs.iter().map(|(name, f)| (name.clone(), f)).collect();
    let compiled = CompileOptions::new(Target::new(Isa::host(), &[&Reference]), support::cache());
    let plan: Arc<PlanFile> = Arc::new(compile(&funcs, &compiled).unwrap().open().unwrap());
    let peaks: Vec<u64> = plan.plan().programs.iter().map(|program| program.peak_bytes).collect();
    assert!(peaks.iter().all(|peak| *peak >= 4 * LEN), "the inputs are in the plan's memory: {peaks:?}");

    let mut values = vec![0.0f32; LEN as usize];
    values[7] = 2.0;
    let x = Tensor::from_elements([LEN as i64], &values).unwrap();
    let v = Tensor::zeros(ElementType::F32, []).unwrap();
    let options = Options { threads: 1, ..Default::default() };
    let mut steps = Session::new(Arc::clone(&plan), 0, options, &[]).unwrap();
    let shared = Arc::clone(steps.variables().unwrap());
    shared.set(&shared.list()[0].name, &v).unwrap();
    let mut evaluations = Session::sharing(plan, 1, options, &[], &shared).unwrap();

    let before = resident();
    steps.run(vec![x.clone().into()]).unwrap();
    let after_step = resident();
    assert!(after_step - before > 3 * LEN, "a step takes {} bytes", after_step - before);
    for n in 1..3 {
        let y = evaluations.run(vec![x.clone().into()]).unwrap();
        assert_eq!(y[0].as_tensor().unwrap().to_elements::<f32>().unwrap(), [4.0 * n as f32]);
        steps.run(vec![x.clone().into()]).unwrap();
    }
    let more = resident().saturating_sub(after_step);
    assert!(more < LEN, "an evaluation takes {more} bytes of its own");
}
