//! `of.batch_norm_training`.

use of_ir::{DType, OpError, OpView, Rewriter, TensorType, Type, ValueId};

use crate::build::Build;
use crate::elementwise::Rsqrt;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

op! {
    /// Batch normalisation by the statistics of the batch itself, per channel of `x[N, C, …]`:
    /// `y = (x - m) / sqrt(v + epsilon) * scale + bias` with mean `m` and variance `v` over all axes but the second.
    ///
    /// Results 1 and 2 are the running statistics, `mean * momentum + m * (1 - momentum)` and the same of the variance,
    /// which divides by the number of elements. Source: ONNX BatchNormalization with training_mode 1.
    pub struct BatchNormTraining = "of.batch_norm_training" [Composite] {
        operands: (x, scale, bias, mean, variance),
        results: (y, running_mean, running_variance),
        attrs: {
            epsilon: f64,
            momentum: f64,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(2, 4) as usize;
        let dims = r.dims(rank, 2, 4);
        let c = [dims[1]];
        let variance = r.tensor(DType::F32, &c, 0.5, 2.0);
        let operands = vec![r.f32s(&dims), r.f32s(&c), r.f32s(&c), r.f32s(&c), variance.into()];
        Some((operands, BatchNormTraining { epsilon: 1e-2, momentum: 0.9 }))
    };
}

impl Op for BatchNormTraining {
    op_basics!(BatchNormTraining);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        let parameters: Vec<&TensorType> = (1..5).map(|i| cx.tensor(i)).collect::<Result<_, _>>()?;
        if !x.dtype.is_float() || parameters.iter().any(|p| !p.dtype.is_float()) {
            return Err(OpError::ty("input and parameters must be floating-point"));
        }
        if let Some(s) = &x.shape {
            let c = s.get(1).ok_or_else(|| OpError::shape("the input has no channel axis"))?;
            for p in parameters.iter().filter_map(|p| p.shape.as_ref()) {
                if p.len() != 1 || p[0].provably_ne(c) {
                    return Err(OpError::shape(format!("the parameters must be [{c}], one is {}", shape::show(p))));
                }
            }
        }
        let plain = |t: &TensorType| Type::Tensor(TensorType { sbp: None, ..t.clone() });
        Ok(vec![plain(x), plain(parameters[2]), plain(parameters[3])])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let &[x, scale, bias, mean, variance] = operands else {
            return Ok(vec![]);
        };
        let b = &mut Build::new(rw);
        let rank = b.rank(x)?;
        let axes: Vec<usize> = (0..rank).filter(|a| *a != 1).collect();
        let behind: Vec<usize> = (1..rank.saturating_sub(1)).collect();
        let precise = b.widened(x)?;
        let wide = b.dtype(precise);
        let own_mean = b.mean(precise, &axes)?;
        let centred = b.sub(precise, own_mean)?;
        let squares = b.mul(centred, centred)?;
        let own_variance = b.mean(squares, &axes)?;
        let shifted = b.add_number(own_variance, self.epsilon)?;
        let inverse = b.op(Rsqrt {}, &[shifted])?;
        let normal = b.mul(centred, inverse)?;
        let mut per_channel = |v: ValueId| {
            let v = b.cast(v, wide)?;
            b.unsqueeze(v, &behind)
        };
        let (scale, bias) = (per_channel(scale)?, per_channel(bias)?);
        let scaled = b.mul(normal, scale)?;
        let y = b.add(scaled, bias)?;
        let mut out = vec![b.cast(y, b.dtype(x))?];
        for (running, own) in [(mean, own_mean), (variance, own_variance)] {
            let own = b.squeeze(own, &axes)?;
            let own = b.cast(own, b.dtype(running))?;
            let (old, new) = (b.scale(running, self.momentum)?, b.scale(own, 1.0 - self.momentum)?);
            out.push(b.add(old, new)?);
        }
        Ok(out)
    }
}
