//! `of.adam`.

use of_diag::Diagnostic;
use of_ir::{OpView, Rewriter, SbpSignature, ValueId};

use super::{by_kind, infer, parts, regularized, signatures};
use crate::build::Build;
use crate::elementwise::{Gt, Max, Pow, Select, Sqrt};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// One step of Adam for each parameter `x` with gradient `g` and running means `v` of gradients and `h` of squares:
    /// `d = norm_coefficient * x + g`, `v' = alpha * v + (1 - alpha) * d`, `h' = beta * h + (1 - beta) * d^2`,
    /// `x' = (1 - norm_coefficient_post) * (x - r * v' / (sqrt(h') + epsilon))`.
    ///
    /// `r` is `rate * sqrt(1 - beta^count) / (1 - alpha^count)`, and the rate itself for a count of 0. Operands are all
    /// `x`, all `g`, all `v`, all `h`; results all `x'`, all `v'`, all `h'`. Source: Kingma, Ba (2015); ONNX Adam.
    pub struct Adam = "of.adam" [Composite, onnx: "ai.onnx.preview.training::Adam"] {
        operands: (rate, count, tensors*),
        results: (updated*),
        attrs: {
            alpha: f64,
            beta: f64,
            epsilon: f64,
            norm_coefficient: f64,
            norm_coefficient_post: f64,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let operands = super::sample(&mut r, 2);
        let norm = r.pick(&[0.0, 0.01]);
        let op =
            Adam { alpha: 0.9, beta: 0.99, epsilon: 1e-3, norm_coefficient: norm, norm_coefficient_post: norm / 2.0 };
        Some((operands, op))
    };
}

impl Op for Adam {
    op_basics!(Adam);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx, 2)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        signatures(cx, 2)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let (rate, count, groups) = parts(b, operands, 2)?;
        let rate = self.adjusted(b, rate, count)?;
        let mut updated = Vec::with_capacity(groups.len());
        for group in groups {
            let (x, g, v, h) = (group[0], group[1], group[2], group[3]);
            let d = regularized(b, self.norm_coefficient, x, g)?;
            let v = mean(b, self.alpha, v, d)?;
            let square = b.mul(d, d)?;
            let h = mean(b, self.beta, h, square)?;
            let root = b.op(Sqrt {}, &[h])?;
            let root = b.add_number(root, self.epsilon)?;
            let rate = b.cast(rate, b.dtype(x))?;
            let step = b.mul(rate, v)?;
            let step = b.div(step, root)?;
            let x = b.sub(x, step)?;
            updated.push(vec![b.scale(x, 1.0 - self.norm_coefficient_post)?, v, h]);
        }
        Ok(by_kind(updated))
    }
}

impl Adam {
    /// The rate that makes up for means that began at 0.
    fn adjusted(&self, b: &mut Build<'_, '_>, rate: ValueId, count: ValueId) -> Result<ValueId, Diagnostic> {
        // A count of 0, for which there is no quotient, is replaced where it is not used.
        let one = b.number(1.0, count)?;
        let from_one = b.op(Max {}, &[count, one])?;
        let mut remaining = |x: f64| {
            let base = b.number(x, count)?;
            let power = b.op(Pow {}, &[base, from_one])?;
            b.sub(one, power)
        };
        let (of_squares, of_gradients) = (remaining(self.beta)?, remaining(self.alpha)?);
        let root = b.op(Sqrt {}, &[of_squares])?;
        let ratio = b.div(root, of_gradients)?;
        let adjusted = b.mul(rate, ratio)?;
        let zero = b.number(0.0, count)?;
        let started = b.op(Gt {}, &[count, zero])?;
        b.op(Select {}, &[started, adjusted, rate])
    }
}

/// `share * old + (1 - share) * new`.
fn mean(b: &mut Build<'_, '_>, share: f64, old: ValueId, new: ValueId) -> Result<ValueId, Diagnostic> {
    let (old, new) = (b.scale(old, share)?, b.scale(new, 1.0 - share)?);
    b.add(old, new)
}
