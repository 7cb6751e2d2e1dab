//! `of.eye_like`.

use of_diag::Diagnostic;
use of_ir::{DType, Elements, OpError, OpView, Tensor, TensorType, Type, ValueId};

use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// A matrix of the operand's shape with ones on diagonal `k` and zeros elsewhere; positive diagonals are above the
    /// main one.
    pub struct EyeLike = "of.eye_like" [Primitive, onnx: "EyeLike"] {
        operands: (x),
        results: (y),
        attrs: {
            /// Element type of the result; that of the operand without it.
            dtype: Option<DType>,
            k: i64,
        },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        let dtype = if r.int(0, 1) == 0 { None } else { Some(DType::I32) };
        Some((vec![r.f32s(&dims)], EyeLike { dtype, k: r.int(-2, 2) }))
    };
}

impl Op for EyeLike {
    op_basics!(EyeLike);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        let dtype = self.dtype.unwrap_or(x.dtype);
        if dtype == DType::String {
            return Err(OpError::ty("strings have no one and zero"));
        }
        if x.rank().is_some_and(|r| r != 2) {
            return Err(OpError::shape("the operand must have two axes"));
        }
        Ok(vec![Type::Tensor(TensorType { dtype, shape: x.shape.clone(), sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        if x.dims().len() != 2 {
            return Err(OpError::eval("the operand must have two axes"));
        }
        let mut v = Vec::new();
        shape::for_each_index(x.dims(), |i| v.push(i128::from(i[1] as i128 - i[0] as i128 == i128::from(self.k))));
        let dtype = self.dtype.unwrap_or(x.dtype());
        Ok(vec![Tensor::from_elements(dtype, x.dims().to_vec(), Elements::Int(v))?.into()])
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        cx.flat()
    }
}
