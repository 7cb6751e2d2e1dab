//! `of.constant`.

use of_diag::{Code, Diagnostic, Location};
use of_ir::{DType, Elements, OpView, Rewriter, Tensor, Type, ValueId};

use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, sample::Rng};

op! {
    /// A tensor that is known at compile time.
    pub struct Constant = "of.constant" [Structural, onnx: "Constant"] {
        operands: (),
        results: (value),
        traits: { constant: true },
        attrs: { value: Tensor },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        Some((vec![], Constant { value: r.tensor(of_ir::DType::F32, &dims, -2.0, 2.0) }))
    };
    constant: |attrs| attrs.typed("value").ok();
}

impl Constant {
    /// A new constant of rank 0: `v` in the given element type.
    ///
    /// # Errors
    /// For strings.
    pub fn number(rw: &mut Rewriter<'_>, v: f64, dtype: DType) -> Result<ValueId, Diagnostic> {
        let value = Tensor::from_elements(dtype, Vec::new(), Elements::Float(vec![v]));
        let value = value.map_err(|e| Diagnostic::error(Code::TYPE, Location::Unknown, e.to_string()))?;
        rw.create_one(Constant { value }, &[])
    }

    /// A new constant of rank 1: 64-bit integers.
    ///
    /// # Errors
    /// None in practice: a constant fits its own declaration.
    pub fn ints(rw: &mut Rewriter<'_>, v: &[i64]) -> Result<ValueId, Diagnostic> {
        rw.create_one(Constant { value: Tensor::from_i64s(v) }, &[])
    }
}

impl Op for Constant {
    op_basics!(Constant);

    fn infer(&self, _cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::Tensor(self.value.ty())])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![self.value.clone().into()])
    }
}
