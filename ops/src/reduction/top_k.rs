//! `of.top_k`.

use std::cmp::Ordering;

use of_diag::Diagnostic;
use of_ir::{DType, Dim, Elements, OpError, OpView, Tensor, TensorType, Type, ValueId};

use crate::movement::{ScatterElements, zeros_like};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The `k` largest (or smallest) elements along an axis in order, and their indices; of equal ones the first comes first.
    pub struct TopK = "of.top_k" [Primitive, onnx: "TopK"] {
        operands: (x, k),
        results: (values, indices),
        attrs: {
            axis: i64,
            /// The largest rather than the smallest.
            largest: bool,
            /// In order; the elements are in order either way.
            sorted: bool,
        },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let dims = r.dims(3, 2, 4);
        Some((vec![r.f32s(&dims), Tensor::from_i64s(&[r.int(1, 2)]).into()], TopK { axis: r.int(-3, 2), largest: r.int(0, 1) == 1, sorted: true }))
    };
}

impl Op for TopK {
    op_basics!(TopK);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        let counts = cx.tensor(1)?.fixed_dims();
        if let Some(n) = counts.map(|d| d.iter().product::<usize>()).filter(|n| *n != 1) {
            return Err(OpError::shape(format!("k must be one number, these are {n}")));
        }
        let shape = match &t.shape {
            Some(s) => {
                let axis = shape::axis(self.axis, s.len())?;
                let mut s = s.clone();
                let k = cx.dims(1).and_then(|d| d.first().cloned()).unwrap_or_else(Dim::unknown);
                if let Some(number) = k.as_const()
                    && (number < 0 || s[axis].as_const().is_some_and(|n| number > n))
                {
                    return Err(OpError::shape(format!("k is {number}, of an axis of {}", s[axis])));
                }
                s[axis] = k;
                Some(s)
            }
            None => None,
        };
        let of = |dtype| Type::Tensor(TensorType { dtype, shape: shape.clone(), sbp: None });
        Ok(vec![of(t.dtype), of(DType::I64)])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let &[k] = inputs.ints(1)?.as_slice() else { return Err(OpError::eval("k must be one number")) };
        let axis = shape::axis(self.axis, x.dims().len())?;
        let (n, inner): (usize, usize) = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
        let outer: usize = x.dims()[..axis].iter().product();
        let k = usize::try_from(k)
            .ok()
            .filter(|k| *k <= n)
            .ok_or_else(|| OpError::eval(format!("{k} elements of an axis of {n}")))?;
        let elements = x.elements();
        let order = |a: usize, b: usize| match &elements {
            // The sign of a NaN says nothing.
            Elements::Float(v) => v[a]
                .is_nan()
                .cmp(&v[b].is_nan())
                .then_with(|| if v[a].is_nan() { Ordering::Equal } else { v[a].total_cmp(&v[b]) }),
            Elements::Int(v) => v[a].cmp(&v[b]),
            Elements::Str(_) => Ordering::Equal,
        };
        let mut picked = vec![0usize; outer * k * inner];
        let outer = if picked.is_empty() { 0 } else { outer };
        for o in 0..outer {
            for i in 0..inner {
                let at = |j: usize| (o * n + j) * inner + i;
                // Of equal elements the first comes first.
                let before = |a: &usize, b: &usize| {
                    let (x, y) = if self.largest { (*b, *a) } else { (*a, *b) };
                    order(at(x), at(y)).then(a.cmp(b))
                };
                let mut sorted: Vec<usize> = (0..n).collect();
                // Few of many are found first and sorted then.
                if k < n {
                    sorted.select_nth_unstable_by(k, before);
                    sorted.truncate(k);
                }
                sorted.sort_unstable_by(before);
                sorted.iter().enumerate().for_each(|(r, j)| picked[(o * k + r) * inner + i] = *j);
            }
        }
        let position = |p: usize| {
            let (o, i) = (p / (k * inner).max(1), p % inner.max(1));
            (o * n + picked[p]) * inner + i
        };
        let mut dims = x.dims().to_vec();
        dims[axis] = k;
        let elements = match &elements {
            Elements::Float(e) => Elements::Float((0..picked.len()).map(|p| e[position(p)]).collect()),
            Elements::Int(e) => Elements::Int((0..picked.len()).map(|p| e[position(p)]).collect()),
            Elements::Str(_) => return Err(OpError::eval("strings have no order")),
        };
        let indices: Vec<i64> = picked.iter().map(|j| *j as i64).collect();
        Ok(vec![
            Tensor::from_elements(x.dtype(), dims.clone(), elements)?.into(),
            Tensor::from_slice(&dims, &indices)?.into(),
        ])
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, places) = (cx.grads[0]?, cx.results[1]);
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let zeros = zeros_like(cx.rw, cx.operands[0])?;
            let put = ScatterElements { axis: self.axis, reduction: "add".into() };
            Ok(vec![Some(cx.rw.create_one(put, &[zeros, places, g])?), None])
        };
        Some(run())
    }
}
