//! Ranks that exchange values whose extents a run decides, against the interpreter: every transfer, and models with open batch and sequence.

use std::sync::Arc;

use of_ir::{Dim, Func, Module, PartialKind, Tensor, Type};
use of_ops::sample::Rng;
use of_ops::{Value, interpret};
use of_passes::Manager;
use of_passes::sharding::{InsertBoxing, MeshOptions, Shard, ShardOptions};
use of_plan::PlanFile;
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::Loader;
use of_sharding::{MeshSpec, Meshes, layout, spmd};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::ranks;

fn plan(module: &Module, mesh: &str) -> Arc<PlanFile> {
    ranks::planned(module, mesh, (1, 1), &Reference, |_| ())
}

/// Values of the inputs where the symbols have these values. Integers are indices below 10.
fn inputs(func: &Func, symbols: &[(&str, i64)], rng: &mut Rng) -> Vec<Value> {
    let value = |name: &str| symbols.iter().find(|(own, _)| *own == name).map(|(_, n)| Dim::from(*n));
    let extent = |d: &Dim| d.substitute(&value).as_const().unwrap() as usize;
    let of = |ty: &Type| {
        let t = ty.as_tensor().unwrap();
        let dims: Vec<usize> = t.shape.iter().flatten().map(extent).collect();
        let (low, high) = if t.dtype.is_float() { (-1.0, 1.0) } else { (0.0, 10.0) };
        Value::Tensor(rng.tensor(t.dtype, &dims, low, high))
    };
    func.input_types().iter().map(of).collect()
}

/// Compares runs of a plan with the interpreter, one after another in the same session.
fn check(what: &str, module: &Module, mesh: &str, runs: &[&[(&str, i64)]]) -> Arc<PlanFile> {
    let plan = plan(module, mesh);
    let loader: Arc<dyn Loader> = Arc::new(Reference);
    let mut session = ranks::session(&plan, &loader).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (func, mut rng) = (module.main().unwrap(), Rng::new(7));
    for symbols in runs {
        let what = format!("{what} on {mesh} with {symbols:?}");
        let inputs = inputs(func, symbols, &mut rng);
        let want = interpret::run_graph(&func.graph, &inputs).unwrap_or_else(|d| panic!("{what}: {d}"));
        let given: Vec<_> = inputs.iter().map(|v| to_runtime(v).unwrap()).collect();
        let got = session.run(&given).unwrap_or_else(|e| panic!("{what}: {e}"));
        let got: Vec<Value> = got.iter().map(|v| from_runtime(v).unwrap()).collect();
        assert_close(&what, &got, &want, Tolerance { absolute: 2e-6, ..Tolerance::of_largest(2e-6) });
    }
    plan
}

#[test]
fn every_pair_of_layouts() {
    for (mesh, shape) in [("cpu[2]", vec![2]), ("cpu[4]", vec![4]), ("cpu[3]", vec![3]), ("cpu[2x2]", vec![2, 2])] {
        let devices: usize = shape.iter().product();
        for kind in [PartialKind::Sum, PartialKind::Max] {
            let all = layout::all(2, shape.len(), &[kind]);
            // The second axis has a known extent that is split unevenly, or is open, too.
            for second in ["7".to_string(), format!("?({devices}*M)")] {
                let dims = [devices, if second == "7" { 7 } else { devices }];
                let usable: Vec<_> = all.iter().filter(|l| layout::fits(l, &shape, &dims)).collect();
                for from in &usable {
                    let ty = |l: &layout::Layout| {
                        format!("tensor<?({devices}*N)x{second}xf32, #of.sbp<@m, {}>>", layout::show(l))
                    };
                    let (mut ops, mut names, mut types) = (String::new(), Vec::new(), Vec::new());
                    for (i, to) in usable.iter().enumerate() {
                        let sbp = format!("#of.sbp<@m, {}>", layout::show(to));
                        let (a, b) = (ty(from), ty(to));
                        ops += &format!("  %y{i} = of.sharding_constraint %x {{sharding = {sbp}}} : ({a}) -> {b}\n");
                        names.push(format!("%y{i}"));
                        types.push(b);
                    }
                    let (names, types, own) = (names.join(", "), types.join(", "), ty(from));
                    let body = format!(
                        "func @main(%x: {own}) -> ({types}) {{\n{ops}  of.return {names} : ({types}) -> ()\n}}\n"
                    );
                    let runs: [&[(&str, i64)]; 4] =
                        [&[("N", 1), ("M", 2)], &[("N", 3), ("M", 1)], &[("N", 3), ("M", 1)], &[("N", 0), ("M", 1)]];
                    check(&layout::show(from), &ranks::module(mesh, &body), mesh, &runs);
                }
            }
        }
    }
}

/// Embeddings, attention with a mask, and a head over whole sequences, with extents that the graph computes itself.
fn attention(batch: &str, words: &str, weights: [&str; 3]) -> Module {
    let axes = weights[0].matches(',').count() + 1;
    let mesh = if axes == 2 { "cpu[2x2]" } else { "cpu[2]" };
    let [batch_layout, column, row] =
        weights.map(|w| if w.is_empty() { String::new() } else { format!(", #of.sbp<@m, [{w}]>") });
    let body = format!(
        r#"func @main(%ids: tensor<?({batch})x?({words})xi64{batch_layout}>, %table: tensor<10x16xf32>, %place: tensor<32x16xf32>,
           %q: tensor<16x16xf32{column}>, %k: tensor<16x16xf32{column}>, %v: tensor<16x16xf32{column}>, %o: tensor<16x16xf32{row}>)
    -> (tensor<?({batch})x?({words})x16xf32>, tensor<?({batch})x16xf32>) {{
  %e = of.gather %table, %ids {{axis = 0}}
  %s = of.shape %ids {{start = 1}}
  %zero = of.constant {{value = dense<[0]> : tensor<1xi64>}}
  %one = of.constant {{value = dense<[1]> : tensor<1xi64>}}
  %p = of.slice %place, %zero, %s, %zero, %one
  %x = of.add %e, %p
  %b = of.shape %ids {{end = 1}}
  %heads = of.constant {{value = dense<[4, 4]> : tensor<2xi64>}}
  %split = of.concat %b, %s, %heads {{axis = 0}}
  %width = of.constant {{value = dense<[16]> : tensor<1xi64>}}
  %join = of.concat %b, %s, %width {{axis = 0}}
  %q1 = of.matmul %x, %q
  %k1 = of.matmul %x, %k
  %v1 = of.matmul %x, %v
  %q2 = of.reshape %q1, %split {{allowzero = false}}
  %k2 = of.reshape %k1, %split {{allowzero = false}}
  %v2 = of.reshape %v1, %split {{allowzero = false}}
  %q3 = of.transpose %q2 {{perm = [0, 2, 1, 3]}}
  %k3 = of.transpose %k2 {{perm = [0, 2, 3, 1]}}
  %v3 = of.transpose %v2 {{perm = [0, 2, 1, 3]}}
  %w = of.matmul %q3, %k3
  %a = of.softmax %w {{axis = -1}}
  %c = of.matmul %a, %v3
  %d = of.transpose %c {{perm = [0, 2, 1, 3]}}
  %f = of.reshape %d, %join {{allowzero = false}}
  %y = of.matmul %f, %o
  %over = of.constant {{value = dense<[1]> : tensor<1xi64>}}
  %m = of.reduce_mean %y, %over {{keepdims = false}}
  of.return %y, %m
}}
"#
    );
    ranks::module(mesh, &body)
}

const RUNS: [&[(&str, i64)]; 4] =
    [&[("N", 1), ("S", 3)], &[("N", 2), ("S", 7)], &[("N", 2), ("S", 7)], &[("N", 3), ("S", 1)]];

#[test]
fn attention_with_open_batch_and_sequence() {
    // By rows, by columns as Megatron does, both, and as the search likes.
    check("batch", &attention("2*N", "S", ["S(0)", "B", "B"]), "cpu[2]", &RUNS);
    check("columns", &attention("2*N", "S", ["B", "S(1)", "S(0)"]), "cpu[2]", &RUNS);
    check("both", &attention("4*N", "S", ["S(0), B", "B, S(1)", "B, S(0)"]), "cpu[2x2]", &RUNS);
    check("words", &attention("N", "2*S", ["S(1)", "B", "B"]), "cpu[2]", &RUNS);
    check("free", &attention("2*N", "2*S", ["", "", ""]), "cpu[2]", &RUNS);
}

#[test]
fn extents_that_do_not_fit_are_errors() {
    let module = attention("2*N", "S", ["S(0)", "B", "B"]);
    let plan = plan(&module, "cpu[2]");
    let loader: Arc<dyn Loader> = Arc::new(Reference);
    let mut session = ranks::session(&plan, &loader).unwrap();
    let mut rng = Rng::new(3);
    let good = inputs(module.main().unwrap(), &[("N", 2), ("S", 3)], &mut rng);
    let mut run = |ids: Tensor| {
        let mut given = good.clone();
        given[0] = ids.into();
        let given: Vec<_> = given.iter().map(|v| to_runtime(v).unwrap()).collect();
        session.run(&given).map(|_| ()).map_err(|e| e.to_string())
    };
    let error = run(Tensor::from_slice(&[3, 2], &[0i64; 6]).unwrap()).unwrap_err();
    assert!(error.contains("extent 3 at dimension 0, which must be a multiple of 2"), "{error}");
    let error = run(Tensor::from_slice(&[6], &[0i64; 6]).unwrap()).unwrap_err();
    assert!(error.contains("has rank 1"), "{error}");
    run(Tensor::from_slice(&[4, 2], &[0i64; 8]).unwrap()).unwrap();
}

#[test]
fn extents_of_which_nothing_is_known_are_not_split() {
    let mut module = attention("N", "S", ["S(0)", "B", "B"]);
    let mut manager = Manager::default();
    manager.add::<Shard>(ShardOptions { mesh: "cpu[2]".into(), ..ShardOptions::default() });
    manager.add::<InsertBoxing>(MeshOptions { mesh: "cpu[2]".into() });
    let made = manager.run(&mut module, &mut |_| ()).map_err(|d| d.to_string()).and_then(|_| {
        let meshes = Meshes::of(&module, &MeshSpec::named("cpu[2]").unwrap()).unwrap();
        spmd::rank_function(module.main().unwrap(), &meshes, 0).map_err(|d| d.to_string())
    });
    let error = made.map(|_| ()).unwrap_err();
    assert!(error.contains("an open extent must be known to be a multiple of its slices"), "{error}");
}
