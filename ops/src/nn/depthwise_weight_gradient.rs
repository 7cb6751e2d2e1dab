//! `of.depthwise_weight_gradient`.

use of_ir::{Dim, Elements, OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, Tensor, Type, ValueId};

use super::conv::symbolic;
use super::pool::{self, PoolGeometry, PoolSample};
use super::window::WindowAttrs;
use super::{conv_gradient, layout};
use crate::build::Build;
use crate::sample::Rng;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The gradient of a depthwise convolution for its weights, `[kernel…, C]`: element `k` of the kernel of a channel is the sum of
    /// `x[p * stride + k * dilation - pad] * g[p]` over samples and positions `p`. `x` is `[N, C, spatial…]`, the convolution's
    /// input, and `g` the gradient of its result.
    pub struct DepthwiseWeightGradient = "of.depthwise_weight_gradient" [Primitive] {
        operands: (x, g),
        results: (dw),
        attrs: {
            kernel: Vec<i64>,
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            /// Operands are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let PoolSample { dims, kernel, strides, pads, channels_last, .. } = PoolSample::new(&mut r);
        let dilations = kernel.iter().map(|_| r.int(1, 2)).collect();
        let op = DepthwiseWeightGradient { kernel, strides, pads, dilations, channels_last };
        let g = super::window::fixed(&op.geometry(&symbolic(&dims)).ok()?.result(channels_last))?;
        Some((vec![r.f32s(&dims), r.f32s(&g)], op))
    };
}

impl DepthwiseWeightGradient {
    /// Sizes of everything, for an input of the given dimensions.
    ///
    /// # Errors
    /// When attributes do not fit.
    pub fn geometry(&self, x: &[Dim]) -> Result<PoolGeometry<Dim>, OpError> {
        let DepthwiseWeightGradient { strides, pads, dilations, .. } = self;
        let attrs = WindowAttrs { strides, pads, dilations, auto_pad: "NOTSET", ceil: false };
        PoolGeometry::new(x, &self.kernel, attrs, self.channels_last)
    }
}

impl Op for DepthwiseWeightGradient {
    op_basics!(DepthwiseWeightGradient);

    fn flops(&self, cx: &OpView<'_>, _results: &[Type]) -> Option<f64> {
        let taps = self.kernel.iter().product::<i64>() as f64;
        Some(2.0 * crate::estimate::elements(cx.graph.ty(cx.operands[1])) * taps)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, g) = (cx.tensor(0)?, cx.tensor(1)?);
        if !x.dtype.is_float() || x.dtype != g.dtype {
            return Err(OpError::ty(format!(
                "operands must be floats of one type, they are {} and {}",
                x.dtype, g.dtype
            )));
        }
        let mut channels = Dim::unknown();
        if let Some(s) = &x.shape {
            let geometry = self.geometry(s)?;
            channels = geometry.c.clone();
            let y = geometry.result(self.channels_last);
            let differs =
                |given: &of_ir::Shape| y.len() != given.len() || y.iter().zip(given).any(|(a, b)| a.provably_ne(b));
            if let Some(given) = g.shape.as_ref().filter(|given| differs(given)) {
                let (given, y) = (shape::show(given), shape::show(&y));
                return Err(OpError::shape(format!("the gradient is {given}, the result of the convolution {y}")));
            }
        }
        let dims = self.kernel.iter().map(|k| Dim::from(*k)).chain([channels]).collect();
        Ok(vec![Type::tensor(x.dtype, dims)])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, g) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let geometry = self.geometry(&symbolic(x.dims()))?.fixed()?;
        let (n, c, windows) = (geometry.n, geometry.c, &geometry.windows);
        let (area_in, area_out) = windows.areas();
        let values = pool::planes(x, &geometry, self.channels_last)?;
        let gradient = pool::result_planes(g, &geometry, self.channels_last)?;
        let step = windows.step();
        let taps: usize = windows.kernel.iter().product();
        let mut dw = vec![0.0; taps * c];
        for (tap, runs) in windows.runs() {
            for plane in 0..n * c {
                let (x, g) = (&values[plane * area_in..][..area_in], &gradient[plane * area_out..][..area_out]);
                let sum = |run: &super::window::Run| {
                    (0..run.len).map(|i| g[run.output + i] * x[run.input + i * step]).sum::<f64>()
                };
                dw[tap * c + plane % c] += runs.iter().map(sum).sum::<f64>();
            }
        }
        let dims = windows.kernel.iter().copied().chain([c]).collect();
        Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(dw))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let sum = Sbp::Partial(PartialKind::Sum);
        let split = |axis: usize| Sbp::Split(axis as u8);
        let mut out = vec![
            SbpSignature::new(&[Sbp::Broadcast, sum], &[sum]),
            SbpSignature::new(&[sum, Sbp::Broadcast], &[sum]),
            SbpSignature::new(&[split(0), split(0)], &[sum]),
        ];
        if let Some(rank) = cx.tensor(0).ok().and_then(|t| t.rank()).filter(|rank| *rank >= 2) {
            let channels = split(layout::channel_axis(rank, self.channels_last));
            out.push(SbpSignature::new(&[channels, channels], &[split(self.kernel.len())]));
        }
        out
    }

    fn expands(&self) -> bool {
        true
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let &[x, g] = operands else { return Ok(vec![]) };
        let b = &mut Build::new(rw);
        let rank = b.rank(x)?;
        if self.channels_last {
            let to_first: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
            let (x, g) = (b.transpose(x, &to_first)?, b.transpose(g, &to_first)?);
            return Ok(vec![b.op(DepthwiseWeightGradient { channels_last: false, ..self.clone() }, &[x, g])?]);
        }
        Ok(vec![conv_gradient::depthwise_kernel(b, self, x, g)?])
    }
}
