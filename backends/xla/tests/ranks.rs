//! Ranks whose subgraphs are one program: transfers between them are its collectives.

mod common;

use std::sync::Arc;

use common::support::to_runtime;
use of_codegen::Pin;
use of_ir::Module;
use of_ops::Value;
use of_plan::{Exec, PlanFile};
use of_runtime::{Loader, MeshSession};
use of_sharding::layout;
use of_test_support::ranks::{self, NETWORK, all_pairs, embedded, layers, module, moved, plan, transfers};
use of_xla::Xla;

fn loader() -> Arc<dyn Loader> {
    Arc::new(Xla)
}

fn compare(what: &str, module: &Module, plan: &Arc<PlanFile>) {
    ranks::compare(what, module, plan, &loader());
}

fn session(plan: &Arc<PlanFile>) -> MeshSession {
    ranks::session(plan, &loader()).unwrap_or_else(|e| panic!("{e}"))
}

/// The modules of a plan that ranks run together.
fn shared(plan: &PlanFile) -> Vec<String> {
    let tasks = plan.plan().programs.iter().flat_map(|p| &p.tasks);
    let of = |t: &of_plan::Task| match &t.exec {
        Some(Exec::Backend(e)) if !e.rendezvous.is_empty() => {
            let text = String::from_utf8(plan.payload(e).unwrap().to_vec()).unwrap();
            Some(text.split_once('\n').unwrap().1.to_string())
        }
        _ => None,
    };
    tasks.filter_map(of).collect()
}

#[test]
fn every_pair_of_layouts_is_converted() {
    if common::client().is_none() {
        return;
    }
    let mut modules = Vec::new();
    for (mesh, shape, dims, dtype) in [
        ("cpu[3]", &[3][..], [6, 9], "f32"),
        ("cpu[2x2]", &[2, 2], [8, 4], "f32"),
        ("cpu[4]", &[4], [4, 8], "i32"),
        ("cpu[2x4]", &[2, 4], [8, 16], "f16"),
    ] {
        let (mut inside, mut outside) = (0, 0);
        for (what, module) in all_pairs(mesh, shape, dims, dtype) {
            let plan = plan(&module, mesh, (1, 1), &Xla, &[]);
            (inside, outside) = (inside + transfers(&plan).0, outside + transfers(&plan).1);
            modules.extend(shared(&plan).into_iter().map(|text| (what.clone(), text)));
            compare(&what, &module, &plan);
        }
        assert_eq!(outside, 0, "{mesh}: {inside} inside");
    }
    // What is small is moved along one axis of the mesh after another; what is not goes where it is wanted at once.
    for (mesh, dims, from, to) in [
        ("cpu[2]", "4x6x8", "P(sum)", "S(0)"),
        ("cpu[2]", "4x6x8", "P(sum)", "S(2)"),
        ("cpu[2]", "4x6x8", "S(0)", "S(1)"),
        ("cpu[2]", "4x6x8", "S(2)", "S(0)"),
        ("cpu[2]", "4x6x8", "B", "S(1)"),
        ("cpu[2x2]", "64x96x128", "P(sum), P(sum)", "B, B"),
        ("cpu[2x2]", "64x96x128", "S(0), P(sum)", "S(1), S(0)"),
        ("cpu[2x2]", "64x96x128", "S(2), S(2)", "B, S(2)"),
        ("cpu[2x4]", "64x96x128", "S(2), S(2)", "S(1), S(1)"),
        ("cpu[2x4]", "64x96x128", "S(2), S(0)", "S(0), S(0)"),
        ("cpu[2x4]", "64x96x128", "S(0), S(2)", "S(2), S(0)"),
    ] {
        let (what, module) = (format!("{from} to {to} on {mesh}"), moved(mesh, dims, from, to));
        let plan = plan(&module, mesh, (1, 1), &Xla, &[]);
        assert_eq!(transfers(&plan).1, 0, "{what}");
        modules.extend(shared(&plan).into_iter().map(|text| (what.clone(), text)));
        compare(&what, &module, &plan);
    }
    for name in ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute", "dynamic_slice"] {
        assert!(modules.iter().any(|(_, text)| text.contains(&format!("stablehlo.{name}\""))), "no {name}");
    }
    common::verified(&modules);
}

/// Of all types but bools, which are not combined; the first axis has as many elements on both ranks.
#[test]
fn values_become_partial_values() {
    if common::client().is_none() {
        return;
    }
    for layout in layout::all(1, 1, &[]) {
        let module = embedded(&layout);
        let plan = plan(&module, "cpu[2]", (1, 1), &Xla, &[]);
        assert_eq!(transfers(&plan), (8, 1));
        compare("partial values", &module, &plan);
    }
}

#[test]
fn a_network_is_one_program_of_all_ranks() {
    if common::client().is_none() {
        return;
    }
    for mesh in ["cpu[2]", "cpu[4]", "cpu[8]"] {
        let network = module(mesh, NETWORK);
        let one = plan(&network, mesh, (1, 1), &Xla, &[]);
        let modules = shared(&one);
        assert!(modules.iter().all(|text| *text == modules[0] && text.matches("replica_groups").count() == 2));
        compare("a network", &network, &one);
        let native = [Pin { op: "of.transfer".into(), backend: "native".into() }];
        let apart = plan(&network, mesh, (1, 1), &Xla, &native);
        assert!(shared(&apart).is_empty() && transfers(&apart).1 > 0);
        compare("through the host", &network, &apart);
    }
}

#[test]
fn ranks_with_different_programs_exchange_on_the_host() {
    if common::client().is_none() {
        return;
    }
    let plan = plan(&layers(), "cpu[2x2]", (2, 4), &Xla, &[]);
    assert!(transfers(&plan).1 > 0);
    compare("stages", &layers(), &plan);
    // 7 rows are 4 and 3.
    let rows = "tensor<7x6xf32, #of.sbp<@m, [S(0)]>>";
    let whole = "tensor<7x6xf32, #of.sbp<@m, [B]>>";
    let uneven = module(
        "cpu[2]",
        &format!(
            "func @main(%x: {rows}) -> ({whole}) {{\n  %t = of.tanh %x : ({rows}) -> {rows}\n  %y = of.sharding_constraint %t {{sharding = \
             #of.sbp<@m, [B]>}} : ({rows}) -> {whole}\n  of.return %y : ({whole}) -> ()\n}}\n"
        ),
    );
    let plan = ranks::plan(&uneven, "cpu[2]", (1, 1), &Xla, &[]);
    assert_eq!(transfers(&plan).0, 0);
    compare("slices of several sizes", &uneven, &plan);
}

/// A maximum is NaN on all ranks if one rank's part is NaN.
#[test]
fn all_reduce_propagates_nan() {
    if common::client().is_none() {
        return;
    }
    let ty = |dims: &str, sbp: &str| format!("tensor<{dims}xf32, #of.sbp<@m, [{sbp}]>>");
    let (rows, whole, slices) = (ty("4x2", "S(0)"), ty("2", "B"), ty("2", "S(0)"));
    for kind in ["max", "min", "sum", "prod"] {
        let partial = ty("2", &format!("P({kind})"));
        let text = format!(
            "func @main(%x: {rows}) -> ({whole}, {slices}) {{
  %axes = of.constant {{value = dense<0> : tensor<1xi64>}} : () -> tensor<1xi64>
  %p = of.reduce_{kind} %x, %axes {{keepdims = false}} : ({rows}, tensor<1xi64>) -> {partial}
  %q = of.reduce_{kind} %x, %axes {{keepdims = false}} : ({rows}, tensor<1xi64>) -> {partial}
  %y = of.sharding_constraint %p {{sharding = #of.sbp<@m, [B]>}} : ({partial}) -> {whole}
  %z = of.sharding_constraint %q {{sharding = #of.sbp<@m, [S(0)]>}} : ({partial}) -> {slices}
  of.return %y, %z : ({whole}, {slices}) -> ()
}}
"
        );
        let module = module("cpu[2]", &text);
        let plan = plan(&module, "cpu[2]", (1, 1), &Xla, &[]);
        assert!(!shared(&plan).is_empty());
        let mut session = session(&plan);
        for at in 0..8 {
            let mut x = [1.0f32, -2.0, -3.0, 4.0, -0.5, f32::NEG_INFINITY, 7.0, 8.0];
            let mut run = |x: &[f32]| {
                let x: Value = of_ir::Tensor::from_slice(&[4, 2], x).unwrap().into();
                let got = session.run(&[to_runtime(&x)]).unwrap();
                got.iter().map(|y| ranks::numbers(y, of_ir::DType::F32)).collect::<Vec<_>>()
            };
            let numbers = run(&x);
            x[at] = f32::NAN;
            for (got, numbers) in run(&x).iter().zip(numbers) {
                let column = at % 2;
                assert!(
                    got[column].is_nan() && got[1 - column] == numbers[1 - column],
                    "{kind} with NaN at {at}: {got:?}"
                );
            }
        }
        compare(kind, &module, &plan);
    }
}

#[test]
fn a_failing_rank_stops_its_clique() {
    if common::client().is_none() {
        return;
    }
    // Only the rank that has the last index reads row 9 of 8, in native code.
    let text = r#"
func @main(%t: tensor<8x6xf32, #of.sbp<@m, [B]>>, %i: tensor<4xi64, #of.sbp<@m, [S(0)]>>) -> (tensor<4x6xf32, #of.sbp<@m, [B]>>) {
  %g = of.gather %t, %i {axis = 0} : (tensor<8x6xf32, #of.sbp<@m, [B]>>, tensor<4xi64, #of.sbp<@m, [S(0)]>>) -> tensor<4x6xf32, #of.sbp<@m, [S(0)]>>
  %h = of.tanh %g : (tensor<4x6xf32, #of.sbp<@m, [S(0)]>>) -> tensor<4x6xf32, #of.sbp<@m, [S(0)]>>
  %y = of.sharding_constraint %h {sharding = #of.sbp<@m, [B]>} : (tensor<4x6xf32, #of.sbp<@m, [S(0)]>>) -> tensor<4x6xf32, #of.sbp<@m, [B]>>
  of.return %y : (tensor<4x6xf32, #of.sbp<@m, [B]>>) -> ()
}
"#;
    for pins in [&[][..], &[Pin { op: "of.gather".into(), backend: "native".into() }]] {
        let plan = plan(&module("cpu[4]", text), "cpu[4]", (1, 1), &Xla, pins);
        assert_eq!(transfers(&plan), (1, 0));
        let mut session = session(&plan);
        ranks::rank_3_fails(&mut session);
    }
}
