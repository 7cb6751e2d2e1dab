//! Every op of the list is written as ONNX and reads back as what computes the same, or says why not.

mod support;

use std::collections::BTreeMap;

use of_ir::Module;
use of_onnx::{ExportOptions, export_model};
use of_ops::{Sample, Value, interpret, list};
use of_test_support::compare::{Tolerance, difference};
use of_test_support::op::{is_parameter, one_op_func};
use support::*;

const SEEDS: u64 = 6;

/// Ops without a counterpart, with a word of the reason. Everything else must be written.
const REFUSED: &[(&str, &str)] = &[
    // With indices: they count in the layout.
    ("of.max_pool", "channels last"),
    ("of.none", "an omitted value"),
];

/// A module of one op; small integers that may be shapes are constants. The other operands come back.
fn module_of(sample: &Sample) -> (Module, Vec<Value>) {
    let (func, args) = one_op_func(&*sample.op, &sample.operands, is_parameter);
    let mut m = Module::default();
    m.funcs.insert("main".into(), func);
    (m, args)
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
                let (module, args) = module_of(&sample);
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
                let apart = difference(&is, &was, Tolerance::elementwise(1e-4));
                assert!(apart.is_none(), "{} {seed}: {apart:?}\n{module:?}\n{back:?}", d.name());
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
