//! Layers and models against PyTorch: names and extents of parameters, and values. `write.py` in this folder writes what is expected.

mod layers;
mod zoo;

use of_ir::{Module, Tensor};
use of_ops::list::as_op;
use of_ops::structural::Constant;

/// The parameters of a model, by name, in the order of the graph.
fn parameters(module: &Module) -> Vec<(String, Tensor)> {
    let graph = &module.main().unwrap().graph;
    let named = graph.walk().into_iter().filter_map(|op| {
        let value = as_op::<Constant>(graph, op)?.value;
        Some((graph.name(graph.op(op).results[0])?.to_string(), value))
    });
    named.collect()
}

/// The extents of `2x3`.
fn dims(text: &str) -> Vec<usize> {
    text.split('x').map(|d| d.parse().unwrap_or_else(|_| panic!("'{text}' are no extents"))).collect()
}
