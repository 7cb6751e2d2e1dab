//! Control flow, sequences and optionals.

mod if_;
mod join;
mod loop_;
mod optional;
mod scan;
mod sequence;
mod sequence_map;
mod sequence_split;
mod subgraph;

pub use if_::If;
pub use join::join;
pub use loop_::Loop;
pub use optional::{OptionalGetElement, OptionalHasElement, OptionalOf};
pub use scan::Scan;
pub use sequence::{SequenceAt, SequenceConstruct, SequenceEmpty, SequenceErase, SequenceInsert, SequenceLength};
pub use sequence_map::{SequenceMap, element_of};
pub use sequence_split::{ConcatFromSequence, SplitToSequence};
pub use subgraph::Subgraph;

use of_ir::{DType, OpError, OpView, RegionId, TensorType, Type};

use crate::Value;

/// Region `i` of an op that is about to be made or checked.
fn region(cx: &OpView<'_>, i: usize) -> Result<RegionId, OpError> {
    cx.regions.get(i).copied().ok_or_else(|| OpError::new(of_diag::Code::REGION, format!("region {i} is missing")))
}

/// The types that region `i` yields.
fn yields(cx: &OpView<'_>, i: usize) -> Result<Vec<Type>, OpError> {
    Ok(cx.graph.yields(region(cx, i)?).iter().map(|v| cx.graph.ty(*v).clone()).collect())
}

/// An error about the region of an op.
fn region_error(message: impl Into<String>) -> OpError {
    OpError::new(of_diag::Code::REGION, message)
}

/// A condition: a bool tensor of one element.
fn check_condition(t: &TensorType) -> Result<(), OpError> {
    if t.dtype != DType::Bool {
        return Err(OpError::ty(format!("the condition must be bool, it is {}", t.dtype)));
    }
    if t.fixed_dims().is_some_and(|d| d.iter().any(|n| *n != 1)) {
        return Err(OpError::shape("the condition must be one element"));
    }
    Ok(())
}

/// The truth of a condition.
fn truth(v: &Value) -> Result<bool, OpError> {
    match v {
        Value::Tensor(t) => match t.to_i64s().as_deref() {
            Some([x]) => Ok(*x != 0),
            _ => Err(OpError::eval("a condition must be one bool")),
        },
        _ => Err(OpError::eval("a condition must be a tensor")),
    }
}
