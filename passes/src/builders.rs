//! Builders of common ops: reshapes to fixed dimensions and transposes by a permutation.

use of_diag::Diagnostic;
use of_ir::{Rewriter, Tensor, ValueId};
use of_ops::movement::{Reshape, Transpose};
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
