//! `of.shape`.

use of_ir::{DType, Dim, OpView, SbpSignature, Tensor, Type};

use super::of_any_part;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, sample::Rng, shape};

op! {
    /// The dimensions `start..end` of a tensor as a rank-1 tensor of i64; negative bounds count from the end.
    pub struct ShapeOf = "of.shape" [Structural, onnx: "Shape"] {
        operands: (x),
        results: (dims),
        attrs: { start: Option<i64>, end: Option<i64> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        Some((vec![r.f32s(&dims)], ShapeOf { start: Some(r.int(-3, 1)), end: None }))
    };
}

impl ShapeOf {
    /// The range of axes for a tensor of the given rank, clamped as ONNX prescribes.
    fn range(&self, rank: usize) -> std::ops::Range<usize> {
        let clamp = |v: i64| (if v < 0 { v + rank as i64 } else { v }).clamp(0, rank as i64) as usize;
        let start = clamp(self.start.unwrap_or(0));
        start..clamp(self.end.unwrap_or(i64::MAX)).max(start)
    }
}

impl Op for ShapeOf {
    op_basics!(ShapeOf);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let n = match cx.tensor(0)?.rank() {
            Some(rank) => Dim::from(self.range(rank).len()),
            None => Dim::unknown(),
        };
        Ok(vec![Type::tensor(DType::I64, vec![n])])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        let s = shape::ranked(cx.tensor(0).ok()?).ok()?;
        Some(s[self.range(s.len())].to_vec())
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        of_any_part(cx)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let d = inputs.tensor(0)?.dims();
        let out: Vec<i64> = d[self.range(d.len())].iter().map(|x| *x as i64).collect();
        Ok(vec![Tensor::from_i64s(&out).into()])
    }
}
