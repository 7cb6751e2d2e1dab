//! Functions whose steps are library calls.

use std::sync::Arc;

use of_codegen::Backend;
use of_codegen::vendor_libraries::{Call, VendorLibrary};
use of_cuda::{Cuda, Device};
use of_ir::{DType, Func, Graph};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_plan::{Exec, PlanFile};
use of_runtime::{Options, Session, Tensor};
use of_test_support::compare::{Tolerance, assert_numbers_close};

use super::{cache, to_runtime};

/// Random inputs of a function.
pub fn inputs(g: &Graph, r: &mut Rng) -> Vec<Value> {
    let of = |v| {
        let t = g.ty(v).as_tensor().unwrap();
        Value::Tensor(r.tensor(t.dtype, &t.fixed_dims().unwrap(), -1.0, 1.0))
    };
    g.args().iter().copied().map(of).collect()
}

/// The nested plan in the compiler's payload for a function.
pub fn inside(f: &Func, arch: &str) -> PlanFile {
    PlanFile::from_bytes(&Cuda::new(arch, cache()).unwrap().compile(f).unwrap()).unwrap()
}

/// The library calls in a plan.
pub fn calls(plan: &PlanFile) -> Vec<Call> {
    let call = |t: &of_plan::Task| match &t.exec {
        Some(Exec::Backend(e)) => {
            Some(Call::read(VendorLibrary::by_name(&e.backend)?, plan.payload(e).unwrap()).unwrap())
        }
        _ => None,
    };
    plan.plan().programs[0].tasks.iter().filter_map(call).collect()
}

/// The elements of a tensor at run time.
pub fn numbers(v: &of_runtime::Value, dtype: DType) -> Vec<f64> {
    let bytes = v.as_tensor().and_then(Tensor::bytes).unwrap().to_vec();
    let dims = vec![bytes.len() * 8 / dtype.bits().unwrap()];
    of_ir::Tensor::from_bytes(dtype, dims, of_ir::Blob::new(bytes)).unwrap().to_f64s().unwrap()
}

/// Runs a function and compares the result with the interpreter's.
pub fn compare(name: &str, before: &Func, plan: Arc<PlanFile>, dtype: DType, tolerance: f64) {
    let inputs = inputs(&before.graph, &mut Rng::new(7));
    let want = interpret::run_graph(&before.graph, &inputs).unwrap();
    let Value::Tensor(want) = &want[0] else { panic!("no tensor") };
    let mut session = Session::new(plan, 0, Options::default(), &[Arc::new(Device::default())]).unwrap();
    // The second run starts with the memory contents that the first one left.
    for _ in 0..2 {
        let got = session.run(inputs.iter().map(to_runtime).collect()).unwrap();
        let (got, want) = (numbers(&got[0], dtype), want.to_f64s().unwrap());
        assert_numbers_close(name, &got, &want, Tolerance::elementwise(tolerance));
    }
}

/// The same on the driver that the environment selects, for a test in its own process. Prints the outcome.
pub fn compare_on_a_driver(f: &Func, plan: PlanFile, dtype: DType, tolerance: f64) {
    let plan = Arc::new(plan);
    if let Err(e) = Session::new(Arc::clone(&plan), 0, Options::default(), &[Arc::new(Device::default())]) {
        return println!("refused: {e}");
    }
    compare("on a driver", f, plan, dtype, tolerance);
    println!("it agrees");
}
