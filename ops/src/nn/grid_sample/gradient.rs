//! The gradient of grid sampling: what was read from the elements around a place is given back to them, and moves the place.

use of_diag::Diagnostic;
use of_ir::{DType, ValueId};

use super::{GridSample, Mode, Outside};
use crate::GradCx;
use crate::elementwise::{Clip, Eq, Floor, Round};
use crate::movement::{Concat, Expand, Gather, GatherElements, ScatterElements, zeros_like};
use crate::nn::build::{Build, Made};

/// One element along an axis for each place, `[N, places]`.
#[derive(Clone, Copy)]
struct Tap {
    /// Where it lies (i64), moved into the input where it is outside.
    index: ValueId,
    /// Its weight, and the derivative of that by the coordinate; zero where it is outside and outside are zeros.
    weight: ValueId,
    slope: ValueId,
}

/// Sizes that must be numbers.
struct Sizes {
    batch: usize,
    channels: usize,
    spatial: Vec<usize>,
    places: usize,
}

impl GridSample {
    /// See [`crate::Op::gradient`]. Reflection and cubic interpolation have none.
    pub(super) fn derivative(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        let (g, x, grid) = (cx.grads[0]?, cx.operands[0], cx.operands[1]);
        let (mode, outside) = self.modes().ok()?;
        if mode == Mode::Cubic || outside == Outside::Reflection {
            return None;
        }
        let fixed = |v: ValueId| cx.rw.graph().ty(v).as_tensor()?.fixed_dims();
        let (dims, out) = (fixed(x)?, fixed(g)?);
        let sizes =
            Sizes { batch: dims[0], channels: dims[1], spatial: dims[2..].to_vec(), places: out[2..].iter().product() };
        let mut b = Build::new(cx.rw);
        Some(self.parts(&mut b, &sizes, (mode, outside), [x, grid, g]))
    }

    fn parts(
        &self,
        b: &mut Build<'_, '_>,
        sizes: &Sizes,
        (mode, outside): (Mode, Outside),
        [x, grid, g]: [ValueId; 3],
    ) -> Result<Vec<Option<ValueId>>, Diagnostic> {
        let Sizes { batch, channels, spatial, places } = sizes;
        let rank = spatial.len();
        let size = |n: &usize| *n as i64;
        let at = b.reshape(grid, &[size(batch), size(places), rank as i64])?;
        let mut axes = Vec::new();
        for (a, len) in spatial.iter().enumerate() {
            // Coordinates name the last axis first.
            let which = b.ints(&[(rank - 1 - a) as i64])?;
            let which = b.reshape(which, &[])?;
            let v = b.op(Gather { axis: 2 }, &[at, which])?;
            let v = b.cast(v, b.dtype(x))?;
            axes.push(self.taps_of(b, v, *len, mode, outside)?);
        }
        let area = spatial.iter().product::<usize>() as i64;
        let flat = b.reshape(x, &[size(batch), size(channels), area])?;
        let g = b.reshape(g, &[size(batch), size(channels), size(places)])?;
        let mut dx = zeros_like(b.rw, flat)?;
        let mut moves: Vec<Option<ValueId>> = vec![None; rank];
        // Every choice of a tap for each axis.
        let corners: usize = axes.iter().map(Vec::len).product();
        for corner in 0..corners {
            let mut rest = corner;
            let mut chosen: Vec<Tap> = Vec::new();
            for taps in &axes {
                chosen.push(taps[rest % taps.len()]);
                rest /= taps.len();
            }
            let index = self.place(b, &chosen, sizes)?;
            let product = |b: &mut Build<'_, '_>, moved: Option<usize>| -> Made {
                let factor = |(a, t): (usize, &Tap)| if moved == Some(a) { t.slope } else { t.weight };
                let mut factors = chosen.iter().enumerate().map(factor);
                let first = factors.next().map_or_else(|| b.number(1.0, x), Ok)?;
                let all = factors.try_fold(first, |all, f| b.mul(all, f))?;
                b.unsqueeze(all, &[1])
            };
            let weight = product(b, None)?;
            let given = b.mul(g, weight)?;
            dx = b.op(ScatterElements { axis: 2, reduction: "add".into() }, &[dx, index, given])?;
            if mode == Mode::Nearest {
                continue;
            }
            let read = b.op(GatherElements { axis: 2 }, &[flat, index])?;
            let read = b.mul(read, g)?;
            let read = b.sum(read, &[1], true)?;
            for (a, sum) in moves.iter_mut().enumerate() {
                let slope = product(b, Some(a))?;
                let part = b.mul(read, slope)?;
                *sum = Some(match *sum {
                    Some(sum) => b.add(sum, part)?,
                    None => part,
                });
            }
        }
        let dx = b.reshape_like(dx, x)?;
        // A place that jumps from element to element has no slope.
        let Some(moves) = moves.into_iter().collect::<Option<Vec<_>>>() else { return Ok(vec![Some(dx), None]) };
        let mut coordinates = Vec::new();
        for (a, sum) in moves.into_iter().enumerate().rev() {
            let sum = b.scale(sum, self.slope(spatial[a]))?;
            coordinates.push(b.reshape(sum, &[size(batch), size(places), 1])?);
        }
        let moved = b.op(Concat { axis: 2 }, &coordinates)?;
        let moved = b.cast(moved, b.dtype(grid))?;
        Ok(vec![Some(dx), Some(b.reshape_like(moved, grid)?)])
    }

    /// Elements along an axis of length `len` for a step of 1 in the grid.
    fn slope(&self, len: usize) -> f64 {
        if self.align_corners { (len as f64 - 1.0) / 2.0 } else { len as f64 / 2.0 }
    }

    /// The taps of an axis of length `len` at the normalised coordinates `v`.
    fn taps_of(
        &self,
        b: &mut Build<'_, '_>,
        v: ValueId,
        len: usize,
        mode: Mode,
        outside: Outside,
    ) -> Result<Vec<Tap>, Diagnostic> {
        let scaled = b.scale(v, self.slope(len))?;
        let x = b.add_number(scaled, (len as f64 - 1.0) / 2.0)?;
        let (one, dims) = (b.number(1.0, x)?, b.shape_of(x)?);
        let one = b.expand(one, dims)?;
        let base = if mode == Mode::Nearest { b.op(Round {}, &[x])? } else { b.op(Floor {}, &[x])? };
        let all = if mode == Mode::Nearest {
            vec![(base, one, 0.0)]
        } else {
            let t = b.sub(x, base)?;
            let (next, rest) = (b.add_number(base, 1.0)?, b.sub(one, t)?);
            vec![(base, rest, -1.0), (next, t, 1.0)]
        };
        let (low, high) = (b.number(0.0, x)?, b.number(len as f64 - 1.0, x)?);
        let mut taps = Vec::new();
        for (position, weight, slope) in all {
            let inside = b.op(Clip {}, &[position, low, high])?;
            let index = b.cast(inside, DType::I64)?;
            let slope = b.number(slope, x)?;
            let counts = match outside {
                Outside::Zeros => {
                    let there = b.op(Eq {}, &[inside, position])?;
                    b.cast(there, b.dtype(x))?
                }
                _ => one,
            };
            taps.push(Tap { index, weight: b.mul(weight, counts)?, slope: b.mul(slope, counts)? });
        }
        Ok(taps)
    }

    /// The number of the element that a tap of each axis names, in the row-major order of an image, for every channel.
    fn place(&self, b: &mut Build<'_, '_>, chosen: &[Tap], sizes: &Sizes) -> Made {
        let mut flat: Option<ValueId> = None;
        for (tap, len) in chosen.iter().zip(&sizes.spatial) {
            flat = Some(match flat {
                Some(flat) => {
                    let length = b.number(*len as f64, flat)?;
                    let outer = b.mul(flat, length)?;
                    b.add(outer, tap.index)?
                }
                None => tap.index,
            });
        }
        let flat = flat.map_or_else(|| b.ints(&[0]), Ok)?;
        let flat = b.unsqueeze(flat, &[1])?;
        let dims = b.ints(&[sizes.batch as i64, sizes.channels as i64, sizes.places as i64])?;
        b.op(Expand {}, &[flat, dims])
    }
}
