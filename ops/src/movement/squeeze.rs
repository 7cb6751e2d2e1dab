//! `of.squeeze`, `of.unsqueeze` and `of.flatten`: reshapes that are named by axes.

use of_ir::{Dim, OpError, OpView, Rewriter, SbpSignature, Shape, Tensor, TensorType, Type, ValueId};

use super::spec::{Part, reshape};
use super::{Known, MAX_AXES, first_only, known, partials, split};
use crate::sample::Rng;
use crate::{Evaluated, Expanded, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// Drops the axes named, which have length 1; all axes of length 1 if none are named.
    pub struct Squeeze = "of.squeeze" [Composite, onnx: "Squeeze"] {
        operands: (x, axes?),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 4) as usize;
        let mut dims = r.dims(rank, 2, 4);
        let axis = r.int(0, rank as i64 - 1);
        dims[axis as usize] = 1;
        let axis = if r.int(0, 1) == 0 { axis } else { axis - rank as i64 };
        Some((vec![r.f32s(&dims), Tensor::from_i64s(&[axis]).into()], Squeeze {}))
    };
}

impl Squeeze {
    /// The axes that stay, sorted; `None` where they are not known.
    fn kept(from: &Shape, axes: Known) -> Result<Option<Vec<usize>>, OpError> {
        let dropped = match axes {
            Known::Unknown => return Ok(None),
            Known::LeftOut if from.iter().any(|d| d.as_const().is_none()) => return Ok(None),
            Known::LeftOut => (0..from.len()).filter(|a| from[*a].as_const() == Some(1)).collect(),
            Known::Value(list) => shape::axes(&list, from.len())?,
        };
        if let Some(a) = dropped.iter().find(|a| from[**a].as_const().is_some_and(|n| n != 1)) {
            return Err(OpError::shape(format!("axis {a} of {} is not 1 long", shape::show(from))));
        }
        Ok(Some((0..from.len()).filter(|a| !dropped.contains(a)).collect()))
    }
}

impl Op for Squeeze {
    op_basics!(Squeeze);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        let unranked = || Type::Tensor(TensorType::unranked(t.dtype));
        let Some(from) = &t.shape else { return Ok(vec![unranked()]) };
        Ok(vec![match Squeeze::kept(from, known(cx, 1))? {
            Some(kept) => Type::tensor(t.dtype, kept.into_iter().map(|a| from[a].clone()).collect()),
            None => match cx.ty(1).and_then(Type::as_tensor).and_then(TensorType::fixed_dims).as_deref() {
                Some([n]) if *n <= from.len() => Type::tensor(t.dtype, vec![Dim::unknown(); from.len() - n]),
                _ => unranked(),
            },
        }])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        if cx.tensor(0).ok()?.rank()? <= 1 { cx.dims(0) } else { None }
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let axes = if inputs.opt_tensor(1).is_some() { Known::Value(inputs.ints(1)?) } else { Known::LeftOut };
        let kept = Squeeze::kept(&super::to_shape(x.dims()), axes)?.unwrap_or_default();
        Ok(vec![x.reshaped(kept.into_iter().map(|a| x.dims()[a]).collect())?.into()])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let attrs = of_ir::Attrs::new();
        let cx = OpView { graph: rw.graph(), operands, attrs: &attrs, regions: &[] };
        let at = |e: OpError| e.at("of.squeeze", &of_diag::Location::Unknown);
        let from = cx.tensor(0).and_then(shape::ranked).map_err(at)?;
        let kept = Squeeze::kept(from, known(&cx, 1)).map_err(at)?;
        let kept = kept.ok_or_else(|| at(OpError::shape("the axes to drop are not known")))?;
        let parts: Vec<Part> = kept.into_iter().map(Part::axis).collect();
        Ok(vec![reshape(rw, operands[0], &parts)?])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let n = cx.operands.len();
        let mut out = partials(n);
        let Some(from) = cx.tensor(0).ok().and_then(|t| t.shape.as_ref()) else { return out };
        // Without axes, a shard of length 1 would lose its axis too.
        if cx.operand(1).is_none() {
            return out;
        }
        let Ok(Some(kept)) = Squeeze::kept(from, known(cx, 1)) else { return out };
        out.extend(kept.into_iter().enumerate().filter_map(|(to, from)| Some(first_only(n, split(from)?, split(to)?))));
        out
    }
}

op! {
    /// New axes of length 1 at the places named, which count in the result.
    pub struct Unsqueeze = "of.unsqueeze" [Composite, onnx: "Unsqueeze"] {
        operands: (x, axes),
        results: (y),
        attrs: {},
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(0, 3) as usize;
        let dims = r.dims(rank, 1, 4);
        let axis = r.int(-(rank as i64) - 1, rank as i64);
        Some((vec![r.f32s(&dims), Tensor::from_i64s(&[axis]).into()], Unsqueeze {}))
    };
}

/// For each axis of the result the operand's axis, or `None` for a new one.
fn unsqueezed(rank: usize, axes: &[i64]) -> Result<Vec<Option<usize>>, OpError> {
    let n = rank + axes.len();
    if n > MAX_AXES {
        return Err(OpError::shape(format!("a tensor cannot have {n} axes")));
    }
    let new = shape::axes(axes, n)?;
    let mut old = 0..rank;
    Ok((0..n).map(|i| if new.contains(&i) { None } else { old.next() }).collect())
}

impl Op for Unsqueeze {
    op_basics!(Unsqueeze);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (t, axes) = (cx.tensor(0)?, cx.tensor(1)?);
        let unranked = || Type::Tensor(TensorType::unranked(t.dtype));
        let Some(from) = &t.shape else { return Ok(vec![unranked()]) };
        let dim = |a: Option<usize>| a.map_or(Dim::from(1i64), |a| from[a].clone());
        Ok(vec![match cx.ints(1) {
            Some(list) => Type::tensor(t.dtype, unsqueezed(from.len(), &list)?.into_iter().map(dim).collect()),
            None => match axes.fixed_dims().as_deref() {
                Some([n]) if n + from.len() <= MAX_AXES => Type::tensor(t.dtype, vec![Dim::unknown(); n + from.len()]),
                _ => unranked(),
            },
        }])
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        if cx.tensor(0).ok()?.rank()? == 0 { cx.dims(0) } else { None }
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let axes = unsqueezed(x.dims().len(), &inputs.ints(1)?)?;
        Ok(vec![x.reshaped(axes.into_iter().map(|a| a.map_or(1, |a| x.dims()[a])).collect())?.into()])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let attrs = of_ir::Attrs::new();
        let cx = OpView { graph: rw.graph(), operands, attrs: &attrs, regions: &[] };
        let at = |e: OpError| e.at("of.unsqueeze", &of_diag::Location::Unknown);
        let rank = cx.tensor(0).and_then(shape::ranked).map_err(at)?.len();
        let axes = cx.ints(1).ok_or_else(|| at(OpError::shape("the new axes are not known")))?;
        let parts = unsqueezed(rank, &axes).map_err(at)?.into_iter().map(|a| a.map_or(Part::number(1), Part::axis));
        let parts: Vec<Part> = parts.collect();
        Ok(vec![reshape(rw, operands[0], &parts)?])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let mut out = partials(2);
        let (Some(rank), Some(axes)) = (cx.tensor(0).ok().and_then(TensorType::rank), cx.ints(1)) else { return out };
        let Ok(list) = unsqueezed(rank, &axes) else { return out };
        out.extend(
            list.into_iter().enumerate().filter_map(|(to, from)| Some(first_only(2, split(from?)?, split(to)?))),
        );
        out
    }
}

op! {
    /// A matrix: the axes before `axis` become the rows, the others the columns.
    pub struct Flatten = "of.flatten" [Composite, onnx: "Flatten"] {
        operands: (x),
        results: (y),
        attrs: { axis: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(0, 4) as usize;
        let dims = r.dims(rank, 1, 4);
        Some((vec![r.f32s(&dims)], Flatten { axis: r.int(-(rank as i64), rank as i64) }))
    };
}

impl Flatten {
    /// Number of axes that become the rows.
    fn rows(&self, rank: usize) -> Result<usize, OpError> {
        // One past the last axis is allowed too.
        if i64::try_from(rank) == Ok(self.axis) { Ok(rank) } else { shape::axis(self.axis, rank) }
    }
}

impl Op for Flatten {
    op_basics!(Flatten);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        let product = |d: &[Dim]| d.iter().fold(Dim::from(1i64), |n, d| &n * d);
        let dims = match &t.shape {
            Some(s) => {
                let (rows, columns) = s.split_at(self.rows(s.len())?);
                vec![product(rows), product(columns)]
            }
            None => vec![Dim::unknown(), Dim::unknown()],
        };
        Ok(vec![Type::tensor(t.dtype, dims)])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let (rows, columns) = x.dims().split_at(self.rows(x.dims().len())?);
        Ok(vec![x.reshaped(vec![rows.iter().product(), columns.iter().product()])?.into()])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let at = |e: OpError| e.at("of.flatten", &of_diag::Location::Unknown);
        let attrs = of_ir::Attrs::new();
        let cx = OpView { graph: rw.graph(), operands, attrs: &attrs, regions: &[] };
        let rank = cx.tensor(0).and_then(shape::ranked).map_err(at)?.len();
        let rows = self.rows(rank).map_err(at)?;
        let parts = [Part::product((0..rows).collect()), Part::product((rows..rank).collect())];
        Ok(vec![reshape(rw, operands[0], &parts)?])
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let mut out = partials(1);
        let Some(s) = cx.tensor(0).ok().and_then(|t| t.shape.as_ref()) else { return out };
        let Ok(rows) = self.rows(s.len()) else { return out };
        // The outermost axis of a group, if it is alone or the slices are equally long.
        let mut group = |axes: std::ops::Range<usize>, to| {
            let long: Vec<usize> = axes.filter(|a| s[*a].as_const() != Some(1)).collect();
            let Some(&first) = long.first() else { return };
            let Some(from) = split(first) else { return };
            let signature = first_only(1, from, of_ir::Sbp::Split(to));
            match i64::try_from(s[first].content()) {
                _ if long.len() == 1 => out.push(signature),
                Ok(n) => out.push(signature.for_divisors_of(n)),
                Err(_) => {}
            }
        };
        group(0..rows, 0);
        group(rows..s.len(), 1);
        out
    }
}
