//! Loops as kernels: recurrent layers of many sizes and forms, and loops of which some have such a kernel and others have none, against
//! the interpreter. Both compilers of kernels for CPUs compile them.

use std::sync::Arc;

use of_codegen::kernel::schedule::NONE;
use of_codegen::lower::{Lowered, lower};
use of_codegen::toolchain::cache::Cache;
use of_codegen::toolchain::machine;
use of_codegen::{CompileOptions, CpuCode, Isa, Target, rewrite};
use of_ir::{DType, Dim, Elements, Func, Tensor, Type};
use of_ops::recurrent::{Gru, Lstm, Rnn};
use of_ops::sample::Rng;
use of_ops::{Op, Value, interpret};
use of_plan::{Environment, PlanBuilder, PlanInfo};
use of_reference::Reference;
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::{op, plans};

const ROUNDING: Tolerance = Tolerance { relative: 1e-5, of_largest: 1e-5, ..Tolerance::EXACT };

/// The instruction sets of this machine, each with the compiler of its kernels.
fn targets() -> Vec<Target<'static>> {
    let here = ["avx2", "avx512", "avx512bf16"].into_iter().filter_map(Isa::by_name).filter(|isa| isa.runs_here());
    let all = [(Isa::host(), CpuCode::C)].into_iter().chain(here.map(|isa| (isa, CpuCode::Machine)));
    let target = |(isa, cpu_code)| Target {
        cpu_code,
        schedules: &NONE,
        keep_subnormals: true,
        ..Target::new(isa, &[&Reference])
    };
    all.map(target).collect()
}

/// The steps of a function after the passes.
fn lowered(f: &Func, target: &Target<'_>) -> Lowered {
    let f = rewrite::for_isa(f, target.isa).unwrap_or_else(|d| panic!("{d}"));
    let mut builder = PlanBuilder::new(PlanInfo::default(), Environment::default());
    lower(&f, target, None, None, &mut builder).unwrap_or_else(|d| panic!("{d}"))
}

/// Whether the compiler in process takes all kernels for every instruction set that it has, which this machine need not run.
fn compiles(what: &str, f: &Func) {
    for isa in ["avx2", "avx512", "avx512vnni", "avx512bf16", "avx512amx"].into_iter().filter_map(Isa::by_name) {
        for kernel in lowered(f, &Target { schedules: &NONE, ..Target::new(isa, &[&Reference]) }).kernels {
            machine::compile(&kernel.body, isa).unwrap_or_else(|why| panic!("{what} ({}): {why}", isa.name));
        }
    }
}

/// Runs a function after the passes on all inputs for every target, and compares with the interpreter.
/// `is_kernel` says whether loops are kernels on every target, unless that depends on the target.
fn check(what: &str, f: &Func, all: &[Vec<Value>], is_kernel: Option<bool>, tolerance: Tolerance) {
    let interpreted = |inputs: &Vec<Value>| interpret::run_graph(&f.graph, inputs);
    let want: Vec<_> = all.iter().map(|i| interpreted(i).unwrap_or_else(|d| panic!("{what}: {d}"))).collect();
    let mut module = of_ir::Module::default();
    module.funcs.insert("main".into(), f.clone());
    let f = plans::after_passes(module);
    compiles(what, &f);
    for target in targets() {
        let what = format!("{what} ({}, {:?})", target.isa.name, target.cpu_code);
        // The loops that are left run as programs.
        let made = lowered(&f, &target).inner.is_empty();
        assert_eq!(made, is_kernel.unwrap_or(made), "{what}");
        let options = CompileOptions::new(target, Cache::none());
        let plan = plans::compile_for(&f, &options).unwrap_or_else(|d| panic!("{what}: {d}"));
        if target.cpu_code == CpuCode::Machine && made {
            assert_eq!(plan.summary.compiled, 0, "{what}: the C compiler compiles a kernel");
        }
        let plan = Arc::new(plan.open().unwrap_or_else(|d| panic!("{what}: {d}")));
        for threads in [1, 2] {
            let options = of_runtime::Options { threads, profile: false, ..Default::default() };
            let session = of_runtime::Session::new(Arc::clone(&plan), 0, options, &[Arc::new(Reference)]);
            let mut session = session.unwrap();
            // A run begins with the first state again.
            for (inputs, want) in all.iter().zip(&want).chain(all.iter().zip(&want)) {
                let given = inputs.iter().map(plans::to_runtime).collect();
                let got: Vec<Value> = session.run(given).unwrap().iter().map(plans::from_runtime).collect();
                assert_close(&what, &got, want, tolerance);
            }
        }
    }
}

/// A layer: gates, states, steps, batch, hidden.
fn operands(r: &mut Rng, gates: usize, states: usize, [steps, batch, hidden]: [usize; 3], d: usize) -> Vec<Value> {
    let input = 6;
    let scale = 1.0 / (hidden as f64).sqrt();
    let floats = |r: &mut Rng, dims: &[usize]| Value::from(r.tensor(DType::F32, dims, -scale, scale));
    let mut out = vec![r.f32s(&[steps, batch, input])];
    out.push(floats(r, &[d, gates * hidden, input]));
    out.push(floats(r, &[d, gates * hidden, hidden]));
    out.push(if r.int(0, 3) > 0 { floats(r, &[d, 2 * gates * hidden]) } else { Value::None });
    let lens = r.tensor(DType::I32, &[batch], 1.0, steps as f64 + 1.0);
    out.push(if r.int(0, 2) == 0 { lens.into() } else { Value::None });
    for _ in 0..states {
        out.push(if r.int(0, 1) == 0 { r.f32s(&[d, batch, hidden]) } else { Value::None });
    }
    out
}

fn layer(r: &mut Rng, kind: usize, sizes: [usize; 3]) -> (Box<dyn Op>, Vec<Value>) {
    let direction = r.pick(&["forward", "reverse", "bidirectional"]);
    let d = if direction == "bidirectional" { 2 } else { 1 };
    let clip = r.pick(&[None, Some(1.5)]);
    match kind {
        0 => {
            let mut own = operands(r, 4, 2, sizes, d);
            if r.int(0, 1) == 0 {
                own.push(r.f32s(&[d, 3 * sizes[2]]));
            }
            let activations: Vec<Arc<str>> = match r.int(0, 2) {
                0 => ["HardSigmoid", "Softsign", "Relu"].repeat(d).into_iter().map(Into::into).collect(),
                _ => vec![],
            };
            let op = Lstm {
                direction: direction.into(),
                layout: 0,
                activations,
                activation_alpha: vec![],
                activation_beta: vec![],
                clip,
                input_forget: r.int(0, 3) == 0,
            };
            (Box::new(op), own)
        }
        1 => {
            let op = Gru {
                direction: direction.into(),
                layout: 0,
                activations: vec![],
                activation_alpha: vec![],
                activation_beta: vec![],
                clip,
                linear_before_reset: r.int(0, 1) == 0,
            };
            (Box::new(op), operands(r, 3, 1, sizes, d))
        }
        _ => {
            let op = Rnn {
                direction: direction.into(),
                layout: 0,
                activations: vec![],
                activation_alpha: vec![],
                activation_beta: vec![],
                clip,
            };
            (Box::new(op), operands(r, 1, 1, sizes, d))
        }
    }
}

#[test]
fn layers_agree_with_the_interpreter() {
    let mut r = Rng::new(1);
    // Rows of one vector and less, of several and a rest; one row, a tile of rows and less, several blocks.
    for sizes in [[5, 1, 3], [3, 1, 16], [4, 1, 70], [2, 1, 300], [3, 2, 33], [3, 8, 32], [2, 45, 20]] {
        for kind in 0..3 {
            let (layer, operands) = layer(&mut r, kind, sizes);
            // A GRU reads parts of its matrix, which it transposes in each iteration if they are computed.
            let constant = r.int(0, 3) > 0 || kind == 1;
            let is_fixed = |i: usize, _: &Tensor| constant && (1..=3).contains(&i);
            let (f, inputs) = op::one_op_func(&*layer, &operands, is_fixed);
            check(&format!("{} of {sizes:?}", layer.decl().name()), &f, &[inputs], Some(true), ROUNDING);
        }
    }
}

#[test]
fn layers_of_open_extents_agree_with_the_interpreter() {
    let mut r = Rng::new(2);
    for (kind, sizes) in (0..3).flat_map(|kind| [[9, 1, 32], [9, 7, 32], [9, 23, 19], [9, 4, 40]].map(|s| (kind, s))) {
        let (layer, operands) = layer(&mut r, kind, sizes);
        let [steps, batch, _] = sizes;
        let open = |d: &Dim| match d.as_const() {
            Some(n) if n == steps as i64 => Dim::symbol("steps"),
            Some(n) if n == batch as i64 && n > 2 => Dim::symbol("batch"),
            _ => d.clone(),
        };
        let is_fixed = |i: usize, _: &Tensor| (1..=3).contains(&i);
        let symbols = |ty: Type| ty.map_dims(&mut |d| open(d));
        let built = op::build((layer.decl().as_def(), layer.attrs()), &operands, is_fixed, symbols);
        let (graph, inputs) = built.unwrap_or_else(|d| panic!("{d}"));
        let what = format!("{} of open extents, {sizes:?}", layer.decl().name());
        // Sequences without a step leave the first state.
        let mut all = vec![inputs];
        if operands[4] == Value::None {
            let mut none = all[0].clone();
            none[0] = r.f32s(&[0, batch, 6]);
            all.push(none);
        }
        check(&what, &Func::numbered(graph), &all, Some(true), ROUNDING);
    }
}

/// Loops: what is tested, whether they are kernels, the types of state and results, and the iteration. States `%a`, `%b` and the
/// result of all iterations follow.
const LOOPS: &[(&str, bool, &str)] = &[
    ("states that change places", true, "%n = of.add %b, %x\n of.yield %on, %b, %a, %n"),
    ("a state that stays, and one that is an input", true, "of.yield %on, %a, %x, %b"),
    ("a state that is its own product", true, "%p = of.matmul %a, %w\n %n = of.tanh %p\n of.yield %on, %n, %a, %n"),
    (
        "two products in a row",
        true,
        "%p = of.matmul %a, %w\n %t = of.tanh %p\n %q = of.matmul %t, %w\n %n = of.add %q, %b\n of.yield %on, %n, %t, %q",
    ),
    (
        "a state that is read shifted after it is made",
        true,
        "%s = of.slice %a, %five, %end, %one, %one\n %h = of.slice %b, %zero, %five, %one, %one
         %n = of.concat %s, %h {axis = 1}\n %t = of.tanh %n\n of.yield %on, %t, %n, %a",
    ),
    (
        "a product with two readers",
        true,
        "%p = of.matmul %a, %w\n %n = of.tanh %p\n %m = of.exp %n\n of.yield %on, %n, %m, %p",
    ),
    (
        "a product of rows with the state",
        false,
        "%t = of.transpose %a {perm = [1, 0]}\n %p = of.matmul %x, %t\n %q = of.matmul %p, %b\n of.yield %on, %q, %a, %b",
    ),
    (
        "rows that read other rows",
        false,
        "%s = of.slice %a, %zero, %one, %zero, %one\n %n = of.add %s, %b\n of.yield %on, %n, %a, %b",
    ),
    (
        "a sum of rows",
        false,
        "%s = of.reduce_sum %a, %zero {keepdims = true}\n %n = of.sub %b, %s\n of.yield %on, %n, %a, %b",
    ),
    (
        "the number of the iteration",
        false,
        "%k = of.cast %i {to = #of.dtype<DTYPE>}\n %n = of.add %a, %k\n of.yield %on, %n, %a, %b",
    ),
];

#[test]
fn loops_agree_with_the_interpreter() {
    let mut r = Rng::new(3);
    for (what, is_kernel, iteration) in LOOPS {
        for (trips, dtype) in [("5", "f32"), ("0", "f32"), ("3", "f16"), ("3", "bf16")] {
            let iteration = iteration.replace("DTYPE", dtype);
            let text = format!(
                "func @main(%xs: tensor<5x3x10x{dtype}>, %a0: tensor<3x10x{dtype}>, %b0: tensor<3x10x{dtype}>, %w: tensor<10x10x{dtype}>)
    -> (tensor<3x10x{dtype}>, tensor<3x10x{dtype}>, tensor<?(k)x3x10x{dtype}>) {{
  %trips = of.constant {{value = dense<{trips}> : tensor<i64>}}
  %none = of.none
  %last_a, %last_b, %all = of.loop %trips, %none, %a0, %b0
      : (tensor<i64>, none, tensor<3x10x{dtype}>, tensor<3x10x{dtype}>) -> (tensor<3x10x{dtype}>, tensor<3x10x{dtype}>, tensor<?(k)x3x10x{dtype}>) {{
  ^bb0(%i: tensor<i64>, %c: tensor<i1>, %a: tensor<3x10x{dtype}>, %b: tensor<3x10x{dtype}>):
    %on = of.constant {{value = dense<true> : tensor<i1>}}
    %zero = of.constant {{value = dense<[0]> : tensor<1xi64>}}
    %one = of.constant {{value = dense<[1]> : tensor<1xi64>}}
    %five = of.constant {{value = dense<[5]> : tensor<1xi64>}}
    %end = of.constant {{value = dense<[10]> : tensor<1xi64>}}
    %x = of.gather %xs, %i {{axis = 0}}
    {iteration}
  }}
  of.return %last_a, %last_b, %all
}}"
            );
            let module = of_ir::text::parse_module(&text, "test", &of_ops::registry(), None);
            let module = module.unwrap_or_else(|d| panic!("{what}: {d}\n{text}"));
            let float = |r: &mut Rng, dims: &[usize]| {
                let own = r.tensor(DType::F32, dims, -0.4, 0.4);
                let kind = match dtype {
                    "f16" => DType::F16,
                    "bf16" => DType::BF16,
                    _ => DType::F32,
                };
                let numbers = own.to_f64s().unwrap_or_default();
                Value::from(Tensor::from_elements(kind, dims.to_vec(), Elements::Float(numbers)).unwrap())
            };
            let inputs = [&[5, 3, 10][..], &[3, 10], &[3, 10], &[10, 10]].map(|dims| float(&mut r, dims));
            let unit = if dtype == "f32" { 1e-6 } else { 2e-2 };
            let tolerance = Tolerance { relative: unit, of_largest: unit, ..Tolerance::EXACT };
            // A loop without iterations stacks nothing, which no kernel can hold.
            let is_kernel = *is_kernel && trips != "0";
            // Matrices of 16-bit floats are widened in each iteration, unless the instruction set multiplies them.
            let is_kernel = Some(is_kernel).filter(|_| dtype == "f32" || !iteration.contains("matmul"));
            check(
                &format!("{what}, {trips} of {dtype}"),
                module.main().unwrap(),
                &[inputs.to_vec()],
                is_kernel,
                tolerance,
            );
        }
    }
}
