//! Pools: windows over image axes, channels on vectors.

use std::fmt::Write;
use std::ops::Range;

use of_ir::{DType, Dim, Graph, OpId};
use of_ops::list::as_op;
use of_ops::nn::{AvgPool, MaxPool, Windows};

use super::anchor::{Outcome, axes};
use super::body::Body;
use super::{Lowering, points};
use crate::fuse::Group;
use crate::native::index::{Points, offset, word};
use crate::native::space::row_major;
use crate::native::window::{Kind, Window};
use crate::native::{Extent, Nest, extent};
use crate::physical::{Flops, Operand, Place};

impl Lowering<'_, '_> {
    pub(super) fn pool(&mut self, group: &Group, op: OpId, b: &Body) -> Outcome {
        let x = self.g.op(op).operands[0];
        let shape = self.g.ty(x).as_tensor().and_then(|t| t.shape.clone()).unwrap_or_default();
        let average = as_op::<AvgPool>(self.g, op);
        let geometry = match (&average, as_op::<MaxPool>(self.g, op)) {
            (Some(p), _) => p.geometry(&shape),
            (_, Some(p)) => p.geometry(&shape),
            _ => return Err("its attributes do not decode".into()),
        };
        let geometry = geometry.map_err(|e| e.message)?;
        let image = Image::of(&geometry.windows, &geometry.n, &geometry.c, b, &group.space)?;
        let counts = match average {
            Some(p) => Some(p.counts(
                &image.windows.fixed().ok_or("how many elements its windows have is not known before the run")?,
            )),
            None => None,
        };
        let (h, w) = axes(&image.windows)?;
        let kind = if counts.is_some() { Kind::Mean } else { Kind::Max };
        let flops = Flops::pointwise((h.kernel * w.kernel) as u64 * points(&group.space));
        let spec = Window { n: image.n, h, w, c: image.c, kind, dtype: self.dtype(x) };
        let source = Nest::Window { spec, body: image.body.clone() }.print(self.isa)?;
        Ok((|| {
            let mut first = vec![self.place(x)?];
            if let Some(counts) = counts {
                let factors: Vec<f32> = counts.iter().map(|c| if *c == 0.0 { 0.0 } else { (1.0 / c) as f32 }).collect();
                first.push(Operand::whole(Place::Weight(self.constants.computed("pool factors", factors)?)));
            }
            self.finish(group, source, &image.body, first, flops)
        })())
    }
}

/// The loop nest of a largest pool that tells where it found what it gives: samples and channels outside.
///
/// # Errors
/// Why it has none.
pub fn found(g: &Graph, op: OpId) -> Result<Nest, String> {
    let (x, y) = (g.op(op).operands[0], g.op(op).results[0]);
    let pool: MaxPool = as_op(g, op).ok_or("its attributes do not decode")?;
    let ty = g.ty(x).as_tensor().ok_or("no tensor")?;
    if pool.channels_last || pool.storage_order != 0 || ty.dtype != DType::F32 {
        return Err("places have native code for f32, channels before image axes, and rows in order".into());
    }
    let shape = ty.shape.clone().ok_or("the rank of its input is not known")?;
    let windows = pool.geometry(&shape).map_err(|e| e.message)?.windows;
    let rank = windows.input.len();
    let input: Vec<Extent> = shape.iter().cloned().map(Extent::from).collect();
    let dims = extent::of_value(g, y);
    let names = |prefix: &str, axes: Range<usize>| axes.map(|a| format!("{prefix}{a}")).collect::<Vec<_>>();
    // A window that lies in the padding altogether has found the first element of its channel.
    let first = [names("x", 0..2), vec!["0".to_string(); rank]].concat();
    let first = offset(&first, &row_major(&input));
    let mut point = format!("      f32 top = -INF32; i64 at = {first}; i32 seen = 0;\n");
    for a in 0..rank {
        let (k, stride, dilation) = (windows.kernel[a], windows.strides[a], windows.dilations[a]);
        let (pad, n) = (Extent::from(windows.pads_begin[a].clone()), Extent::from(windows.input[a].clone()));
        let _ = write!(
            point,
            "      for (i64 k{a} = 0; k{a} < {k}; k{a}++) {{
      const i64 p{a} = x{} * {stride} + k{a} * {dilation} - {pad};
      if (p{a} < 0 || p{a} >= {n}) continue;\n",
            a + 2
        );
    }
    let from = [names("x", 0..2), names("p", 0..rank)].concat();
    let _ = write!(
        point,
        "      const i64 place = {};
      const f32 e = from[place];
      if (!seen || e > top || (e != e && top == top)) {{ seen = 1; top = e; at = place; }}
      {}
      best[{}] = top;\n",
        offset(&from, &row_major(&input)),
        "}".repeat(rank),
        offset(&names("x", 0..rank + 2), &row_major(&dims)),
    );
    let head = "  PTR(const f32) from = ARG(const f32, 0);\n  PTR(f32) best = ARG(f32, 1);\n".into();
    let value = "(u64)at".into();
    Ok(Nest::Points(Points { dims, element: word(8), out: 2, head, row: String::new(), point, value }))
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
    /// Axes that windows do not move along are more samples where they come first, and more channels where they come last:
    /// the sums over neighbouring channels of a local response normalisation are a pool of one plane `[C, H, W]`, whose
    /// vectors then run along `H` and `W`.
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
            let mut strides = vec![before.ok_or("its samples do not lie in a row")?];
            // One image axis is a single line.
            strides.extend((last - first == 1).then(|| 0usize.into()));
            strides.extend_from_slice(&l.strides[first + 1..last + 1]);
            strides.push(behind.ok_or("its channels do not lie in a row")?);
            l.strides = strides;
        }
        Ok(Image { n, windows, c, body: out })
    }
}

/// The stride of each load along `axes` of its space as one axis, if they are one in all of them.
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
