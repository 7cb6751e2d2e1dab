//! `of.cast`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{
    DType, Dim, Elements, OpError, OpView, PartialKind, Power, Rounding, Sbp, SbpSignature, Tensor, Type, ValueId,
};

use crate::sample::Rng;
use crate::scalar::ScalarOp;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Conversion to another element type. Float to integer truncates and saturates, but to integers narrower than a byte
    /// takes the low bits; integer to integer takes the low bits; anything to bool is `x != 0`; numbers and strings convert
    /// by their decimal text. Source: ONNX Cast.
    pub struct Cast = "of.cast" [Primitive, onnx: "Cast"] {
        operands: (x),
        results: (y),
        attrs: {
            to: DType,
            /// Whether values out of the range of an 8-bit float become its largest finite value (as where it is absent),
            /// or infinity, or NaN where it has none. Without effect on other types.
            saturate: Option<bool>,
            /// Rounding to f8E8M0FNU: `up` (as where it is absent), `down` or `nearest`. Without effect on other types.
            round_mode: Option<Arc<str>>,
        },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        let from = r.pick(&[DType::F32, DType::I32, DType::U8, DType::Bool, DType::F64, DType::U2, DType::F4E2M1FN]);
        let to = r.pick(&[DType::F32, DType::I64, DType::F16, DType::Bool, DType::F8E4M3FN, DType::F64, DType::I2]);
        let cast = if r.int(0, 3) > 0 { Cast::to(to) } else {
            let to = r.pick(&[DType::F8E5M2, DType::F8E8M0FNU]);
            Cast { saturate: Some(false), round_mode: Some(r.pick(&["up", "down", "nearest"]).into()), ..Cast::to(to) }
        };
        Some((vec![r.tensor(from, &dims, 0.0, 4.0).into()], cast))
    };
}

impl Cast {
    /// The conversion to `to`, saturating.
    pub const fn to(to: DType) -> Cast {
        Cast { to, saturate: None, round_mode: None }
    }

    fn rounding(&self) -> Result<Rounding, OpError> {
        let power = match self.round_mode.as_deref() {
            None | Some("up") => Power::Up,
            Some("down") => Power::Down,
            Some("nearest") => Power::Nearest,
            Some(other) => {
                return Err(OpError::attr(format!("round_mode is '{other}', it must be up, down or nearest")));
            }
        };
        Ok(Rounding { saturate: self.saturate.unwrap_or(true), power })
    }
}

impl Op for Cast {
    op_basics!(Cast);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        self.rounding()?;
        Ok(vec![Type::Tensor(cx.tensor(0)?.with_dtype(self.to))])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        if self.to.is_int() && cx.tensor(0).is_ok_and(|t| t.dtype.is_int()) { cx.dims(0) } else { None }
    }

    fn scalar(&self) -> Option<ScalarOp> {
        // The scalar language has one way of rounding.
        let usual = self.rounding().is_ok_and(|r| r == Rounding::DEFAULT);
        let small = self.to.is_float() && self.to.bits() <= Some(8);
        (usual || !small).then_some(ScalarOp::Cast(self.to))
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
        Ok(vec![Tensor::rounded(self.to, x.dims().to_vec(), elements, self.rounding()?)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Ok(t) = cx.tensor(0) else { return Vec::new() };
        let Some(s) = &t.shape else { return Vec::new() };
        let mut out = shape::elementwise_splits(&[s], s);
        // Monotone where no value wraps or becomes NaN; sums would be rounded in between.
        let monotone = match (t.dtype.int_range(), self.to.int_range()) {
            (Some((low, high)), Some((least, most))) => self.to != DType::Bool && least <= low && high <= most,
            (None, None) => {
                t.dtype.is_float() && self.to.is_float() && t.dtype.bits() <= self.to.bits() && self.to.bits() > Some(8)
            }
            _ => false,
        };
        if monotone {
            for k in [PartialKind::Max, PartialKind::Min] {
                out.push(SbpSignature::new(&[Sbp::Partial(k)], &[Sbp::Partial(k)]));
            }
        }
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let from = cx.rw.graph().ty(cx.operands[0]).as_tensor()?.dtype;
        // Powers of two without a sign hold no gradient.
        let smooth = |d: DType| d.is_float() && d != DType::F8E8M0FNU;
        if !smooth(from) || !smooth(self.to) {
            return None;
        }
        Some(cx.rw.create_one(Cast::to(from), &[g]).map(|v| vec![Some(v)]))
    }
}

fn parse(strings: &[String], to: DType) -> Result<Elements, OpError> {
    let bad = |s: &String| OpError::eval(format!("'{s}' is not a valid {to}"));
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
