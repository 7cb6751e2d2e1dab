//! Iteration spaces: dropping axes of extent 1 and merging neighbours that every access walks alike.

/// An iteration space and the strides of each access along its axes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Space {
    /// Extents, outermost first; never empty.
    pub dims: Vec<usize>,
    /// One list of strides (in elements) an access.
    pub strides: Vec<Vec<i64>>,
}

/// The smallest equivalent space.
pub fn collapse(dims: &[usize], strides: &[Vec<i64>]) -> Space {
    let mut out = Space { dims: Vec::new(), strides: vec![Vec::new(); strides.len()] };
    for (axis, d) in dims.iter().enumerate() {
        if *d == 1 {
            continue;
        }
        let merges = !out.dims.is_empty()
            && strides
                .iter()
                .zip(&out.strides)
                .all(|(s, o)| o.last().is_some_and(|outer| *outer == s[axis] * *d as i64));
        if merges {
            if let Some(last) = out.dims.last_mut() {
                *last *= d;
            }
            strides.iter().zip(&mut out.strides).for_each(|(s, o)| {
                if let Some(last) = o.last_mut() {
                    *last = s[axis];
                }
            });
        } else {
            out.dims.push(*d);
            strides.iter().zip(&mut out.strides).for_each(|(s, o)| o.push(s[axis]));
        }
    }
    if out.dims.is_empty() {
        out.dims.push(1);
        out.strides.iter_mut().for_each(|s| s.push(0));
    }
    out
}

/// The single stride with which an access walks the given axes as one; `None` where there is none.
pub fn single_stride(dims: &[usize], strides: &[i64]) -> Option<i64> {
    let s = collapse(dims, &[strides.to_vec()]);
    match s.dims.as_slice() {
        [1] => Some(0),
        [_] => Some(s.strides[0][0]),
        _ => s.strides[0].iter().all(|x| *x == 0).then_some(0),
    }
}

/// Row-major strides in elements.
pub fn row_major(dims: &[usize]) -> Vec<i64> {
    of_ops::shape::strides(dims).into_iter().map(|s| s as i64).collect()
}

/// A C expression for the offset of an access at the position `flat` (a C variable) of `dims`.
pub fn offset(dims: &[usize], strides: &[i64], flat: &str) -> String {
    let mut terms = Vec::new();
    let mut below: usize = 1;
    for axis in (0..dims.len()).rev() {
        if strides[axis] != 0 && dims[axis] != 1 {
            let whole = below == 1 && axis == 0;
            let index = match (below, axis) {
                _ if whole => flat.to_string(),
                (1, _) => format!("{flat} % {}", dims[axis]),
                (b, 0) => format!("{flat} / {b}"),
                (b, _) => format!("{flat} / {b} % {}", dims[axis]),
            };
            terms.push(if strides[axis] == 1 {
                format!("({index})")
            } else {
                format!("({index}) * {}", strides[axis])
            });
        }
        below *= dims[axis];
    }
    if terms.is_empty() { "0".into() } else { terms.join(" + ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_where_all_accesses_agree() {
        let s = collapse(&[2, 1, 3, 4], &[vec![12, 12, 4, 1], vec![0, 0, 0, 1]]);
        assert_eq!(s, Space { dims: vec![6, 4], strides: vec![vec![4, 1], vec![0, 1]] });
        assert_eq!(collapse(&[2, 3], &[vec![3, 1]]).dims, [6]);
        assert_eq!(collapse(&[1, 1], &[vec![1, 1]]).dims, [1]);
        assert_eq!(single_stride(&[2, 3], &[3, 1]), Some(1));
        assert_eq!(single_stride(&[2, 3], &[1, 2]), None);
        assert_eq!(single_stride(&[2, 3], &[0, 0]), Some(0));
    }

    #[test]
    fn offsets_print() {
        assert_eq!(offset(&[2, 3, 4], &[1, 0, 6], "p"), "(p % 4) * 6 + (p / 12)");
        assert_eq!(offset(&[5], &[1], "p"), "(p)");
    }
}
