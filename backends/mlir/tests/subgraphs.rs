//! Subgraphs in plans: placed, compiled, run by a session, and compared with the interpreter.

mod common;

use of_mlir::Mlir;

use common::support::{self, check, floats, in_one_subgraph, session};

/// Two products, a softmax and the ops between them: the product has tiles, and temporaries have offsets.
#[test]
fn a_subgraph_is_machine_code_in_the_plan() {
    if !common::compiles() {
        return;
    }
    let (f, plan) = in_one_subgraph(
        r"func @main(%x: tensor<24x40xf32>, %w: tensor<40x96xf32>) -> (tensor<24x96xf32>, tensor<24x1xf32>) {
  %p = of.matmul %x, %w : (tensor<24x40xf32>, tensor<40x96xf32>) -> tensor<24x96xf32>
  %s = of.softmax %p {axis = -1} : (tensor<24x96xf32>) -> tensor<24x96xf32>
  %y = of.add %s, %p : (tensor<24x96xf32>, tensor<24x96xf32>) -> tensor<24x96xf32>
  %axes = of.constant {value = dense<1> : tensor<1xi64>}
  %m = of.reduce_max %y, %axes {keepdims = true}
  of.return %y, %m
}",
        "add",
        &Mlir::default(),
    );
    check(&f, &mut session(plan, Mlir::default()), &[floats(&[24, 40], 1), floats(&[40, 96], 2)]);
}

#[test]
fn symbolic_extents_are_compiled_for_each_run() {
    if common::compiles() {
        support::runs_of_open_extents(&Mlir::default(), Mlir::default());
    }
}

#[test]
fn an_index_out_of_range_fails_only_its_run() {
    if common::compiles() {
        support::an_index_out_of_range(&Mlir::default(), Mlir::default());
    }
}

/// The error of a build without MLIR for a subgraph that it is asked to compile.
#[test]
fn a_build_without_mlir_names_the_feature() {
    if of_mlir::COMPILES {
        return;
    }
    let why = of_mlir::compile::compile("").unwrap_err();
    assert!(why.contains("--features mlir"), "{why}");
}
