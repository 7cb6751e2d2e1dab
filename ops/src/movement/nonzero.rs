//! `of.nonzero`.

use of_ir::{DType, Dim, Elements, OpError, OpView, Tensor, Type};

use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The indices of all elements that are not zero, false or empty, in row-major order: one row an axis, one column an
    /// element.
    pub struct NonZero = "of.nonzero" [Primitive, onnx: "NonZero"] {
        operands: (x),
        results: (indices),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(0, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        Some((vec![r.tensor(DType::Bool, &dims, 0.0, 1.0).into()], NonZero {}))
    };
}

impl Op for NonZero {
    op_basics!(NonZero);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let rank = cx.tensor(0)?.rank().map_or_else(Dim::unknown, Dim::from);
        Ok(vec![Type::tensor(DType::I64, vec![rank, Dim::unknown()])])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let there = truths(x)?;
        let mut rows = vec![Vec::new(); x.dims().len()];
        let mut next = there.iter();
        let mut n = 0;
        shape::for_each_index(x.dims(), |index| {
            if next.next() == Some(&true) {
                n += 1;
                rows.iter_mut().zip(index).for_each(|(row, i)| row.push(*i as i128));
            }
        });
        Ok(vec![Tensor::from_elements(DType::I64, vec![rows.len(), n], Elements::Int(rows.concat()))?.into()])
    }
}

/// Whether each element is not zero, false or empty.
pub(super) fn truths(x: &Tensor) -> Result<Vec<bool>, OpError> {
    Ok(match x.elements() {
        Elements::Float(v) => v.iter().map(|x| *x != 0.0).collect(),
        Elements::Int(v) => v.iter().map(|x| *x != 0).collect(),
        Elements::Str(v) => v.iter().map(|x| !x.is_empty()).collect(),
    })
}
