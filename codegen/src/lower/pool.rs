//! Pools and gradients of depthwise convolutions: windows over image axes, vectorised over channels.

use std::ops::Range;

use of_ir::{Dim, OpId};
use of_ops::list::as_op;
use of_ops::nn::{AvgPool, Windows};
use of_ops::work;

use crate::analysis::pool;
use crate::fuse::Group;
use crate::kernel::body::{Body, ReduceKind};
use crate::kernel::extent::Extent;
use crate::kernel::nest::Nest;
use crate::kernel::window::{Window, WindowKind, image_axes};
use crate::lower::anchor::Outcome;
use crate::lower::{Lowering, points};
use crate::physical::Flops;

impl Lowering<'_, '_> {
    pub(super) fn pool(&mut self, group: &Group, op: OpId, b: &Body) -> Outcome {
        let x = self.g.op(op).operands[0];
        let shape = self.g.ty(x).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
        let average = as_op::<AvgPool>(self.g, op);
        let geometry = pool::geometry(self.g, op, &shape)?;
        let image = Image::of(&geometry.windows, &geometry.n, &geometry.c, b, &group.space)?;
        let (h, w) = image_axes(&image.windows)?;
        let kind = average.map_or(WindowKind::Max, |p| WindowKind::Mean(pool::divisor(&p, &image.windows)));
        let flops = Flops::pointwise((h.kernel * w.kernel) as u64 * points(&group.space));
        let spec = Window { n: image.n, h, w, c: image.c, kind, dtype: self.dtype(x) };
        let source = Nest::Window { spec, body: image.body.clone() }.print(self.isa)?;
        Ok((|| {
            let first = vec![self.operand(x)?];
            self.finish(group, source, &image.body, first, flops)
        })())
    }

    /// The gradient of depthwise weights: the sums of several parts of the lines, where they exceed the cache.
    pub(super) fn depthwise_weight_gradient(&mut self, op: OpId) -> Outcome {
        let mut spec = pool::depthwise_weight_gradient(self.g, op)?;
        spec.parts = spec.best_parts();
        let flops = Flops::products(work::of(self.g, op).flops as u64);
        let between = vec![Extent::from(spec.parts), &spec.c * spec.taps()];
        let source = Nest::DepthwiseWeightGradient(spec).print(self.isa)?;
        self.in_parts(op, source, flops, ReduceKind::Sum, between, 0)
    }
}

/// A pool over `[N, H, W, C]`.
struct Image {
    n: Extent,
    /// One axis or two.
    windows: Windows<Dim>,
    c: usize,
    /// The epilogue, whose space is `[N, H, W, C]`.
    body: Body,
}

impl Image {
    /// Leading axes without windows are merged into samples, trailing ones into channels. A local response normalisation sums
    /// over adjacent channels: it is a pool of one plane `[C, H, W]`, vectorised over `H` and `W`.
    fn of(windows: &Windows<Dim>, n: &Dim, c: &Dim, body: &Body, space: &[Extent]) -> Result<Image, String> {
        let mut c = Extent::from(c).number().ok_or("its channels are not known before the run")?;
        let mut n = Extent::from(n);
        let (mut first, mut last) = (0, windows.input.len());
        while last - first > 1
            && windows.is_still(last - 1)
            && let Some(extent) = space[last].number()
            && joined(body, space, last..space.len()).is_some()
        {
            last -= 1;
            c *= extent;
        }
        while last - first > 2 && windows.is_still(first) && joined(body, space, 0..first + 2).is_some() {
            first += 1;
            n = n * &space[first];
        }
        let windows = windows.part(first..last);
        let mut out = body.clone();
        for (i, l) in out.loads.iter_mut().enumerate() {
            let ends = |axes: Range<usize>| joined(body, space, axes).map(|s| s[i].clone());
            let (before, behind) = (ends(0..first + 1), ends(last + 1..space.len()));
            let mut strides = vec![before.ok_or("its samples have no constant stride")?];
            // With one image axis, the other has extent 1.
            strides.extend((last - first == 1).then(|| 0usize.into()));
            strides.extend_from_slice(&l.strides[first + 1..last + 1]);
            strides.push(behind.ok_or("its channels have no constant stride")?);
            l.strides = strides;
        }
        Ok(Image { n, windows, c, body: out })
    }
}

/// The stride of each load along `axes` merged to one axis, if every load has such a stride.
fn joined(body: &Body, space: &[Extent], axes: Range<usize>) -> Option<Vec<Extent>> {
    let along = |strides: &[Extent]| {
        let mut one: Option<(Extent, Extent)> = None;
        for axis in axes.clone().rev().filter(|a| !space[*a].is(1)) {
            let (stride, next) = one.unwrap_or((strides[axis].clone(), strides[axis].clone()));
            if next != strides[axis] {
                return None;
            }
            one = Some((stride, next * &space[axis]));
        }
        Some(one.map_or(0usize.into(), |(stride, _)| stride))
    };
    body.loads.iter().map(|l| along(&l.strides)).collect()
}
