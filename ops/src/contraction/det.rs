//! `of.det`.

use of_diag::Diagnostic;
use of_ir::{Elements, OpError, OpView, Sbp, SbpSignature, Tensor, TensorError, TensorType, Type, ValueId};

use crate::build::{Build, diagnostic};
use crate::movement::Gather;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

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

/// Larger matrices have no gradient: n² minors are n⁴ elements.
const MAX_ROWS: usize = 64;

/// What the determinants of `n` by `n` matrices `x` change by with their elements: the minor that is left without an
/// element's row and column, and its sign. This holds for singular matrices as well, where an inverse does not.
/// Source: Jacobi's formula; Golub, Van Loan: "Matrix computations", 2.1.
fn cofactors(b: &mut Build<'_, '_>, x: ValueId, n: usize) -> Result<ValueId, Diagnostic> {
    let rank = b.rank(x)?;
    let (mut places, mut signs) = (Vec::new(), Vec::new());
    for (i, j) in (0..n).flat_map(|i| (0..n).map(move |j| (i, j))) {
        signs.push(if (i + j) % 2 == 0 { 1.0 } else { -1.0 });
        let rows = (0..n).filter(|r| *r != i);
        places.extend(rows.flat_map(|r| (0..n).filter(|c| *c != j).map(move |c| (r * n + c) as i64)));
    }
    let fits = |t: Result<Tensor, TensorError>| t.map_err(|e| diagnostic(OpError::shape(e.to_string())));
    let places = fits(Tensor::from_i64s(&places).reshaped(vec![n, n, n - 1, n - 1]))?;
    let (places, signs) = (b.constant(places)?, Tensor::from_elements(b.dtype(x), vec![n, n], Elements::Float(signs)));
    let flat = b.merge(x, rank - 2..rank)?;
    let minors = b.op(Gather { axis: rank as i64 - 2 }, &[flat, places])?;
    let minors = b.op(Det {}, &[minors])?;
    let signs = b.constant(fits(signs)?)?;
    b.mul(minors, signs)
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

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, x) = (cx.grads[0]?, cx.operands[0]);
        let n = cx.rw.graph().ty(x).as_tensor()?.shape.as_ref()?.last()?.as_const()?;
        let n = usize::try_from(n).ok().filter(|n| (1..=MAX_ROWS).contains(n))?;
        let b = &mut Build::new(cx.rw);
        let mut run = || {
            let cofactors = cofactors(b, x, n)?;
            let rank = b.rank(g)?;
            let g = b.unsqueeze(g, &[rank, rank + 1])?;
            Ok(vec![Some(b.mul(g, cofactors)?)])
        };
        Some(run())
    }
}
