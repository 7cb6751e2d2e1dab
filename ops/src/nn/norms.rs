//! Normalisations without parameters: `of.lp_normalization`, `of.mean_variance_norm`, `of.lrn`.

use of_ir::{OpError, OpView, Rewriter, TensorType, Type, ValueId};

use super::AvgPool;
use super::layout;
use super::window::notset;
use crate::build::{Build, diagnostic, in_wide};
use crate::elementwise::{Abs, Pow, Sqrt};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

op! {
    /// `x` divided by its p-norm along an axis; zeros stay zeros. Source: ONNX LpNormalization.
    pub struct LpNormalization = "of.lp_normalization" [Composite, onnx: "LpNormalization"] {
        operands: (x),
        results: (y),
        attrs: {
            axis: i64,
            /// 1 or 2.
            p: i64,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 1, 5);
        Some((vec![r.f32s(&dims)], LpNormalization { axis: r.int(-(rank as i64), rank as i64 - 1), p: r.int(1, 2) }))
    };
}

op! {
    /// `(x - mean) / (standard deviation + 1e-9)` over some axes. Source: ONNX MeanVarianceNormalization.
    pub struct MeanVarianceNorm = "of.mean_variance_norm" [Composite, onnx: "MeanVarianceNormalization"] {
        operands: (x),
        results: (y),
        attrs: { axes: Vec<i64> }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(4, 2, 4);
        Some((vec![r.f32s(&dims)], MeanVarianceNorm { axes: r.pick(&[vec![0, 2, 3], vec![-1], vec![1, 2]]) }))
    };
}

op! {
    /// Local response normalisation: `y = x / (bias + alpha / size * sum of x^2 over neighbouring channels)^beta`.
    ///
    /// `size` channels count: `(size - 1) / 2` before (rounded down) and the rest after. Source: ONNX LRN; Krizhevsky,
    /// Sutskever, Hinton: "ImageNet classification with deep convolutional neural networks" (2012).
    pub struct Lrn = "of.lrn" [Composite, onnx: "LRN"] {
        operands: (x),
        results: (y),
        attrs: {
            size: i64,
            alpha: f64,
            beta: f64,
            bias: f64,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(2, 4) as usize;
        let dims = r.dims(rank, 1, 5);
        let op = Lrn { size: r.int(1, 4), alpha: 0.5, beta: 0.75, bias: 1.0, channels_last: r.int(0, 1) == 0 };
        Some((vec![r.f32s(&dims)], op))
    };
}

/// The result has the type of the input, which must be floating-point.
fn same(cx: &OpView<'_>) -> Inferred {
    let x = cx.tensor(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::ty(format!("the input must be floating-point, it is {}", x.dtype)));
    }
    Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
}

impl Op for LpNormalization {
    op_basics!(LpNormalization);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if !(1..=2).contains(&self.p) {
            return Err(OpError::attr(format!("p is {}, it must be 1 or 2", self.p)));
        }
        if let Some(rank) = cx.tensor(0)?.rank() {
            shape::axis(self.axis, rank)?;
        }
        same(cx)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        in_wide(rw, operands, |rw, operands| self.parts(&mut Build::new(rw), operands))
    }
}

impl LpNormalization {
    fn parts(&self, b: &mut Build<'_, '_>, operands: &[ValueId]) -> Expanded {
        let x = operands[0];
        let axis = shape::axis(self.axis, b.rank(x)?).map_err(diagnostic)?;
        let norm = if self.p == 1 {
            let a = b.op(Abs {}, &[x])?;
            b.sum(a, &[axis], true)?
        } else {
            let squares = b.mul(x, x)?;
            let sum = b.sum(squares, &[axis], true)?;
            b.op(Sqrt {}, &[sum])?
        };
        let norm = b.nonzero(norm)?;
        Ok(vec![b.div(x, norm)?])
    }
}

impl Op for MeanVarianceNorm {
    op_basics!(MeanVarianceNorm);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if let Some(rank) = cx.tensor(0)?.rank() {
            shape::axes(&self.axes, rank)?;
        }
        same(cx)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        in_wide(rw, operands, |rw, operands| self.parts(&mut Build::new(rw), operands))
    }
}

impl MeanVarianceNorm {
    fn parts(&self, b: &mut Build<'_, '_>, operands: &[ValueId]) -> Expanded {
        let x = operands[0];
        let axes = shape::axes(&self.axes, b.rank(x)?).map_err(diagnostic)?;
        let mean = b.mean(x, &axes)?;
        let centred = b.sub(x, mean)?;
        let squares = b.mul(centred, centred)?;
        let variance = b.mean(squares, &axes)?;
        let deviation = b.op(Sqrt {}, &[variance])?;
        let divisor = b.add_number(deviation, 1e-9)?;
        Ok(vec![b.div(centred, divisor)?])
    }
}

impl Op for Lrn {
    op_basics!(Lrn);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if !(1..1 << 24).contains(&self.size) {
            return Err(OpError::attr(format!("size is {}, it must be positive and below 2^24", self.size)));
        }
        if cx.tensor(0)?.rank().is_some_and(|r| r < 2) {
            return Err(OpError::shape("the input has no channel axis"));
        }
        same(cx)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        in_wide(rw, operands, |rw, operands| self.parts(&mut Build::new(rw), operands))
    }
}

impl Lrn {
    fn parts(&self, b: &mut Build<'_, '_>, operands: &[ValueId]) -> Expanded {
        let x = operands[0];
        let rank = b.rank(x)?;
        // The channels become a spatial axis of one plane; their average over a window, with padding counted as zeros,
        // is the sum divided by `size`.
        let axis = layout::channel_axis(rank, self.channels_last) - 1;
        let lone = |v: i64, other: i64| (0..rank - 1).map(|a| if a == axis { v } else { other }).collect::<Vec<_>>();
        let before = (self.size - 1) / 2;
        let pool = AvgPool {
            kernel: lone(self.size, 1),
            strides: vec![],
            pads: [lone(before, 0), lone(self.size - 1 - before, 0)].concat(),
            dilations: vec![],
            ceil_mode: false,
            count_include_pad: true,
            auto_pad: notset(),
            channels_last: false,
        };
        let squares = b.mul(x, x)?;
        let plane = b.unsqueeze(squares, &[1])?;
        let average = b.op(pool, &[plane])?;
        let average = b.squeeze(average, &[1])?;
        let scaled = b.scale(average, self.alpha)?;
        let sum = b.add_number(scaled, self.bias)?;
        let exponent = b.number(self.beta, sum)?;
        let divisor = b.op(Pow {}, &[sum, exponent])?;
        Ok(vec![b.div(x, divisor)?])
    }
}
