//! `of.layer_norm` and `of.rms_norm`.

use of_ir::{DType, Dim, OpError, OpView, Rewriter, Shape, TensorType, Type, ValueId};

use crate::build::Build;
use crate::elementwise::Rsqrt;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, Value, op, op_basics, shape};

op! {
    /// Layer normalisation over the axes from `axis` on: `y = (x - mean) / sqrt(variance + epsilon) * scale + bias`.
    ///
    /// 16-bit inputs are normalised in f32. With `return_stats`, results 1 and 2 are the mean and the inverse standard
    /// deviation. Source: ONNX LayerNormalization; Ba, Kiros, Hinton: "Layer normalization" (2016).
    pub struct LayerNorm = "of.layer_norm" [Composite, onnx: "LayerNormalization"] {
        operands: (x, scale, bias?),
        results: (y, mean?, inv_std_dev?),
        attrs: {
            axis: i64,
            epsilon: f64,
            /// Whether there are three results.
            return_stats: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (mut operands, axis) = sample(&mut r);
        let Value::Tensor(scale) = &operands[1] else { return None };
        let dims = scale.dims().to_vec();
        operands.push(if r.int(0, 1) == 0 { r.f32s(&dims) } else { Value::None });
        Some((operands, LayerNorm { axis, epsilon: 1e-5, return_stats: r.int(0, 1) == 0 }))
    };
}

op! {
    /// Normalisation by the root mean square over the axes from `axis` on: `y = x / sqrt(mean(x^2) + epsilon) * scale`.
    ///
    /// 16-bit inputs are normalised in f32. Source: ONNX RMSNormalization; Zhang, Sennrich: "Root mean square layer
    /// normalization" (2019).
    pub struct RmsNorm = "of.rms_norm" [Composite, onnx: "RMSNormalization"] {
        operands: (x, scale),
        results: (y),
        attrs: { axis: i64, epsilon: f64 }
    }
    samples: |seed| {
        let (operands, axis) = sample(&mut Rng::new(seed));
        Some((operands, RmsNorm { axis, epsilon: 1e-5 }))
    };
}

/// An input, a scale over its last axes, and the axis from which they count.
fn sample(r: &mut Rng) -> (Vec<Value>, i64) {
    let rank = r.int(1, 4) as usize;
    let dims = r.dims(rank, 1, 4);
    let axis = r.int(-(rank as i64), rank as i64 - 1);
    let from = axis.rem_euclid(rank as i64) as usize;
    (vec![r.f32s(&dims), r.f32s(&dims[from..])], axis)
}

/// The type in which statistics are computed.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Checks the operands; gives the shape of the statistics.
fn check(cx: &OpView<'_>, axis: i64) -> Result<Option<Shape>, OpError> {
    let x = cx.tensor(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::ty(format!("the input must be floating-point, it is {}", x.dtype)));
    }
    let mut stats = x.shape.clone();
    let from = match &stats {
        Some(s) => Some(shape::axis(axis, s.len())?),
        None => None,
    };
    for i in 1..cx.operands.len() {
        let Some(Type::Tensor(p)) = cx.ty(i) else { continue };
        if !p.dtype.is_float() {
            return Err(OpError::ty(format!("operand {i} must be floating-point, it is {}", p.dtype)));
        }
        if let (Some(p), Some(s)) = (&p.shape, &x.shape)
            && (p.len() > s.len() || shape::broadcast(&[p, s])?.iter().zip(s).any(|(a, b)| a.provably_ne(b)))
        {
            return Err(OpError::shape(format!(
                "operand {i} of shape {} does not broadcast to {}",
                shape::show(p),
                shape::show(s)
            )));
        }
    }
    if let (Some(s), Some(from)) = (&mut stats, from) {
        s[from..].fill(Dim::from(1i64));
    }
    Ok(stats)
}

impl Op for LayerNorm {
    op_basics!(LayerNorm);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let stats = check(cx, self.axis)?;
        let x = cx.tensor(0)?;
        let mut out = vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })];
        if self.return_stats {
            let t = Type::Tensor(TensorType { dtype: wide(x.dtype), shape: stats, sbp: None });
            out.extend([t.clone(), t]);
        }
        Ok(out)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let mut b = Build::new(rw);
        let (x, dtype) = (operands[0], b.dtype(operands[0]));
        let rank = b.rank(x)?;
        let axes: Vec<usize> = (shape::axis(self.axis, rank).map_err(crate::build::diagnostic)?..rank).collect();
        let xw = b.cast(x, wide(dtype))?;
        let mean = b.mean(xw, &axes)?;
        let centred = b.sub(xw, mean)?;
        let squares = b.mul(centred, centred)?;
        let variance = b.mean(squares, &axes)?;
        let shifted = b.add_number(variance, self.epsilon)?;
        let inverse = b.op(Rsqrt {}, &[shifted])?;
        let normal = b.mul(centred, inverse)?;
        let mut y = b.cast(normal, dtype)?;
        let scale = b.cast(operands[1], dtype)?;
        y = b.mul(y, scale)?;
        if let Some(bias) = b.given(operands, 2) {
            let bias = b.cast(bias, dtype)?;
            y = b.add(y, bias)?;
        }
        Ok(if self.return_stats { vec![y, mean, inverse] } else { vec![y] })
    }
}

impl Op for RmsNorm {
    op_basics!(RmsNorm);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        check(cx, self.axis)?;
        // ONNX gives the result the type of the scale.
        Ok(vec![Type::Tensor(cx.tensor(0)?.with_dtype(cx.tensor(1)?.dtype))])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let mut b = Build::new(rw);
        let (x, dtype) = (operands[0], b.dtype(operands[1]));
        let rank = b.rank(x)?;
        let axes: Vec<usize> = (shape::axis(self.axis, rank).map_err(crate::build::diagnostic)?..rank).collect();
        let xw = b.cast(x, wide(b.dtype(x)))?;
        let squares = b.mul(xw, xw)?;
        let mean = b.mean(squares, &axes)?;
        let shifted = b.add_number(mean, self.epsilon)?;
        let inverse = b.op(Rsqrt {}, &[shifted])?;
        let normal = b.mul(xw, inverse)?;
        let y = b.cast(normal, dtype)?;
        Ok(vec![b.mul(y, operands[1])?])
    }
}
