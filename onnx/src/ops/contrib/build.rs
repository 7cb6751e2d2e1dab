//! Builder helpers for the importers of this folder.

use of_ir::{Attr, DType, ValueId};

use crate::import::{Attributes, Fault, Importer, NEWEST_OPSET, Node, Values};
use crate::ops::compose;

/// A value, or why there is none.
pub(super) type Made = Result<ValueId, Fault>;

impl Importer<'_, '_> {
    /// An operator of ai.onnx with one output and no attributes.
    pub(super) fn op(&mut self, op: &str, inputs: &[ValueId]) -> Made {
        self.op_with(op, inputs, [])
    }

    /// An operator of ai.onnx with one output.
    pub(super) fn op_with(
        &mut self,
        op: &str,
        inputs: &[ValueId],
        attrs: impl IntoIterator<Item = (&'static str, Attr)>,
    ) -> Made {
        let inputs: Vec<Option<ValueId>> = inputs.iter().copied().map(Some).collect();
        self.emit_one(op, &inputs, attrs)
    }

    /// An operator of ai.onnx with as many outputs as said.
    pub(super) fn op_many(
        &mut self,
        op: &str,
        inputs: Vec<Option<ValueId>>,
        attrs: impl IntoIterator<Item = (&'static str, Attr)>,
        outputs: usize,
    ) -> Values {
        let mut all = Attributes::default();
        for (name, value) in attrs {
            all.set(name, value);
        }
        let outputs = vec![true; outputs];
        self.emit(Node { op, domain: "", version: NEWEST_OPSET, inputs, attrs: all, outputs })
    }

    /// Reshapes; 0 copies a dimension, -1 is what is left.
    pub(super) fn reshape(&mut self, x: ValueId, dims: &[i64]) -> Made {
        let dims = self.ints(dims)?;
        self.op("Reshape", &[x, dims])
    }

    /// Permutes axes.
    pub(super) fn transpose(&mut self, x: ValueId, perm: &[i64]) -> Made {
        self.op_with("Transpose", &[x], [("perm", Attr::Ints(perm.to_vec()))])
    }

    /// New axes of length 1.
    pub(super) fn unsqueeze(&mut self, x: ValueId, axes: &[i64]) -> Made {
        let axes = self.ints(axes)?;
        self.op("Unsqueeze", &[x, axes])
    }

    /// Joins along an axis.
    pub(super) fn concat(&mut self, parts: &[ValueId], axis: i64) -> Made {
        self.op_with("Concat", parts, [("axis", Attr::Int(axis))])
    }

    /// Elements `from..to` of an axis.
    pub(super) fn slice(&mut self, x: ValueId, axis: i64, from: i64, to: i64) -> Made {
        let (from, to, axis) = (self.ints(&[from])?, self.ints(&[to])?, self.ints(&[axis])?);
        self.op("Slice", &[x, from, to, axis])
    }

    /// The slice of an axis at `index`, without that axis.
    pub(super) fn pick(&mut self, x: ValueId, axis: i64, index: i64) -> Made {
        let index = self.constant(of_ir::Tensor::scalar(index))?;
        self.op_with("Gather", &[x, index], [("axis", Attr::Int(axis))])
    }

    /// Dimension `axis`, of rank 1.
    pub(super) fn dim(&mut self, x: ValueId, axis: i64) -> Made {
        let end = if axis == -1 { vec![] } else { vec![("end", Attr::Int(axis + 1))] };
        self.op_with("Shape", &[x], [("start", Attr::Int(axis))].into_iter().chain(end))
    }

    /// `0, 1, …` before `n`, which is of rank 1, in i64.
    pub(super) fn counting(&mut self, n: ValueId) -> Made {
        let n = self.reshape(n, &[])?;
        let (zero, one) = (self.constant(of_ir::Tensor::scalar(0i64))?, self.constant(of_ir::Tensor::scalar(1i64))?);
        self.op("Range", &[zero, n, one])
    }

    /// Another element type.
    pub(super) fn cast(&mut self, x: ValueId, to: DType) -> Made {
        if self.tensor_ty(x)?.dtype == to { Ok(x) } else { self.op_with("Cast", &[x], [("to", Attr::DType(to))]) }
    }

    /// The sum of those that are there.
    pub(super) fn sum(&mut self, first: ValueId, others: &[Option<ValueId>]) -> Made {
        let mut sum = first;
        for x in others.iter().flatten() {
            sum = self.op("Add", &[sum, *x])?;
        }
        Ok(sum)
    }

    /// Product with a number.
    pub(super) fn times(&mut self, x: ValueId, factor: f64) -> Made {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.number(factor, x)?;
        self.op("Mul", &[x, factor])
    }

    /// Dimension `axis` as a number, where it is known.
    pub(super) fn known_dim(&self, x: ValueId, axis: i64) -> Option<i64> {
        let shape = self.tensor_ty(x).ok()?.shape.as_ref()?;
        shape.get(of_ops::shape::axis(axis, shape.len()).ok()?)?.as_const()
    }

    /// Dimension `axis` as a number, which the reading of `what` needs.
    pub(super) fn need_dim(&self, x: ValueId, axis: i64, what: &str) -> Result<i64, Fault> {
        self.known_dim(x, axis).ok_or_else(|| Fault::unsupported(format!("dimension {axis} of {what} must be known")))
    }
}

impl Node<'_> {
    /// Attributes that nothing has taken are not known.
    pub(super) fn done(&self) -> Result<(), Fault> {
        compose::nothing_left(self)
    }

    /// An attribute that must be there.
    pub(super) fn need<T: of_ir::AttrValue>(&mut self, name: &str) -> Result<T, Fault> {
        self.attrs.take(name)?.ok_or_else(|| Fault::invalid(format!("attribute '{name}' is missing")))
    }

    /// Refuses inputs that are there, for the reason given.
    pub(super) fn without_inputs(&self, inputs: &[usize], reason: &str) -> Result<(), Fault> {
        if inputs.iter().any(|i| self.opt_input(*i).is_some()) { Err(Fault::unsupported(reason)) } else { Ok(()) }
    }

    /// Refuses outputs that are used, for the reason given.
    pub(super) fn without_outputs(&self, outputs: &[usize], reason: &str) -> Result<(), Fault> {
        if outputs.iter().any(|i| self.uses_output(*i)) { Err(Fault::unsupported(reason)) } else { Ok(()) }
    }

    /// Refuses a flag that is set, for the reason given.
    pub(super) fn without_flag(&mut self, name: &str, reason: &str) -> Result<(), Fault> {
        if self.attrs.take_flag(name)? == Some(true) { Err(Fault::unsupported(reason)) } else { Ok(()) }
    }
}
