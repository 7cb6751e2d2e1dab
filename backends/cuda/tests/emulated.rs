//! Whole functions on the emulated GPU, through plan, loader and driver, against the interpreter.

mod common;

use std::sync::Arc;

use common::{cache, emulated, function_of, numbers, placed, plan, to_runtime};
use of_codegen::toolchain::cache::Cache;
use of_codegen::{Backend, Pin, Request, place};
use of_cuda::{Cuda, Device, DeviceProgram, DeviceValue, Driver, DriverError, LoadedProgram, Timing};
use of_ir::Func;
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_plan::PlanFile;
use of_runtime::{Options, RankContext, Session, Tensor};

const TEXT: &str = r#"
func @main(%x: tensor<6x40xf32> {of.name = "x"}, %w: tensor<40x24xf32> {of.name = "w"}, %i: tensor<5xi64> {of.name = "i"})
    -> (tensor<6x24xf32> {of.name = "y"}, tensor<5x40xf32> {of.name = "rows"}, tensor<6x40xf32> {of.name = "same"}) {
  %c = of.constant {value = dense<0.5> : tensor<24xf32>}
  %p = of.matmul %x, %w
  %b = of.add %p, %c
  %t = of.tanh %b
  %y = of.softmax %t {axis = -1}
  %rows = of.gather %x, %i {axis = 0}
  of.return %y, %rows, %x
}
"#;

fn function() -> Func {
    function_of(TEXT)
}

#[test]
fn a_gpu_plan_runs_on_the_emulated_gpu() {
    if !emulated() {
        return;
    }
    let f = function();
    let mut r = Rng::new(1);
    let mut session =
        Session::new(Arc::new(plan(&f, "emulated")), 0, Options::default(), &[Arc::new(Device::default())]).unwrap();
    for indices in [[0i64, 5, 2, 2, -1], [3, 3, 0, -6, 1]] {
        let inputs: [Value; 3] =
            [r.f32s(&[6, 40]), r.f32s(&[40, 24]), of_ir::Tensor::from_slice(&[5], &indices).unwrap().into()];
        let want = interpret::run_graph(&f.graph, &inputs).unwrap();
        let got = session.run(inputs.iter().map(to_runtime).collect()).unwrap();
        for (g, w) in got.iter().zip(&want) {
            let Value::Tensor(w) = w else { panic!("no tensor") };
            let (g, w) = (numbers(g), w.to_f64s().unwrap());
            assert_eq!(g.len(), w.len());
            assert!(g.iter().zip(&w).all(|(a, b)| (a - b).abs() < 3e-6), "{g:?} {w:?}");
        }
    }
    // The error of a kernel contains its name, and the next run is not affected.
    let inputs = |at: i64, r: &mut Rng| -> Vec<of_runtime::Value> {
        let i: Value = of_ir::Tensor::from_slice(&[5], &[0i64, 1, at, 2, 3]).unwrap().into();
        [r.f32s(&[6, 40]), r.f32s(&[40, 24]), i].iter().map(to_runtime).collect()
    };
    let error = session.run(inputs(6, &mut r)).unwrap_err().to_string();
    assert!(error.contains("out of range in 'gather'"), "{error}");
    session.run(inputs(4, &mut r)).unwrap();
}

#[test]
fn products_of_16_bit_floats_are_left_as_they_are() {
    if !emulated() {
        return;
    }
    let text = r#"
func @main(%x: tensor<20x40xbf16>, %w: tensor<40x24xbf16>) -> (tensor<20x24xbf16>) {
  %p = of.matmul %x, %w
  %y = of.tanh %p
  of.return %y
}
"#;
    let f = function_of(text);
    let cache = cache();
    let payload = Cuda::new("emulated", cache).unwrap().compile(&f).unwrap();
    let inside = PlanFile::from_bytes(&payload).unwrap();
    let names: Vec<&str> = inside.plan().code.iter().map(|c| &c.name[..]).collect();
    assert_eq!(names, ["matmul+tanh"]);
    let mut r = Rng::new(2);
    let inputs = [&[20, 40], &[40, 24]].map(|d| Value::Tensor(r.tensor(of_ir::DType::BF16, d, -1.0, 1.0)));
    let want = interpret::run_graph(&f.graph, &inputs).unwrap();
    let mut session =
        Session::new(Arc::new(plan(&f, "emulated")), 0, Options::default(), &[Arc::new(Device::default())]).unwrap();
    let got = session.run(inputs.iter().map(to_runtime).collect()).unwrap();
    let Value::Tensor(want) = &want[0] else { panic!("no tensor") };
    let bytes = got[0].as_tensor().and_then(Tensor::bytes).unwrap();
    let got =
        bytes.chunks_exact(2).map(|b| f64::from(f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)));
    assert!(got.zip(want.to_f64s().unwrap()).all(|(a, b)| (a - b).abs() < 8e-3));
}

#[test]
fn unsupported_ops_are_rejected_with_every_reason() {
    let text = r#"
func @main(%x: tensor<6xf64>, %z: tensor<2xf32>) -> (tensor<6xf64>, tensor<2xf32>) {
  %y = of.exp %x
  %t = of.fmod %z, %z
  of.return %y, %t
}
"#;
    let module = of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let backend = Cuda::new("sm_90", Cache::none()).unwrap();
    let mut func = module.main().unwrap().clone();
    let Err(errors) = place::entirely(&mut [&mut func], &backend) else { panic!("refused") };
    let errors = errors.to_string();
    for words in
        ["'of.exp' does not run on 'cuda': Exp of f64", "'of.fmod' does not run on 'cuda': the remainder of floats"]
    {
        assert!(errors.contains(words), "{errors}");
    }
    assert!(Cuda::new("sm_1", Cache::none()).unwrap_err().contains("sm_90"));
}

#[test]
fn host_ops_run_between_gpu_subgraphs() {
    if !emulated() {
        return;
    }
    // A gather is never fused, and tanh stays on the host.
    let text = r#"
func @main(%x: tensor<8x16xf32> {of.name = "x"}, %i: tensor<5xi64> {of.name = "i"}) -> (tensor<5x4xf32> {of.name = "y"}) {
  %w = of.constant {value = dense<0.125> : tensor<16x4xf32>}
  %p = of.matmul %x, %w
  %q = of.gather %p, %i {axis = 0}
  %f = of.tanh %q
  %t = of.gather %f, %i {axis = 0}
  %y = of.softmax %t {axis = -1}
  of.return %y
}
"#;
    let mut f = function_of(text);
    let (before, cache) = (f.clone(), cache());
    let backend = Cuda::new("emulated", cache.clone()).unwrap();
    let wanted = ["cuda".to_string()];
    let pins = [Pin { op: "of.tanh".into(), backend: place::NATIVE.into() }];
    let request = Request { known: &[&backend], wanted: &wanted, pins: &pins, min_subgraph_size: 0 };
    let placement = place::place(&mut f, &request).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(placement.subgraphs.len(), 2, "{placement:?}");
    assert!(placement.rejected.iter().all(|r| r.op == "of.tanh"), "{placement:?}");
    let plan = placed(&f, &[&backend], cache);
    let mut session = Session::new(Arc::new(plan), 0, Options::default(), &[Arc::new(Device::default())]).unwrap();
    let indices: Value = of_ir::Tensor::from_slice(&[5], &[0i64, 3, 2, 4, 1]).unwrap().into();
    let inputs = [Rng::new(3).f32s(&[8, 16]), indices];
    let want = interpret::run_graph(&before.graph, &inputs).unwrap();
    let got = session.run(inputs.iter().map(to_runtime).collect()).unwrap();
    let Value::Tensor(want) = &want[0] else { panic!("no tensor") };
    let (got, want) = (numbers(&got[0]), want.to_f64s().unwrap());
    assert!(got.len() == want.len() && got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?} {want:?}");
}

#[test]
fn the_attention_gradient_recomputes_its_weights() {
    if !emulated() {
        return;
    }
    let f = function_of(
        r#"
func @main(%q: tensor<2x21x8xf32>, %k: tensor<2x35x8xf32>, %v: tensor<2x35x6xf32>, %g: tensor<2x21x6xf32>)
    -> (tensor<2x21x8xf32>, tensor<2x35x8xf32>, tensor<2x35x6xf32>) {
  %scale = of.constant {value = dense<0.5> : tensor<f32>}
  %kt = of.transpose %k {perm = [0, 2, 1]}
  %s = of.matmul %q, %kt
  %t = of.mul %s, %scale
  %p = of.softmax %t {axis = -1}
  %o = of.matmul %p, %v
  %w = of.mul %o, %g
  %axes = of.constant {value = dense<[0, 1, 2]> : tensor<3xi64>}
  %loss = of.reduce_sum %w, %axes {keepdims = false}
  %gq, %gk, %gv = of.gradient %loss, %q, %k, %v
  of.return %gq, %gk, %gv
}
"#,
    );
    let cache = cache();
    let payload = Cuda::new("emulated", cache).unwrap().compile(&f).unwrap();
    let inner = PlanFile::from_bytes(&payload).unwrap();
    let tables = inner.plan().programs[0].registers.iter().filter(|r| r.dims == [2, 21, 35]);
    assert_eq!(tables.map(|r| r.name.clone()).collect::<Vec<_>>(), [""; 0]);
    let file = Arc::new(plan(&f, "emulated"));
    let mut session = Session::new(file, 0, Options::default(), &[Arc::new(Device::default())]).unwrap();
    let mut r = Rng::new(3);
    let inputs: [Value; 4] = [[2, 21, 8], [2, 35, 8], [2, 35, 6], [2, 21, 6]].map(|dims| r.f32s(&dims));
    let want = interpret::run_graph(&f.graph, &inputs).unwrap();
    let got = session.run(inputs.iter().map(to_runtime).collect()).unwrap();
    for (g, w) in got.iter().zip(&want) {
        let Value::Tensor(w) = w else { panic!("no tensor") };
        let (g, w) = (numbers(g), w.to_f64s().unwrap());
        assert!(g.len() == w.len() && g.iter().zip(&w).all(|(a, b)| (a - b).abs() < 2e-5), "{g:?} {w:?}");
    }
}

#[test]
fn symbolic_extents_are_compiled_for_each_run() {
    if !emulated() {
        return;
    }
    // The weight is too large for the function's text, so it comes from the plan.
    let text = r#"
func @main(%x: tensor<?(N)x16xf32> {of.name = "x"}) -> (tensor<?(N)x8xf32> {of.name = "y"}) {
  %w = of.constant {value = dense<0.125> : tensor<16x8xf32>}
  %p = of.matmul %x, %w
  %y = of.softmax %p {axis = -1}
  of.return %y
}
"#;
    let before = of_ir::text::parse_module(text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let before = before.main().unwrap().clone();
    let mut f = function_of(text);
    let cache = cache();
    let backend = Cuda::new("emulated", cache.clone()).unwrap();
    place::entirely(&mut [&mut f], &backend).unwrap_or_else(|d| panic!("{d}"));
    let plan = placed(&f, &[&backend], cache);
    let mut session = Session::new(Arc::new(plan), 0, Options::default(), &[Arc::new(Device::default())]).unwrap();
    let mut r = Rng::new(5);
    for n in [3, 5, 3] {
        let x = r.f32s(&[n, 16]);
        let want = interpret::run_graph(&before.graph, std::slice::from_ref(&x)).unwrap();
        let got = session.run(vec![to_runtime(&x)]).unwrap();
        let Value::Tensor(want) = &want[0] else { panic!("no tensor") };
        let (got, want) = (numbers(&got[0]), want.to_f64s().unwrap());
        assert!(
            got.len() == want.len() && got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5),
            "{got:?} {want:?}"
        );
    }
}

#[test]
fn steps_are_timed_where_the_loader_measures_them() {
    if !emulated() {
        return;
    }
    let (plan, mut r) = (Arc::new(plan(&function(), "emulated")), Rng::new(3));
    for (timing, count) in [(Timing::Off, 0), (Timing::Whole, 1), (Timing::Steps, 3)] {
        let loader = Device::default().timed(timing);
        let options = Options { threads: 1, profile: true, ..Default::default() };
        let mut session = Session::new(Arc::clone(&plan), 0, options, &[Arc::new(loader)]).unwrap();
        for _ in 0..3 {
            let i: Value = of_ir::Tensor::from_slice(&[5], &[0i64, 1, 4, 2, 3]).unwrap().into();
            session.run([r.f32s(&[6, 40]), r.f32s(&[40, 24]), i].iter().map(to_runtime).collect()).unwrap();
        }
        let tasks = session.timings();
        let steps: Vec<_> = tasks.iter().flat_map(|t| &t.steps).collect();
        assert_eq!(steps.len(), count, "{steps:?}");
        assert!(steps.iter().all(|s| s.calls == 3 && !s.min.is_zero() && s.total >= 3 * s.min), "{steps:?}");
        // The steps are part of the task.
        let all = tasks.iter().find(|t| !t.steps.is_empty()).map_or(0, |t| (t.total.as_nanos()) as u64);
        assert!(steps.iter().map(|s| s.total.as_nanos() as u64).sum::<u64>() <= all, "{tasks:?}");
        session.reset_timings();
        assert!(session.timings().iter().all(|t| t.steps.is_empty()));
    }
}

/// A driver whose device has no memory.
struct Full;

impl Driver for Full {
    fn load(
        &self,
        program: &DeviceProgram<'_>,
        _: usize,
        _: Option<&RankContext>,
        _: &[Option<Arc<dyn DeviceValue>>],
        _: &[Option<Arc<dyn DeviceValue>>],
    ) -> Result<Box<dyn LoadedProgram>, DriverError> {
        Err(DriverError::Memory { needed: program.memory, free: 7 })
    }

    fn allocate(&self, _: usize, bytes: &[u64]) -> Result<Vec<Arc<dyn DeviceValue>>, DriverError> {
        Err(DriverError::Memory { needed: bytes.iter().sum(), free: 7 })
    }
}

#[test]
fn driver_errors_are_reported_at_load() {
    if !emulated() {
        return;
    }
    let plan = Arc::new(plan(&function(), "emulated"));
    let error = Session::new(plan, 0, Options::default(), &[Arc::new(Device::with(Arc::new(Full)))]).err().unwrap();
    assert!(error.to_string().contains("7 are free"), "{error}");
}

#[test]
fn a_machine_without_a_driver_fails_to_load() {
    if of_codegen::toolchain::nvrtc::identity().is_err() {
        let text = "SKIPPED: no plan was compiled for a GPU, 'cargo xtask cuda-toolkit' installs NVRTC\n";
        std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes()).unwrap();
        return;
    }
    let plan = plan(&function(), "sm_90");
    match Session::new(Arc::new(plan), 0, Options::default(), &[Arc::new(Device::default())]) {
        Ok(_) => {}
        Err(e) => assert!(e.to_string().contains("driver") || e.to_string().contains("GPU"), "{e}"),
    }
}
