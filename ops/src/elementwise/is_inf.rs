//! `of.is_inf`.

use of_ir::{DType, Elements, OpError, OpView, Rewriter, SbpSignature, Tensor, Type, ValueId};

use super::{And, Eq, Or};
use crate::sample::Rng;
use crate::structural::Constant;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Whether x is infinite, of one sign or either.
    pub struct IsInf = "of.is_inf" [Composite, onnx: "IsInf"] {
        operands: (x),
        results: (y),
        attrs: { detect_positive: bool, detect_negative: bool },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let v = [f32::INFINITY, f32::NEG_INFINITY, 1.0, f32::NAN];
        let list: Vec<f32> = (0..6).map(|_| r.pick(&v)).collect();
        let x = Tensor::from_slice(&[6], &list).ok()?;
        Some((vec![x.into()], IsInf { detect_positive: r.int(0, 1) == 1, detect_negative: r.int(0, 1) == 1 }))
    };
}

impl Op for IsInf {
    op_basics!(IsInf);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        if !t.dtype.is_float() {
            return Err(OpError::ty(format!("operands must be floating-point numbers, they are {}", t.dtype)));
        }
        Ok(vec![Type::Tensor(t.with_dtype(DType::Bool))])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let v = x.to_f64s().unwrap_or_default();
        let hit = |f: &f64| {
            (self.detect_positive && *f == f64::INFINITY) || (self.detect_negative && *f == f64::NEG_INFINITY)
        };
        let out = Elements::Int(v.iter().map(|f| i128::from(hit(f))).collect());
        Ok(vec![Tensor::from_elements(DType::Bool, x.dims().to_vec(), out)?.into()])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let x = operands[0];
        let dtype = rw.graph().ty(x).as_tensor().map_or(DType::F32, |t| t.dtype);
        let equals = |rw: &mut Rewriter<'_>, v: f64| {
            let c = Constant::number(rw, v, dtype)?;
            rw.create_one(Eq {}, &[x, c])
        };
        let (up, down) = (equals(rw, f64::INFINITY)?, equals(rw, f64::NEG_INFINITY)?);
        Ok(vec![match (self.detect_positive, self.detect_negative) {
            (true, true) => rw.create_one(Or {}, &[up, down])?,
            (true, false) => up,
            (false, true) => down,
            // Nothing is both.
            (false, false) => rw.create_one(And {}, &[up, down])?,
        }])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Ok(Some(s)) = cx.tensor(0).map(|t| t.shape.as_ref()) else { return Vec::new() };
        shape::elementwise_splits(&[s], s)
    }
}
