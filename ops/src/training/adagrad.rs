//! `of.adagrad`.

use of_ir::{OpView, Rewriter, SbpSignature, ValueId};

use super::{by_kind, infer, parts, regularized, signatures};
use crate::build::Build;
use crate::elementwise::Sqrt;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// One step of Adagrad for each parameter `x` with gradient `g` and accumulated squares `h`:
    /// `d = norm_coefficient * x + g`, `h' = h + d^2`,
    /// `x' = x - rate / (1 + count * decay_factor) * d / (sqrt(h') + epsilon)`.
    ///
    /// Operands are all `x`, all `g`, all `h`; results all `x'`, all `h'`. Source: Duchi, Hazan, Singer (2011); ONNX
    /// Adagrad.
    pub struct Adagrad = "of.adagrad" [Composite, onnx: "ai.onnx.preview.training::Adagrad"] {
        operands: (rate, count, tensors*),
        results: (updated*),
        attrs: {
            decay_factor: f64,
            epsilon: f64,
            norm_coefficient: f64,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let operands = super::sample(&mut r, 1);
        Some((operands, Adagrad { decay_factor: 0.1, epsilon: 1e-3, norm_coefficient: r.pick(&[0.0, 0.01]) }))
    };
}

impl Op for Adagrad {
    op_basics!(Adagrad);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx, 1)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        signatures(cx, 1)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let (rate, count, groups) = parts(b, operands, 1)?;
        let decay = b.scale(count, self.decay_factor)?;
        let divisor = b.add_number(decay, 1.0)?;
        let rate = b.div(rate, divisor)?;
        let mut updated = Vec::with_capacity(groups.len());
        for group in groups {
            let (x, g, h) = (group[0], group[1], group[2]);
            let d = regularized(b, self.norm_coefficient, x, g)?;
            let square = b.mul(d, d)?;
            let h = b.add(h, square)?;
            let root = b.op(Sqrt {}, &[h])?;
            let root = b.add_number(root, self.epsilon)?;
            let rate = b.cast(rate, b.dtype(x))?;
            let step = b.mul(rate, d)?;
            let step = b.div(step, root)?;
            updated.push(vec![b.sub(x, step)?, h]);
        }
        Ok(by_kind(updated))
    }
}
