//! Unique names of values and nodes.

use of_ir::IdMap;
use std::collections::{HashMap, HashSet};

use of_ir::ValueId;

/// Names of all values of a model, regions included: ONNX lets no graph hide a name of those around it.
#[derive(Default)]
pub(super) struct Names {
    of: IdMap<ValueId, String>,
    values: Unique,
    nodes: Unique,
}

#[derive(Default)]
struct Unique {
    taken: HashSet<String>,
    /// For a name requested several times, the last number appended to it.
    last: HashMap<String, usize>,
}

impl Unique {
    /// `wanted` if it is free, else `wanted` with a number appended.
    fn pick(&mut self, wanted: &str) -> String {
        if self.taken.insert(wanted.to_owned()) {
            return wanted.to_owned();
        }
        let last = self.last.entry(wanted.to_owned()).or_default();
        loop {
            *last += 1;
            let name = format!("{wanted}_{last}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

impl Names {
    /// The name of a value.
    pub fn get(&self, value: ValueId) -> Option<&str> {
        self.of.get(&value).map(String::as_str)
    }

    /// Names a value; it keeps the name that it may have.
    pub fn name(&mut self, value: ValueId, wanted: Option<&str>) -> &str {
        let Names { of, values, .. } = self;
        of.entry(value).or_insert_with(|| values.pick(wanted.filter(|w| !w.is_empty()).unwrap_or("v")))
    }

    /// A name that no value has.
    pub fn fresh(&mut self, wanted: &str) -> String {
        self.values.pick(if wanted.is_empty() { "v" } else { wanted })
    }

    /// A name for a node that no other has; none where none is wanted.
    pub fn node(&mut self, wanted: &str) -> Option<String> {
        (!wanted.is_empty()).then(|| self.nodes.pick(wanted))
    }
}
