//! `of.dynamic_quantize_lstm`.

use std::sync::Arc;

use of_ir::{DType, Elements, OpError, OpView, Rewriter, Tensor, TensorType, Type, ValueId};

use super::expand::{Weights, pick};
use super::lstm::{GATES, Lstm};
use super::sequence::{self, Form};
use crate::build::{Build, BuildResult};
use crate::nn::{DynamicQuantizeLinear, MatMulInteger};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, Value, op, op_basics};

op! {
    /// `of.lstm` with 8-bit integer products and dynamic quantization.
    ///
    /// The input of all steps and the state of each step are quantized to u8 by their own range
    /// (`of.dynamic_quantize_linear`), multiplied with the quantized weights, and dequantized.
    ///
    /// The weights are `w[directions, input, 4 * hidden]` and `r[directions, hidden, 4 * hidden]`; scales and zero points
    /// are `[directions]` or `[directions, 4 * hidden]`. Source: onnxruntime, DynamicQuantizeLSTM.
    pub struct DynamicQuantizeLstm = "of.dynamic_quantize_lstm"
        [Composite, onnx: "com.microsoft::DynamicQuantizeLSTM"] {
        operands: (
            x, w, r, b?, sequence_lens?, initial_h?, initial_c?, p?, w_scale, w_zero_point, r_scale, r_zero_point
        ),
        results: (y, y_h, y_c),
        attrs: {
            /// `forward`, `reverse` or `bidirectional`.
            direction: Arc<str>,
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
        if layout != 0 {
            return None;
        }
        let Some(Value::Tensor(x)) = operands.first() else { return None };
        let n = x.dims()[2];
        operands.resize(SCALES, Value::None);
        let per_column = r.int(0, 1) == 0;
        for (at, rows) in [(1, n), (2, h)] {
            let dtype = r.pick(&[DType::I8, DType::U8]);
            let low = if dtype == DType::I8 { -128 } else { 0 };
            let mut bytes = |dims: &[usize], low: i64, high: i64| {
                let all = (0..dims.iter().product()).map(|_| i128::from(r.int(low, high))).collect();
                Value::from(Tensor::from_elements(dtype, dims.to_vec(), Elements::Int(all)).expect("8-bit integers"))
            };
            let scales: &[usize] = if per_column { &[d, GATES * h] } else { &[d] };
            operands[at] = bytes(&[d, rows, GATES * h], low, low + 255);
            let zero = bytes(scales, low + 120, low + 136);
            let count: usize = scales.iter().product();
            let scale: Vec<f32> = (0..count).map(|_| r.float(0.002, 0.01) as f32).collect();
            operands.push(Tensor::from_slice(scales, &scale).expect("a scale for each").into());
            operands.push(zero);
        }
        let op = DynamicQuantizeLstm {
            direction: direction.into(),
            activations: vec![],
            activation_alpha: vec![],
            activation_beta: vec![],
            clip: r.pick(&[None, Some(1.5)]),
            input_forget: r.int(0, 3) == 0,
        };
        Some((operands, op))
    };
}

/// The operands before the scales and zero points are those of `of.lstm`.
const SCALES: usize = 8;

impl DynamicQuantizeLstm {
    fn lstm(&self) -> Lstm {
        let DynamicQuantizeLstm { direction, activations, activation_alpha, activation_beta, clip, input_forget } =
            self.clone();
        Lstm { direction, layout: 0, activations, activation_alpha, activation_beta, clip, input_forget }
    }
}

impl Op for DynamicQuantizeLstm {
    op_basics!(DynamicQuantizeLstm);

    fn flops(&self, cx: &OpView<'_>, _results: &[Type]) -> Option<f64> {
        sequence::flops(cx)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let form = Form::new(&self.direction, 0)?;
        self.lstm().functions(form.directions)?;
        let x = cx.tensor(0)?;
        if x.dtype != DType::F32 {
            return Err(OpError::ty(format!("x must be f32, it is {}", x.dtype)));
        }
        let mut turned = Vec::new();
        for (i, name) in [(1, "w"), (2, "r")] {
            let t = cx.tensor(i)?;
            if !matches!(t.dtype, DType::I8 | DType::U8) {
                return Err(OpError::ty(format!("{name} must be of 8-bit integers, it is {}", t.dtype)));
            }
            let zero = cx.tensor(SCALES + 2 * i - 1)?;
            if zero.dtype != t.dtype {
                return Err(OpError::ty(format!("the zero point of {name} is {}, {name} is {}", zero.dtype, t.dtype)));
            }
            if cx.tensor(SCALES + 2 * i - 2)?.dtype != DType::F32 {
                return Err(OpError::ty(format!("the scale of {name} must be f32")));
            }
            // As the weights of an LSTM lie.
            let shape = t.shape.clone().map(|mut s| {
                if s.len() == 3 {
                    s.swap(1, 2);
                }
                s
            });
            turned.push(TensorType { dtype: x.dtype, shape, sbp: None });
        }
        form.infer_with(cx, [&turned[0], &turned[1]], GATES, 2)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let mut own = operands[..SCALES].to_vec();
        for i in [1, 2] {
            own[i] = b.transpose(own[i], &[0, 2, 1])?;
        }
        self.lstm().expand_with(b, &own, &|b, x, (weights, direction), w| {
            let at = if weights == Weights::Input { SCALES } else { SCALES + 2 };
            let (scale, zero) = (pick(b, operands[at], 0, direction)?, pick(b, operands[at + 1], 0, direction)?);
            product(b, x, w, scale, zero)
        })
    }
}

/// `x w`, with `x` quantised by its own range; `scale` and `zero` are those of `w`, one or one for each column.
fn product(b: &mut Build<'_, '_>, x: ValueId, w: ValueId, scale: ValueId, zero: ValueId) -> BuildResult {
    let quantized = b.rw.create(DynamicQuantizeLinear {}, &[x])?;
    let [q, x_scale, x_zero] = b.rw.graph().op(quantized).results[..] else { unreachable!("it has three results") };
    let sum = b.op(MatMulInteger {}, &[q, w, x_zero, zero])?;
    let sum = b.cast(sum, DType::F32)?;
    let scale = b.mul(x_scale, scale)?;
    b.mul(sum, scale)
}
