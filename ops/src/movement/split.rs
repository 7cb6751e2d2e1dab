//! `of.split`.

use of_diag::Diagnostic;
use of_ir::{Dim, DimFn, OpError, OpView, PartialKind, Sbp, SbpSignature, Tensor, TensorType, Type, ValueId};

use super::{Concat, cells::Cells, split};
use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, Value, op, op_basics, shape};

op! {
    /// Cuts a tensor into `num_outputs` pieces along an axis; the inverse of `of.concat`.
    ///
    /// Without `sizes` all pieces are equally long, but for the last, which is shorter where the division leaves a
    /// remainder.
    pub struct Split = "of.split" [Primitive, onnx: "Split"] {
        operands: (x, sizes?),
        results: (ys*),
        attrs: { axis: i64, num_outputs: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let rank = r.int(1, 3) as usize;
        let mut dims = r.dims(rank, 1, 4);
        let axis = r.int(0, rank as i64 - 1);
        let sizes: Vec<i64> = (0..r.int(1, 3)).map(|_| r.int(0, 3)).collect();
        let n = sizes.len() as i64;
        dims[axis as usize] = sizes.iter().sum::<i64>() as usize;
        let x = r.f32s(&dims);
        let equal = dims[axis as usize] as i64 % n == 0 && r.int(0, 1) == 0;
        let operands = if equal { vec![x] } else { vec![x, Tensor::from_i64s(&sizes).into()] };
        Some((operands, Split { axis, num_outputs: n }))
    };
}

/// More pieces than any model needs.
const MAX_PIECES: i64 = 1 << 16;

impl Split {
    fn count(&self) -> Result<usize, OpError> {
        match usize::try_from(self.num_outputs) {
            Ok(n) if n >= 1 && self.num_outputs <= MAX_PIECES => Ok(n),
            _ => Err(OpError::attr(format!("num_outputs is {}, it must be in 1..={MAX_PIECES}", self.num_outputs))),
        }
    }

    /// Lengths of the pieces of an axis without `sizes`.
    fn equal(&self, d: &Dim) -> Result<Vec<Dim>, OpError> {
        let n = self.count()?;
        if d.is_unknown() {
            return Ok(vec![Dim::unknown(); n]);
        }
        let zero = Dim::from(0i64);
        let each = Dim::call(DimFn::CeilDiv, d, &Dim::from(n));
        if d.exact_div(&Dim::from(n)).is_some() {
            return Ok(vec![each; n]);
        }
        // A short axis can run out before the last piece.
        Ok((0..n)
            .map(|i| {
                let left = d - &(&each * &Dim::from(i));
                Dim::call(DimFn::Max, &Dim::call(DimFn::Min, &left, &each), &zero)
            })
            .collect())
    }

    /// Lengths of the pieces of an axis.
    fn lengths(&self, d: &Dim, sizes: Option<Vec<Dim>>) -> Result<Vec<Dim>, OpError> {
        let Some(sizes) = sizes else { return self.equal(d) };
        if sizes.len() != self.count()? {
            return Err(OpError::shape(format!("{} sizes are given for {} pieces", sizes.len(), self.num_outputs)));
        }
        let sum = sizes.iter().fold(Dim::from(0i64), |n, s| &n + s);
        if sizes.iter().any(|s| s.as_const().is_some_and(|s| s < 0)) || sum.provably_ne(d) {
            let list = sizes.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ");
            return Err(OpError::shape(format!("pieces of {list} do not make up an axis of length {d}")));
        }
        Ok(sizes)
    }
}

impl Op for Split {
    op_basics!(Split);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let t = cx.tensor(0)?;
        let n = self.count()?;
        let Some(s) = &t.shape else { return Ok(vec![Type::Tensor(TensorType::unranked(t.dtype)); n]) };
        let axis = shape::axis(self.axis, s.len())?;
        let lengths = if cx.operand(1).is_some() && cx.dims(1).is_none() {
            vec![Dim::unknown(); n]
        } else {
            self.lengths(&s[axis], cx.dims(1))?
        };
        let piece = |len: Dim| {
            let mut s = s.clone();
            s[axis] = len;
            Type::tensor(t.dtype, s)
        };
        Ok(lengths.into_iter().map(piece).collect())
    }

    fn dims(&self, cx: &OpView<'_>) -> Option<Vec<Dim>> {
        let x = cx.dims(0).filter(|_| cx.tensor(0).is_ok_and(|t| t.rank() == Some(1)))?;
        if cx.operand(1).is_some() && cx.dims(1).is_none() {
            return None;
        }
        let first = self.lengths(&Dim::from(x.len()), cx.dims(1)).ok()?.first()?.as_const()?;
        Some(x.get(..usize::try_from(first).ok()?)?.to_vec())
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let axis = shape::axis(self.axis, x.dims().len())?;
        let sizes = match inputs.opt_tensor(1) {
            Some(_) => Some(inputs.ints(1)?.into_iter().map(Dim::from).collect()),
            None => None,
        };
        let lengths = self.lengths(&Dim::from(x.dims()[axis]), sizes)?;
        let lengths = lengths.iter().filter_map(|d| usize::try_from(d.as_const()?).ok());
        Ok(pieces(x, axis, lengths)?.into_iter().map(Value::Tensor).collect())
    }

    fn sbp(&self, cx: &OpView<'_>) -> Vec<SbpSignature> {
        let Ok(n) = self.count() else { return Vec::new() };
        let all = |s: Sbp| {
            let mut operands = vec![Sbp::Broadcast; cx.operands.len().max(1)];
            operands[0] = s;
            SbpSignature::new(&operands, &vec![s; n])
        };
        let mut out: Vec<_> = PartialKind::ALL.into_iter().map(|k| all(Sbp::Partial(k))).collect();
        let Some(rank) = cx.tensor(0).ok().and_then(TensorType::rank) else { return out };
        let Ok(axis) = shape::axis(self.axis, rank) else { return out };
        out.extend((0..rank).filter(|a| *a != axis).filter_map(split).map(all));
        out
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        cx.grads.iter().find(|g| g.is_some())?;
        let mut run = || -> Result<Vec<Option<ValueId>>, Diagnostic> {
            let mut parts = Vec::new();
            for (g, y) in cx.grads.iter().zip(cx.results) {
                parts.push(match g {
                    Some(g) => *g,
                    // Nothing flows back from this piece.
                    None => super::zeros_like(cx.rw, *y)?,
                });
            }
            let mut out = vec![None; cx.operands.len()];
            out[0] = Some(cx.rw.create_one(Concat { axis: self.axis }, &parts)?);
            Ok(out)
        };
        Some(run())
    }
}

/// Consecutive pieces of the given lengths along an axis. The lengths do not exceed the axis.
pub(crate) fn pieces(x: &Tensor, axis: usize, lengths: impl Iterator<Item = usize>) -> Result<Vec<Tensor>, OpError> {
    let source = Cells::of(x);
    let outer: usize = x.dims()[..axis].iter().product();
    let inner: usize = x.dims()[axis + 1..].iter().product();
    let mut start = 0;
    lengths
        .map(|len| {
            let mut cells = Cells::with_room(x.dtype(), outer * len * inner)?;
            let outer = if len * inner == 0 { 0 } else { outer };
            (0..outer).for_each(|o| cells.push(&source, (o * x.dims()[axis] + start) * inner, len * inner));
            start += len;
            let mut dims = x.dims().to_vec();
            dims[axis] = len;
            cells.into_tensor(x.dtype(), dims)
        })
        .collect()
}
