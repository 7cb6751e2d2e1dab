//! What the tests of backends share: functions with their plans and values, beside the interpreter.

#![allow(dead_code, reason = "each test uses its part")]

use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::toolchain::cache::Cache;
use of_codegen::{Backend, CompileOptions, Pin, Request, Target, compile, place};
use of_ir::{Blob, DType, Func, Graph, Module, Rewriter, Tensor, ValueId};
use of_ops::sample::Rng;
use of_ops::structural::{Constant, NoneValue, Return};
use of_ops::{Op, Value, interpret};
use of_passes::Manager;
use of_plan::PlanFile;
use of_runtime::{ExecError, Loader, Options, RunError, Session};

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
    let compiled = compile(&[("main".into(), f)], &CompileOptions::new(target, cache));
    compiled.unwrap_or_else(|d| panic!("{d}")).open().unwrap_or_else(|d| panic!("{d}"))
}

/// A function after the passes, and its plan: everything in one region of a backend, also where `pin` is not worth a call.
pub fn in_one_region(text: &str, pin: &str, backend: &dyn Backend) -> (Func, PlanFile) {
    let (mut func, name) = (function_of(text), backend.name().to_string());
    let pins = [Pin { op: pin.into(), backend: name.clone() }];
    let request = Request { known: &[backend], wanted: &[name], pins: &pins, min_region: 1 };
    let placement = place(&mut func, &request).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!((placement.regions.len(), placement.refused.len()), (1, 0), "{placement:?}");
    let plans = [(), ()].map(|()| placed(&func, &[backend], Cache::none()));
    assert_eq!(of_plan::json(&plans[0]), of_plan::json(&plans[1]), "two compilations differ");
    let [plan, _] = plans;
    (func, plan)
}

/// A session of a plan.
pub fn session(plan: PlanFile, loader: impl Loader + 'static) -> Session {
    Session::new(Arc::new(plan), 0, Options { threads: 1, profile: false }, &[Arc::new(loader)]).unwrap()
}

/// Runs a function's session on inputs, and compares.
pub fn check(f: &Func, session: &mut Session, inputs: &[Tensor]) {
    let values: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
    let want = interpret::run_graph(&f.graph, &values).unwrap_or_else(|d| panic!("{d}"));
    let got: Vec<Value> = session.run(given(inputs)).unwrap().iter().map(from_runtime).collect();
    assert_eq!(difference(&got, &want, 1e-5, 0), None);
}

/// A region of open extents runs with those of each run.
pub fn runs_of_open_extents(backend: &dyn Backend, loader: impl Loader + 'static) {
    let (f, plan) = in_one_region(
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
    let (f, plan) = in_one_region(
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
        if what == "an index is out of range"),
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

/// Where floats are not as close as a share of the largest, integers are more than `apart` apart, or anything else is not
/// equal.
pub fn difference(got: &[Value], want: &[Value], share: f64, apart: i64) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} outputs, not {}", got.len(), want.len()));
    }
    got.iter().zip(want).enumerate().find_map(|(i, (g, w))| {
        let (Value::Tensor(g), Value::Tensor(w)) = (g, w) else {
            return (g != w).then(|| format!("output {i} is {g:?}, not {w:?}"));
        };
        if (g.dtype(), g.dims()) != (w.dtype(), w.dims()) {
            return Some(format!("output {i} is {:?}, not {:?}", g.ty(), w.ty()));
        }
        if !w.dtype().is_float() {
            let far = |(a, b): (Vec<i64>, Vec<i64>)| a.iter().zip(&b).map(|(a, b)| (a - b).abs()).max().unwrap_or(0);
            let near = g == w || (apart > 0 && g.to_i64s().zip(w.to_i64s()).map(far).is_some_and(|far| far <= apart));
            return (!near).then(|| format!("output {i} is {:?}, not {:?}", g.to_i64s(), w.to_i64s()));
        }
        // Half a unit in the last place of 16-bit floats.
        let share = if w.dtype().bits() == Some(16) { 8e-3 } else { share };
        let (g, w) = (g.to_f64s()?, w.to_f64s()?);
        let largest = w.iter().filter(|x| x.is_finite()).fold(1e-3f64, |m, x| m.max(x.abs()));
        let same = |(a, b): (&f64, &f64)| (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= share * largest;
        let at = g.iter().zip(&w).position(|p| !same(p))?;
        Some(format!("output {i}[{at}] is {}, not {}", g[at], w[at]))
    })
}

/// One op on its sample; what is no float is a constant, or with `open` an input too.
pub fn one_op(op: &dyn Op, operands: &[Value], open: bool) -> (Func, Vec<Value>) {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut inputs = Vec::new();
    let mut rw = Rewriter::new(&mut graph, "test");
    let mut ids: Vec<ValueId> = Vec::new();
    let name = op.decl().name();
    for (i, v) in operands.iter().enumerate() {
        ids.push(match v {
            Value::None => rw.create_one(NoneValue {}, &[]).unwrap(),
            Value::Tensor(t) if !open && (says_extents(name, i) || (i > 0 && !t.dtype().is_float())) => {
                rw.create_one(Constant { value: t.clone() }, &[]).unwrap()
            }
            other => {
                inputs.push(other.clone());
                rw.add_arg(entry, interpret::type_of(other), None)
            }
        });
    }
    let id = rw.create((op.decl().as_def(), op.attrs()), &ids).unwrap_or_else(|d| panic!("{d}"));
    let results = rw.graph().op(id).results.to_vec();
    rw.create(Return {}, &results).unwrap();
    (Func::numbered(graph), inputs)
}

/// Whether an operand says how large the result is, whatever its type.
fn says_extents(name: &str, operand: usize) -> bool {
    matches!(
        name,
        "of.range"
            | "of.eye_like"
            | "of.constant_of_shape"
            | "of.shape"
            | "of.random_normal"
            | "of.random_uniform"
            | "of.mel_weight_matrix"
    ) || (name == "of.resize" && operand > 0)
}
