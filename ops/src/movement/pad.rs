//! `of.pad`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{Attrs, Dim, OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::cells::Cells;
use super::{Known, MAX_LIST_LENGTH, first_only, gather, ints, known, partials, split};
use crate::elementwise::Neg;
use crate::sample::Rng;
use crate::structural::NoneValue;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Lengthens axes at both ends, or shortens them where a pad is negative.
    ///
    /// `pads` holds the lengths before each of `axes` (all axes without it), then those after. New elements are `value`
    /// (0 without it) in mode `constant`, the last element in `edge`, mirrored at the last element in `reflect`, and
    /// those of the other end in `wrap`. Shortening happens before lengthening.
    pub struct Pad = "of.pad" [Primitive, onnx: "Pad"] {
        operands: (x, pads, value?, axes?),
        results: (y),
        attrs: { mode: Arc<str> },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 3, 5);
        let axis = r.int(0, rank as i64 - 1);
        let pads = Tensor::from_i64s(&[r.int(-1, 2), r.int(-1, 2)]);
        let mode = r.pick(&["constant", "edge", "reflect", "wrap"]).into();
        let value = r.f32s(&[]);
        Some((vec![r.f32s(&dims), pads.into(), value, Tensor::from_i64s(&[axis]).into()], Pad { mode }))
    };
}

/// Where padded elements come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Constant,
    Edge,
    Reflect,
    Wrap,
}

/// The lengths before and after one axis.
#[derive(Clone, PartialEq, Debug)]
struct Ends<T> {
    before: T,
    after: T,
}

/// The pads of every axis: zero for those that are not named.
fn by_axis<T: Clone>(pads: &[T], axes: Option<Vec<i64>>, rank: usize, zero: T) -> Result<Vec<Ends<T>>, OpError> {
    let axes = axes.unwrap_or_else(|| (0..rank as i64).collect());
    if pads.len() != 2 * axes.len() {
        return Err(OpError::shape(format!(
            "{} pads are given for {} axes, two an axis are needed",
            pads.len(),
            axes.len()
        )));
    }
    shape::axes(&axes, rank)?;
    let mut out = vec![Ends { before: zero.clone(), after: zero }; rank];
    for (i, a) in axes.iter().enumerate() {
        out[shape::axis(*a, rank)?] = Ends { before: pads[i].clone(), after: pads[i + axes.len()].clone() };
    }
    Ok(out)
}

impl Pad {
    fn parsed(&self) -> Result<Mode, OpError> {
        Ok(match &*self.mode {
            "constant" => Mode::Constant,
            "edge" => Mode::Edge,
            "reflect" => Mode::Reflect,
            "wrap" => Mode::Wrap,
            other => {
                return Err(OpError::attr(format!("mode '{other}' is unknown")).hint("constant, edge, reflect or wrap"));
            }
        })
    }

    /// The pads of every axis where they are known.
    fn ends(cx: &OpView<'_>, rank: usize) -> Result<Option<Vec<Ends<Dim>>>, OpError> {
        let axes = match known(cx, 3) {
            Known::LeftOut => None,
            Known::Unknown => return Ok(None),
            Known::Value(v) => Some(v),
        };
        let Some(pads) = cx.dims(1) else { return Ok(None) };
        by_axis(&pads, axes, rank, Dim::from(0i64)).map(Some)
    }
}

/// A padded axis.
struct Source {
    mode: Mode,
    before: i128,
    /// Elements that are left after shortening, and how many before them are not.
    left: i128,
    skip: i128,
    /// Length after padding.
    len: usize,
}

/// The axis of length `n` with the given pads.
fn source(mode: Mode, n: usize, ends: &Ends<i64>) -> Result<Source, OpError> {
    let n = n as i128;
    let (before, after) = (i128::from(ends.before), i128::from(ends.after));
    let (skip, left) = ((-before).max(0), n + before.min(0) + after.min(0));
    if left < 0 {
        return Err(OpError::shape(format!("pads {before} and {after} take more than an axis of length {n} has")));
    }
    let len = left + before.max(0) + after.max(0);
    if left == 0 && len > 0 && mode != Mode::Constant {
        return Err(OpError::shape("an empty axis has no elements to pad with"));
    }
    let len = shape::count(&[usize::try_from(len).unwrap_or(usize::MAX)])?;
    Ok(Source { mode, before: before.max(0), left, skip, len })
}

impl Source {
    /// The element that element `i` copies; `None` for the pad value.
    fn at(&self, i: usize) -> Option<usize> {
        let (i, left) = (i as i128 - self.before, self.left);
        let inside = match self.mode {
            Mode::Constant if (0..left).contains(&i) => i,
            Mode::Constant => return None,
            Mode::Edge => i.clamp(0, left - 1),
            Mode::Wrap => i.rem_euclid(left),
            Mode::Reflect => {
                // A walk to and fro repeats after twice the axis without its ends.
                let period = (2 * (left - 1)).max(1);
                let i = i.rem_euclid(period);
                i.min(period - i).min(left - 1)
            }
        };
        usize::try_from(inside + self.skip).ok()
    }
}

impl Op for Pad {
    op_basics!(Pad);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (x, pads) = (cx.tensor(0)?, cx.tensor(1)?);
        self.parsed()?;
        if !pads.dtype.is_int() || pads.rank().is_some_and(|r| r != 1) {
            return Err(OpError::ty("pads must be an integer tensor of rank 1"));
        }
        if let Some(v) = cx.ty(2).and_then(Type::as_tensor)
            && v.dtype != x.dtype
        {
            return Err(OpError::ty(format!("the pad value is {}, the tensor {}", v.dtype, x.dtype)));
        }
        let Some(from) = &x.shape else { return Ok(vec![Type::Tensor(TensorType::unranked(x.dtype))]) };
        let out = match Pad::ends(cx, from.len())? {
            Some(ends) => from.iter().zip(&ends).map(|(d, e)| &(d + &e.before) + &e.after).collect(),
            None => vec![Dim::unknown(); from.len()],
        };
        if out.iter().any(|d| d.as_const().is_some_and(|n| n < 0)) {
            return Err(OpError::shape(format!("pads take more than {} has", shape::show(from))));
        }
        Ok(vec![Type::tensor(x.dtype, out)])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let mode = self.parsed()?;
        let axes = if inputs.opt_tensor(3).is_some() { Some(inputs.ints(3)?) } else { None };
        let ends = by_axis(&inputs.ints(1)?, axes, x.dims().len(), 0)?;
        let value = match inputs.opt_tensor(2) {
            Some(v) if v.len() == 1 && v.dtype() == x.dtype() => Cells::of(v),
            Some(v) => {
                return Err(OpError::eval(format!(
                    "the pad value must be one {}, it is {} {}",
                    x.dtype(),
                    v.len(),
                    v.dtype()
                )));
            }
            None => Cells::zeros(x.dtype(), 1)?,
        };
        let from = x.dims().iter().zip(&ends).map(|(n, e)| source(mode, *n, e)).collect::<Result<Vec<_>, _>>()?;
        let dims: Vec<usize> = from.iter().map(|s| s.len).collect();
        let (own, cells) = (shape::strides(x.dims()), Cells::of(x));
        let mut out = Cells::with_room(x.dtype(), shape::count(&dims)?)?;
        shape::for_each_index(&dims, |i| {
            let at = i.iter().zip(&from).zip(&own).try_fold(0, |sum, ((i, f), s)| Some(sum + f.at(*i)? * s));
            match at {
                Some(at) => out.push(&cells, at, 1),
                None => out.push(&value, 0, 1),
            }
        });
        Ok(vec![out.into_tensor(x.dtype(), dims)?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let n = cx.operands.len();
        let zero = cx.operand(2).is_none()
            || cx.constant(2).and_then(|c| c.to_f64s()).is_some_and(|v| v.iter().all(|x| *x == 0.0));
        let mut out = match self.parsed() {
            // The same value on every device adds up to itself only if it is 0; it is its own maximum.
            Ok(Mode::Constant) => {
                let kinds = [PartialKind::Sum, PartialKind::Prod].into_iter().filter(|_| zero);
                let kinds = kinds.chain([PartialKind::Max, PartialKind::Min]);
                kinds.map(|k| first_only(n, Sbp::Partial(k), Sbp::Partial(k))).collect()
            }
            _ => partials(n),
        };
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return out };
        let Ok(Some(ends)) = Pad::ends(cx, rank) else { return out };
        let zero = |d: &Dim| d.as_const() == Some(0);
        let untouched = (0..rank).filter(|a| zero(&ends[*a].before) && zero(&ends[*a].after));
        out.extend(untouched.filter_map(|a| Some(first_only(n, split(a)?, split(a)?))));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let (x, pads) = (cx.operands[0], cx.operands[1]);
        let view = OpView { graph: cx.rw.graph(), operands: cx.operands, attrs: &Attrs::new(), regions: &[] };
        let (value, axes) = (view.operand(2), view.operand(3));
        let mode = self.parsed().ok()?;
        if mode == Mode::Constant {
            let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
                // Shortened where it was lengthened, and the reverse.
                let back = cx.rw.create_one(Neg {}, &[pads])?;
                let none = cx.rw.create_one(NoneValue {}, &[])?;
                let gx = cx.rw.create_one(Pad { mode: self.mode.clone() }, &[g, back, none, axes.unwrap_or(none)])?;
                let mut out = vec![None; cx.operands.len()];
                out[0] = Some(gx);
                if let Some(v) = value {
                    // Everything that did not come from x came from the value.
                    let (all, own) = (cx.unbroadcast(g, v)?, cx.unbroadcast(gx, v)?);
                    out[2] = Some(cx.sub(all, own)?);
                }
                Ok(out)
            };
            return Some(run());
        }
        let dims = cx.rw.graph().ty(x).as_tensor()?.shape.clone()?;
        let ends = Pad::ends(&view, dims.len()).ok()??;
        let mut lists = Vec::new();
        for (a, e) in ends.iter().enumerate() {
            let e = Ends { before: e.before.as_const()?, after: e.after.as_const()? };
            if e.before != 0 || e.after != 0 {
                let n = usize::try_from(dims[a].as_const()?).ok()?;
                let s = source(mode, n, &e).ok().filter(|s| s.len <= MAX_LIST_LENGTH)?;
                lists.push((a, n, (0..s.len).filter_map(|i| s.at(i)).map(|i| i as i64).collect::<Vec<_>>()));
            }
        }
        let operands = cx.operands.len();
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let mut g = g;
            for (axis, n, list) in &lists {
                let index = ints(cx.rw, list)?;
                g = gather::scatter_axis(cx.rw, g, index, 1, *axis, gather::Extent::Fixed(*n))?;
            }
            let mut out = vec![None; operands];
            out[0] = Some(g);
            Ok(out)
        };
        Some(run())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pad_modes_choose_source_elements() {
        let s = |mode, before, after| {
            let s = source(mode, 3, &Ends { before, after }).unwrap();
            (0..s.len).map(|i| s.at(i).map_or(-1, |i| i as i64)).collect::<Vec<_>>()
        };
        assert_eq!(s(Mode::Constant, 1, 1), [-1, 0, 1, 2, -1]);
        assert_eq!(s(Mode::Edge, 2, 1), [0, 0, 0, 1, 2, 2]);
        assert_eq!(s(Mode::Reflect, 2, 4), [2, 1, 0, 1, 2, 1, 0, 1, 2]);
        assert_eq!(s(Mode::Wrap, 1, 2), [2, 0, 1, 2, 0, 1]);
        assert_eq!(s(Mode::Constant, -1, 1), [1, 2, -1]);
        assert!(source(Mode::Constant, 3, &Ends { before: -2, after: -2 }).is_err());
        assert!(source(Mode::Edge, 0, &Ends { before: 1, after: 0 }).is_err());
        assert!(source(Mode::Edge, 1, &Ends { before: i64::MAX, after: i64::MAX }).is_err());
        assert_eq!(source(Mode::Reflect, 1, &Ends { before: 2, after: 0 }).unwrap().at(0), Some(0));
    }
}
