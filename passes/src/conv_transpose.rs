//! Transposed convolutions as convolutions (sub-pixel or phase decomposition).
//!
//! With stride `s`, output `m*s + r` is `sum over q of x[m - q] * w[q*s + r]`. So each phase `r` is a convolution of
//! `x` by every `s`-th tap, in reverse. Phases with the same taps read the same inputs, so they become channels of one
//! convolution. The results are then interleaved. A phase without taps is only the bias.

use std::ops::Range;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{DType, Dim, OpId, Rewriter, Tensor, ValueId};
use of_ops::elementwise::{Add, Mul};
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand, Gather, Reshape, Slice, Transpose};
use of_ops::nn::{Conv, ConvTranspose};
use of_ops::structural::{Constant, NoneValue, ShapeOf};

/// With more phases, nearly all are only the bias or are cropped; no known network has as many.
const MAX_PHASES: usize = 4096;

/// The most elements of an axis for each element of the result and of its input, with a stride for each input.
const MAX_CROP_RATIO: i64 = 8;

/// Geometry of one spatial axis.
struct Axis {
    stride: usize,
    dilation: usize,
    kernel: usize,
    /// The largest number of taps of a phase, for a kernel without dilation.
    taps: usize,
    /// Zero padding after the input.
    after: usize,
    /// Outputs of each phase that are cropped at the beginning, so they are not computed.
    skipped: usize,
    /// Interleaved outputs to crop before and after.
    cut: (i64, i64),
}

/// Adjacent phases of an axis that have the same taps.
#[derive(Clone)]
struct Run {
    phases: Range<usize>,
    /// Their taps, in the order in which the input is read.
    taps: Vec<usize>,
}

impl Axis {
    /// The position in the kernel of tap `t` of phase `r`, if there is one.
    fn place(&self, t: usize, r: usize) -> Option<usize> {
        let j = (self.taps - 1 - t) * self.stride + r;
        (j.is_multiple_of(self.dilation) && j / self.dilation < self.kernel).then_some(j / self.dilation)
    }

    fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for r in 0..self.stride {
            let taps: Vec<usize> = (0..self.taps).filter(|t| self.place(*t, r).is_some()).collect();
            match runs.last_mut() {
                Some(run) if run.taps == taps => run.phases.end = r + 1,
                _ => runs.push(Run { phases: r..r + 1, taps }),
            }
        }
        runs
    }
}

/// The filters `[Cin, Cout/group, kernel…]` of a transposed convolution: constant or computed.
enum Filters<'a> {
    Known(&'a [f32]),
    Computed(ValueId),
}

/// A transposed convolution with channels-last input.
struct Phases<'a> {
    x: ValueId,
    filters: Filters<'a>,
    inputs: usize,
    /// Channels per group.
    each: usize,
    /// One number per channel.
    bias: Option<&'a [f32]>,
    groups: usize,
    axes: &'a [Axis],
}

/// conv_transpose(x, w) = interleaved conv(x, phases of w), for f32 weights. Returns whether `op` was rewritten.
///
/// # Errors
/// When an op that it makes does not fit, a bug of the rule.
pub fn conv_transpose_to_conv(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(conv) = as_op::<ConvTranspose>(rw.graph(), op) else { return Ok(false) };
    let g = rw.graph();
    let (x, w) = (g.op(op).operands[0], g.op(op).operands[1]);
    let bias = g.op(op).operands.get(2).copied().filter(|v| g.ty(*v).as_tensor().is_some());
    let Some((axes, groups)) = axes(g, &conv, x, w) else { return Ok(false) };
    let Some(filters) = g.ty(w).as_tensor().filter(|t| t.dtype == DType::F32).and_then(|t| t.fixed_dims()) else {
        return Ok(false);
    };
    let constant = g.constant(w);
    let numbers = constant.as_ref().and_then(|t| t.as_slice::<f32>());
    // A computed bias is added at the end.
    let known = bias.and_then(|b| g.constant(b));
    let known = known.as_ref().and_then(|b| b.as_slice::<f32>());
    let computed = bias.filter(|_| known.is_none());
    rw.rewrite(op, &[]);
    let rank = axes.len();
    let mut x = x;
    if !conv.channels_last {
        x = transpose(rw, x, std::iter::once(0).chain(2..2 + rank).chain([1]))?;
    }
    let (inputs, each) = (filters[0] / groups, filters[1]);
    let filters = numbers.as_deref().map_or(Filters::Computed(w), Filters::Known);
    let all = Phases { x, filters, inputs, each, bias: known.as_deref(), groups, axes: &axes };
    let mut y = all.along(rw, &[])?;
    if axes.iter().any(|a| a.stride > 1) {
        y = all.interleave(rw, y)?;
    }
    y = cut(rw, y, axes.iter().map(|a| a.cut))?;
    if let Some(b) = computed {
        y = rw.create_one(Add {}, &[y, b])?;
    }
    if !conv.channels_last {
        y = transpose(rw, y, [0, 1 + rank].into_iter().chain(1..1 + rank))?;
    }
    rw.replace(op, &[y]);
    Ok(true)
}

/// The spatial axes and the number of groups, where the necessary extents are known.
fn axes(g: &of_ir::Graph, conv: &ConvTranspose, x: ValueId, w: ValueId) -> Option<(Vec<Axis>, usize)> {
    let shape = |v: ValueId| g.ty(v).as_tensor()?.shape.clone();
    let (input, filters) = (shape(x)?, shape(w)?);
    // Empty inputs are valid for a transposed convolution but not for a convolution; without channels there is nothing
    // to gain.
    if input.iter().chain(&filters).any(|d| d.as_const() == Some(0)) {
        return None;
    }
    let all = conv.geometry(&input, &filters).ok()?;
    let o = &all.windows;
    let axis = |i: usize| {
        let (stride, dilation, kernel) = (o.strides[i], o.dilations[i], o.kernel[i]);
        // The number of outputs beyond a stride for each input.
        let first = o.pads_begin[i].as_const()?;
        let beyond = (&(&o.input[i] + &o.pads_begin[i]) - &(&o.output[i] * &Dim::from(stride))).as_const()?;
        let s = i64::try_from(stride).ok()?;
        let after = (beyond + s - 1).div_euclid(s).max(0);
        let taps = ((kernel - 1) * dilation + 1).div_ceil(stride);
        // A result that is mostly cropped would be allocated whole.
        let known = o.output[i].as_const().zip(o.input[i].as_const());
        if known.is_some_and(|(x, y)| (x + 2 * taps as i64) * s > MAX_CROP_RATIO * (y + x * s)) {
            return None;
        }
        // Of an open extent, the result for one element counts: that of a convolution may not be empty.
        let smallest = o.input[i].as_const().unwrap_or(s + beyond - first);
        let skipped = if smallest > 0 { first / s } else { 0 };
        Some(Axis {
            stride,
            dilation,
            kernel,
            taps,
            after: usize::try_from(after).ok()?,
            skipped: usize::try_from(skipped).ok()?,
            cut: (first - skipped * s, after * s - beyond),
        })
    };
    let phases = o.strides.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).filter(|n| *n <= MAX_PHASES);
    phases.and((0..o.kernel.len()).map(axis).collect::<Option<Vec<_>>>()).map(|axes| (axes, all.group))
}

impl Phases<'_> {
    /// `[N, M…, group, phases…, each]`, or `[N, M…, group each]` for one phase, with these runs of the first axes and
    /// all phases of the others.
    fn along(&self, rw: &mut Rewriter<'_>, runs: &[Run]) -> Result<ValueId, Diagnostic> {
        let rank = self.axes.len();
        if runs.len() == rank {
            return self.part(rw, runs);
        }
        let parts = self.axes[runs.len()].runs().into_iter().map(|run| self.along(rw, &[runs, &[run]].concat()));
        match parts.collect::<Result<Vec<_>, _>>()?.as_slice() {
            [one] => Ok(*one),
            parts => rw.create_one(Concat { axis: (2 + rank + runs.len()) as i64 }, parts),
        }
    }

    /// The phases of one run along each axis.
    fn part(&self, rw: &mut Rewriter<'_>, runs: &[Run]) -> Result<ValueId, Diagnostic> {
        let rank = runs.len();
        let phases = phases(runs);
        let channels = self.groups * phases * self.each;
        let bias = self.bias.map(|b| b.chunks(self.each).flat_map(|c| c.repeat(phases)).collect::<Vec<f32>>());
        let y = if runs.iter().all(|r| !r.taps.is_empty()) {
            let filters = match self.filters {
                Filters::Known(numbers) => constant(rw, &self.weights(numbers, runs), &self.dims(runs))?,
                Filters::Computed(w) => self.arranged(rw, w, runs)?,
            };
            let mut operands = vec![self.x, filters];
            if let Some(b) = bias {
                operands.push(constant(rw, &b, &[channels])?);
            }
            self.convolution(rw, runs, &operands)?
        } else {
            let row = constant(rw, &bias.unwrap_or_else(|| vec![0.0; channels]), &[channels])?;
            let read = rw.create_one(ShapeOf { start: Some(0), end: Some(1 + rank as i64) }, &[self.x])?;
            let more = self.axes.iter().map(|a| a.after as i64 - a.skipped as i64);
            let more: Vec<i64> = std::iter::once(0).chain(more).collect();
            let more = Constant::ints(rw, &more)?;
            let indices = rw.create_one(Add {}, &[read, more])?;
            let last = Constant::ints(rw, &[channels as i64])?;
            let to = rw.create_one(Concat { axis: 0 }, &[indices, last])?;
            rw.create_one(Expand {}, &[row, to])?
        };
        if self.axes.iter().all(|a| a.stride == 1) {
            return Ok(y);
        }
        // An extent of 0 is that of the operand.
        let mut apart = vec![0; 1 + rank];
        apart.push(self.groups as i64);
        apart.extend(runs.iter().map(|r| r.phases.len() as i64));
        apart.push(self.each as i64);
        let apart = Constant::ints(rw, &apart)?;
        rw.create_one(Reshape { allowzero: false }, &[y, apart])
    }

    /// `[N, M…, group phases each]`.
    fn convolution(&self, rw: &mut Rewriter<'_>, runs: &[Run], operands: &[ValueId]) -> Result<ValueId, Diagnostic> {
        let (mut before, mut after, mut dilations, mut beyond) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (axis, run) in self.axes.iter().zip(runs) {
            let (first, last) = (run.taps[0], run.taps[run.taps.len() - 1]);
            let zeros = [
                (axis.taps - 1 - first) as i64 - axis.skipped as i64,
                axis.after as i64 - (axis.taps - 1 - last) as i64,
            ];
            before.push(zeros[0].max(0));
            after.push(zeros[1].max(0));
            beyond.push(((-zeros[0]).max(0), (-zeros[1]).max(0)));
            dilations.push(run.taps.get(1).map_or(1, |second| (second - first) as i64));
        }
        let conv = Conv {
            strides: vec![1; runs.len()],
            pads: [before, after].concat(),
            dilations,
            group: self.groups as i64,
            auto_pad: "NOTSET".into(),
            channels_last: true,
        };
        let y = rw.create_one(conv, operands)?;
        cut(rw, y, beyond.into_iter())
    }

    fn dims(&self, runs: &[Run]) -> Vec<usize> {
        let taps = runs.iter().map(|r| r.taps.len());
        [self.groups * phases(runs) * self.each, self.inputs].into_iter().chain(taps).collect()
    }

    /// The filters `[group phases Cout/group, Cin/group, taps…]`.
    fn weights(&self, filters: &[f32], runs: &[Run]) -> Vec<f32> {
        let points = self.points();
        let taps = self.taps(runs);
        let mut out = Vec::new();
        for group in 0..self.groups {
            for taps in taps.chunks_exact(taps.len() / phases(runs)) {
                for channel in 0..self.each {
                    for input in 0..self.inputs {
                        let from = ((group * self.inputs + input) * self.each + channel) * points;
                        out.extend(taps.iter().map(|tap| filters[from + tap]));
                    }
                }
            }
        }
        out
    }

    /// [`Self::weights`] for computed filters: gathers their taps as rows.
    fn arranged(&self, rw: &mut Rewriter<'_>, w: ValueId, runs: &[Run]) -> Result<ValueId, Diagnostic> {
        let (phases, taps) = (phases(runs), self.taps(runs));
        let reshape = |rw: &mut Rewriter<'_>, v: ValueId, dims: &[usize]| {
            let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
            let to = Constant::ints(rw, &dims)?;
            rw.create_one(Reshape { allowzero: true }, &[v, to])
        };
        let apart = reshape(rw, w, &[self.groups, self.inputs, self.each, self.points()])?;
        let rows = transpose(rw, apart, [3, 0, 1, 2].into_iter())?;
        let which: Vec<i64> = taps.iter().map(|t| *t as i64).collect();
        let which = Constant::ints(rw, &which)?;
        let picked = rw.create_one(Gather { axis: 0 }, &[rows, which])?;
        let picked = reshape(rw, picked, &[phases, taps.len() / phases, self.groups, self.inputs, self.each])?;
        let filters = transpose(rw, picked, [2, 0, 4, 3, 1].into_iter())?;
        reshape(rw, filters, &self.dims(runs))
    }

    /// Taps of a filter.
    fn points(&self) -> usize {
        self.axes.iter().map(|a| a.kernel).product()
    }

    /// The filter taps of each phase of the runs, phase by phase; all have the same number.
    fn taps(&self, runs: &[Run]) -> Vec<usize> {
        let lens: Vec<usize> = runs.iter().map(|r| r.phases.len()).collect();
        let taps: Vec<usize> = runs.iter().map(|r| r.taps.len()).collect();
        let place = |phase: &[usize], tap: &[usize]| {
            let axis = |at: usize, (i, (a, r)): (usize, (&Axis, &Run))| {
                Some(at * a.kernel + a.place(r.taps[tap[i]], r.phases.start + phase[i])?)
            };
            self.axes.iter().zip(runs).enumerate().try_fold(0, axis)
        };
        indices(&lens).flat_map(|p| indices(&taps).filter_map(move |t| place(&p, &t))).collect()
    }

    /// `[N, M…, group, phases…, each]` to `[N, M*stride…, group each]`.
    fn interleave(&self, rw: &mut Rewriter<'_>, y: ValueId) -> Result<ValueId, Diagnostic> {
        let rank = self.axes.len();
        let pairs = (0..rank).flat_map(|i| [1 + i, 2 + rank + i]);
        let parts = transpose(rw, y, std::iter::once(0).chain(pairs).chain([1 + rank, 2 + 2 * rank]))?;
        let spatial = rw.create_one(ShapeOf { start: Some(1), end: Some(1 + rank as i64) }, &[y])?;
        let strides: Vec<i64> = self.axes.iter().map(|a| a.stride as i64).collect();
        let strides = Constant::ints(rw, &strides)?;
        let image = rw.create_one(Mul {}, &[spatial, strides])?;
        let samples = rw.create_one(ShapeOf { start: Some(0), end: Some(1) }, &[y])?;
        let channels = Constant::ints(rw, &[(self.groups * self.each) as i64])?;
        let to = rw.create_one(Concat { axis: 0 }, &[samples, image, channels])?;
        rw.create_one(Reshape { allowzero: true }, &[parts, to])
    }
}

/// Phases of the runs of all axes together.
fn phases(runs: &[Run]) -> usize {
    runs.iter().map(|r| r.phases.len()).product()
}

/// All indices of a box, row-major.
fn indices(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<'_> {
    (0..dims.iter().product::<usize>()).map(move |mut n| {
        let mut at = vec![0; dims.len()];
        for (a, d) in at.iter_mut().zip(dims).rev() {
            (*a, n) = (n % d, n / d);
        }
        at
    })
}

/// Crops this many first and last positions of each spatial axis.
fn cut(rw: &mut Rewriter<'_>, y: ValueId, axes: impl Iterator<Item = (i64, i64)>) -> Result<ValueId, Diagnostic> {
    let (mut starts, mut ends, mut which) = (Vec::new(), Vec::new(), Vec::new());
    for (i, (first, last)) in axes.enumerate().filter(|(_, cut)| *cut != (0, 0)) {
        starts.push(first);
        ends.push(if last == 0 { i64::MAX } else { -last });
        which.push(1 + i as i64);
    }
    if which.is_empty() {
        return Ok(y);
    }
    let (starts, ends, which) = (Constant::ints(rw, &starts)?, Constant::ints(rw, &ends)?, Constant::ints(rw, &which)?);
    let steps = rw.create_one(NoneValue {}, &[])?;
    rw.create_one(Slice {}, &[y, starts, ends, which, steps])
}

fn constant(rw: &mut Rewriter<'_>, numbers: &[f32], dims: &[usize]) -> Result<ValueId, Diagnostic> {
    let fits = |e: of_ir::TensorError| Diagnostic::error(Code::TYPE, Location::Unknown, e.to_string());
    let value = Tensor::from_slice(dims, numbers).map_err(fits)?;
    rw.create_one(Constant { value }, &[])
}

fn transpose(rw: &mut Rewriter<'_>, x: ValueId, perm: impl Iterator<Item = usize>) -> Result<ValueId, Diagnostic> {
    rw.create_one(Transpose { perm: Some(perm.map(|a| a as i64).collect()) }, &[x])
}
