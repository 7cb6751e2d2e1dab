//! Methods of [`Build`] that create reductions.

use of_ir::ValueId;

use super::{ReduceMax, ReduceMean, ReduceMin, ReduceSum};
use crate::build::{Build, BuildResult};

impl Build<'_, '_> {
    /// Means over axes, which stay with length 1.
    pub fn mean(&mut self, x: ValueId, axes: &[usize]) -> BuildResult {
        let axes = self.axes(axes)?;
        self.op(ReduceMean { keepdims: true }, &[x, axes])
    }

    /// Sums over axes, which stay with length 1 if `keep`.
    pub fn sum(&mut self, x: ValueId, axes: &[usize], keep: bool) -> BuildResult {
        let axes = self.axes(axes)?;
        self.op(ReduceSum { keepdims: keep }, &[x, axes])
    }

    /// Largest elements over axes, which stay with length 1 if `keep`.
    pub fn max(&mut self, x: ValueId, axes: &[usize], keep: bool) -> BuildResult {
        let axes = self.axes(axes)?;
        self.op(ReduceMax { keepdims: keep }, &[x, axes])
    }

    /// Smallest elements over axes, which stay with length 1 if `keep`.
    pub fn min(&mut self, x: ValueId, axes: &[usize], keep: bool) -> BuildResult {
        let axes = self.axes(axes)?;
        self.op(ReduceMin { keepdims: keep }, &[x, axes])
    }
}
