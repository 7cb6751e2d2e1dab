//! `of.stft`.

use of_diag::Diagnostic;
use of_ir::{Dim, DimFn, OpError, OpView, Rewriter, Tensor, Type, ValueId};

use super::Dft;
use super::dft::single;
use crate::build::{Build, diagnostic};
use crate::movement::Gather;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, OpSpec, op, op_basics, shape};

op! {
    /// Short-time Fourier transform of `signal[batch, length, parts]`: `of.dft` of every frame times the window. A signal
    /// of rank 2 is real.
    ///
    /// Frame `f` begins at `f * step` and has the length of the window, or `frame_length`, or that of the signal. The
    /// result is `[batch, frames, N or N/2 + 1, 2]` with `frames = (length - N) / step + 1`; what remains of the signal
    /// is not used. Source: ONNX STFT.
    pub struct Stft = "of.stft" [Composite, onnx: "STFT"] {
        operands: (signal, step, window?, frame_length?),
        results: (y),
        attrs: { onesided: bool },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let onesided = r.int(0, 1) == 0;
        let parts = if onesided { 1 } else { r.int(1, 2) as usize };
        let n = r.int(1, 6);
        let mut dims = vec![r.clone().int(1, 3) as usize, r.clone().int(6, 12) as usize, parts];
        if parts == 1 && seed.is_multiple_of(3) {
            dims.pop();
        }
        let signal = r.f32s(&dims);
        let mut operands = vec![signal, Tensor::scalar(r.int(1, 4)).into()];
        match r.int(0, 2) {
            0 => operands.push(r.f32s(&[n as usize])),
            1 => operands.extend([crate::Value::None, Tensor::scalar(n).into()]),
            _ => operands.extend([r.f32s(&[n as usize]), Tensor::scalar(n).into()]),
        }
        Some((operands, Stft { onesided }))
    };
}

impl Stft {
    /// The length of a frame, where it is known.
    fn frame(&self, cx: &OpView<'_>) -> Result<Option<Dim>, OpError> {
        let window = match cx.operand(2) {
            None => None,
            Some(_) => match &cx.tensor(2)?.shape {
                Some(s) if s.len() == 1 => Some(s[0].clone()),
                Some(s) => return Err(OpError::shape(format!("the window must be a list, it is {}", shape::show(s)))),
                None => None,
            },
        };
        let length = match (single(cx, 3)?, window) {
            (Some(Some(n)), Some(w)) if n.provably_ne(&w) => {
                return Err(OpError::shape(format!("the window has {w} elements, the frame {n}")));
            }
            (Some(Some(n)), _) => Some(n),
            (_, Some(w)) => Some(w),
            (Some(None), None) if cx.operand(2).is_none() => {
                cx.tensor(0)?.shape.as_ref().and_then(|s| s.get(1)).cloned()
            }
            _ => None,
        };
        match length.as_ref().and_then(Dim::as_const) {
            Some(n) if n < 1 => Err(OpError::shape(format!("a frame of {n} elements"))),
            _ => Ok(length),
        }
    }
}

impl Op for Stft {
    op_basics!(Stft);

    fn has_zero_coefficients(&self) -> bool {
        true
    }

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() || (cx.operand(2).is_some() && cx.tensor(2)?.dtype != x.dtype) {
            return Err(OpError::ty("signal and window must be floating-point, of one type"));
        }
        let step = single(cx, 1)?.flatten();
        if step.as_ref().and_then(Dim::as_const).is_some_and(|s| s < 1) {
            return Err(OpError::shape("the step between frames must be positive"));
        }
        let frame = self.frame(cx)?;
        let (mut batch, mut frames) = (Dim::unknown(), Dim::unknown());
        if let Some(s) = &x.shape {
            let one = Dim::from(1i64);
            let (n, length, parts) = match s.as_slice() {
                [n, length] => (n, length, &one),
                [n, length, parts] => (n, length, parts),
                _ => return Err(OpError::shape(format!("the signal must have rank 2 or 3, it is {}", shape::show(s)))),
            };
            let complex = parts.as_const().is_some_and(|p| p == 2);
            if parts.as_const().is_some_and(|p| p != 1 && p != 2) || (complex && self.onesided) {
                return Err(OpError::shape(format!("{parts} parts of a number, with onesided {}", self.onesided)));
            }
            batch = n.clone();
            if let (Some(frame), Some(step)) = (&frame, &step) {
                let rest = length - frame;
                if rest.as_const().is_some_and(|r| r < 0) {
                    return Err(OpError::shape(format!("a frame of {frame} elements in a signal of {length}")));
                }
                frames = &Dim::call(DimFn::FloorDiv, &rest, step) + &Dim::from(1i64);
            }
        }
        let bins = match (frame, self.onesided) {
            (None, _) => Dim::unknown(),
            (Some(n), false) => n,
            (Some(n), true) => &Dim::call(DimFn::FloorDiv, &n, &Dim::from(2i64)) + &Dim::from(1i64),
        };
        Ok(vec![Type::tensor(x.dtype, vec![batch, frames, bins, Dim::from(2i64)])])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let attrs = self.attrs_of();
        let cx = OpView { graph: rw.graph(), operands, attrs: &attrs, regions: &[] };
        let known = |d: Option<Dim>| d.and_then(|d| usize::try_from(d.as_const()?).ok());
        let length = cx.tensor(0).ok().and_then(|t| t.shape.as_ref()?.get(1).cloned());
        let step = single(&cx, 1).map_err(diagnostic)?.flatten();
        let frame = self.frame(&cx).map_err(diagnostic)?;
        let (Some(length), Some(step), Some(frame)) = (known(length), known(step), known(frame)) else {
            let what = format!("'{}' is expanded for known lengths", Stft::NAME);
            return Err(diagnostic(OpError::shape(what)));
        };
        let rank = cx.tensor(0).map_err(diagnostic)?.rank();
        let b = &mut Build::new(rw);
        let signal = if rank == Some(2) { b.unsqueeze(operands[0], &[2])? } else { operands[0] };
        let frames = frames(b, signal, (length, step, frame))?;
        let weighted = match b.given(operands, 2) {
            Some(window) => {
                let window = b.unsqueeze(window, &[1])?;
                b.mul(frames, window)?
            }
            None => frames,
        };
        Ok(vec![b.op(Dft { inverse: false, onesided: self.onesided }, &[weighted])?])
    }
}

/// `signal[batch, length, parts]` as `[batch, frames, frame, parts]`.
fn frames(
    b: &mut Build<'_, '_>,
    signal: ValueId,
    (length, step, frame): (usize, usize, usize),
) -> Result<ValueId, Diagnostic> {
    let count = length.checked_sub(frame).filter(|_| step > 0).map(|rest| rest / step + 1);
    let count = count.ok_or_else(|| diagnostic(OpError::shape("a frame does not fit into the signal")))?;
    shape::count(&[count, frame]).map_err(diagnostic)?;
    let index: Vec<i64> = (0..count).flat_map(|f| (0..frame).map(move |i| (f * step + i) as i64)).collect();
    let index = Tensor::from_i64s(&index).reshaped(vec![count, frame]).map_err(|e| diagnostic(e.into()))?;
    let index = b.constant(index)?;
    b.op(Gather { axis: 1 }, &[signal, index])
}

#[cfg(test)]
mod tests {
    use of_ir::{DType, Graph, TensorType};

    use super::*;

    #[test]
    fn stft_frames_that_do_not_fit_are_refused() {
        let mut g = Graph::new();
        let entry = g.entry();
        let mut rw = Rewriter::new(&mut g, "test");
        let x = rw.add_arg(entry, Type::Tensor(TensorType::fixed(DType::F32, &[1, 8, 1])), None);
        let w = rw.add_arg(entry, Type::Tensor(TensorType::fixed(DType::F32, &[9])), None);
        let step = rw.create_one(crate::structural::Constant { value: Tensor::scalar(2i64) }, &[]).unwrap();
        let e = rw.create(Stft { onesided: true }, &[x, step, w]).unwrap_err();
        assert!(e.message.contains("a frame of 9 elements in a signal of 8"), "{e}");
    }
}
