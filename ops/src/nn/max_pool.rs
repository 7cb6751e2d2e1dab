//! `of.max_pool`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{DType, Dim, Elements, OpError, OpView, PartialKind, Rewriter, SbpSignature, Tensor, Type, ValueId};

use super::MaxPoolGradient;
use super::conv::{self, symbolic};
use super::layout;
use super::pool::{self, PoolGeometry, PoolSample};
use super::window::WindowAttrs;
use crate::sample::Rng;
use crate::{Evaluated, Expanded, GradCx, Inferred, Inputs, Op, op, op_basics};

op! {
    /// The largest element of each window; padding does not count.
    ///
    /// With `return_indices`, result 1 (i64) is the first position of each maximum, as an index into the flattened
    /// `[N, C, spatial…]` input. `storage_order` 1 counts the spatial part of it column-major. Source: ONNX MaxPool.
    pub struct MaxPool = "of.max_pool" [Primitive, onnx: "MaxPool"] {
        operands: (x),
        results: (y, indices?),
        attrs: {
            kernel: Vec<i64>,
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            /// Round the number of positions up.
            ceil_mode: bool,
            storage_order: i64,
            /// Whether there is a second result.
            return_indices: bool,
            /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; anything but `NOTSET` overrides `pads`.
            auto_pad: Arc<str>,
            /// `x` and `y` are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let s = PoolSample::new(&mut r);
        let op = MaxPool {
            kernel: s.kernel,
            strides: s.strides,
            pads: s.pads,
            dilations: s.dilations,
            ceil_mode: s.ceil_mode,
            storage_order: r.int(0, 1),
            return_indices: r.int(0, 1) == 0,
            auto_pad: s.auto_pad,
            channels_last: s.channels_last,
        };
        Some((vec![r.f32s(&s.dims)], op))
    };
}

impl MaxPool {
    /// Sizes of everything, for an input of the given dimensions.
    ///
    /// # Errors
    /// When attributes do not fit.
    pub fn geometry(&self, x: &[Dim]) -> Result<PoolGeometry<Dim>, OpError> {
        let MaxPool { strides, pads, dilations, auto_pad, .. } = self;
        let attrs = WindowAttrs { strides, pads, dilations, auto_pad, ceil: self.ceil_mode };
        PoolGeometry::new(x, &self.kernel, attrs, self.channels_last)
    }

    /// Whether every window has an element of an input of the given dimensions: the least number is no result then, and the
    /// pool commutes with increasing functions.
    pub fn windows_reach(&self, x: &[Dim]) -> bool {
        self.geometry(x).is_ok_and(|g| g.windows.reach_input())
    }

    /// Position of spatial element `flat` (row-major) as the result counts it.
    fn position(&self, flat: usize, spatial: &[usize]) -> usize {
        // Where an axis has no elements there is no position either.
        if self.storage_order != 1 || spatial.contains(&0) {
            return flat;
        }
        let (mut rest, mut index) = (flat, vec![0; spatial.len()]);
        for a in (0..spatial.len()).rev() {
            index[a] = rest % spatial[a];
            rest /= spatial[a];
        }
        (0..spatial.len()).rev().fold(0, |p, a| p * spatial[a] + index[a])
    }
}

/// Where in `[N, C, spatial…]` the first maximum of each window is; `None` for windows of padding alone. NaN wins, as in the
/// elementwise maximum.
pub(super) fn maxima(x: &[f64], g: &PoolGeometry<usize>) -> Vec<Option<usize>> {
    let (area_in, area_out) = g.windows.areas();
    let (runs, step) = (g.windows.runs(), g.windows.step());
    let mut maxima: Vec<Option<usize>> = vec![None; g.n * g.c * area_out];
    for (plane, maxima) in maxima.chunks_exact_mut(area_out.max(1)).enumerate() {
        for r in runs.iter().flat_map(|(_, list)| list) {
            for i in 0..r.len {
                let (best, at) = (&mut maxima[r.output + i], plane * area_in + r.input + i * step);
                let larger = |best: usize| x[at] > x[best] || x[at].is_nan() && !x[best].is_nan();
                if best.is_none_or(larger) {
                    *best = Some(at);
                }
            }
        }
    }
    maxima
}

impl Op for MaxPool {
    op_basics!(MaxPool);

    fn flops(&self, _cx: &OpView<'_>, results: &[Type]) -> Option<f64> {
        Some(crate::estimate::elements(results.first()?) * self.kernel.iter().product::<i64>() as f64)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if !(0..=1).contains(&self.storage_order) {
            return Err(OpError::attr(format!("storage_order is {}, it must be 0 or 1", self.storage_order)));
        }
        let y = pool::infer(cx, self.channels_last, |s| self.geometry(s))?;
        let indices = self.return_indices.then(|| Type::Tensor(y.with_dtype(DType::I64)));
        Ok(std::iter::once(Type::Tensor(y)).chain(indices).collect())
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let g = self.geometry(&symbolic(x.dims()))?.fixed()?;
        let v = pool::planes(x, &g, self.channels_last)?;
        // A window entirely within the padding yields the smallest value of the type.
        let least = x.dtype().int_range().map_or(f64::NEG_INFINITY, |(lo, _)| lo as f64);
        let maxima = maxima(&v, &g);
        let best: Vec<f64> = maxima.iter().map(|at| at.map_or(least, |at| v[at])).collect();
        let (y, dims) = conv::finish(best, g.n, g.c, &g.windows.output, self.channels_last);
        let mut out = vec![Tensor::from_elements(x.dtype(), dims.clone(), Elements::Float(y))?.into()];
        if self.return_indices {
            let (area_in, area_out) = g.windows.areas();
            let position = |(o, at): (usize, &Option<usize>)| {
                let first = o / area_out * area_in;
                (first + self.position(at.map_or(0, |at| at - first), &g.windows.input)) as i64
            };
            let at: Vec<i64> = maxima.iter().enumerate().map(position).collect();
            let (at, _) = conv::finish(at, g.n, g.c, &g.windows.output, self.channels_last);
            out.push(Tensor::from_slice(&dims, &at)?.into());
        }
        Ok(out)
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        // Indices count from the start of the global tensor, which a slice of it does not know.
        if self.return_indices {
            return Vec::new();
        }
        let mut out = pool::splits(cx, self.channels_last);
        out.push(pool::partial(PartialKind::Max));
        out
    }

    fn expands(&self) -> bool {
        self.channels_last
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        layout::channels_first(rw, operands, 1, MaxPool { channels_last: false, ..self.clone() })
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        Some(cx.rw.create_one(MaxPoolGradient::of(self), &[cx.operands[0], g]).map(|dx| vec![Some(dx)]))
    }
}
