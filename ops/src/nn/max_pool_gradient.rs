//! `of.max_pool_gradient`.

use std::sync::Arc;

use of_ir::{OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, TensorType, Type, ValueId};

use super::MaxPool;
use super::pool::PoolSample;
use crate::build::Build;
use crate::movement::{ScatterElements, zeros_like};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics, shape};

op! {
    /// The gradient of `of.max_pool` for its operand `x`: `g` is added at the first maximum of each window; others are zero.
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
        let x: Vec<of_ir::Dim> = s.dims.iter().map(|d| of_ir::Dim::from(*d)).collect();
        let g = super::window::fixed(&op.pool().geometry(&x).ok()?.result(false))?;
        Some((vec![r.f32s(&s.dims), r.f32s(&g)], op))
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
        let nothing = zeros_like(rw, x)?;
        let mut b = Build::new(rw);
        let [nothing, at, g] = [nothing, at, g].map(|v| b.reshape(v, &[-1]));
        let add = ScatterElements { axis: 0, reduction: "add".into() };
        let dx = b.op(add, &[nothing?, at?, g?])?;
        Ok(vec![b.reshape_like(dx, x)?])
    }
}
