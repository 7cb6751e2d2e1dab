//! `of.gru`.

use std::sync::Arc;

use of_ir::{OpView, Rewriter, SbpSignature, Type, ValueId};

use super::activation;
use super::expand::{Cell, Layer, apply, gate, part, plain};
use super::sequence::{self, Form, Sequence, clip, multiply_add};
use crate::build::{Build, diagnostic};
use crate::contraction::MatMul;
use crate::sample::Rng;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics};

const GATES: usize = 3;

op! {
    /// Gated recurrent unit over a sequence.
    ///
    /// Gates in the order z, r, h: `z = f(Wz x + Rz H + bz)`, `r = f(Wr x + Rr H + br)`,
    /// `h = g(Wh x + Rh (r H) + rbh + wbh)`, or `g(Wh x + r (Rh H + rbh) + wbh)` with `linear_before_reset`;
    /// `H = (1 - z) h + z H`. Source: ONNX GRU.
    pub struct Gru = "of.gru" [Composite, onnx: "GRU"] {
        operands: (x, w, r, b?, sequence_lens?, initial_h?),
        results: (y, y_h),
        attrs: {
            /// `forward`, `reverse` or `bidirectional`.
            direction: Arc<str>,
            /// 0: `[steps, batch, …]`; 1: `[batch, steps, …]`.
            layout: i64,
            /// f, g of each direction; empty for Sigmoid, Tanh.
            activations: Vec<Arc<str>>,
            activation_alpha: Vec<f64>,
            activation_beta: Vec<f64>,
            /// Bound on the activations' inputs.
            clip: Option<f64>,
            linear_before_reset: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (operands, direction, layout, _) = sequence::sample(&mut r, GATES, 1);
        let op = Gru {
            direction: direction.into(),
            layout,
            activations: vec![],
            activation_alpha: vec![],
            activation_beta: vec![],
            clip: r.pick(&[None, Some(1.5)]),
            linear_before_reset: r.int(0, 1) == 0,
        };
        Some((operands, op))
    };
}

impl Gru {
    fn functions(&self, directions: usize) -> Result<Vec<Vec<activation::Activation>>, of_ir::OpError> {
        let Gru { activations, activation_alpha, activation_beta, .. } = self;
        activation::parse(activations, activation_alpha, activation_beta, &["Sigmoid", "Tanh"], directions)
    }
}

impl Op for Gru {
    op_basics!(Gru);

    fn flops(&self, cx: &OpView<'_>, _results: &[Type]) -> Option<f64> {
        sequence::flops(cx)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let form = Form::new(&self.direction, self.layout)?;
        self.functions(form.directions)?;
        form.infer(cx, GATES, 1)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let form = Form::new(&self.direction, self.layout)?;
        let functions = self.functions(form.directions)?;
        let seq = Sequence::new(inputs, form, GATES)?;
        let n = seq.extent.hidden;
        let initial = [sequence::optional(inputs, 5, form.directions * seq.extent.batch * n, "initial_h")?];
        seq.run(&initial, |d, weights, x, states| {
            let [f, g] = [0, 1].map(|k| functions[d][k]);
            let mut from_x = weights.bias.0.to_vec();
            multiply_add(&mut from_x, weights.w, x);
            let mut from_h = weights.bias.1.to_vec();
            let hidden = &mut states[0];
            multiply_add(&mut from_h, weights.r, hidden);
            let gate = |k: usize| f.apply(clip(from_x[k] + from_h[k], self.clip));
            let z: Vec<f64> = (0..n).map(gate).collect();
            let r: Vec<f64> = (n..2 * n).map(gate).collect();
            let candidate: Vec<f64> = if self.linear_before_reset {
                (0..n).map(|k| from_x[2 * n + k] + r[k] * from_h[2 * n + k]).collect()
            } else {
                let reset: Vec<f64> = r.iter().zip(hidden.iter()).map(|(a, b)| a * b).collect();
                let mut v: Vec<f64> = (0..n).map(|k| from_x[2 * n + k] + weights.bias.1[2 * n + k]).collect();
                multiply_add(&mut v, &weights.r[2 * n * n..], &reset);
                v
            };
            for k in 0..n {
                hidden[k] = (1.0 - z[k]) * g.apply(clip(candidate[k], self.clip)) + z[k] * hidden[k];
            }
        })
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let form = Form::new(&self.direction, self.layout).map_err(diagnostic)?;
        let functions = self.functions(form.directions).map_err(diagnostic)?;
        let biases = |_: &mut Build<'_, '_>, own: &Cell| Ok(own.bias.map(|(w, _)| w));
        Layer { form, product: &plain, gates: GATES, states: 1 }.expand(b, operands, biases, |b, own, x, states| {
            let (h, n) = (states[0], own.hidden);
            let [f, g] = [0, 1].map(|k| functions[own.direction][k]);
            // The recurrence of gates from..to.
            let recur = |b: &mut Build<'_, '_>, h: ValueId, from: usize, to: usize| {
                let r = part(b, own.r, 1, from * n, to * n)?;
                let product = b.op(MatMul {}, &[h, r])?;
                let Some((_, bias)) = own.bias else { return Ok(product) };
                let bias = part(b, bias, 0, from * n, to * n)?;
                b.add(product, bias)
            };
            let from_h = recur(b, h, 0, 2)?;
            let from_x = part(b, x, 1, 0, 2 * n)?;
            let sum = b.add(from_x, from_h)?;
            let both = apply(b, f, self.clip, sum)?;
            let (update, reset) = (gate(b, both, own, 0)?, gate(b, both, own, 1)?);
            let hidden = if self.linear_before_reset {
                let seen = recur(b, h, 2, 3)?;
                b.mul(reset, seen)?
            } else {
                let kept = b.mul(reset, h)?;
                recur(b, kept, 2, 3)?
            };
            let own_x = gate(b, x, own, 2)?;
            let sum = b.add(own_x, hidden)?;
            let candidate = apply(b, g, self.clip, sum)?;
            // (1 - z) c + z h = c + z (h - c)
            let change = b.sub(h, candidate)?;
            let change = b.mul(update, change)?;
            Ok(vec![b.add(candidate, change)?])
        })
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        Form::new(&self.direction, self.layout).map(|f| f.sbp(cx, 4, &[5], 1)).unwrap_or_default()
    }
}
