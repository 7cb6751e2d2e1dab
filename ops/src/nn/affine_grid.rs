//! `of.affine_grid`.

use of_diag::Diagnostic;
use of_ir::{Dim, Elements, OpError, OpView, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use crate::build::{Build, diagnostic};
use crate::contraction::MatMul;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The grid for `of.grid_sample` that an affine map makes: `theta` (`[N, r, r + 1]`) applied to the normalised
    /// coordinates of an image of `size` (`[N, C, spatial…]`). Source: ONNX AffineGrid.
    pub struct AffineGrid = "of.affine_grid" [Primitive, onnx: "AffineGrid"] {
        operands: (theta, size),
        results: (grid),
        attrs: {
            /// Whether -1 and 1 are the centres of the corner elements rather than their outer edges.
            align_corners: bool,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (n, rank) = (r.int(1, 2), r.int(2, 3));
        let mut size = vec![n, 1];
        size.extend((0..rank).map(|_| r.int(2, 4)));
        let theta = r.f32s(&[n as usize, rank as usize, rank as usize + 1]);
        Some((vec![theta, Tensor::from_i64s(&size).into()], AffineGrid { align_corners: r.int(0, 1) == 0 }))
    };
}

impl AffineGrid {
    /// For each element of an image its normalised coordinates, the last axis first, and a 1.
    pub fn coordinates(&self, spatial: &[usize]) -> Vec<f64> {
        let place = |i: usize, d: usize| match (self.align_corners, d) {
            (true, 0 | 1) => -1.0,
            (true, _) => 2.0 * i as f64 / (d - 1) as f64 - 1.0,
            (false, _) => (2.0 * i as f64 + 1.0) / d as f64 - 1.0,
        };
        let mut out = Vec::new();
        shape::for_each_index(spatial, |i| {
            out.extend((0..spatial.len()).rev().map(|a| place(i[a], spatial[a])));
            out.push(1.0);
        });
        out
    }
}

impl Op for AffineGrid {
    op_basics!(AffineGrid);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let theta = cx.tensor(0)?;
        if !theta.dtype.is_float() {
            return Err(OpError::ty(format!("theta must be floating-point, it is {}", theta.dtype)));
        }
        let Some(size) = cx.dims(1) else {
            let known = theta
                .shape
                .as_ref()
                .filter(|s| s.len() == 3)
                .and_then(|s| s[1].as_const())
                .filter(|r| (1..=8).contains(r));
            return Ok(vec![Type::Tensor(TensorType {
                dtype: theta.dtype,
                shape: known.map(|r| [vec![Dim::unknown(); r as usize + 1], vec![Dim::from(r)]].concat()),
                sbp: None,
            })]);
        };
        if size.len() < 3 {
            return Err(OpError::shape(format!("a size of {} entries has no spatial axes", size.len())));
        }
        let rank = size.len() - 2;
        let mut s = vec![size[0].clone()];
        s.extend_from_slice(&size[2..]);
        s.push(Dim::from(rank));
        Ok(vec![Type::tensor(theta.dtype, s)])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let theta = inputs.tensor(0)?;
        let size: Option<Vec<usize>> = inputs.ints(1)?.iter().map(|d| usize::try_from(*d).ok()).collect();
        let size = size.filter(|s| s.len() >= 3).ok_or_else(|| OpError::eval("size must be [N, C, spatial…]"))?;
        let (n, spatial) = (size[0], &size[2..]);
        let rank = spatial.len();
        let (Some(t), true) = (theta.to_f64s(), theta.dims() == [n, rank, rank + 1]) else {
            return Err(OpError::eval(format!("theta is {:?}, it must be [{n}, {rank}, {}]", theta.dims(), rank + 1)));
        };
        let dims = [&[n], spatial, &[rank]].concat();
        let mut grid = Vec::with_capacity(shape::count(&dims)?);
        let coordinates = self.coordinates(spatial);
        for sample in 0..n {
            let t = &t[sample * rank * (rank + 1)..][..rank * (rank + 1)];
            for at in coordinates.chunks_exact(rank + 1) {
                let rows = t.chunks_exact(rank + 1);
                grid.extend(rows.map(|row| row.iter().zip(at).map(|(f, x)| f * x).sum::<f64>()));
            }
        }
        Ok(vec![Tensor::from_elements(theta.dtype(), dims, Elements::Float(grid))?.into()])
    }

    fn sbp(&self, _cx: &OpView<'_>) -> Vec<SbpSignature> {
        // The size is global, so that nothing can be split; the result is linear in theta.
        let sum = Sbp::Partial(of_ir::PartialKind::Sum);
        vec![SbpSignature::new(&[sum, Sbp::Broadcast], &[sum])]
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let dims = cx.rw.graph().ty(cx.results[0]).as_tensor()?.fixed_dims()?;
        let (rank, spatial) = (*dims.last()?, dims.get(1..dims.len() - 1)?);
        let count: usize = spatial.iter().product();
        let coordinates = Elements::Float(self.coordinates(spatial));
        let mut b = Build::new(cx.rw);
        // A row of theta has the coordinates of all places, each as often as its result counts.
        let run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let places = Tensor::from_elements(b.dtype(g), vec![count, rank + 1], coordinates);
            let places = b.constant(places.map_err(|e| diagnostic(e.into()))?)?;
            let rows = b.reshape(g, &[dims[0] as i64, count as i64, rank as i64])?;
            let rows = b.transpose(rows, &[0, 2, 1])?;
            Ok(vec![Some(b.op(MatMul {}, &[rows, places])?), None])
        };
        Some(run())
    }
}
