//! Slices whose starts are values.

use of_ir::ValueId;
use of_ops::elementwise::Add;
use of_ops::movement::{Concat, Gather, ScatterNd};

use crate::import::build::Built;
use crate::import::{Call, ImportError, ImportResult, Importer};

/// `sizes` elements from starts on, which are moved so that the slice fits.
pub(super) fn dynamic_slice(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    let (dims, sizes) = (cx.dims(x)?, c.ints(&["sizes", "slice_sizes"])?);
    check(&dims, &sizes, c.operands.len() - 1)?;
    // Starts that are known first: they make the rest smaller.
    let (mut starts, mut ends) = (vec![0; dims.len()], dims.clone());
    let mut open = Vec::new();
    for axis in (0..dims.len()).filter(|a| sizes[*a] != dims[*a]) {
        let start = c.operand(axis + 1)?;
        match cx.fold_int(start) {
            Some(known) => {
                starts[axis] = known.clamp(0, dims[axis] - sizes[axis]);
                ends[axis] = starts[axis] + sizes[axis];
            }
            None => open.push((axis, start)),
        }
    }
    let mut y = cx.slice(x, &starts, &ends, &vec![1; dims.len()])?;
    // Last axes first, as an index of one element takes its axis away. Loops see that it selects an element.
    for (axis, start) in open.into_iter().rev() {
        let mut index = cx.clamped_index(start, dims[axis] - sizes[axis])?;
        if sizes[axis] != 1 {
            let count = cx.count_along(&[sizes[axis]], 0, of_ir::DType::I64, true)?;
            index = cx.one(Add {}, &[index, count])?;
        }
        y = cx.one(Gather { axis: axis as i64 }, &[y, index])?;
    }
    let y = cx.reshape(y, &sizes)?;
    Ok(vec![y])
}

/// A tensor with a slice replaced.
pub(super) fn dynamic_update_slice(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let (x, update) = (c.operand(0)?, c.operand(1)?);
    let (dims, sizes) = (cx.dims(x)?, cx.dims(update)?);
    check(&dims, &sizes, c.operands.len() - 2)?;
    let partial: Vec<usize> = (0..dims.len()).filter(|a| sizes[*a] != dims[*a]).collect();
    let Some(last) = partial.last().copied() else { return Ok(vec![update]) };
    if sizes.contains(&0) {
        return Ok(vec![x]);
    }
    let start_of = |axis: usize| c.operand(axis + 2);
    if let [axis] = partial[..]
        && let Some(start) = cx.fold_int(start_of(axis)?)
    {
        let start = start.clamp(0, dims[axis] - sizes[axis]);
        return Ok(vec![replace_known(cx, x, update, axis, start)?]);
    }
    // The place of each row of the update, over the axes up to the last one that is not whole.
    let grid = &sizes[..=last];
    let mut columns = Vec::new();
    for axis in 0..=last {
        let mut column = cx.count_along(grid, axis, of_ir::DType::I64, false)?;
        if partial.contains(&axis) {
            let start = cx.clamped_index(start_of(axis)?, dims[axis] - sizes[axis])?;
            column = if sizes[axis] == 1 {
                cx.reshape(start, &vec![1; grid.len()])?
            } else {
                cx.one(Add {}, &[column, start])?
            };
        }
        columns.push(column);
    }
    let indices = index_vectors(cx, &columns, grid)?;
    Ok(vec![cx.one(ScatterNd { reduction: "none".into() }, &[x, indices, update])?])
}

/// Numbers that broadcast to `grid`, as vectors along a new last axis.
pub(super) fn index_vectors(cx: &mut Importer<'_, '_>, columns: &[ValueId], grid: &[i64]) -> Built {
    let mut parts = Vec::new();
    for column in columns {
        let whole = cx.expand(*column, grid)?;
        parts.push(cx.reshape(whole, &[grid, &[1]].concat())?);
    }
    match parts.as_slice() {
        [one] => Ok(*one),
        all => cx.one(Concat { axis: grid.len() as i64 }, all),
    }
}

/// What is before the update, the update, and what is behind it.
fn replace_known(cx: &mut Importer<'_, '_>, x: ValueId, update: ValueId, axis: usize, start: i64) -> Built {
    let (dims, size) = (cx.dims(x)?, cx.dims(update)?[axis]);
    let mut part = |from: i64, to: i64| {
        let (mut starts, mut ends) = (vec![0; dims.len()], dims.clone());
        (starts[axis], ends[axis]) = (from, to);
        cx.slice(x, &starts, &ends, &vec![1; dims.len()])
    };
    let mut parts = Vec::new();
    if start > 0 {
        parts.push(part(0, start)?);
    }
    parts.push(update);
    if start + size < dims[axis] {
        parts.push(part(start + size, dims[axis])?);
    }
    cx.one(Concat { axis: axis as i64 }, &parts)
}

fn check(dims: &[i64], sizes: &[i64], starts: usize) -> Result<(), ImportError> {
    let fits = sizes.len() == dims.len() && starts == dims.len() && sizes.iter().zip(dims).all(|(s, d)| s <= d);
    let what = || ImportError::invalid(format!("{starts} starts and sizes {sizes:?} do not fit extents {dims:?}"));
    fits.then_some(()).ok_or_else(what)
}
