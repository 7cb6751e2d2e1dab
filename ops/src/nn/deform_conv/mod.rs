//! `of.deform_conv`.

mod expand;

use of_ir::{Dim, Elements, OpError, OpView, Rewriter, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use crate::nn::conv::{self, channel_error, symbolic};
use crate::nn::window::{WindowAttrs, Windows};
use crate::sample::Rng;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// Deformable convolution: each weight samples `x` at its position plus `offset`, and the sample is multiplied by `mask`.
    ///
    /// Samples are interpolated linearly, with zeros outside of `x`.
    ///
    /// `x` is `[N, C, d…]`, `w` is `[M, C / group, k…]`, `offset` is `[N, offset_group * |k| * rank, o…]` and `mask` is
    /// `[N, offset_group * |k|, o…]`; the channels of an offset group share them. Source: ONNX DeformConv; Zhu et al.,
    /// "Deformable ConvNets v2" (2018).
    pub struct DeformConv = "of.deform_conv" [Composite, onnx: "DeformConv"] {
        operands: (x, w, offset, bias?, mask?),
        results: (y),
        attrs: {
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            group: i64,
            offset_group: i64,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (n, group, offset_group) = (r.int(1, 2) as usize, r.int(1, 2) as usize, r.int(1, 2) as usize);
        let k = [r.int(1, 2) as usize, r.int(1, 3) as usize];
        let taps = offset_group * k[0] * k[1];
        let own = [6 - k[0], 6 - k[1]];
        let operands = vec![
            r.f32s(&[n, 4, 5, 5]),
            r.f32s(&[2, 4 / group, k[0], k[1]]),
            r.f32s(&[n, taps * 2, own[0], own[1]]),
            if r.int(0, 1) == 0 { Value::None } else { r.f32s(&[2]) },
            r.f32s(&[n, taps, own[0], own[1]]),
        ];
        let op = DeformConv {
            strides: vec![],
            pads: vec![],
            dilations: vec![],
            group: group as i64,
            offset_group: offset_group as i64,
        };
        Some((operands, op))
    };
}

/// The value of a plane between its elements, zero outside. `dims` are its sizes, `at` the place along each axis.
fn between(plane: &[f64], dims: &[usize], at: &[f64]) -> f64 {
    let mut sum = 0.0;
    // Each corner of the cell around the place; bit i says whether it is the upper one along axis i.
    for corner in 0..1usize << dims.len() {
        let (mut weight, mut index, mut inside) = (1.0, 0, true);
        for (i, (d, x)) in dims.iter().zip(at).enumerate() {
            let upper = corner >> i & 1 == 1;
            let low = x.floor();
            let place = if upper { low + 1.0 } else { low };
            weight *= if upper { x - low } else { 1.0 - (x - low) };
            inside &= (0.0..*d as f64).contains(&place);
            index = index * d + if inside { place as usize } else { 0 };
        }
        if inside {
            sum += weight * plane[index];
        }
    }
    sum
}

impl DeformConv {
    /// Checks groups and shapes; gives the windows and how many taps an offset group has.
    fn windows(&self, x: &[Dim], w: &[Dim]) -> Result<Windows<Dim>, OpError> {
        if x.len() < 3 || x.len() > 8 || x.len() != w.len() {
            return Err(OpError::shape(format!(
                "x of rank {} and w of rank {} do not form a convolution",
                x.len(),
                w.len()
            )));
        }
        if x[2..].iter().any(|d| d.as_const() == Some(0)) {
            return Err(OpError::shape(format!(
                "an image of {} has no elements to convolve",
                shape::show(&x.to_vec())
            )));
        }
        let group = conv::group(self.group)?;
        let expected = &w[1] * &Dim::from(group);
        if expected.provably_ne(&x[1]) {
            return Err(channel_error("x", &expected, &x[1]));
        }
        let offset_group = conv::group(self.offset_group)?;
        let divides = |d: &Dim, by: usize| d.as_const().is_none_or(|d| d % by as i64 == 0);
        if !divides(&x[1], offset_group) || !divides(&w[0], group) {
            return Err(OpError::shape("the channels do not divide into the groups"));
        }
        let kernel: Option<Vec<i64>> = w[2..].iter().map(Dim::as_const).collect();
        let kernel = kernel.ok_or_else(|| OpError::shape("the dimensions of w must be known"))?;
        let attrs = WindowAttrs {
            strides: &self.strides,
            pads: &self.pads,
            dilations: &self.dilations,
            auto_pad: "NOTSET",
            ceil: false,
        };
        attrs.windows(&x[2..], &kernel)
    }

    /// Checks the shape of offsets (`each` = rank) or of the mask (`each` = 1).
    fn check(&self, what: &str, got: &[Dim], n: &Dim, windows: &Windows<Dim>, each: usize) -> Result<(), OpError> {
        let taps = windows.kernel.iter().product::<usize>() * conv::group(self.offset_group)? * each;
        let want = [&[n.clone(), taps.into()], windows.output.as_slice()].concat();
        if want.len() != got.len() || want.iter().zip(got).any(|(a, b)| a.provably_ne(b)) {
            let (want, got) = (shape::show(&want), shape::show(&got.to_vec()));
            return Err(OpError::shape(format!("{what} must be {want}, it is {got}")));
        }
        Ok(())
    }
}

impl Op for DeformConv {
    op_basics!(DeformConv);

    fn flops(&self, cx: &OpView<'_>, results: &[Type]) -> Option<f64> {
        crate::estimate::filter(cx, results.first()?)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, w) = (cx.tensor(0)?, cx.tensor(1)?);
        for i in 0..cx.operands.len() {
            if let Some(Type::Tensor(t)) = cx.ty(i)
                && (t.dtype != x.dtype || !t.dtype.is_float())
            {
                return Err(OpError::ty(format!("operand {i} is {}, operand 0 is {}", t.dtype, x.dtype)));
            }
        }
        let (Some(xs), Some(ws)) = (&x.shape, &w.shape) else {
            return Ok(vec![Type::Tensor(TensorType::unranked(x.dtype))]);
        };
        let windows = self.windows(xs, ws)?;
        if let Some(s) = &cx.tensor(2)?.shape {
            self.check("offset", s, &xs[0], &windows, windows.kernel.len())?;
        }
        if let Some(Type::Tensor(t)) = cx.ty(4)
            && let Some(s) = &t.shape
        {
            self.check("mask", s, &xs[0], &windows, 1)?;
        }
        if let Some(Type::Tensor(t)) = cx.ty(3)
            && let Some(s) = &t.shape
            && (s.len() != 1 || s[0].provably_ne(&ws[0]))
        {
            return Err(OpError::shape(format!("the bias must be [{}], it is {}", ws[0], shape::show(s))));
        }
        Ok(vec![Type::tensor(x.dtype, [vec![xs[0].clone(), ws[0].clone()], windows.output].concat())])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, w, offset) = (inputs.tensor(0)?, inputs.tensor(1)?, inputs.tensor(2)?);
        let windows = self.windows(&symbolic(x.dims()), &symbolic(w.dims()))?;
        let rank = windows.kernel.len();
        self.check("offset", &symbolic(offset.dims()), &x.dims()[0].into(), &windows, rank)?;
        let floats = |t: &Tensor| t.to_f64s().ok_or_else(|| OpError::eval("an operand holds no numbers"));
        let mask = inputs.opt_tensor(4);
        if let Some(m) = mask {
            self.check("mask", &symbolic(m.dims()), &x.dims()[0].into(), &windows, 1)?;
        }
        let mask = mask.map(floats).transpose()?;
        let fixed = |d: &Dim| d.as_const().and_then(|d| usize::try_from(d).ok());
        let (Some(own), Some(pads)) = (
            windows.output.iter().map(fixed).collect::<Option<Vec<_>>>(),
            windows.pads_begin.iter().map(fixed).collect::<Option<Vec<_>>>(),
        ) else {
            return Err(OpError::eval("a dimension is not fixed"));
        };
        let (n, c, m, per_group) = (x.dims()[0], x.dims()[1], w.dims()[0], w.dims()[1]);
        let dims = [&[n, m], own.as_slice()].concat();
        let mut y = Vec::with_capacity(shape::count(&dims)?);
        let bias = inputs.opt_tensor(3).map(floats).transpose()?;
        if bias.as_ref().is_some_and(|b| b.len() != m) {
            return Err(OpError::eval(format!("the bias must be [{m}]")));
        }
        let spatial = &x.dims()[2..];
        let (plane, positions) = (spatial.iter().product::<usize>(), own.iter().product::<usize>());
        let taps: usize = windows.kernel.iter().product();
        let (x, w, offset) = (floats(x)?, floats(w)?, floats(offset)?);
        let offset_groups = conv::group(self.offset_group)?;
        let channels_an_offset = (c / offset_groups).max(1);
        let outputs_a_group = (m / conv::group(self.group)?).max(1);
        // The samples at each tap of each input channel are the same for every output channel.
        shape::count(&[c, taps, positions])?;
        for sample in 0..n {
            let mut under = vec![0.0; c * taps * positions];
            for channel in 0..c {
                let of_channel = &x[(sample * c + channel) * plane..][..plane];
                let first = (sample * offset_groups + channel / channels_an_offset) * taps;
                let (mut tap, mut at) = (0, vec![0.0; rank]);
                shape::for_each_index(&windows.kernel, |k| {
                    let mut position = 0;
                    shape::for_each_index(&own, |o| {
                        for i in 0..rank {
                            let place = (o[i] * windows.strides[i] + k[i] * windows.dilations[i]) as f64;
                            let moved = offset[((first + tap) * rank + i) * positions + position];
                            at[i] = place - pads[i] as f64 + moved;
                        }
                        let scale = mask.as_ref().map_or(1.0, |m| m[(first + tap) * positions + position]);
                        under[(channel * taps + tap) * positions + position] =
                            scale * between(of_channel, spatial, &at);
                        position += 1;
                    });
                    tap += 1;
                });
            }
            for out in 0..m {
                let from = out / outputs_a_group * per_group * taps * positions;
                let weights = &w[out * per_group * taps..][..per_group * taps];
                for position in 0..positions {
                    let values = under[from..].iter().skip(position).step_by(positions);
                    let sum: f64 = weights.iter().zip(values).map(|(w, v)| w * v).sum();
                    y.push(sum + bias.as_ref().map_or(0.0, |b| b[out]));
                }
            }
        }
        Ok(vec![Tensor::from_elements(inputs.tensor(0)?.dtype(), dims, Elements::Float(y))?.into()])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        self.parts(rw, operands)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let (b, s) = (Sbp::Broadcast, Sbp::Split(0));
        let all = [s, b, s, b, if cx.operand(4).is_some() { s } else { b }];
        vec![SbpSignature::new(&all[..cx.operands.len().min(5)], &[s])]
    }
}
