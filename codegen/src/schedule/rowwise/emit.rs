//! The outer loops of a rowwise kernel, and the loops over a row.

use of_ir::DType;

use super::super::view::declare;
use super::shape::{Mode, Shape};
use super::stage::{Cursor, Rows};
use super::{RowInput, Rowwise, StageKind};
use crate::kernel::{Affine, Builder, Compare, Kernel};

pub(super) fn emit(spec: &Rowwise, types: &[Vec<DType>], shape: Shape) -> Kernel {
    let mut b = Builder::new(spec.name.clone());
    declare(&mut b, &spec.params);
    let (rows, elements) = (shape.rows.iter().product::<usize>(), shape.inner.iter().product::<usize>());
    let (last, lanes) = (shape.rows.len() - 1, shape.lanes);
    let outer = b.outer();
    let iterations = match shape.mode {
        Mode::Inner => {
            let begin = outer * shape.block as i64;
            let end = b.min(begin.clone() + shape.block, rows);
            b.for_(begin, end, 1, 1, |b, row| {
                let row = b.unflatten(row, &shape.rows);
                run(b, &shape, types, &row, 1, lanes);
            });
            rows.div_ceil(shape.block)
        }
        Mode::Rows => {
            let (n, step) = (shape.rows[last], shape.slots * lanes);
            let chunk = shape.block * step;
            let mut dims = shape.rows[..last].to_vec();
            dims.push(n.div_ceil(chunk));
            let mut at = b.unflatten(outer, &dims);
            let begin = at.pop().unwrap_or_default() * chunk as i64;
            let end = b.min(begin.clone() + chunk, n);
            let point = |r: Affine| {
                let mut p = at.clone();
                p.push(r);
                p
            };
            // Steps of all slots, then single vectors, then what is left.
            let (steps, vectors) = (n / step * step, n / lanes * lanes);
            let limit = b.min(end.clone(), steps);
            b.for_(begin.clone(), limit, step as i64, 1, |b, r| run(b, &shape, types, &point(r), shape.slots, lanes));
            if vectors > steps {
                let (from, to) = (b.max(begin, steps), b.min(end.clone(), vectors));
                b.for_(from, to, lanes as i64, 1, |b, r| run(b, &shape, types, &point(r), 1, lanes));
            }
            if n > vectors {
                let tail = |b: &mut Builder| run(b, &shape, types, &point(vectors.into()), 1, n - vectors);
                b.if_(Affine::from(vectors), Compare::Lt, end, tail, |_| {});
            }
            dims.iter().product()
        }
    };
    let total = (rows as u64).saturating_mul(elements as u64);
    let views = shape.stages.iter().flat_map(|s| s.stores.iter().flatten()).count() + 1;
    b.finish(iterations, 1, total.saturating_mul(shape.flops), total.saturating_mul(4 * views as u64))
}

/// All stages for one row, or for `slots` vectors of rows of which the last has `active` lanes.
fn run(b: &mut Builder, shape: &Shape, types: &[Vec<DType>], row: &[Affine], slots: usize, active: usize) {
    let mut rows = Rows::new(b, shape, types, row, slots, active);
    let mut group: Vec<usize> = Vec::new();
    for (at, stage) in shape.stages.iter().enumerate() {
        // A number of a row is there when its loop is done.
        let waits = stage.inputs.iter().any(|i| match i {
            RowInput::Stage { stage, .. } => group.contains(stage) && shape.stages[*stage].per_row(),
            RowInput::View(_) => false,
        });
        if waits || stage.kind == StageKind::Row {
            flush(b, &mut rows, &mut group);
        }
        if stage.kind == StageKind::Row {
            rows.once(b, at);
        } else {
            group.push(at);
        }
    }
    flush(b, &mut rows, &mut group);
}

/// The loop of a group of stages.
fn flush(b: &mut Builder, rows: &mut Rows<'_>, group: &mut Vec<usize>) {
    let group = std::mem::take(group);
    if group.is_empty() {
        return;
    }
    let shape = rows.shape;
    rows.begin(b, &group);
    match shape.mode {
        Mode::Inner => {
            let last = shape.inner.len() - 1;
            nest(b, &shape.inner[..last], &mut Vec::new(), &mut |b, inner| {
                let (n, lanes) = (shape.inner[last], shape.lanes);
                let step = shape.slots * lanes;
                let (steps, vectors) = (n / step * step, n / lanes * lanes);
                let mut part = |b: &mut Builder, i: Affine, slot: usize, active: usize| {
                    let mut inner = inner.to_vec();
                    inner.push(i);
                    rows.element(b, &group, &Cursor { inner, slot, active });
                };
                b.for_(0i64, steps, step as i64, 1, |b, i| {
                    (0..shape.slots).for_each(|slot| part(b, i.clone() + slot * lanes, slot, lanes));
                });
                b.for_(steps, vectors, lanes as i64, 1, |b, i| part(b, i, 0, lanes));
                if n > vectors {
                    part(b, vectors.into(), 0, n - vectors);
                }
            });
        }
        Mode::Rows => nest(b, &shape.inner, &mut Vec::new(), &mut |b, inner| {
            for slot in 0..rows.slots {
                let active = if slot + 1 == rows.slots { rows.active } else { shape.lanes };
                rows.element(b, &group, &Cursor { inner: inner.to_vec(), slot, active });
            }
        }),
    }
    rows.end(b, &group);
}

/// Loops over all of `dims`.
fn nest(b: &mut Builder, dims: &[usize], point: &mut Vec<Affine>, body: &mut dyn FnMut(&mut Builder, &[Affine])) {
    let Some((d, rest)) = dims.split_first() else { return body(b, point) };
    b.for_(0i64, *d, 1, 1, |b, i| {
        point.push(i);
        nest(b, rest, point, body);
        point.pop();
    });
}
