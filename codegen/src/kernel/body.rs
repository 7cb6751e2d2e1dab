//! The scalar program of a kernel: the loads, computations, reductions and stores at each point of its space.

use of_ir::{DType, ValueId};
use of_ops::division::divides_integers;
use of_ops::scalar::ScalarOp;

use crate::kernel::extent::Extent;
use crate::kernel::float::is_half;

/// A value read from memory at each point of the space.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// The value that is read.
    pub value: ValueId,
    /// Element type.
    pub dtype: DType,
    /// Strides in elements along each axis of the space; 0 along broadcast axes.
    pub strides: Vec<Extent>,
}

/// How values combine along a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum ReduceKind {
    Sum,
    Max,
    Min,
    Prod,
}

/// One computation.
#[derive(Clone, PartialEq, Debug)]
pub enum Node {
    /// Load number `.0`.
    Load(usize),
    /// A constant.
    Const(f64),
    /// The result of the group's anchor.
    Anchor,
    /// A scalar function of earlier nodes.
    Op(ScalarOp, Vec<usize>),
    /// A reduction of an earlier node over the inner axes.
    Reduce(ReduceKind, usize),
}

/// A node and its type.
#[derive(Clone, PartialEq, Debug)]
pub struct TypedNode {
    /// The computation.
    pub node: Node,
    /// Element type of its value.
    pub dtype: DType,
    /// Whether it has one value a row (a reduction, or a function of such values) instead of one a point.
    pub per_row: bool,
}

/// The program of a group.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Body {
    /// Reads.
    pub loads: Vec<Load>,
    /// Computations; operands come before their users.
    pub nodes: Vec<TypedNode>,
    /// Stores: a value of the graph and the node that computes it.
    pub stores: Vec<(ValueId, usize)>,
    /// Whether every operation is rounded on its own, because results are rounded to integers or compared afterwards: products
    /// and sums are not fused.
    pub unfused: bool,
}

impl Body {
    /// Whether a sum that reads node `n` must not be fused with it: a product, or its negation.
    pub fn keeps_product(&self, n: usize) -> bool {
        match &self.nodes[n].node {
            Node::Op(ScalarOp::Mul, _) => self.unfused,
            Node::Op(ScalarOp::Neg, args) => self.keeps_product(args[0]),
            _ => false,
        }
    }

    /// Adds a node and returns its index.
    pub fn push(&mut self, node: Node, dtype: DType, per_row: bool) -> usize {
        self.nodes.push(TypedNode { node, dtype, per_row });
        self.nodes.len() - 1
    }

    /// Adds a function of earlier nodes with result type `dtype`, and returns its index. Functions of 16-bit floats are computed
    /// in f32 and then rounded; for the basic operations that is the correctly rounded result.
    pub fn op(&mut self, op: ScalarOp, args: &[usize], dtype: DType, per_row: bool) -> usize {
        if matches!(op, ScalarOp::Cast(_)) {
            return self.push(Node::Op(op, args.to_vec()), dtype, per_row);
        }
        let args = args.iter().map(|a| self.wide(*a)).collect();
        if !is_half(dtype) {
            return self.push(Node::Op(op, args), dtype, per_row);
        }
        let exact = self.push(Node::Op(op, args), DType::F32, per_row);
        self.push(Node::Op(ScalarOp::Cast(dtype), vec![exact]), dtype, per_row)
    }

    /// Adds a division of integers whose quotients by zero are 0, and returns its index.
    pub fn guarded_division(&mut self, op: ScalarOp, [x, y]: [usize; 2], dtype: DType, per_row: bool) -> usize {
        let [zero, one] = [0.0, 1.0].map(|c| self.push(Node::Const(c), dtype, per_row));
        let by_zero = self.op(ScalarOp::Eq, &[y, zero], DType::Bool, per_row);
        let divisor = self.op(ScalarOp::Select, &[by_zero, one, y], dtype, per_row);
        let quotient = self.op(op, &[x, divisor], dtype, per_row);
        self.op(ScalarOp::Select, &[by_zero, zero, quotient], dtype, per_row)
    }

    /// Whether it divides integers by anything but known numbers.
    pub fn divides_integers(&self) -> bool {
        self.nodes.iter().any(|t| self.divisor(&t.node).is_some())
    }

    /// The divisor of a division of integers, unless it is a number other than 0.
    pub fn divisor(&self, node: &Node) -> Option<usize> {
        let Node::Op(op, args) = node else { return None };
        let by = *args.get(1).filter(|by| divides_integers(*op, self.nodes[**by].dtype))?;
        (!matches!(self.nodes[by].node, Node::Const(c) if c != 0.0)).then_some(by)
    }

    /// Node `n`, converted to f32 if it is a 16-bit float.
    fn wide(&mut self, n: usize) -> usize {
        let TypedNode { node, dtype, per_row } = self.nodes[n].clone();
        match node {
            _ if !is_half(dtype) => n,
            Node::Const(_) => self.push(node, DType::F32, per_row),
            _ => self.push(Node::Op(ScalarOp::Cast(DType::F32), vec![n]), DType::F32, per_row),
        }
    }
}
