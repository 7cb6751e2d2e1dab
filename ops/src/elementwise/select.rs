//! `of.select`.

use of_diag::Diagnostic;
use of_ir::{DType, Dim, OpError, OpView, Sbp, SbpSignature, TensorType, Type, ValueId};

use crate::sample::Rng;
use crate::scalar::ScalarOp;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, scalar_eval, shape};

op! {
    /// `a` where the condition holds, else `b`; all three broadcast.
    pub struct Select = "of.select" [Primitive, onnx: "Where"] {
        operands: (condition, a, b),
        results: (c),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        let c = r.tensor(DType::Bool, &dims[1..], 0.0, 1.0);
        Some((vec![c.into(), r.f32s(&dims), r.f32s(&[1])], Select {}))
    };
}

impl Op for Select {
    op_basics!(Select);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (c, a, b) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
        if c.dtype != DType::Bool {
            return Err(OpError::ty(format!("the condition must be bool, it is {}", c.dtype)));
        }
        if a.dtype != b.dtype {
            return Err(OpError::ty(format!("the choices have different element types {} and {}", a.dtype, b.dtype)));
        }
        let shape = match (&c.shape, &a.shape, &b.shape) {
            (Some(x), Some(y), Some(z)) => Some(shape::broadcast(&[x, y, z])?),
            _ => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: a.dtype, shape, sbp: None })])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        let (c, a, b) = (cx.dims(0)?, cx.dims(1)?, cx.dims(2)?);
        let n = c.len().max(a.len()).max(b.len());
        if [&c, &a, &b].iter().any(|v| v.len() != n && v.len() != 1) {
            return None;
        }
        let at = |v: &[Dim], i: usize| v[i.min(v.len() - 1)].clone();
        (0..n).map(|i| Some(if at(&c, i).as_const()? == 0 { at(&b, i) } else { at(&a, i) })).collect()
    }

    fn scalar(&self) -> Option<ScalarOp> {
        Some(ScalarOp::Select)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (c, a, b) = (inputs.tensor(0)?, inputs.tensor(1)?, inputs.tensor(2)?);
        let dims = super::binary::broadcast_dims(&[c.dims(), a.dims(), b.dims()])?;
        Ok(vec![scalar_eval::broadcast(ScalarOp::Select, &[c, a, b], &dims)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let (Ok(c), Ok(a), Ok(b)) = (cx.tensor(0), cx.tensor(1), cx.tensor(2)) else { return Vec::new() };
        let (Some(c), Some(a), Some(b)) = (&c.shape, &a.shape, &b.shape) else { return Vec::new() };
        let Ok(result) = shape::broadcast(&[c, a, b]) else { return Vec::new() };
        let mut out = shape::elementwise_splits(&[c, a, b], &result);
        // Choosing is linear in the choices.
        out.extend(of_ir::PartialKind::ALL.map(|k| {
            let p = Sbp::Partial(k);
            SbpSignature::new(&[Sbp::Broadcast, p, p], &[p])
        }));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let zero = cx.scalar(0.0, g)?;
            let a = cx.rw.create_one(Select {}, &[cx.operands[0], g, zero])?;
            let b = cx.rw.create_one(Select {}, &[cx.operands[0], zero, g])?;
            Ok(vec![None, Some(cx.unbroadcast(a, cx.operands[1])?), Some(cx.unbroadcast(b, cx.operands[2])?)])
        };
        Some(run())
    }
}
