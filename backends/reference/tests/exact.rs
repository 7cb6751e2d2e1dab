//! Native code whose results are rounded to integers keeps every bit of the interpreter's: quotients, quantisation, sums of
//! products. The operands are near ties, subnormal, infinite, or NaN.

use std::sync::Arc;

use of_codegen::{CompileOptions, Isa, Target};
use of_ir::{DType, Elements, Func, Module, Tensor};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Options, RunError, Session};
use of_test_support::plans as support;

fn parse(text: &str) -> Func {
    let module = of_ir::text::parse_module(text, "test", &of_ops::registry(), None);
    module.unwrap_or_else(|d| panic!("{d}\n{text}")).funcs.into_values().next().expect("a function")
}

/// This machine's instruction set, and the one that every machine of its kind has.
fn isas() -> Vec<&'static Isa> {
    let least = Isa::by_name("x86-64").filter(|i| i.arch == std::env::consts::ARCH);
    [Some(Isa::host()), least].into_iter().flatten().collect()
}

fn run(f: &Func, inputs: &[Value], isa: &'static Isa) -> Result<Vec<Value>, RunError> {
    let mut module = Module::default();
    module.funcs.insert("main".into(), f.clone());
    let options = CompileOptions::new(Target { keep_subnormals: true, ..Target::new(isa, &[]) }, support::cache());
    let plan = support::compile_for(&support::after_passes(module), &options).and_then(|c| Ok(c.open()?));
    let plan = Arc::new(plan.unwrap_or_else(|d| panic!("{d}")));
    let mut session =
        Session::new(plan, 0, Options { threads: 1, ..Options::default() }, &[Arc::new(Reference)]).expect("a session");
    let out = session.run(inputs.iter().map(|v| to_runtime(v).expect("a value")).collect())?;
    Ok(out.iter().map(|v| from_runtime(v).expect("a value")).collect())
}

/// Fails where a bit differs; NaN equals NaN.
fn check(what: &str, text: &str, inputs: &[Value]) {
    let f = parse(text);
    let want = interpret::run_graph(&f.graph, inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
    for isa in isas() {
        let got = run(&f, inputs, isa).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (w, g) in want.iter().zip(&got) {
            let (Value::Tensor(w), Value::Tensor(g)) = (w, g) else { panic!("{what}: no tensors") };
            let bits = |t: &Tensor| -> Vec<u64> {
                match t.elements() {
                    Elements::Float(v) => v.iter().map(|x| if x.is_nan() { 1 } else { x.to_bits() }).collect(),
                    Elements::Int(v) => v.iter().map(|x| *x as u64).collect(),
                    Elements::Str(_) => Vec::new(),
                }
            };
            let (w, g) = (bits(w), bits(g));
            let apart = w.iter().zip(&g).filter(|(w, g)| w != g).count();
            let first = w.iter().zip(&g).position(|(w, g)| w != g);
            let text = first.map(|i| format!("element {i}: {:x} is not {:x}", g[i], w[i])).unwrap_or_default();
            assert!(apart == 0, "{what} on {}: {apart} of {} differ, {text}", isa.name, w.len());
        }
    }
}

fn tensor(values: Vec<f32>) -> Value {
    Tensor::from_slice(&[values.len()], &values).expect("one axis").into()
}

/// Numbers around `(k + 1/2) c`, where quotients by `c` are ties.
fn near_ties(c: f32, n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| {
            let tie = ((i / 8) as f32 - 160.5) * c;
            f32::from_bits(tie.to_bits().wrapping_add((i % 8) as u32).wrapping_sub(4))
        })
        .collect()
}

/// Divisors: of quantisation, and at the ends of the range.
fn divisors() -> Vec<f32> {
    let mut r = Rng::new(1);
    let mut all = vec![0.1, 0.3, 1.0 / 3.0, 0.023_529_412, 0.407_8, 0.5, 3.0, 7.0, -0.7, 1e-30, 3e30, 2.3e-38, 1.9e38];
    all.extend((0..6).map(|_| r.float(0.001, 2.0) as f32));
    all
}

#[test]
fn quotients_by_constants_are_the_rounded_quotients() {
    for c in divisors() {
        let text = format!(
            "func @main(%x: tensor<20000xf32>) -> (tensor<20000xf32>) {{
              %c = of.constant {{value = dense<{c:?}> : tensor<f32>}}
              %y = of.div %x, %c
              of.return %y
            }}"
        );
        let mut r = Rng::new(u64::from(c.to_bits()));
        let mut values = near_ties(c, 3000);
        // Every exponent, subnormals, infinities and NaN among them.
        values.resize_with(20000, || f32::from_bits(r.bits() as u32));
        check(&format!("x / {c:?}"), &text, &[tensor(values)]);
    }
}

#[test]
fn quantised_numbers_are_those_of_the_definition() {
    for (i, c) in divisors().into_iter().filter(|c| *c > 1e-5 && *c < 100.0).enumerate() {
        let (dtype, zero) = [(DType::U8, 128), (DType::I8, -3), (DType::U8, 0)][i % 3];
        let text = format!(
            "func @main(%x: tensor<8192xf32>) -> (tensor<8192x{dtype}>) {{
              %s = of.constant {{value = dense<{c:?}> : tensor<f32>}}
              %z = of.constant {{value = dense<{zero}> : tensor<{dtype}>}}
              %y = of.quantize_linear %x, %s, %z {{axis = 0, block_size = 0}}
              of.return %y
            }}"
        );
        check(&format!("quantize with the scale {c:?}"), &text, &[tensor(near_ties(c, 8192))]);
    }
}

#[test]
fn products_are_rounded_before_sums_that_are_rounded_to_integers() {
    let text = "func @main(%x: tensor<8192xf32>, %b: tensor<8192xf32>) -> (tensor<8192xf32>, tensor<8192xi1>) {
      %a = of.constant {value = dense<0.1> : tensor<f32>}
      %p = of.mul %x, %a
      %y = of.add %p, %b
      %r = of.round %y
      %n = of.neg %p
      %same = of.ge %n, %b
      of.return %r, %same
    }";
    let mut r = Rng::new(5);
    let x: Vec<f32> = (0..8192).map(|_| r.float(-300.0, 300.0) as f32).collect();
    // Sums near ties.
    let b = x.iter().map(|x| (x * 0.1).round() - x * 0.1 + 0.5).collect();
    check("round(a x + b)", text, &[tensor(x), tensor(b)]);
}
