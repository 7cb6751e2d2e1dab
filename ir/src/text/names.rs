//! Names of values in printed text: the given name where it is a valid MLIR name, otherwise a number. Names are unique in a
//! function.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;

use super::quote;
use crate::{Graph, IdMap, ValueId};

/// A name in text, without its `%`.
#[derive(Clone)]
enum Name {
    Number(u32),
    Text(Arc<str>),
}

/// Gives names in the order in which it is asked for them.
#[derive(Default)]
pub(super) struct Names {
    given: IdMap<ValueId, Name>,
    used: HashSet<Arc<str>>,
    /// The last number that was added to a name that is used again.
    suffix: HashMap<Arc<str>, u32>,
    numbers: u32,
}

impl Names {
    /// Writes `%name`.
    pub fn write(&mut self, out: &mut String, graph: &Graph, value: ValueId) {
        let _ = match self.name(graph, value) {
            Name::Number(n) => write!(out, "%{n}"),
            Name::Text(t) => write!(out, "%{t}"),
        };
    }

    /// The name without its `%`.
    pub fn text(&mut self, graph: &Graph, value: ValueId) -> String {
        let mut s = String::new();
        self.write(&mut s, graph, value);
        s.split_off(1)
    }

    fn name(&mut self, graph: &Graph, value: ValueId) -> Name {
        if let Some(n) = self.given.get(&value) {
            return n.clone();
        }
        let name = match graph.name(value).filter(|n| quote::is_value_name(n)) {
            Some(n) => Name::Text(self.unused(n)),
            None => {
                self.numbers += 1;
                Name::Number(self.numbers - 1)
            }
        };
        self.given.insert(value, name.clone());
        name
    }

    fn unused(&mut self, name: &Arc<str>) -> Arc<str> {
        if self.used.insert(name.clone()) {
            return name.clone();
        }
        let n = self.suffix.entry(name.clone()).or_insert(0);
        loop {
            *n += 1;
            let other: Arc<str> = format!("{name}_{n}").into();
            if self.used.insert(other.clone()) {
                return other;
            }
        }
    }
}
