//! Iteration spaces: drops axes of extent 1 and merges adjacent axes that every access treats as one.

use crate::kernel::extent::Extent;

/// An iteration space and the strides of each access along its axes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Space {
    /// Extents, outermost first; never empty.
    pub dims: Vec<Extent>,
    /// The strides of each access, in elements.
    pub strides: Vec<Vec<Extent>>,
}

/// The smallest equivalent space.
pub fn collapse(dims: &[Extent], strides: &[Vec<Extent>]) -> Space {
    let mut out = Space { dims: Vec::new(), strides: vec![Vec::new(); strides.len()] };
    for (axis, d) in dims.iter().enumerate() {
        if d.is(1) {
            continue;
        }
        let merges = !out.dims.is_empty()
            && strides.iter().zip(&out.strides).all(|(s, o)| o.last().is_some_and(|outer| *outer == &s[axis] * d));
        if merges {
            if let Some(last) = out.dims.last_mut() {
                *last = &*last * d;
            }
            strides.iter().zip(&mut out.strides).for_each(|(s, o)| {
                if let Some(last) = o.last_mut() {
                    *last = s[axis].clone();
                }
            });
        } else {
            out.dims.push(d.clone());
            strides.iter().zip(&mut out.strides).for_each(|(s, o)| o.push(s[axis].clone()));
        }
    }
    if out.dims.is_empty() {
        out.dims.push(1usize.into());
        out.strides.iter_mut().for_each(|s| s.push(0usize.into()));
    }
    out
}

/// The single stride of an access along the given axes merged to one; `None` if there is none.
pub fn single_stride(dims: &[Extent], strides: &[Extent]) -> Option<Extent> {
    let s = collapse(dims, &[strides.to_vec()]);
    match s.dims.as_slice() {
        [one] if one.is(1) => Some(0usize.into()),
        [_] => Some(s.strides[0][0].clone()),
        _ => s.strides[0].iter().all(|x| x.is(0)).then(|| 0usize.into()),
    }
}

/// Row-major strides in elements.
pub fn row_major(dims: &[Extent]) -> Vec<Extent> {
    let mut out = vec![Extent::from(1usize); dims.len()];
    for axis in (1..dims.len()).rev() {
        out[axis - 1] = &out[axis] * &dims[axis];
    }
    out
}

/// A walk over a row-major tensor, given by extents and strides, whose every axis stays within one axis of the tensor: axes of the walk
/// that pass through several are taken apart. `None` where an axis leaves one of the tensor in its middle.
pub fn walk_by_axes(tensor: &[usize], walk: &[(usize, usize)]) -> Option<Vec<WalkAxis>> {
    let axes: Vec<Vec<WalkAxis>> =
        walk.iter().enumerate().map(|(of, way)| parts(tensor, of, *way)).collect::<Option<_>>()?;
    let axes = axes.concat();
    // Several axes of the walk along one of the tensor end within it together.
    let last = |axis: usize| axes.iter().filter(|a| a.axis == axis).map(|a| (a.extent - 1) * a.steps).sum::<usize>();
    (0..tensor.len()).all(|axis| last(axis) < tensor[axis]).then_some(axes)
}

/// A part of an axis of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkAxis {
    /// The axis of the walk that it is a part of.
    pub of: usize,
    /// Its number of elements.
    pub extent: usize,
    /// The axis of the tensor along which it goes.
    pub axis: usize,
    /// Elements of that axis from one of its own to the next.
    pub steps: usize,
    /// Elements of the walk's axis from one of its own to the next.
    pub inner: usize,
}

/// The parts of axis `of` of a walk, outermost first.
fn parts(tensor: &[usize], of: usize, (extent, stride): (usize, usize)) -> Option<Vec<WalkAxis>> {
    let mut out = Vec::new();
    let (mut left, mut inner, mut own) = (extent, 1, 1);
    for axis in (0..tensor.len()).rev().filter(|axis| tensor[*axis] > 1) {
        let next = own * tensor[axis];
        // The parts along the axes inside of this one cover `inner` elements of the walk; what follows goes along this one.
        if left > 1 && (stride * inner).is_multiple_of(own) && stride * inner < next {
            let steps = stride * inner / own;
            let within = if (left - 1) * steps < tensor[axis] { left } else { tensor[axis] / steps };
            if !left.is_multiple_of(within) || within < left && !tensor[axis].is_multiple_of(steps) {
                return None;
            }
            out.insert(0, WalkAxis { of, extent: within, axis, steps, inner });
            (left, inner) = (left / within, inner * within);
        }
        own = next;
    }
    (left == 1).then_some(out)
}

#[cfg(test)]
mod tests {
    use of_ir::Dim;

    use super::*;

    fn list(n: &[i64]) -> Vec<Extent> {
        n.iter().map(|n| (*n).into()).collect()
    }

    #[test]
    fn neighbours_merge_where_all_accesses_agree() {
        let s = collapse(&list(&[2, 1, 3, 4]), &[list(&[12, 12, 4, 1]), list(&[0, 0, 0, 1])]);
        assert_eq!(s, Space { dims: list(&[6, 4]), strides: vec![list(&[4, 1]), list(&[0, 1])] });
        assert_eq!(collapse(&list(&[2, 3]), &[list(&[3, 1])]).dims, list(&[6]));
        assert_eq!(collapse(&list(&[1, 1]), &[list(&[1, 1])]).dims, list(&[1]));
        assert_eq!(single_stride(&list(&[2, 3]), &list(&[3, 1])), Some(1usize.into()));
        assert_eq!(single_stride(&list(&[2, 3]), &list(&[1, 2])), None);
        assert_eq!(single_stride(&list(&[2, 3]), &list(&[0, 0])), Some(0usize.into()));
    }

    #[test]
    fn a_walk_by_axes_visits_the_same_elements() {
        // Filters [6, 4, 3, 2] in panels of two outputs, [3, taps, 4, 2]: the taps are two axes of the tensor.
        let (tensor, walk) = ([6, 4, 3, 2], [(3, 48), (6, 1), (4, 6), (2, 24)]);
        let axes = walk_by_axes(&tensor, &walk).unwrap();
        let own = [24, 6, 2, 1];
        let mut index = vec![0; axes.len()];
        for place in 0..3 * 6 * 4 * 2 {
            let mut rest = place;
            for (i, a) in axes.iter().enumerate().rev() {
                index[i] = rest % a.extent;
                rest /= a.extent;
            }
            let by_axes: usize = axes.iter().zip(&index).map(|(a, i)| i * a.steps * own[a.axis]).sum();
            let by_walk: usize = (0..walk.len())
                .map(|of| {
                    let parts = axes.iter().zip(&index).filter(|(a, _)| a.of == of);
                    parts.map(|(a, i)| i * a.inner).sum::<usize>() * walk[of].1
                })
                .sum();
            assert_eq!(by_axes, by_walk, "{axes:?} at {index:?}");
        }
        assert_eq!(axes.len(), 5);
        // An axis that ends within one of the tensor, one of steps that do not divide it, and two that leave it together.
        assert_eq!(walk_by_axes(&[4, 6], &[(9, 1)]), None);
        assert_eq!(walk_by_axes(&[4, 6], &[(3, 4)]), None);
        assert_eq!(walk_by_axes(&[4, 6], &[(4, 1), (4, 1)]), None);
        assert!(walk_by_axes(&[4, 6], &[(3, 1), (4, 1)]).is_some());
    }

    #[test]
    fn symbols_merge_like_numbers() {
        let dims = vec![Dim::symbol("n").into(), Dim::symbol("m").into(), 4usize.into()];
        let dense = row_major(&dims);
        assert_eq!(single_stride(&dims, &dense), Some(1usize.into()));
        let s = collapse(&dims, &[dense, list(&[0, 4, 1])]);
        assert_eq!(s.dims[1], Extent::from(Dim::symbol("m")) * 4usize);
    }
}
