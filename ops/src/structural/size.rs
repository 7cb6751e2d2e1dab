//! `of.size`.

use of_ir::{DType, Dim, OpView, SbpSignature, Tensor, Type};

use super::of_any_part;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, sample::Rng};

op! {
    /// The number of elements of a tensor, an i64 of rank 0.
    pub struct Size = "of.size" [Structural, onnx: "Size"] {
        operands: (x),
        results: (count),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        Some((vec![r.f32s(&dims)], Size {}))
    };
}

impl Op for Size {
    op_basics!(Size);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        cx.tensor(0)?;
        Ok(vec![Type::fixed(DType::I64, &[])])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        let s = cx.tensor(0).ok()?.shape.as_ref()?;
        Some(vec![s.iter().fold(Dim::from(1i64), |n, d| &n * d)])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        of_any_part(cx)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![Tensor::scalar(inputs.tensor(0)?.len() as i64).into()])
    }
}
