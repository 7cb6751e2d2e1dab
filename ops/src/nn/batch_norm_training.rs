//! `of.batch_norm_training`.

use of_diag::Diagnostic;
use of_ir::{DType, OpError, OpView, Rewriter, TensorType, Type, ValueId};

use crate::build::{Build, BuildResult};
use crate::elementwise::Rsqrt;
use crate::sample::Rng;
use crate::{Expanded, GradCx, Inferred, Op, op, op_basics, shape};

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
        let Statistics { precise, axes, own_mean, own_variance, inverse, .. } = self.statistics(b, x)?;
        // As `x * factor + offset`, which reads `x` alone.
        let (scale, bias) = (per_channel(b, scale, precise)?, per_channel(b, bias, precise)?);
        let factor = b.mul(inverse, scale)?;
        let moved = b.mul(own_mean, factor)?;
        let offset = b.sub(bias, moved)?;
        let scaled = b.mul(precise, factor)?;
        let y = b.add(scaled, offset)?;
        let mut out = vec![b.cast(y, b.dtype(x))?];
        for (running, own) in [(mean, own_mean), (variance, own_variance)] {
            let own = b.squeeze(own, &axes)?;
            let own = b.cast(own, b.dtype(running))?;
            let (old, new) = (b.scale(running, self.momentum)?, b.scale(own, 1.0 - self.momentum)?);
            out.push(b.add(old, new)?);
        }
        Ok(out)
    }

    /// With `n` elements a channel, `c = x - m` and `r = 1 / sqrt(v + epsilon)`: the gradient of the bias is the sum of `g`, that of the
    /// scale `r * sum(g * c)`, and that of `x` is `scale * r * (g - sum(g) / n - c * r^2 * sum(g * c) / n)`. Source: Ioffe and Szegedy,
    /// "Batch Normalization", 2015.
    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        // That of the running statistics is the gradient of the expansion.
        let &[Some(g), None, None] = cx.grads else { return None };
        let mut rule = || {
            let (x, scale, bias) = (cx.operands[0], cx.operands[1], cx.operands[2]);
            let b = &mut Build::new(cx.rw);
            let Statistics { precise, axes, centred, inverse, .. } = self.statistics(b, x)?;
            let g = b.cast(g, b.dtype(precise))?;
            let products = b.mul(g, centred)?;
            let (sum, product_sum) = (b.sum(g, &axes, true)?, b.sum(products, &axes, true)?);
            let scale_gradient = b.mul(product_sum, inverse)?;
            let (mean, product_mean) = (b.mean(g, &axes)?, b.mean(products, &axes)?);
            let squared = b.mul(inverse, inverse)?;
            let slope = b.mul(product_mean, squared)?;
            let per_channel = per_channel(b, scale, precise)?;
            let factor = b.mul(inverse, per_channel)?;
            let shifted = b.sub(g, mean)?;
            let along = b.mul(centred, slope)?;
            let rest = b.sub(shifted, along)?;
            let dx = b.mul(rest, factor)?;
            let mut out = vec![Some(b.cast(dx, b.dtype(x))?)];
            for (sum, parameter) in [(scale_gradient, scale), (sum, bias)] {
                let sum = b.squeeze(sum, &axes)?;
                out.push(Some(b.cast(sum, b.dtype(parameter))?));
            }
            out.extend([None, None]);
            Ok(out)
        };
        Some(rule())
    }
}

/// What is known of a batch; all of it has the axes of `x`.
struct Statistics {
    /// `x` in floats that sums of squares do not leave.
    precise: ValueId,
    /// All axes but that of channels.
    axes: Vec<usize>,
    own_mean: ValueId,
    centred: ValueId,
    own_variance: ValueId,
    /// `1 / sqrt(v + epsilon)`.
    inverse: ValueId,
}

impl BatchNormTraining {
    fn statistics(&self, b: &mut Build<'_, '_>, x: ValueId) -> Result<Statistics, Diagnostic> {
        let axes: Vec<usize> = (0..b.rank(x)?).filter(|a| *a != 1).collect();
        let precise = b.widened(x)?;
        let own_mean = b.mean(precise, &axes)?;
        let centred = b.sub(precise, own_mean)?;
        let squares = b.mul(centred, centred)?;
        let own_variance = b.mean(squares, &axes)?;
        let shifted = b.add_number(own_variance, self.epsilon)?;
        let inverse = b.op(Rsqrt {}, &[shifted])?;
        Ok(Statistics { precise, axes, own_mean, centred, own_variance, inverse })
    }
}

/// The parameter `v[C]` with the type of `x` and axes behind that of channels.
fn per_channel(b: &mut Build<'_, '_>, v: ValueId, x: ValueId) -> BuildResult {
    let v = b.cast(v, b.dtype(x))?;
    let behind: Vec<usize> = (1..b.rank(x)?.saturating_sub(1)).collect();
    b.unsqueeze(v, &behind)
}
