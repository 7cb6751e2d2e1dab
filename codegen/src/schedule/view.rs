//! How an iteration space lies in a buffer.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::dag::compute;
use super::error::{ScheduleError, supported};
use crate::kernel::{Affine, Builder, Expr, Mem, Param, Ty};

/// An affine map from an iteration space to the elements of a parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Position of the parameter.
    pub param: usize,
    /// The element at the origin of the space.
    pub offset: i64,
    /// Elements from one index to the next, a dimension each; 0 repeats.
    pub strides: Vec<i64>,
}

impl View {
    /// A view with its origin at the first element.
    pub fn new(param: usize, strides: Vec<i64>) -> Self {
        Self { param, offset: 0, strides }
    }

    /// The row-major view of a buffer with dimensions `dims`.
    pub fn row_major(param: usize, dims: &[usize]) -> Self {
        Self::new(param, row_major(dims))
    }

    /// Element index at a point of the space.
    pub(super) fn at(&self, point: &[Affine]) -> Affine {
        let start = Affine::from(self.offset);
        point.iter().zip(&self.strides).fold(start, |sum, (i, s)| sum + i.clone() * *s)
    }

    /// The parameter as a memory.
    pub(super) const fn mem(&self) -> Mem {
        Mem::Param(self.param)
    }

    /// Checks rank and parameter; returns the element type.
    pub(super) fn check(&self, params: &[Param], rank: usize, writes: bool) -> Result<DType, ScheduleError> {
        let p = params.get(self.param).ok_or_else(|| ScheduleError::spec(format!("there is no parameter {}", self.param)))?;
        if self.strides.len() != rank {
            return Err(ScheduleError::spec(format!("a view has {} strides in a space of {rank}", self.strides.len())));
        }
        if writes && !p.writes {
            return Err(ScheduleError::spec(format!("parameter {} is read-only and is an output", self.param)));
        }
        supported(p.elem)?;
        Ok(p.elem)
    }

    /// Checks that all of `dims` lies inside the parameter where its length is known.
    pub(super) fn check_extent(&self, params: &[Param], dims: &[usize]) -> Result<(), ScheduleError> {
        let (mut lo, mut hi) = (i128::from(self.offset), i128::from(self.offset));
        for (d, s) in dims.iter().zip(&self.strides) {
            if *d == 0 {
                return Ok(());
            }
            let reach = (*d as i128 - 1) * i128::from(*s);
            lo += reach.min(0);
            hi += reach.max(0);
        }
        let len = params.get(self.param).and_then(|p| p.len).map_or(i128::from(i64::MAX), |l| l as i128);
        if lo < 0 || hi >= len {
            return Err(ScheduleError::spec(format!(
                "a view reaches elements {lo}..={hi} of the {len} of parameter {}",
                self.param
            )));
        }
        Ok(())
    }
}

/// Row-major strides.
pub fn row_major(dims: &[usize]) -> Vec<i64> {
    let mut strides = vec![1i64; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(dims[i].max(1) as i64);
    }
    strides
}

/// A loaded value in its compute type.
pub(super) fn widen(load: Expr, elem: DType) -> Expr {
    if compute(elem) == elem { load } else { Expr::op1(ScalarOp::Cast(compute(elem)), load) }
}

/// Loads `lanes` elements at `index`, `stride` apart, in their compute type.
pub(super) fn load(b: &Builder, mem: Mem, index: Affine, lanes: usize, stride: i64, active: usize) -> Expr {
    let elem = b.elem_of(mem);
    if stride == 0 {
        // Converted before it is repeated.
        return Expr::Splat(lanes, Box::new(widen(b.load(mem, index, 1, 1), elem)));
    }
    widen(b.load_strided(mem, index, lanes, stride, active), elem)
}

/// Stores a value of a compute type in the memory's own.
pub(super) fn store(b: &mut Builder, mem: Mem, index: Affine, value: Expr, stride: i64, active: usize) {
    let elem = b.elem_of(mem);
    let ty = b.type_of(&value);
    let value = if ty.elem == elem { value } else { Expr::op1(ScalarOp::Cast(elem), value) };
    if ty.lanes == 1 { b.store(mem, index, value, 1) } else { b.store_strided(mem, index, value, stride, active) }
}

/// Declares the parameters of a spec.
pub(super) fn declare(b: &mut Builder, params: &[Param]) {
    for p in params {
        b.param(p.elem, p.writes, p.len);
    }
}

/// The vector type of a compute type.
pub(super) const fn vector(elem: DType, lanes: usize) -> Ty {
    Ty::new(compute(elem), lanes)
}

/// The product of dimensions.
///
/// # Errors
/// If it does not fit.
pub(super) fn volume(dims: &[usize]) -> Result<usize, ScheduleError> {
    dims.iter()
        .try_fold(1usize, |n, d| n.checked_mul(*d))
        .filter(|n| i64::try_from(*n).is_ok())
        .ok_or(ScheduleError::TooLarge)
}
