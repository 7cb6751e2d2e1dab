//! The e-graph language: e-nodes for all ops of the registry. A new op needs no change here.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{Hash, Hasher};

use egg::{Id, Language};
use of_ir::{Attr, Attrs, OpDef, OpId, Tensor};

/// The kind of an e-node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// A value from outside the segment, by its number.
    Leaf(u32),
    /// An op with its attributes, by its number in [`OpInterner`]. With several results its class is their tuple.
    Op(u32),
    /// Result `.0` of the tuple that is the only child.
    Result(u32),
}

/// An e-node: its kind, and the classes of its operands.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its kind.
    pub kind: Kind,
    /// The classes of its operands.
    pub children: Vec<Id>,
    /// Its op in the scratch graph, with the location. Not part of its identity.
    pub scratch_op: Option<OpId>,
}

impl Node {
    fn identity(&self) -> (Kind, &[Id]) {
        (self.kind, &self.children)
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Node {}

impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Node) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Node {
    fn cmp(&self, other: &Node) -> std::cmp::Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl Language for Node {
    type Discriminant = Kind;

    fn discriminant(&self) -> Kind {
        self.kind
    }

    fn matches(&self, other: &Node) -> bool {
        self.kind == other.kind && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

/// Interned ops with attributes: equal ones have one number.
#[derive(Default)]
pub struct OpInterner {
    list: Vec<(&'static dyn OpDef, Attrs)>,
    index: HashMap<String, Vec<u32>>,
}

impl OpInterner {
    /// The number of an op with attributes.
    pub fn number(&mut self, def: &'static dyn OpDef, attrs: &Attrs) -> u32 {
        let bucket = self.index.entry(key(def, attrs)).or_default();
        if let Some(n) = bucket.iter().find(|n| same(&self.list[**n as usize].1, attrs)) {
            return *n;
        }
        let n = self.list.len() as u32;
        self.list.push((def, attrs.clone()));
        bucket.push(n);
        n
    }

    /// The op with attributes of a number.
    pub fn get(&self, number: u32) -> (&'static dyn OpDef, &Attrs) {
        let (def, attrs) = &self.list[number as usize];
        (*def, attrs)
    }
}

/// Tensors up to this many bytes are compared by content; larger ones are equal when they share memory.
const SMALL: usize = 4096;

/// A hash key: equal ops with attributes have equal keys.
fn key(def: &dyn OpDef, attrs: &Attrs) -> String {
    let mut out = String::from(def.name());
    for (name, attr) in attrs.iter() {
        let _ = match attr {
            Attr::Tensor(t) => write!(out, " {name}={:?}{:?}", t.dtype(), t.dims()),
            other => write!(out, " {name}={other:?}"),
        };
    }
    out
}

fn same(a: &Attrs, b: &Attrs) -> bool {
    // The key covers all but tensors.
    let tensor = |x: &Attr| if let Attr::Tensor(t) = x { Some(t.clone()) } else { None };
    a.iter().zip(b.iter()).all(|((_, x), (_, y))| match (tensor(x), tensor(y)) {
        (Some(x), Some(y)) => same_tensor(&x, &y),
        _ => true,
    })
}

fn same_tensor(a: &Tensor, b: &Tensor) -> bool {
    match (a.bytes(), b.bytes()) {
        (Some(x), Some(y)) => x.same(y) || (x.len() <= SMALL && **x == **y),
        _ => a == b,
    }
}
