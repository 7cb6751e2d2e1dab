//! Strided views of values: transposes, slices, broadcasts and reshapes of them.
//!
//! A kernel with explicit strides reads the original value without a copy.

use of_ir::{Graph, OpId, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;
use of_ops::movement::{Expand, Gather, Slice, Transpose};

use crate::analysis::loop_around::LoopAround;
use crate::analysis::movement;
use crate::analysis::roles::{Role, Roles};
use crate::kernel::attention::MatrixLayout;
use crate::kernel::extent;
use crate::kernel::extent::Extent;
use crate::kernel::space::{row_major, single_stride};

/// An axis as the axes of the memory that it spans, outermost first: extents and strides in elements.
pub type StridedAxis = Vec<(Extent, Extent)>;

/// A value as a strided view of another value's memory.
#[derive(Clone, PartialEq, Debug)]
pub struct OperandView {
    /// The value whose memory it views.
    pub root: ValueId,
    /// Offset of its first element there.
    pub offset: Extent,
    /// Elements by which it moves in each iteration of a loop.
    pub per_iteration: Extent,
    /// Its axes.
    pub axes: Vec<StridedAxis>,
    /// Movement ops between `root` and the value, in order: their results are read only through this view.
    pub ops: Vec<OpId>,
}

impl OperandView {
    /// The view of `v` through all movement ops without other readers.
    pub fn of(g: &Graph, roles: &Roles, v: ValueId) -> OperandView {
        OperandView::traced(g, roles, v, false, None)
    }

    /// The view of `v` through all movement ops, including those with other readers.
    pub fn through_shared(g: &Graph, roles: &Roles, v: ValueId) -> OperandView {
        OperandView::traced(g, roles, v, true, None)
    }

    /// As [`OperandView::through_shared`], in a loop: also through selections of an element by the number of the iteration.
    pub fn in_loop(g: &Graph, roles: &Roles, v: ValueId, around: &LoopAround) -> OperandView {
        OperandView::traced(g, roles, v, true, Some(around))
    }

    fn traced(g: &Graph, roles: &Roles, v: ValueId, shared: bool, around: Option<&LoopAround>) -> OperandView {
        let traced = |op: OpId| {
            let alone = shared || g.uses(v).len() == 1;
            let role = roles.get(op);
            let moves = matches!(g.op(op).name(), Transpose::NAME | Slice::NAME | Expand::NAME | Gather::NAME);
            if !alone || !(*role == Role::Alias || *role == Role::Single && moves && !roles.is_shape(g, op)) {
                return None;
            }
            let x = OperandView::traced(g, roles, g.op(op).operands[0], shared, around);
            x.through(g, op, around).map(|mut y| {
                if *role == Role::Single {
                    y.ops.push(op);
                }
                y
            })
        };
        g.def_op(v).and_then(traced).unwrap_or_else(|| OperandView::whole(g, v))
    }

    /// The trivial view of `v`.
    fn whole(g: &Graph, v: ValueId) -> OperandView {
        let dims = extent::of_value(g, v);
        let axes = dims.iter().cloned().zip(row_major(&dims)).map(|a| vec![a]).collect();
        OperandView { root: v, offset: 0usize.into(), per_iteration: 0usize.into(), axes, ops: Vec::new() }
    }

    /// The layout as batch axes, lines and elements; `transposed` where lines are the last axis.
    ///
    /// # Errors
    /// When its batch axes do not broadcast to `batch`, or its lines or elements have no single stride.
    pub fn layout(&self, batch: &[Extent], transposed: bool) -> Result<MatrixLayout, String> {
        let [lead @ .., a, b] = &self.axes[..] else { return Err("a product with a vector".into()) };
        let (line, element) = if transposed { (b, a) } else { (a, b) };
        let mut axes = Vec::new();
        for (i, d) in batch.iter().enumerate() {
            let own = (i + lead.len()).checked_sub(batch.len()).map(|i| &lead[i]);
            let count: Option<Extent> = own.map(|own| own.iter().map(|(n, _)| n).product());
            match (own, count) {
                (Some(own), Some(count)) if count == *d => axes.extend(own.iter().cloned()),
                (_, Some(count)) if !count.is(1) => {
                    return Err("whether its batches are broadcast is not known before the run".into());
                }
                _ => axes.push((d.clone(), 0usize.into())),
            }
        }
        Ok(MatrixLayout {
            offset: self.offset.clone(),
            batch: axes,
            line_stride: step(line).ok_or("its lines have no constant stride")?,
            element_stride: step(element).ok_or("its elements have no constant stride")?,
        })
    }

    /// The view of the result of `op`, whose first operand this is.
    fn through(self, g: &Graph, op: OpId, around: Option<&LoopAround>) -> Option<OperandView> {
        let data = g.op(op);
        let to = extent::of_value(g, data.results[0]);
        let (mut offset, mut per_iteration, mut axes) = (self.offset, self.per_iteration, self.axes);
        if let Some(t) = as_op::<Transpose>(g, op) {
            let perm = t.permutation(axes.len()).ok()?;
            axes = perm.iter().map(|a| axes[*a].clone()).collect();
        } else if data.name() == Slice::NAME {
            let from = extent::of_value(g, data.operands[0]);
            let own: Vec<Extent> = axes.iter().map(step).collect::<Option<_>>()?;
            let (first, steps) = movement::slice(g, op, &from, &own).ok()?;
            offset = offset + first;
            axes = to.into_iter().zip(steps).map(|a| vec![a]).collect();
        } else if data.name() == Expand::NAME {
            let from = extent::of_value(g, data.operands[0]);
            let lead = to.len() - from.len();
            let stretch = |(i, d): (usize, &Extent)| match i.checked_sub(lead) {
                Some(k) if from[k] == *d => Some(axes[k].clone()),
                Some(k) if !from[k].is(1) => None,
                _ => Some(vec![(d.clone(), 0usize.into())]),
            };
            axes = to.iter().enumerate().map(stretch).collect::<Option<_>>()?;
        } else if let Some(gather) = as_op::<Gather>(g, op) {
            // A constant scalar index removes an axis, and so does the number of an iteration.
            let axis = of_ops::shape::axis(gather.axis, axes.len()).ok()?;
            let count = extent::of_value(g, data.operands[0])[axis].clone();
            if let Some((first, each)) = around.and_then(|l| l.position(g, data.operands[1], &count)) {
                let stride = step(&axes.remove(axis))?;
                per_iteration = per_iteration + &stride * each;
                offset = offset + stride * first;
                return Some(OperandView { root: self.root, offset, per_iteration, axes, ops: self.ops });
            }
            let index = g.constant(data.operands[1]).filter(|t| t.dims().is_empty())?.to_i64s()?[0];
            let n = i64::try_from(count.number()?).ok()?;
            let index = if index < 0 { index + n } else { index };
            offset = offset + step(&axes.remove(axis)).filter(|_| (0..n).contains(&index))? * index;
        } else {
            axes = split(&axes, &to)?;
        }
        Some(OperandView { root: self.root, offset, per_iteration, axes, ops: self.ops })
    }
}

/// The single stride of the elements along an axis, if there is one.
pub fn step(axis: &StridedAxis) -> Option<Extent> {
    let (dims, strides): (Vec<Extent>, Vec<Extent>) = axis.iter().cloned().unzip();
    single_stride(&dims, &strides)
}

/// Reshapes to other extents without changing the element order.
fn split(axes: &[StridedAxis], to: &[Extent]) -> Option<Vec<StridedAxis>> {
    let mut left: Vec<(Extent, Extent)> = axes.iter().flatten().rev().cloned().collect();
    let mut out = Vec::new();
    for d in to {
        let (mut need, mut own) = (d.clone(), Vec::new());
        while !need.is(1) {
            let (n, step) = left.pop()?;
            if n.is(1) {
                continue;
            }
            if let Some(more) = quotient(&need, &n) {
                need = more;
                own.push((n, step));
            } else {
                let rest = quotient(&n, &need)?;
                own.push((need, &step * &rest));
                left.push((rest, step));
                need = 1usize.into();
            }
        }
        out.push(own);
    }
    left.iter().all(|(n, _)| n.is(1)).then_some(out)
}

/// `a / b` if `b` divides `a` for all values of the symbols.
fn quotient(a: &Extent, b: &Extent) -> Option<Extent> {
    let q = a.div_floor(b);
    (&q * b == *a).then_some(q)
}

#[cfg(test)]
mod tests {
    use of_ir::Dim;

    use super::*;

    fn axis(list: &[(usize, usize)]) -> StridedAxis {
        list.iter().map(|(n, s)| ((*n).into(), (*s).into())).collect()
    }

    #[test]
    fn axes_split_and_merge() {
        let whole = [axis(&[(2, 96)]), axis(&[(96, 1)])];
        let to = |list: &[usize]| list.iter().map(|n| Extent::from(*n)).collect::<Vec<_>>();
        let heads = split(&whole, &to(&[2, 12, 8]));
        assert_eq!(heads, Some(vec![axis(&[(2, 96)]), axis(&[(12, 8)]), axis(&[(8, 1)])]));
        assert_eq!(split(&whole, &to(&[4, 1, 48])), Some(vec![axis(&[(2, 96), (2, 48)]), axis(&[]), axis(&[(48, 1)])]));
        assert_eq!(split(&whole, &to(&[3, 64])), None);
        assert_eq!(step(&axis(&[(2, 96), (2, 48)])), Some(48usize.into()));
        assert_eq!(step(&axis(&[(2, 0), (2, 48)])), None);
    }

    #[test]
    fn symbols_split_like_numbers() {
        let n = Extent::from(Dim::symbol("n"));
        let whole = [vec![(n.clone(), 96usize.into())], axis(&[(96, 1)])];
        let heads = split(&whole, &[n.clone(), 12usize.into(), 8usize.into()]);
        assert_eq!(heads, Some(vec![vec![(n.clone(), 96usize.into())], axis(&[(12, 8)]), axis(&[(8, 1)])]));
        assert_eq!(split(&whole, &[&n * 12usize, 8usize.into()]).map(|a| a.len()), Some(2));
    }
}
