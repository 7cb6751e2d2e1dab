//! Locations of operations.

use std::fmt;
use std::sync::Arc;

use crate::escaped;

/// Where an operation comes from. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Location {
    /// Nothing is known.
    #[default]
    Unknown,
    /// A place in a text file; `line` and `col` count from 1.
    Source {
        /// File name as the user gave it.
        file: Arc<str>,
        /// Line, from 1.
        line: u32,
        /// Column in characters, from 1.
        col: u32,
    },
    /// A node of an ONNX model.
    Onnx {
        /// The node's name, or the name of its first output where it has none.
        node: Arc<str>,
        /// Position in the node list of its graph.
        index: u32,
        /// ONNX operator, e.g. `Conv`.
        op: Arc<str>,
    },
    /// Made by a pass out of other operations.
    Derived {
        /// Name of the pass, and of the rule where there is one, e.g. `canonicalize/mul-one`.
        by: Arc<str>,
        /// What it was made from.
        from: Arc<[Location]>,
    },
}

impl Location {
    /// A place in a text file.
    pub fn source(file: impl Into<Arc<str>>, line: u32, col: u32) -> Self {
        Location::Source { file: file.into(), line, col }
    }

    /// An ONNX node.
    pub fn onnx(node: impl Into<Arc<str>>, index: u32, op: impl Into<Arc<str>>) -> Self {
        Location::Onnx { node: node.into(), index, op: op.into() }
    }

    /// Derived from `from` by pass `by`; duplicates and unknowns are dropped.
    pub fn derived<'a>(by: impl Into<Arc<str>>, from: impl IntoIterator<Item = &'a Location>) -> Self {
        let mut list: Vec<Location> = Vec::new();
        for l in from {
            if *l != Location::Unknown && !list.contains(l) {
                list.push(l.clone());
            }
        }
        Location::Derived { by: by.into(), from: list.into() }
    }

    /// The locations at the leaves: what the user wrote, in order, without duplicates.
    pub fn roots(&self) -> Vec<&Location> {
        fn walk<'a>(l: &'a Location, out: &mut Vec<&'a Location>) {
            match l {
                Location::Unknown => {}
                Location::Derived { from, .. } => from.iter().for_each(|l| walk(l, out)),
                leaf if out.contains(&leaf) => {}
                leaf => out.push(leaf),
            }
        }
        let mut out = Vec::new();
        walk(self, &mut out);
        out
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Unknown => f.write_str("unknown"),
            Location::Source { file, line, col } => write!(f, "{}:{line}:{col}", escaped(file)),
            Location::Onnx { node, index, op } => write!(f, "node '{}' (#{index}, {})", escaped(node), escaped(op)),
            Location::Derived { by, from } => {
                write!(f, "{}(", escaped(by))?;
                for (i, l) in from.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{l}")?;
                }
                f.write_str(")")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_keeps_each_root_once() {
        let a = Location::source("a.of", 1, 2);
        let n = Location::onnx("conv1", 3, "Conv");
        let d = Location::derived("p", [&a, &n, &a, &Location::Unknown]);
        let e = Location::derived("q", [&d, &a]);
        assert_eq!(e.roots(), vec![&a, &n]);
        assert_eq!(d.to_string(), "p(a.of:1:2, node 'conv1' (#3, Conv))");
    }
}
