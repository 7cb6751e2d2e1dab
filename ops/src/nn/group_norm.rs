//! `of.group_norm` and `of.instance_norm`.

use of_ir::{Dim, OpError, OpView, Rewriter, TensorType, Type, ValueId};

use super::layout;
use crate::build::{Build, BuildResult, in_wide};
use crate::elementwise::Rsqrt;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

op! {
    /// Normalisation over groups of channels and all spatial axes of each sample, then `* scale + bias` per channel.
    ///
    /// Source: ONNX GroupNormalization; Wu, He: "Group normalization" (2018).
    pub struct GroupNorm = "of.group_norm" [Composite, onnx: "GroupNormalization"] {
        operands: (x, scale, bias),
        results: (y),
        attrs: {
            num_groups: i64,
            epsilon: f64,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (groups, rank) = (r.int(1, 3), r.int(3, 4) as usize);
        let channels_last = r.int(0, 1) == 0;
        let mut dims = r.dims(rank, 1, 4);
        let axis = layout::channel_axis(rank, channels_last);
        dims[axis] *= groups as usize;
        let c = [dims[axis]];
        Some((vec![r.f32s(&dims), r.f32s(&c), r.f32s(&c)], GroupNorm { num_groups: groups, epsilon: 1e-5, channels_last }))
    };
}

op! {
    /// Normalisation over the spatial axes of each channel of each sample, then `* scale + bias` per channel.
    ///
    /// Source: ONNX InstanceNormalization; Ulyanov, Vedaldi, Lempitsky: "Instance normalization" (2016).
    pub struct InstanceNorm = "of.instance_norm" [Composite, onnx: "InstanceNormalization"] {
        operands: (x, scale, bias),
        results: (y),
        attrs: {
            epsilon: f64,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(3, 4) as usize;
        let channels_last = r.int(0, 1) == 0;
        let dims = r.dims(rank, 1, 4);
        let c = [dims[layout::channel_axis(rank, channels_last)]];
        Some((vec![r.f32s(&dims), r.f32s(&c), r.f32s(&c)], InstanceNorm { epsilon: 1e-5, channels_last }))
    };
}

fn infer(cx: &OpView<'_>, channels_last: bool, groups: Option<i64>) -> Inferred {
    let x = cx.tensor(0)?;
    if !x.dtype.is_float() {
        return Err(OpError::ty(format!("the input must be floating-point, it is {}", x.dtype)));
    }
    if groups.is_some_and(|g| !(1..1 << 24).contains(&g)) {
        return Err(OpError::attr("num_groups must be positive and below 2^24"));
    }
    if let Some(s) = &x.shape {
        if s.len() < 2 {
            return Err(OpError::shape("the input has no batch and channel axes"));
        }
        let c = &s[layout::channel_axis(s.len(), channels_last)];
        if let Some(g) = groups
            && c.as_const().is_some()
            && c.exact_div(&Dim::from(g)).is_none()
        {
            return Err(OpError::shape(format!("{c} channels do not divide into {g} groups")));
        }
        for p in [cx.tensor(1)?, cx.tensor(2)?] {
            if p.dtype != x.dtype {
                return Err(OpError::ty(format!("a parameter is {}, the input {}", p.dtype, x.dtype)));
            }
            if let Some(p) = &p.shape
                && (p.len() != 1 || p[0].provably_ne(c))
            {
                return Err(OpError::shape(format!("the parameters must be [{c}], one is {}", shape::show(p))));
            }
        }
    }
    Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
}

/// `(x - mean) / sqrt(variance + epsilon)` over `axes`.
fn normalise(b: &mut Build<'_, '_>, x: ValueId, axes: &[usize], epsilon: f64) -> BuildResult {
    let mean = b.mean(x, axes)?;
    let centred = b.sub(x, mean)?;
    let squares = b.mul(centred, centred)?;
    let variance = b.mean(squares, axes)?;
    let shifted = b.add_number(variance, epsilon)?;
    let inverse = b.op(Rsqrt {}, &[shifted])?;
    b.mul(centred, inverse)
}

/// `x * scale + bias` per channel.
fn affine(b: &mut Build<'_, '_>, x: ValueId, operands: &[ValueId], channels_last: bool) -> BuildResult {
    let rank = b.rank(x)?;
    let axes: Vec<usize> = if channels_last { Vec::new() } else { (1..rank.saturating_sub(1)).collect() };
    let (scale, bias) = (b.unsqueeze(operands[1], &axes)?, b.unsqueeze(operands[2], &axes)?);
    let y = b.mul(x, scale)?;
    b.add(y, bias)
}

impl Op for GroupNorm {
    op_basics!(GroupNorm);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx, self.channels_last, Some(self.num_groups))
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        in_wide(rw, operands, |rw, operands| self.parts(&mut Build::new(rw), operands))
    }
}

impl GroupNorm {
    fn parts(&self, b: &mut Build<'_, '_>, operands: &[ValueId]) -> Expanded {
        let x = operands[0];
        let rank = b.rank(x)?;
        // Channels first, so that a group is contiguous: [N, G, everything else].
        let first = if self.channels_last {
            [&[0, rank - 1], &(1..rank - 1).collect::<Vec<_>>()[..]].concat()
        } else {
            (0..rank).collect()
        };
        let back = if self.channels_last {
            [&[0], &(2..rank).collect::<Vec<_>>()[..], &[1]].concat()
        } else {
            (0..rank).collect()
        };
        let planar = b.transpose(x, &first)?;
        let grouped = b.reshape(planar, &[0, self.num_groups, -1])?;
        let normal = normalise(b, grouped, &[2], self.epsilon)?;
        let y = b.reshape_like(normal, planar)?;
        let y = b.transpose(y, &back)?;
        Ok(vec![affine(b, y, operands, self.channels_last)?])
    }
}

impl Op for InstanceNorm {
    op_basics!(InstanceNorm);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        infer(cx, self.channels_last, None)
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        in_wide(rw, operands, |rw, operands| self.parts(&mut Build::new(rw), operands))
    }
}

impl InstanceNorm {
    fn parts(&self, b: &mut Build<'_, '_>, operands: &[ValueId]) -> Expanded {
        let rank = b.rank(operands[0])?;
        let axes: Vec<usize> = if self.channels_last { (1..rank - 1).collect() } else { (2..rank).collect() };
        let y = normalise(b, operands[0], &axes, self.epsilon)?;
        Ok(vec![affine(b, y, operands, self.channels_last)?])
    }
}
