//! Every op of the list is exported to ONNX, imported again, and computes the same. Only an operator set that is too old for an
//! op may be refused.

mod support;

use of_ir::Module;
use of_onnx::{ExportOptions, export_model};
use of_ops::{Sample, Value, interpret, list};
use of_test_support::compare::{Tolerance, difference};
use of_test_support::op::{is_parameter, one_op_func};
use support::*;

const SEEDS: u64 = 6;

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
fn every_op_round_trips_through_onnx() {
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
                        let too_new = errors.0.iter().all(|e| e.message.contains("operator set") && e.hint.is_some());
                        assert!(too_new && newest_opset < of_onnx::NEWEST_OPSET, "{} {seed}: {errors:#?}", d.name());
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
}
