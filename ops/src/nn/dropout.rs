//! `of.dropout`.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{DType, OpView, Rewriter, Tensor, TensorType, Type, ValueId};

use super::build::Build;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// Dropout as inference runs it: `y = x`; with `mask`, result 1 is all true. Source: ONNX Dropout.
    ///
    /// `training` asks for random zeros, which this op does not expand to.
    pub struct Dropout = "of.dropout" [Composite, onnx: "Dropout"] {
        operands: (x),
        results: (y, mask?),
        attrs: {
            training: bool,
            /// Whether there is a second result.
            mask: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        Some((vec![r.f32s(&dims)], Dropout { training: false, mask: r.int(0, 1) == 0 }))
    };
}

impl Op for Dropout {
    op_basics!(Dropout);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = TensorType { sbp: None, ..cx.tensor(0)?.clone() };
        let mask = self.mask.then(|| Type::Tensor(x.with_dtype(DType::Bool)));
        Ok(std::iter::once(Type::Tensor(x)).chain(mask).collect())
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        if self.training {
            let what = "dropout in training mode has no expansion";
            return Err(
                Diagnostic::error(Code::UNSUPPORTED, Location::Unknown, what).hint("export the model for inference")
            );
        }
        let x = operands[0];
        if !self.mask {
            return Ok(vec![x]);
        }
        let mut b = Build::new(rw);
        let kept = Tensor::from_elements(DType::Bool, vec![], of_ir::Elements::Int(vec![1]));
        let kept = b.constant(kept.map_err(|e| super::build::diagnostic(e.into()))?)?;
        let dims = b.shape_of(x)?;
        Ok(vec![x, b.expand(kept, dims)?])
    }
}
