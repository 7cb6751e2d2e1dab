//! `of.batch_norm`.

use of_ir::{DType, OpError, OpView, Rewriter, TensorType, Type, ValueId};

use super::layout;
use crate::build::Build;
use crate::elementwise::Rsqrt;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

op! {
    /// Batch normalisation with given statistics, per channel:
    /// `y = (x - mean) / sqrt(variance + epsilon) * scale + bias`.
    ///
    /// Expands to `x * a + b` with `a` and `b` computed from the parameters, which folds to constants. Source: ONNX
    /// BatchNormalization with training_mode 0.
    pub struct BatchNorm = "of.batch_norm" [Composite, onnx: "BatchNormalization"] {
        operands: (x, scale, bias, mean, variance),
        results: (y),
        attrs: {
            epsilon: f64,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(2, 4) as usize;
        let dims = r.dims(rank, 1, 4);
        let channels_last = r.int(0, 1) == 0;
        let c = [dims[layout::channel_axis(rank, channels_last)]];
        let variance = r.tensor(DType::F32, &c, 0.5, 2.0);
        let operands = vec![r.f32s(&dims), r.f32s(&c), r.f32s(&c), r.f32s(&c), variance.into()];
        Some((operands, BatchNorm { epsilon: 1e-5, channels_last }))
    };
}

impl Op for BatchNorm {
    op_basics!(BatchNorm);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() {
            return Err(OpError::ty(format!("the input must be floating-point, it is {}", x.dtype)));
        }
        let parameters: Vec<&TensorType> = (1..5).map(|i| cx.tensor(i)).collect::<Result<_, _>>()?;
        if parameters.iter().any(|p| !p.dtype.is_float()) {
            return Err(OpError::ty("the parameters must be floating-point"));
        }
        if let Some(s) = &x.shape {
            let axis = layout::channel_axis(s.len(), self.channels_last);
            let c = s.get(axis).ok_or_else(|| OpError::shape("the input has no channel axis"))?;
            for p in parameters.iter().filter_map(|p| p.shape.as_ref()) {
                if p.len() != 1 || p[0].provably_ne(c) {
                    return Err(OpError::shape(format!("the parameters must be [{c}], one is {}", shape::show(p))));
                }
            }
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let &[x, scale, bias, mean, variance] = operands else {
            return Ok(vec![]);
        };
        let mut b = Build::new(rw);
        let rank = b.rank(x)?;
        // The statistics may be wider than the data.
        let wide = b.dtype(mean);
        let shifted = b.add_number(variance, self.epsilon)?;
        let inverse = b.op(Rsqrt {}, &[shifted])?;
        let inverse = b.cast(inverse, wide)?;
        let (scale, bias) = (b.cast(scale, wide)?, b.cast(bias, wide)?);
        let factor = b.mul(scale, inverse)?;
        let moved = b.mul(mean, factor)?;
        let offset = b.sub(bias, moved)?;
        let axes: Vec<usize> = if self.channels_last { Vec::new() } else { (1..rank.saturating_sub(1)).collect() };
        let mut per_channel = |v: ValueId| {
            let v = b.cast(v, b.dtype(x))?;
            b.unsqueeze(v, &axes)
        };
        let (factor, offset) = (per_channel(factor)?, per_channel(offset)?);
        let y = b.mul(x, factor)?;
        Ok(vec![b.add(y, offset)?])
    }
}
