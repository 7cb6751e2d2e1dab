//! Attention as one kernel, on CPUs and on the emulated GPU, against the interpreter.

use std::fmt::Write;
use std::sync::Arc;

use of_codegen::Isa;
use of_codegen::Target;
use of_codegen::isa::CUDA_EMULATED;
use of_ir::{DType, Elements, Func, Tensor};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_plan::{ElementType, PlanFile};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, Session};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::component::{CPU_BF16, available};
use of_test_support::plans::{self as support, emulated_gpu, nvrtc};
use support::function_of as function;

/// What is attended to.
#[derive(Clone, Copy)]
struct Case {
    /// Samples, heads, and heads of keys and values, which several heads may share.
    batch: usize,
    heads: usize,
    shared: usize,
    rows: usize,
    keys: usize,
    depth: usize,
    columns: usize,
    /// Whether heads are the first axis in memory rather than the third.
    heads_first: bool,
    mask: Mask,
    /// Whether scores are held between limits by a hyperbolic tangent.
    cap: bool,
    /// Whether a residual is added to the result.
    residual: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Mask {
    None,
    /// Numbers that are added, one for each sample and key.
    Keys,
    /// Those, and one sample has none that counts.
    Everything,
    /// Later keys count nothing.
    Causal,
}

const PLAIN: Case = Case {
    batch: 1,
    heads: 2,
    shared: 2,
    rows: 40,
    keys: 40,
    depth: 16,
    columns: 16,
    heads_first: false,
    mask: Mask::None,
    cap: false,
    residual: false,
};

/// Shapes that fill no tile, one row, other lengths, every mask, keys and values that heads share.
fn cases() -> Vec<(&'static str, Case)> {
    let odd = Case { batch: 2, heads: 3, shared: 3, rows: 37, keys: 53, depth: 20, columns: 12, ..PLAIN };
    vec![
        ("plain", PLAIN),
        ("odd", odd),
        ("odd, heads first", Case { heads_first: true, mask: Mask::Keys, ..odd }),
        ("one row", Case { rows: 1, keys: 129, depth: 64, columns: 64, residual: true, ..PLAIN }),
        ("few rows", Case { rows: 5, keys: 70, mask: Mask::Causal, ..PLAIN }),
        ("one key", Case { keys: 1, ..PLAIN }),
        ("causal", Case { rows: 130, keys: 130, depth: 64, columns: 64, mask: Mask::Causal, ..PLAIN }),
        ("masked", Case { mask: Mask::Keys, cap: true, ..odd }),
        ("all masked", Case { mask: Mask::Everything, ..odd }),
        ("shared heads", Case { heads: 6, shared: 2, ..odd }),
        ("shared heads first", Case { heads: 4, shared: 1, heads_first: true, ..odd }),
        ("long", Case { heads: 1, shared: 1, rows: 70, keys: 1100, depth: 8, columns: 8, ..PLAIN }),
        ("wide", Case { rows: 20, keys: 35, depth: 100, columns: 128, residual: true, ..PLAIN }),
        ("many rows", Case { heads: 16, shared: 16, rows: 150, keys: 33, depth: 24, columns: 40, ..PLAIN }),
    ]
}

impl Case {
    /// The function; the rows and keys are open where they have a name.
    fn text(&self, rows: &str, keys: &str) -> String {
        let Case { batch, heads, shared, depth, columns, .. } = *self;
        let named = |n: &str, name: &str| if name.is_empty() { n.to_string() } else { format!("?({name})") };
        let (m, n) = (named(&self.rows.to_string(), rows), named(&self.keys.to_string(), keys));
        let arg = |lines: &str, heads: usize, each: usize| match self.heads_first {
            true => format!("tensor<{batch}x{heads}x{lines}x{each}xf32>"),
            false => format!("tensor<{batch}x{lines}x{}xf32>", heads * each),
        };
        let (q, k, v) = (arg(&m, heads, depth), arg(&n, shared, depth), arg(&n, shared, columns));
        let (mask, y) = (format!("tensor<{batch}x1x1x{n}xf32>"), arg(&m, heads, columns));
        let later = format!("tensor<{m}x{n}xi1>");
        let mut out = format!("func @main(%q: {q}, %k: {k}, %v: {v}");
        let _ = match self.mask {
            Mask::None => Ok(()),
            Mask::Causal => write!(out, ", %later: {later}"),
            _ => write!(out, ", %mask: {mask}"),
        };
        if self.residual {
            let _ = write!(out, ", %r: {y}");
        }
        let _ = writeln!(out, ") -> ({y}) {{");
        let mut line = |text: String| out.push_str(&format!("  {text}\n"));
        line("%scale = of.constant {value = dense<0.25> : tensor<f32>}".into());
        line("%none = of.constant {value = dense<0xFF800000> : tensor<f32>}".into());
        for (x, heads, each) in [("q", heads, depth), ("k", shared, depth), ("v", shared, columns)] {
            if self.heads_first {
                line(format!("%{x}h = of.transpose %{x} {{perm = [0, 1, 2, 3]}}"));
            } else {
                line(format!("%{x}s = of.constant {{value = dense<[0, 0, {heads}, {each}]> : tensor<4xi64>}}"));
                line(format!("%{x}r = of.reshape %{x}, %{x}s {{allowzero = false}}"));
                line(format!("%{x}h = of.transpose %{x}r {{perm = [0, 2, 1, 3]}}"));
            }
        }
        for (x, each) in [("k", depth), ("v", columns)] {
            if shared < heads {
                let group = heads / shared;
                line(format!("%{x}s5 = of.constant {{value = dense<[0, 0, 1, -1, {each}]> : tensor<5xi64>}}"));
                line(format!("%{x}5 = of.constant {{value = dense<[1, 1, {group}, 1, 1]> : tensor<5xi64>}}"));
                line(format!("%{x}s4 = of.constant {{value = dense<[0, {heads}, -1, {each}]> : tensor<4xi64>}}"));
                // A zero keeps the axis at the same place.
                line(format!("%{x}h5 = of.reshape %{x}h, %{x}s5 {{allowzero = false}}"));
                line(format!("%{x}e = of.expand %{x}h5, %{x}5"));
                line(format!("%{x}g = of.reshape %{x}e, %{x}s4 {{allowzero = false}}"));
            } else {
                line(format!("%{x}g = of.transpose %{x}h {{perm = [0, 1, 2, 3]}}"));
            }
        }
        line("%kt = of.transpose %kg {perm = [0, 1, 3, 2]}".into());
        line("%s0 = of.matmul %qh, %kt".into());
        line("%s1 = of.mul %s0, %scale".into());
        line(if self.cap { "%s2 = of.tanh %s1" } else { "%s2 = of.abs %s1" }.into());
        line(match self.mask {
            Mask::None => "%s = of.neg %s2".into(),
            Mask::Causal => "%s = of.select %later, %none, %s2".into(),
            _ => "%s = of.add %s2, %mask".into(),
        });
        line("%p = of.softmax %s {axis = -1}".into());
        line("%o = of.matmul %p, %vg".into());
        let back = if self.heads_first { "0, 1, 2, 3" } else { "0, 2, 1, 3" };
        line(format!("%t = of.transpose %o {{perm = [{back}]}}"));
        let mut last = "t";
        if !self.heads_first {
            line(format!("%ys = of.constant {{value = dense<[0, 0, {}]> : tensor<3xi64>}}", heads * columns));
            line("%y = of.reshape %t, %ys {allowzero = false}".into());
            last = "y";
        }
        if self.residual {
            line(format!("%z = of.add %{last}, %r"));
            last = "z";
        }
        line(format!("of.return %{last}"));
        out.push_str("}\n");
        out
    }

    /// The function that gives the gradients of q, k and v besides, by its result weighed with one more input.
    fn gradient_text(&self) -> String {
        let (head, body) = (self.text("", ""), "  of.return ");
        let at = head.rfind(body).unwrap();
        let (start, last) = (&head[..at], head[at + body.len()..].lines().next().unwrap());
        let Some((arguments, rest)) = start.split_once(") -> (") else { panic!("{head}") };
        let (y, rest) = rest.split_once(')').unwrap();
        let types: Vec<&str> = ["%q: ", "%k: ", "%v: "]
            .iter()
            .map(|x| head.split_once(x).unwrap().1.split([',', ')']).next().unwrap())
            .collect();
        let mut out = format!("{arguments}, %weight: {y}) -> ({y}, {}){rest}", types.join(", "));
        let rank = y.matches('x').count();
        let axes: Vec<String> = (0..rank).map(|i| i.to_string()).collect();
        let _ = writeln!(out, "  %weighed = of.mul {last}, %weight");
        let _ = writeln!(out, "  %axes = of.constant {{value = dense<[{}]> : tensor<{rank}xi64>}}", axes.join(", "));
        let _ = writeln!(out, "  %loss = of.reduce_sum %weighed, %axes {{keepdims = false}}");
        out.push_str("  %gq, %gk, %gv = of.gradient %loss, %q, %k, %v\n");
        let _ = writeln!(out, "  of.return {last}, %gq, %gk, %gv\n}}");
        out
    }

    fn inputs(&self, r: &mut Rng) -> Vec<Value> {
        let Case { batch, heads, shared, rows, keys, depth, columns, .. } = *self;
        let dims = |lines: usize, heads: usize, each: usize| match self.heads_first {
            true => vec![batch, heads, lines, each],
            false => vec![batch, lines, heads * each],
        };
        let mut out: Vec<Value> = [(rows, heads, depth), (keys, shared, depth), (keys, shared, columns)]
            .into_iter()
            .map(|(l, h, e)| r.f32s(&dims(l, h, e)))
            .collect();
        match self.mask {
            Mask::None => {}
            Mask::Causal => {
                // Where there are more keys than rows, the first ones come before all rows.
                let later = |i: usize| i128::from(i % keys > i / keys + keys.saturating_sub(rows));
                let elements = Elements::Int((0..rows * keys).map(later).collect());
                out.push(Tensor::from_elements(DType::Bool, vec![rows, keys], elements).unwrap().into());
            }
            _ => {
                let all = self.mask == Mask::Everything;
                let number = |i: usize| match i {
                    _ if (all && i < keys) || i % keys % 7 == 3 => f64::NEG_INFINITY,
                    _ => -((i % 5) as f64),
                };
                let elements = Elements::Float((0..batch * keys).map(number).collect());
                out.push(Tensor::from_elements(DType::F32, vec![batch, 1, 1, keys], elements).unwrap().into());
            }
        }
        if self.residual {
            out.push(r.f32s(&dims(rows, heads, columns)));
        }
        out
    }
}

/// A function of f32 as one of 16-bit floats.
fn in_16_bits(text: &str, dtype: DType) -> String {
    let infinity = if dtype == DType::F16 { "0xFC00" } else { "0xFF80" };
    text.replace("f32>", &format!("{dtype}>")).replace("0xFF800000", infinity)
}

/// A case in 16-bit floats: the function after the passes, and its inputs.
fn narrowed(case: Case, (rows, keys): (&str, &str), seed: u64, dtype: DType) -> (Func, Vec<Value>) {
    let round = |v: Value| match v {
        Value::Tensor(t) if t.dtype() == DType::F32 => {
            Tensor::from_elements(dtype, t.dims().to_vec(), t.elements()).unwrap().into()
        }
        other => other,
    };
    let inputs = case.inputs(&mut Rng::new(seed)).into_iter().map(round).collect();
    (function(&in_16_bits(&case.text(rows, keys), dtype)), inputs)
}

/// What a plan has in memory as f32.
fn wide(plan: &PlanFile) -> Vec<String> {
    let registers = plan.plan().programs.iter().flat_map(|p| &p.registers).filter(|r| r.dtype() == ElementType::F32);
    let weights = plan.plan().weights.iter().filter(|w| w.dtype() == ElementType::F32 && w.dims.iter().any(|d| *d > 1));
    registers.map(|r| r.name.clone()).chain(weights.map(|w| w.name.clone())).collect()
}

fn plan_for(f: &Func, isa: &'static Isa) -> PlanFile {
    support::plan_for(f, Target::new(isa, &[&Reference]), support::cache())
}

/// Runs a case on `isa`, in as many kernels as `kernels` says.
fn check(what: &str, isa: &'static Isa, text: &str, inputs: &[Value], kernels: Option<usize>, tolerance: f64) {
    check_function(what, isa, &function(text), inputs, kernels, tolerance);
}

fn check_function(what: &str, isa: &'static Isa, f: &Func, inputs: &[Value], kernels: Option<usize>, tolerance: f64) {
    let want = interpret::run_graph(&f.graph, inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
    let plan = plan_for(f, isa);
    if let Some(n) = kernels {
        let names: Vec<&str> = plan.plan().code.iter().map(|c| &c.name[..]).collect();
        assert_eq!(names.len(), n, "{what}: {names:#?}");
    }
    let plan = Arc::new(plan);
    for threads in [1, 2] {
        let options = Options { threads, profile: false, ..Default::default() };
        let mut session = Session::new(Arc::clone(&plan), 0, options, &[Arc::new(Reference)]).unwrap();
        let values = inputs.iter().map(|v| to_runtime(v).unwrap()).collect();
        let got = session.run(values).unwrap_or_else(|e| panic!("{what}: {e}"));
        let got: Vec<Value> = got.iter().map(|v| from_runtime(v).unwrap()).collect();
        assert_close(&format!("{what}, {threads} threads"), &got, &want, Tolerance::of_largest(tolerance));
    }
}

/// The function that gives gradients, and its inputs.
fn gradient(case: Case, seed: u64) -> (Func, Vec<Value>) {
    let mut r = Rng::new(seed);
    let mut inputs = case.inputs(&mut r);
    let f = function(&case.gradient_text());
    let weight = *f.graph.args().last().unwrap();
    let dims = f.graph.ty(weight).as_tensor().unwrap().fixed_dims().unwrap();
    inputs.push(r.f32s(&dims));
    (f, inputs)
}

/// Tensors of the plan that have one number for each row and key of each head.
fn tables(plan: &PlanFile, case: Case) -> Vec<String> {
    let is_table = |dims: &[i64]| dims == [case.batch, case.heads, case.rows, case.keys].map(|n| n as i64);
    let all = plan.plan().programs.iter().flat_map(|p| &p.registers);
    all.filter(|r| is_table(&r.dims)).map(|r| r.name.clone()).collect()
}

#[test]
fn gradients_of_attention_have_no_scores_in_memory() {
    if emulated_gpu().is_none() {
        return;
    }
    let isa = Isa::by_name(CUDA_EMULATED).unwrap();
    for (seed, (name, case)) in cases().into_iter().enumerate() {
        let (f, inputs) = gradient(case, seed as u64);
        check_function(name, isa, &f, &inputs, None, 2e-5);
        // One row, or one key, makes no table.
        if case.rows == 1 || case.keys == 1 {
            continue;
        }
        let plan = plan_for(&f, isa);
        assert_eq!(tables(&plan, case), [""; 0], "{name}");
        let products = plan.plan().code.iter().filter(|c| c.name.starts_with("matmul")).count();
        assert_eq!(products, 3, "{name}: forward, of rows, of keys");
    }
}

#[test]
fn attention_is_one_kernel_on_cpus() {
    let baseline = Isa::by_name("x86-64").filter(|i| i.arch == std::env::consts::ARCH);
    for (seed, (name, case)) in cases().into_iter().enumerate() {
        let inputs = case.inputs(&mut Rng::new(seed as u64));
        let kernels = 1 + usize::from(case.residual);
        for isa in [Some(Isa::host()), baseline].into_iter().flatten() {
            check(&format!("{name} on {}", isa.name), isa, &case.text("", ""), &inputs, Some(kernels), 4e-6);
        }
        let what = |open: &str| format!("{name}, {open}");
        check(&what("open rows"), Isa::host(), &case.text("rows", ""), &inputs, Some(kernels), 4e-6);
        // Scratch memory is laid out before the run: without the number of keys it is three kernels and more.
        check(&what("all open"), Isa::host(), &case.text("rows", "keys"), &inputs, None, 4e-6);
    }
}

#[test]
fn attention_to_bf16_is_one_kernel_where_a_cpu_multiplies_it() {
    let isa = Isa::host();
    if !available(&CPU_BF16, isa.contracts_natively(DType::BF16).then_some(()).ok_or(isa.name)) {
        return;
    }
    for (seed, (name, case)) in cases().into_iter().enumerate() {
        for open in [false, true] {
            let rows = if open { "rows" } else { "" };
            let (f, inputs) = narrowed(case, (rows, ""), seed as u64, DType::BF16);
            let what = format!("{name} of bf16, open rows: {open}");
            check_function(&what, isa, &f, &inputs, Some(1 + usize::from(case.residual)), 1.6e-2);
        }
    }
}

#[test]
fn attention_is_one_kernel_on_an_emulated_gpu() {
    if emulated_gpu().is_none() {
        return;
    }
    let kinds = [("", 4e-6), ("+tf32", 4e-3), ("+tf32x3", 6e-6), ("+bf16", 3e-2), ("+f16", 4e-3)];
    for (seed, (name, case)) in cases().into_iter().enumerate() {
        let inputs = case.inputs(&mut Rng::new(seed as u64));
        let kernels = 1 + usize::from(case.residual);
        for (i, (kind, tolerance)) in kinds.into_iter().enumerate() {
            if i > 0 && (seed + i) % 3 > 0 {
                continue;
            }
            let isa = Isa::by_name(&format!("{CUDA_EMULATED}{kind}")).unwrap();
            let open = (seed + i) % 4 == 1;
            let (rows, keys) = if open { ("rows", "keys") } else { ("", "") };
            let what = format!("{name} on {}, open: {open}", isa.name);
            check(&what, isa, &case.text(rows, keys), &inputs, Some(kernels), tolerance);
        }
    }
}

#[test]
fn attention_to_16_bit_floats_reads_and_writes_those() {
    if emulated_gpu().is_none() {
        return;
    }
    // Products of 16-bit floats are what they are, whatever those of f32 may be.
    let kinds = ["", "+tf32", "+bf16", "+f16"];
    for (seed, (name, case)) in cases().into_iter().enumerate() {
        let (dtype, tolerance) = if seed % 2 == 0 { (DType::F16, 2e-3) } else { (DType::BF16, 1.6e-2) };
        let isa = Isa::by_name(&format!("{CUDA_EMULATED}{}", kinds[seed % kinds.len()])).unwrap();
        let open = seed % 4 == 1;
        let (f, inputs) = narrowed(case, if open { ("rows", "keys") } else { ("", "") }, seed as u64, dtype);
        let what = format!("{name} of {dtype} on {}, open: {open}", isa.name);
        check_function(&what, isa, &f, &inputs, Some(1 + usize::from(case.residual)), tolerance);
        let plan = plan_for(&f, isa);
        assert_eq!(wide(&plan), [""; 0], "{what}");
    }
}

#[test]
fn the_compiler_for_gpus_takes_attention_to_16_bit_floats() {
    if !nvrtc() {
        return;
    }
    for (i, (name, case)) in cases().into_iter().enumerate() {
        let arch = ["sm_80", "sm_90+tf32", "sm_100"][i % 3];
        let dtype = if i % 2 == 0 { DType::F16 } else { DType::BF16 };
        let isa = Isa::by_name(arch).unwrap();
        let plan = plan_for(&narrowed(case, ("", ""), 0, dtype).0, isa);
        assert_eq!(plan.plan().code.len(), 1 + usize::from(case.residual), "{name} on {arch}");
    }
}

#[test]
fn the_compiler_for_gpus_takes_attention() {
    if !nvrtc() {
        return;
    }
    let archs = ["sm_90", "sm_80+tf32", "sm_90+tf32x3", "sm_100+bf16", "sm_90+f16"];
    for (i, (name, case)) in cases().into_iter().enumerate() {
        let arch = archs[i % archs.len()];
        let plan = plan_for(&function(&case.text("rows", "keys")), Isa::by_name(arch).unwrap());
        assert_eq!(plan.plan().code.len(), 1 + usize::from(case.residual), "{name} on {arch}");
        let (f, _) = gradient(case, 0);
        plan_for(&f, Isa::by_name(arch).unwrap());
    }
}
