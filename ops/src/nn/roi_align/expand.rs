//! ROI align as gathers and weighted sums, for its gradient.

use of_diag::Diagnostic;
use of_ir::{DType, Rewriter, Tensor, ValueId};

use super::RoiAlign;
use crate::Expanded;
use crate::build::{Build, BuildResult, diagnostic};
use crate::elementwise::{And, Ceil, Floor, Ge, Gt, Le, Lt, Max, Select};
use crate::movement::Gather;
use crate::nn::interpolate::{Length, Tap, wide};

/// What the cells of all regions read along one axis.
struct Samples {
    len: Length,
    /// Elements, `[R, cells, samples]`; samples that are not counted or are outside the input have weight 0.
    taps: Vec<Tap>,
    /// Samples of a cell, `[R]` or one number.
    count: ValueId,
    /// Which samples a cell has, `[R, 1, samples]`; none where all regions have the same.
    counted: Option<ValueId>,
}

impl Samples {
    /// With axes of length 1 behind `at` of every part that has one for each sample.
    fn spread(&mut self, b: &mut Build<'_, '_>, axes: &[usize]) -> Result<(), Diagnostic> {
        let taps = self.taps.iter_mut().flat_map(|t| [&mut t.index, &mut t.weight]);
        for v in taps.chain(&mut self.counted) {
            *v = b.unsqueeze(*v, axes)?;
        }
        Ok(())
    }
}

impl RoiAlign {
    /// See [`crate::Op::expand`].
    pub(super) fn parts(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        self.check().map_err(diagnostic)?;
        let b = &mut Build::new(rw);
        let (x, rois, batch) = (operands[0], operands[1], operands[2]);
        let dtype = wide([b.dtype(x), b.dtype(rois)]);
        let images = if self.channels_last { x } else { b.transpose(x, &[0, 2, 3, 1])? };
        let rois = b.cast(rois, dtype)?;
        let mut rows = self.samples_along(b, rois, images, 1)?;
        let mut columns = self.samples_along(b, rois, images, 0)?;
        // Axes from here on: region, row of cells, sample, column of cells, sample.
        rows.spread(b, &[3, 4])?;
        columns.spread(b, &[1, 2])?;
        let batch = self.images_of(b, batch, images)?;
        let elements = b.merge(images, 0..3)?;
        let elements = b.cast(elements, dtype)?;
        let corners = b.corners(Some(batch), &[(rows.len, rows.taps), (columns.len, columns.taps)])?;
        let samples = b.mul(rows.count, columns.count)?;
        let y = if &*self.mode == "avg" {
            let sum = b.read_all(elements, 0, corners)?;
            let sum = b.sum(sum, &[2, 4], false)?;
            let one = b.number(1.0, samples)?;
            let samples = b.op(Max {}, &[samples, one])?;
            let samples = self.each_region(b, samples, 3)?;
            b.div(sum, samples)?
        } else {
            let mut largest: Option<ValueId> = None;
            for corner in corners {
                let part = b.read(elements, 0, corner)?;
                largest = Some(match largest {
                    Some(largest) => b.op(Max {}, &[largest, part])?,
                    None => part,
                });
            }
            let mut y = largest.map_or_else(|| b.number(0.0, elements), Ok)?;
            if let Some((down, across)) = rows.counted.zip(columns.counted) {
                let counted = b.op(And {}, &[down, across])?;
                let counted = b.unsqueeze(counted, &[5])?;
                let least = b.number(f64::NEG_INFINITY, y)?;
                y = b.op(Select {}, &[counted, y, least])?;
            }
            let y = b.max(y, &[2, 4], false)?;
            let zero = b.number(0.0, y)?;
            let samples = self.each_region(b, samples, 3)?;
            let any = b.op(Gt {}, &[samples, zero])?;
            b.op(Select {}, &[any, y, zero])?
        };
        let y = if self.channels_last { y } else { b.transpose(y, &[0, 3, 1, 2])? };
        Ok(vec![b.cast(y, b.dtype(x))?])
    }

    /// A number of each region, or one for all, with `axes` axes of length 1 more.
    fn each_region(&self, b: &mut Build<'_, '_>, v: ValueId, axes: usize) -> BuildResult {
        let rank = b.rank(v)?;
        if rank == 0 { Ok(v) } else { b.unsqueeze(v, &(rank..rank + axes).collect::<Vec<_>>()) }
    }

    /// The image of each region, counted from the first, `[R, 1, 1, 1, 1]`.
    fn images_of(&self, b: &mut Build<'_, '_>, batch: ValueId, images: ValueId) -> BuildResult {
        let batch = b.cast(batch, DType::I64)?;
        let zero = b.number(0.0, batch)?;
        let from_end = b.op(Lt {}, &[batch, zero])?;
        let count = b.extent(images, 0)?;
        let turned = b.add(batch, count)?;
        let batch = b.op(Select {}, &[from_end, turned, batch])?;
        b.unsqueeze(batch, &[1, 2, 3, 4])
    }

    /// What is read along the axis whose coordinates are the columns `which` and `which + 2` of `rois`.
    fn samples_along(
        &self,
        b: &mut Build<'_, '_>,
        rois: ValueId,
        images: ValueId,
        which: usize,
    ) -> Result<Samples, Diagnostic> {
        let dtype = b.dtype(rois);
        let len = b.length(images, 2 - which, dtype)?;
        let cells = [self.output_width, self.output_height][which];
        let half = &*self.coordinate_transformation_mode == "half_pixel";
        let mut ends = Vec::new();
        for column in [which, which + 2] {
            let column = b.constant(Tensor::scalar(column as i64))?;
            let v = b.op(Gather { axis: 1 }, &[rois, column])?;
            let v = b.scale(v, self.spatial_scale)?;
            ends.push(if half { b.add_number(v, -0.5)? } else { v });
        }
        let mut size = b.sub(ends[1], ends[0])?;
        if !half {
            let one = b.number(1.0, size)?;
            size = b.op(Max {}, &[size, one])?;
        }
        let cell = b.scale(size, 1.0 / cells as f64)?;
        let zero = b.number(0.0, cell)?;

        // Samples of a cell, and the most that a region has.
        let (count, most) = if self.sampling_ratio > 0 {
            (b.number(self.sampling_ratio as f64, cell)?, b.ints(&[self.sampling_ratio])?)
        } else {
            let cover = b.op(Ceil {}, &[cell])?;
            let count = b.op(Max {}, &[cover, zero])?;
            let most = b.max(count, &[0], true)?;
            // There may be no region.
            let most = b.op(Max {}, &[most, zero])?;
            (count, b.cast(most, DType::I64)?)
        };
        let samples = b.numbers(most)?;
        let samples = b.cast(samples, dtype)?;
        let each = self.each_region(b, count, 2)?;
        let counted = if self.sampling_ratio > 0 { None } else { Some(b.op(Lt {}, &[samples, each])?) };

        // Places, `[R, cells, samples]`.
        let numbers = b.ints(&(0..cells).collect::<Vec<_>>())?;
        let numbers = b.cast(numbers, dtype)?;
        let numbers = b.unsqueeze(numbers, &[1])?;
        let one = b.number(1.0, each)?;
        let divisor = b.op(Max {}, &[each, one])?;
        let within = b.add_number(samples, 0.5)?;
        let within = b.div(within, divisor)?;
        let cells_before = b.add(numbers, within)?;
        let [start, cell] = [b.unsqueeze(ends[0], &[1, 2])?, b.unsqueeze(cell, &[1, 2])?];
        let away = b.mul(cells_before, cell)?;
        let place = b.add(start, away)?;

        // A sample up to one element outside is moved to the border.
        let lowest = b.number(-1.0, place)?;
        let (behind, before) = (b.op(Ge {}, &[place, lowest])?, b.op(Le {}, &[place, len.float])?);
        let mut counts = b.op(And {}, &[behind, before])?;
        if let Some(counted) = counted {
            counts = b.op(And {}, &[counts, counted])?;
        }
        let place = b.op(Max {}, &[place, zero])?;
        let (low, last) = (b.op(Floor {}, &[place])?, b.add_number(len.float, -1.0)?);
        let at_end = b.op(Ge {}, &[low, last])?;
        let (t, next) = (b.sub(place, low)?, b.add_number(low, 1.0)?);
        let t = b.op(Select {}, &[at_end, zero, t])?;
        let rest = b.sub(one, t)?;
        let mut taps = Vec::new();
        for (position, weight) in [(low, rest), (next, t)] {
            let position = b.op(Select {}, &[at_end, last, position])?;
            let weight = b.op(Select {}, &[counts, weight, zero])?;
            taps.push(b.tap(position, weight, &len, true)?);
        }
        Ok(Samples { len, taps, count, counted })
    }
}
