//! Parameters: which constants of a model are parameters, and how they become variables.

use of_diag::Location;
use of_ir::{Attr, Graph, OpId, Tensor, ValueId};
use of_ops::list::as_op;
use of_ops::nn::BatchNorm;
use of_ops::structural::Constant;

use crate::Builder;

/// A variable under construction.
pub(super) struct Variable {
    /// Its current value: an input.
    pub value: ValueId,
    /// Its next value; `None` where it stays.
    pub next: Option<ValueId>,
    /// Its first value: a tensor, or 0 for zeros.
    pub initial: Attr,
}

impl Variable {
    /// A variable of zeros.
    pub fn zeros(value: ValueId, next: ValueId) -> Variable {
        Variable { value, next: Some(next), initial: Attr::Int(0) }
    }
}

/// The constants that are parameters: name, op, value.
pub(super) fn parameters(g: &Graph) -> Vec<(String, OpId, Tensor)> {
    let mut out: Vec<(String, OpId, Tensor)> = Vec::new();
    for op in g.region_ops(g.entry()) {
        let Some(Constant { value }) = as_op::<Constant>(g, op) else { continue };
        let result = g.op(op).results[0];
        let given = match &g.op(op).loc {
            Location::Onnx { op, .. } => &**op == "Initializer",
            _ => true,
        };
        let Some(name) = g.name(result).filter(|_| given) else { continue };
        let float = value.dtype().is_float() && !value.dims().is_empty() && value.bytes().is_some();
        if float && !g.uses(result).is_empty() && !out.iter().any(|(known, ..)| **known == **name) {
            out.push((name.to_string(), op, value));
        }
    }
    out
}

/// Names of the parameters that are statistics of batch normalisations, which training does not differentiate.
pub(super) fn statistics(b: &Builder) -> Vec<String> {
    let g = b.graph();
    let norms = g.walk().into_iter().filter(|op| as_op::<BatchNorm>(g, *op).is_some());
    let of_norm = |op: OpId| g.op(op).operands[3..5].to_vec();
    norms.flat_map(of_norm).filter_map(|v| g.name(v).map(|name| name.to_string())).collect()
}

/// Makes inputs of parameters. `variable` gives the name of the input.
pub(super) fn parameter_inputs(b: &mut Builder, variable: impl Fn(&str) -> String) -> Vec<(String, Variable, Tensor)> {
    let mut out = Vec::new();
    for (name, op, value) in parameters(b.graph()) {
        let old = b.graph().op(op).results[0];
        let input = b.input(&variable(&name), b.ty(old).clone());
        b.replace_uses(old, input);
        out.push((name, Variable { value: input, next: None, initial: Attr::Tensor(value.clone()) }, value));
    }
    out
}
