//! `of.max_unpool`.

use of_diag::Diagnostic;
use of_ir::{Dim, OpError, OpView, Tensor, TensorType, Type, ValueId};

use super::layout::Activation;
use super::window::{self, WindowAttrs};
use crate::build::Build;
use crate::movement::{Concat, GatherElements, Pad};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The partial inverse of `of.max_pool`: puts each element of `x` where `indices` says and zeros elsewhere.
    ///
    /// The plain result has `stride*(in - 1) + kernel - pads` elements a spatial axis; indices count in it. With
    /// `output_shape` it is at the origin of a result of that shape. Source: ONNX MaxUnpool.
    pub struct MaxUnpool = "of.max_unpool" [Primitive, onnx: "MaxUnpool"] {
        operands: (x, indices, output_shape?),
        results: (y),
        attrs: {
            kernel: Vec<i64>,
            strides: Vec<i64>,
            /// Begin of every spatial axis, then end of every spatial axis.
            pads: Vec<i64>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (n, c, len) = (r.int(1, 2) as usize, r.int(1, 3) as usize, r.int(1, 4) as usize);
        // One index in each window, so that no place is written twice.
        let at: Vec<i64> = (0..n * c * len).map(|i| 2 * i as i64 + r.int(0, 1)).collect();
        let indices = Tensor::from_slice(&[n, c, len], &at).ok()?;
        let op = MaxUnpool { kernel: vec![2], strides: vec![2], pads: vec![] };
        let mut operands = vec![r.f32s(&[n, c, len]), indices.into()];
        if r.int(0, 1) == 0 {
            operands.push(Tensor::from_i64s(&[n as i64, c as i64, 2 * len as i64 + 1]).into());
        }
        Some((operands, op))
    };
}

impl MaxUnpool {
    /// The extents of the result without `output_shape`, in which indices count.
    ///
    /// # Errors
    /// When the attributes do not fit an input of these extents.
    pub fn plain(&self, x: &[Dim]) -> Result<Vec<Dim>, OpError> {
        let a = Activation::of(&x.to_vec(), false)?;
        let rank = a.spatial.len();
        let attrs =
            WindowAttrs { strides: &self.strides, pads: &self.pads, dilations: &[], auto_pad: "NOTSET", ceil: false };
        let [strides, _, begin, end] = attrs.lists(rank)?;
        if self.kernel.len() != rank {
            return Err(OpError::attr(format!("kernel has {} entries, it needs {rank}", self.kernel.len())));
        }
        let kernel = window::sizes("kernel", &self.kernel, rank, 1, 1)?;
        let mut out = vec![a.n, a.c];
        for i in 0..rank {
            let d = |v: usize| Dim::from(v);
            let size = &(&(&(&a.spatial[i] - &d(1)) * &d(strides[i])) + &d(kernel[i])) - &d(begin[i] + end[i]);
            if size.as_const().is_some_and(|c| c < 0) {
                return Err(OpError::shape(format!("pads leave nothing of the result along spatial axis {i}")));
            }
            out.push(size);
        }
        Ok(out)
    }
}

impl Op for MaxUnpool {
    op_basics!(MaxUnpool);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, indices) = (cx.tensor(0)?, cx.tensor(1)?);
        if !indices.dtype.is_int() || !x.dtype.is_float() && !x.dtype.is_int() {
            return Err(OpError::ty("x must be numbers and indices integers"));
        }
        let shape = match &x.shape {
            None => None,
            Some(s) => {
                let plain = self.plain(s)?;
                Some(if cx.operand(2).is_some() {
                    cx.dims(2).unwrap_or_else(|| vec![Dim::unknown(); s.len()])
                } else {
                    plain
                })
            }
        };
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let at = inputs.ints(1)?;
        let symbolic: Vec<Dim> = x.dims().iter().map(|d| Dim::from(*d)).collect();
        let plain =
            window::fixed(&self.plain(&symbolic)?).ok_or_else(|| OpError::eval("the result has a negative size"))?;
        let dims = match inputs.opt_tensor(2) {
            None => plain.clone(),
            Some(_) => {
                let wanted: Option<Vec<usize>> = inputs.ints(2)?.iter().map(|d| usize::try_from(*d).ok()).collect();
                wanted
                    .filter(|w| w.len() == plain.len())
                    .ok_or_else(|| OpError::eval("output_shape does not fit the input"))?
            }
        };
        if at.len() != x.len() {
            return Err(OpError::eval("x and indices must have one shape"));
        }
        let (from, to) = (shape::strides(&plain), shape::strides(&dims));
        let total = shape::count(&plain)?;
        let mut y = vec![0f64; shape::count(&dims)?];
        let v = x.to_f64s().ok_or_else(|| OpError::eval("x must be numbers"))?;
        for (i, value) in at.iter().zip(v) {
            let flat = usize::try_from(*i).ok().filter(|i| *i < total);
            let mut rest =
                flat.ok_or_else(|| OpError::eval(format!("index {i} is outside a result of {total} elements")))?;
            let mut place = Some(0);
            for a in 0..plain.len() {
                let p = rest / from[a];
                rest %= from[a];
                // An explicit shape may be smaller than the plain one.
                place = place.filter(|_| p < dims[a]).map(|q| q + p * to[a]);
            }
            if let Some(p) = place {
                y[p] = value;
            }
        }
        Ok(vec![Tensor::from_elements(x.dtype(), dims, of_ir::Elements::Float(y))?.into()])
    }

    // No signatures: indices count in the global result, which a slice does not know.

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, x, at) = (cx.grads[0]?, cx.operands[0], cx.operands[1]);
        let mut b = Build::new(cx.rw);
        let plain = b.shape(x).and_then(|s| window::fixed(&self.plain(&s).ok()?));
        // Indices count in the plain result, of which a shape that is given cuts parts off, or adds zeros to.
        let plain = match b.given(cx.operands, 2) {
            Some(_) => Some(plain?),
            None => None,
        };
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let mut g = g;
            if let Some(plain) = &plain {
                let (mut ends, mut pads) = (Vec::new(), vec![b.ints(&vec![0; plain.len()])?]);
                for (a, n) in plain.iter().enumerate() {
                    ends.push(*n as i64);
                    let (own, there) = (b.ints(&[*n as i64])?, b.extent(g, a)?);
                    pads.push(b.sub(own, there)?);
                }
                let pads = b.op(Concat { axis: 0 }, &pads)?;
                g = b.op(Pad { mode: "constant".into() }, &[g, pads])?;
                // The pads may not be known before the run.
                g = b.reshape(g, &ends)?;
            }
            let [flat, places] = [g, at].map(|v| b.reshape(v, &[-1]));
            let dx = b.op(GatherElements { axis: 0 }, &[flat?, places?])?;
            Ok([Some(b.reshape_like(dx, x)?), None, None].into_iter().take(cx.operands.len()).collect())
        };
        Some(run())
    }
}
