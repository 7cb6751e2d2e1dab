//! `of.rnn`.

use std::sync::Arc;

use of_ir::{OpView, Rewriter, SbpSignature, Type, ValueId};

use super::activation;
use super::expand::{Cell, Layer, apply, plain};
use super::sequence::{self, Form, Sequence, clip, multiply_add};
use crate::build::{Build, diagnostic};
use crate::contraction::MatMul;
use crate::sample::Rng;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics};

op! {
    /// Simple recurrence over a sequence: `H = f(W x + R H + wb + rb)`. Source: ONNX RNN.
    pub struct Rnn = "of.rnn" [Composite, onnx: "RNN"] {
        operands: (x, w, r, b?, sequence_lens?, initial_h?),
        results: (y, y_h),
        attrs: {
            /// `forward`, `reverse` or `bidirectional`.
            direction: Arc<str>,
            /// 0: `[steps, batch, …]`; 1: `[batch, steps, …]`.
            layout: i64,
            /// f of each direction; empty for Tanh.
            activations: Vec<Arc<str>>,
            activation_alpha: Vec<f64>,
            activation_beta: Vec<f64>,
            /// Bound on the activations' inputs.
            clip: Option<f64>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (operands, direction, layout, _) = sequence::sample(&mut r, 1, 1);
        let op = Rnn {
            direction: direction.into(),
            layout,
            activations: vec![],
            activation_alpha: vec![],
            activation_beta: vec![],
            clip: r.pick(&[None, Some(1.5)]),
        };
        Some((operands, op))
    };
}

impl Rnn {
    fn functions(&self, directions: usize) -> Result<Vec<Vec<activation::Activation>>, of_ir::OpError> {
        let Rnn { activations, activation_alpha, activation_beta, .. } = self;
        activation::parse(activations, activation_alpha, activation_beta, &["Tanh"], directions)
    }
}

impl Op for Rnn {
    op_basics!(Rnn);

    fn flops(&self, cx: &OpView<'_>, _results: &[Type]) -> Option<f64> {
        sequence::flops(cx)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let form = Form::new(&self.direction, self.layout)?;
        self.functions(form.directions)?;
        form.infer(cx, 1, 1)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let form = Form::new(&self.direction, self.layout)?;
        let functions = self.functions(form.directions)?;
        let seq = Sequence::new(inputs, form, 1)?;
        let all = form.directions * seq.extent.batch * seq.extent.hidden;
        let initial = [sequence::optional(inputs, 5, all, "initial_h")?];
        seq.run(&initial, |d, weights, x, states| {
            let mut sum: Vec<f64> = weights.bias.0.iter().zip(weights.bias.1).map(|(a, b)| a + b).collect();
            multiply_add(&mut sum, weights.w, x);
            multiply_add(&mut sum, weights.r, &states[0]);
            states[0] = sum.into_iter().map(|v| functions[d][0].apply(clip(v, self.clip))).collect();
        })
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let form = Form::new(&self.direction, self.layout).map_err(diagnostic)?;
        let functions = self.functions(form.directions).map_err(diagnostic)?;
        let biases = |b: &mut Build<'_, '_>, own: &Cell| own.bias.map(|(w, r)| b.add(w, r)).transpose();
        Layer { form, product: &plain, gates: 1, states: 1 }.expand(b, operands, biases, |b, own, x, states| {
            let recurrent = b.op(MatMul {}, &[states[0], own.r])?;
            let sum = b.add(x, recurrent)?;
            Ok(vec![apply(b, functions[own.direction][0], self.clip, sum)?])
        })
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        Form::new(&self.direction, self.layout).map(|f| f.sbp(cx, 4, &[5], 1)).unwrap_or_default()
    }
}
