//! Elements as opaque cells, so that movement ops are written once for every element type.

use std::borrow::Cow;

use of_ir::{DType, OpError, Tensor};

use crate::shape;

/// The elements of a tensor, one cell each: a few bytes (those narrower than a byte take one), or a string.
pub(crate) enum Cells<'a> {
    /// Bytes of one cell, all cells.
    Bytes(usize, Cow<'a, [u8]>),
    Strings(Cow<'a, [String]>),
}

fn too_large() -> OpError {
    OpError::eval("a result does not fit into memory")
}

impl<'a> Cells<'a> {
    /// The cells of `t`, borrowed where the layout allows.
    pub(crate) fn of(t: &'a Tensor) -> Cells<'a> {
        if let Some(s) = t.strings() {
            return Cells::Strings(Cow::Borrowed(s));
        }
        let (width, cells) = t.cells().unwrap_or((1, Cow::Borrowed(&[])));
        Cells::Bytes(width, cells)
    }

    /// No cells of `dtype`, with room for `n`.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub(crate) fn with_room(dtype: DType, n: usize) -> Result<Cells<'static>, OpError> {
        if dtype == DType::String {
            let mut v = Vec::new();
            v.try_reserve_exact(n).map_err(|_| too_large())?;
            return Ok(Cells::Strings(Cow::Owned(v)));
        }
        let width = dtype.bits().unwrap_or(8).div_ceil(8);
        let mut v = Vec::new();
        v.try_reserve_exact(n.checked_mul(width).ok_or_else(too_large)?).map_err(|_| too_large())?;
        Ok(Cells::Bytes(width, Cow::Owned(v)))
    }

    /// `n` cells of `dtype` that are zero, false or empty.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub(crate) fn zeros(dtype: DType, n: usize) -> Result<Cells<'static>, OpError> {
        let mut cells = Cells::with_room(dtype, n)?;
        match &mut cells {
            Cells::Bytes(width, b) => b.to_mut().resize(n * *width, 0),
            Cells::Strings(s) => s.to_mut().resize(n, String::new()),
        }
        Ok(cells)
    }

    /// A copy that can be changed.
    pub(crate) fn into_owned(self) -> Cells<'static> {
        match self {
            Cells::Bytes(width, b) => Cells::Bytes(width, Cow::Owned(b.into_owned())),
            Cells::Strings(s) => Cells::Strings(Cow::Owned(s.into_owned())),
        }
    }

    /// Appends cells `start..start + n` of `from`, which has the same element type.
    pub(crate) fn push(&mut self, from: &Cells<'_>, start: usize, n: usize) {
        match (self, from) {
            (Cells::Bytes(w, to), Cells::Bytes(_, b)) => {
                to.to_mut().extend_from_slice(&b[start * *w..(start + n) * *w])
            }
            (Cells::Strings(to), Cells::Strings(s)) => to.to_mut().extend_from_slice(&s[start..start + n]),
            _ => debug_assert!(false, "cells of two classes"),
        }
    }

    /// Appends `n` cells of `from`, which has the same element type: from `start` on, `step` apart.
    fn push_apart(&mut self, from: &Cells<'_>, start: usize, n: usize, step: isize) {
        fn copy<const W: usize>(to: &mut Vec<u8>, from: &[u8], start: usize, n: usize, step: isize) {
            let old = to.len();
            to.resize(old + n * W, 0);
            let mut at = start;
            for cell in to[old..].chunks_exact_mut(W) {
                cell.copy_from_slice(&from[at * W..][..W]);
                at = at.wrapping_add_signed(step);
            }
        }
        match (&mut *self, from) {
            _ if step == 1 => self.push(from, start, n),
            (Cells::Bytes(1, to), Cells::Bytes(_, b)) => copy::<1>(to.to_mut(), b, start, n, step),
            (Cells::Bytes(2, to), Cells::Bytes(_, b)) => copy::<2>(to.to_mut(), b, start, n, step),
            (Cells::Bytes(4, to), Cells::Bytes(_, b)) => copy::<4>(to.to_mut(), b, start, n, step),
            (Cells::Bytes(8, to), Cells::Bytes(_, b)) => copy::<8>(to.to_mut(), b, start, n, step),
            _ => (0..n).for_each(|i| self.push(from, start.wrapping_add_signed(i as isize * step), 1)),
        }
    }

    /// Makes cell `i` that of `from` at `j`, which has the same element type.
    pub(crate) fn set(&mut self, i: usize, from: &Cells<'_>, j: usize) {
        match (self, from) {
            (Cells::Bytes(w, to), Cells::Bytes(_, b)) => {
                let w = *w;
                to.to_mut()[i * w..(i + 1) * w].copy_from_slice(&b[j * w..(j + 1) * w]);
            }
            (Cells::Strings(to), Cells::Strings(s)) => to.to_mut()[i].clone_from(&s[j]),
            _ => debug_assert!(false, "cells of two classes"),
        }
    }

    /// The cells as a tensor.
    ///
    /// # Errors
    /// When the count does not fit the dimensions.
    pub(crate) fn into_tensor(self, dtype: DType, dims: Vec<usize>) -> Result<Tensor, OpError> {
        Ok(match self {
            Cells::Strings(s) => Tensor::from_strings(dims, s.into_owned())?,
            Cells::Bytes(_, b) => Tensor::from_cells(dtype, dims, b.into_owned())?,
        })
    }
}

/// A tensor of dimensions `dims` whose element at each index is that of `x` at the position that `from` says.
///
/// # Errors
/// When the result is too large.
pub(crate) fn pick(x: &Tensor, dims: &[usize], mut from: impl FnMut(&[usize]) -> usize) -> Result<Tensor, OpError> {
    let source = Cells::of(x);
    let mut out = Cells::with_room(x.dtype(), shape::count(dims)?)?;
    shape::for_each_index(dims, |i| out.push(&source, from(i), 1));
    out.into_tensor(x.dtype(), dims.to_vec())
}

/// A tensor of dimensions `dims` whose elements are those of `x` from `start` on, `steps` apart along each axis: whole
/// rows at a time, since what is not fused or compiled moves large tensors too.
///
/// # Errors
/// When the result is too large.
pub(crate) fn stride(x: &Tensor, dims: &[usize], start: usize, steps: &[isize]) -> Result<Tensor, OpError> {
    let source = Cells::of(x);
    let mut out = Cells::with_room(x.dtype(), shape::count(dims)?)?;
    // Neighbours that are walked as one are one axis.
    let mut merged: Vec<(usize, isize)> = Vec::new();
    for (n, step) in dims.iter().copied().zip(steps.iter().copied()).filter(|(n, _)| *n != 1) {
        match merged.last_mut() {
            Some(outer) if outer.1 == step * n as isize => *outer = (outer.0 * n, step),
            _ => merged.push((n, step)),
        }
    }
    let (row, step) = merged.pop().unwrap_or((1, 1));
    let outer: Vec<usize> = merged.iter().map(|(n, _)| *n).collect();
    // What is adjacent in `x` but not in the result.
    let adjacent = merged.iter().position(|(n, s)| *s == 1 && *n >= TILE).filter(|_| step > 1 && row >= TILE);
    if let (Some(axis), Cells::Bytes(width, bytes)) = (adjacent, &source) {
        let mut out = Cells::zeros(x.dtype(), shape::count(dims)?)?;
        let to: &mut [u8] = if let Cells::Bytes(_, to) = &mut out { to.to_mut() } else { &mut [] };
        let apart: usize = outer[axis + 1..].iter().product::<usize>() * row;
        let tile = Transposed { lines: (outer[axis], apart), cells: (row, step as usize) };
        let own: Vec<usize> = outer.iter().enumerate().map(|(a, n)| if a == axis { 1 } else { *n }).collect();
        shape::for_each_index(&own, |index| {
            let from: isize = index.iter().zip(&merged).map(|(i, (_, step))| *i as isize * step).sum();
            let line = index.iter().zip(&outer).fold(0, |at, (i, n)| at * n + i);
            let (to, from) = (&mut to[line * row * width..], &bytes[start.wrapping_add_signed(from) * width..]);
            match width {
                1 => tile.copy::<1>(to, from),
                2 => tile.copy::<2>(to, from),
                4 => tile.copy::<4>(to, from),
                8 => tile.copy::<8>(to, from),
                _ => tile.copy::<16>(to, from),
            }
        });
        return out.into_tensor(x.dtype(), dims.to_vec());
    }
    if row > 0 {
        shape::for_each_index(&outer, |index| {
            let at: isize = index.iter().zip(&merged).map(|(i, (_, step))| *i as isize * step).sum();
            out.push_apart(&source, start.wrapping_add_signed(at), row, step);
        });
    }
    out.into_tensor(x.dtype(), dims.to_vec())
}

/// Extents of a square that a cache holds whichever way it is walked.
const TILE: usize = 16;

/// Lines of cells that are adjacent across lines in the source: a transposed matrix.
struct Transposed {
    /// Lines, and how far apart they are in the result.
    lines: (usize, usize),
    /// Cells of a line, and how far apart they are in the source.
    cells: (usize, usize),
}

impl Transposed {
    /// Copies cells of `W` bytes, a tile after another: a line alone would read a cache line for each cell.
    fn copy<const W: usize>(&self, to: &mut [u8], from: &[u8]) {
        let ((lines, apart), (cells, step)) = (self.lines, self.cells);
        for first_line in (0..lines).step_by(TILE) {
            for first in (0..cells).step_by(TILE) {
                let n = TILE.min(cells - first);
                for line in first_line..(first_line + TILE).min(lines) {
                    let out = to[(line * apart + first) * W..][..n * W].chunks_exact_mut(W);
                    let source = from[(line + first * step) * W..].chunks(step * W);
                    out.zip(source).for_each(|(to, from)| to.copy_from_slice(&from[..W]));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use of_ir::Elements;

    use super::*;

    #[test]
    fn every_element_type_moves() {
        for dtype in DType::ALL {
            let elements = match dtype {
                DType::String => Elements::Str(["a", "", "ccc"].map(String::from).to_vec()),
                _ => Elements::Int(vec![1, 0, 1]),
            };
            let x = Tensor::from_elements(dtype, vec![3], elements).unwrap();
            let reversed = pick(&x, &[3], |i| 2 - i[0]).unwrap();
            let back = pick(&reversed, &[3], |i| 2 - i[0]).unwrap();
            assert_eq!(back, x, "{dtype}");
            assert_eq!(reversed.dims(), [3]);
            let apart = stride(&x, &[2, 1, 3], 2, &[0, 7, -1]).unwrap();
            let picked = pick(&x, &[2, 1, 3], |i| 2 - i[2]).unwrap();
            assert_eq!(apart, picked, "{dtype}");
            assert_eq!(stride(&x, &[2, 0], 0, &[1, 1]).unwrap().dims(), [2, 0]);
            let mut z = Cells::zeros(dtype, 3).unwrap();
            (0..3).for_each(|i| z.set(i, &Cells::of(&x), i));
            assert_eq!(z.into_tensor(dtype, vec![3]).unwrap(), x, "{dtype}");
        }
    }
    #[test]
    fn matrices_are_transposed_in_tiles() {
        for dtype in [DType::I8, DType::F16, DType::F32, DType::F64] {
            for (n, m) in [(16, 16), (17, 40), (50, 19)] {
                let elements = Elements::Int((0..3 * n * m).map(|i| (i % 101) as i128).collect());
                let x = Tensor::from_elements(dtype, vec![3 * n * m], elements).unwrap();
                let (apart, whole) = (n as isize, (n * m) as isize);
                // Lines of matrices, of matrices one after another, and of cells of many matrices.
                for (dims, steps) in
                    [([3, n, m], [whole, 1, apart]), ([n, 3, m], [1, whole, apart]), ([n, m, 3], [1, apart, whole])]
                {
                    let strided = stride(&x, &dims, 0, &steps).unwrap();
                    let at = |i: &[usize]| i.iter().zip(&steps).map(|(i, step)| i * *step as usize).sum();
                    assert_eq!(strided, pick(&x, &dims, at).unwrap(), "{dtype} {dims:?}");
                }
            }
        }
    }
}
