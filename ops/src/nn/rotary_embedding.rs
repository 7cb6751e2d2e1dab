//! `of.rotary_embedding`.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{DType, OpError, OpView, Rewriter, TensorType, Type, ValueId};

use crate::build::{Build, BuildResult};
use crate::movement::{Concat, Gather, Slice};
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, Value, op, op_basics, shape};

op! {
    /// Rotary position embedding: pairs of features are rotated by the angle of their position.
    ///
    /// `x` is `[batch, heads, sequence, size]`, or `[batch, sequence, heads * size]` with `num_heads`. Feature `i` pairs
    /// with `i + r / 2`, or with its neighbour when `interleaved`, where the first `r = rotary_embedding_dim` features (0:
    /// all) of a head turn: `(a, b)` becomes `(a cos - b sin, a sin + b cos)`. The caches are `[positions, r / 2]` with
    /// `position_ids` and `[batch, sequence, r / 2]` without. Source: ONNX RotaryEmbedding; Su et al.: "RoFormer" (2021).
    pub struct RotaryEmbedding = "of.rotary_embedding" [Composite, onnx: "RotaryEmbedding"] {
        operands: (x, cos_cache, sin_cache, position_ids?),
        results: (y),
        attrs: { interleaved: bool, num_heads: i64, rotary_embedding_dim: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (batch, heads, sequence) = (r.int(1, 3) as usize, r.int(1, 3) as usize, r.int(1, 4) as usize);
        let half = r.int(1, 3) as usize;
        let rest = r.int(0, 1) as usize * 2;
        let size = 2 * half + rest;
        let flat = r.int(0, 1) == 0;
        let x = if flat { r.f32s(&[batch, sequence, heads * size]) } else { r.f32s(&[batch, heads, sequence, size]) };
        let with_ids = r.int(0, 1) == 0;
        let cache = if with_ids { vec![6, half] } else { vec![batch, sequence, half] };
        let (cos, sin) = (r.f32s(&cache), r.f32s(&cache));
        let ids = r.tensor(DType::I64, &[batch, sequence], 0.0, 6.0);
        let op = RotaryEmbedding {
            interleaved: r.int(0, 1) == 0,
            num_heads: if flat { heads as i64 } else { 0 },
            rotary_embedding_dim: if rest > 0 { 2 * half as i64 } else { 0 },
        };
        Some((vec![x, cos, sin, if with_ids { ids.into() } else { Value::None }], op))
    };
}

impl RotaryEmbedding {
    /// The number of features of a head, where it is known.
    fn size(&self, x: &TensorType) -> Option<i64> {
        let s = x.shape.as_ref()?;
        let last = s.last()?.as_const()?;
        if s.len() == 3 { last.checked_div(self.num_heads) } else { Some(last) }
    }

    /// The number of features of a head that turn, where it is known.
    fn turning(&self, x: &TensorType) -> Option<i64> {
        if self.rotary_embedding_dim == 0 { self.size(x) } else { Some(self.rotary_embedding_dim) }
    }
}

/// Elements `from..to` of the last axis, every `step`th.
fn part(b: &mut Build<'_, '_>, x: ValueId, from: i64, to: i64, step: i64) -> BuildResult {
    let operands = [from, to, -1, step].map(|i| b.ints(&[i]));
    let [from, to, axis, step] = operands;
    b.op(Slice {}, &[x, from?, to?, axis?, step?])
}

impl Op for RotaryEmbedding {
    op_basics!(RotaryEmbedding);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, cos, sin) = (cx.tensor(0)?, cx.tensor(1)?, cx.tensor(2)?);
        if !x.dtype.is_float() || x.dtype != cos.dtype || x.dtype != sin.dtype {
            return Err(OpError::ty("the input and the caches must be floating-point numbers of one type"));
        }
        if let Some(s) = &x.shape {
            if s.len() != 3 && s.len() != 4 {
                return Err(OpError::shape(format!("the input must be of rank 3 or 4, it is {}", shape::show(s))));
            }
            if s.len() == 3 && self.num_heads < 1 {
                return Err(OpError::attr("an input of rank 3 needs num_heads"));
            }
            if s.len() == 3 && s[2].as_const().is_some_and(|n| n % self.num_heads != 0) {
                return Err(OpError::shape(format!("{} features do not fit {} heads", s[2], self.num_heads)));
            }
        }
        if let Some(r) = self.turning(x) {
            if r % 2 != 0 || r < 0 || self.size(x).is_some_and(|n| r > n) {
                return Err(OpError::shape(format!("{r} features cannot turn in pairs")));
            }
            for t in [cos, sin] {
                let last = t.shape.as_ref().and_then(|s| s.last()?.as_const());
                if last.is_some_and(|n| n != r / 2) {
                    return Err(OpError::shape(format!("the caches must end in {}", r / 2)));
                }
            }
        }
        let ids = cx.ty(3).and_then(Type::as_tensor);
        if ids.is_some_and(|t| !t.dtype.is_int()) {
            return Err(OpError::ty("position_ids must be integers"));
        }
        let rank = if ids.is_some() { 2 } else { 3 };
        if [cos, sin].iter().any(|t| t.rank().is_some_and(|r| r != rank)) {
            return Err(OpError::shape(format!("the caches must be of rank {rank}")));
        }
        if let Some(s) = &x.shape {
            // Batch and positions, which the angles are broadcast to.
            let whole = vec![s[0].clone(), s[s.len() - 2].clone()];
            if let Some(ids) = ids.and_then(|t| t.shape.as_ref()) {
                if ids.len() != 2 {
                    return Err(OpError::shape(format!(
                        "position_ids must be of rank 2, they are {}",
                        shape::show(ids)
                    )));
                }
                shape::within("position_ids", ids, &whole)?;
            } else {
                for s in [cos, sin].into_iter().filter_map(|t| t.shape.as_ref()) {
                    shape::within("a cache", &s[..2].to_vec(), &whole)?;
                }
            }
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..x.clone() })])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let mut b = Build::new(rw);
        let mut x = operands[0];
        let rank = b.rank(x)?;
        let ty = b.rw.graph().ty(x).as_tensor().cloned();
        let known = |n: Option<i64>| {
            let text = "the number of features must be known to expand this op";
            n.ok_or_else(|| Diagnostic::error(Code::SHAPE, Location::Unknown, text))
        };
        let size = known(ty.as_ref().and_then(|t| self.size(t)))?;
        let r = known(ty.as_ref().and_then(|t| self.turning(t)))?;
        if rank == 3 {
            x = b.reshape(x, &[0, 0, self.num_heads, size])?;
        }
        let heads = if rank == 3 { 2 } else { 1 };
        let mut angle = |i: usize| -> BuildResult {
            let mut cache = operands[i];
            if let Some(ids) = b.given(operands, 3) {
                cache = b.op(Gather { axis: 0 }, &[cache, ids])?;
            }
            b.unsqueeze(cache, &[heads])
        };
        let (cos, sin) = (angle(1)?, angle(2)?);
        let (first, second) = if self.interleaved {
            (part(&mut b, x, 0, r, 2)?, part(&mut b, x, 1, r, 2)?)
        } else {
            (part(&mut b, x, 0, r / 2, 1)?, part(&mut b, x, r / 2, r, 1)?)
        };
        let (ac, bs) = (b.mul(first, cos)?, b.mul(second, sin)?);
        let (a_s, bc) = (b.mul(first, sin)?, b.mul(second, cos)?);
        let mut pair = [b.sub(ac, bs)?, b.add(a_s, bc)?];
        let mut turned = if self.interleaved {
            for p in &mut pair {
                *p = b.unsqueeze(*p, &[4])?;
            }
            let both = b.op(Concat { axis: 4 }, &pair)?;
            b.reshape(both, &[0, 0, 0, r])?
        } else {
            b.op(Concat { axis: 3 }, &pair)?
        };
        if r < size {
            let rest = part(&mut b, x, r, size, 1)?;
            turned = b.op(Concat { axis: 3 }, &[turned, rest])?;
        }
        if rank == 3 {
            turned = b.reshape(turned, &[0, 0, self.num_heads * size])?;
        }
        Ok(vec![turned])
    }
}
