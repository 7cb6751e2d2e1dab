//! Speed of generated kernels on one core, beside a plain loop of multiply-adds measured in the same run.
//!
//! `cargo run --release -p of-codegen --example kernel_bench [FILTER]`

use std::time::Instant;

use of_codegen::cpu::{Cache, Compiler, Isa, Loaded};
use of_codegen::kernel::{Builder, Expr, Kernel, Lit, Param, Ty};
use of_codegen::schedule::*;
use of_ir::DType;
use of_ops::scalar::ScalarOp;

/// Memory aligned to 64 bytes.
struct Buffer(Vec<[f32; 16]>);

impl Buffer {
    fn new(bytes: usize) -> Self {
        let mut state = 12345u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        Self((0..bytes.div_ceil(64) + 2).map(|_| std::array::from_fn(|_| next())).collect())
    }

    fn ptr(&mut self) -> *mut u8 {
        // Buffers of a plan do not all start at the same place of a page.
        self.0.as_mut_ptr().cast()
    }
}

/// Seconds of one run of all iterations: the least of many.
fn time(loaded: &Loaded, kernel: &Kernel, sizes: &[usize]) -> f64 {
    let mut buffers: Vec<Vec<u8>> = Vec::new();
    let mut holders: Vec<Buffer> = sizes.iter().map(|n| Buffer::new(*n)).collect();
    buffers.push(Vec::new());
    let args: Vec<*mut u8> = holders.iter_mut().map(Buffer::ptr).collect();
    let mut scratch: Vec<[u64; 8]> = vec![[0; 8]; kernel.scratch_bytes().div_ceil(64) + 2];
    let at = scratch.as_mut_ptr().cast::<u8>();
    let at = at.wrapping_add(at.align_offset(64));
    let args: Vec<*mut u8> = args.into_iter().map(|p| p.wrapping_add(p.align_offset(64))).collect();
    let mut best = f64::INFINITY;
    let start = Instant::now();
    let mut runs = 0;
    while runs < 5 || (start.elapsed().as_secs_f64() < 0.4 && runs < 20_000) {
        let t = Instant::now();
        // SAFETY: the buffers are as large as the kernel's accesses, aligned, and used by nobody else.
        unsafe { loaded.call(&args, 0, kernel.iterations, at) };
        best = best.min(t.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

struct Case {
    name: String,
    kernel: Kernel,
    sizes: Vec<usize>,
    /// Bytes that must move, for those that are bound by memory.
    bytes: Option<f64>,
    flops: f64,
}

fn param(writes: bool) -> Param {
    Param { elem: DType::F32, writes, len: None }
}

fn peak(isa: Isa) -> Case {
    let lanes = isa.lanes([DType::F32]);
    let mut b = Builder::new("peak");
    let out = b.param(DType::F32, true, None);
    let ty = Ty::new(DType::F32, lanes);
    let x = b.load(out, 0i64, lanes, lanes);
    let x = b.let_(x);
    let n = isa.registers() * 3 / 4;
    let acc: Vec<_> = (0..n).map(|i| b.mutable(Expr::Const(ty, Lit::F(i as f64)))).collect();
    b.for_(0i64, 2_000_000i64, 1, 1, |b, _| {
        for a in &acc {
            b.set(*a, Expr::mul_add(x, x, *a));
        }
    });
    for (i, a) in acc.iter().enumerate() {
        b.store(out, i * lanes, *a, lanes);
    }
    let flops = 2.0 * (n * lanes) as f64 * 2e6;
    Case { name: "multiply-add loop".into(), kernel: b.finish(1, 1, 0, 0), sizes: vec![1 << 14], bytes: None, flops }
}

/// Bias and relu.
fn bias_relu(n: usize, m: &[i64]) -> (Vec<View>, Dag) {
    let _ = n;
    let mut d = Dag::new();
    let (x, y) = (d.input(0, DType::F32), d.input(1, DType::F32));
    let s = d.op(ScalarOp::Add, &[x, y]);
    let zero = d.constant(DType::F32, Lit::F(0.0));
    let r = d.op(ScalarOp::Max, &[s, zero]);
    d.output(r);
    let mut strides = vec![0; m.len()];
    strides.push(1);
    (vec![View::new(2, strides)], d)
}

fn gemm_case(isa: Isa, m: usize, k: usize, n: usize) -> Case {
    let (inputs, dag) = bias_relu(n, &[0]);
    let spec = Gemm {
        name: format!("gemm {m}x{k}x{n} bias relu"),
        params: vec![param(false), param(false), param(false), param(true)],
        batch: vec![],
        m,
        n,
        k,
        a: View::row_major(0, &[m, k]),
        b: GemmRight::Packed(1),
        acc: DType::F32,
        prologue: None,
        epilogue: Epilogue { inputs, dag, outputs: vec![View::row_major(3, &[m, n])] },
    };
    let s = gemm(&spec, isa).expect("a valid spec");
    let packed = s.packed.expect("a packed operand").bytes();
    let sizes = vec![m * k * 4, packed, n * 4, m * n * 4];
    Case { name: spec.name, kernel: s.kernel, sizes, bytes: (m < 8).then_some((k * n * 4) as f64), flops: 2.0 * (m * k * n) as f64 }
}

fn attention_case(isa: Isa, heads: usize, m: usize, k: usize, n: usize, transposed: bool) -> Case {
    let b = if transposed {
        View::new(1, vec![(n * k) as i64, 1, k as i64])
    } else {
        View::row_major(1, &[heads, k, n])
    };
    let spec = Gemm {
        name: format!("batched {heads}x{m}x{k}x{n}{}", if transposed { " B^T" } else { "" }),
        params: vec![param(false), param(false), param(true)],
        batch: vec![heads],
        m,
        n,
        k,
        a: View::row_major(0, &[heads, m, k]),
        b: GemmRight::View(b),
        acc: DType::F32,
        prologue: None,
        epilogue: Epilogue::store(DType::F32, View::row_major(2, &[heads, m, n])),
    };
    let s = gemm(&spec, isa).expect("a valid spec");
    let sizes = vec![heads * m * k * 4, heads * k * n * 4, heads * m * n * 4];
    Case { name: spec.name, kernel: s.kernel, sizes, bytes: None, flops: 2.0 * (heads * m * k * n) as f64 }
}

fn conv_case(isa: Isa, hw: usize, cin: usize, cout: usize, kernel: usize, stride: usize) -> Case {
    let pad = kernel / 2;
    let out = (hw + 2 * pad - kernel) / stride + 1;
    let s = Spatial { input: hw, output: out, kernel, stride, dilation: 1, pad, zeros: 1 };
    let (inputs, dag) = bias_relu(cout, &[0, 0, 0]);
    let spec = Conv {
        name: format!("conv {hw}x{hw}x{cin} -> {cout}, {kernel}x{kernel}/{stride} bias relu"),
        params: vec![param(false), param(false), param(false), param(true)],
        batch: 1,
        groups: 1,
        cin,
        cout,
        spatial: vec![s, s],
        x: View::row_major(0, &[1, hw, hw, cin]),
        w: 1,
        acc: DType::F32,
        epilogue: Epilogue { inputs, dag, outputs: vec![View::row_major(3, &[1, out, out, cout])] },
    };
    let s = conv(&spec, isa).expect("a valid spec");
    let sizes = vec![hw * hw * cin * 4, s.packed.expect("packed weights").bytes(), cout * 4, out * out * cout * 4];
    Case { name: spec.name, kernel: s.kernel, sizes, bytes: None, flops: 2.0 * (out * out * cout * kernel * kernel * cin) as f64 }
}

fn cases(isa: Isa) -> Vec<Case> {
    let mut all = vec![peak(isa)];
    for (m, k, n) in [
        (1024, 1024, 1024), (128, 768, 3072), (128, 3072, 768), (128, 768, 768), (3136, 64, 576), (49, 2048, 512),
        (512, 4096, 1024), (1, 2048, 1000), (1, 4096, 4096), (4, 768, 3072),
    ] {
        all.push(gemm_case(isa, m, k, n));
    }
    all.push(attention_case(isa, 12, 128, 64, 128, true));
    all.push(attention_case(isa, 12, 128, 128, 64, false));
    for (hw, cin, cout, kernel, stride) in [
        (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 64, 1, 1), (56, 128, 128, 3, 2),
        (28, 128, 128, 3, 1), (28, 512, 128, 1, 1), (28, 256, 256, 3, 2), (14, 256, 256, 3, 1), (14, 1024, 256, 1, 1), (14, 256, 1024, 1, 1),
        (14, 512, 512, 3, 2), (7, 512, 512, 3, 1), (7, 2048, 512, 1, 1), (7, 512, 2048, 1, 1), (56, 256, 512, 1, 2),
    ] {
        all.push(conv_case(isa, hw, cin, cout, kernel, stride));
    }
    all
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let isa = std::env::var("OF_BENCH_ISA").ok().and_then(|s| Isa::from_name(&s)).or_else(Isa::host).expect("a known machine");
    let compiler = Compiler::new(isa, Cache::none()).expect("a C compiler");
    let mut all = cases(isa);
    all.retain(|c| c.name.contains(&filter) || c.name == "multiply-add loop");
    let kernels: Vec<Kernel> = all.iter().map(|c| c.kernel.clone()).collect();
    let start = Instant::now();
    let blobs = compiler.compile_all(&kernels).expect("kernels that compile");
    let code: usize = blobs.iter().map(|b| b.code.len()).sum();
    println!("{isa}: {} kernels compiled in {:.2} s, {} KiB", kernels.len(), start.elapsed().as_secs_f64(), code >> 10);
    let mut peak = 0.0;
    for (case, blob) in all.iter().zip(&blobs) {
        let loaded = Loaded::new(blob).expect("executable memory");
        let t = time(&loaded, &case.kernel, &case.sizes);
        let rate = case.flops / t / 1e9;
        if peak == 0.0 {
            peak = rate;
        }
        let memory = case.bytes.map_or(String::new(), |b| format!("{:8.1} GB/s", b / t / 1e9));
        println!(
            "{:48} {:4} it {:10.1} us {:8.1} GFLOP/s {:5.1} %{memory}",
            case.name, case.kernel.iterations, t * 1e6, rate, 100.0 * rate / peak
        );
    }
}
