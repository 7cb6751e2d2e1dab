//! One node as importers see it.

use of_ir::{Tensor, Type, ValueId};

use super::Importer;
use super::attribute::Attributes;
use super::report::ImportError;

/// A node whose inputs are values. Importers change it into the form of the newest operator set.
#[derive(Clone, Debug)]
pub(crate) struct Node<'m> {
    /// The operator.
    pub op: &'m str,
    /// The domain; empty for ai.onnx.
    pub domain: &'m str,
    /// Version of the operator set that the node is written in.
    pub version: i64,
    /// Inputs; `None` for one that is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Attributes.
    pub attrs: Attributes<'m>,
    /// For every output whether it is used.
    pub outputs: Vec<bool>,
}

impl Node<'_> {
    /// Input `i`.
    pub fn input(&self, i: usize) -> Result<ValueId, ImportError> {
        self.opt_input(i).ok_or_else(|| ImportError::invalid(format!("{}: input {i} is missing", self.op)))
    }

    /// Input `i`, unless left out.
    pub fn opt_input(&self, i: usize) -> Option<ValueId> {
        self.inputs.get(i).copied().flatten()
    }

    /// Sets input `i`, leaving out those before it that are not there.
    pub fn set_input(&mut self, i: usize, value: Option<ValueId>) {
        if self.inputs.len() <= i {
            self.inputs.resize(i + 1, None);
        }
        self.inputs[i] = value;
    }

    /// Whether output `i` is used.
    pub fn uses_output(&self, i: usize) -> bool {
        self.outputs.get(i).copied().unwrap_or(false)
    }
}

/// The results of a node, one per output.
pub(crate) type ImportResult = Result<Vec<ValueId>, ImportError>;

/// Facts and small ops that several importers need.
impl Importer<'_, '_> {
    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &Type {
        self.rw.graph().ty(value)
    }

    /// The tensor type of a value.
    pub fn tensor_ty(&self, value: ValueId) -> Result<&of_ir::TensorType, ImportError> {
        match self.ty(value) {
            Type::Tensor(t) => Ok(t),
            other => Err(ImportError::invalid(format!("a tensor is expected, the value is {other}"))),
        }
    }

    /// The number of axes of a value, which a rewriting of an old form must know.
    pub fn rank(&self, value: ValueId) -> Result<usize, ImportError> {
        self.tensor_ty(value)?.rank().ok_or_else(|| ImportError::unsupported("the rank of its operand is not known"))
    }

    /// The value of a constant operand.
    pub fn known(&self, value: ValueId) -> Option<Tensor> {
        self.rw.graph().constant(value)
    }

    /// A constant.
    pub fn constant(&mut self, value: Tensor) -> Result<ValueId, ImportError> {
        Ok(self.rw.create_one(of_ops::structural::Constant { value }, &[])?)
    }

    /// A constant of its own with the value of an initializer; `None` for other values.
    pub fn copy_of_initializer(&mut self, v: ValueId) -> Result<Option<ValueId>, ImportError> {
        let graph = self.rw.graph();
        let Some(op) = graph.def_op(v) else { return Ok(None) };
        let loc = graph.op(op).loc.clone();
        let is_initializer = matches!(&loc, of_diag::Location::Onnx { op, .. } if &**op == "Initializer");
        let Some(of_ops::structural::Constant { value }) = of_ops::list::as_op(graph, op).filter(|_| is_initializer)
        else {
            return Ok(None);
        };
        self.rw.set_location(loc);
        let copy = self.constant(value);
        self.rw.set_location(self.location.clone());
        copy.map(Some)
    }

    /// A constant of integers, for shapes and axes.
    pub fn ints(&mut self, values: &[i64]) -> Result<ValueId, ImportError> {
        self.constant(Tensor::from_i64s(values))
    }

    /// The seed of the next random op without a seed attribute: 0, 1 and so on.
    pub fn next_seed(&mut self) -> i64 {
        self.unseeded += 1;
        self.unseeded - 1
    }

    /// A number of rank 0 in the element type of `like`.
    pub fn number(&mut self, value: f64, like: ValueId) -> Result<ValueId, ImportError> {
        let dtype = self.tensor_ty(like)?.dtype;
        let t = Tensor::from_elements(dtype, vec![], of_ir::Elements::Float(vec![value]));
        let t = t.map_err(|e| ImportError::invalid(e.to_string()))?;
        self.constant(t)
    }
}
