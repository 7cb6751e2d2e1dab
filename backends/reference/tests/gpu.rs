//! Kernels for GPUs on the emulated one: its errors, and shapes that take every path of their schedules.

mod skipped;

use std::sync::Arc;

use of_codegen::native::cache::Cache;
use of_codegen::native::isa::SHIM;
use of_codegen::native::{Isa, Source, toolchain};
use of_codegen::physical::{Operand, Physical, Place, PortSpec, Slot, Step, Work};
use of_codegen::{CompileOptions, Target, compile};
use of_ir::{DType, Func, Graph, Module, Rewriter, Tensor, Type};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Add, Relu};
use of_ops::nn::{AvgPool, Conv, MatMulInteger, MaxPool};
use of_ops::reduction::{ReduceMax, ReduceSum, Softmax};
use of_ops::sample::Rng;
use of_ops::structural::{Constant, Return};
use of_ops::{Value, interpret};
use of_passes::Manager;
use of_plan::{Environment, PlanBuilder, PlanFile, PlanInfo};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, Session};
use skipped::emulated_gpu;

fn run(plan: PlanFile, inputs: &[Value]) -> Result<Vec<Value>, String> {
    let options = Options { threads: 2, profile: false };
    let mut session = Session::new(Arc::new(plan), 0, options, &[Arc::new(Reference)]).map_err(|e| e.to_string())?;
    let inputs = inputs.iter().map(|v| to_runtime(v).unwrap()).collect();
    let out = session.run(inputs).map_err(|e| e.to_string())?;
    Ok(out.iter().map(|v| from_runtime(v).unwrap()).collect())
}

/// Runs a kernel of hand-written statements on `input`; its second argument has as many elements. Two blocks.
fn run_text(isa: &'static Isa, text: &str, input: &[f32]) -> Result<Vec<f64>, String> {
    let bytes = input.len() * 4;
    let body = format!("  SIZES({bytes}, {bytes});\n{text}");
    let source =
        Source { args: 2, scratch_bytes: of_codegen::cuda::shim::SCRATCH, ..Source::new(body, 2usize.into(), 1) };
    let blob = toolchain::compile(&source, isa).unwrap_or_else(|e| panic!("{e}"));
    let environment =
        Environment { arch: isa.arch.into(), cpu_features: Vec::new(), threads: 1, ranks: 1, cuda_arch: None };
    let mut builder = PlanBuilder::new(PlanInfo::default(), environment);
    let code = builder.add_kernel("test", isa.name, blob.bytes, blob.entry).unwrap();
    let dims = vec![input.len() as i64];
    let slot = |name: &str| Slot {
        name: name.into(),
        dtype: Some(DType::F32),
        dims: dims.clone(),
        bytes: Some(bytes as u64),
        extents: Vec::new(),
    };
    let step = |work| Step { name: "test".into(), locations: Vec::new(), work, flops: 0, bytes: 0 };
    let port = || PortSpec { name: "x".into(), dtype: Some(DType::F32), dims: dims.clone(), object: false };
    let args = vec![Operand::whole(Place::Slot(0)), Operand::whole(Place::Slot(1))];
    let physical = Physical {
        slots: vec![slot("x"), slot("y")],
        steps: vec![
            step(Work::Feed { port: 0, dst: 0 }),
            step(Work::Kernel {
                code,
                args,
                writes: vec![1],
                symbols: false,
                iterations: source.iterations,
                grain: 2,
                scratch_bytes: source.scratch_bytes,
            }),
            step(Work::Fetch { port: 0, src: 1 }),
        ],
        inputs: vec![port()],
        outputs: vec![port()],
        symbols: Vec::new(),
    };
    builder.add_program(physical.assemble("main", false));
    let plan = PlanFile::from_builder(&builder).unwrap();
    let out = run(plan, &[Tensor::from_slice(&[input.len()], input).unwrap().into()])?;
    let Value::Tensor(t) = &out[0] else { panic!("one tensor") };
    Ok(t.to_f64s().unwrap())
}

#[test]
fn the_emulated_gpu_tells_what_a_gpu_would_not() {
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
    let sum = "SHARED(f32, parts, 8); y[e] = across_block<Sum>(x[e], parts);";
    assert_eq!(run(sum).unwrap()[0], 255.0 * 128.0);
    let vote =
        "y[e] = __ballot_sync(0xffffffffu, t % 2 == 0) == 0x55555555u ? __shfl_down_sync(0xffffffffu, x[e], 1) : -1;";
    assert_eq!(run(vote).unwrap()[30..33], [31.0, 31.0, 33.0]);
    assert_eq!(run("if (t < 32) y[e] = __shfl_sync(0xffffffffu, x[e], 5);").unwrap()[..2], [5.0, 5.0]);
    assert_eq!(run("if (t == 0) y[e] = 0; __syncthreads(); atomicAdd(y + b * THREADS, 1.0f);").unwrap()[256], 256.0);
    // What is wrong.
    let missing = reverse.replacen("__syncthreads();", "", 1);
    assert_ne!(run(&missing).unwrap()[..256], run(reverse).unwrap()[..256], "a missing barrier shows");
    let wait = "wait for each other";
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
    check_as(name, SHIM, 2e-6, graph, inputs);
}

/// The same on another emulated GPU, whose results are so far off at most, as a part of the largest.
fn check_as(name: &str, isa: &str, tolerance: f64, graph: Graph, inputs: &[Value]) {
    let Some(isa) = Isa::by_name(isa).filter(|_| emulated_gpu().is_some()) else { return };
    let want = interpret::run_graph(&graph, inputs).unwrap_or_else(|d| panic!("{name}: {d}"));
    let mut module = Module::default();
    module.funcs.insert("main".into(), Func::numbered(graph));
    let mut manager = Manager::default();
    manager.append("cpu").unwrap();
    manager.run(&mut module, &mut |_| ()).unwrap_or_else(|d| panic!("{name}: {d}"));
    let options = CompileOptions {
        model: "test".into(),
        flags: Vec::new(),
        inputs: Vec::new(),
        threads: 1,
        target: Target::new(isa, &[]),
        cache: Cache::at(&std::env::temp_dir().join("of-native-tests"), Cache::DEFAULT_LIMIT),
        progress: None,
    };
    let compiled =
        compile(&[("main".into(), module.main().unwrap())], &options).unwrap_or_else(|d| panic!("{name}: {d}"));
    let got = run(compiled.open().unwrap(), inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (g, w) in got.iter().zip(&want) {
        let (Value::Tensor(g), Value::Tensor(w)) = (g, w) else { panic!("{name}: no tensors") };
        assert_eq!((g.dtype(), g.dims()), (w.dtype(), w.dims()), "{name}");
        let (g, w) = (g.to_f64s().unwrap(), w.to_f64s().unwrap());
        let largest = w.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
        let bad = g.iter().zip(&w).position(|(a, b)| (a - b).abs() > tolerance * largest || a.is_nan());
        assert!(bad.is_none(), "{name}: element {bad:?} is {}, it should be {}", g[bad.unwrap()], w[bad.unwrap()]);
    }
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
        // One right operand for all, or one for each.
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
            let isa = &format!("{SHIM}+{products}");
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
        let mut graph = Graph::new();
        let entry = graph.entry();
        let mut rw = Rewriter::new(&mut graph, "test");
        let x = rw.add_arg(entry, Type::fixed(DType::F32, &[n, cin, h, w]), None);
        let filters = r.tensor(DType::F32, &[cout, cin / group, kh as usize, kw as usize], -1.0, 1.0);
        let filters = rw.create_one(Constant { value: filters }, &[]).unwrap();
        let bias = rw.create_one(Constant { value: r.tensor(DType::F32, &[cout], -1.0, 1.0) }, &[]).unwrap();
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
        check(&format!("convolution {i}"), graph, &[r.tensor(DType::F32, &[n, cin, h, w], -1.0, 1.0).into()]);
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
                    indices,
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
