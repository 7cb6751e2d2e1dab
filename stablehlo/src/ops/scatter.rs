//! `stablehlo.scatter`: windows of the operand replaced by, or combined with, those of the updates.

use of_ir::{DType, Elements, Tensor, ValueId};
use of_ops::elementwise::{And, Ge, Le, Select};
use of_ops::movement::{Pad, ScatterNd};

use super::gather::{Numbers, grid, is_within, starts};
use super::reduce::{Reducer, reducer};
use super::slice::index_vectors;
use crate::import::build::Built;
use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::Region;

/// `stablehlo.scatter`. A window that does not fit is left out.
pub(super) fn scatter(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let [x, indices, updates] = c.operands[..] else {
        return Err(ImportError::unsupported("more than one operand"));
    };
    let kind = combination(c.op.regions.first())?;
    let dims = cx.dims(x)?;
    let rank = dims.len();
    let update_dims = cx.dims(updates)?;
    let numbers = Numbers::of(c, "scatter_dimension_numbers");
    let windows = numbers.axes("update_window_dims", update_dims.len())?;
    let inserted = numbers.axes("inserted_window_dims", rank)?;
    let batching = numbers.axes("input_batching_dims", rank)?;
    let of_indices = numbers.axes("scatter_indices_batching_dims", cx.dims(indices)?.len())?;
    let map = numbers.axes("scatter_dims_to_operand_dims", rank)?;
    let paired: Vec<(usize, usize)> = batching.iter().copied().zip(of_indices).collect();
    let starts = starts(cx, indices, numbers.index_vector_dim(), &map, &paired)?;
    // Extents of a window of the operand.
    let kept: Vec<usize> = (0..rank).filter(|a| !inserted.contains(a) && !batching.contains(a)).collect();
    if kept.len() != windows.len() {
        return Err(ImportError::invalid(format!(
            "windows have {} axes in the updates, {} in the operand",
            windows.len(),
            kept.len()
        )));
    }
    let mut sizes = vec![1; rank];
    kept.iter().zip(&windows).for_each(|(axis, of_update)| sizes[*axis] = update_dims[*of_update]);
    if sizes.iter().zip(&dims).any(|(s, d)| s > d) {
        return Err(ImportError::invalid(format!("windows {sizes:?} do not fit extents {dims:?}")));
    }
    if update_dims.contains(&0) {
        return Ok(vec![x]);
    }
    let (columns, fits) = columns(cx, &starts.columns, &dims, &sizes)?;
    // Updates: batch, wide windows of indexed axes, the other axes.
    let indexed: Vec<usize> = columns.iter().map(|c| c.0).collect();
    let rest: Vec<usize> = (0..rank).filter(|a| !indexed.contains(a)).collect();
    let of_update = |axis: &usize| kept.iter().position(|k| k == axis).map(|i| windows[i]);
    let batch = (0..update_dims.len()).filter(|a| !windows.contains(a));
    let mut perm: Vec<usize> = batch.chain(indexed.iter().chain(&rest).filter_map(of_update)).collect();
    perm.extend((0..update_dims.len()).filter(|a| !perm.contains(a)).collect::<Vec<_>>());
    let updates = cx.transpose(updates, &perm)?;
    let (places, whole) = grid(cx, &starts.batch, &columns, &sizes)?;
    let shape: Vec<i64> = whole.iter().copied().chain(rest.iter().map(|a| dims[*a])).collect();
    let updates = cx.reshape(updates, &shape)?;
    let order = [indexed, rest].concat();
    let x = cx.transpose(x, &order)?;
    let y = write(cx, x, (places, &whole), updates, kind, fits.map(|f| (f, starts.batch.len())))?;
    let mut back = vec![0; rank];
    order.iter().enumerate().for_each(|(i, axis)| back[*axis] = i);
    Ok(vec![cx.transpose(y, &back)?])
}

/// What is done with an element and its update: `None` replaces it.
fn combination(region: Option<&Region<'_>>) -> Result<Option<Reducer>, ImportError> {
    let region = region.ok_or_else(|| ImportError::invalid("it has no region"))?;
    let returned = region.ops.last().and_then(|op| op.operands.first().copied());
    if let [_, update] = region.args.as_slice()
        && returned == Some(update.name)
    {
        return Ok(None);
    }
    let unknown = || ImportError::unsupported("the update neither replaces nor is add, multiply, minimum or maximum");
    reducer(region, 0).filter(|r| !matches!(r, Reducer::And | Reducer::Or)).map(Some).ok_or_else(unknown)
}

/// Starts by axis, clamped, and which windows fit; `None` where all are known to.
type Columns = (Vec<(usize, ValueId)>, Option<ValueId>);

fn columns(
    cx: &mut Importer<'_, '_>,
    starts: &[(usize, ValueId)],
    dims: &[i64],
    sizes: &[i64],
) -> Result<Columns, ImportError> {
    let (mut columns, mut fits) = (Vec::new(), None);
    for (axis, start) in starts {
        let last = dims[*axis] - sizes[*axis];
        if is_within(cx, *start, last) {
            columns.push((*axis, *start));
            continue;
        }
        let (zero, end) = (cx.number(0.0, DType::I64)?, cx.number(last as f64, DType::I64)?);
        let (above, below) = (cx.one(Ge {}, &[*start, zero])?, cx.one(Le {}, &[*start, end])?);
        let own = cx.one(And {}, &[above, below])?;
        fits = Some(match fits {
            Some(others) => cx.one(And {}, &[others, own])?,
            None => own,
        });
        columns.push((*axis, cx.clamp_to(*start, 0, last)?));
    }
    // A window that is narrower than an axis that no index is about is at 0.
    for axis in 0..dims.len() {
        if sizes[axis] != dims[axis] && columns.iter().all(|c| c.0 != axis) {
            columns.push((axis, cx.number(0.0, DType::I64)?));
        }
    }
    if columns.is_empty() {
        columns.push((0, cx.number(0.0, DType::I64)?));
    }
    Ok((columns, fits))
}

/// `x` with the updates at their places. `fits` says which of the batch are written, with its rank.
fn write(
    cx: &mut Importer<'_, '_>,
    x: ValueId,
    (mut places, whole): (Vec<ValueId>, &[i64]),
    updates: ValueId,
    kind: Option<Reducer>,
    fits: Option<(ValueId, usize)>,
) -> Built {
    let dtype = cx.dtype(x)?;
    let dims = cx.dims(x)?;
    let reduction = match kind {
        None => "none",
        Some(Reducer::Add) => "add",
        Some(Reducer::Mul) => "mul",
        Some(Reducer::Min) => "min",
        Some(_) => "max",
    };
    if kind.is_some() && dtype == DType::Bool {
        return Err(ImportError::unsupported("truth values cannot be combined, only replaced"));
    }
    let (mut x, mut updates) = (x, updates);
    let mut spare = false;
    if let Some((fits, _)) = fits {
        let own = cx.dims(fits)?;
        let aligned = |n: usize| [own.clone(), vec![1; n - own.len()]].concat();
        match kind {
            // Updates that change nothing.
            Some(kind) => {
                let rank = cx.dims(updates)?.len();
                let fits = cx.reshape(fits, &aligned(rank))?;
                let neutral = neutral(cx, kind, dtype)?;
                updates = cx.one(Select {}, &[fits, updates, neutral])?;
            }
            // A row of its own takes them.
            None => {
                spare = true;
                let mut pads = vec![0; 2 * dims.len()];
                pads[dims.len()] = 1;
                let pads = cx.ints(&pads)?;
                x = cx.one(Pad { mode: "constant".into() }, &[x, pads])?;
                let fits = cx.reshape(fits, &aligned(whole.len()))?;
                let behind = cx.number(dims[0] as f64, DType::I64)?;
                places[0] = cx.one(Select {}, &[fits, places[0], behind])?;
            }
        }
    }
    let indices = index_vectors(cx, &places, whole)?;
    let y = cx.one(ScatterNd { reduction: reduction.into() }, &[x, indices, updates])?;
    if spare { cx.slice(y, &vec![0; dims.len()], &dims, &vec![1; dims.len()]) } else { Ok(y) }
}

/// The number that changes nothing.
fn neutral(cx: &mut Importer<'_, '_>, kind: Reducer, dtype: DType) -> Built {
    let (low, high) = dtype.int_range().unwrap_or((0, 0));
    let element = match (kind, dtype.is_float()) {
        (Reducer::Add, _) => return cx.number(0.0, dtype),
        (Reducer::Mul, _) => return cx.number(1.0, dtype),
        (Reducer::Min, true) => return cx.number(f64::INFINITY, dtype),
        (_, true) => return cx.number(f64::NEG_INFINITY, dtype),
        (Reducer::Min, false) => high,
        (_, false) => low,
    };
    let value = Tensor::from_elements(dtype, Vec::new(), Elements::Int(vec![element]));
    cx.constant(value.map_err(|e| ImportError::invalid(e.to_string()))?)
}
