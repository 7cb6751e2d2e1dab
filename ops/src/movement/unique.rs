//! `of.unique`.

use std::cmp::Ordering;

use of_ir::{DType, Dim, Elements, OpError, OpView, Tensor, TensorType, Type};

use super::cells::Cells;
use crate::sample::Rng;
use crate::{Evaluated, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The distinct slices of an axis, or without `axis` the distinct elements: sorted, or in order of appearance.
    ///
    /// The further results are: where each was first seen, which one each slice of the operand is, and how often each was
    /// seen. Semantics of `numpy.unique`.
    pub struct Unique = "of.unique" [Primitive, onnx: "Unique"] {
        operands: (x),
        results: (y, indices, inverse, counts),
        attrs: { axis: Option<i64>, sorted: bool },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 2) as usize;
        let dims = r.dims(rank, 1, 5);
        let axis = if r.int(0, 1) == 0 { None } else { Some(r.int(-(rank as i64), rank as i64 - 1)) };
        let x = r.tensor(DType::I64, &dims, 0.0, 3.0);
        Some((vec![x.into()], Unique { axis, sorted: r.int(0, 1) == 0 }))
    };
}

/// Lexicographic order of two slices; NaN is larger than every number and equal to itself.
fn compare(v: &Elements, a: &[usize], b: &[usize]) -> Ordering {
    let one = |i: usize, j: usize| match v {
        Elements::Float(v) => v[i].partial_cmp(&v[j]).unwrap_or_else(|| v[i].is_nan().cmp(&v[j].is_nan())),
        Elements::Int(v) => v[i].cmp(&v[j]),
        Elements::Str(v) => v[i].cmp(&v[j]),
    };
    a.iter().zip(b).map(|(i, j)| one(*i, *j)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

impl Op for Unique {
    op_basics!(Unique);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        let mut total = Dim::unknown();
        let y = match (self.axis, &x.shape) {
            (None, s) => {
                if let Some(s) = s {
                    total = s.iter().fold(Dim::from(1i64), |n, d| &n * d);
                }
                Type::tensor(x.dtype, vec![Dim::unknown()])
            }
            (Some(axis), Some(s)) => {
                let axis = shape::axis(axis, s.len())?;
                total = s[axis].clone();
                let mut s = s.clone();
                s[axis] = Dim::unknown();
                Type::tensor(x.dtype, s)
            }
            (Some(_), None) => Type::Tensor(TensorType::unranked(x.dtype)),
        };
        let list = |n| Type::tensor(DType::I64, vec![n]);
        Ok(vec![y, list(Dim::unknown()), list(total), list(Dim::unknown())])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let flat;
        let (x, axis) = match self.axis {
            Some(axis) => (x, shape::axis(axis, x.dims().len())?),
            None => {
                flat = x.reshaped(vec![x.len()])?;
                (&flat, 0)
            }
        };
        let (n, elements) = (x.dims()[axis], x.elements());
        let inner: usize = x.dims()[axis + 1..].iter().product();
        let outer: usize = x.dims()[..axis].iter().product();
        // Positions of the elements of each slice.
        let slice =
            |i: usize| (0..outer).flat_map(|o| (0..inner).map(move |k| (o * n + i) * inner + k)).collect::<Vec<_>>();
        shape::count(x.dims())?;
        if outer * inner == 0 && n > 0 {
            return Err(OpError::eval("empty slices cannot be compared"));
        }
        let slices: Vec<Vec<usize>> = (0..n).map(slice).collect();
        let mut order: Vec<usize> = (0..n).collect();
        of_ir::sort::by(&mut order, |a, b| compare(&elements, &slices[*a], &slices[*b]).then(a.cmp(b)));
        // Groups of equal slices; the first of each is the one seen first.
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for i in order {
            match groups.last_mut() {
                Some(g) if compare(&elements, &slices[g[0]], &slices[i]).is_eq() => g.push(i),
                _ => groups.push(vec![i]),
            }
        }
        if !self.sorted {
            of_ir::sort::by_key(&mut groups, |g| g[0]);
        }
        let mut inverse = vec![0; n];
        groups.iter().enumerate().for_each(|(j, g)| g.iter().for_each(|i| inverse[*i] = j as i64));
        let mut dims = x.dims().to_vec();
        dims[axis] = groups.len();
        let (source, mut out) = (Cells::of(x), Cells::with_room(x.dtype(), groups.len() * outer * inner)?);
        for o in 0..outer {
            groups.iter().for_each(|g| out.push(&source, (o * n + g[0]) * inner, inner));
        }
        let list = |v: Vec<i64>| Tensor::from_i64s(&v).into();
        Ok(vec![
            out.into_tensor(x.dtype(), dims)?.into(),
            list(groups.iter().map(|g| g[0] as i64).collect()),
            list(inverse),
            list(groups.iter().map(|g| g.len() as i64).collect()),
        ])
    }
}
