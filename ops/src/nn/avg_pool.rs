//! `of.avg_pool`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{Dim, Elements, OpError, OpView, PartialKind, Rewriter, SbpSignature, Tensor, Type, ValueId};

use super::conv::{self, symbolic};
use super::layout;
use super::pool::{self, PoolGeometry, PoolSample};
use super::window::{WindowAttrs, Windows};
use crate::sample::Rng;
use crate::{Evaluated, Expanded, GradCx, Inferred, Inputs, Op, op, op_basics};

op! {
    /// The mean of each window.
    ///
    /// Padding counts as zeros with `count_include_pad` and does not count otherwise; what `ceil_mode` adds beyond the
    /// padding never counts. Source: ONNX AveragePool.
    pub struct AvgPool = "of.avg_pool" [Primitive, onnx: "AveragePool"] {
        operands: (x),
        results: (y),
        attrs: {
            kernel: Vec<i64>,
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            /// Round the number of positions up.
            ceil_mode: bool,
            count_include_pad: bool,
            /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; anything but `NOTSET` overrides `pads`.
            auto_pad: Arc<str>,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let s = PoolSample::new(&mut r);
        let op = AvgPool {
            kernel: s.kernel,
            strides: s.strides,
            pads: s.pads,
            dilations: s.dilations,
            ceil_mode: s.ceil_mode,
            count_include_pad: r.int(0, 1) == 0,
            auto_pad: s.auto_pad,
            channels_last: s.channels_last,
        };
        Some((vec![r.f32s(&s.dims)], op))
    };
}

impl AvgPool {
    /// Sizes of everything, for an input of the given dimensions.
    ///
    /// # Errors
    /// When attributes do not fit.
    pub fn geometry(&self, x: &[Dim]) -> Result<PoolGeometry<Dim>, OpError> {
        let AvgPool { strides, pads, dilations, auto_pad, .. } = self;
        let attrs = WindowAttrs { strides, pads, dilations, auto_pad, ceil: self.ceil_mode };
        PoolGeometry::new(x, &self.kernel, attrs, self.channels_last)
    }

    /// By how much each window position divides, in row-major order.
    pub fn counts(&self, w: &Windows<usize>) -> Vec<f64> {
        // Elements of the window at position `o` of axis `a` whose position is in `from..to`, counted with padding.
        let along = |a: usize, o: usize| {
            let (from, to) = if self.count_include_pad {
                (0, w.input[a] + w.pads_begin[a] + w.pads_end[a])
            } else {
                (w.pads_begin[a], w.pads_begin[a] + w.input[a])
            };
            let start = o * w.strides[a];
            let before = |at: usize| at.saturating_sub(start).div_ceil(w.dilations[a]).min(w.kernel[a]);
            (before(to) - before(from)) as f64
        };
        let axes: Vec<Vec<f64>> =
            (0..w.output.len()).map(|a| (0..w.output[a]).map(|o| along(a, o)).collect()).collect();
        let mut out = Vec::new();
        crate::shape::for_each_index(&w.output, |i| out.push(i.iter().zip(&axes).map(|(o, c)| c[*o]).product()));
        out
    }
}

impl Op for AvgPool {
    op_basics!(AvgPool);

    fn flops(&self, _cx: &OpView<'_>, results: &[Type]) -> Option<f64> {
        Some(crate::estimate::elements(results.first()?) * self.kernel.iter().product::<i64>() as f64)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        Ok(vec![pool::ty(pool::infer(cx, self.channels_last, |s| self.geometry(s))?)])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let g = self.geometry(&symbolic(x.dims()))?.fixed()?;
        let v = pool::planes(x, &g, self.channels_last)?;
        let (area_in, area_out) = g.windows.areas();
        let (runs, step, counts) = (g.windows.runs(), g.windows.step(), self.counts(&g.windows));
        let mut y = vec![0f64; g.n * g.c * area_out];
        for plane in 0..g.n * g.c {
            let from = &v[plane * area_in..][..area_in];
            let to = &mut y[plane * area_out..][..area_out];
            for r in runs.iter().flat_map(|(_, list)| list) {
                let from = from[r.input..].iter().step_by(step);
                to[r.output..][..r.len].iter_mut().zip(from).for_each(|(t, x)| *t += x);
            }
            // A position without any element gives zero rather than NaN.
            to.iter_mut().zip(&counts).for_each(|(t, c)| *t /= c.max(1.0));
        }
        let (y, dims) = conv::finish(y, g.n, g.c, &g.windows.output, self.channels_last);
        Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(y))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let mut out = pool::splits(cx, self.channels_last);
        // Linear, but for the rounding of integers.
        if cx.tensor(0).is_ok_and(|t| t.dtype.is_float()) {
            out.push(pool::partial(PartialKind::Sum));
        }
        out
    }

    fn expands(&self) -> bool {
        self.channels_last
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        layout::channels_first(rw, operands, 1, AvgPool { channels_last: false, ..self.clone() })
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        // Layouts are chosen after differentiation.
        if self.channels_last {
            return None;
        }
        let g = cx.grads[0]?;
        let x = cx.rw.graph().ty(cx.operands[0]).as_tensor()?.clone();
        let geometry = self.geometry(x.shape.as_ref()?).ok()?;
        let counts = self.counts(&geometry.windows.fixed()?);
        super::conv_gradient::avg_pool(cx, g, &geometry, &counts)
    }
}
