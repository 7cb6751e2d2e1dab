//! Methods of [`Build`] that create ops of movement.

use of_ir::ValueId;

use super::spec::{self, Part};
use super::{Expand, Range, Reshape, Slice, Squeeze, Transpose, Unsqueeze};
use crate::build::{Build, BuildResult};
use crate::structural::ShapeOf;

impl Build<'_, '_> {
    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> BuildResult {
        if perm.iter().enumerate().all(|(i, p)| i == *p) {
            return Ok(x);
        }
        self.op(Transpose { perm: Some(perm.iter().map(|p| *p as i64).collect()) }, &[x])
    }

    /// New axes of length 1 at these places of the result.
    pub fn unsqueeze(&mut self, x: ValueId, axes: &[usize]) -> BuildResult {
        if axes.is_empty() {
            return Ok(x);
        }
        let axes = self.axes(axes)?;
        self.op(Unsqueeze {}, &[x, axes])
    }

    /// Drops axes of length 1.
    pub fn squeeze(&mut self, x: ValueId, axes: &[usize]) -> BuildResult {
        if axes.is_empty() {
            return Ok(x);
        }
        let axes = self.axes(axes)?;
        self.op(Squeeze {}, &[x, axes])
    }

    /// Dimensions as ONNX Reshape has them: 0 keeps, -1 follows.
    pub fn reshape(&mut self, x: ValueId, dims: &[i64]) -> BuildResult {
        let dims = self.ints(dims)?;
        self.op(Reshape { allowzero: false }, &[x, dims])
    }

    /// `x` with the axes in `merged` as one.
    pub fn merge(&mut self, x: ValueId, merged: std::ops::Range<usize>) -> BuildResult {
        let rank = self.rank(x)?;
        let before = (0..merged.start).map(Part::axis);
        let parts = before.chain([Part::product(merged.clone().collect())]).chain((merged.end..rank).map(Part::axis));
        let parts: Vec<Part> = parts.collect();
        spec::reshape(self.rw, x, &parts)
    }

    /// `x` with the shape of `like`.
    pub fn reshape_like(&mut self, x: ValueId, like: ValueId) -> BuildResult {
        let dims = self.op(ShapeOf { start: None, end: None }, &[like])?;
        self.op(Reshape { allowzero: false }, &[x, dims])
    }

    /// `x` broadcast to the given dimensions.
    pub fn expand(&mut self, x: ValueId, dims: ValueId) -> BuildResult {
        self.op(Expand {}, &[x, dims])
    }

    /// `0, 1, …` up to a number of one element, i64, `[count]`.
    pub fn numbers(&mut self, count: ValueId) -> BuildResult {
        let known = self.rw.graph().constant(count).and_then(|t| t.to_i64s());
        if let Some(n) = known.and_then(|n| usize::try_from(*n.first()?).ok()).filter(|n| *n < 1 << 12) {
            return self.ints(&(0..n as i64).collect::<Vec<_>>());
        }
        let (zero, one) = (self.number(0.0, count)?, self.number(1.0, count)?);
        let end = self.reshape(count, &[])?;
        self.op(Range {}, &[zero, end, one])
    }

    /// `len` elements of each axis named, `steps` apart, from the first on.
    pub fn every(&mut self, x: ValueId, axes: &[usize], len: &[usize], steps: &[usize]) -> BuildResult {
        let starts = self.ints(&vec![0; axes.len()])?;
        let ends: Vec<usize> =
            len.iter().zip(steps).map(|(n, step)| (n.saturating_sub(1)) * step + n.min(&1)).collect();
        let (ends, axes, steps) = (self.axes(&ends)?, self.axes(axes)?, self.axes(steps)?);
        self.op(Slice {}, &[x, starts, ends, axes, steps])
    }

    /// The first `len` elements of each axis named.
    pub fn head(&mut self, x: ValueId, axes: &[usize], len: &[usize]) -> BuildResult {
        let starts = self.ints(&vec![0; axes.len()])?;
        let ends = self.axes(len)?;
        let axes = self.axes(axes)?;
        self.op(Slice {}, &[x, starts, ends, axes])
    }
}
