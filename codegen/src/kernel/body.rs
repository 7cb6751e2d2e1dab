//! The scalar program of a kernel: what is loaded, computed, reduced and stored for each point of its space.

use of_ir::{DType, ValueId};
use of_ops::scalar::ScalarOp;

use crate::kernel::expr::is_half;
use crate::kernel::extent::Extent;

/// A value read from memory at each point of the space.
#[derive(Clone, PartialEq, Debug)]
pub struct Load {
    /// Which value.
    pub value: ValueId,
    /// Element type.
    pub dtype: DType,
    /// Elements to step along each axis of the space; 0 along axes that it is broadcast over.
    pub strides: Vec<Extent>,
}

/// How values combine along a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub enum Reduce {
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
    /// The same number everywhere.
    Const(f64),
    /// The result of the group's anchor.
    Anchor,
    /// A scalar function of earlier nodes.
    Op(ScalarOp, Vec<usize>),
    /// A reduction of an earlier node over the inner axes.
    Reduce(Reduce, usize),
}

/// A node with what is known of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Typed {
    /// The computation.
    pub node: Node,
    /// Element type of its value.
    pub dtype: DType,
    /// Whether it has one value a row (a reduction, or a function of such) rather than one a point.
    pub per_row: bool,
}

/// The program of a group.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Body {
    /// Reads.
    pub loads: Vec<Load>,
    /// Computations; operands come before their users.
    pub nodes: Vec<Typed>,
    /// What is stored: a value of the graph and the node that computes it.
    pub stores: Vec<(ValueId, usize)>,
}

impl Body {
    /// Adds a node and gives its number.
    pub fn push(&mut self, node: Node, dtype: DType, per_row: bool) -> usize {
        self.nodes.push(Typed { node, dtype, per_row });
        self.nodes.len() - 1
    }

    /// Adds a function of earlier nodes whose result is of type `dtype`, and gives the number of that. What is computed of
    /// 16-bit floats is computed in f32 and then rounded, which for the basic operations is the rounded exact result.
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

    /// Node `n`, as f32 where it is a 16-bit float.
    fn wide(&mut self, n: usize) -> usize {
        let Typed { node, dtype, per_row } = self.nodes[n].clone();
        match node {
            _ if !is_half(dtype) => n,
            Node::Const(_) => self.push(node, DType::F32, per_row),
            _ => self.push(Node::Op(ScalarOp::Cast(DType::F32), vec![n]), DType::F32, per_row),
        }
    }
}
