//! Kernels for GPUs on the emulated one: its errors, and shapes that take every path of their schedules.

use std::sync::Arc;

use of_codegen::Target;
use of_codegen::isa::CUDA_EMULATED;
use of_codegen::physical::{BufferRef, BufferSlot, Flops, Operand, PortSpec, Step, StepGraph, StepKind};
use of_codegen::print::Source;
use of_codegen::{Isa, toolchain};
use of_ir::{DType, Func, Graph, Module, Rewriter, Tensor, Type};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Relu};
use of_ops::movement::{ScatterElements, ScatterNd};
use of_ops::nn::{AvgPool, Conv, MatMulInteger, MaxPool};
use of_ops::reduction::{ReduceMax, ReduceSum, Softmax};
use of_ops::sample::Rng;
use of_ops::structural::{Constant, Return};
use of_ops::{Value, interpret};
use of_plan::{ElementType, Environment, Exec, PlanBuilder, PlanFile, PlanInfo};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, Session};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::plans::{self as support, emulated_gpu, nvrtc};

fn run(plan: PlanFile, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let options = Options { threads: 2, profile: false, ..Default::default() };
    let mut session = Session::new(Arc::new(plan), 0, options, &[Arc::new(Reference)]).map_err(|e| e.to_string())?;
    let inputs = inputs.iter().map(|v| to_runtime(v).unwrap()).collect();
    let out = session.run(inputs).map_err(|e| e.to_string())?;
    Ok(out.iter().map(|v| from_runtime(v).unwrap()).collect())
}

/// Runs a kernel of hand-written statements on `input`; its second argument has as many elements. Two blocks.
fn run_text(isa: &'static Isa, text: &str, input: &[f32]) -> Result<Vec<f64>, String> {
    let bytes = input.len() * 4;
    let body = format!("  SIZES({bytes}, {bytes});\n{text}");
    let source = Source {
        args: 2,
        scratch_bytes: of_codegen::print::cuda::emulator::SCRATCH,
        ..Source::new(body, 2usize.into(), 1)
    };
    let blob = toolchain::compile(&source, isa).unwrap_or_else(|e| panic!("{e}"));
    let environment = Environment { arch: isa.arch.into(), threads: 1, ranks: 1, ..Environment::default() };
    let mut builder = PlanBuilder::new(PlanInfo::default(), environment);
    let code = builder.add_kernel("test", isa.name, blob.bytes, blob.entry).unwrap();
    let dims = vec![input.len() as i64];
    let slot = |name: &str| BufferSlot {
        name: name.into(),
        dtype: Some(DType::F32),
        dims: dims.clone(),
        bytes: Some(bytes as u64),
        extents: Vec::new(),
        variable: None,
    };
    let step = |kind| Step {
        name: "test".into(),
        locations: Vec::new(),
        kind,
        flops: Flops::default(),
        bytes: 0,
        reread: None,
        in_place: Vec::new(),
    };
    let port = || PortSpec { name: "x".into(), dtype: Some(DType::F32), dims: dims.clone(), object: false };
    let args = vec![Operand::whole(BufferRef::Slot(0)), Operand::whole(BufferRef::Slot(1))];
    let physical = StepGraph {
        slots: vec![slot("x"), slot("y")],
        steps: vec![
            step(StepKind::Feed { port: 0, dst: 0 }),
            step(StepKind::Kernel {
                code,
                args,
                writes: vec![1],
                symbols: false,
                iterations: source.iterations,
                grain: 2,
                scratch_bytes: source.scratch_bytes,
            }),
            step(StepKind::Fetch { port: 0, src: 1 }),
        ],
        inputs: vec![port()],
        outputs: vec![port()],
        variables: Vec::new(),
        symbols: Vec::new(),
        merges_collectives: true,
        time: Default::default(),
    };
    builder.add_program(physical.assemble("main", false));
    let plan = PlanFile::from_builder(&builder).unwrap();
    let out = run(plan, &[Tensor::from_slice(&[input.len()], input).unwrap().into()])?;
    let Value::Tensor(t) = &out[0] else { panic!("one tensor") };
    Ok(t.to_f64s().unwrap())
}

#[test]
fn the_emulated_gpu_detects_kernel_errors() {
    let Some(isa) = emulated_gpu() else { return };
    let x: Vec<f32> = (0..512).map(|i| i as f32).collect();
    const HEAD: &str = "  PTR(const f32) x = ARG(const f32, 0);\n  PTR(f32) y = ARG(f32, 1);\n";
    let run = |text: &str| {
        let block =
            format!("{HEAD}  BLOCKS(b) {{ const i32 t = threadIdx.x; const i64 e = b * THREADS + t;\n{text}\n  }}\n");
        run_text(isa, &block, &x)
    };
    assert_eq!(run("y[e] = x[e];").unwrap()[511], 511.0);
    // Shared memory, barriers, exchanges, votes.
    let reverse = "SHARED(f32, s, THREADS); s[t] = x[e]; __syncthreads(); y[e] = s[THREADS - 1 - t]; __syncthreads();";
    assert_eq!(run(reverse).unwrap()[..2], [255.0, 254.0]);
    let sum = "SHARED(f32, parts, 8); y[e] = block_reduce<Sum>(x[e], parts);";
    assert_eq!(run(sum).unwrap()[0], 255.0 * 128.0);
    let vote =
        "y[e] = __ballot_sync(0xffffffffu, t % 2 == 0) == 0x55555555u ? __shfl_down_sync(0xffffffffu, x[e], 1) : -1;";
    assert_eq!(run(vote).unwrap()[30..33], [31.0, 31.0, 33.0]);
    assert_eq!(run("if (t < 32) y[e] = __shfl_sync(0xffffffffu, x[e], 5);").unwrap()[..2], [5.0, 5.0]);
    assert_eq!(run("if (t == 0) y[e] = 0; __syncthreads(); atomicAdd(y + b * THREADS, 1.0f);").unwrap()[256], 256.0);
    // Errors.
    let missing = reverse.replacen("__syncthreads();", "", 1);
    assert_ne!(run(&missing).unwrap()[..256], run(reverse).unwrap()[..256], "a missing barrier shows");
    let wait = "divergent barrier";
    for (text, words) in [
        ("if (t < 100) __syncthreads(); y[e] = 0;", wait),
        ("if (t < 100) { __syncthreads(); }\n else { __syncthreads(); }\n y[e] = 0;", wait),
        ("if (t < 100) return 0;\n __syncthreads(); y[e] = 0;", wait),
        ("if (t % 32 < 7) y[e] = __shfl_xor_sync(0xffffffffu, x[e], 1);", wait),
        ("y[e] = __shfl_sync(0xffu << (t % 32 < 8 ? 0 : 8), x[e], 3);", wait),
        ("y[e] = x[e + 1];", "outside"),
        ("y[e + 256] = 0;", "outside"),
        ("y[e - 1] = 0;", "outside"),
        ("SHARED(f32, s, THREADS); s[t + 1] = x[e]; y[e] = 0;", "outside"),
        ("SHARED(f32, s, 100 * THREADS); y[e] = 0;", "outside"),
        ("if (e + 5 <= 512) y[e] = load4(x + e).at[0];", "aligned"),
        ("if (t == 7) return 1; y[e] = 0;", "out of range"),
    ] {
        let error = run(text).expect_err(text);
        assert!(error.contains(words), "{text}: {error}");
    }
}

fn check(name: &str, graph: Graph, inputs: &[Value]) {
    check_as(name, CUDA_EMULATED, 2e-6, graph, inputs);
}

/// The same on another emulated GPU, with this tolerance relative to the largest result.
fn check_as(name: &str, isa: &str, tolerance: f64, graph: Graph, inputs: &[Value]) {
    let Some(isa) = Isa::by_name(isa).filter(|_| emulated_gpu().is_some()) else { return };
    let want = interpret::run_graph(&graph, inputs).unwrap_or_else(|d| panic!("{name}: {d}"));
    let plan = planned(isa, graph);
    let got = run(plan, inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_close(name, &got, &want, Tolerance::of_largest(tolerance));
}

/// The plan of a graph after the passes.
fn planned(isa: &'static Isa, graph: Graph) -> PlanFile {
    let mut module = Module::default();
    module.funcs.insert("main".into(), Func::numbered(graph));
    support::plan_for(&support::after_passes(module), Target::new(isa, &[]), support::cache())
}

/// The f32 tensors in a plan's memory, without scalars.
fn wide(plan: &PlanFile) -> Vec<String> {
    let many = |dims: &[i64]| dims.iter().any(|d| *d > 1);
    let registers = plan.plan().programs.iter().flat_map(|p| &p.registers).map(|r| (&r.name, r.dtype(), &r.dims));
    let weights = plan.plan().weights.iter().map(|w| (&w.name, w.dtype(), &w.dims));
    registers.chain(weights).filter(|(_, t, dims)| *t == ElementType::F32 && many(dims)).map(|x| x.0.clone()).collect()
}

#[test]
fn products_of_every_tile_agree() {
    let mut r = Rng::new(5);
    let mut shapes = vec![(vec![], 1, 1, 1), (vec![], 7, 1300, 9), (vec![16], 256, 20, 250), (vec![64], 250, 10, 256)];
    for _ in 0..10 {
        let lead = (0..r.int(0, 2)).map(|_| r.int(1, 3) as usize).collect();
        shapes.push((lead, r.int(1, 90) as usize, r.int(1, 70) as usize, r.int(1, 90) as usize));
    }
    for (i, (lead, m, k, n)) in shapes.into_iter().enumerate() {
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "test");
        let a = [&lead[..], &[m, k]].concat();
        // One right operand for the whole batch, or one for each.
        let b = if i % 2 == 0 { vec![k, n] } else { [&lead[..], &[k, n]].concat() };
        let x = rw.add_arg(entry, Type::fixed(DType::F32, &a), None);
        let w = rw.add_arg(entry, Type::fixed(DType::F32, &b), None);
        let bias = rw.create_one(Constant { value: r.tensor(DType::F32, &[n], -1.0, 1.0) }, &[]).unwrap();
        let y = rw.create_one(MatMul {}, &[x, w]).unwrap();
        let y = rw.create_one(Add {}, &[y, bias]).unwrap();
        let y = rw.create_one(Relu {}, &[y]).unwrap();
        rw.create(Return {}, &[y]).unwrap();
        let inputs = [r.tensor(DType::F32, &a, -1.0, 1.0).into(), r.tensor(DType::F32, &b, -1.0, 1.0).into()];
        check(&format!("{lead:?} {m}x{k}x{n}"), graph, &inputs);
    }
}

/// Tensor cores, where they are asked for: with ten bits, and with nearly all.
#[test]
fn products_on_tensor_cores_agree() {
    let mut r = Rng::new(9);
    let mut shapes = vec![(vec![], 1, 1, 1), (vec![64], 250, 12, 256), (vec![], 64, 128, 64), (vec![2], 70, 36, 68)];
    for _ in 0..6 {
        let lead = (0..r.int(0, 2)).map(|_| r.int(1, 3) as usize).collect();
        shapes.push((lead, r.int(1, 90) as usize, r.int(1, 70) as usize, r.int(1, 90) as usize));
    }
    for (lead, m, k, n) in shapes {
        let (a, b) = ([&lead[..], &[m, k]].concat(), [&lead[..], &[k, n]].concat());
        let inputs = [r.tensor(DType::F32, &a, -1.0, 1.0).into(), r.tensor(DType::F32, &b, -1.0, 1.0).into()];
        let bias = r.tensor(DType::F32, &[n], -1.0, 1.0);
        let all = [("tf32", 2e-3), ("tf32x3", 3e-6), ("bf16", 2e-2), ("f16", 2e-3)];
        for (products, tolerance) in all {
            let isa = &format!("{CUDA_EMULATED}+{products}");
            let mut graph = Graph::new();
            let entry = graph.entry();
            let mut rw = Rewriter::new(&mut graph, "test");
            let x = rw.add_arg(entry, Type::fixed(DType::F32, &a), None);
            let w = rw.add_arg(entry, Type::fixed(DType::F32, &b), None);
            let bias = rw.create_one(Constant { value: bias.clone() }, &[]).unwrap();
            let y = rw.create_one(MatMul {}, &[x, w]).unwrap();
            let y = rw.create_one(Add {}, &[y, bias]).unwrap();
            rw.create(Return {}, &[y]).unwrap();
            check_as(&format!("{isa} {lead:?} {m}x{k}x{n}"), isa, tolerance, graph, &inputs);
        }
    }
}

/// Products of 16-bit floats, of two inputs or of one and a constant: what is in memory has 16 bits.
#[test]
fn products_of_16_bit_floats_agree() {
    let mut r = Rng::new(11);
    let mut shapes = vec![(vec![], 1, 1, 1), (vec![64], 250, 24, 256), (vec![], 64, 128, 64), (vec![2], 70, 34, 66)];
    for _ in 0..6 {
        let lead = (0..r.int(0, 2)).map(|_| r.int(1, 3) as usize).collect();
        shapes.push((lead, r.int(1, 90) as usize, r.int(1, 70) as usize, r.int(1, 90) as usize));
    }
    for (i, (lead, m, k, n)) in shapes.into_iter().enumerate() {
        for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
            let isa = [CUDA_EMULATED.to_string(), format!("{CUDA_EMULATED}+tf32"), format!("{CUDA_EMULATED}+bf16")]
                [i % 3]
                .clone();
            let (a, b) = ([&lead[..], &[m, k]].concat(), [&lead[..], &[k, n]].concat());
            let (left, right) = (r.tensor(dtype, &a, -1.0, 1.0), r.tensor(dtype, &b, -1.0, 1.0));
            let mut graph = Graph::new();
            let entry = graph.entry();
            let mut rw = Rewriter::new(&mut graph, "test");
            let mut inputs = vec![left.into()];
            let x = rw.add_arg(entry, Type::fixed(dtype, &a), None);
            let w = if i % 2 == 0 {
                inputs.push(right.into());
                rw.add_arg(entry, Type::fixed(dtype, &b), None)
            } else {
                rw.create_one(Constant { value: right }, &[]).unwrap()
            };
            let bias = rw.create_one(Constant { value: r.tensor(dtype, &[n], -1.0, 1.0) }, &[]).unwrap();
            let y = rw.create_one(MatMul {}, &[x, w]).unwrap();
            let y = rw.create_one(Add {}, &[y, bias]).unwrap();
            let y = rw.create_one(Relu {}, &[y]).unwrap();
            rw.create(Return {}, &[y]).unwrap();
            let name = format!("{isa} {dtype} {lead:?} {m}x{k}x{n}");
            if let Some(isa) = Isa::by_name(&isa).filter(|_| emulated_gpu().is_some()) {
                assert_eq!(wide(&planned(isa, graph.clone())), [""; 0], "{name}");
            }
            check_as(&name, &isa, tolerance, graph, &inputs);
        }
    }
}

/// A layer of a transformer in 16-bit floats: products, rows and elementwise ops read and write them.
const LAYER: &str = r#"
func @main(%x: tensor<2x20x48xf16>, %wq: tensor<48x48xf16>, %wk: tensor<48x48xf16>, %wv: tensor<48x48xf16>,
           %w1: tensor<48x96xf16>, %w2: tensor<96x48xf16>) -> (tensor<2x20x48xf16>) {
  %scale = of.constant {value = dense<0.25> : tensor<f16>}
  %last = of.constant {value = dense<[-1]> : tensor<1xi64>}
  %mean = of.reduce_mean %x, %last {keepdims = true}
  %d = of.sub %x, %mean
  %dd = of.mul %d, %d
  %var = of.reduce_mean %dd, %last {keepdims = true}
  %eps = of.constant {value = dense<0.01> : tensor<f16>}
  %ve = of.add %var, %eps
  %sd = of.sqrt %ve
  %h = of.div %d, %sd
  %q = of.matmul %h, %wq
  %k = of.matmul %h, %wk
  %v = of.matmul %h, %wv
  %s = of.constant {value = dense<[0, 0, 3, 16]> : tensor<4xi64>}
  %qs = of.reshape %q, %s {allowzero = false}
  %ks = of.reshape %k, %s {allowzero = false}
  %vs = of.reshape %v, %s {allowzero = false}
  %qh = of.transpose %qs {perm = [0, 2, 1, 3]}
  %kt = of.transpose %ks {perm = [0, 2, 3, 1]}
  %vh = of.transpose %vs {perm = [0, 2, 1, 3]}
  %s0 = of.matmul %qh, %kt
  %s1 = of.mul %s0, %scale
  %p = of.softmax %s1 {axis = -1}
  %o = of.matmul %p, %vh
  %t = of.transpose %o {perm = [0, 2, 1, 3]}
  %os = of.constant {value = dense<[0, 0, 48]> : tensor<3xi64>}
  %a = of.reshape %t, %os {allowzero = false}
  %r = of.add %a, %x
  %u = of.matmul %r, %w1
  %g = of.tanh %u
  %z = of.matmul %g, %w2
  %y = of.add %z, %r
  of.return %y
}
"#;

#[test]
fn a_layer_in_16_bit_floats_has_nothing_in_f32_in_memory() {
    for (dtype, tolerance) in [("f16", 4e-3), ("bf16", 3e-2)] {
        let text = LAYER.replace("f16>", &format!("{dtype}>"));
        let module = of_ir::text::parse_module(&text, "test", &of_ops::registry(), None).unwrap();
        let graph = module.main().unwrap().graph.clone();
        let mut r = Rng::new(12);
        let shapes = [&[2, 20, 48][..], &[48, 48], &[48, 48], &[48, 48], &[48, 96], &[96, 48]];
        let dtype = if dtype == "f16" { DType::F16 } else { DType::BF16 };
        let inputs: Vec<Value> = shapes.iter().map(|d| r.tensor(dtype, d, -0.3, 0.3).into()).collect();
        if let Some(isa) = emulated_gpu() {
            let plan = planned(isa, graph.clone());
            assert_eq!(wide(&plan), [""; 0], "{:#?}", plan.plan().code.iter().map(|c| &c.name).collect::<Vec<_>>());
        }
        for arch in ["sm_80", "sm_90", "sm_100"].into_iter().filter(|_| nvrtc()) {
            planned(Isa::by_name(arch).unwrap(), graph.clone());
        }
        check_as(&format!("a layer in {dtype}"), CUDA_EMULATED, tolerance, graph, &inputs);
    }
}

#[test]
fn products_of_bytes_agree() {
    let mut r = Rng::new(6);
    for dtype in [DType::U8, DType::I8] {
        for (m, k, n) in [(1, 3, 5), (40, 65, 33), (5, 700, 7)] {
            let mut graph = Graph::new();
            let entry = graph.entry();
            let mut rw = Rewriter::new(&mut graph, "test");
            let x = rw.add_arg(entry, Type::fixed(dtype, &[m, k]), None);
            let w = rw.create_one(Constant { value: r.tensor(DType::I8, &[k, n], -128.0, 127.0) }, &[]).unwrap();
            let none = rw.create_one(of_ops::structural::NoneValue {}, &[]).unwrap();
            let y = rw.create_one(MatMulInteger {}, &[x, w, none, none]).unwrap();
            rw.create(Return {}, &[y]).unwrap();
            check(&format!("{dtype} {m}x{k}x{n}"), graph, &[r.tensor(dtype, &[m, k], 0.0, 127.0).into()]);
        }
    }
}

#[test]
fn convolutions_agree() {
    let mut r = Rng::new(7);
    for i in 0..10 {
        let group = [1, 1, 2, 8][i % 4];
        let (n, cin, cout) = (r.int(1, 2) as usize, 8, if group == 8 { 8 } else { 2 * r.int(1, 20) as usize });
        let (h, w) = (r.int(6, 15) as usize, r.int(6, 15) as usize);
        let (kh, kw) = (r.int(1, 3), r.int(1, 3));
        // Depthwise ones are computed in f32.
        let (dtype, tolerance) =
            [(DType::F32, 2e-6), (DType::F16, 1e-3), (DType::BF16, 8e-3)][if group == 8 { 0 } else { i % 3 }];
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "test");
        let x = rw.add_arg(entry, Type::fixed(dtype, &[n, cin, h, w]), None);
        let filters = r.tensor(dtype, &[cout, cin / group, kh as usize, kw as usize], -1.0, 1.0);
        let filters = rw.create_one(Constant { value: filters }, &[]).unwrap();
        let bias = rw.create_one(Constant { value: r.tensor(dtype, &[cout], -1.0, 1.0) }, &[]).unwrap();
        let conv = Conv {
            auto_pad: "NOTSET".into(),
            dilations: vec![r.int(1, 2), 1],
            group: group as i64,
            pads: vec![r.int(0, 1), 1, 0, r.int(0, 2)],
            strides: vec![r.int(1, 2), r.int(1, 2)],
            channels_last: false,
        };
        let y = rw.create_one(conv, &[x, filters, bias]).unwrap();
        let y = rw.create_one(Relu {}, &[y]).unwrap();
        rw.create(Return {}, &[y]).unwrap();
        let input = r.tensor(dtype, &[n, cin, h, w], -1.0, 1.0).into();
        check_as(&format!("convolution {i} of {dtype}"), CUDA_EMULATED, tolerance, graph, &[input]);
    }
}

#[test]
fn pools_agree() {
    let mut r = Rng::new(10);
    for channels in [3, 8] {
        for largest in [true, false] {
            let mut graph = Graph::new();
            let entry = graph.entry();
            let mut rw = Rewriter::new(&mut graph, "test");
            let dims = [2, 9, 7, channels];
            let x = rw.add_arg(entry, Type::fixed(DType::F32, &dims), None);
            let (kernel, strides, pads) = (vec![3, 2], vec![2, 1], vec![1, 0, 1, 1]);
            let (dilations, auto_pad) = (vec![1, 1], "NOTSET".into());
            let y = if largest {
                let (storage_order, indices) = (0, false);
                let pool = MaxPool {
                    kernel,
                    strides,
                    pads,
                    dilations,
                    ceil_mode: false,
                    storage_order,
                    return_indices: indices,
                    auto_pad,
                    channels_last: true,
                };
                rw.create_one(pool, &[x])
            } else {
                let count_include_pad = false;
                let pool = AvgPool {
                    kernel,
                    strides,
                    pads,
                    dilations,
                    ceil_mode: false,
                    count_include_pad,
                    auto_pad,
                    channels_last: true,
                };
                rw.create_one(pool, &[x])
            };
            let y = rw.create_one(Relu {}, &[y.unwrap()]).unwrap();
            rw.create(Return {}, &[y]).unwrap();
            check(&format!("pool of {channels}, {largest}"), graph, &[r.tensor(DType::F32, &dims, -1.0, 1.0).into()]);
        }
    }
}

#[test]
fn rows_and_reductions_agree() {
    let mut r = Rng::new(8);
    let mut shapes = vec![
        vec![3, 1],
        vec![2, 128],
        vec![9, 1024],
        vec![2, 1025],
        vec![3, 4096],
        vec![1, 50_000],
        vec![50_000, 2],
        vec![100, 300, 2],
    ];
    shapes.extend((0..8).map(|_| r.dims(3, 1, 60)));
    shapes.push(vec![70, 3, 64]);
    for dims in shapes {
        let axis = r.int(0, dims.len() as i64 - 1);
        for kind in 0..3 {
            let mut graph = Graph::new();
            let entry = graph.entry();
            let mut rw = Rewriter::new(&mut graph, "test");
            let x = rw.add_arg(entry, Type::fixed(DType::F32, &dims), None);
            let axes = Constant::ints(&mut rw, &[axis]).unwrap();
            let y = match kind {
                0 => rw.create_one(Softmax { axis: -1 }, &[x]),
                1 => rw.create_one(ReduceSum { keepdims: true }, &[x, axes]),
                _ => rw.create_one(ReduceMax { keepdims: true }, &[x, axes]),
            };
            let y = y.unwrap();
            rw.create(Return {}, &[y]).unwrap();
            let input = r.tensor(DType::F32, &dims, -2.0, 2.0);
            check(&format!("{dims:?} along {axis}, {kind}"), graph, &[input.into()]);
        }
    }
}

/// A scatter of slices to few positions, so that many collide.
fn scattered(
    to: &[usize],
    named: usize,
    slices: usize,
    dtype: DType,
    reduction: &str,
    seed: u64,
) -> (Graph, Vec<Value>) {
    let mut r = Rng::new(seed);
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let own: Vec<usize> = [&[slices], &to[named..]].concat();
    let types = [(dtype, to.to_vec()), (DType::I64, vec![slices, named]), (dtype, own.clone())];
    let values = types.map(|(dtype, dims)| rw.add_arg(entry, Type::fixed(dtype, &dims), None));
    let y = rw.create_one(ScatterNd { reduction: reduction.into() }, &values).unwrap();
    rw.create(Return {}, &[y]).unwrap();
    let place = |r: &mut Rng, d: usize| r.int(0, d.min(7) as i64 - 1) - if r.int(0, 1) == 0 { 0 } else { d as i64 };
    let places: Vec<i64> = (0..slices).flat_map(|_| to[..named].to_vec()).map(|d| place(&mut r, d)).collect();
    let indices = Tensor::from_slice(&[slices, named], &places).unwrap();
    let inputs = vec![r.tensor(dtype, to, -2.0, 2.0).into(), indices.into(), r.tensor(dtype, &own, -2.0, 2.0).into()];
    (graph, inputs)
}

/// The result is bitwise equal to that of one CPU thread, which processes slices in order, whatever the collisions.
fn check_scatter(name: &str, (graph, inputs): (Graph, Vec<Value>)) {
    let Some(isa) = emulated_gpu() else { return };
    let [own, cpu] = [isa, Isa::host()].map(|isa| run(planned(isa, graph.clone()), &inputs).unwrap());
    assert_eq!(own, cpu, "{name}");
    check_as(name, CUDA_EMULATED, 1e-5, graph, &inputs);
}

#[test]
fn scatters_agree() {
    let shapes: [(&[usize], usize, usize); 9] = [
        (&[5], 1, 3),
        (&[1], 1, 700),
        (&[40], 1, 1000),
        (&[3, 4], 2, 600),
        (&[700, 3], 1, 300),
        (&[9, 40], 1, 257),
        (&[3, 300], 1, 20),
        (&[2, 5, 520], 2, 30),
        (&[1000, 2], 1, 1),
    ];
    for (i, (to, named, slices)) in shapes.into_iter().enumerate() {
        let all = [
            (DType::F32, "add"),
            (DType::U8, "none"),
            (DType::I32, "mul"),
            (DType::F32, "max"),
            (DType::I64, "min"),
            (DType::F32, "none"),
        ];
        for (dtype, reduction) in &all[..if i == 2 { all.len() } else { 2 }] {
            let case = scattered(to, named, slices, *dtype, reduction, i as u64);
            check_scatter(&format!("{slices} slices to {to:?}, {reduction} of {dtype}"), case);
        }
    }
    // Elements along an axis.
    for (axis, to, own) in [(0, [30, 7], [400, 5]), (1, [6, 50], [6, 90]), (1, [300, 2], [256, 9])] {
        for reduction in ["none", "add"] {
            let mut r = Rng::new(axis as u64);
            let mut graph = Graph::new();
            let entry = graph.entry();
            let mut rw = Rewriter::new(&mut graph, "test");
            let types = [(DType::F32, &to), (DType::I64, &own), (DType::F32, &own)];
            let values = types.map(|(dtype, dims)| rw.add_arg(entry, Type::fixed(dtype, dims), None));
            let y = rw.create_one(ScatterElements { axis, reduction: reduction.into() }, &values).unwrap();
            rw.create(Return {}, &[y]).unwrap();
            let n = to[axis as usize] as i64;
            let places: Vec<i64> = (0..own[0] * own[1]).map(|_| r.int(-n, n - 1)).collect();
            let indices = Tensor::from_slice(&own, &places).unwrap();
            let inputs = vec![r.f32s(&to), indices.into(), r.f32s(&own)];
            check_scatter(&format!("{own:?} elements to {to:?}, {reduction}"), (graph, inputs));
        }
    }
}

#[test]
fn a_scatter_out_of_range_is_an_error() {
    let Some(isa) = emulated_gpu() else { return };
    for slices in [1, 300] {
        let (graph, mut inputs) = scattered(&[20, 3], 1, slices, DType::F32, "add", 1);
        let mut places = vec![0i64; slices];
        places[slices - 1] = 20;
        inputs[1] = Tensor::from_slice(&[slices, 1], &places).unwrap().into();
        let error = run(planned(isa, graph), &inputs).unwrap_err();
        assert!(error.contains("out of range"), "{error}");
    }
}

/// It has more than one block: each block has its own positions.
#[test]
fn a_scatter_uses_many_blocks() {
    let Some(isa) = emulated_gpu() else { return };
    let graph = || scattered(&[700, 3], 1, 300, DType::F32, "add", 1).0;
    if nvrtc() {
        planned(Isa::by_name("sm_90").unwrap(), graph());
    }
    let plan = planned(isa, graph());
    let kernels = plan.plan().programs[0].tasks.iter().filter_map(|t| match &t.exec {
        Some(Exec::Kernel(k)) => Some(k.iterations),
        _ => None,
    });
    assert!(kernels.clone().count() == 1 && kernels.sum::<i64>() >= 200);
}
