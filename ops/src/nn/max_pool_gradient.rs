//! `of.max_pool_gradient`.

use std::sync::Arc;

use of_ir::{DType, OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, TensorType, Type, ValueId};

use super::MaxPool;
use super::pool::PoolSample;
use crate::build::{Build, BuildResult};
use crate::elementwise::{Gt, Select};
use crate::movement::{Concat, ScatterElements, Slice, zeros_like};
use crate::sample::Rng;
use crate::structural::{Constant, ShapeOf};
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

op! {
    /// The gradient of `of.max_pool` for its operand `x`: `g` is added at the first maximum of each window; others are zero. A
    /// window of padding alone has no maximum, and its `g` is added nowhere.
    pub struct MaxPoolGradient = "of.max_pool_gradient" [Composite] {
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
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let s = PoolSample::new(&mut r);
        let (kernel, strides, pads, dilations) = (s.kernel, s.strides, s.pads, s.dilations);
        let op = MaxPoolGradient { kernel, strides, pads, dilations, ceil_mode: s.ceil_mode, auto_pad: s.auto_pad };
        let mut dims = s.dims;
        if s.channels_last {
            let channels = dims.pop()?;
            dims.insert(1, channels);
        }
        let x: Vec<of_ir::Dim> = dims.iter().map(|d| of_ir::Dim::from(*d)).collect();
        let g = super::window::fixed(&op.pool().geometry(&x).ok()?.result(false))?;
        Some((vec![r.f32s(&dims), r.f32s(&g)], op))
    };
}

impl MaxPoolGradient {
    /// The gradient of `pool`, whose channels come second.
    pub(super) fn of(pool: &MaxPool) -> MaxPoolGradient {
        let MaxPool { kernel, strides, pads, dilations, ceil_mode, auto_pad, .. } = pool.clone();
        MaxPoolGradient { kernel, strides, pads, dilations, ceil_mode, auto_pad }
    }

    /// The max pool with the positions of its maxima.
    fn pool(&self) -> MaxPool {
        let MaxPoolGradient { kernel, strides, pads, dilations, ceil_mode, auto_pad } = self.clone();
        let (storage_order, indices, channels_last) = (0, true, false);
        MaxPool {
            kernel,
            strides,
            pads,
            dilations,
            ceil_mode,
            storage_order,
            return_indices: indices,
            auto_pad,
            channels_last,
        }
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

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, g) = (cx.tensor(0)?, cx.tensor(1)?);
        if let (Some(s), Some(given)) = (&x.shape, &g.shape) {
            let y = self.pool().geometry(s)?.result(false);
            if y.len() != given.len() || y.iter().zip(given).any(|(a, b)| a.provably_ne(b)) {
                let (given, y) = (shape::show(given), shape::show(&y));
                return Err(OpError::shape(format!("the gradient is {given}, the result of the pool {y}")));
            }
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let sum = Sbp::Partial(PartialKind::Sum);
        let mut out = vec![SbpSignature::new(&[Sbp::Broadcast, sum], &[sum])];
        // Windows never cross samples and channels.
        if cx.tensor(0).is_ok_and(|t| t.rank().is_some_and(|r| r >= 2)) {
            out.extend([0, 1].map(Sbp::Split).map(|s| SbpSignature::new(&[s, s], &[s])));
        }
        out
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
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
