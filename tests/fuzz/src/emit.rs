//! Cases as files, in the layout of ONNX's test data, so that any ONNX runtime can be compared.

use std::path::Path;
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_driver::rounding::noisy;
use of_ir::{Attr, DType, Dim, Elements, Func, IdMap, Rewriter, Tensor, TensorType, Type, ValueId};
use of_onnx::{ExportOptions, export_file, tensor_io};
use of_ops::Value;

use crate::Case;
use crate::compare::spreads;
use crate::evaluate::exact;

/// Noisy runs that determine the tolerance.
const NOISE: u64 = 8;

/// Writes `model.onnx`, and in `test_data_set_0` the files `input_I.pb`, `output_I.pb`, and `noise_I.pb`: the deviation of
/// each float output element by rounding errors.
///
/// # Errors
/// When ONNX has no such op, with the reason; when the case cannot be evaluated, or a file cannot be written.
pub fn emit(case: &Case, folder: &Path) -> Result<(), Diagnostics> {
    let data = folder.join("test_data_set_0");
    let io = |e: std::io::Error| Diagnostic::error(Code::IO, Location::Unknown, format!("{}: {e}", data.display()));
    std::fs::create_dir_all(&data).map_err(io)?;
    let mut func = case.func.clone();
    round_attributes(&mut func);
    let values = exact(&func.graph, &case.inputs)?;
    know_ranks(&mut func, &values);
    let graph = &func.graph;
    export_file(&folder.join("model.onnx"), &crate::module(func.clone()), &ExportOptions::default())?;
    let of = |v: &ValueId| values[v].clone();
    let outputs: Vec<Value> = graph.outputs().iter().map(of).collect();
    let runs: Vec<Vec<Value>> = (0..NOISE).filter_map(|seed| noisy(graph, &case.inputs, seed).ok()).collect();
    let write = |kind: &str, i: usize, name: &str, value: &Value| {
        tensor_io::write(&data.join(format!("{kind}_{i}.pb")), name, value)
    };
    for (i, (name, value)) in case.func.inputs.iter().zip(&case.inputs).enumerate() {
        write("input", i, name, value)?;
    }
    for (i, (name, value)) in case.func.outputs.iter().zip(&outputs).enumerate() {
        write("output", i, name, value)?;
        let Value::Tensor(t) = value else { continue };
        if !t.dtype().is_float() {
            continue;
        }
        let noise: Vec<_> = runs.iter().map(|run| (run[i].clone(), value.clone())).collect();
        let moved = (0..t.len()).map(spreads(&noise)).collect();
        let moved = Tensor::from_elements(DType::F64, t.dims().to_vec(), Elements::Float(moved));
        let moved = moved.map_err(|e| Diagnostic::error(Code::EVAL, Location::Unknown, e.to_string()))?;
        write("noise", i, name, &moved.into())?;
    }
    Ok(())
}

/// ONNX's attributes have 32 bits.
fn round_attributes(func: &mut Func) {
    let mut rw = Rewriter::new(&mut func.graph, "emit");
    for op in rw.graph().walk() {
        let floats = |(name, a): (&Arc<str>, &Attr)| match a {
            Attr::Float(x) => Some((name.clone(), Attr::Float((*x as f32).into()))),
            Attr::Floats(list) => {
                Some((name.clone(), Attr::Floats(list.iter().map(|x| f64::from(*x as f32)).collect())))
            }
            _ => None,
        };
        let rounded: Vec<_> = rw.graph().op(op).attrs.iter().filter_map(floats).collect();
        for (name, value) in rounded {
            rw.set_attr(op, &name, value);
        }
    }
}

/// Sets the ranks of the results to the evaluated ones: ONNX requires the ranks of a model's outputs.
fn know_ranks(func: &mut Func, values: &IdMap<ValueId, Value>) {
    let outputs = func.graph.outputs().to_vec();
    let mut rw = Rewriter::new(&mut func.graph, "emit");
    for v in outputs {
        if let (Type::Tensor(t), Value::Tensor(value)) = (rw.graph().ty(v).clone(), &values[&v])
            && t.shape.is_none()
        {
            let shape = value.dims().iter().map(|_| Dim::unknown()).collect();
            rw.set_type(v, Type::Tensor(TensorType { shape: Some(shape), ..t }));
        }
    }
}
