//! `of.alternatives`.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{OpError, OpView, PartialKind, Rewriter, Sbp, SbpSignature, TensorType, Type, ValueId};

use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics};

op! {
    /// One of its operands, which hold equal tensors that are computed in different ways.
    ///
    /// The pass `shard` selects the operand with the lowest cost on its mesh, and the computation of the others becomes
    /// dead code. Without that pass the first operand is selected.
    pub struct Alternatives = "of.alternatives" [Composite] {
        operands: (xs*),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let x = crate::sample::Rng::new(seed).f32s(&[2, 3]);
        Some((vec![x.clone(); 1 + (seed % 3) as usize], Alternatives {}))
    };
}

impl Op for Alternatives {
    op_basics!(Alternatives);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        if cx.operands.is_empty() {
            return Err(OpError::shape("there is nothing to take"));
        }
        let first = cx.tensor(0)?;
        for i in 1..cx.operands.len() {
            // Of one way more may be known than of another.
            if !Type::from(cx.tensor(i)?.clone()).compatible(&first.clone().into()) {
                return Err(OpError::ty("the operands have different types"));
            }
        }
        Ok(vec![Type::Tensor(TensorType { sbp: None, ..first.clone() })])
    }

    fn expand(&self, _rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let nothing = || Diagnostic::error(Code::SHAPE, Location::Unknown, "there is nothing to take");
        Ok(vec![*operands.first().ok_or_else(nothing)?])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![inputs.tensor(0)?.clone().into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        alike(cx)
    }
}

/// Operands and result have the same placement.
pub(super) fn alike(cx: &OpView<'_>) -> Vec<SbpSignature> {
    let all = |s: Sbp| SbpSignature::new(&vec![s; cx.operands.len()], &[s]);
    let rank = cx.tensor(0).ok().and_then(|t| t.rank()).unwrap_or(0);
    let splits = (0..rank).filter_map(|d| u8::try_from(d).ok().map(Sbp::Split));
    splits.chain(PartialKind::ALL.map(Sbp::Partial)).map(all).collect()
}
