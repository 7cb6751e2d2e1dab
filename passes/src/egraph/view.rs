//! The view that rules have of the e-graph, and the equations they return: a class equals a term.

use std::collections::{HashMap, HashSet};

use egg::Id;
use of_diag::Location;
use of_ir::{Attrs, DType, NewOp, OpDef, Tensor, Type};
use of_ops::OpSpec;
use of_ops::exactness::is_bitwise;
use of_ops::maps::is_elementwise;
use of_ops::structural::Constant;

use super::graph::{EGraph, parts};
use super::language::Node;

/// A term over classes: the right side of an equation.
#[derive(Clone)]
pub enum Term {
    /// An existing class.
    Class(Id),
    /// The first result of an op.
    Op(&'static dyn OpDef, Attrs, Vec<Term>),
}

impl From<Id> for Term {
    fn from(id: Id) -> Term {
        Term::Class(id)
    }
}

impl Term {
    /// An op on terms.
    pub fn op(op: impl NewOp, operands: impl IntoIterator<Item = Term>) -> Term {
        let (def, attrs) = parts(op);
        Term::Op(def, attrs, operands.into_iter().collect())
    }

    /// The value of a constant class.
    pub fn constant(value: Tensor) -> Term {
        Term::op(Constant { value }, [])
    }

    /// The integers of a constant.
    pub fn ints(list: &[i64]) -> Term {
        Term::constant(Tensor::from_i64s(list))
    }
}

/// `class = term`, found at some e-nodes.
pub struct Equation {
    /// The left side.
    pub class: Id,
    /// The right side.
    pub term: Term,
    /// Locations of the left side.
    pub from: Vec<Location>,
}

/// An e-node of the op `T` with its class.
pub struct NodeMatch<'a, T> {
    /// Its attributes.
    pub op: T,
    /// The e-node.
    pub node: &'a Node,
    /// Its class.
    pub class: Id,
}

impl<T> NodeMatch<'_, T> {
    /// The class of operand `i`.
    pub fn operand(&self, i: usize) -> Id {
        self.node.children[i]
    }
}

/// A read-only view of the e-graph between two rounds.
pub struct View<'a> {
    /// The e-graph.
    pub graph: &'a EGraph,
    /// Classes in order.
    classes: Vec<Id>,
    /// For each op the classes with such an e-node, in order, and the position of the e-node.
    by_op: HashMap<&'static str, Vec<(Id, usize)>>,
    /// For each class the e-nodes that read it: class, position, operand.
    users: HashMap<Id, Vec<(Id, usize, usize)>>,
}

impl<'a> View<'a> {
    /// A view of a rebuilt e-graph.
    pub fn new(graph: &'a EGraph) -> View<'a> {
        let mut classes: Vec<Id> = graph.egg.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        let mut by_op: HashMap<&'static str, Vec<(Id, usize)>> = HashMap::new();
        let mut users: HashMap<Id, Vec<(Id, usize, usize)>> = HashMap::new();
        for id in &classes {
            for (i, node) in graph.egg[*id].nodes.iter().enumerate() {
                if let Some((def, _)) = graph.op_and_attrs(node) {
                    by_op.entry(def.name()).or_default().push((*id, i));
                    for (k, child) in node.children.iter().enumerate() {
                        users.entry(graph.egg.find(*child)).or_default().push((*id, i, k));
                    }
                }
            }
        }
        View { graph, classes, by_op, users }
    }

    /// Every class.
    pub fn classes(&self) -> &[Id] {
        &self.classes
    }

    fn found<T: OpSpec>(&self, class: Id, i: usize) -> Option<NodeMatch<'a, T>> {
        let node = &self.graph.egg[class].nodes[i];
        Some(NodeMatch { op: self.graph.as_op::<T>(node)?, node, class })
    }

    /// Every e-node of the op `T`.
    pub fn all<T: OpSpec>(&self) -> Vec<NodeMatch<'a, T>> {
        let list = self.by_op.get(T::NAME).map_or(&[][..], Vec::as_slice);
        list.iter().filter_map(|(class, i)| self.found(*class, *i)).collect()
    }

    /// The e-nodes of the op `T` in one class.
    pub fn in_class<T: OpSpec>(&self, class: Id) -> Vec<NodeMatch<'a, T>> {
        let class = self.graph.egg.find(class);
        (0..self.graph.egg[class].nodes.len()).filter_map(|i| self.found(class, i)).collect()
    }

    /// The e-nodes of the op `T` that read a class as operand `operand`.
    pub fn users<T: OpSpec>(&self, class: Id, operand: usize) -> Vec<NodeMatch<'a, T>> {
        let list = self.users.get(&self.graph.egg.find(class)).map_or(&[][..], Vec::as_slice);
        list.iter().filter(|(_, _, k)| *k == operand).filter_map(|(c, i, _)| self.found(*c, *i)).collect()
    }

    /// The classes that hold an e-node of the op called `name`, with that e-node.
    pub fn named(&self, name: &str) -> impl Iterator<Item = (Id, &'a Node)> {
        let list = self.by_op.get(name).map_or(&[][..], Vec::as_slice);
        list.iter().map(|(class, i)| (*class, &self.graph.egg[*class].nodes[*i]))
    }

    /// The e-nodes of a class.
    pub fn nodes(&self, class: Id) -> &'a [Node] {
        &self.graph.egg[class].nodes
    }

    /// Every elementwise e-node, with its class.
    pub fn maps(&self) -> Vec<(Id, &'a Node)> {
        let nodes = self.classes.iter().flat_map(|c| self.graph.egg[*c].nodes.iter().map(move |n| (*c, n)));
        nodes.filter(|(_, n)| self.is_elementwise(n)).collect()
    }

    /// Whether an e-node is elementwise.
    pub fn is_elementwise(&self, node: &Node) -> bool {
        self.graph.op_and_attrs(node).is_some_and(|(def, _)| is_elementwise(def.name())) && !node.children.is_empty()
    }

    /// Whether two ids are the same class.
    pub fn same(&self, a: Id, b: Id) -> bool {
        self.graph.egg.find(a) == self.graph.egg.find(b)
    }

    /// The classes that must keep every bit: the given ones, and what they read through ops whose results are defined to the
    /// last bit.
    pub fn rounded(&self, given: &HashSet<Id>) -> HashSet<Id> {
        let mut found = HashSet::new();
        let mut open: Vec<Id> = given.iter().map(|id| self.graph.egg.find(*id)).collect();
        while let Some(class) = open.pop() {
            if found.insert(class) {
                let bitwise = |n: &&Node| self.graph.op_and_attrs(n).is_some_and(|(def, _)| is_bitwise(def.name()));
                let read = self.nodes(class).iter().filter(bitwise).flat_map(|n| &n.children);
                open.extend(read.map(|c| self.graph.egg.find(*c)));
            }
        }
        found
    }

    /// Fixed dimensions of a class.
    pub fn dims(&self, class: Id) -> Option<Vec<usize>> {
        match self.graph.ty(class) {
            Type::Tensor(t) => t.fixed_dims(),
            _ => None,
        }
    }

    /// The element type of a class.
    pub fn dtype(&self, class: Id) -> Option<DType> {
        self.graph.ty(class).as_tensor().map(|t| t.dtype)
    }

    /// The value of a class that is a constant.
    pub fn constant(&self, class: Id) -> Option<Tensor> {
        self.graph.scratch().constant(self.graph.value(class)?)
    }

    /// A constant's integers.
    pub fn ints(&self, class: Id) -> Option<Vec<i64>> {
        self.constant(class)?.to_i64s()
    }

    /// The value of a small splat constant.
    pub fn splat(&self, class: Id) -> Option<f64> {
        crate::matchers::splat(self.graph.scratch(), self.graph.value(class)?)
    }

    /// Whether a class depends only on constants.
    pub fn known(&self, class: Id) -> bool {
        self.graph.egg[class].data.known
    }

    /// Whether an optional operand is absent.
    pub fn left_out(&self, class: Id) -> bool {
        self.graph.ty(class) == Type::None
    }

    /// The equation `class = term`, with the locations of these e-nodes.
    pub fn equation(&self, class: Id, term: Term, from: &[&Node]) -> Equation {
        Equation { class, term, from: from.iter().map(|n| self.graph.location(n)).collect() }
    }
}
