//! `of.det`.

use of_ir::{Elements, OpError, OpView, Sbp, SbpSignature, Tensor, TensorType, Type};

use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Determinants of the square matrices in the last two axes, by elimination with row pivots. Source: ONNX Det; Golub,
    /// Van Loan: "Matrix computations", 3.4.
    pub struct Det = "of.det" [Primitive, onnx: "Det"] {
        operands: (x),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(0, 2) as usize;
        let mut dims = r.dims(rank, 1, 4);
        let n = r.int(1, 4) as usize;
        dims.extend([n, n]);
        Some((vec![r.f32s(&dims)], Det {}))
    };
}

/// The determinant of the row-major `n` by `n` matrix `m`, which is overwritten.
fn determinant(m: &mut [f64], n: usize) -> f64 {
    let mut det = 1.0;
    for k in 0..n {
        let pivot = (k..n).fold(k, |b, i| if m[i * n + k].abs() > m[b * n + k].abs() { i } else { b });
        if m[pivot * n + k] == 0.0 {
            return 0.0;
        }
        if pivot != k {
            (0..n).for_each(|j| m.swap(k * n + j, pivot * n + j));
            det = -det;
        }
        det *= m[k * n + k];
        for i in k + 1..n {
            let factor = m[i * n + k] / m[k * n + k];
            for j in k + 1..n {
                m[i * n + j] -= factor * m[k * n + j];
            }
        }
    }
    det
}

impl Op for Det {
    op_basics!(Det);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() {
            return Err(OpError::ty(format!("the operand must be floating-point, it is {}", x.dtype)));
        }
        let shape = match &x.shape {
            Some(s) => match s.as_slice() {
                [batch @ .., rows, columns] if !rows.provably_ne(columns) => Some(batch.to_vec()),
                _ => return Err(OpError::shape(format!("{} are no square matrices", shape::show(s)))),
            },
            None => None,
        };
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let mut v = x.to_f64s().ok_or_else(|| OpError::eval("strings have no determinant"))?;
        let [batch @ .., rows, columns] = x.dims() else {
            return Err(OpError::eval("a determinant needs at least two axes"));
        };
        if rows != columns {
            return Err(OpError::eval(format!("{rows} by {columns} matrices are not square")));
        }
        let (n, count) = (*rows, batch.iter().product::<usize>());
        let y = (0..count).map(|i| determinant(&mut v[i * n * n..][..n * n], n)).collect();
        Ok(vec![Tensor::from_elements(x.dtype(), batch.to_vec(), Elements::Float(y))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return Vec::new() };
        let batch = (0..rank.saturating_sub(2)).filter_map(|a| u8::try_from(a).ok()).map(Sbp::Split);
        batch.map(|s| SbpSignature::new(&[s], &[s])).collect()
    }
}
