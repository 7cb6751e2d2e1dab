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
    fn symbols_merge_like_numbers() {
        let dims = vec![Dim::symbol("n").into(), Dim::symbol("m").into(), 4usize.into()];
        let dense = row_major(&dims);
        assert_eq!(single_stride(&dims, &dense), Some(1usize.into()));
        let s = collapse(&dims, &[dense, list(&[0, 4, 1])]);
        assert_eq!(s.dims[1], Extent::from(Dim::symbol("m")) * 4usize);
    }
}
