//! `of.cast`.

use of_diag::Diagnostic;
use of_ir::{DType, Dim, Elements, OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, Type, ValueId};

use crate::sample::Rng;
use crate::scalar::ScalarOp;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Conversion to another element type. Float to integer truncates and saturates; anything to bool is `x != 0`; numbers
    /// and strings convert by their decimal spelling.
    pub struct Cast = "of.cast" [Primitive, onnx: "Cast"] {
        operands: (x),
        results: (y),
        attrs: { to: DType },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        let from = r.pick(&[DType::F32, DType::I32, DType::U8, DType::Bool, DType::F64]);
        let to = r.pick(&[DType::F32, DType::I64, DType::F16, DType::Bool, DType::F8E4M3FN, DType::F64]);
        Some((vec![r.tensor(from, &dims, 0.0, 4.0).into()], Cast { to }))
    };
}

impl Op for Cast {
    op_basics!(Cast);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::Tensor(cx.tensor(0)?.with_dtype(self.to))])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        if self.to.is_int() && cx.tensor(0).is_ok_and(|t| t.dtype.is_int()) { cx.dims(0) } else { None }
    }

    fn scalar(&self) -> Option<ScalarOp> {
        Some(ScalarOp::Cast(self.to))
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        if x.dtype() == self.to {
            return Ok(vec![x.clone().into()]);
        }
        let elements = match (x.elements(), self.to) {
            (Elements::Str(s), to) => parse(&s, to)?,
            (Elements::Float(v), DType::String) => Elements::Str(v.iter().map(|f| spell(*f, x.dtype())).collect()),
            (Elements::Int(v), DType::String) => Elements::Str(v.iter().map(i128::to_string).collect()),
            (e, _) => e,
        };
        Ok(vec![Tensor::from_elements(self.to, x.dims().to_vec(), elements)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Ok(t) = cx.tensor(0) else { return Vec::new() };
        let Some(s) = &t.shape else { return Vec::new() };
        let mut out = shape::elementwise_splits(&[s], s);
        // Monotone in both directions; sums would be rounded in between.
        if self.to != DType::Bool
            && t.dtype != DType::String
            && self.to != DType::String
            && t.dtype.is_float() == self.to.is_float()
        {
            let wider = t.dtype.bits() <= self.to.bits();
            for k in [PartialKind::Max, PartialKind::Min] {
                if wider {
                    out.push(SbpSignature::new(&[Sbp::Partial(k)], &[Sbp::Partial(k)]));
                }
            }
        }
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let from = cx.rw.graph().ty(cx.operands[0]).as_tensor()?.dtype;
        if !from.is_float() || !self.to.is_float() {
            return None;
        }
        Some(cx.rw.create_one(Cast { to: from }, &[g]).map(|v| vec![Some(v)]))
    }
}

fn parse(strings: &[String], to: DType) -> Result<Elements, OpError> {
    let bad = |s: &String| OpError::eval(format!("'{s}' is no {to}"));
    if to == DType::String {
        return Ok(Elements::Str(strings.to_vec()));
    }
    let float = |s: &String| s.trim().parse::<f64>().map_err(|_| bad(s));
    if to.is_float() {
        return Ok(Elements::Float(strings.iter().map(float).collect::<Result<_, _>>()?));
    }
    let int = |s: &String| s.trim().parse::<i128>().or_else(|_| float(s).map(|f| f as i128));
    Ok(Elements::Int(strings.iter().map(int).collect::<Result<_, _>>()?))
}

/// A float as ONNX prints it: the shortest decimal that reads back.
fn spell(f: f64, dtype: DType) -> String {
    if f.is_nan() {
        "NaN".into()
    } else if f.is_infinite() {
        if f > 0.0 { "INF".into() } else { "-INF".into() }
    } else if dtype == DType::F64 {
        format!("{f}")
    } else {
        format!("{}", f as f32)
    }
}
