//! Every op of the list is written as ONNX and reads back as what computes the same, or says why not.

mod support;

use std::collections::BTreeMap;

use of_ir::{Func, Graph, Module, Rewriter, Tensor};
use of_onnx::{ExportOptions, export_model};
use of_ops::structural::{Constant, NoneValue, Return};
use of_ops::{Sample, Value, interpret, list};
use support::*;

const SEEDS: u64 = 6;

/// Ops without a counterpart, with a word of the reason. Everything else must be written.
const REFUSED: &[(&str, &str)] = &[
    // With indices: they count in the layout.
    ("of.max_pool", "channels last"),
    ("of.none", "left out"),
];

/// A module of one op; small integers that may be shapes are constants. The other operands come back.
fn one_op(sample: &Sample) -> (Module, Vec<Value>) {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "test");
    let (mut ids, mut args) = (Vec::new(), Vec::new());
    let parameter = |i: usize, t: &Tensor| i > 0 && t.dtype().is_int() && t.dims().len() <= 1;
    for (i, v) in sample.operands.iter().enumerate() {
        ids.push(match v {
            Value::None => rw.create_one(NoneValue {}, &[]).unwrap(),
            Value::Tensor(t) if parameter(i, t) => rw.create_one(Constant { value: t.clone() }, &[]).unwrap(),
            other => {
                args.push(other.clone());
                rw.add_arg(entry, interpret::type_of(other), None)
            }
        });
    }
    let id = rw.create((sample.op.decl().as_def(), sample.op.attrs()), &ids).unwrap();
    let results = rw.graph().op(id).results.to_vec();
    rw.create(Return {}, &results).unwrap();
    let func = Func::numbered(graph);
    let mut m = Module::default();
    m.funcs.insert("main".into(), func);
    (m, args)
}

fn close(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Tensor(a), Value::Tensor(b)) => {
            let near =
                |(p, q): (f64, f64)| p == q || (p.is_nan() && q.is_nan()) || (p - q).abs() <= 1e-4 * (1.0 + q.abs());
            a.dims() == b.dims()
                && a.dtype() == b.dtype()
                && match (a.to_f64s(), b.to_f64s()) {
                    (Some(x), Some(y)) => x.into_iter().zip(y).all(near),
                    _ => a == b,
                }
        }
        _ => a == b,
    }
}

fn run_all(module: &Module, args: &[Value]) -> Vec<Value> {
    interpret::run_graph(&module.main().unwrap().graph, args).unwrap_or_else(|d| panic!("{d:#?}"))
}

#[test]
fn every_op_exports_or_reports_the_reason() {
    let mut refusals: BTreeMap<&str, String> = BTreeMap::new();
    let mut written = 0;
    // At the newest set, and at the oldest, where younger composites are expanded.
    for newest_opset in [of_onnx::NEWEST_OPSET, of_onnx::OLDEST_WRITTEN] {
        for d in list::ALL {
            for seed in 0..SEEDS {
                let Some(sample) = d.sample(seed) else { continue };
                let (module, args) = one_op(&sample);
                let model = match export_model(&module, &ExportOptions { newest_opset, ..ExportOptions::default() }) {
                    Ok(model) => model,
                    Err(errors) => {
                        let young = errors.0.iter().all(|e| e.message.contains("operator set"));
                        let named = errors.0.iter().all(|e| e.message.contains(d.name()));
                        assert!((young || named) && errors.0.iter().all(|e| e.hint.is_some()), "{errors:#?}");
                        if !(young && newest_opset < of_onnx::NEWEST_OPSET) {
                            refusals.insert(d.name(), errors.0[0].message.clone());
                        }
                        continue;
                    }
                };
                let back =
                    import(&model).unwrap_or_else(|e| panic!("{} {seed}: {:#?}\n{module:?}", d.name(), e.0)).module;
                verified(&back);
                let (was, is) = (run_all(&module, &args), run_all(&back, &args));
                let same = was.len() == is.len() && was.iter().zip(&is).all(|(a, b)| close(a, b));
                assert!(same, "{} {seed}:\n{module:?}\n{back:?}\n{was:?}\n{is:?}", d.name());
                written += 1;
            }
        }
    }
    assert!(written > 1000, "{written} samples");
    let expected: BTreeMap<&str, &str> = REFUSED.iter().copied().collect();
    let names: Vec<&&str> = refusals.keys().collect();
    assert_eq!(names, expected.keys().collect::<Vec<_>>(), "{refusals:#?}");
    for (name, why) in &refusals {
        assert!(why.contains(expected[name]), "{name}: {why}");
    }
}
