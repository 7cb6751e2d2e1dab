//! `of.causal_conv`.

use std::sync::Arc;

use of_ir::{DType, Dim, OpError, OpView, Rewriter, TensorType, Type};

use super::conv::Conv;
use crate::build::{Build, diagnostic};
use crate::elementwise::Swish;
use crate::movement::{Concat, Slice};
use crate::sample::Rng;
use crate::structural::ShapeOf;
use crate::{Expanded, Inferred, Op, Value, op, op_basics, shape};

op! {
    /// Convolution of each channel over its past: `y[n, c, t] = f(bias[c] + sum_j p[n, c, t + j] * weight[c, 0, j])`,
    /// where `p` is `past` followed by `x`.
    ///
    /// `x` is `[N, C, T]`, `weight` `[C, 1, K]`, `past` `[N, C, K - 1]`, zeros if left out. `f` is the identity for the
    /// activation `none` and `x * sigmoid(x)` for `silu` or `swish`. Result 1 is the end of `p`, the past of what
    /// follows. Source: ONNX CausalConvWithState.
    pub struct CausalConv = "of.causal_conv" [Composite, onnx: "CausalConvWithState"] {
        operands: (x, weight, bias?, past?),
        results: (y, present),
        attrs: { activation: Arc<str> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (n, c, t, k) = (r.int(1, 2) as usize, r.int(1, 4) as usize, r.int(1, 5) as usize, r.int(1, 4) as usize);
        let mut operands = vec![r.f32s(&[n, c, t]), r.f32s(&[c, 1, k])];
        let (bias, past) = (r.f32s(&[c]), r.f32s(&[n, c, k - 1]));
        match r.int(0, 2) {
            0 => {}
            1 => operands.extend([Value::None, past]),
            _ => operands.extend([bias, past]),
        }
        Some((operands, CausalConv { activation: r.pick(&["none", "silu"]).into() }))
    };
}

impl Op for CausalConv {
    op_basics!(CausalConv);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if !matches!(&*self.activation, "none" | "silu" | "swish") {
            return Err(OpError::attr(format!("activation '{}' is not one of none, silu and swish", self.activation)));
        }
        let x = cx.tensor(0)?;
        let given: Vec<&TensorType> =
            (1..4).filter(|i| cx.operand(*i).is_some()).map(|i| cx.tensor(i)).collect::<Result<_, _>>()?;
        if !x.dtype.is_float() || given.iter().any(|t| t.dtype != x.dtype) {
            return Err(OpError::ty("operands must be floating-point, of one type"));
        }
        let form = |i: usize, rank: usize, what: &str| -> Result<Option<Vec<Dim>>, OpError> {
            if cx.operand(i).is_none() {
                return Ok(None);
            }
            match &cx.tensor(i)?.shape {
                Some(s) if s.len() != rank => {
                    Err(OpError::shape(format!("{what} must have rank {rank}, it is {}", shape::show(s))))
                }
                s => Ok(s.clone()),
            }
        };
        let (own, weight) = (form(0, 3, "the input")?, form(1, 3, "the weight")?);
        let (bias, past) = (form(2, 1, "the bias")?, form(3, 3, "the past")?);
        let unknown = || vec![Dim::unknown(); 3];
        let (own, weight) = (own.unwrap_or_else(unknown), weight.unwrap_or_else(unknown));
        if weight[2].as_const() == Some(0) {
            return Err(OpError::shape("the kernel is empty"));
        }
        let before = &weight[2] - &Dim::from(1i64);
        let mut pairs = vec![
            (&weight[0], own[1].clone(), "channels of the weight"),
            (&weight[1], Dim::from(1i64), "channels of a group of the weight"),
        ];
        pairs.extend(bias.as_ref().map(|b| (&b[0], own[1].clone(), "elements of the bias")));
        if let Some(p) = &past {
            pairs.push((&p[0], own[0].clone(), "batch of the past"));
            pairs.push((&p[1], own[1].clone(), "channels of the past"));
            pairs.push((&p[2], before.clone(), "length of the past"));
        }
        if let Some((a, b, what)) = pairs.iter().find(|(a, b, _)| a.provably_ne(b)) {
            return Err(OpError::shape(format!("the {what}: {a}, must be {b}")));
        }
        let before = if weight[2].is_unknown() { Dim::unknown() } else { before };
        let present = vec![own[0].clone(), own[1].clone(), before];
        Ok(vec![Type::tensor(x.dtype, own), Type::tensor(x.dtype, present)])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[of_ir::ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let (x, weight) = (operands[0], operands[1]);
        let number = |b: &Build<'_, '_>, axis: usize| {
            let d = b.shape(weight).and_then(|s| s.get(axis)?.as_const());
            d.ok_or_else(|| diagnostic(OpError::shape("the shape of the weight must be known to expand this op")))
        };
        let (channels, kernel) = (number(b, 0)?, number(b, 2)?);
        let past = match b.given(operands, 3) {
            Some(past) => past,
            None => {
                let outer = b.op(ShapeOf { start: None, end: Some(2) }, &[x])?;
                let inner = b.ints(&[kernel - 1])?;
                let dims = b.op(Concat { axis: 0 }, &[outer, inner])?;
                let zero = b.number(0.0, x)?;
                b.expand(zero, dims)?
            }
        };
        let all = b.op(Concat { axis: 2 }, &[past, x])?;
        let conv = Conv {
            strides: vec![],
            pads: vec![],
            dilations: vec![],
            group: channels,
            auto_pad: "NOTSET".into(),
            channels_last: false,
        };
        let mut given = vec![all, weight];
        given.extend(b.given(operands, 2));
        let mut y = b.op(conv, &given)?;
        if &*self.activation != "none" {
            let dtype = b.dtype(x);
            let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
            let precise = b.cast(y, wide)?;
            let active = b.op(Swish { alpha: 1.0 }, &[precise])?;
            y = b.cast(active, dtype)?;
        }
        // A start behind the end leaves nothing, as is right for a kernel of one element.
        let start = b.ints(&[if kernel == 1 { i64::MAX } else { 1 - kernel }])?;
        let (end, axis) = (b.ints(&[i64::MAX])?, b.ints(&[2])?);
        let present = b.op(Slice {}, &[all, start, end, axis])?;
        Ok(vec![y, present])
    }
}
