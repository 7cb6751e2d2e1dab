//! Every op that XLA supports against the interpreter, on the op's samples; a snapshot lists the supported ops.

mod common;

use std::ops::Range;

use of_codegen::Backend;
use of_ops::{Value, interpret};
use of_test_support::claims::Claims;
use of_test_support::compare::{Tolerance, difference};
use of_test_support::op;
use of_test_support::plans::{one_op, tensors, with_extremes};
use of_xla::{Evaluator, Xla};

use common::verified;

/// The interpreter rounds once; XLA rounds each term of a series or sum.
const ROUNDING: Tolerance = Tolerance { of_largest: 2e-5, of_largest_16_bit: 8e-3, ..Tolerance::EXACT };

/// Samples of each op, and how many of them are run with extreme elements too.
const SEEDS: u64 = 8;
const WITH_EXTREMES: u64 = 4;

/// Calls `check` for each sample with one of these seeds of each supported op, and returns the supported ops.
fn each_taken(
    seeds: Range<u64>,
    mut check: impl FnMut(&'static str, u64, &dyn of_ops::Op, &of_ir::Func, &[of_ops::Value]),
) -> Claims {
    let mut claims = Claims::default();
    let samples =
        op::samples(SEEDS).filter(|(d, seed, _)| seeds.contains(seed) && !d.traits().effect && !d.traits().terminator);
    for (decl, seed, sample) in samples {
        // Compilation takes long: shapes and axes are constants as a rule.
        let (func, inputs) = one_op(&*sample.op, &sample.operands, seed % 4 == 3);
        let op = func.graph.walk()[func.graph.walk().len() - 2];
        if func.graph.op(op).name() != decl.name() {
            continue;
        }
        let taken = Xla.claims(&func.graph, op);
        claims.add(decl.name(), taken.is_ok(), || taken.clone().unwrap_err());
        if taken.is_ok() {
            check(decl.name(), seed, &*sample.op, &func, &inputs);
        }
    }
    claims
}

#[test]
fn the_ops_that_xla_takes() {
    insta::assert_snapshot!("xla", each_taken(0..SEEDS, |_, _, _, _, _| ()));
}

/// Compares the samples with these seeds.
fn compare(seeds: Range<u64>) {
    let Some(client) = common::client() else { return };
    let (mut modules, mut apart) = (Vec::new(), Vec::new());
    each_taken(seeds, |name, seed, op, func, inputs| {
        let what = format!("{name}, seed {seed}, {:?}", op.attrs());
        let module = of_xla::emit::module(func).unwrap_or_else(|e| panic!("{what}: {e}"));
        modules.push((what.clone(), module.text.clone()));
        let want = interpret::run_graph(&func.graph, inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
        let program = match Evaluator::new(&client, &module) {
            Ok(program) => program,
            Err(why) => return apart.push(format!("{what}: {why}\n{}", module.text)),
        };
        let run = |inputs: &[Value]| -> Result<Vec<Value>, String> {
            Ok(program.run(0, &tensors(inputs))?.into_iter().map(Value::Tensor).collect())
        };
        match run(inputs) {
            Ok(got) => apart.extend(difference(&got, &want, ROUNDING.for_op(op)).map(|why| format!("{what}: {why}"))),
            Err(why) => apart.push(format!("{what}: {why}\n{}", module.text)),
        }
        // An infinite element times a zero coefficient is NaN, or is left out.
        let compared = seed < WITH_EXTREMES && !op.has_zero_coefficients();
        let Some(inputs) = with_extremes(inputs, seed).filter(|_| compared) else { return };
        let Ok(want) = interpret::run_graph(&func.graph, &inputs) else { return };
        let got = run(&inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
        apart.extend(difference(&got, &want, ROUNDING.with_steps(1)).map(|why| format!("{what}, extremes: {why}")));
    });
    assert!(apart.is_empty(), "{} differ:\n{}", apart.len(), apart.join("\n"));
    verified(&modules);
}

// Two tests, for two cores.

#[test]
fn every_op_computes_what_the_interpreter_does() {
    compare(0..SEEDS / 2);
}

#[test]
fn every_op_computes_what_the_interpreter_does_on_more_samples() {
    compare(SEEDS / 2..SEEDS);
}
