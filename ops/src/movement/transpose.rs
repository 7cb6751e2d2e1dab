//! `of.transpose`.

use of_diag::Diagnostic;
use of_ir::{OpError, OpView, Rewriter, Sbp, SbpSignature, TensorType, Type, ValueId};

use super::cells::stride;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Permutes axes: axis `i` of the result is axis `perm[i]` of the operand. Without `perm` the axes are reversed.
    pub struct Transpose = "of.transpose" [Primitive, onnx: "Transpose"] {
        operands: (x),
        results: (y),
        attrs: { perm: Option<Vec<i64>> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 1, 4);
        let perm = r.pick(&[None, Some(vec![0, 2, 1]), Some(vec![2, 0, 1]), Some(vec![1, 0, 2])]);
        Some((vec![r.f32s(&dims)], Transpose { perm }))
    };
}

impl Transpose {
    /// The permutation for an operand of the given rank.
    ///
    /// # Errors
    /// When `perm` is not one.
    pub fn permutation(&self, rank: usize) -> Result<Vec<usize>, OpError> {
        let Some(perm) = &self.perm else { return Ok((0..rank).rev().collect()) };
        let p = perm.iter().map(|a| shape::axis(*a, rank)).collect::<Result<Vec<_>, _>>()?;
        if p.len() != rank || shape::axes(perm, rank).is_err() {
            return Err(OpError::attr(format!("perm {:?} is not a permutation of {rank} axes", perm)));
        }
        Ok(p)
    }
}

impl Op for Transpose {
    op_basics!(Transpose);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        let shape = match &t.shape {
            Some(s) => Some(self.permutation(s.len())?.into_iter().map(|a| s[a].clone()).collect()),
            None => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: t.dtype, shape, sbp: None })])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<of_ir::Dim>> {
        cx.dims(0)
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let p = self.permutation(x.dims().len())?;
        let own = shape::strides(x.dims());
        let steps: Vec<isize> = p.iter().map(|a| own[*a] as isize).collect();
        let dims: Vec<usize> = p.iter().map(|a| x.dims()[*a]).collect();
        Ok(vec![stride(x, &dims, 0, &steps)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return Vec::new() };
        let Ok(p) = self.permutation(rank) else { return Vec::new() };
        let splits =
            p.iter().enumerate().map(|(i, a)| SbpSignature::new(&[Sbp::Split(*a as u8)], &[Sbp::Split(i as u8)]));
        splits.chain(super::partials(1)).collect()
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let rank = cx.rw.graph().ty(g).as_tensor()?.rank()?;
        let p = self.permutation(rank).ok()?;
        let mut perm = vec![0; rank];
        p.iter().enumerate().for_each(|(i, a)| perm[*a] = i as i64);
        Some(cx.rw.create_one(Transpose { perm: Some(perm) }, &[g]).map(|v| vec![Some(v)]))
    }
}

/// The last two axes exchanged.
///
/// # Errors
/// When the rank is not known or below 2.
pub fn swap_last_axes(rw: &mut Rewriter<'_>, v: ValueId) -> Result<ValueId, Diagnostic> {
    let rank = rw.graph().ty(v).as_tensor().and_then(TensorType::rank).unwrap_or(0);
    if rank < 2 {
        return Err(OpError::shape("a matrix is needed").at("of.transpose", &of_diag::Location::Unknown));
    }
    let mut perm: Vec<i64> = (0..rank as i64).collect();
    perm.swap(rank - 1, rank - 2);
    rw.create_one(Transpose { perm: Some(perm) }, &[v])
}
