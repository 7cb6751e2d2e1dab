//! `of.dft`.

use of_diag::Diagnostic;
use of_ir::{Dim, DimFn, Elements, OpError, OpView, Sbp, SbpSignature, Shape, Tensor, TensorType, Type, ValueId};

use super::fft::{Complex, Fft};
use crate::build::{Build, BuildResult, diagnostic};
use crate::movement::Pad;
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Discrete Fourier transform along an axis: `y[k] = sum_n x[n] e^(-2 pi i k n / N)`, or with `inverse`
    /// `x[n] = 1/N sum_k y[k] e^(2 pi i k n / N)`.
    ///
    /// The last axis holds real and imaginary part, or the real part alone. `length` is `N`: the input is
    /// cut or padded with zeros. Without it `N` is the input's length, and twice that less two for an inverse that is
    /// `onesided`. `axis` is -2 if left out. `onesided` takes real signals to the first `N/2 + 1` values, of which the
    /// others are conjugates, and the inverse takes those to real signals. Source: ONNX DFT.
    pub struct Dft = "of.dft" [Primitive, onnx: "DFT"] {
        operands: (x, length?, axis?),
        results: (y),
        attrs: { inverse: bool, onesided: bool },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (inverse, onesided) = (r.int(0, 1) == 0, r.int(0, 1) == 0);
        let rank = r.int(2, 4) as usize;
        let mut dims = r.dims(rank, 2, 5);
        dims[rank - 1] = if onesided { 1 + usize::from(inverse) } else { r.int(1, 2) as usize };
        let mut operands = vec![r.f32s(&dims)];
        if r.int(0, 1) == 0 {
            operands.push(Tensor::scalar(r.int(1, 8)).into());
            if r.int(0, 1) == 0 {
                operands.push(Tensor::scalar(r.int(-(rank as i64), -2)).into());
            }
        }
        Some((operands, Dft { inverse, onesided }))
    };
}

/// The axis of a signal: any but the last, which holds the parts of a number.
fn signal_axis(axis: Option<i64>, rank: usize) -> Result<usize, OpError> {
    let axis = shape::axis(axis.unwrap_or(-2), rank)?;
    if axis + 1 == rank {
        return Err(OpError::shape("the last axis holds real and imaginary parts, it is not a signal axis"));
    }
    Ok(axis)
}

impl Dft {
    /// The number of parts of an element, given those of the input.
    fn parts(&self, given: &Dim) -> Result<Dim, OpError> {
        match given.as_const() {
            Some(1 | 2) | None => {}
            Some(n) => return Err(OpError::shape(format!("a number has 1 or 2 parts, the last axis has {n}"))),
        }
        match (self.onesided, self.inverse, given.as_const()) {
            (true, false, Some(2)) => Err(OpError::shape("a onesided transform is one of real signals")),
            (true, true, Some(1)) => Err(OpError::shape("a onesided inverse is one of complex values")),
            (true, true, _) => Ok(Dim::from(1i64)),
            _ => Ok(Dim::from(2i64)),
        }
    }

    /// The length of the transform of an axis of length `n`.
    fn length(&self, n: &Dim) -> Dim {
        match self.inverse && self.onesided {
            true => &(n * &Dim::from(2i64)) - &Dim::from(2i64),
            false => n.clone(),
        }
    }

    /// The shape of the result; `length` and `axis` where they are known or left out, as `Some`.
    fn result(&self, x: &Shape, length: Option<Option<Dim>>, axis: Option<Option<i64>>) -> Result<Shape, OpError> {
        let Some((last, outer)) = x.split_last().filter(|(_, outer)| !outer.is_empty()) else {
            return Err(OpError::shape("a signal has an axis of its own and one of parts"));
        };
        let Some(axis) = axis else {
            // Any axis may be another.
            return Ok(outer.iter().map(|_| Dim::unknown()).chain([self.parts(last)?]).collect());
        };
        let axis = signal_axis(axis, x.len())?;
        let n = match length {
            Some(Some(n)) => n,
            Some(None) => self.length(&x[axis]),
            None => Dim::unknown(),
        };
        if n.as_const().is_some_and(|n| n < 1) {
            return Err(OpError::shape(format!("a transform of length {n}")));
        }
        let mut out = x.clone();
        out[axis] = match self.onesided && !self.inverse {
            true if n.is_unknown() => n,
            true => &Dim::call(DimFn::FloorDiv, &n, &Dim::from(2i64)) + &Dim::from(1i64),
            false => n,
        };
        out[x.len() - 1] = self.parts(last)?;
        Ok(out)
    }
}

/// The one integer of operand `i`: `None` where it is not known, `Some(None)` where it is left out.
pub(super) fn single(cx: &OpView<'_>, i: usize) -> Result<Option<Option<Dim>>, OpError> {
    if cx.operand(i).is_none() {
        return Ok(Some(None));
    }
    let t = cx.tensor(i)?;
    if !t.dtype.is_int() || t.fixed_dims().is_some_and(|d| d.iter().any(|n| *n != 1)) {
        return Err(OpError::ty(format!("operand {i} must be one integer")));
    }
    Ok(cx.dims(i).and_then(|d| d.into_iter().next()).map(Some))
}

/// Operand `i` as one integer, unless left out.
fn integer(inputs: &Inputs<'_>, i: usize) -> Result<Option<i64>, OpError> {
    if inputs.opt_tensor(i).is_none() {
        return Ok(None);
    }
    match inputs.ints(i)?.as_slice() {
        [n] => Ok(Some(*n)),
        _ => Err(OpError::eval(format!("operand {i} must be one integer"))),
    }
}

impl Op for Dft {
    op_basics!(Dft);

    fn has_zero_coefficients(&self) -> bool {
        true
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() {
            return Err(OpError::ty(format!("the signal must be floating-point, it is {}", x.dtype)));
        }
        let length = single(cx, 1)?;
        let axis = single(cx, 2)?.and_then(|a| match a {
            None => Some(None),
            Some(a) => a.as_const().map(Some),
        });
        let shape = x.shape.as_ref().map(|s| self.result(s, length, axis)).transpose()?;
        Ok(vec![Type::Tensor(TensorType { dtype: x.dtype, shape, sbp: None })])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let rank = x.dims().len();
        let axis = signal_axis(integer(inputs, 2)?, rank.max(1))?;
        let length = integer(inputs, 1)?;
        let own: Shape = x.dims().iter().map(|d| Dim::from(*d)).collect();
        let dims = self.result(&own, Some(length.map(Dim::from)), Some(Some(axis as i64)))?;
        let dims: Vec<usize> = dims.iter().filter_map(Dim::as_const).filter_map(|d| usize::try_from(d).ok()).collect();
        let given = x.dims()[axis];
        let n = match length {
            Some(n) => usize::try_from(n).unwrap_or(0),
            None => self.length(&own[axis]).as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0),
        };
        let (parts_in, parts_out, out_len) = (x.dims()[rank - 1], dims[rank - 1], dims[axis]);
        let mut y = vec![0.0; shape::count(&dims)?];
        // Beyond the results a transform needs a few times its own length.
        shape::count(&[n, 8])?;
        let values = x.to_f64s().ok_or_else(|| OpError::eval("the signal must be numbers"))?;
        let inner: usize = x.dims()[axis + 1..rank - 1].iter().product();
        let outer: usize = x.dims()[..axis].iter().product();
        if y.is_empty() {
            return Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(y))?.into()]);
        }
        let fft = Fft::new(n);
        let mut signal: Vec<Complex> = vec![(0.0, 0.0); n];
        for o in 0..outer {
            for i in 0..inner {
                signal.fill((0.0, 0.0));
                let kept = if self.onesided && self.inverse { n / 2 + 1 } else { n };
                for (k, s) in signal.iter_mut().enumerate().take(kept.min(given)) {
                    let at = ((o * given + k) * inner + i) * parts_in;
                    *s = (values[at], if parts_in == 2 { values[at + 1] } else { 0.0 });
                }
                if self.onesided && self.inverse {
                    // The other half of the spectrum of a real signal; what pairs with itself is real.
                    signal[0].1 = 0.0;
                    for k in n / 2 + 1..n {
                        signal[k] = (signal[n - k].0, -signal[n - k].1);
                    }
                    if n % 2 == 0 {
                        signal[n / 2].1 = 0.0;
                    }
                }
                if self.inverse {
                    fft.inverse(&mut signal)
                } else {
                    fft.forward(&mut signal)
                }
                for (k, s) in signal.iter().enumerate().take(out_len) {
                    let at = ((o * out_len + k) * inner + i) * parts_out;
                    y[at] = s.0;
                    if parts_out == 2 {
                        y[at + 1] = s.1;
                    }
                }
            }
        }
        Ok(vec![Tensor::from_elements(x.dtype(), dims, Elements::Float(y))?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return Vec::new() };
        let Ok(Some(axis)) = single(cx, 2) else { return Vec::new() };
        let Ok(axis) = signal_axis(axis.and_then(|a| a.as_const()), rank) else { return Vec::new() };
        let others = (0..rank.saturating_sub(1)).filter(|a| *a != axis).filter_map(|a| u8::try_from(a).ok());
        let with_rest = |s: Sbp| {
            let mut operands = vec![Sbp::Broadcast; cx.operands.len()];
            operands[0] = s;
            SbpSignature::new(&operands, &[s])
        };
        others.map(|a| with_rest(Sbp::Split(a))).collect()
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, count) = (cx.grads[0]?, cx.operands.len());
        let graph = cx.rw.graph();
        let fixed = |v: ValueId| graph.ty(v).as_tensor()?.fixed_dims();
        let (x, y) = (fixed(cx.operands[0])?, fixed(cx.results[0])?);
        let given = |i: usize| cx.operands.get(i).copied().filter(|v| *graph.ty(*v) != Type::None);
        let known = |v: ValueId| graph.constant(v)?.to_i64s()?.first().copied();
        let axis = given(2).map(known).map_or(Some(None), |a| a.map(Some))?;
        let axis = signal_axis(axis, x.len()).ok()?;
        let n = match given(1) {
            Some(v) => usize::try_from(known(v)?).ok()?,
            None => usize::try_from(self.length(&Dim::from(x[axis])).as_const()?).ok()?,
        };
        let back = Back { axis, rank: x.len(), n };
        let dx = back.derivative(&mut Build::new(cx.rw), self, g, [x[axis], y[axis]], x[x.len() - 1]);
        Some(dx.map(|dx| [Some(dx), None, None].into_iter().take(count).collect()))
    }
}

/// The way back through a transform of length `n`: the transposed one, which has the opposite sign in its exponents.
struct Back {
    axis: usize,
    rank: usize,
    n: usize,
}

impl Back {
    /// From `g` to what the input, of `given` elements of so many parts, has of it; `[given, made]` are lengths of the axis.
    fn derivative(
        &self,
        b: &mut Build<'_, '_>,
        op: &Dft,
        g: ValueId,
        [given, made]: [usize; 2],
        parts: usize,
    ) -> BuildResult {
        let n = self.n as f64;
        if op.onesided && op.inverse {
            // Every value but the first and the middle one also represents its conjugate.
            let half = self.n / 2 + 1;
            let both = |k: usize| if k == 0 || 2 * k == self.n { 1.0 / n } else { 2.0 / n };
            let mut dims = vec![1; self.rank];
            dims[self.axis] = half;
            let shares = Elements::Float((0..half).map(both).collect());
            let shares = Tensor::from_elements(b.dtype(g), dims, shares).map_err(|e| diagnostic(e.into()))?;
            let (shares, values) = (b.constant(shares)?, self.transform(b, g, false, true)?);
            let dx = b.mul(values, shares)?;
            return self.lengthen(b, dx, half, given);
        }
        let whole = self.lengthen(b, g, made, self.n)?;
        let values = self.transform(b, whole, !op.inverse, false)?;
        let dx = b.scale(values, if op.inverse { 1.0 / n } else { n })?;
        let dx = if parts == 1 { b.head(dx, &[self.rank - 1], &[1])? } else { dx };
        self.lengthen(b, dx, self.n, given)
    }

    fn transform(&self, b: &mut Build<'_, '_>, v: ValueId, inverse: bool, onesided: bool) -> BuildResult {
        let [length, axis] = [self.n, self.axis].map(|v| b.constant(Tensor::scalar(v as i64)));
        b.op(Dft { inverse, onesided }, &[v, length?, axis?])
    }

    /// `v`, of `from` elements along the axis, cut or with zeros behind.
    fn lengthen(&self, b: &mut Build<'_, '_>, v: ValueId, from: usize, to: usize) -> BuildResult {
        if to <= from {
            return if to == from { Ok(v) } else { b.head(v, &[self.axis], &[to]) };
        }
        let mut pads = vec![0; 2 * self.rank];
        pads[self.rank + self.axis] = (to - from) as i64;
        let pads = b.ints(&pads)?;
        b.op(Pad { mode: "constant".into() }, &[v, pads])
    }
}
