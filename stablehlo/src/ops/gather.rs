//! `stablehlo.gather`: windows of the operand at starts that a tensor holds.

use of_ir::{DType, ValueId};
use of_ops::elementwise::Add;
use of_ops::movement::{Gather, GatherNd};

use super::axes;
use super::slice::index_vectors;
use crate::import::build::Built;
use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::Attr;

/// The dimension numbers of a gather or a scatter, by the names that both have.
pub(super) struct Numbers<'t> {
    attr: Option<&'t Attr>,
}

impl<'t> Numbers<'t> {
    pub fn of(c: &'t Call<'_>, key: &str) -> Numbers<'t> {
        Numbers { attr: c.attr(&[key]) }
    }

    /// A list of axes; empty where it is left out.
    pub fn axes(&self, key: &str, rank: usize) -> Result<Vec<usize>, ImportError> {
        let list = self.attr.and_then(|a| a.get(key)).map_or(Some(Vec::new()), Attr::ints);
        axes(&list.ok_or_else(|| ImportError::invalid(format!("{key} must be axes")))?, rank)
    }

    /// The axis of index vectors; 0 where it is left out.
    pub fn index_vector_dim(&self) -> usize {
        let axis = self.attr.and_then(|a| a.get("index_vector_dim")).and_then(Attr::int);
        axis.and_then(|a| usize::try_from(a).ok()).unwrap_or(0)
    }
}

/// Indices by axis of the operand: each a tensor that broadcasts to the batch.
pub(super) struct Starts {
    /// Extents of the axes that the starts have besides their vectors.
    pub batch: Vec<i64>,
    /// Axis of the operand, and where windows begin along it.
    pub columns: Vec<(usize, ValueId)>,
}

/// The columns of `indices`, as i64. `map` is the axis of the operand that each is about; `paired` are axes of the
/// operand and of the indices that run together.
pub(super) fn starts(
    cx: &mut Importer<'_, '_>,
    indices: ValueId,
    vector: usize,
    map: &[usize],
    paired: &[(usize, usize)],
) -> Result<Starts, ImportError> {
    let dims = cx.dims(indices)?;
    let rank = dims.len();
    let too_far = || ImportError::invalid(format!("index_vector_dim is {vector}, the indices have rank {rank}"));
    let mut order: Vec<usize> = (0..rank).filter(|a| *a != vector).collect();
    let batch: Vec<i64> = order.iter().map(|a| dims[*a]).collect();
    let vectors = match vector.cmp(&rank) {
        std::cmp::Ordering::Less => {
            order.push(vector);
            cx.transpose(indices, &order)?
        }
        std::cmp::Ordering::Equal => cx.reshape(indices, &[dims.as_slice(), &[1]].concat())?,
        std::cmp::Ordering::Greater => return Err(too_far()),
    };
    let all = cx.dims(vectors)?;
    if all.last().copied() != Some(map.len() as i64) {
        return Err(ImportError::invalid(format!(
            "index vectors of {:?} numbers are about {} axes",
            all.last(),
            map.len()
        )));
    }
    let mut columns = Vec::new();
    for (i, axis) in map.iter().enumerate() {
        let (mut from, mut to) = (vec![0; all.len()], all.clone());
        (from[batch.len()], to[batch.len()]) = (i as i64, i as i64 + 1);
        let column = cx.slice(vectors, &from, &to, &vec![1; all.len()])?;
        let column = cx.reshape(column, &batch)?;
        columns.push((*axis, cx.wide_index(column)?));
    }
    for (axis, of_indices) in paired {
        let position = of_indices - usize::from(*of_indices > vector);
        columns.push((*axis, cx.count_along(&batch, position, DType::I64, false)?));
    }
    Ok(Starts { batch, columns })
}

/// A start moved into `0..=last`, unless it is known to be there.
pub(super) fn within(cx: &mut Importer<'_, '_>, start: ValueId, last: i64) -> Built {
    if is_within(cx, start, last) { Ok(start) } else { cx.clamp_to(start, 0, last) }
}

/// Whether all elements are known to be in `0..=last`.
pub(super) fn is_within(cx: &Importer<'_, '_>, start: ValueId, last: i64) -> bool {
    if cx.range(start).is_some_and(|(low, high)| low >= 0 && high <= last) {
        return true;
    }
    let known = cx.fold(start).and_then(|t| t.to_i64s());
    known.is_some_and(|list| list.iter().all(|i| (0..=last).contains(i)))
}

/// The indices over batch and windows: `columns` plus the place in the window, for axes whose window is wider than 1.
pub(super) fn grid(
    cx: &mut Importer<'_, '_>,
    batch: &[i64],
    columns: &[(usize, ValueId)],
    sizes: &[i64],
) -> Result<(Vec<ValueId>, Vec<i64>), ImportError> {
    let wide: Vec<i64> = columns.iter().map(|(a, _)| sizes[*a]).filter(|s| *s != 1).collect();
    let whole = [batch, &wide].concat();
    let (mut out, mut at) = (Vec::new(), batch.len());
    for (axis, column) in columns {
        // A column may have axes of extent 1 instead of the batch.
        let own = cx.dims(*column)?;
        let aligned = [own, vec![1; wide.len()]].concat();
        let mut column = cx.reshape(*column, &aligned)?;
        if sizes[*axis] != 1 {
            let count = cx.count_along(&whole, at, DType::I64, false)?;
            column = cx.one(Add {}, &[column, count])?;
            at += 1;
        }
        out.push(column);
    }
    Ok((out, whole))
}

/// An axis of a result before it gets its order.
#[derive(Clone, Copy, PartialEq)]
enum Label {
    Batch(usize),
    Operand(usize),
}

/// `stablehlo.gather`.
pub(super) fn gather(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let (x, indices) = (c.operand(0)?, c.operand(1)?);
    let (dims, out) = (cx.dims(x)?, c.dims(0)?);
    let rank = dims.len();
    let numbers = Numbers::of(c, "dimension_numbers");
    let sizes = c.ints(&["slice_sizes"])?;
    if sizes.len() != rank || sizes.iter().zip(&dims).any(|(s, d)| s > d || *s < 0) {
        return Err(ImportError::invalid(format!("slice_sizes {sizes:?} do not fit extents {dims:?}")));
    }
    let collapsed = numbers.axes("collapsed_slice_dims", rank)?;
    let batching = numbers.axes("operand_batching_dims", rank)?;
    let of_indices = numbers.axes("start_indices_batching_dims", cx.dims(indices)?.len())?;
    let map = numbers.axes("start_index_map", rank)?;
    let paired: Vec<(usize, usize)> = batching.iter().copied().zip(of_indices).collect();
    let starts = starts(cx, indices, numbers.index_vector_dim(), &map, &paired)?;
    // A window that is as wide as its axis begins at 0.
    let mut columns = Vec::new();
    for (axis, start) in &starts.columns {
        if sizes[*axis] != dims[*axis] {
            columns.push((*axis, within(cx, *start, dims[*axis] - sizes[*axis])?));
        }
    }
    // Axes that no index is about have windows at 0.
    let indexed: Vec<usize> = columns.iter().map(|c| c.0).collect();
    let ends: Vec<i64> = (0..rank).map(|a| if indexed.contains(&a) { dims[a] } else { sizes[a] }).collect();
    let x = cx.slice(x, &vec![0; rank], &ends, &vec![1; rank])?;
    let (y, labels) = pick(cx, x, &starts.batch, &columns, &sizes)?;
    // The order of the result.
    let offset = numbers.axes("offset_dims", out.len())?;
    let mut windows = (0..rank).filter(|a| !collapsed.contains(a) && !batching.contains(a)).map(Label::Operand);
    let mut batch = (0..starts.batch.len()).map(Label::Batch);
    let wanted: Vec<Label> =
        (0..out.len()).filter_map(|i| if offset.contains(&i) { windows.next() } else { batch.next() }).collect();
    let mut perm: Vec<usize> = wanted.iter().filter_map(|w| labels.iter().position(|l| l == w)).collect();
    // Axes of extent 1 that the result lacks.
    perm.extend((0..labels.len()).filter(|i| !wanted.contains(&labels[*i])));
    let y = cx.transpose(y, &perm)?;
    Ok(vec![cx.reshape(y, &out)?])
}

/// Elements of `x` at the columns; the axes of the result.
fn pick(
    cx: &mut Importer<'_, '_>,
    x: ValueId,
    batch: &[i64],
    columns: &[(usize, ValueId)],
    sizes: &[i64],
) -> Result<(ValueId, Vec<Label>), ImportError> {
    let dims = cx.dims(x)?;
    let batch_labels: Vec<Label> = (0..batch.len()).map(Label::Batch).collect();
    if columns.is_empty() {
        let aligned = cx.reshape(x, &[vec![1; batch.len()], dims.clone()].concat())?;
        let y = cx.expand(aligned, &[batch, &dims].concat())?;
        return Ok((y, [batch_labels, (0..dims.len()).map(Label::Operand).collect()].concat()));
    }
    let (places, whole) = grid(cx, batch, columns, sizes)?;
    let wide = columns.iter().map(|c| c.0).filter(|a| sizes[*a] != 1).map(Label::Operand);
    let in_front: Vec<Label> = batch_labels.into_iter().chain(wide).collect();
    let rest = |taken: &[usize]| (0..dims.len()).filter(|a| !taken.contains(a)).collect::<Vec<_>>();
    if let [(axis, _)] = columns {
        let indices = cx.expand(places[0], &whole)?;
        let y = cx.one(Gather { axis: *axis as i64 }, &[x, indices])?;
        let before = (0..*axis).map(Label::Operand);
        let behind = (axis + 1..dims.len()).map(Label::Operand);
        return Ok((y, before.chain(in_front).chain(behind).collect()));
    }
    let taken: Vec<usize> = columns.iter().map(|c| c.0).collect();
    let rest = rest(&taken);
    let x = cx.transpose(x, &[taken, rest.clone()].concat())?;
    let indices = index_vectors(cx, &places, &whole)?;
    let y = cx.one(GatherNd { batch_dims: 0 }, &[x, indices])?;
    Ok((y, in_front.into_iter().chain(rest.into_iter().map(Label::Operand)).collect()))
}
