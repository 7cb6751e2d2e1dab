//! `of.momentum`.

use std::sync::Arc;

use of_ir::{OpError, OpView, Rewriter, SbpSignature, ValueId};

use super::{by_kind, infer, parts, regularized, signatures};
use crate::build::Build;
use crate::elementwise::{Gt, Select};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// One step of gradient descent with momentum for each parameter `x` with gradient `g` and momentum `v`:
    /// `d = norm_coefficient * x + g`, `v' = alpha * v + beta * d`, and `x' = x - rate * v'` in mode `standard` or
    /// `x' = x - rate * (d + alpha * v')` in mode `nesterov`. `beta` counts as 1 where the count is 0.
    ///
    /// Operands are all `x`, all `g`, all `v`; results all `x'`, all `v'`. Source: ONNX Momentum.
    pub struct Momentum = "of.momentum" [Composite, onnx: "ai.onnx.preview.training::Momentum"] {
        operands: (rate, count, tensors*),
        results: (updated*),
        attrs: {
            alpha: f64,
            beta: f64,
            mode: Arc<str>,
            norm_coefficient: f64,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let operands = super::sample(&mut r, 1);
        let mode = r.pick(&["standard", "nesterov"]).into();
        Some((operands, Momentum { alpha: 0.9, beta: 0.8, mode, norm_coefficient: r.pick(&[0.0, 0.01]) }))
    };
}

impl Op for Momentum {
    op_basics!(Momentum);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if !matches!(&*self.mode, "standard" | "nesterov") {
            return Err(OpError::attr(format!("mode '{}' is neither standard nor nesterov", self.mode)));
        }
        infer(cx, 1)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        signatures(cx, 1)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let (rate, count, groups) = parts(b, operands, 1)?;
        let (zero, one, beta) = (b.number(0.0, count)?, b.number(1.0, count)?, b.number(self.beta, count)?);
        let started = b.op(Gt {}, &[count, zero])?;
        let beta = b.op(Select {}, &[started, beta, one])?;
        let mut updated = Vec::with_capacity(groups.len());
        for group in groups {
            let (x, g, v) = (group[0], group[1], group[2]);
            let d = regularized(b, self.norm_coefficient, x, g)?;
            let (rate, beta) = (b.cast(rate, b.dtype(x))?, b.cast(beta, b.dtype(x))?);
            let (old, new) = (b.scale(v, self.alpha)?, b.mul(beta, d)?);
            let v = b.add(old, new)?;
            let direction = if &*self.mode == "nesterov" {
                let ahead = b.scale(v, self.alpha)?;
                b.add(d, ahead)?
            } else {
                v
            };
            let step = b.mul(rate, direction)?;
            updated.push(vec![b.sub(x, step)?, v]);
        }
        Ok(by_kind(updated))
    }
}
