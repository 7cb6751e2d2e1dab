//! `of.lstm`.

use std::sync::Arc;

use of_ir::{OpView, Rewriter, SbpSignature, Type, ValueId};

use super::activation;
use super::expand::{Cell, Layer, Product, Weights, apply, gate, part, pick, plain};
use super::sequence::{self, Form, Sequence, clip, multiply_add};
use crate::build::{Build, diagnostic};
use crate::sample::Rng;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics};

pub(super) const GATES: usize = 4;

op! {
    /// Long short-term memory over a sequence, with peepholes.
    ///
    /// Gates in the order i, o, f, c:
    /// `i = f(Wi x + Ri h + Pi c + bi)`, `f = f(Wf x + Rf h + Pf c + bf)`, `c~ = g(Wc x + Rc h + bc)`,
    /// `C = f c + i c~`, `o = f(Wo x + Ro h + Po C + bo)`, `H = o h(C)`. Source: ONNX LSTM.
    pub struct Lstm = "of.lstm" [Composite, onnx: "LSTM"] {
        operands: (x, w, r, b?, sequence_lens?, initial_h?, initial_c?, p?),
        results: (y, y_h, y_c),
        attrs: {
            /// `forward`, `reverse` or `bidirectional`.
            direction: Arc<str>,
            /// 0: `[steps, batch, …]`; 1: `[batch, steps, …]`.
            layout: i64,
            /// f, g, h of each direction; empty for Sigmoid, Tanh, Tanh.
            activations: Vec<Arc<str>>,
            activation_alpha: Vec<f64>,
            activation_beta: Vec<f64>,
            /// Bound on the gates' activations' inputs.
            clip: Option<f64>,
            /// Couple the gates: `f = 1 - i`.
            input_forget: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (mut operands, direction, layout, [d, _, h]) = sequence::sample(&mut r, GATES, 2);
        if r.int(0, 1) == 0 {
            operands.push(r.f32s(&[d, 3 * h]));
        }
        let op = Lstm {
            direction: direction.into(),
            layout,
            activations: vec![],
            activation_alpha: vec![],
            activation_beta: vec![],
            clip: r.pick(&[None, Some(1.5)]),
            input_forget: r.int(0, 3) == 0,
        };
        Some((operands, op))
    };
}

impl Lstm {
    pub(super) fn functions(&self, directions: usize) -> Result<Vec<Vec<activation::Activation>>, of_ir::OpError> {
        let Lstm { activations, activation_alpha, activation_beta, .. } = self;
        activation::parse(activations, activation_alpha, activation_beta, &["Sigmoid", "Tanh", "Tanh"], directions)
    }
}

impl Op for Lstm {
    op_basics!(Lstm);

    fn flops(&self, cx: &OpView<'_>, _results: &[Type]) -> Option<f64> {
        sequence::flops(cx)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let form = Form::new(&self.direction, self.layout)?;
        self.functions(form.directions)?;
        form.infer(cx, GATES, 2)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let form = Form::new(&self.direction, self.layout)?;
        let functions = self.functions(form.directions)?;
        let seq = Sequence::new(inputs, form, GATES)?;
        let n = seq.extent.hidden;
        let all = form.directions * seq.extent.batch * n;
        let initial =
            [sequence::optional(inputs, 5, all, "initial_h")?, sequence::optional(inputs, 6, all, "initial_c")?];
        let peepholes = sequence::optional(inputs, 7, form.directions * 3 * n, "p")?;
        seq.run(&initial, |d, weights, x, states| {
            let [f, g, h] = [0, 1, 2].map(|k| functions[d][k]);
            let p = &peepholes[d * 3 * n..][..3 * n];
            let mut gates: Vec<f64> = weights.bias.0.iter().zip(weights.bias.1).map(|(a, b)| a + b).collect();
            multiply_add(&mut gates, weights.w, x);
            multiply_add(&mut gates, weights.r, &states[0]);
            for k in 0..n {
                let old = states[1][k];
                let input = f.apply(clip(gates[k] + p[k] * old, self.clip));
                let forget = if self.input_forget {
                    1.0 - input
                } else {
                    f.apply(clip(gates[2 * n + k] + p[2 * n + k] * old, self.clip))
                };
                let cell = forget * old + input * g.apply(clip(gates[3 * n + k], self.clip));
                let output = f.apply(clip(gates[n + k] + p[n + k] * cell, self.clip));
                states[1][k] = cell;
                states[0][k] = output * h.apply(cell);
            }
        })
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        self.expand_with(&mut Build::new(rw), operands, &plain)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        Form::new(&self.direction, self.layout).map(|f| f.sbp(cx, 4, &[5, 6], 2)).unwrap_or_default()
    }
}

impl Lstm {
    /// The expansion with `product` for the products with the weights.
    pub(super) fn expand_with(&self, b: &mut Build<'_, '_>, operands: &[ValueId], product: &Product<'_>) -> Expanded {
        let form = Form::new(&self.direction, self.layout).map_err(diagnostic)?;
        let functions = self.functions(form.directions).map_err(diagnostic)?;
        let peepholes = b.given(operands, 7);
        let biases = |b: &mut Build<'_, '_>, own: &Cell| own.bias.map(|(w, r)| b.add(w, r)).transpose();
        Layer { form, product, gates: GATES, states: 2 }.expand(b, operands, biases, |b, own, gates, states| {
            let (h, old) = (states[0], states[1]);
            let [f, g, out] = [0, 1, 2].map(|k| functions[own.direction][k]);
            let recurrent = product(b, h, (Weights::Recurrence, own.direction), own.r)?;
            let gates = b.add(gates, recurrent)?;
            // The input of gate i, with what its peephole sees of the cell.
            let seen = |b: &mut Build<'_, '_>, i: usize, cell: ValueId| {
                let x = gate(b, gates, own, i)?;
                let Some(p) = peepholes else { return Ok(x) };
                let n = own.hidden;
                let p = pick(b, p, 0, own.direction)?;
                let p = part(b, p, 0, i * n, (i + 1) * n)?;
                let seen = b.mul(cell, p)?;
                b.add(x, seen)
            };
            let x = seen(b, 0, old)?;
            let input = apply(b, f, self.clip, x)?;
            let forget = if self.input_forget {
                let one = b.number(1.0, input)?;
                b.sub(one, input)?
            } else {
                let x = seen(b, 2, old)?;
                apply(b, f, self.clip, x)?
            };
            let x = gate(b, gates, own, 3)?;
            let candidate = apply(b, g, self.clip, x)?;
            let (kept, new) = (b.mul(forget, old)?, b.mul(input, candidate)?);
            let cell = b.add(kept, new)?;
            let x = seen(b, 1, cell)?;
            let output = apply(b, f, self.clip, x)?;
            let shown = apply(b, out, None, cell)?;
            Ok(vec![b.mul(output, shown)?, cell])
        })
    }
}
