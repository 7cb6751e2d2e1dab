//! Builders of common ops: reshapes to fixed dimensions and transposes by a permutation.

use of_diag::Diagnostic;
use of_ir::{Rewriter, Tensor, ValueId};
use of_ops::movement::{Expand, Reshape, Transpose};
use of_ops::structural::Constant;

/// The permutation of a transpose; without one it reverses the axes.
pub fn permutation(t: &Transpose, rank: usize) -> Vec<usize> {
    match &t.perm {
        Some(p) => p.iter().map(|x| if *x < 0 { (*x + rank as i64) as usize } else { *x as usize }).collect(),
        None => (0..rank).rev().collect(),
    }
}

/// A transpose with the given permutation.
pub fn transpose_by(perm: &[usize]) -> Transpose {
    Transpose { perm: Some(perm.iter().map(|p| *p as i64).collect()) }
}

/// Reshapes `x` to fixed dimensions.
pub fn reshape_to(rw: &mut Rewriter<'_>, x: ValueId, to: &[usize]) -> Result<ValueId, Diagnostic> {
    let shape: Vec<i64> = to.iter().map(|d| *d as i64).collect();
    let shape = rw.create_one(Constant { value: Tensor::from_i64s(&shape) }, &[])?;
    // allowzero: an extent of 0 in `to` means 0, not "as in the operand".
    rw.create_one(Reshape { allowzero: true }, &[x, shape])
}

/// `x` of extents `dims` with every element of axis `i` repeated `factors[i]` times.
pub fn repeated(rw: &mut Rewriter<'_>, x: ValueId, dims: &[usize], factors: &[usize]) -> Result<ValueId, Diagnostic> {
    let (mut split, mut wide) = (Vec::new(), Vec::new());
    for (d, f) in dims.iter().zip(factors) {
        split.push(*d);
        wide.push(*d);
        if *f > 1 {
            split.push(1);
            wide.push(*f);
        }
    }
    let column = reshape_to(rw, x, &split)?;
    let shape: Vec<i64> = wide.iter().map(|d| *d as i64).collect();
    let shape = rw.create_one(Constant { value: Tensor::from_i64s(&shape) }, &[])?;
    let wide = rw.create_one(Expand {}, &[column, shape])?;
    let to: Vec<usize> = dims.iter().zip(factors).map(|(d, f)| d * f).collect();
    reshape_to(rw, wide, &to)
}
