//! Evaluating a function on given inputs.

use of_diag::{Code, Diagnostic};
use of_ir::Func;
use of_ops::{Value, interpret};

/// The outputs of `func` for `inputs`, whose types must fit those that it declares.
///
/// # Errors
/// When an input does not fit, or an op cannot be evaluated.
pub fn evaluate(func: &Func, inputs: &[Value]) -> Result<Vec<Value>, Diagnostic> {
    for ((value, ty), name) in inputs.iter().zip(func.input_types()).zip(&func.inputs) {
        let own = interpret::type_of(value);
        if !own.compatible(&ty) {
            return Err(Diagnostic::error(
                Code::INPUT,
                func.loc.clone(),
                format!("input '{name}' is {own}, it must be {ty}"),
            ));
        }
    }
    interpret::run_graph(&func.graph, inputs)
}
