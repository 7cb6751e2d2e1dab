//! `of.max_pool_gradient`.

use std::sync::Arc;

use of_ir::{
    DType, Dim, Elements, OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId,
};

use super::conv::{self, symbolic};
use super::pool::{self, PoolGeometry, PoolSample};
use super::{MaxPool, layout, max_pool};
use crate::build::{Build, BuildResult};
use crate::elementwise::{Gt, Select};
use crate::movement::{Concat, ScatterElements, Slice, zeros_like};
use crate::sample::Rng;
use crate::structural::{Constant, ShapeOf};
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The gradient of `of.max_pool` for its operand `x`: `g` is added at the first maximum of each window; others are zero. A
    /// window of padding alone has no maximum, and its `g` is added nowhere. `[N, C, spatial…]` operands and result.
    pub struct MaxPoolGradient = "of.max_pool_gradient" [Primitive] {
        operands: (x, g),
        results: (dx),
        attrs: {
            kernel: Vec<i64>,
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
            dilations: Vec<i64>,
            /// Round the number of positions up.
            ceil_mode: bool,
            /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; anything but `NOTSET` overrides `pads`.
            auto_pad: Arc<str>,
            /// Operands and result are `[N, spatial…, C]`.
            channels_last: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let s = PoolSample::new(&mut r);
        let (kernel, strides, pads, dilations) = (s.kernel, s.strides, s.pads, s.dilations);
        let (ceil_mode, auto_pad, channels_last) = (s.ceil_mode, s.auto_pad, s.channels_last);
        let op = MaxPoolGradient { kernel, strides, pads, dilations, ceil_mode, auto_pad, channels_last };
        let g = super::window::fixed(&op.geometry(&symbolic(&s.dims)).ok()?.result(channels_last))?;
        Some((vec![r.f32s(&s.dims), r.f32s(&g)], op))
    };
}

impl MaxPoolGradient {
    /// The gradient of `pool`.
    pub(super) fn of(pool: &MaxPool) -> MaxPoolGradient {
        let MaxPool { kernel, strides, pads, dilations, ceil_mode, auto_pad, channels_last, .. } = pool.clone();
        MaxPoolGradient { kernel, strides, pads, dilations, ceil_mode, auto_pad, channels_last }
    }

    /// The max pool with the positions of its maxima.
    fn pool(&self) -> MaxPool {
        let MaxPoolGradient { kernel, strides, pads, dilations, ceil_mode, auto_pad, channels_last } = self.clone();
        let (storage_order, return_indices) = (0, true);
        MaxPool { kernel, strides, pads, dilations, ceil_mode, storage_order, return_indices, auto_pad, channels_last }
    }

    /// Sizes of everything, for an input of the given dimensions.
    ///
    /// # Errors
    /// When attributes do not fit.
    pub fn geometry(&self, x: &[Dim]) -> Result<PoolGeometry<Dim>, OpError> {
        self.pool().geometry(x)
    }

    fn windows_reach(&self, b: &Build<'_, '_>, x: ValueId) -> bool {
        b.shape(x).is_some_and(|shape| self.pool().windows_reach(&shape))
    }

    /// The positions `at` of the maxima, and -1 for windows of padding alone: those in which a pool finds no 1 of an image of
    /// ones.
    fn positions(&self, b: &mut Build<'_, '_>, x: ValueId, at: ValueId) -> BuildResult {
        let spatial = b.op(ShapeOf { start: Some(2), end: None }, &[x])?;
        let plane = b.ints(&[1, 1])?;
        let dims = b.op(Concat { axis: 0 }, &[plane, spatial])?;
        let (zero, one) = (Constant::number(b.rw, 0.0, DType::F32)?, Constant::number(b.rw, 1.0, DType::F32)?);
        let ones = b.expand(one, dims)?;
        let found = b.rw.create(self.pool(), &[ones])?;
        let found = b.rw.graph().op(found).results[0];
        let found = b.op(Gt {}, &[found, zero])?;
        let nowhere = b.number(-1.0, at)?;
        b.op(Select {}, &[found, at, nowhere])
    }
}

impl Op for MaxPoolGradient {
    op_basics!(MaxPoolGradient);

    fn flops(&self, cx: &OpView<'_>, _results: &[Type]) -> Option<f64> {
        // A comparison and a sum for each element of a window.
        Some(2.0 * crate::estimate::elements(cx.graph.ty(cx.operands[1])) * self.kernel.iter().product::<i64>() as f64)
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, g) = (cx.tensor(0)?, cx.tensor(1)?);
        if let (Some(s), Some(given)) = (&x.shape, &g.shape) {
            let y = self.geometry(s)?.result(self.channels_last);
            if y.len() != given.len() || y.iter().zip(given).any(|(a, b)| a.provably_ne(b)) {
                let (given, y) = (shape::show(given), shape::show(&y));
                return Err(OpError::shape(format!("the gradient is {given}, the result of the pool {y}")));
            }
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, g) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let geometry = self.geometry(&symbolic(x.dims()))?.fixed()?;
        let (area_in, _) = geometry.windows.areas();
        let (n, c) = (geometry.n, geometry.c);
        let values = pool::planes(x, &geometry, self.channels_last)?;
        let added = pool::result_planes(g, &geometry, self.channels_last)?;
        let mut dx = vec![0.0; n * c * area_in];
        for (at, added) in max_pool::maxima(&values, &geometry).into_iter().zip(added) {
            if let Some(at) = at {
                dx[at] += added;
            }
        }
        let (dx, dims) = conv::finish(dx, n, c, &geometry.windows.input, self.channels_last);
        Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(dx))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let sum = Sbp::Partial(PartialKind::Sum);
        let mut out = vec![SbpSignature::new(&[Sbp::Broadcast, sum], &[sum])];
        // Windows never cross samples and channels.
        if let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank).filter(|rank| *rank >= 2) {
            let axes = [0, layout::channel_axis(rank, self.channels_last) as u8];
            out.extend(axes.map(Sbp::Split).map(|s| SbpSignature::new(&[s, s], &[s])));
        }
        out
    }

    fn expands(&self) -> bool {
        true
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        if self.channels_last {
            return layout::channels_first(rw, operands, 2, MaxPoolGradient { channels_last: false, ..self.clone() });
        }
        let &[x, g] = operands else { return Ok(vec![]) };
        let found = rw.create(self.pool(), &[x])?;
        let at = rw.graph().op(found).results[1];
        let mut b = Build::new(rw);
        let [flat, g] = [x, g].map(|v| b.reshape(v, &[-1]));
        let (flat, g) = (flat?, g?);
        let (add, reach) = (ScatterElements { axis: 0, reduction: "add".into() }, self.windows_reach(&b, x));
        let dx = if reach {
            let (nothing, at) = (zeros_like(b.rw, flat)?, b.reshape(at, &[-1])?);
            b.op(add, &[nothing, at, g])?
        } else {
            // Gradients of windows of padding alone are added to one more element, which is then removed.
            let count = b.shape_of(flat)?;
            let count = b.add_number(count, 1.0)?;
            let nothing = b.number(0.0, g)?;
            let nothing = b.expand(nothing, count)?;
            let at = self.positions(&mut b, x, at)?;
            let at = b.reshape(at, &[-1])?;
            let dx = b.op(add, &[nothing, at, g])?;
            let [first, end] = [0, -1].map(|i| b.ints(&[i]));
            let axis = b.ints(&[0])?;
            b.op(Slice {}, &[dx, first?, end?, axis])?
        };
        Ok(vec![b.reshape_like(dx, x)?])
    }
}
