//! `of.swiglu`.

use of_ir::{OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, TensorType, Type, ValueId};

use super::{Mul, Swish};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

op! {
    /// Gated activation `swish(a) * b = a * sigmoid(alpha a) * b` of operands of one shape. Source: ONNX SwiGLU; Shazeer:
    /// "GLU variants improve transformer" (2020).
    pub struct SwiGlu = "of.swiglu" [Composite, onnx: "SwiGLU"] {
        operands: (a, b),
        results: (y),
        attrs: { alpha: f64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        Some((vec![r.f32s(&dims), r.f32s(&dims)], SwiGlu { alpha: r.pick(&[1.0, 1.5]) }))
    };
}

impl Op for SwiGlu {
    op_basics!(SwiGlu);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (a, b) = (cx.tensor(0)?, cx.tensor(1)?);
        if !a.dtype.is_float() || a.dtype != b.dtype {
            return Err(OpError::ty(format!(
                "operands must be floats of one type, they are {} and {}",
                a.dtype, b.dtype
            )));
        }
        if let (Some(s), Some(t)) = (&a.shape, &b.shape)
            && (s.len() != t.len() || s.iter().zip(t).any(|(p, q)| p.provably_ne(q)))
        {
            return Err(OpError::shape(format!("shapes {} and {} differ", shape::show(s), shape::show(t))));
        }
        let shape = a.shape.clone().or_else(|| b.shape.clone());
        Ok(vec![Type::Tensor(TensorType { dtype: a.dtype, shape, sbp: None })])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let gate = rw.create_one(Swish { alpha: self.alpha }, &operands[..1])?;
        Ok(vec![rw.create_one(Mul {}, &[gate, operands[1]])?])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let sum = Sbp::Partial(PartialKind::Sum);
        let mut out = vec![SbpSignature::new(&[Sbp::Broadcast, sum], &[sum])];
        if let Some(s) = cx.tensor(0).ok().and_then(|t| t.shape.as_ref()) {
            out.extend(shape::elementwise_splits(&[s, s], s));
        }
        out
    }
}
