//! `of.string_normalizer`.

use std::sync::Arc;

use of_ir::{DType, Dim, OpError, OpView, Tensor, TensorType, Type};

use super::{operand, strings};
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The strings that are no stop words, in the case that `case_change_action` names: `LOWER`, `UPPER` or `NONE`.
    ///
    /// The operand is `[n]` or `[1, n]`. Where nothing is left, the result is one empty string. Case follows Unicode,
    /// whatever `locale` says. Source: ONNX StringNormalizer.
    pub struct StringNormalizer = "of.string_normalizer" [Primitive, onnx: "StringNormalizer"] {
        operands: (x),
        results: (y),
        attrs: {
            case_change_action: Arc<str>,
            /// Whether stop words match in their own case alone.
            is_case_sensitive: bool,
            locale: Option<Arc<str>>,
            stopwords: Vec<Arc<str>>,
        },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let n = r.int(1, 5) as usize;
        let dims = if r.int(0, 1) == 0 { vec![n] } else { vec![1, n] };
        let x = (0..n).map(|_| r.pick(&["Monday", "monday", "TUESDAY", "ä"]).to_string()).collect();
        let op = StringNormalizer {
            case_change_action: r.pick(&["NONE", "LOWER", "UPPER"]).into(),
            is_case_sensitive: r.int(0, 1) == 0,
            locale: None,
            stopwords: if r.int(0, 2) == 0 { Vec::new() } else { vec!["Monday".into()] },
        };
        Some((vec![Tensor::from_strings(dims, x).ok()?.into()], op))
    };
}

impl Op for StringNormalizer {
    op_basics!(StringNormalizer);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = operand(cx, 0)?;
        if !["NONE", "LOWER", "UPPER"].contains(&&*self.case_change_action) {
            return Err(OpError::attr(format!("case_change_action is '{}'", self.case_change_action)));
        }
        let shape = match &x.shape {
            None => None,
            Some(s) if s.len() == 1 => Some(vec![Dim::unknown()]),
            Some(s) if s.len() == 2 && !s[0].provably_ne(&Dim::from(1i64)) => {
                Some(vec![Dim::from(1i64), Dim::unknown()])
            }
            Some(s) => return Err(OpError::shape(format!("{} is neither [n] nor [1, n]", shape::show(s)))),
        };
        Ok(vec![Type::Tensor(TensorType { dtype: DType::String, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let key = |s: &str| if self.is_case_sensitive { s.to_string() } else { s.to_lowercase() };
        let stop: Vec<String> = self.stopwords.iter().map(|s| key(s)).collect();
        let kept = strings(x)?.iter().filter(|s| !stop.contains(&key(s)));
        let mut out: Vec<String> = kept
            .map(|s| match &*self.case_change_action {
                "LOWER" => s.to_lowercase(),
                "UPPER" => s.to_uppercase(),
                _ => s.clone(),
            })
            .collect();
        if out.is_empty() {
            out.push(String::new());
        }
        let dims = match x.dims() {
            [_] => vec![out.len()],
            [1, _] => vec![1, out.len()],
            other => return Err(OpError::eval(format!("{other:?} is neither [n] nor [1, n]"))),
        };
        Ok(vec![Tensor::from_strings(dims, out)?.into()])
    }
}
