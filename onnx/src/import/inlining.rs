//! Number of nodes after inlining of functions. It is computed before inlining, because nested calls multiply it exponentially.

use std::collections::HashMap;

use of_diag::Diagnostic;

use super::{FunctionKey, domain};
use crate::proto::{FunctionProto, GraphProto, NodeProto};
use crate::tensor::invalid;

/// Refuses a model of more than `most` nodes after inlining.
pub(super) fn check(
    graph: &GraphProto,
    functions: &HashMap<FunctionKey<'_>, &FunctionProto>,
    most: usize,
) -> Result<(), Diagnostic> {
    let mut counter = Counter { functions, counts: HashMap::new() };
    let all = counter.nodes(&graph.node);
    if all <= most {
        return Ok(());
    }
    // The first function that is too large; those that call it are larger.
    let counts = counter.counts.iter().filter_map(|((_, name, _), n)| Some(((*n)?, *name)));
    let message = match counts.filter(|(n, _)| *n > most).min() {
        // Saturated: the number itself says nothing.
        Some((n, name)) if n == usize::MAX => {
            format!("function '{name}' is more than 2^64 nodes once the functions that it calls are inlined")
        }
        Some((n, name)) => format!("function '{name}' is {n} nodes once the functions that it calls are inlined"),
        None => format!("the model is {all} nodes once its functions are inlined"),
    };
    Err(invalid(message).hint(format!("at most {most} nodes are read; max_nodes raises the limit")))
}

struct Counter<'m, 'f> {
    functions: &'f HashMap<FunctionKey<'m>, &'m FunctionProto>,
    /// Nodes of a function and all that it calls; `None` while it is counted: a call of itself, which the import refuses.
    counts: HashMap<FunctionKey<'m>, Option<usize>>,
}

impl<'m> Counter<'m, '_> {
    fn nodes(&mut self, nodes: &'m [NodeProto]) -> usize {
        nodes.iter().fold(0, |sum, n| sum.saturating_add(self.node(n)))
    }

    fn node(&mut self, node: &'m NodeProto) -> usize {
        let graphs = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
        let inner = graphs.fold(0, |sum: usize, g| sum.saturating_add(self.nodes(&g.node)));
        let key = (domain(node.domain()), node.op_type(), node.overload());
        inner.saturating_add(self.functions.get(&key).map_or(1, |f| self.function(key, f)))
    }

    fn function(&mut self, key: FunctionKey<'m>, function: &'m FunctionProto) -> usize {
        if let Some(known) = self.counts.get(&key) {
            return known.unwrap_or(0);
        }
        self.counts.insert(key, None);
        let n = self.nodes(&function.node);
        self.counts.insert(key, Some(n));
        n
    }
}
