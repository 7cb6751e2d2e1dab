//! `of.slice`.

use of_diag::Diagnostic;
use of_ir::{Dim, OpError, OpView, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::bounds::{Range, extent};
use super::{Known, MAX_LIST_LENGTH, cells, first_only, gather, ints, known, partials, split};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Elements `start, start + step, ..` before `end` along each axis named; all of them along the others.
    ///
    /// Bounds count from the end where negative and are clamped to the axis; a negative step walks backwards. Without
    /// `axes` the first axes are meant, without `steps` every step is 1. Semantics of Python's `x[start:end:step]`.
    pub struct Slice = "of.slice" [Primitive, onnx: "Slice"] {
        operands: (x, starts, ends, axes?, steps?),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let dims = r.dims(rank, 1, 6);
        let axis = r.int(0, rank as i64 - 1);
        let n = dims[axis as usize] as i64;
        let (a, b) = (r.int(0, n - 1), r.int(1, n));
        let (start, end, step) = match r.int(0, 3) {
            0 => (a.min(b - 1), a.max(b), 1),
            1 => (-n, i64::MAX, 2),
            2 => (-1, i64::MIN, -1),
            _ => (n - 1, -n - 1, -2),
        };
        let one = |v: i64| Tensor::from_i64s(&[v]).into();
        Some((vec![r.f32s(&dims), one(start), one(end), one(axis), one(step)], Slice {}))
    };
}

/// What is known about the bounds of one axis.
struct Bounds {
    axis: usize,
    start: Option<Dim>,
    end: Option<Dim>,
    step: Option<i64>,
}

/// The bounds by axis; `None` where not even the axes are known.
fn bounds(cx: &OpView<'_>, rank: usize) -> Result<Option<Vec<Bounds>>, OpError> {
    for i in 1..5 {
        if let Some(ty) = cx.ty(i).and_then(Type::as_tensor)
            && (!ty.dtype.is_int() || ty.rank().is_some_and(|r| r != 1))
        {
            return Err(OpError::ty("bounds, axes and steps must be integer tensors of rank 1"));
        }
    }
    let (starts, ends) = (cx.dims(1), cx.dims(2));
    let (axes, steps) = (known(cx, 3), known(cx, 4));
    let len = |i: usize| cx.tensor(i).ok()?.fixed_dims()?.first().copied();
    let axes = match axes {
        Known::Value(a) => a,
        Known::Unknown => return Ok(None),
        Known::LeftOut => match len(1).or_else(|| len(2)) {
            Some(n) if n > rank => return Err(OpError::shape(format!("{n} bounds for a tensor of rank {rank}"))),
            Some(n) => (0..n as i64).collect(),
            None => return Ok(None),
        },
    };
    let n = axes.len();
    let steps = match steps {
        Known::Value(s) => Some(s),
        Known::LeftOut => Some(vec![1; n]),
        Known::Unknown => None,
    };
    let fits = |l: Option<usize>| l.is_none_or(|l| l == n);
    if !fits(starts.as_ref().map(Vec::len)) || !fits(ends.as_ref().map(Vec::len)) || !fits(steps.as_ref().map(Vec::len))
    {
        return Err(OpError::shape(format!("starts, ends and steps must be as many as the {n} axes")));
    }
    shape::axes(&axes, rank)?;
    let list = axes.iter().enumerate().map(|(i, a)| {
        let step = steps.as_ref().map(|s| s[i]);
        if step == Some(0) {
            return Err(OpError::attr("a step is 0"));
        }
        let of = |l: &Option<Vec<Dim>>| l.as_ref().map(|l| l[i].clone());
        Ok(Bounds { axis: shape::axis(*a, rank)?, start: of(&starts), end: of(&ends), step })
    });
    list.collect::<Result<_, _>>().map(Some)
}

/// The elements of every axis, all axes in order.
fn ranges(
    dims: &[usize],
    starts: &[i64],
    ends: &[i64],
    axes: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
) -> Result<Vec<Range>, OpError> {
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err(OpError::eval("starts, ends, axes and steps must be equally many"));
    }
    shape::axes(&axes, dims.len())?;
    let mut out: Vec<Range> = dims.iter().map(|d| Range { start: 0, len: *d, step: 1 }).collect();
    for (i, a) in axes.iter().enumerate() {
        let a = shape::axis(*a, dims.len())?;
        out[a] = Range::new(dims[a], starts[i], ends[i], steps[i])?;
    }
    Ok(out)
}

impl Op for Slice {
    op_basics!(Slice);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        let Some(from) = &t.shape else { return Ok(vec![Type::Tensor(TensorType::unranked(t.dtype))]) };
        let out = match bounds(cx, from.len())? {
            None => vec![Dim::unknown(); from.len()],
            Some(list) => {
                let mut out = from.clone();
                for b in list {
                    out[b.axis] = match (&b.start, &b.end, b.step) {
                        (Some(s), Some(e), Some(step)) => extent(&from[b.axis], s, e, step)?,
                        _ => Dim::unknown(),
                    };
                }
                out
            }
        };
        Ok(vec![Type::tensor(t.dtype, out)])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        if cx.tensor(0).ok()?.rank()? != 1 {
            return None;
        }
        let x = cx.dims(0)?;
        let option = |i: usize| match known(cx, i) {
            Known::Value(v) => Some(Some(v)),
            Known::LeftOut => Some(None),
            Known::Unknown => None,
        };
        let r = ranges(&[x.len()], &cx.ints(1)?, &cx.ints(2)?, option(3)?, option(4)?).ok()?;
        (0..r[0].len).map(|i| x.get(r[0].at(i)).cloned()).collect()
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let option = |i: usize| if inputs.opt_tensor(i).is_some() { inputs.ints(i).map(Some) } else { Ok(None) };
        let ranges = ranges(x.dims(), &inputs.ints(1)?, &inputs.ints(2)?, option(3)?, option(4)?)?;
        let own = shape::strides(x.dims());
        let dims: Vec<usize> = ranges.iter().map(|r| r.len).collect();
        let start = ranges.iter().zip(&own).map(|(r, s)| r.start * s).sum();
        // Along an axis of one element the step is not taken, and may be any number.
        let steps = ranges.iter().zip(&own).map(|(r, s)| if r.len > 1 { r.step as isize * *s as isize } else { 0 });
        Ok(vec![cells::stride(x, &dims, start, &steps.collect::<Vec<_>>())?.into()])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let n = cx.operands.len();
        let mut out = partials(n);
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return out };
        let Ok(Some(list)) = bounds(cx, rank) else { return out };
        let untouched = (0..rank).filter(|a| list.iter().all(|b| b.axis != *a));
        out.extend(untouched.filter_map(|a| Some(first_only(n, split(a)?, split(a)?))));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let g = cx.grads[0]?;
        let x = cx.operands[0];
        let graph = cx.rw.graph();
        let from = graph.ty(x).as_tensor()?.shape.clone()?;
        let view = OpView { graph, operands: cx.operands, attrs: &of_ir::Attrs::new(), regions: &[] };
        let list = bounds(&view, from.len()).ok()??;
        let mut ranges = Vec::new();
        for b in list {
            let n = usize::try_from(from[b.axis].as_const()?).ok()?;
            let r = Range::new(n, b.start?.as_const()?, b.end?.as_const()?, b.step?).ok()?;
            if r.step != 1 && r.len > MAX_LIST_LENGTH {
                return None;
            }
            ranges.push((b.axis, n, r));
        }
        let operands = cx.operands.len();
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let mut out = vec![None; operands];
            out[0] = Some(if ranges.iter().all(|(_, _, r)| r.step == 1) {
                // Zeros where nothing was read.
                let before = ranges.iter().map(|(_, _, r)| r.start as i64);
                let after = ranges.iter().map(|(_, n, r)| (n - r.start - r.len) as i64);
                let pads = ints(cx.rw, &before.chain(after).collect::<Vec<_>>())?;
                let axes = ints(cx.rw, &ranges.iter().map(|(a, ..)| *a as i64).collect::<Vec<_>>())?;
                let none = cx.rw.create_one(crate::structural::NoneValue {}, &[])?;
                cx.rw.create_one(super::Pad { mode: "constant".into() }, &[g, pads, none, axes])?
            } else {
                // One axis after the other, like the gradient of a gather.
                let mut g = g;
                for (axis, n, r) in &ranges {
                    let index = ints(cx.rw, &(0..r.len).map(|i| r.at(i) as i64).collect::<Vec<_>>())?;
                    g = gather::scatter_axis(cx.rw, g, index, 1, *axis, gather::Extent::Fixed(*n))?;
                }
                g
            });
            Ok(out)
        };
        Some(run())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_semantics_equal_python() {
        let x = Tensor::from_i64s(&[0, 1, 2, 3, 4]);
        let run = |s: i64, e: i64, step: i64| {
            let one = |v| Tensor::from_i64s(&[v]).into();
            let values = [x.clone().into(), one(s), one(e), one(-1), one(step)];
            let mut inputs = Inputs { values: &values, types: &[], region: &mut |_, _| Ok(vec![]) };
            match &(Slice {}).eval(&mut inputs).unwrap()[0] {
                crate::Value::Tensor(t) => t.to_i64s().unwrap(),
                _ => vec![],
            }
        };
        assert_eq!(run(1, 4, 1), [1, 2, 3]);
        assert_eq!(run(-2, i64::MAX, 1), [3, 4]);
        assert_eq!(run(-1, i64::MIN, -2), [4, 2, 0]);
        assert_eq!(run(3, 0, -1), [3, 2, 1]);
        assert_eq!(run(9, 2, 1), [0i64; 0]);
    }
}
