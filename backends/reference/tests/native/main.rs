//! Native code against the interpreter: random graphs, control flow, and kernels with several schedules.

mod training;

use std::sync::Arc;

use of_codegen::toolchain::cache::Cache;
use of_codegen::{CompileOptions, CpuCode, Isa, Language, Target, compile};
use of_ir::{Dim, Func, Graph, Module, NewOp, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::sample::Rng;
use of_ops::structural::{Constant, Return};
use of_ops::{Value, interpret, list};
use of_passes::Manager;
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, RunError, Session};
use of_test_support::compare::{self, Tolerance};
use of_test_support::op;
use of_test_support::plans::{self as support, emulated_gpu, nvrtc};

/// Runs `f` through the passes, code generation, a plan and the runtime.
fn run_compiled(f: &Func, inputs: &[Value], isa: &'static Isa, threads: usize) -> Vec<Value> {
    try_compiled(f, inputs, isa, threads).unwrap_or_else(|e| panic!("{e}"))
}

/// What kernels of both compilers for CPUs may differ by: products may be fused into other sums.
const COMPILERS: Tolerance = Tolerance { of_largest: 1e-5, of_largest_16_bit: 8e-3, steps: 1, ..Tolerance::EXACT };

/// The same, or the runtime's error for the inputs. Kernels of the C compiler must agree with those that are compiled in process.
fn try_compiled(f: &Func, inputs: &[Value], isa: &'static Isa, threads: usize) -> Result<Vec<Value>, RunError> {
    let own = run_with(f, inputs, isa, threads, CpuCode::Machine);
    if isa.language == Language::C {
        let c = run_with(f, inputs, isa, threads, CpuCode::C);
        match (&own, &c) {
            (Ok(own), Ok(c)) => compare::assert_close("both compilers", own, c, COMPILERS),
            _ => assert_eq!(own.is_ok(), c.is_ok(), "of one compiler only the kernels fail: {own:?}, {c:?}"),
        }
    }
    own
}

/// The results of the kernels of a compiler.
fn run_with(
    f: &Func,
    inputs: &[Value],
    isa: &'static Isa,
    threads: usize,
    cpu_code: CpuCode,
) -> Result<Vec<Value>, RunError> {
    let plan = Arc::new(plan_for(f, isa, cpu_code).unwrap_or_else(|d| panic!("{d}")));
    let mut session =
        Session::new(plan, 0, Options { threads, profile: false, ..Default::default() }, &[Arc::new(Reference)])
            .unwrap();
    let inputs = inputs.iter().map(|v| to_runtime(v).unwrap()).collect();
    Ok(session.run(inputs)?.iter().map(|v| from_runtime(v).unwrap()).collect())
}

/// The plan of `f`, after the passes.
fn plan_for(f: &Func, isa: &'static Isa, cpu_code: CpuCode) -> Result<of_plan::PlanFile, of_diag::Diagnostics> {
    let mut module = Module::default();
    module.funcs.insert("main".into(), f.clone());
    let target = Target { cpu_code, keep_subnormals: true, ..Target::new(isa, &[&Reference]) };
    let options = CompileOptions::new(target, support::cache());
    Ok(support::compile_for(&support::after_passes(module), &options)?.open()?)
}

/// Fails if results differ by more than rounding.
fn assert_close(what: &str, got: &[Value], want: &[Value]) {
    assert_within(2e-6, what, got, want);
}

/// The same, with what rounding may change as a part of the largest number.
fn assert_within(part: f64, what: &str, got: &[Value], want: &[Value]) {
    compare::assert_close(what, got, want, Tolerance { relative: part, ..Tolerance::of_largest(part) });
}

/// A random chain of fused work: products, convolutions, elementwise ops, reductions, movements.
fn random_graph(seed: u64, open: bool) -> (Func, Vec<Value>) {
    use of_ops::elementwise::Tanh;
    let mut r = Rng::new(seed);
    let dims = r.dims(3, 1, 40);
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let mut ty = Type::fixed(of_ir::DType::F32, &dims);
    if open {
        let shape = vec![Dim::symbol("n"), Dim::symbol("m"), Dim::from(dims[2])];
        ty = Type::tensor(of_ir::DType::F32, shape);
    }
    let x = rw.add_arg(entry, ty, None);
    let mut pool = vec![x];
    let shape = |rw: &Rewriter<'_>, v: ValueId| rw.graph().ty(v).as_tensor().unwrap().shape.clone().unwrap();
    for _ in 0..r.int(4, 14) {
        let a = r.pick(&pool);
        let own = shape(&rw, a);
        let b = pool.iter().copied().find(|v| shape(&rw, *v) == own && *v != a).unwrap_or(a);
        let rank = own.len();
        // No constraint: the row length is symbolic.
        let width = own[rank - 1].as_const().map(|n| n as usize);
        let made = match (r.int(0, 11), width) {
            (6 | 7 | 10, None) => rw.create_one(Tanh {}, &[a]),
            (kind, width) => one_more(&mut rw, &mut r, kind, [a, b], rank, width.unwrap_or(1)),
        };
        pool.push(made.unwrap_or_else(|d| panic!("{d}")));
    }
    let mut outputs = vec![*pool.last().unwrap()];
    outputs.push(r.pick(&pool));
    rw.create(Return {}, &outputs).unwrap();
    let input = r.tensor(of_ir::DType::F32, &dims, -2.0, 2.0);
    (Func::numbered(graph), vec![input.into()])
}

/// A further op of a random graph: on `a`, and `b` of the same type, whose rows have `width` elements.
fn one_more(
    rw: &mut Rewriter<'_>,
    r: &mut Rng,
    kind: i64,
    [a, b]: [ValueId; 2],
    rank: usize,
    width: usize,
) -> Result<ValueId, of_diag::Diagnostic> {
    use of_ops::contraction::MatMul;
    use of_ops::elementwise::{Add, Div, Exp, Max, Mul, Sigmoid, Sub, Tanh};
    use of_ops::movement::Transpose;
    use of_ops::reduction::{ReduceMax, ReduceSum, Softmax};
    match kind {
        0 => rw.create_one(Add {}, &[a, b]),
        1 => rw.create_one(Sub {}, &[a, b]),
        2 => rw.create_one(Mul {}, &[a, b]),
        3 => rw.create_one(Max {}, &[a, b]),
        4 => rw.create_one(Tanh {}, &[a]),
        5 => rw.create_one(Sigmoid {}, &[a]),
        6 => {
            let bias = r.tensor(of_ir::DType::F32, &[width], -1.0, 1.0);
            let c = rw.create_one(Constant { value: bias }, &[]).unwrap();
            rw.create_one(Add {}, &[a, c])
        }
        7 => {
            let n = r.int(1, 50) as usize;
            let w = r.tensor(of_ir::DType::F32, &[width, n], -0.3, 0.3);
            let w = rw.create_one(Constant { value: w }, &[]).unwrap();
            rw.create_one(MatMul {}, &[a, w])
        }
        8 => rw.create_one(Softmax { axis: -1 }, &[a]),
        9 => {
            let axes = Constant::ints(rw, &[r.int(0, rank as i64 - 1)]).unwrap();
            rw.create_one(ReduceMax { keepdims: true }, &[a, axes])
        }
        10 => {
            // Centred rows: a reduction and what follows it.
            let axes = Constant::ints(rw, &[-1]).unwrap();
            let s = rw.create_one(ReduceSum { keepdims: true }, &[a, axes]).unwrap();
            let n = Constant::number(rw, width as f64, of_ir::DType::F32).unwrap();
            let m = rw.create_one(Div {}, &[s, n]).unwrap();
            let d = rw.create_one(Sub {}, &[a, m]).unwrap();
            let t = rw.create_one(Tanh {}, &[d]).unwrap();
            rw.create_one(Exp {}, &[t])
        }
        _ => rw.create_one(Transpose { perm: Some(vec![0, 2, 1]) }, &[a]),
    }
}

#[test]
fn random_graphs_agree_with_the_interpreter() {
    for seed in 0..90 {
        let (f, inputs) = random_graph(seed, seed % 3 == 2);
        let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
        let got = run_compiled(&f, &inputs, Isa::host(), 1 + (seed as usize % 3));
        assert_close(&format!("graph {seed}"), &got, &want);
    }
}

#[test]
fn random_graphs_agree_on_an_emulated_gpu() {
    let Some(isa) = emulated_gpu() else { return };
    for seed in 0..45 {
        let (f, inputs) = random_graph(seed, seed % 3 == 2);
        let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
        let got = run_compiled(&f, &inputs, isa, 1 + (seed as usize % 3));
        assert_close(&format!("graph {seed}"), &got, &want);
    }
}

/// The GPU compiler, which needs no GPU, accepts all kernels that these tests generate.
#[test]
fn nvrtc_compiles_every_kernel() {
    if !nvrtc() {
        return;
    }
    let isa = Isa::by_name("sm_90").unwrap();
    let mut kernels = std::collections::BTreeSet::new();
    let mut take = |name: &str, f: &Func| {
        let plan = plan_for(f, isa, CpuCode::default()).unwrap_or_else(|d| panic!("{name}: {d}"));
        kernels.extend(plan.plan().code.iter().map(|c| c.blake3.clone()));
    };
    for open in [false, true] {
        op::functions(2, open).for_each(|o| take(o.decl.name(), &o.func));
    }
    (0..20).for_each(|seed| take(&format!("graph {seed}"), &random_graph(seed, seed % 3 == 2).0));
    for arch in ["sm_80", "sm_100", "sm_80+tf32", "sm_90+tf32x3", "sm_100+bf16", "sm_80+f16"] {
        for seed in 0..4 {
            let f = random_graph(seed, false).0;
            plan_for(&f, Isa::by_name(arch).unwrap(), CpuCode::default()).unwrap_or_else(|d| panic!("{arch}: {d}"));
        }
    }
    assert!(kernels.len() > 100, "only {} kernels", kernels.len());
}

/// Branches in loops in branches, captures, symbolic extents, stacked results, a loop with zero iterations.
#[test]
fn control_flow_agrees_with_the_interpreter() {
    const TEXT: &str = r#"
func @main(%x: tensor<?(n)x8xf32>, %w: tensor<8x8xf32>, %trips: tensor<i64>, %flag: tensor<i1>)
    -> (tensor<?(n)x8xf32>, tensor<?(n)x8xf32>, tensor<?(k)xf32>) {
  %none = of.none
  %bound = of.constant {value = dense<40.0> : tensor<f32>}
  %last, %stack = of.loop %trips, %none, %x
      : (tensor<i64>, none, tensor<?(n)x8xf32>) -> (tensor<?(n)x8xf32>, tensor<?(k)xf32>) {
  ^bb0(%i: tensor<i64>, %c: tensor<i1>, %v: tensor<?(n)x8xf32>):
    %p = of.matmul %v, %w
    %q = of.if %flag : (tensor<i1>) -> tensor<?(n)x8xf32> {
      %t = of.tanh %p
      of.yield %t
    }, {
      %s = of.add %p, %x
      of.yield %s
    }
    %m = of.reduce_max %q, %none {keepdims = false}
    %on = of.lt %m, %bound
    of.yield %on, %q, %m
  }
  %y = of.relu %last
  of.return %y, %last, %stack
}
"#;
    let module = of_ir::text::parse_module(TEXT, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let f = module.main().unwrap();
    let mut r = Rng::new(7);
    for (n, trips, flag) in [(1, 3, true), (5, 4, false), (3, 0, true), (2, 60, false)] {
        let float = |r: &mut Rng, dims: &[usize]| Value::from(r.tensor(of_ir::DType::F32, dims, -1.0, 1.0));
        let condition = of_ir::Elements::Int(vec![i128::from(flag)]);
        let inputs = [
            float(&mut r, &[n, 8]),
            float(&mut r, &[8, 8]),
            Tensor::scalar(trips as i64).into(),
            Tensor::from_elements(of_ir::DType::Bool, Vec::new(), condition).unwrap().into(),
        ];
        let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
        let got = run_compiled(f, &inputs, Isa::host(), 1 + n % 2);
        assert_close(&format!("{n} rows, {trips} trips, {flag}"), &got, &want);
    }
}

/// The left factor comes from an op that makes a scalar first, which others read too: no rows of a softmax.
#[test]
fn products_of_results_after_a_scalar_are_no_attention() {
    const TEXT: &str = r#"
func @main(%x: tensor<4x4xf32>, %s: tensor<f32>, %flag: tensor<i1>) -> (tensor<4x4xf32>, tensor<f32>) {
  %a, %m = of.if %flag : (tensor<i1>) -> (tensor<f32>, tensor<4x4xf32>) {
    %t = of.tanh %x
    of.yield %s, %t
  }, {
    %u = of.neg %s
    of.yield %u, %x
  }
  %y = of.matmul %m, %x
  %z = of.exp %a
  of.return %y, %z
}
"#;
    let module = of_ir::text::parse_module(TEXT, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let f = module.main().unwrap();
    let mut r = Rng::new(3);
    for flag in [false, true] {
        let condition = of_ir::Elements::Int(vec![i128::from(flag)]);
        let inputs = [
            Value::from(r.tensor(of_ir::DType::F32, &[4, 4], -1.0, 1.0)),
            Value::from(r.tensor(of_ir::DType::F32, &[], -1.0, 1.0)),
            Tensor::from_elements(of_ir::DType::Bool, Vec::new(), condition).unwrap().into(),
        ];
        let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
        assert_close(&format!("{flag}"), &run_compiled(f, &inputs, Isa::host(), 1), &want);
    }
}

/// Hashes of words, as those of dropouts are, and what floats and other integers they become.
#[test]
fn unsigned_words_agree_with_the_interpreter() {
    const TEXT: &str = r#"
func @main(%x: tensor<5x37xui32>, %s: tensor<ui32>, %f: tensor<5x37xf32>)
    -> (tensor<5x37xf32>, tensor<5x37xi32>, tensor<5x37xui8>, tensor<5x37xui32>, tensor<5x37xf32>) {
  %16 = of.constant {value = dense<16> : tensor<ui32>}
  %3 = of.constant {value = dense<3> : tensor<ui32>}
  %big = of.constant {value = dense<2221713035> : tensor<ui32>}
  %a = of.add %x, %s
  %b = of.shr %a, %16
  %c = of.bitwise_xor %a, %b
  %d = of.mul %c, %big
  %e = of.shl %d, %3
  %g = of.sub %e, %x
  %float = of.cast %g {to = #of.dtype<f32>}
  %signed = of.cast %g {to = #of.dtype<i32>}
  %byte = of.cast %g {to = #of.dtype<ui8>}
  %same = of.eq %c, %a
  %some = of.select %same, %f, %float
  of.return %float, %signed, %byte, %g, %some
}
"#;
    let module = of_ir::text::parse_module(TEXT, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let f = module.main().unwrap();
    let mut r = Rng::new(11);
    let words = |r: &mut Rng, dims: &[usize]| {
        let of = |_| i128::from(r.bits() as u32);
        let elements = (0..dims.iter().product::<usize>()).map(of).collect();
        Value::from(Tensor::from_elements(of_ir::DType::U32, dims.to_vec(), of_ir::Elements::Int(elements)).unwrap())
    };
    let inputs = [words(&mut r, &[5, 37]), words(&mut r, &[]), r.f32s(&[5, 37])];
    let want = interpret::run_graph(&f.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
    assert_within(0.0, "words", &run_compiled(f, &inputs, Isa::host(), 1), &want);
}

/// The stacked results of a loop with zero iterations have the extents of their type.
#[test]
fn loops_without_iterations_return_declared_extents() {
    const TEXT: &str = r#"
func @main(%x: tensor<?(n)x8xf32> {of.name = "x"}, %trips: tensor<i64> {of.name = "trips"})
    -> (tensor<?(k)x?(n)x8xf32> {of.name = "y"}) {
  %none = of.none
  %stack = of.loop %trips, %none : (tensor<i64>, none) -> tensor<?(k)x?(n)x8xf32> {
  ^bb0(%i: tensor<i64>, %c: tensor<i1>):
    %t = of.tanh %x
    of.yield %c, %t
  }
  %y = of.relu %stack
  of.return %y
}
"#;
    let module = of_ir::text::parse_module(TEXT, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    let mut r = Rng::new(3);
    for trips in [0i64, 2] {
        let inputs = [r.f32s(&[5, 8]), Tensor::scalar(trips).into()];
        let got = run_compiled(module.main().unwrap(), &inputs, Isa::host(), 1);
        let Value::Tensor(t) = &got[0] else { panic!("{got:?}") };
        assert_eq!(t.dims(), [trips as usize, 5, 8]);
    }
}

/// The same where the loop runs as a whole on the interpreter, which knows the extent and not the symbol.
#[test]
fn loops_without_iterations_return_extents_of_captures() {
    const TEXT: &str = r#"
func @main(%x: tensor<?(n)xf32> {of.name = "x"}, %trips: tensor<i64> {of.name = "trips"})
    -> (tensor<?(k)x?(n ceildiv 3)xf4E2M1FN> {of.name = "y"}) {
  %none = of.none
  %zero = of.constant {value = dense<[0]> : tensor<1xi64>}
  %end = of.constant {value = dense<[9223372036854775807]> : tensor<1xi64>}
  %three = of.constant {value = dense<[3]> : tensor<1xi64>}
  %part = of.slice %x, %zero, %end, %zero, %three
  %narrow = of.cast %part {to = #of.dtype<f4E2M1FN>}
  %y = of.loop %trips, %none : (tensor<i64>, none) -> tensor<?(k)x?(n ceildiv 3)xf4E2M1FN> {
  ^bb0(%i: tensor<i64>, %c: tensor<i1>):
    %t = of.neg %narrow
    of.yield %c, %t
  }
  of.return %y
}
"#;
    let module = of_ir::text::parse_module(TEXT, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
    for trips in [0i64, 2] {
        let x = Tensor::from_slice(&[5], &[1.0f32, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let got = run_compiled(module.main().unwrap(), &[x.into(), Tensor::scalar(trips).into()], Isa::host(), 1);
        let Value::Tensor(t) = &got[0] else { panic!("{got:?}") };
        assert_eq!(t.dims(), [trips as usize, 2]);
    }
}

/// A sigmoid of a large negative number underflows no earlier than necessary.
#[test]
fn sigmoids_keep_their_small_values() {
    let x = Tensor::from_slice(&[5], &[-103.0f32, -96.0, -88.0, -1.0, 90.0]).unwrap();
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let v = rw.add_arg(entry, Type::Tensor(x.ty()), None);
    let y = rw.create_one(of_ops::elementwise::Sigmoid {}, &[v]).unwrap();
    rw.create(Return {}, &[y]).unwrap();
    let numbers = |v: &[Value]| match &v[0] {
        Value::Tensor(t) => t.to_f64s().unwrap(),
        other => panic!("{other:?}"),
    };
    let want = numbers(&interpret::run_graph(&graph, &[x.clone().into()]).unwrap());
    let got = numbers(&run_compiled(&Func::numbered(graph), &[x.into()], Isa::host(), 1));
    for (g, w) in got.iter().zip(&want) {
        assert!((g - w).abs() <= 1e-6 * w + f64::from(f32::from_bits(1)), "{got:?} {want:?}");
    }
}

/// Square blocks are transposed in words or vectors; what remains at the borders, element by element.
#[test]
fn transposes_of_every_element_size_agree() {
    use of_ir::DType;
    let mut r = Rng::new(2);
    let transpose = of_ops::movement::Transpose { perm: Some(vec![0, 2, 1]) };
    for dtype in [DType::U8, DType::I8, DType::I16, DType::F16, DType::F32, DType::I64] {
        for (rows, columns) in [(8, 8), (70, 19), (19, 70), (64, 65), (7, 3), (131, 5), (9, 130), (4, 40), (40, 2)] {
            let x = [Value::from(r.tensor(dtype, &[2, rows, columns], 0.0, 100.0))];
            let fixed = op::one_op_func(&transpose, &x, |_, _| false);
            let open = op::one_op_func_of_symbols(&transpose, &x, |_, _| false).unwrap();
            for (f, inputs) in [fixed, open] {
                let want = interpret::run_graph(&f.graph, &inputs).unwrap();
                assert_eq!(run_compiled(&f, &inputs, Isa::host(), 1), want, "{dtype} {rows}x{columns}");
            }
        }
    }
}

/// Columns that are a part of a vector, in rows that fill the same cache lines or do not.
#[test]
fn narrow_columns_are_transposed() {
    let mut r = Rng::new(3);
    let transpose = of_ops::movement::Transpose { perm: Some(vec![2, 1, 0]) };
    for dims in [[4, 8, 40], [2, 24, 33], [8, 3, 17], [8, 6, 48], [9, 5, 70], [3, 4, 16]] {
        let x = [r.f32s(&dims)];
        let (f, inputs) = op::one_op_func(&transpose, &x, |_, _| false);
        let want = interpret::run_graph(&f.graph, &inputs).unwrap();
        assert_eq!(run_compiled(&f, &inputs, Isa::host(), 2), want, "{dims:?}");
    }
}

#[test]
fn indices_of_every_integer_type_gather() {
    use of_ir::DType;
    let mut r = Rng::new(1);
    for dtype in DType::ALL.into_iter().filter(|d| d.is_int()) {
        let indices = r.tensor(dtype, &[7], 0.0, 5.0);
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "test");
        let x = rw.add_arg(entry, Type::fixed(DType::F32, &[5, 3]), None);
        let i = rw.add_arg(entry, Type::fixed(dtype, &[7]), None);
        let y = rw.create_one(of_ops::movement::Gather { axis: 0 }, &[x, i]).unwrap();
        rw.create(Return {}, &[y]).unwrap();
        let inputs = [r.f32s(&[5, 3]), indices.into()];
        let want = interpret::run_graph(&graph, &inputs).unwrap();
        assert_close(&format!("{dtype}"), &run_compiled(&Func::numbered(graph), &inputs, Isa::host(), 1), &want);
    }
}

#[test]
fn kernels_reject_products_of_unequal_depth() {
    let mut r = Rng::new(1);
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let open = TensorType::new(of_ir::DType::F32, vec![2usize.into(), Dim::symbol("k")]);
    let x = rw.add_arg(entry, Type::Tensor(open), None);
    let w = rw.create_one(Constant { value: r.tensor(of_ir::DType::F32, &[3, 4], 0.0, 1.0) }, &[]).unwrap();
    let y = rw.create_one(of_ops::contraction::MatMul {}, &[x, w]).unwrap();
    rw.create(Return {}, &[y]).unwrap();
    let f = Func::numbered(graph);
    let fits = [r.f32s(&[2, 3])];
    let want = interpret::run_graph(&f.graph, &fits).unwrap();
    assert_close("depth 3", &run_compiled(&f, &fits, Isa::host(), 1), &want);
    let error = try_compiled(&f, &[r.f32s(&[2, 5])], Isa::host(), 1).unwrap_err().to_string();
    assert!(error.contains("violate an equality"), "{error}");
}

#[test]
fn kernels_reject_concat_of_unequal_width() {
    let mut r = Rng::new(1);
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let open = |width: &str| Type::tensor(of_ir::DType::F32, vec![2usize.into(), Dim::symbol(width)]);
    let (a, b) = (rw.add_arg(entry, open("k"), None), rw.add_arg(entry, open("l"), None));
    let y = rw.create_one(of_ops::movement::Concat { axis: 0 }, &[a, b]).unwrap();
    rw.create(Return {}, &[y]).unwrap();
    let f = Func::numbered(graph);
    let fits = [r.f32s(&[2, 3]), r.f32s(&[2, 3])];
    let want = interpret::run_graph(&f.graph, &fits).unwrap();
    assert_close("equal pieces", &run_compiled(&f, &fits, Isa::host(), 1), &want);
    for other in [2, 5] {
        let error = try_compiled(&f, &[r.f32s(&[2, 3]), r.f32s(&[2, other])], Isa::host(), 1).unwrap_err().to_string();
        assert!(error.contains("violate an equality"), "{error}");
    }
}

/// A symbolic extent that a squeeze assumes to be 1: also where a kernel reads through the reshape, and as a scalar.
#[test]
fn reshapes_of_symbolic_extents_are_checked() {
    for read in [true, false] {
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "test");
        let open = TensorType::new(of_ir::DType::F32, vec![Dim::symbol("n")]);
        let x = rw.add_arg(entry, Type::Tensor(open), None);
        let axis = rw.create_one(Constant { value: Tensor::from_i64s(&[0]) }, &[]).unwrap();
        let mut y = rw.create_one(of_ops::movement::Squeeze {}, &[x, axis]).unwrap();
        if read {
            y = rw.create_one(of_ops::elementwise::Exp {}, &[y]).unwrap();
        }
        rw.create(Return {}, &[y]).unwrap();
        let f = Func::numbered(graph);
        let mut r = Rng::new(9);
        let fits = [r.f32s(&[1])];
        let want = interpret::run_graph(&f.graph, &fits).unwrap();
        assert_close("one", &run_compiled(&f, &fits, Isa::host(), 1), &want);
        let error = try_compiled(&f, &[r.f32s(&[3])], Isa::host(), 1).unwrap_err().to_string();
        assert!(error.contains("violate an equality"), "{error}");
    }
}

#[test]
fn long_sums_keep_their_precision() {
    const K: usize = 1 << 14;
    let mut r = Rng::new(1);
    let weights = r.tensor(of_ir::DType::F32, &[K, 16], 0.0, 1.0);
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let x = rw.add_arg(entry, Type::fixed(of_ir::DType::F32, &[1, K]), None);
    let w = rw.create_one(Constant { value: weights.clone() }, &[]).unwrap();
    let y = rw.create_one(of_ops::contraction::MatMul {}, &[x, w]).unwrap();
    rw.create(Return {}, &[y]).unwrap();
    let row = r.tensor(of_ir::DType::F32, &[1, K], 0.0, 1.0);
    let got = run_compiled(&Func::numbered(graph), &[row.clone().into()], Isa::host(), 1);
    let [Value::Tensor(got)] = &got[..] else { panic!("one tensor") };
    let (a, b) = (row.to_f64s().unwrap(), weights.to_f64s().unwrap());
    for (column, y) in got.to_f64s().unwrap().into_iter().enumerate() {
        let exact: f64 = a.iter().zip(b[column..].iter().step_by(16)).map(|(a, b)| a * b).sum();
        assert!((y / exact - 1.0).abs() < 2e-6, "column {column}: {y} for {exact}");
    }
}

/// Blocked products: partial tiles of rows and columns, batches, a computed right operand, a symbolic number of rows, odd
/// reduction lengths, split between several workers.
#[test]
fn large_products_agree_with_the_interpreter() {
    large_products(of_ir::DType::F32, 2e-6);
}

#[test]
fn large_products_of_bf16_agree_with_the_interpreter() {
    if Isa::host().contracts_natively(of_ir::DType::BF16) {
        large_products(of_ir::DType::BF16, 1.6e-2);
    }
}

/// The padding of an odd reduction length must not multiply infinity by zero.
#[test]
fn odd_sums_of_bf16_may_be_infinite() {
    let bf16 = |dims: &[usize], values: Vec<f64>| {
        Tensor::from_elements(of_ir::DType::BF16, dims.to_vec(), of_ir::Elements::Float(values)).unwrap()
    };
    for (place, columns) in [(6, 1), (7, 20), (8, 64)] {
        let mut row = vec![1.0; 9];
        row[place] = f64::INFINITY;
        let (x, w) = (bf16(&[1, 9], row), bf16(&[9, columns], vec![1.0; 9 * columns]));
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "test");
        let arg = rw.add_arg(entry, Type::fixed(of_ir::DType::BF16, &[1, 9]), None);
        let w = rw.create_one(Constant { value: w }, &[]).unwrap();
        let y = rw.create_one(of_ops::contraction::MatMul {}, &[arg, w]).unwrap();
        rw.create(Return {}, &[y]).unwrap();
        let got = run_compiled(&Func::numbered(graph), &[x.into()], Isa::host(), 1);
        let [Value::Tensor(got)] = &got[..] else { panic!("one tensor") };
        assert!(got.to_f64s().unwrap().iter().all(|y| *y == f64::INFINITY), "{got:?}");
    }
}

fn large_products(dtype: of_ir::DType, tolerance: f64) {
    let cases: [(&[usize], &[usize], bool); 9] = [
        (&[97, 2100], &[2100, 70], true),
        (&[97, 2100], &[2100, 70], false),
        (&[2, 65, 2400], &[2, 2400, 33], true),
        (&[2, 65, 2400], &[2, 2400, 48], false),
        (&[701, 600], &[600, 50], true),
        (&[97, 5100], &[5100, 70], true),
        (&[97, 2101], &[2101, 70], true),
        (&[97, 2101], &[2101, 70], false),
        (&[1, 2101], &[2101, 70], true),
    ];
    for (seed, (left, right, constant)) in cases.into_iter().enumerate() {
        let mut r = Rng::new(seed as u64);
        let weights = r.tensor(dtype, right, -1.0, 1.0);
        let inputs: Vec<Value> =
            [left, &right[right.len() - 1..]].map(|dims| r.tensor(dtype, dims, -1.0, 1.0).into()).into();
        let baseline = Isa::by_name("x86-64").filter(|i| i.arch == std::env::consts::ARCH);
        let isas = [(Isa::host(), false), (Isa::host(), true)].into_iter().chain(baseline.map(|i| (i, false)));
        for (isa, open) in isas {
            let mut graph = Graph::new();
            let entry = graph.entry();
            let mut rw = Rewriter::new(&mut graph, "test");
            let mut inputs = inputs.clone();
            let own = Type::fixed(dtype, left);
            let rows = left.len() - 2;
            let mut axis = 0..;
            let own = own.map_dims(&mut |d| {
                if axis.next() == Some(rows) && open { Dim::symbol("rows") } else { d.clone() }
            });
            let x = rw.add_arg(entry, own, None);
            let bias = rw.add_arg(entry, Type::fixed(dtype, &right[right.len() - 1..]), None);
            let w = if constant {
                rw.create_one(Constant { value: weights.clone() }, &[]).unwrap()
            } else {
                inputs.push(weights.clone().into());
                rw.add_arg(entry, Type::fixed(dtype, right), None)
            };
            let y = rw.create_one(of_ops::contraction::MatMul {}, &[x, w]).unwrap();
            let y = rw.create_one(of_ops::elementwise::Add {}, &[y, bias]).unwrap();
            let y = rw.create_one(of_ops::elementwise::Relu {}, &[y]).unwrap();
            rw.create(Return {}, &[y]).unwrap();
            let want = interpret::run_graph(&graph, &inputs).unwrap();
            let f = Func::numbered(graph);
            for threads in [1, 2] {
                let what = format!("{left:?} by {right:?} of {dtype}, open: {open}, {}", isa.name);
                assert_within(tolerance, &what, &run_compiled(&f, &inputs, isa, threads), &want);
            }
        }
    }
}

/// The bytes of the plan for `f`.
fn plan_bytes(f: &Func, winograd: bool) -> Vec<u8> {
    let options = CompileOptions::new(Target { winograd, ..Target::new(Isa::host(), &[&Reference]) }, Cache::none());
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    compile(&[("main".into(), f)], &options).unwrap_or_else(|d| panic!("{d}")).write(&path).unwrap();
    std::fs::read(&path).unwrap()
}

#[test]
fn the_same_input_gives_the_same_plan() {
    let (f, _) = random_graph(3, false);
    assert!(plan_bytes(&f, true) == plan_bytes(&f, true));
}

/// Images whose last tiles reach beyond them, several samples in a block, borders of unequal width, and an epilogue.
#[test]
fn convolutions_of_few_multiplications_agree_with_the_interpreter() {
    let f32s = |r: &mut Rng, dims: &[usize]| r.tensor(of_ir::DType::F32, dims, -1.0, 1.0);
    for (n, h, w, cin, cout, taps, computed) in [
        (2, 13, 11, 32, 48, 3, false),
        (1, 40, 9, 16, 32, 3, false),
        (3, 7, 7, 64, 64, 3, false),
        (1, 20, 21, 32, 32, 5, false),
        (2, 13, 11, 32, 48, 3, true),
        (1, 40, 9, 16, 32, 3, true),
    ] {
        let mut r = Rng::new(h as u64);
        let weights = f32s(&mut r, &[cout, cin, taps, taps]);
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "test");
        let x = rw.add_arg(entry, Type::fixed(of_ir::DType::F32, &[n, cin, h, w]), None);
        let value = match computed {
            true => rw.add_arg(entry, Type::fixed(of_ir::DType::F32, &[cout, cin, taps, taps]), None),
            false => rw.create_one(Constant { value: weights.clone() }, &[]).unwrap(),
        };
        let bias = rw.create_one(Constant { value: f32s(&mut r, &[cout]) }, &[]).unwrap();
        let conv = of_ops::nn::Conv {
            auto_pad: "NOTSET".into(),
            dilations: vec![1, 1],
            group: 1,
            pads: vec![1, 2, 2, 0],
            strides: vec![1, 1],
            channels_last: false,
        };
        let y = rw.create_one(conv, &[x, value, bias]).unwrap();
        let y = rw.create_one(of_ops::elementwise::Relu {}, &[y]).unwrap();
        rw.create(Return {}, &[y]).unwrap();
        let mut inputs = vec![Value::from(f32s(&mut r, &[n, cin, h, w]))];
        inputs.extend(computed.then(|| weights.into()));
        let want = interpret::run_graph(&graph, &inputs).unwrap();
        let f = Func::numbered(graph);
        for threads in [1, 3] {
            let got = run_compiled(&f, &inputs, Isa::host(), threads);
            assert_close(&format!("{n}x{h}x{w}x{cin}x{cout} {taps} {computed} {threads}"), &got, &want);
        }
        let mut module = Module::default();
        module.funcs.insert("main".into(), f);
        let mut manager = Manager::default();
        manager.append("cpu").unwrap();
        manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{d}"));
        let f = module.main().unwrap();
        assert!(plan_bytes(f, true) != plan_bytes(f, false), "{h}x{w}: direct sums were chosen");
    }
}

#[test]
fn tensors_round_trip_through_the_runtime() {
    let mut r = Rng::new(1);
    for dtype in of_ir::DType::ALL {
        let t: Tensor = r.tensor(dtype, &[3, 2], 0.0, 3.0);
        let v = Value::Tensor(t);
        assert_eq!(from_runtime(&to_runtime(&v).unwrap()).unwrap(), v, "{dtype}");
    }
    let _ = Constant { value: Tensor::from_i64s(&[1]) }.def();
}

fn floats(v: &Value) -> Vec<f32> {
    let Value::Tensor(t) = v else { panic!("{v:?}") };
    t.as_slice::<f32>().unwrap().into_owned()
}

/// The difference of `want` and `got`, relative to `want`, in units of `f32::EPSILON / 2`; 0 if both are NaN or equal.
fn places(got: f32, want: f32) -> f64 {
    if got == want || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    let place = f64::from(want.abs().max(f32::MIN_POSITIVE)) * f64::from(f32::EPSILON) / 2.0;
    (f64::from(got) - f64::from(want)).abs() / place
}

#[test]
fn functions_match_over_the_full_range() {
    // Every sign, exponent and leading fraction bits, and values between them.
    let every: Vec<f32> = (0..=u32::MAX).step_by(40_009).map(f32::from_bits).collect();
    let specials =
        [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e-45, 3.0, -3.0];
    let all = [&every[..], &specials].concat();
    // Pairs: numbers near one with large exponents, any with any, all specials with each other.
    let mut r = Rng::new(1);
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for _ in 0..100_000 {
        x.push(r.float(0.5, 2.0) as f32);
        y.push(r.float(-150.0, 150.0) as f32);
        x.push(every[r.int(0, every.len() as i64 - 1) as usize]);
        y.push(r.float(-4.0, 4.0) as f32);
        x.push(-r.float(0.1, 9.0) as f32);
        y.push(r.int(-40, 40) as f32);
    }
    for a in specials {
        for b in specials {
            x.push(a);
            y.push(b);
        }
    }
    let functions = list::ALL.iter().filter_map(|d| {
        let op = d.sample(0)?.op;
        let operands = match d.signature().operands.len() {
            1 => vec![all.clone()],
            _ => vec![x.clone(), y.clone()],
        };
        let most = op.scalar()?.max_error()?;
        Some((op, operands, most))
    });
    let functions: Vec<_> = functions.collect();
    assert!(functions.len() > 10, "only {} functions", functions.len());
    let isas = ["avx2", "x86-64"].into_iter().filter_map(Isa::by_name).filter(|i| i.runs_here());
    let isas: Vec<&'static Isa> = isas.chain([Isa::host()]).chain(emulated_gpu()).collect();
    for (op, operands, most) in functions {
        let values: Vec<Value> = operands.iter().map(|x| Tensor::from_slice(&[x.len()], x).unwrap().into()).collect();
        let (f, inputs) = op::function(&*op, &values, false).unwrap();
        let want = interpret::run_graph(&f.graph, &inputs).unwrap();
        let want = floats(&want[0]);
        for isa in &isas {
            let got = run_compiled(&f, &inputs, isa, 1);
            let got = floats(&got[0]);
            let worst = (0..want.len()).max_by(|i, j| places(got[*i], want[*i]).total_cmp(&places(got[*j], want[*j])));
            let i = worst.unwrap();
            let at: Vec<f32> = operands.iter().map(|x| x[i]).collect();
            let off = places(got[i], want[i]);
            let what = format!("{} of {at:?} on {}: {}, not {}", op.decl().name(), isa.name, got[i], want[i]);
            assert!(off <= most, "{what}: {off} places");
        }
    }
}

/// A chain longer than a fused group may be, of functions that long kernels call instead of inlining them.
#[test]
fn long_chains_of_functions_agree() {
    use of_ops::elementwise::{Exp, Sin, Tanh};
    let mut r = Rng::new(1);
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let mut v = rw.add_arg(entry, Type::fixed(of_ir::DType::F32, &[5, 7]), None);
    for i in 0..600 {
        v = match i % 3 {
            0 => rw.create_one(Sin {}, &[v]),
            1 => rw.create_one(Exp {}, &[v]),
            _ => rw.create_one(Tanh {}, &[v]),
        }
        .unwrap();
    }
    rw.create(Return {}, &[v]).unwrap();
    let f = Func::numbered(graph);
    let inputs = [r.f32s(&[5, 7])];
    let want = interpret::run_graph(&f.graph, &inputs).unwrap();
    assert_close("a chain of 600 functions", &run_compiled(&f, &inputs, Isa::host(), 1), &want);
}
