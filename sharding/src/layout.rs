//! Layouts: the placement of the elements of a tensor on a mesh, one [`Sbp`] per mesh axis.

use of_ir::{Dim, PartialKind, Sbp};
use smallvec::SmallVec;

/// One [`Sbp`] for each axis of a mesh. Where several mesh axes split one tensor axis, each splits what the axes before
/// it left.
pub type Layout = SmallVec<[Sbp; 4]>;

/// Every layout of tensors of this rank on a mesh of this many axes. Partial values along several axes are of one kind,
/// since sums of maxima are not maxima of sums.
pub fn all(rank: usize, axes: usize, kinds: &[PartialKind]) -> Vec<Layout> {
    let choices: Vec<Sbp> = (0..rank)
        .filter_map(|d| u8::try_from(d).ok().map(Sbp::Split))
        .chain([Sbp::Broadcast])
        .chain(kinds.iter().map(|k| Sbp::Partial(*k)))
        .collect();
    let mut out = vec![Layout::new()];
    for _ in 0..axes {
        out = out.iter().flat_map(|l| choices.iter().map(move |c| l.iter().copied().chain([*c]).collect())).collect();
    }
    out.retain(consistent);
    out
}

/// Whether all partial entries are of one kind.
pub fn consistent(layout: &Layout) -> bool {
    let mut kinds = layout.iter().filter(|s| matches!(s, Sbp::Partial(_)));
    kinds.next().is_none_or(|first| kinds.all(|k| k == first))
}

/// The reduction of partial values, where the layout has any.
pub fn partial_kind(layout: &Layout) -> Option<PartialKind> {
    layout.iter().find_map(|s| if let Sbp::Partial(k) = s { Some(*k) } else { None })
}

/// The number of slices along tensor axis `dim`.
pub fn slices(layout: &Layout, mesh: &[usize], dim: usize) -> usize {
    layout.iter().zip(mesh).filter(|(s, _)| **s == split(dim)).map(|(_, n)| *n).product()
}

/// Whether every device gets an element of every axis.
pub fn fits(layout: &Layout, mesh: &[usize], dims: &[usize]) -> bool {
    layout.iter().all(|s| match s {
        Sbp::Split(d) => {
            dims.get(usize::from(*d)).is_some_and(|n| slices(layout, mesh, usize::from(*d)) <= (*n).max(1))
        }
        _ => true,
    })
}

/// The split of tensor axis `dim`. Ranks are far below 255; an axis beyond that is one that no tensor has.
pub fn split(dim: usize) -> Sbp {
    Sbp::Split(u8::try_from(dim).unwrap_or(u8::MAX))
}

/// Start and length of slice `i` of `n`. The first slices are one longer where `n` does not divide the extent.
pub fn slice(extent: usize, n: usize, i: usize) -> (usize, usize) {
    let (base, more) = (extent / n, extent % n);
    (i * base + i.min(more), base + usize::from(i < more))
}

/// Start and length along each tensor axis of the block that the device at `coords` holds.
pub fn block(layout: &Layout, mesh: &[usize], coords: &[usize], dims: &[usize]) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = dims.iter().map(|d| (0, *d)).collect();
    for ((s, n), i) in layout.iter().zip(mesh).zip(coords) {
        if let Sbp::Split(d) = s
            && let Some((start, len)) = out.get_mut(usize::from(*d))
        {
            let (offset, part) = slice(*len, *n, *i);
            (*start, *len) = (*start + offset, part);
        }
    }
    out
}

/// Extents of the part that the device at `coords` holds; `None` where an open extent is not a multiple of its slices.
pub fn part(layout: &Layout, mesh: &[usize], coords: &[usize], shape: &[Dim]) -> Option<Vec<Dim>> {
    let slices = |axis: usize| slices(layout, mesh, axis);
    let known: Option<Vec<usize>> = shape
        .iter()
        .enumerate()
        .map(|(axis, d)| d.as_const().map_or_else(|| Some(slices(axis)), |n| usize::try_from(n).ok()))
        .collect();
    let own = block(layout, mesh, coords, &known?);
    let extent = |(axis, (d, (_, len))): (usize, (&Dim, (usize, usize)))| match d.as_const() {
        Some(_) => Some(Dim::from(len)),
        None => d.exact_div(&Dim::from(slices(axis))),
    };
    shape.iter().zip(own).enumerate().map(extent).collect()
}

/// Dimensions of the largest part, which the first device holds.
pub fn local_dims(layout: &Layout, mesh: &[usize], dims: &[usize]) -> Vec<usize> {
    block(layout, mesh, &vec![0; mesh.len()], dims).into_iter().map(|(_, len)| len).collect()
}

/// The share of the tensor that a device holds where all parts are equal.
pub fn share(layout: &Layout, mesh: &[usize]) -> f64 {
    let parts: usize = layout.iter().zip(mesh).filter(|(s, _)| matches!(s, Sbp::Split(_))).map(|(_, n)| *n).product();
    1.0 / parts as f64
}

/// Coordinates of device `rank` along each mesh axis; the last axis varies fastest.
pub fn coords(mesh: &[usize], mut rank: usize) -> Vec<usize> {
    let mut out = vec![0; mesh.len()];
    for (c, n) in out.iter_mut().zip(mesh).rev() {
        *c = rank % n;
        rank /= n;
    }
    out
}

/// The inverse of [`coords`].
pub fn rank(mesh: &[usize], coords: &[usize]) -> usize {
    mesh.iter().zip(coords).fold(0, |r, (n, c)| r * n + c)
}

/// `[S(0), B]`.
pub fn show(layout: &Layout) -> String {
    format!("[{}]", layout.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_of_one_axis_nest() {
        let l: Layout = [Sbp::Split(0), Sbp::Split(0)].into_iter().collect();
        // 7 in two: 4 and 3; each in two: 2 2, 2 1.
        let blocks: Vec<_> = (0..4).map(|r| block(&l, &[2, 2], &coords(&[2, 2], r), &[7])[0]).collect();
        assert_eq!(blocks, [(0, 2), (2, 2), (4, 2), (6, 1)]);
        assert_eq!(local_dims(&l, &[2, 2], &[7]), [2]);
        assert!(fits(&l, &[2, 2], &[4]) && !fits(&l, &[2, 2], &[3]));
        assert_eq!(rank(&[2, 3], &coords(&[2, 3], 5)), 5);
    }

    #[test]
    fn open_extents_split_evenly() {
        let l: Layout = [Sbp::Split(0), Sbp::Split(0)].into_iter().collect();
        let n = Dim::symbol("N");
        let of = |shape: &[Dim]| part(&l, &[2, 2], &[0, 1], shape);
        assert_eq!(of(&[&n * &Dim::from(8i64), 5i64.into()]), Some(vec![&n * &Dim::from(2i64), 5i64.into()]));
        assert_eq!(of(&[7i64.into(), n.clone()]), Some(vec![2i64.into(), n.clone()]));
        assert_eq!(of(&[&n * &Dim::from(2i64)]), None);
    }

    #[test]
    fn layouts_have_one_kind_of_partial_value() {
        let l = all(1, 2, &[PartialKind::Sum, PartialKind::Max]);
        assert_eq!(l.len(), 14);
        assert!(l.iter().all(consistent));
    }
}
