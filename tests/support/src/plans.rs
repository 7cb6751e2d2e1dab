//! Functions with their plans, sessions and inputs, for tests of backends.

use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::toolchain::cache::Cache;
use of_codegen::{Backend, CompileOptions, Compiled, Pin, Request, Target, compile, place, rewrite};
use of_diag::Diagnostics;
use of_ir::{Blob, DType, Func, Module, Tensor};
use of_ops::sample::Rng;
use of_ops::{Op, Value, interpret};
use of_passes::Manager;
use of_plan::PlanFile;
use of_runtime::{ExecError, Loader, Options, RunError, Session};

use crate::compare::{Tolerance, assert_close};
use crate::component::{CUDA_EMULATED, NVRTC, require};
use crate::op;

/// The function of a text after the passes.
pub fn function_of(text: &str) -> Func {
    let module = of_ir::text::parse_module(text, "test", &of_ops::registry(), None);
    after_passes(module.unwrap_or_else(|d| panic!("{d}\n{text}")))
}

/// The function of a module after the passes.
pub fn after_passes(mut module: Module) -> Func {
    let mut manager = Manager::default();
    manager.append("cpu").unwrap();
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
    module.main().unwrap().clone()
}

/// What results of a plan may differ by from the interpreter's.
const RUN: Tolerance = Tolerance { of_largest: 1e-5, of_largest_16_bit: 8e-3, ..Tolerance::EXACT };

/// Where kernels of tests are kept.
pub fn cache() -> Cache {
    Cache::at(&std::env::temp_dir().join("of-native-tests"), Cache::DEFAULT_LIMIT)
}

/// The plan of a function whose ops are placed.
pub fn placed(f: &Func, backends: &[&dyn Backend], cache: Cache) -> PlanFile {
    plan_for(f, Target::new(Isa::host(), backends), cache)
}

/// The plan of a function for a target.
pub fn plan_for(f: &Func, target: Target<'_>, cache: Cache) -> PlanFile {
    let compiled = compile_for(f, &CompileOptions::new(target, cache));
    compiled.unwrap_or_else(|d| panic!("{d}")).open().unwrap_or_else(|d| panic!("{d}"))
}

/// Compiles a function after the rewrites for the target's instruction set, as the driver does.
///
/// # Errors
/// When an op has no backend, or a kernel cannot be compiled.
pub fn compile_for(f: &Func, options: &CompileOptions<'_>) -> Result<Compiled, Diagnostics> {
    let f = rewrite::for_isa(f, options.target.isa)?;
    compile(&[("main".into(), &f)], options)
}

/// A function after the passes, and its plan: everything in one region of a backend, also where `pin` is not worth a call.
pub fn in_one_subgraph(text: &str, pin: &str, backend: &dyn Backend) -> (Func, PlanFile) {
    let (mut func, name) = (function_of(text), backend.name().to_string());
    let pins = [Pin { op: pin.into(), backend: name.clone() }];
    let request = Request { known: &[backend], wanted: &[name], pins: &pins, min_subgraph_size: 1 };
    let placement = place(&mut func, &request).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!((placement.subgraphs.len(), placement.rejected.len()), (1, 0), "{placement:?}");
    let plans = [(), ()].map(|()| placed(&func, &[backend], Cache::none()));
    assert_eq!(of_plan::json(&plans[0]), of_plan::json(&plans[1]), "two compilations differ");
    let [plan, _] = plans;
    (func, plan)
}

/// A session of a plan.
pub fn session(plan: PlanFile, loader: impl Loader + 'static) -> Session {
    threaded(plan, loader, 1)
}

fn threaded(plan: PlanFile, loader: impl Loader + 'static, threads: usize) -> Session {
    let options = Options { threads, profile: false, ..Default::default() };
    Session::new(Arc::new(plan), 0, options, &[Arc::new(loader)]).unwrap()
}

/// What a plan computes of tensors.
pub fn run(plan: PlanFile, loader: impl Loader + 'static, inputs: &[Value], threads: usize) -> Vec<Value> {
    let inputs = inputs.iter().map(to_runtime).collect();
    threaded(plan, loader, threads).run(inputs).unwrap().iter().map(from_runtime).collect()
}

/// Runs a function's session on inputs, and compares.
pub fn check(f: &Func, session: &mut Session, inputs: &[Tensor]) {
    let values: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
    let want = interpret::run_graph(&f.graph, &values).unwrap_or_else(|d| panic!("{d}"));
    let got: Vec<Value> = session.run(given(inputs)).unwrap().iter().map(from_runtime).collect();
    assert_close("a run", &got, &want, RUN);
}

/// A subgraph of open extents runs with those of each run.
pub fn runs_of_open_extents(backend: &dyn Backend, loader: impl Loader + 'static) {
    let (f, plan) = in_one_subgraph(
        r"func @main(%x: tensor<?(N)x8xf32>, %w: tensor<8x4xf32>) -> (tensor<?(N)x4xf32>) {
  %p = of.matmul %x, %w : (tensor<?(N)x8xf32>, tensor<8x4xf32>) -> tensor<?(N)x4xf32>
  %s = of.softmax %p {axis = -1} : (tensor<?(N)x4xf32>) -> tensor<?(N)x4xf32>
  %y = of.add %s, %p : (tensor<?(N)x4xf32>, tensor<?(N)x4xf32>) -> tensor<?(N)x4xf32>
  of.return %y : (tensor<?(N)x4xf32>) -> ()
}",
        "add",
        backend,
    );
    let mut session = session(plan, loader);
    for n in [3, 5, 3] {
        check(&f, &mut session, &[floats(&[n, 8], n as u64), floats(&[8, 4], 1)]);
    }
}

/// A region fails a run with an index that is out of range, and no other.
pub fn an_index_out_of_range(backend: &dyn Backend, loader: impl Loader + 'static) {
    let (f, plan) = in_one_subgraph(
        r"func @main(%x: tensor<10x3xf32>, %i: tensor<4xi64>) -> (tensor<4x3xf32>) {
  %g = of.gather %x, %i {axis = 0} : (tensor<10x3xf32>, tensor<4xi64>) -> tensor<4x3xf32>
  %y = of.add %g, %g : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  of.return %y : (tensor<4x3xf32>) -> ()
}",
        "add",
        backend,
    );
    let (x, mut session) = (floats(&[10, 3], 1), session(plan, loader));
    check(&f, &mut session, &[x.clone(), Tensor::from_i64s(&[0, -1, 9, -10])]);
    let bad = session.run(given(&[x, Tensor::from_i64s(&[0, 1, 2, 10])]));
    assert!(
        matches!(&bad, Err(RunError::Task { source: ExecError::Input(what), .. })
        if what.starts_with("an index is out of range")),
        "{bad:?}"
    );
}

/// A tensor as the runtime holds it.
pub fn to_runtime(v: &Value) -> of_runtime::Value {
    let Value::Tensor(t) = v else { panic!("no tensor") };
    let dims: Vec<i64> = t.dims().iter().map(|d| *d as i64).collect();
    let dtype = of_codegen::physical::element_type(t.dtype());
    of_runtime::Tensor::from_bytes(dtype, dims, t.bytes().unwrap()).unwrap().into()
}

/// Tensors as the runtime holds them.
pub fn given(inputs: &[Tensor]) -> Vec<of_runtime::Value> {
    inputs.iter().map(|t| to_runtime(&Value::Tensor(t.clone()))).collect()
}

/// A tensor of the runtime.
pub fn from_runtime(v: &of_runtime::Value) -> Value {
    let t = v.as_tensor().unwrap();
    let dims = t.dims().iter().map(|d| *d as usize).collect();
    let dtype = of_codegen::physical::dtype_of(t.dtype()).unwrap();
    Value::Tensor(Tensor::from_bytes(dtype, dims, Blob::new(t.bytes().unwrap().to_vec())).unwrap())
}

/// Values that are tensors.
pub fn tensors(values: &[Value]) -> Vec<&Tensor> {
    let tensor = |v: &'_ Value| matches!(v, Value::Tensor(_));
    assert!(values.iter().all(tensor), "not all are tensors");
    values.iter().filter_map(|v| if let Value::Tensor(t) = v { Some(t) } else { None }).collect()
}

/// Floats between -1 and 1.
pub fn floats(dims: &[usize], seed: u64) -> Tensor {
    Rng::new(seed).tensor(DType::F32, dims, -1.0, 1.0)
}

/// The inputs with one element of a tensor of floats that is no number, infinite or of the other zero; none where there is no
/// such tensor.
pub fn with_extremes(inputs: &[Value], seed: u64) -> Option<Vec<Value>> {
    const EXTREMES: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];
    let mut r = Rng::new(seed);
    let mut out = inputs.to_vec();
    let floats = |v: &Value| matches!(v, Value::Tensor(t) if t.dtype().is_float() && t.dtype().bits() > Some(8) && !t.is_empty());
    let all: Vec<usize> = (0..out.len()).filter(|i| floats(&out[*i])).collect();
    let place = *all.get(seed as usize % all.len().max(1))?;
    let Value::Tensor(t) = &out[place] else { return None };
    let mut numbers = t.to_f64s()?;
    let at = r.int(0, numbers.len() as i64 - 1) as usize;
    numbers[at] = EXTREMES[seed as usize % EXTREMES.len()];
    let t = Tensor::from_elements(t.dtype(), t.dims().to_vec(), of_ir::Elements::Float(numbers)).ok()?;
    out[place] = Value::Tensor(t);
    Some(out)
}

/// One op on its sample. Operands that are not floats are constants; with `open` they are inputs.
pub fn one_op(op: &dyn Op, operands: &[Value], open: bool) -> (Func, Vec<Value>) {
    op::one_op_func(op, operands, |i, t| !open && (op::is_no_float(i, t) || op::decides_extents(op, operands, i)))
}

/// The GPU that the CPU emulates.
#[track_caller]
pub fn emulated_gpu() -> Option<&'static Isa> {
    require(&CUDA_EMULATED, of_codegen::toolchain::emulator::isa())
}

/// Whether NVRTC compiles kernels for GPUs here.
#[track_caller]
pub fn nvrtc() -> bool {
    require(&NVRTC, of_codegen::toolchain::nvrtc::identity()).is_some()
}
