//! `of.einsum`.

mod equation;

use std::sync::Arc;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{DType, Dim, Elements, OpError, OpView, Rewriter, Shape, Tensor, TensorType, Type, ValueId};

use self::equation::{Equation, Label};
use super::MatMul;
use crate::build::{Build, BuildResult, diagnostic};
use crate::elementwise::Select;
use crate::sample::Rng;
use crate::{Expanded, Inferred, Op, op, op_basics};

op! {
    /// Einstein summation: axes with equal letters are multiplied elementwise, and letters absent from the result are summed.
    ///
    /// Operands are contracted from left to right, by matrix products where an axis is summed. Source: ONNX Einsum.
    pub struct Einsum = "of.einsum" [Composite, onnx: "Einsum"] {
        operands: (operands*),
        results: (y),
        attrs: { equation: Arc<str> }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let d = r.dims(4, 1, 4);
        let (equation, shapes): (&str, Vec<Vec<usize>>) = match r.int(0, 9) {
            0 => ("ij->ji", vec![vec![d[0], d[1]]]),
            1 => ("ij->i", vec![vec![d[0], d[1]]]),
            2 => ("ii->i", vec![vec![d[0], d[0]]]),
            3 => ("ij,jk", vec![vec![d[0], d[1]], vec![d[1], d[2]]]),
            4 => ("bij,bjk->bki", vec![vec![d[0], d[1], d[2]], vec![d[0], d[2], d[3]]]),
            5 => ("...ij,...jk->...ik", vec![vec![d[3], d[0], d[1]], vec![1, d[1], d[2]]]),
            6 => ("i,j->ij", vec![vec![d[0]], vec![d[1]]]),
            7 => ("bqhd,bkhd->bhqk", vec![vec![d[0], d[1], 2, d[2]], vec![d[0], d[3], 2, d[2]]]),
            8 => ("ij,jk,kl->il", vec![vec![d[0], d[1]], vec![d[1], d[2]], vec![d[2], d[3]]]),
            _ => ("abcd,cdef->abef", vec![vec![d[0], d[1], d[2], d[3]], vec![d[2], d[3], 2, 3]]),
        };
        Some((shapes.iter().map(|s| r.f32s(s)).collect(), Einsum { equation: equation.into() }))
    };
}

/// A value with a letter an axis.
struct Term {
    value: ValueId,
    labels: Vec<Label>,
}

impl Einsum {
    fn equation(&self, shapes: &[Shape]) -> Result<Equation, OpError> {
        Equation::parse(&self.equation, &shapes.iter().map(Vec::len).collect::<Vec<_>>())
    }
}

impl Op for Einsum {
    op_basics!(Einsum);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let list: Vec<&TensorType> = (0..cx.operands.len()).map(|i| cx.tensor(i)).collect::<Result<_, _>>()?;
        let Some(dtype) = list.first().map(|t| t.dtype) else {
            return Err(OpError::ty("there is no operand"));
        };
        if list.iter().any(|t| t.dtype != dtype || !t.dtype.is_float() && !t.dtype.is_int()) {
            return Err(OpError::ty("operands must be numbers of one type"));
        }
        let shapes: Option<Vec<Shape>> = list.iter().map(|t| t.shape.clone()).collect();
        let Some(shapes) = shapes else {
            return Ok(vec![Type::Tensor(TensorType::unranked(dtype))]);
        };
        let e = self.equation(&shapes)?;
        let sizes = e.sizes(&shapes)?;
        let s = e.result.iter().map(|l| sizes.get(l).cloned().unwrap_or_else(Dim::unknown)).collect();
        Ok(vec![Type::tensor(dtype, s)])
    }

    fn expand(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let mut b = Build::new(rw);
        let unknown = || Diagnostic::error(Code::SHAPE, Location::Unknown, "the ranks of all operands must be known");
        let shapes: Option<Vec<Shape>> = operands.iter().map(|v| b.shape(*v)).collect();
        let shapes = shapes.ok_or_else(unknown)?;
        let e = self.equation(&shapes).map_err(diagnostic)?;
        let mut terms = operands.iter().zip(&e.operands).map(|(v, l)| Term { value: *v, labels: l.clone() });
        let mut acc = diagonal(&mut b, terms.next().ok_or_else(unknown)?)?;
        for (i, next) in terms.enumerate() {
            let next = diagonal(&mut b, next)?;
            // Letters that the result or a later operand needs.
            let later = &e.operands[i + 2..];
            let keep = |l: &Label| e.result.contains(l) || later.iter().any(|o| o.contains(l));
            acc = contract(&mut b, acc, next, &keep)?;
        }
        let acc = sum_out(&mut b, acc, &|l| e.result.contains(l))?;
        let perm: Vec<usize> = e.result.iter().filter_map(|l| acc.labels.iter().position(|a| a == l)).collect();
        Ok(vec![b.transpose(acc.value, &perm)?])
    }
}

/// Takes the diagonal of axes with one letter: everything off it becomes zero and is summed away.
fn diagonal(b: &mut Build<'_, '_>, mut t: Term) -> Result<Term, Diagnostic> {
    while let Some((i, j)) =
        (0..t.labels.len()).find_map(|i| (i + 1..t.labels.len()).find(|j| t.labels[*j] == t.labels[i]).map(|j| (i, j)))
    {
        let size =
            b.shape(t.value).and_then(|s| s[i].as_const().or(s[j].as_const())).and_then(|c| usize::try_from(c).ok());
        let size = size.filter(|s| *s < 1 << 15).ok_or_else(|| {
            Diagnostic::error(
                Code::SHAPE,
                Location::Unknown,
                "a letter twice in one operand needs an axis of known, moderate size",
            )
        })?;
        let eye = (0..size * size).map(|p| i128::from(p / size == p % size)).collect();
        let mut dims = vec![1; t.labels.len()];
        (dims[i], dims[j]) = (size, size);
        let mask = Tensor::from_elements(DType::Bool, dims, Elements::Int(eye)).map_err(|e| diagnostic(e.into()))?;
        let mask = b.constant(mask)?;
        let zero = b.number(0.0, t.value)?;
        let masked = b.op(Select {}, &[mask, t.value, zero])?;
        t.value = b.sum(masked, &[j], false)?;
        t.labels.remove(j);
    }
    Ok(t)
}

/// Sums over the axes that are not in the output.
fn sum_out(b: &mut Build<'_, '_>, t: Term, keep: &dyn Fn(&Label) -> bool) -> Result<Term, Diagnostic> {
    let axes: Vec<usize> = (0..t.labels.len()).filter(|a| !keep(&t.labels[*a])).collect();
    if axes.is_empty() {
        return Ok(t);
    }
    let value = b.sum(t.value, &axes, false)?;
    Ok(Term { value, labels: t.labels.into_iter().filter(|l| keep(l)).collect() })
}

/// `t` with its axes in the order of `labels`, length 1 where it has no such axis.
fn spread(b: &mut Build<'_, '_>, t: &Term, labels: &[Label]) -> BuildResult {
    let perm: Vec<usize> = labels.iter().filter_map(|l| t.labels.iter().position(|a| a == l)).collect();
    let missing: Vec<usize> = (0..labels.len()).filter(|i| !t.labels.contains(&labels[*i])).collect();
    let v = b.transpose(t.value, &perm)?;
    b.unsqueeze(v, &missing)
}

/// The product of two terms, summed over the letters that only they have.
fn contract(b: &mut Build<'_, '_>, x: Term, y: Term, keep: &dyn Fn(&Label) -> bool) -> Result<Term, Diagnostic> {
    let x = sum_out(b, x, &|l| keep(l) || y.labels.contains(l))?;
    let y = sum_out(b, y, &|l| keep(l) || x.labels.contains(l))?;
    let both = |l: &&Label| y.labels.contains(l);
    let batch: Vec<Label> = x.labels.iter().filter(both).filter(|l| keep(l)).copied().collect();
    let inner: Vec<Label> = x.labels.iter().filter(both).filter(|l| !keep(l)).copied().collect();
    let rows: Vec<Label> = x.labels.iter().filter(|l| !y.labels.contains(l)).copied().collect();
    let columns: Vec<Label> = y.labels.iter().filter(|l| !x.labels.contains(l)).copied().collect();
    let labels = [batch.clone(), rows.clone(), columns.clone()].concat();
    if !inner.is_empty()
        && let Some(value) = product(b, &x, &y, [&batch, &rows, &columns, &inner])?
    {
        return Ok(Term { value, labels });
    }
    // Without a sum, or with sizes that a reshape cannot express: multiply elementwise, then sum.
    let all = [labels.clone(), inner].concat();
    let (u, v) = (spread(b, &x, &all)?, spread(b, &y, &all)?);
    let value = b.mul(u, v)?;
    sum_out(b, Term { value, labels: all }, &|l| labels.contains(l))
}

/// The size of a letter in a term.
fn size(b: &Build<'_, '_>, t: &Term, l: Label) -> Dim {
    let shape = b.shape(t.value).unwrap_or_default();
    t.labels.iter().position(|a| *a == l).and_then(|i| shape.get(i).cloned()).unwrap_or_else(Dim::unknown)
}

/// Sizes for a reshape: at most one symbol, which becomes -1.
fn sizes(list: &[Dim]) -> Option<Vec<i64>> {
    let v: Vec<i64> = list.iter().map(|d| d.as_const().unwrap_or(-1)).collect();
    // A zero would mean "keep", and leaves -1 without meaning.
    (v.iter().filter(|d| **d < 0).count() <= 1 && !v.contains(&0)).then_some(v)
}

/// The contraction as one matrix product; `None` where sizes cannot be merged.
fn product(
    b: &mut Build<'_, '_>,
    x: &Term,
    y: &Term,
    [batch, rows, columns, inner]: [&[Label]; 4],
) -> Result<Option<ValueId>, Diagnostic> {
    let merged = |b: &Build<'_, '_>, t: &Term, l: &[Label]| l.iter().fold(Dim::from(1i64), |p, l| &p * &size(b, t, *l));
    let (m, n) = (merged(b, x, rows), merged(b, y, columns));
    // A letter whose size differs in the operands (1 against n) broadcasts, which a product does not.
    if inner.iter().any(|l| size(b, x, *l) != size(b, y, *l)) {
        return Ok(None);
    }
    let k = merged(b, x, inner);
    let outer: Vec<Dim> = rows.iter().map(|l| size(b, x, *l)).chain(columns.iter().map(|l| size(b, y, *l))).collect();
    let (Some(left), Some(right), Some(outer)) = (sizes(&[m, k.clone()]), sizes(&[k, n]), sizes(&outer)) else {
        return Ok(None);
    };
    let keep = vec![0; batch.len()];
    let plain = rows.len() == 1 && columns.len() == 1;
    let mut matrix = |t: &Term, order: [&[Label]; 3], dims: &[i64], whole: bool| {
        let v = spread(b, t, &order.concat())?;
        if whole { Ok(v) } else { b.reshape(v, &[keep.as_slice(), dims].concat()) }
    };
    let left = matrix(x, [batch, rows, inner], &left, rows.len() == 1 && inner.len() == 1)?;
    let right = matrix(y, [batch, inner, columns], &right, columns.len() == 1 && inner.len() == 1)?;
    let value = b.op(MatMul {}, &[left, right])?;
    Ok(Some(if plain { value } else { b.reshape(value, &[keep.as_slice(), &outer].concat())? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn einsum_infers_shapes_of_common_equations() {
        let s = |d: &[i64]| d.iter().map(|x| Dim::from(*x)).collect::<Shape>();
        let infer = |eq: &str, shapes: &[Shape]| {
            let e = Einsum { equation: eq.into() }.equation(shapes)?;
            let sizes = e.sizes(shapes)?;
            Ok::<_, OpError>(crate::shape::show(&e.result.iter().map(|l| sizes[l].clone()).collect()))
        };
        assert_eq!(infer("ij,jk", &[s(&[2, 3]), s(&[3, 4])]).unwrap(), "[2, 4]");
        assert_eq!(infer("ba", &[s(&[2, 3])]).unwrap(), "[3, 2]");
        assert_eq!(infer("...i->...", &[s(&[5, 2, 3])]).unwrap(), "[5, 2]");
        assert!(infer("ij,jk->iz", &[s(&[2, 3]), s(&[3, 4])]).is_err());
        assert!(infer("ij,jk", &[s(&[2, 3]), s(&[5, 4])]).is_err());
        assert!(infer("ij", &[s(&[2])]).is_err());
        assert!(infer("i->ii", &[s(&[2])]).is_err());
        assert!(infer("i1->i", &[s(&[2, 2])]).is_err());
    }
}
