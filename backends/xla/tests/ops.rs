//! Every op that XLA supports against the interpreter, on the op's samples; a snapshot lists the supported ops.

mod common;

use of_codegen::Backend;
use of_ops::interpret;
use of_test_support::claims::Claims;
use of_test_support::compare::{Tolerance, difference};
use of_test_support::op;
use of_test_support::plans::{one_op, with_extremes};
use of_xla::Xla;

use common::{run, verified};

/// The interpreter rounds once; XLA rounds each term of a series or sum.
const ROUNDING: Tolerance = Tolerance { of_largest: 2e-5, of_largest_16_bit: 8e-3, ..Tolerance::EXACT };

/// Samples of each op, and how many of them are run with extreme elements too: compilation takes long.
const SEEDS: u64 = 8;
const WITH_EXTREMES: u64 = 4;

/// Calls `check` for each sample of each supported op, and returns the supported ops.
fn each_taken(mut check: impl FnMut(&'static str, u64, &dyn of_ops::Op, &of_ir::Func, &[of_ops::Value])) -> Claims {
    let mut claims = Claims::default();
    for (decl, seed, sample) in op::samples(SEEDS).filter(|(d, ..)| !d.traits().effect && !d.traits().terminator) {
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
    insta::assert_snapshot!("xla", each_taken(|_, _, _, _, _| ()));
}

#[test]
fn every_op_computes_what_the_interpreter_does() {
    let Some(client) = common::client() else { return };
    let (mut modules, mut apart) = (Vec::new(), Vec::new());
    each_taken(|name, seed, op, func, inputs| {
        let what = format!("{name}, seed {seed}, {:?}", op.attrs());
        let module = of_xla::emit::module(func).unwrap_or_else(|e| panic!("{what}: {e}"));
        modules.push((what.clone(), module.text.clone()));
        let want = interpret::run_graph(&func.graph, inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
        match run(&client, &module, inputs) {
            Ok(got) => apart.extend(difference(&got, &want, ROUNDING.for_op(op)).map(|why| format!("{what}: {why}"))),
            Err(why) => apart.push(format!("{what}: {why}\n{}", module.text)),
        }
        // An infinite element times a zero coefficient is NaN, or is left out.
        let compared = seed < WITH_EXTREMES && !op.has_zero_coefficients();
        let Some(inputs) = with_extremes(inputs, seed).filter(|_| compared) else { return };
        let Ok(want) = interpret::run_graph(&func.graph, &inputs) else { return };
        let got = run(&client, &module, &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
        apart.extend(difference(&got, &want, ROUNDING.with_steps(1)).map(|why| format!("{what}, extremes: {why}")));
    });
    assert!(apart.is_empty(), "{} differ:\n{}", apart.len(), apart.join("\n"));
    verified(&modules);
}
