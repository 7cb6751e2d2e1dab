//! `of.string_concat`.

use of_ir::{DType, Dim, OpError, OpView, SbpSignature, Shape, Tensor, TensorType, Type};

use super::{operand, strings};
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Each string of `x` followed by that of `y`; the operands are broadcast. Source: ONNX StringConcat.
    pub struct StringConcat = "of.string_concat" [Primitive, onnx: "StringConcat"] {
        operands: (x, y),
        results: (z),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(2, 1, 4);
        let x = r.tensor(DType::String, &dims, 0.0, 1.0);
        let y = r.tensor(DType::String, &dims[1..], 0.0, 1.0);
        let operands = if r.int(0, 1) == 0 { [x, y] } else { [y, x] };
        Some((operands.map(Into::into).to_vec(), StringConcat {}))
    };
}

impl Op for StringConcat {
    op_basics!(StringConcat);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, y) = (operand(cx, 0)?, operand(cx, 1)?);
        let shape = match (&x.shape, &y.shape) {
            (Some(a), Some(b)) => Some(shape::broadcast(&[a, b])?),
            _ => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: DType::String, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let (x, y) = (inputs.tensor(0)?, inputs.tensor(1)?);
        let own = |t: &Tensor| t.dims().iter().map(|d| Dim::from(*d)).collect::<Shape>();
        let dims = shape::broadcast(&[&own(x), &own(y)])?;
        let fixed = |d: &Dim| d.as_const().and_then(|d| usize::try_from(d).ok());
        let dims: Option<Vec<usize>> = dims.iter().map(fixed).collect();
        let dims = dims.ok_or_else(|| OpError::eval("a dimension is not fixed"))?;
        let (a, b) = (strings(x)?, strings(y)?);
        let mut out = Vec::with_capacity(shape::count(&dims)?);
        shape::for_each_index(&dims, |i| {
            let at = |t: &Tensor| {
                let own = &i[i.len() - t.dims().len()..];
                own.iter().zip(t.dims()).fold(0, |p, (i, d)| p * d + if *d == 1 { 0 } else { *i })
            };
            out.push(format!("{}{}", a[at(x)], b[at(y)]));
        });
        Ok(vec![Tensor::from_strings(dims, out)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let shape = |i: usize| cx.tensor(i).ok()?.shape.as_ref();
        let (Some(a), Some(b)) = (shape(0), shape(1)) else { return Vec::new() };
        let Ok(result) = shape::broadcast(&[a, b]) else { return Vec::new() };
        shape::elementwise_splits(&[a, b], &result)
    }
}
