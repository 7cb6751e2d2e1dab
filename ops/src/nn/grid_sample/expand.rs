//! Grid sampling as gathers and weighted sums.

use of_diag::Diagnostic;
use of_ir::{Rewriter, Tensor, ValueId};

use super::{GridSample, Mode, Outside, far, near};
use crate::Expanded;
use crate::build::{Build, BuildResult, diagnostic};
use crate::elementwise::{Abs, Clip, Floor, Max, Round};
use crate::movement::Gather;
use crate::nn::interpolate::{Length, Tap, wide};

impl GridSample {
    /// See [`crate::Op::expand`].
    pub(super) fn parts(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let (x, grid, (mode, outside)) = (operands[0], operands[1], self.modes().map_err(diagnostic)?);
        let rank = b.rank(x)?.saturating_sub(2);
        let dtype = wide([b.dtype(x), b.dtype(grid)]);
        let places = b.cast(grid, dtype)?;
        let mut axes = Vec::new();
        for a in 0..rank {
            // Coordinates name the last axis first.
            let which = b.constant(Tensor::scalar((rank - 1 - a) as i64))?;
            let v = b.op(Gather { axis: rank as i64 + 1 }, &[places, which])?;
            let len = b.length(x, a + 2, dtype)?;
            axes.push((len, self.taps_of(b, v, &len, mode, outside)?));
        }
        let last: Vec<usize> = [0].into_iter().chain(2..rank + 2).chain([1]).collect();
        let rows = b.transpose(x, &last)?;
        let rows = b.merge(rows, 1..rank + 1)?;
        let rows = b.cast(rows, dtype)?;
        let corners = b.corners(None, &axes)?;
        let sum = b.read_all(rows, 1, corners)?;
        let first: Vec<usize> = [0, rank + 1].into_iter().chain(1..rank + 1).collect();
        let y = b.transpose(sum, &first)?;
        Ok(vec![b.cast(y, b.dtype(x))?])
    }

    /// The taps of an axis at the normalised coordinates `v`.
    fn taps_of(
        &self,
        b: &mut Build<'_, '_>,
        v: ValueId,
        len: &Length,
        mode: Mode,
        outside: Outside,
    ) -> Result<Vec<Tap>, Diagnostic> {
        // Places of elements are whole numbers from 0.
        let x = b.add_number(v, 1.0)?;
        let mut x = if self.align_corners {
            let steps = b.add_number(len.float, -1.0)?;
            let x = b.mul(x, steps)?;
            b.scale(x, 0.5)?
        } else {
            let x = b.mul(x, len.float)?;
            let x = b.add_number(x, -1.0)?;
            b.scale(x, 0.5)?
        };
        if mode == Mode::Nearest {
            x = b.op(Round {}, &[x])?;
        }
        // Of cubic convolution only the elements are moved, as PyTorch and onnxruntime do it.
        if mode != Mode::Cubic {
            x = self.folded(b, x, len, outside)?;
        }
        let mut taps = Vec::new();
        for (position, weight) in weights(b, x, mode)? {
            let position = self.folded(b, position, len, outside)?;
            taps.push(b.tap(position, weight, len, outside != Outside::Zeros)?);
        }
        Ok(taps)
    }

    /// Moves positions outside the input as `outside` says.
    fn folded(&self, b: &mut Build<'_, '_>, x: ValueId, len: &Length, outside: Outside) -> BuildResult {
        let last = b.add_number(len.float, -1.0)?;
        let x = match outside {
            Outside::Zeros => return Ok(x),
            Outside::Border => x,
            Outside::Reflection => {
                // A wave of triangles: up from `low` for `range`, down again.
                let (low, range) = if self.align_corners { (0.0, last) } else { (-0.5, len.float) };
                let one = b.number(1.0, x)?;
                // An axis of one element is clipped to it below.
                let range = b.op(Max {}, &[range, one])?;
                let period = b.scale(range, 2.0)?;
                let from_low = b.add_number(x, -low)?;
                let periods = b.div(from_low, period)?;
                let periods = b.op(Floor {}, &[periods])?;
                let whole = b.mul(periods, period)?;
                let phase = b.sub(from_low, whole)?;
                let off_top = b.sub(phase, range)?;
                let off_top = b.op(Abs {}, &[off_top])?;
                let height = b.sub(range, off_top)?;
                let x = b.add_number(height, low)?;
                if !self.align_corners {
                    // The edge of the last element is half an element away from its centre.
                    return Ok(x);
                }
                x
            }
        };
        let zero = b.number(0.0, x)?;
        b.op(Clip {}, &[x, zero, last])
    }
}

/// The elements around `x`, which may be outside, and their weights: [`super::taps`] as ops.
fn weights(b: &mut Build<'_, '_>, x: ValueId, mode: Mode) -> Result<Vec<(ValueId, ValueId)>, Diagnostic> {
    let one = b.number(1.0, x)?;
    if mode == Mode::Nearest {
        return Ok(vec![(x, one)]);
    }
    let base = b.op(Floor {}, &[x])?;
    let t = b.sub(x, base)?;
    let left = b.sub(one, t)?;
    let next = b.add_number(base, 1.0)?;
    if mode == Mode::Linear {
        return Ok(vec![(base, left), (next, t)]);
    }
    let (before, behind) = (b.add_number(base, -1.0)?, b.add_number(base, 2.0)?);
    let (beyond_t, beyond_left) = (b.add_number(t, 1.0)?, b.add_number(left, 1.0)?);
    let outer = polynomial(b, beyond_t, &far())?;
    let inner = polynomial(b, t, &near())?;
    let inner_next = polynomial(b, left, &near())?;
    let outer_next = polynomial(b, beyond_left, &far())?;
    Ok(vec![(before, outer), (base, inner), (next, inner_next), (behind, outer_next)])
}

/// A polynomial of `x`, the coefficient of the highest power first.
fn polynomial(b: &mut Build<'_, '_>, x: ValueId, coefficients: &[f64]) -> BuildResult {
    let mut y = b.number(0.0, x)?;
    for c in coefficients {
        y = b.mul(y, x)?;
        y = b.add_number(y, *c)?;
    }
    Ok(y)
}
