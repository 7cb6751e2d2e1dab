//! Number of nodes after inlining of functions. It is computed before inlining, because nested calls multiply it exponentially.

use std::collections::HashMap;

use of_diag::Diagnostic;

use super::{FunctionKey, domain};
use crate::proto::{FunctionProto, GraphProto, NodeProto};
use crate::tensor::invalid;

/// The most nodes after inlining for each node that the file states. Real models call a function some dozens of times; nested
/// calls in a file of a few kilobytes reach any number.
const MAX_GROWTH: usize = 128;

/// Nodes after inlining that need no growth limit: they are imported in a fraction of a second.
const SMALL: usize = 16_384;

/// Refuses a model of more than `most` nodes after inlining, or of many more than the file states. Returns the limit, which
/// also counts bodies of loops that are read several times.
pub(super) fn check(
    graph: &GraphProto,
    functions: &HashMap<FunctionKey<'_>, &FunctionProto>,
    most: usize,
) -> Result<usize, Diagnostic> {
    let none = HashMap::new();
    let mut stated = Counter { functions: &none, counts: HashMap::new() };
    let in_functions = functions.values().map(|f| stated.nodes(&f.node)).fold(0, usize::saturating_add);
    let in_file = in_functions.saturating_add(stated.nodes(&graph.node));
    let most = most.min(in_file.saturating_mul(MAX_GROWTH).max(SMALL));
    let mut counter = Counter { functions, counts: HashMap::new() };
    let all = counter.nodes(&graph.node);
    if all <= most {
        return Ok(most);
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
    Err(invalid(message).hint(format!(
        "at most {most} nodes are read: max_nodes of them, and {MAX_GROWTH} for each of the {in_file} nodes in the file"
    )))
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
