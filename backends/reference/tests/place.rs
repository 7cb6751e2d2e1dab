//! Placement: for any claims of a backend, subgraphs have no cyclic dependencies and results do not change.

use std::sync::Arc;

use of_codegen::toolchain::cache::Cache;
use of_codegen::{Backend, Overhead, Pin, Request, place};
use of_diag::Diagnostic;
use of_ir::{DType, Func, Graph, Module, OpId, Rewriter, Type, ValueId};
use of_ops::contraction::MatMul;
use of_ops::control::Subgraph;
use of_ops::elementwise::{Add, Exp, Mul, Neg};
use of_ops::reduction::ReduceMax;
use of_ops::sample::Rng;
use of_ops::structural::{Constant, Return};
use of_ops::{OpSpec, Value, interpret};
use of_reference::{Reference, from_runtime, to_runtime};
use of_runtime::{Executable, LoadContext, LoadError, Loader, Options, Session};
use of_test_support::compare::{Tolerance, assert_close};
use of_test_support::plans as support;

/// The interpreter, as a backend that claims ops at random, or by name.
struct Picky {
    seed: u64,
    only: Option<&'static str>,
    overhead: Overhead,
}

impl Backend for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }
    fn claims(&self, graph: &Graph, op: OpId) -> Result<(), String> {
        let takes = match self.only {
            Some(name) => graph.op(op).name() == name,
            None => Rng::new(self.seed ^ (op.index() as u64) << 20).int(0, 3) > 0,
        };
        if takes { Ok(()) } else { Err("not today".into()) }
    }
    fn overhead(&self) -> Overhead {
        self.overhead
    }
    fn compile(&self, func: &Func) -> Result<Vec<u8>, Diagnostic> {
        Reference.compile(func)
    }
}

/// Runs what [`Picky`] compiled.
struct PickyLoader;

impl Loader for PickyLoader {
    fn backend(&self) -> &str {
        "picky"
    }
    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        Reference.load(payload, context)
    }
}

/// A graph of square matrices whose ops read any values before them.
fn random(seed: u64) -> Func {
    let mut r = Rng::new(seed);
    let mut g = Graph::new();
    let entry = g.entry();
    let mut rw = Rewriter::new(&mut g, "test");
    let square = Type::fixed(DType::F32, &[4, 4]);
    let mut values: Vec<ValueId> = (0..2).map(|_| rw.add_arg(entry, square.clone(), None)).collect();
    let axes = rw.create_one(Constant { value: of_ir::Tensor::from_i64s(&[1]) }, &[]).unwrap();
    for _ in 0..r.int(4, 24) {
        // Recent values are more likely, so that chains occur.
        let n = values.len() as i64;
        let mut any = || values[r.int((n - 6).max(0), n - 1) as usize];
        let (a, b) = (any(), any());
        let v = match r.int(0, 5) {
            0 => rw.create_one(MatMul {}, &[a, b]),
            1 => rw.create_one(Mul {}, &[a, b]),
            2 => rw.create_one(Neg {}, &[a]).and_then(|n| rw.create_one(Exp {}, &[n])),
            3 => rw
                .create_one(ReduceMax { keepdims: true }, &[a, axes])
                .and_then(|m| rw.create_one(Neg {}, &[m]))
                .and_then(|m| rw.create_one(Add {}, &[a, m])),
            _ => rw.create_one(Add {}, &[a, b]),
        };
        values.push(v.unwrap());
    }
    let outputs: Vec<ValueId> = values.iter().rev().step_by(3).take(3).copied().collect();
    rw.create(Return {}, &outputs).unwrap();
    Func::numbered(g)
}

fn close(what: &str, got: &[Value], want: &[Value]) {
    assert_close(what, got, want, Tolerance { relative: 1e-4, absolute: 1e-5, ..Tolerance::EXACT });
}

fn subgraphs(f: &Func) -> Vec<OpId> {
    f.graph.walk().into_iter().filter(|op| f.graph.op(*op).name() == Subgraph::NAME).collect()
}

#[test]
fn random_claims_preserve_results() {
    let mut count = 0;
    for seed in 0..60 {
        let mut f = random(seed);
        let mut r = Rng::new(seed);
        let inputs: Vec<Value> = (0..2).map(|_| r.tensor(DType::F32, &[4, 4], -0.5, 0.5).into()).collect();
        let want = interpret::run_graph(&f.graph, &inputs).unwrap();
        let picky = Picky { seed, only: None, overhead: Overhead::default() };
        let known: [&dyn Backend; 2] = [&Reference, &picky];
        let request = Request { known: &known, wanted: &["picky".into()], pins: &[], min_subgraph_size: 1 };
        let placement = place(&mut f, &request).unwrap_or_else(|d| panic!("{d}"));
        let made = subgraphs(&f);
        assert_eq!(made.len(), placement.subgraphs.len(), "{seed}");
        count += made.len();
        // Every op is in a subgraph, or has a reason why not.
        let placed: usize = placement.subgraphs.iter().map(|r| r.ops.len()).sum();
        assert_eq!(placed + placement.rejected.len(), placement.ops, "{seed}");
        let mut module = Module::default();
        module.funcs.insert("main".into(), f.clone());
        of_ir::verify_module(&module).unwrap_or_else(|d| panic!("{seed}: {d}"));
        close(&format!("{seed}, interpreted"), &interpret::run_graph(&f.graph, &inputs).unwrap(), &want);
        let plan = Arc::new(support::placed(&f, &known, Cache::user()));
        let loaders: [Arc<dyn Loader>; 2] = [Arc::new(Reference), Arc::new(PickyLoader)];
        let mut session =
            Session::new(plan, 0, Options { threads: 1, profile: false, ..Default::default() }, &loaders).unwrap();
        let given = inputs.iter().map(|v| to_runtime(v).unwrap()).collect();
        let got: Vec<Value> = session.run(given).unwrap().iter().map(|v| from_runtime(v).unwrap()).collect();
        close(&format!("{seed}, compiled"), &got, &want);
    }
    assert!(count > 60, "{count} subgraphs");
}

#[test]
fn unprofitable_subgraphs_are_dropped_unless_requested() {
    let dear = Picky { seed: 0, only: Some("of.matmul"), overhead: Overhead { launch: 1.0, bandwidth: 1e9 } };
    let known: [&dyn Backend; 2] = [&Reference, &dear];
    let f = (0..).map(random).find(|f| f.graph.walk().iter().any(|op| f.graph.op(*op).name() == "of.matmul")).unwrap();
    let wanted = ["picky".to_string()];
    let placed =
        place(&mut f.clone(), &Request { known: &known, wanted: &wanted, pins: &[], min_subgraph_size: 1 }).unwrap();
    assert!(placed.subgraphs.is_empty());
    let given_back: Vec<_> = placed.rejected.iter().filter(|r| r.reason.contains("not worth a call")).collect();
    assert!(given_back.iter().all(|r| r.fix.as_deref() == Some("--pin of.matmul=picky takes it all the same")));
    let pins = [Pin { op: "matmul".into(), backend: "picky".into() }];
    let mut by_hand = f.clone();
    let placed =
        place(&mut by_hand, &Request { known: &known, wanted: &[], pins: &pins, min_subgraph_size: 1 }).unwrap();
    assert!(!placed.subgraphs.is_empty() && placed.subgraphs.len() == subgraphs(&by_hand).len());
    assert!(placed.subgraphs.iter().flat_map(|r| &r.ops).all(|op| op == "of.matmul"));
    let pins = [Pin { op: "exp".into(), backend: "picky".into() }];
    let refused = place(&mut f.clone(), &Request { known: &known, wanted: &[], pins: &pins, min_subgraph_size: 1 });
    assert!(refused.is_err());
}
