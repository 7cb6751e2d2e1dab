//! Interpolation: the neighbours of a sampling position and their weights, as ops.

use of_diag::Diagnostic;
use of_ir::{DType, OpError, ValueId};

use crate::build::{Build, BuildResult, diagnostic};
use crate::elementwise::{Clip, Eq, Select};
use crate::movement::GatherNd;

/// One element along an axis for each place.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    /// Its number, i64, inside the image wherever the place is.
    pub index: ValueId,
    /// How much it counts.
    pub weight: ValueId,
}

/// The length of an axis, as a number and as a float for places along it. Both broadcast.
#[derive(Clone, Copy)]
pub(super) struct Length {
    pub count: ValueId,
    pub float: ValueId,
}

/// The floats to compute with for elements and places of these types: such that hold both.
pub(super) fn wide(types: [DType; 2]) -> DType {
    let narrow = |t: DType| if t.is_float() { t != DType::F64 } else { t.bits().is_some_and(|b| b <= 16) };
    if types.into_iter().all(narrow) { DType::F32 } else { DType::F64 }
}

impl Build<'_, '_> {
    /// The length of axis `axis` of `x`, as `dtype` too.
    pub(super) fn length(&mut self, x: ValueId, axis: usize, dtype: DType) -> Result<Length, Diagnostic> {
        let count = self.extent(x, axis)?;
        Ok(Length { count, float: self.cast(count, dtype)? })
    }

    /// The element at the whole number `position` of an axis, which counts `weight`. Beyond the ends there is none: then
    /// another counts 0, or if `anyway`, for what cannot be said otherwise, `weight`.
    pub(super) fn tap(
        &mut self,
        position: ValueId,
        weight: ValueId,
        len: &Length,
        anyway: bool,
    ) -> Result<Tap, Diagnostic> {
        let (zero, last) = (self.number(0.0, position)?, self.add_number(len.float, -1.0)?);
        let inside = self.op(Clip {}, &[position, zero, last])?;
        // No number is inside.
        let there = self.op(Eq {}, &[inside, position])?;
        let index = self.op(Select {}, &[there, position, zero])?;
        let weight = if anyway { weight } else { self.op(Select {}, &[there, weight, zero])? };
        Ok(Tap { index: self.cast(index, DType::I64)?, weight })
    }

    /// Every choice of a tap for each axis: the number of the element that it names, in row-major order behind `outer`,
    /// and how much that counts.
    pub(super) fn corners(
        &mut self,
        outer: Option<ValueId>,
        axes: &[(Length, Vec<Tap>)],
    ) -> Result<Vec<(ValueId, ValueId)>, Diagnostic> {
        let mut all: Vec<(Option<ValueId>, Option<ValueId>)> = vec![(outer, None)];
        for (len, taps) in axes {
            let mut next = Vec::with_capacity(all.len() * taps.len());
            for (index, weight) in all {
                for tap in taps {
                    let index = match index {
                        Some(outer) => {
                            let outer = self.mul(outer, len.count)?;
                            self.add(outer, tap.index)?
                        }
                        None => tap.index,
                    };
                    let weight = match weight {
                        Some(weight) => self.mul(weight, tap.weight)?,
                        None => tap.weight,
                    };
                    next.push((Some(index), Some(weight)));
                }
            }
            all = next;
        }
        Ok(all.into_iter().filter_map(|(index, weight)| index.zip(weight)).collect())
    }

    /// The elements at `corner` times their weights: `rows` is `[batch…, elements, C]` with `batch` such axes, the
    /// corner's index `[batch…, places…]`, the result `[batch…, places…, C]`.
    pub(super) fn read(&mut self, rows: ValueId, batch: usize, corner: (ValueId, ValueId)) -> BuildResult {
        let rank = self.rank(corner.0)?;
        let index = self.unsqueeze(corner.0, &[rank])?;
        let read = self.op(GatherNd { batch_dims: batch as i64 }, &[rows, index])?;
        let weight = self.unsqueeze(corner.1, &[self.rank(corner.1)?])?;
        self.mul(read, weight)
    }

    /// The weighted sum of the elements at all `corners`; see [`Build::read`].
    pub(super) fn read_all(&mut self, rows: ValueId, batch: usize, corners: Vec<(ValueId, ValueId)>) -> BuildResult {
        let mut corners = corners.into_iter();
        let first = corners.next().ok_or_else(|| diagnostic(OpError::shape("an image must have an axis")))?;
        let first = self.read(rows, batch, first)?;
        corners.try_fold(first, |sum, corner| {
            let part = self.read(rows, batch, corner)?;
            self.add(sum, part)
        })
    }
}
