//! Every op that MLIR supports against the interpreter, on the op's samples; a snapshot lists the supported ops.

mod common;

use of_codegen::Backend;
use of_mlir::Mlir;
use of_ops::interpret;
use of_test_support::claims::Claims;
use of_test_support::compare::{Tolerance, difference};
use of_test_support::op;
use of_test_support::plans::{one_op, with_extremes};

use common::{compiles, run};

/// The interpreter rounds once; machine code rounds each term of a series or sum.
const ROUNDING: Tolerance = Tolerance { of_largest: 1e-5, of_largest_16_bit: 8e-3, ..Tolerance::EXACT };

/// Calls `check` for each sample of each supported op, and returns the supported ops.
fn each_taken(mlir: &Mlir, mut check: impl FnMut(String, u64, &of_ir::Func, &[of_ops::Value])) -> Claims {
    let mut claims = Claims::default();
    for (decl, seed, sample) in op::samples(4).filter(|(d, ..)| !d.traits().effect && !d.traits().terminator) {
        let (func, inputs) = one_op(&*sample.op, &sample.operands, seed % 4 == 3);
        let op = func.graph.walk()[func.graph.walk().len() - 2];
        if func.graph.op(op).name() != decl.name() {
            continue;
        }
        let taken = mlir.claims(&func.graph, op);
        claims.add(decl.name(), taken.is_ok(), || taken.clone().unwrap_err());
        if taken.is_ok() {
            check(format!("{}, seed {seed}, {:?}", decl.name(), sample.op.attrs()), seed, &func, &inputs);
        }
    }
    claims
}

#[test]
fn the_ops_that_mlir_takes() {
    insta::assert_snapshot!("mlir", each_taken(&Mlir::default(), |_, _, _, _| ()));
}

#[test]
fn every_supported_op_matches_the_interpreter() {
    if !compiles() {
        return;
    }
    let mlir = Mlir::default();
    let mut wrong = Vec::new();
    each_taken(&mlir, |what, seed, func, inputs| {
        let want = interpret::run_graph(&func.graph, inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
        match run(&mlir, func, inputs) {
            Ok(got) => wrong.extend(difference(&got, &want, ROUNDING).map(|why| format!("{what}: {why}"))),
            Err(why) => wrong.push(format!("{what}: {why}")),
        }
        let Some(inputs) = with_extremes(inputs, seed) else { return };
        let Ok(want) = interpret::run_graph(&func.graph, &inputs) else { return };
        match run(&mlir, func, &inputs) {
            Ok(got) => {
                let apart = difference(&got, &want, ROUNDING.with_steps(1));
                wrong.extend(apart.map(|why| format!("{what}, extremes: {why}")));
            }
            Err(why) => wrong.push(format!("{what}, extremes: {why}")),
        }
    });
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
