//! `of.constant_of_shape`.

use of_diag::Location;
use of_ir::{DType, Dim, OpError, OpView, Rewriter, Sbp, SbpSignature, Tensor, TensorType, ValueId};

use super::{Expand, MAX_AXES, shape_operand_result, split};
use crate::sample::Rng;
use crate::structural::Constant;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// A tensor of the dimensions given whose elements are all `value`, a tensor of one element; f32 0 without it.
    pub struct ConstantOfShape = "of.constant_of_shape" [Composite, onnx: "ConstantOfShape"] {
        operands: (shape),
        results: (y),
        attrs: { value: Option<Tensor> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims: Vec<i64> = (0..r.int(0, 3)).map(|_| r.int(0, 4)).collect();
        let value = if r.int(0, 1) == 0 { None } else { Some(r.tensor(DType::I32, &[1], -9.0, 9.0)) };
        Some((vec![Tensor::from_i64s(&dims).into()], ConstantOfShape { value }))
    };
}

impl ConstantOfShape {
    fn scalar(&self) -> Result<Tensor, OpError> {
        match &self.value {
            Some(v) if v.len() == 1 => Ok(v.reshaped(Vec::new())?),
            Some(v) => Err(OpError::attr(format!("value must have one element, it has {}", v.len()))),
            None => Ok(Tensor::scalar(0f32)),
        }
    }
}

impl Op for ConstantOfShape {
    op_basics!(ConstantOfShape);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        shape_operand_result(cx, self.scalar()?.dtype())
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        let n = match cx.dims(0)?.as_slice() {
            [] => 1,
            [n] => usize::try_from(n.as_const()?).ok().filter(|n| *n <= MAX_AXES)?,
            _ => return None,
        };
        let value = self.scalar().ok()?.to_i64s()?.first().copied()?;
        Some(vec![value.into(); n])
    }

    fn shape_operand(&self) -> Option<usize> {
        Some(0)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let value = self.scalar().map_err(|e| e.at("of.constant_of_shape", &Location::Unknown))?;
        let value = rw.create_one(Constant { value }, &[])?;
        Ok(vec![rw.create_one(Expand {}, &[value, operands[0]])?])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let rank = cx.tensor(0).ok().and_then(TensorType::fixed_dims).and_then(|d| d.first().copied()).unwrap_or(0);
        (0..rank).filter_map(split).map(|s| SbpSignature::new(&[Sbp::Broadcast], &[s])).collect()
    }
}
