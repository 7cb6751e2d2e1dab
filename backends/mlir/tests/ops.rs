//! Every op of the list on its samples: as machine code of MLIR's where it is claimed, beside the interpreter.

mod common;

use std::collections::BTreeMap;

use of_codegen::Backend;
use of_mlir::Mlir;
use of_ops::{interpret, list};

use common::support::{difference, one_op, with_extremes};
use common::{compiles, run};

#[test]
fn every_op_that_is_claimed_computes_what_the_interpreter_does() {
    let mlir = Mlir::default();
    let compiles = compiles();
    let mut claimed = BTreeMap::new();
    let mut refused = BTreeMap::new();
    let mut wrong = Vec::new();
    for decl in list::ALL {
        for seed in 0..4 {
            let Some(sample) = decl.sample(seed) else { continue };
            if decl.traits().effect || decl.traits().terminator {
                continue;
            }
            let (func, inputs) = one_op(&*sample.op, &sample.operands, seed % 4 == 3);
            let op = func.graph.walk()[func.graph.walk().len() - 2];
            if func.graph.op(op).name() != decl.name() {
                continue;
            }
            if let Err(why) = mlir.claims(&func.graph, op) {
                refused.insert(decl.name(), why);
                continue;
            }
            *claimed.entry(decl.name()).or_insert(0) += 1;
            if !compiles {
                continue;
            }
            let what = format!("{}, seed {seed}, {:?}", decl.name(), sample.op.attrs());
            let want = interpret::run_graph(&func.graph, &inputs).unwrap_or_else(|d| panic!("{d}"));
            match run(&mlir, &func, &inputs) {
                Ok(got) => wrong.extend(difference(&got, &want, 1e-5, 0).map(|why| format!("{what}: {why}"))),
                Err(why) => wrong.push(format!("{what}: {why}")),
            }
            // With an element that is no number, infinite or the other zero.
            let Some(inputs) = with_extremes(&inputs, seed) else { continue };
            let Ok(want) = interpret::run_graph(&func.graph, &inputs) else { continue };
            match run(&mlir, &func, &inputs) {
                Ok(got) => wrong.extend(difference(&got, &want, 1e-5, 1).map(|why| format!("{what}, extremes: {why}"))),
                Err(why) => wrong.push(format!("{what}, extremes: {why}")),
            }
        }
    }
    let never: Vec<_> = refused.iter().filter(|(n, _)| !claimed.contains_key(*n)).collect();
    println!("{} ops through MLIR; never:", claimed.len());
    never.iter().for_each(|(n, why)| println!("  {n}: {why}"));
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(claimed.len() > 120, "{} ops are claimed", claimed.len());
}
