//! Every rule on programs, alone: what it makes computes the same, bit for bit where the rule says that it is exact.

use std::collections::BTreeSet;
use std::path::Path;

use of_ir::text::parse_module;
use of_ir::{Func, Type};
use of_ops::Value;
use of_ops::exactness::Exactness;
use of_ops::interpret::run_graph;
use of_ops::sample::Rng;
use of_test_support::compare::{Tolerance, difference};

use super::{CanonicalizeOptions, LocalRule, RULES, apply};
use crate::test_values::{bits_differ, special};

/// Runs of each program with each rule.
const RUNS: u64 = 24;
/// The extent of a symbol.
const EXTENT: usize = 3;

/// Programs for rules besides those of the lit tests.
const MORE: &str = r#"
func @cast(%x: tensor<7xi32>, %y: tensor<7xf32>) -> (tensor<7xf32>, tensor<7xi32>) {
  %a = of.cast %x {to = #of.dtype<i64>} : (tensor<7xi32>) -> tensor<7xi64>
  %b = of.cast %a {to = #of.dtype<f32>} : (tensor<7xi64>) -> tensor<7xf32>
  %c = of.cast %y {to = #of.dtype<f64>} : (tensor<7xf32>) -> tensor<7xf64>
  %d = of.cast %c {to = #of.dtype<i32>} : (tensor<7xf64>) -> tensor<7xi32>
  of.return %b, %d
}
func @split(%x: tensor<2x6xf32>) -> (tensor<2x2xf32>, tensor<2x4xf32>) {
  %sizes = of.constant {value = dense<[2, 4]> : tensor<2xi64>}
  %a, %b = of.split %x, %sizes {axis = 1, num_outputs = 2}
  of.return %a, %b
}
func @zeros(%x: tensor<9xf32>, %i: tensor<9xi32>) -> (tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xf32>, tensor<9xi32>) {
  %zero = of.constant {value = dense<0.0> : tensor<f32>}
  %minus = of.constant {value = dense<-0.0> : tensor<f32>}
  %none = of.constant {value = dense<0> : tensor<i32>}
  %a = of.add %x, %zero
  %b = of.sub %x, %zero
  %c = of.add %minus, %x
  %d = of.sub %x, %minus
  %e = of.add %none, %i
  of.return %a, %b, %c, %d, %e
}
func @far(%x: tensor<2x3x2x4xf32>, %q: tensor<2x1x4xui8>) -> (tensor<2x2x1x3xf32>, tensor<2x1x11xi32>) {
  %w = of.constant {value = dense<[[[[1.0, 2.0]], [[-1.0, 0.5]], [[3.0, 1.0]]], [[[2.0, 1.0]], [[0.0, 4.0]], [[1.0, 1.0]]]]> : tensor<2x3x1x2xf32>}
  %b = of.constant {value = dense<[0.5, -1.0]> : tensor<2xf32>}
  %y = of.conv %x, %w, %b {strides = [64, 32], pads = [31, 20, 30, 50], dilations = [1, 3], group = 1, auto_pad = "NOTSET", channels_last = false}
  %v = of.constant {value = dense<[[[2, -3]]]> : tensor<1x1x2xi8>}
  %z = of.constant {value = dense<7> : tensor<ui8>}
  %none = of.none
  %i = of.conv_integer %q, %v, %z, %none {strides = [10], pads = [50, 50], dilations = [1], group = 1, auto_pad = "NOTSET", channels_last = false}
  of.return %y, %i
}
func @rows(%i: tensor<2x2xi64>, %j: tensor<3xi64>) -> (tensor<2x2x2xf32>, tensor<2x3xf32>, tensor<3x2xf32>, tensor<2x2x2xf32>) {
  %t = of.constant {value = dense<[[1, 2], [3, 4], [250, 6], [7, 8]]> : tensor<4x2xui8>}
  %scale = of.constant {value = dense<[0.5, 0.25]> : tensor<2xf32>}
  %zero = of.constant {value = dense<[128, 7]> : tensor<2xui8>}
  %a = of.dequantize_linear %t, %scale, %zero {axis = 1, block_size = 0}
  %b = of.gather %a, %i {axis = 0}
  %u = of.constant {value = dense<[[1, 2, 3, -4], [5, 6, 7, 8]]> : tensor<2x4xi8>}
  %c = of.dequantize_linear %u, %scale {axis = 0, block_size = 0}
  %d = of.gather %c, %j {axis = 1}
  %e = of.cast %t {to = #of.dtype<f32>} : (tensor<4x2xui8>) -> tensor<4x2xf32>
  %f = of.sub %e, %scale
  %h = of.gather %f, %j {axis = 0}
  %k = of.gather %f, %i {axis = -2}
  of.return %b, %d, %h, %k
}
"#;

fn programs() -> Vec<Func> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/lit/canonicalize");
    let mut texts = vec![MORE.to_owned()];
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    texts.extend(files.iter().map(|f| std::fs::read_to_string(f).unwrap()));
    let parse = |text: &String| parse_module(text, "test.of", &of_ops::registry(), None).unwrap().funcs;
    texts.iter().flat_map(parse).map(|(_, f)| f).collect()
}

fn inputs(func: &Func, rule: &LocalRule, seed: u64) -> Option<Vec<Value>> {
    let mut rng = Rng::new(seed);
    let exact = rule.exactness.keeps_roundings();
    let one = |v: &of_ir::ValueId| {
        let Type::Tensor(t) = func.graph.ty(*v) else { return None };
        let dims: Vec<usize> = t.shape.as_ref()?.iter().map(|d| d.as_const().map_or(EXTENT, |n| n as usize)).collect();
        // Indices must be in range.
        Some(match t.dtype.is_float() && exact {
            true => special(&mut rng, t.dtype, &dims),
            false => rng.tensor(t.dtype, &dims, 0.0, 3.0),
        })
    };
    func.graph.args().iter().map(one).map(|t| t.map(Value::from)).collect()
}

#[test]
fn exact_rules_keep_every_bit_and_others_stay_close() {
    let (programs, mut applied) = (programs(), BTreeSet::new());
    let options = CanonicalizeOptions { round_inexact: true };
    for rule in RULES {
        for func in &programs {
            let mut after = func.clone();
            apply(&mut after, std::slice::from_ref(rule), &options).unwrap();
            if after.graph.walk().len() == func.graph.walk().len() && format!("{after:?}") == format!("{func:?}") {
                continue;
            }
            for seed in 0..RUNS {
                let Some(inputs) = inputs(func, rule, seed) else { continue };
                let (Ok(want), Ok(got)) = (run_graph(&func.graph, &inputs), run_graph(&after.graph, &inputs)) else {
                    continue;
                };
                applied.insert(rule.name);
                let differ = match rule.exactness {
                    Exactness::Exact => bits_differ(&want, &got, true),
                    Exactness::ZeroSign => bits_differ(&want, &got, false),
                    _ => difference(&want, &got, Tolerance::of_largest(2e-5)).map(|d| format!("{d:?}")),
                };
                assert!(differ.is_none(), "{}, seed {seed}: {}\n{func:?}", rule.name, differ.unwrap_or_default());
            }
        }
    }
    let names: BTreeSet<&str> = RULES.iter().map(|r| r.name).collect();
    assert_eq!(names, applied, "each rule needs a program");
}

#[test]
fn rules_that_are_not_exact_leave_what_is_rounded() {
    let text = "
func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %three = of.constant {value = dense<3.0> : tensor<f32>}
  %zero = of.constant {value = dense<0.0> : tensor<f32>}
  %a = of.pow %x, %three
  %b = of.neg %a
  %r = of.round %b
  %c = of.exp %x
  %d = of.pow %c, %three
  %negative = of.lt %d, %zero
  %e = of.mul %d, %three
  %leaky = of.select %negative, %e, %d
  of.return %r, %leaky, %c
}";
    let count = |options: &CanonicalizeOptions| {
        let mut module = parse_module(text, "test.of", &of_ops::registry(), None).unwrap();
        let func = module.funcs.values_mut().next().unwrap();
        super::canonicalize(func, options).unwrap();
        func.graph.walk().iter().filter(|op| func.graph.op(**op).name() == "of.pow").count()
    };
    // The first power is rounded; the second is the operand of a continuous choice.
    assert_eq!(count(&CanonicalizeOptions::default()), 1);
    assert_eq!(count(&CanonicalizeOptions { round_inexact: true }), 0);
}

#[test]
fn rewrites_are_recorded_on_request() {
    let text = "func @main(%x: tensor<2x3xf32>) -> (tensor<2x3xf32>) {
  %zero = of.constant {value = dense<0.0> : tensor<f32>}
  %unread = of.neg %x
  %a = of.transpose %x {perm = [1, 0]}
  %b = of.transpose %a {perm = [1, 0]}
  %two = of.constant {value = dense<2.0> : tensor<f32>}
  %c = of.pow %b, %two
  of.return %c
}";
    let mut module = parse_module(text, "a.of", &of_ops::registry(), None).unwrap();
    let func = module.main_mut().unwrap();
    let options = CanonicalizeOptions { round_inexact: true };
    super::canonicalize(&mut func.clone(), &options).unwrap();
    assert!(func.graph.rewrites().is_empty());
    func.graph.record_rewrites();
    super::canonicalize(func, &options).unwrap();
    let all: Vec<String> = func
        .graph
        .rewrites()
        .iter()
        .map(|r| format!("{} {} {} {:?}", r.pass, r.rule.as_deref().unwrap_or("-"), r.before, r.after))
        .collect();
    let at = |what: &str| all.iter().position(|r| r == what).unwrap_or_else(|| panic!("{what}: {all:#?}"));
    let pow = at("canonicalize pow-square of.pow [\"of.mul\"]");
    assert!(all.iter().any(|r| r.starts_with("canonicalize transpose-transpose of.transpose")), "{all:#?}");
    assert!(pow < at("dce - of.neg []"), "{all:#?}");
    let location = &func.graph.rewrites()[pow].location;
    assert!(location.to_string().contains("a.of:7"), "{location}");
    // A graph that is made of another one goes on with its trail.
    let mut next = of_ir::Graph::new();
    next.continue_rewrites(&func.graph);
    assert!(next.records_rewrites() && next.rewrites() == func.graph.rewrites());
}
