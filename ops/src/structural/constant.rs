//! `of.constant`.

use of_ir::{OpView, Tensor, Type};

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

impl Op for Constant {
    op_basics!(Constant);

    fn infer(&self, _cx: &OpView<'_>) -> Inferred {
        Ok(vec![Type::Tensor(self.value.ty())])
    }

    fn eval(&self, _inputs: &mut Inputs<'_>) -> Evaluated {
        Ok(vec![self.value.clone().into()])
    }
}
