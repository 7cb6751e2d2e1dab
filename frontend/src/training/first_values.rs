//! The values that the parameters of a model begin with.

use of_ir::{Attr, Module, Rewriter, Tensor};

use super::parameters::parameters;

/// The parameters of a model with the values that they begin with. Those of an ONNX model are its float initializers of rank 1 or more.
pub fn first_values(module: &Module) -> Vec<(String, Tensor)> {
    let Some(func) = module.main() else { return Vec::new() };
    parameters(&func.graph, &[]).into_iter().map(|(name, _, value)| (name, value)).collect()
}

/// Sets the values that parameters begin with, where there is one of a name; their types stay.
pub fn set_first_values(module: &mut Module, mut value: impl FnMut(&str) -> Option<Tensor>) {
    let Some(func) = module.main_mut() else { return };
    for (name, op, old) in parameters(&func.graph, &[]) {
        let new = value(&name).filter(|new| new.dtype() == old.dtype() && new.dims() == old.dims());
        if let Some(new) = new {
            Rewriter::new(&mut func.graph, "weights").set_attr(op, "value", Attr::Tensor(new));
        }
    }
}
