//! Deformable convolution as a gather under each tap and a product.

use of_diag::Diagnostic;
use of_ir::{Dim, OpError, Rewriter, Shape, Tensor, ValueId};

use super::DeformConv;
use crate::build::{Build, BuildResult, diagnostic};
use crate::contraction::MatMul;
use crate::elementwise::Floor;
use crate::movement::spec::{self, Part};
use crate::movement::{Gather, Reshape};
use crate::nn::interpolate::{Length, Tap, wide};
use crate::nn::window::Windows;
use crate::{Expanded, shape};

impl DeformConv {
    /// See [`crate::Op::expand`].
    pub(super) fn parts(&self, rw: &mut Rewriter<'_>, operands: &[ValueId]) -> Expanded {
        let b = &mut Build::new(rw);
        let (x, w, offset) = (operands[0], operands[1], operands[2]);
        let known =
            |v: Option<Shape>| v.ok_or_else(|| diagnostic(OpError::shape("the ranks of x and w must be known")));
        let (xs, ws) = (known(b.shape(x))?, known(b.shape(w))?);
        let windows = self.windows(&xs, &ws).map_err(diagnostic)?;
        let channels = ws[0].as_const();
        let channels = channels.ok_or_else(|| diagnostic(OpError::shape("the dimensions of w must be known")))?;
        let rank = windows.kernel.len();
        let taps: usize = windows.kernel.iter().product();
        let [group, offset_group] = [self.group, self.offset_group];
        let dtype = wide([b.dtype(x); 2]);
        let outputs = || (2..rank + 2).map(Part::axis);

        // `[N, offset groups, taps, rank, o…]`: where each tap is moved.
        let split = |b: &mut Build<'_, '_>, v: ValueId, each: &[i64]| {
            let parts = [Part::axis(0), Part::number(offset_group), Part::number(taps as i64)].into_iter();
            let parts: Vec<Part> = parts.chain(each.iter().map(|n| Part::number(*n))).chain(outputs()).collect();
            spec::reshape(b.rw, v, &parts)
        };
        let offset = b.cast(offset, dtype)?;
        let moved = split(b, offset, &[rank as i64])?;
        let mut axes = Vec::new();
        for a in 0..rank {
            let which = b.constant(Tensor::scalar(a as i64))?;
            let moved = b.op(Gather { axis: 3 }, &[moved, which])?;
            let place = place(b, &windows, a, moved)?;
            let len = b.length(x, a + 2, dtype)?;
            axes.push((len, linear(b, place, &len)?));
        }
        // `[N, offset groups, elements, C / offset groups]`.
        let grouped: Vec<Part> = [Part::axis(0), Part::number(offset_group), Part::axis(1).over(offset_group)]
            .into_iter()
            .chain([Part::product((2..rank + 2).collect())])
            .collect();
        let rows = b.cast(x, dtype)?;
        let rows = spec::reshape(b.rw, rows, &grouped)?;
        let rows = b.transpose(rows, &[0, 1, 3, 2])?;
        let corners = b.corners(None, &axes)?;
        // `[N, offset groups, taps, o…, C / offset groups]`.
        let mut under = b.read_all(rows, 2, corners)?;
        if let Some(mask) = b.given(operands, 4) {
            let mask = b.cast(mask, dtype)?;
            let mask = split(b, mask, &[])?;
            let mask = b.unsqueeze(mask, &[rank + 3])?;
            under = b.mul(under, mask)?;
        }
        // `[N, group, C / group * taps, o]`, times `[group, M / group, C / group * taps]`.
        let order: Vec<usize> = [0, 1, rank + 3, 2].into_iter().chain(3..rank + 3).collect();
        let under = b.transpose(under, &order)?;
        let positions = Part::product((4..rank + 4).collect());
        let columns = spec::reshape(
            b.rw,
            under,
            &[Part::axis(0), Part::number(group), Part::product(vec![1, 2, 3]).over(group), positions],
        )?;
        let w = b.cast(w, dtype)?;
        let filters = [Part::number(group), Part::axis(0).over(group), Part::product((1..rank + 2).collect())];
        let filters = spec::reshape(b.rw, w, &filters)?;
        let y = b.op(MatMul {}, &[filters, columns])?;
        let y = b.merge(y, 1..3)?;
        // The extents of the result are those of the offsets.
        let dims: Vec<Part> = [Part::axis(0), Part::number(channels)].into_iter().chain(outputs()).collect();
        let dims = spec::spec(b.rw, offset, &dims)?;
        let mut y = b.op(Reshape { allowzero: true }, &[y, dims])?;
        if let Some(bias) = b.given(operands, 3) {
            let bias = b.cast(bias, dtype)?;
            let bias = b.unsqueeze(bias, &(1..=rank).collect::<Vec<_>>())?;
            y = b.add(y, bias)?;
        }
        Ok(vec![b.cast(y, b.dtype(x))?])
    }
}

/// Positions along axis `a` of the elements under the taps: `moved` (`[N, offset groups, taps, o…]`) away from their positions
/// in a convolution.
fn place(b: &mut Build<'_, '_>, windows: &Windows<Dim>, a: usize, moved: ValueId) -> BuildResult {
    let (rank, pad) = (windows.kernel.len(), windows.pads_begin[a].as_const().unwrap_or(0));
    let mut taps = Vec::new();
    shape::for_each_index(&windows.kernel, |k| taps.push((k[a] * windows.dilations[a]) as i64 - pad));
    let taps = b.ints(&taps)?;
    let taps = b.unsqueeze(taps, &(1..=rank).collect::<Vec<_>>())?;
    let positions = b.length(moved, 3 + a, b.dtype(moved))?;
    let positions = b.numbers(positions.count)?;
    let stride = b.number(windows.strides[a] as f64, positions)?;
    let positions = b.mul(positions, stride)?;
    let positions = b.unsqueeze(positions, &(1..rank - a).collect::<Vec<_>>())?;
    let place = b.add(taps, positions)?;
    let place = b.cast(place, b.dtype(moved))?;
    b.add(place, moved)
}

/// The elements around `x`, zeros outside.
fn linear(b: &mut Build<'_, '_>, x: ValueId, len: &Length) -> Result<Vec<Tap>, Diagnostic> {
    let one = b.number(1.0, x)?;
    let base = b.op(Floor {}, &[x])?;
    let t = b.sub(x, base)?;
    let (left, next) = (b.sub(one, t)?, b.add_number(base, 1.0)?);
    Ok(vec![b.tap(base, left, len, false)?, b.tap(next, t, len, false)?])
}
