//! Fused scalar math: a graph of scalar functions from inputs to outputs.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::error::{ScheduleError, supported};
use crate::kernel::{Builder, Expr, Lit, Ty, Var};

/// A node of a [`Dag`].
#[derive(Clone, PartialEq, Debug)]
pub enum Node {
    /// The input at this position, of this type.
    Input(usize, DType),
    /// A number.
    Const(DType, Lit),
    /// A function of earlier nodes.
    Op(ScalarOp, Vec<usize>),
}

/// Scalar functions of inputs. Nodes refer to earlier nodes by position.
///
/// 16-bit floats are computed in f32 and rounded where they are stored or cast to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Dag {
    nodes: Vec<Node>,
    outputs: Vec<usize>,
}

impl Dag {
    /// A graph without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The graph whose output is its input.
    pub fn identity(dtype: DType) -> Self {
        Self { nodes: vec![Node::Input(0, dtype)], outputs: vec![0] }
    }

    fn push(&mut self, node: Node) -> usize {
        // Equal nodes are one, so that a fused graph computes nothing twice.
        if let Some(at) = self.nodes.iter().position(|n| *n == node) {
            return at;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// The input at position `i`.
    pub fn input(&mut self, i: usize, dtype: DType) -> usize {
        self.push(Node::Input(i, dtype))
    }

    /// A number.
    pub fn constant(&mut self, dtype: DType, value: Lit) -> usize {
        self.push(Node::Const(dtype, value))
    }

    /// A function of earlier nodes.
    pub fn op(&mut self, op: ScalarOp, args: &[usize]) -> usize {
        self.push(Node::Op(op, args.to_vec()))
    }

    /// Makes a node the next output.
    pub fn output(&mut self, node: usize) {
        self.outputs.push(node);
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes that are outputs.
    pub fn outputs(&self) -> &[usize] {
        &self.outputs
    }

    /// Number of functions, for cost models.
    pub fn flops(&self) -> u64 {
        self.nodes.iter().filter(|n| matches!(n, Node::Op(..))).count() as u64
    }

    /// Element types of all nodes.
    ///
    /// # Errors
    /// If nodes do not refer to earlier ones, operands are missing or of unlike types, or a type is not supported.
    pub fn types(&self) -> Result<Vec<DType>, ScheduleError> {
        let mut types: Vec<DType> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let ty = match node {
                Node::Input(_, d) | Node::Const(d, _) => *d,
                Node::Op(op, args) => {
                    if args.len() != op.arity() || args.iter().any(|a| *a >= types.len()) {
                        return Err(ScheduleError::spec(format!("{op:?} has wrong operands {args:?}")));
                    }
                    let of = types[args[usize::from(*op == ScalarOp::Select)]];
                    let first = usize::from(*op == ScalarOp::Select);
                    if args[first..].iter().any(|a| types[*a] != of) {
                        return Err(ScheduleError::spec(format!("{op:?} has operands of unlike types")));
                    }
                    if *op == ScalarOp::Select && types[args[0]] != DType::Bool {
                        return Err(ScheduleError::spec("Select has a condition that is not bool"));
                    }
                    op.result_type(of)
                }
            };
            supported(ty)?;
            types.push(ty);
        }
        if self.outputs.iter().any(|o| *o >= types.len()) {
            return Err(ScheduleError::spec("an output is no node"));
        }
        Ok(types)
    }

    /// Types of the outputs.
    ///
    /// # Errors
    /// As [`Dag::types`].
    pub fn output_types(&self) -> Result<Vec<DType>, ScheduleError> {
        let types = self.types()?;
        Ok(self.outputs.iter().map(|o| types[*o]).collect())
    }

    /// Number of inputs: one more than the largest position.
    pub fn inputs(&self) -> usize {
        self.nodes.iter().map(|n| if let Node::Input(i, _) = n { i + 1 } else { 0 }).max().unwrap_or(0)
    }

    /// Checks types, and that the inputs have the given ones.
    ///
    /// # Errors
    /// As [`Dag::types`], and for inputs that are not there or have another type.
    pub fn check(&self, inputs: &[DType]) -> Result<Vec<DType>, ScheduleError> {
        for node in &self.nodes {
            if let Node::Input(i, d) = node
                && inputs.get(*i) != Some(d)
            {
                return Err(ScheduleError::spec(format!("input {i} is {:?} and is used as {d}", inputs.get(*i))));
            }
        }
        self.types()
    }

    /// Emits the graph for `lanes` lanes. `input(i)` is called once for each input that is used and gives its value in
    /// its [`compute`] type; the outputs come in their compute types.
    pub(super) fn emit(&self, b: &mut Builder, lanes: usize, input: &mut dyn FnMut(&mut Builder, usize) -> Expr) -> Vec<Expr> {
        let mut used = vec![0usize; self.nodes.len()];
        for o in &self.outputs {
            used[*o] += 1;
        }
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if let Node::Op(_, args) = node
                && used[i] > 0
            {
                args.iter().for_each(|a| used[*a] += 1);
            }
        }
        let types = self.types().unwrap_or_default();
        let mut values: Vec<Option<Expr>> = Vec::with_capacity(self.nodes.len());
        for (i, node) in self.nodes.iter().enumerate() {
            if used[i] == 0 || i >= types.len() {
                values.push(None);
                continue;
            }
            let ty = Ty::new(compute(types[i]), lanes);
            let value = match node {
                Node::Input(at, _) => input(b, *at),
                Node::Const(_, lit) => Expr::Const(ty, *lit),
                Node::Op(op, args) => {
                    let args: Vec<Expr> = args.iter().filter_map(|a| values[*a].clone()).collect();
                    let source = if let Node::Op(_, a) = node { types[a[0]] } else { ty.elem };
                    function(b, *op, args, source)
                }
            };
            // Functions used more than once, and all but trivial ones, are named: C text stays linear in the graph.
            let value = match (node, &value) {
                (Node::Const(..), _) | (_, Expr::Var(_)) => value,
                _ => Expr::Var(b.let_(value)),
            };
            values.push(Some(value));
        }
        self.outputs.iter().filter_map(|o| values[*o].clone()).collect()
    }
}

/// The type in which values of a type are computed.
pub(super) const fn compute(d: DType) -> DType {
    match d {
        DType::F16 | DType::BF16 => DType::F32,
        d => d,
    }
}

/// A function on compute types; `source` is the first operand's own type.
fn function(b: &mut Builder, op: ScalarOp, mut args: Vec<Expr>, source: DType) -> Expr {
    match (op, args.as_slice()) {
        (ScalarOp::Cast(to), [a]) => {
            if compute(to) != to {
                // A cast to a 16-bit float rounds.
                let x = a.clone();
                let narrow = if to == source { x.clone() } else { Expr::op1(ScalarOp::Cast(to), x) };
                return if to == source { narrow } else { Expr::op1(ScalarOp::Cast(compute(to)), narrow) };
            }
            if to == compute(source) { a.clone() } else { Expr::op1(op, a.clone()) }
        }
        // Small whole powers are products.
        (ScalarOp::Pow, [a, Expr::Const(ty, lit)]) if ty.elem.is_float() && (lit.as_f64() == 2.0 || lit.as_f64() == 3.0) => {
            let a: Var = b.let_(a.clone());
            let square = Expr::op2(ScalarOp::Mul, a, a);
            if lit.as_f64() == 2.0 { square } else { Expr::op2(ScalarOp::Mul, square, a) }
        }
        // A division by a power of two is a product, exactly.
        (ScalarOp::Div, [a, Expr::Const(ty, lit)]) if ty.elem == DType::F32 && exact_inverse(lit.as_f64()) => {
            Expr::op2(ScalarOp::Mul, a.clone(), Expr::float(*ty, 1.0 / lit.as_f64()))
        }
        _ => Expr::Op(op, std::mem::take(&mut args)),
    }
}

/// Whether multiplying by the inverse is dividing: powers of two of moderate size.
fn exact_inverse(x: f64) -> bool {
    let e = x.abs().log2();
    x != 0.0 && e.fract() == 0.0 && e.abs() < 100.0
}
