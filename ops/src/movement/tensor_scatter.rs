//! `of.tensor_scatter`.

use std::sync::Arc;

use of_ir::{DType, OpError, OpView, Rewriter, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::{Range, ScatterElements};
use crate::build::{Build, diagnostic};
use crate::elementwise::Mod;
use crate::sample::Rng;
use crate::structural::ShapeOf;
use crate::{Expanded, Inferred, Op, Value, op, op_basics, shape};

op! {
    /// Updates a cache: writes the update of sample `n` along `axis` from index `write_indices[n]` on, by default 0.
    ///
    /// Indices past the end are an error in `linear` mode and wrap around in `circular` mode. Source: ONNX
    /// TensorScatter.
    pub struct TensorScatter = "of.tensor_scatter" [Composite, onnx: "TensorScatter"] {
        operands: (past_cache, update, write_indices?),
        results: (present_cache),
        attrs: { axis: i64, mode: Arc<str> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(2, 4) as usize;
        let mut dims = r.dims(rank, 1, 4);
        let axis = r.int(1, rank as i64 - 1) as usize;
        let mut own = dims.clone();
        let circular = r.int(0, 1) == 0;
        dims[axis] += 2;
        let last = if circular { dims[axis] - 1 } else { dims[axis] - own[axis] };
        let at: Vec<i64> = (0..dims[0]).map(|_| r.int(0, last as i64)).collect();
        own[axis] = own[axis].min(dims[axis]);
        let at = if r.int(0, 2) == 0 { Value::None } else { Value::Tensor(Tensor::from_i64s(&at)) };
        let axis = if r.int(0, 1) == 0 { axis as i64 } else { axis as i64 - rank as i64 };
        let mode = if circular { "circular" } else { "linear" };
        Some((vec![r.f32s(&dims), r.f32s(&own), at], TensorScatter { axis, mode: mode.into() }))
    };
}

impl TensorScatter {
    /// The axis, which cannot be the first.
    fn axis(&self, rank: usize) -> Result<usize, OpError> {
        match shape::axis(self.axis, rank)? {
            0 => Err(OpError::attr("axis 0 is that of the samples")),
            a => Ok(a),
        }
    }
}

impl Op for TensorScatter {
    op_basics!(TensorScatter);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (past, update) = (cx.tensor(0)?, cx.tensor(1)?);
        if !["linear", "circular"].contains(&&*self.mode) {
            return Err(OpError::attr(format!("mode is '{}', it must be linear or circular", self.mode)));
        }
        if past.dtype != update.dtype {
            return Err(OpError::ty(format!("the cache is {} and the update {}", past.dtype, update.dtype)));
        }
        if let (Some(p), Some(u)) = (&past.shape, &update.shape) {
            let axis = self.axis(p.len())?;
            let longer = |u: Option<i64>, p: Option<i64>| matches!((u, p), (Some(u), Some(p)) if u > p);
            if p.len() != u.len()
                || (0..p.len()).any(|a| a != axis && p[a].provably_ne(&u[a]))
                || longer(u[axis].as_const(), p[axis].as_const())
            {
                return Err(OpError::shape(format!("an update {} does not fit {}", shape::show(u), shape::show(p))));
            }
        }
        if let Some(at) = cx.ty(2).and_then(Type::as_tensor) {
            let first = past.shape.as_ref().and_then(|s| s.first());
            let fits = |s: &of_ir::Shape| s.len() == 1 && first.is_none_or(|n| !n.provably_ne(&s[0]));
            if !at.dtype.is_int() || !at.shape.as_ref().is_none_or(fits) {
                return Err(OpError::ty("write_indices must be one integer for each sample"));
            }
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..past.clone() })])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let mut b = Build::new(rw);
        let (past, update) = (operands[0], operands[1]);
        let rank = b.rank(past)?;
        let axis = self.axis(rank).map_err(diagnostic)?;
        let length = ShapeOf { start: Some(axis as i64), end: Some(axis as i64 + 1) };
        let own = b.op(length.clone(), &[update])?;
        let own = b.squeeze(own, &[0])?;
        let (zero, one) = (b.constant(Tensor::scalar(0i64))?, b.constant(Tensor::scalar(1i64))?);
        let steps = b.op(Range {}, &[zero, own, one])?;
        let others = |keep: usize| (0..rank).filter(|a| *a != keep).collect::<Vec<_>>();
        let mut at = b.unsqueeze(steps, &others(axis))?;
        if let Some(from) = b.given(operands, 2) {
            let from = b.cast(from, DType::I64)?;
            let from = b.unsqueeze(from, &others(0))?;
            at = b.add(at, from)?;
        }
        if &*self.mode == "circular" {
            let n = b.op(length, &[past])?;
            at = b.op(Mod {}, &[at, n])?;
        }
        let dims = b.shape_of(update)?;
        let at = b.expand(at, dims)?;
        Ok(vec![b.op(ScatterElements { axis: axis as i64, reduction: "none".into() }, &[past, at, update])?])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return Vec::new() };
        let Ok(axis) = self.axis(rank) else { return Vec::new() };
        let given = cx.ty(2).and_then(Type::as_tensor).is_some();
        let one = |a: usize| {
            let s = super::split(a)?;
            let mut operands = vec![Sbp::Broadcast; cx.operands.len()];
            (operands[0], operands[1]) = (s, s);
            if given && a == 0 {
                operands[2] = s;
            }
            Some(SbpSignature::new(&operands, &[s]))
        };
        (0..rank).filter(|a| *a != axis).filter_map(one).collect()
    }
}
