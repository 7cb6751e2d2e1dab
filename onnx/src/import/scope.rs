//! Name scopes: the value that a name denotes.

use std::collections::HashMap;

use of_ir::ValueId;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bound {
    /// A value of the graph.
    Value(ValueId),
    /// An argument that a call of a function leaves out.
    Absent,
    /// Something that could not be imported; the reason is reported where it was defined.
    Poisoned,
}

/// Names of the graph that is imported, and of those around it.
#[derive(Default)]
pub(crate) struct Scope<'m> {
    frames: Vec<HashMap<&'m str, Bound>>,
}

impl<'m> Scope<'m> {
    /// Enters a graph.
    pub fn push(&mut self) {
        self.frames.push(HashMap::new());
    }

    /// Leaves a graph.
    pub fn pop(&mut self) {
        self.frames.pop();
    }

    /// Defines `name`; `false` where this graph has defined it already.
    pub fn bind(&mut self, name: &'m str, bound: Bound) -> bool {
        match self.frames.last_mut() {
            Some(frame) => frame.insert(name, bound).is_none(),
            None => false,
        }
    }

    /// What `name` stands for, in this graph or one around it.
    pub fn get(&self, name: &str) -> Option<Bound> {
        self.frames.iter().rev().find_map(|f| f.get(name).copied())
    }
}
