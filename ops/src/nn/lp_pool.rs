//! `of.lp_pool`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{Dim, Elements, OpError, OpView, Rewriter, SbpSignature, Tensor, ValueId};

use super::conv::{self, symbolic};
use super::conv_gradient::Spread;
use super::layout;
use super::pool::{self, PoolGeometry, PoolSample};
use super::window::WindowAttrs;
use crate::build::Build;
use crate::elementwise::{Abs, Pow, Sign};
use crate::sample::Rng;
use crate::{Evaluated, Expanded, GradCx, Inferred, Inputs, Op, op, op_basics};

op! {
    /// The p-norm of each window: `(sum |x|^p)^(1/p)`; padding counts as zeros. Source: ONNX LpPool.
    pub struct LpPool = "of.lp_pool" [Primitive, onnx: "LpPool"] {
        operands: (x),
        results: (y),
        attrs: {
            p: i64,
            kernel: Vec<i64>,
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            /// Round the number of positions up.
            ceil_mode: bool,
            /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; anything but `NOTSET` overrides `pads`.
            auto_pad: Arc<str>,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let s = PoolSample::new(&mut r);
        let op = LpPool {
            p: r.int(1, 3),
            kernel: s.kernel,
            strides: s.strides,
            pads: s.pads,
            dilations: s.dilations,
            ceil_mode: s.ceil_mode,
            auto_pad: s.auto_pad,
            channels_last: s.channels_last,
        };
        Some((vec![r.f32s(&s.dims)], op))
    };
}

impl LpPool {
    /// Sizes of everything, for an input of the given dimensions.
    ///
    /// # Errors
    /// When attributes do not fit.
    pub fn geometry(&self, x: &[Dim]) -> Result<PoolGeometry<Dim>, OpError> {
        let LpPool { strides, pads, dilations, auto_pad, .. } = self;
        let attrs = WindowAttrs { strides, pads, dilations, auto_pad, ceil: self.ceil_mode };
        PoolGeometry::new(x, &self.kernel, attrs, self.channels_last)
    }
}

impl Op for LpPool {
    op_basics!(LpPool);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if self.p < 1 {
            return Err(OpError::attr(format!("p is {}, it must be at least 1", self.p)));
        }
        Ok(vec![pool::ty(pool::infer(cx, self.channels_last, |s| self.geometry(s))?)])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let g = self.geometry(&symbolic(x.dims()))?.fixed()?;
        let p = self.p as f64;
        let v: Vec<f64> = pool::planes(x, &g, self.channels_last)?.into_iter().map(|x| x.abs().powf(p)).collect();
        let (area_in, area_out) = g.windows.areas();
        let (runs, step) = (g.windows.runs(), g.windows.step());
        let mut y = vec![0f64; g.n * g.c * area_out];
        for plane in 0..g.n * g.c {
            let from = &v[plane * area_in..][..area_in];
            let to = &mut y[plane * area_out..][..area_out];
            for r in runs.iter().flat_map(|(_, list)| list) {
                let from = from[r.input..].iter().step_by(step);
                to[r.output..][..r.len].iter_mut().zip(from).for_each(|(t, x)| *t += x);
            }
            to.iter_mut().for_each(|t| *t = t.powf(1.0 / p));
        }
        let (y, dims) = conv::finish(y, g.n, g.c, &g.windows.output, self.channels_last);
        Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(y))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        pool::splits(cx, self.channels_last)
    }

    fn expands(&self) -> bool {
        self.channels_last
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        layout::channels_first(rw, operands, 1, LpPool { channels_last: false, ..self.clone() })
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        // Layouts are chosen after differentiation.
        let g = cx.grads[0].filter(|_| !self.channels_last)?;
        let (x, y) = (cx.operands[0], cx.results[0]);
        let geometry = self.geometry(cx.rw.graph().ty(x).as_tensor()?.shape.as_ref()?).ok()?;
        let spread = Spread::new(&geometry)?;
        let mut b = Build::new(cx.rw);
        // dx = |x|^(p-1) sign(x) times the sum of g y^(1-p) over the windows; where y is 0, so is every x.
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let power = |b: &mut Build<'_, '_>, v: ValueId, p: i64| {
                let p = b.number(p as f64, v)?;
                b.op(Pow {}, &[v, p])
            };
            let norm = b.nonzero(y)?;
            let norm = power(&mut b, norm, 1 - self.p)?;
            let each = b.mul(g, norm)?;
            let sums = spread.to_windows(&mut b, each)?;
            let (size, sign) = (b.op(Abs {}, &[x])?, b.op(Sign {}, &[x])?);
            let slope = power(&mut b, size, self.p - 1)?;
            let slope = b.mul(slope, sign)?;
            Ok(vec![Some(b.mul(sums, slope)?)])
        };
        Some(run())
    }
}
