//! Transposed convolutions as convolutions.
//!
//! With stride `s`, output `m*s + r` is `sum over q of x[m - q] * w[q*s + r]`: for each phase `r` a convolution of `x` by
//! every `s`-th tap, backwards. All phases read the same inputs, so they are channels of one convolution whose results
//! are then interleaved; taps that a phase does not have are zeros. Where windows do not overlap there is one tap a phase.

use of_diag::Diagnostic;
use of_ir::{Dim, OpId, Rewriter, Tensor, ValueId};
use of_ops::elementwise::{Add, Mul};
use of_ops::list::as_op;
use of_ops::movement::{Concat, Reshape, Slice, Transpose};
use of_ops::nn::{Conv, ConvTranspose};
use of_ops::structural::{Constant, NoneValue, ShapeOf};

/// What is known of one spatial axis.
struct Axis {
    stride: usize,
    dilation: usize,
    kernel: usize,
    /// Taps of a phase.
    taps: usize,
    /// Zeros after the input.
    after: usize,
    /// Interleaved outputs before the first and after the last that are wanted.
    cut: (i64, i64),
}

impl Axis {
    /// The place in the kernel of tap `t` of phase `r`, if there is one.
    fn place(&self, t: usize, r: usize) -> Option<usize> {
        let j = (self.taps - 1 - t) * self.stride + r;
        (j.is_multiple_of(self.dilation) && j / self.dilation < self.kernel).then_some(j / self.dilation)
    }
}

/// conv_transpose(x, w) = interleaved conv(x, phases of w), for constant weights of f32. Whether `op` is one.
///
/// # Errors
/// When an op that it makes does not fit, a bug of the rule.
pub fn conv_phases(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(conv) = as_op::<ConvTranspose>(rw.graph(), op) else { return Ok(false) };
    let g = rw.graph();
    let (x, w) = (g.op(op).operands[0], g.op(op).operands[1]);
    let bias = g.op(op).operands.get(2).copied().filter(|v| g.ty(*v).as_tensor().is_some());
    let Some((axes, groups)) = axes(g, &conv, x, w) else { return Ok(false) };
    let Some(filters) = g.constant(w).and_then(|t| weights(&t, &axes, groups)) else { return Ok(false) };
    let phases: usize = axes.iter().map(|a| a.stride).product();
    let each = filters.dims()[0] / groups / phases;
    // One number for all phases of a channel; one that is computed is added at the end.
    let known = bias.and_then(|b| {
        let b = g.constant(b)?;
        let b: Vec<f32> = b.as_slice::<f32>()?.chunks(each).flat_map(|c| c.repeat(phases)).collect();
        Tensor::from_slice(&[b.len()], &b).ok()
    });
    let computed = bias.filter(|_| known.is_none());
    rw.rewrite(op, &[]);
    let rank = axes.len();
    let mut x = x;
    if !conv.channels_last {
        x = transpose(rw, x, std::iter::once(0).chain(2..2 + rank).chain([1]))?;
    }
    let before = axes.iter().map(|a| a.taps - 1);
    let pads = before.chain(axes.iter().map(|a| a.after)).map(|p| p as i64).collect();
    let ones = vec![1; rank];
    let forward = Conv {
        strides: ones.clone(),
        pads,
        dilations: ones,
        group: groups as i64,
        auto_pad: "NOTSET".into(),
        channels_last: true,
    };
    let mut operands = vec![x, rw.create_one(Constant { value: filters }, &[])?];
    if let Some(b) = known {
        operands.push(rw.create_one(Constant { value: b }, &[])?);
    }
    let mut y = rw.create_one(forward, &operands)?;
    if phases > 1 {
        y = interleave(rw, y, &axes, groups, each)?;
    }
    y = cut(rw, y, &axes)?;
    if let Some(b) = computed {
        y = rw.create_one(Add {}, &[y, b])?;
    }
    if !conv.channels_last {
        y = transpose(rw, y, [0, 1 + rank].into_iter().chain(1..1 + rank))?;
    }
    rw.replace(op, &[y]);
    Ok(true)
}

/// The spatial axes and the number of groups, where what must be known of extents is.
fn axes(g: &of_ir::Graph, conv: &ConvTranspose, x: ValueId, w: ValueId) -> Option<(Vec<Axis>, usize)> {
    let shape = |v: ValueId| g.ty(v).as_tensor()?.shape.clone();
    let input = shape(x)?;
    // A window does not fit into nothing, of which there is a transposed convolution all the same.
    if input.iter().any(|d| d.as_const() == Some(0)) {
        return None;
    }
    let all = conv.geometry(&input, &shape(w)?).ok()?;
    let o = &all.windows;
    let axis = |i: usize| {
        let (stride, dilation, kernel) = (o.strides[i], o.dilations[i], o.kernel[i]);
        // How many outputs there are beyond a stride for each input.
        let first = o.pads_begin[i].as_const()?;
        let beyond = (&(&o.input[i] + &o.pads_begin[i]) - &(&o.output[i] * &Dim::from(stride))).as_const()?;
        let s = i64::try_from(stride).ok()?;
        let after = (beyond + s - 1).div_euclid(s).max(0);
        Some(Axis {
            stride,
            dilation,
            kernel,
            taps: ((kernel - 1) * dilation + 1).div_ceil(stride),
            after: usize::try_from(after).ok()?,
            cut: (first, after * s - beyond),
        })
    };
    Some(((0..o.kernel.len()).map(axis).collect::<Option<Vec<_>>>()?, all.group))
}

/// The filters `[group phases Cout/group, Cin/group, taps…]` of `w`, which is `[Cin, Cout/group, kernel…]`.
fn weights(w: &Tensor, axes: &[Axis], groups: usize) -> Option<Tensor> {
    let values = w.as_slice::<f32>()?;
    let (cin, each) = (w.dims()[0] / groups, w.dims()[1]);
    let strides: Vec<usize> = axes.iter().map(|a| a.stride).collect();
    let taps: Vec<usize> = axes.iter().map(|a| a.taps).collect();
    let points: usize = axes.iter().map(|a| a.kernel).product();
    let mut out = Vec::new();
    for group in 0..groups {
        for phase in places(&strides) {
            for channel in 0..each {
                for input in 0..cin {
                    let from = &values[((group * cin + input) * each + channel) * points..][..points];
                    out.extend(places(&taps).map(|tap| {
                        let axis = |at: usize, (i, a): (usize, &Axis)| Some(at * a.kernel + a.place(tap[i], phase[i])?);
                        axes.iter().enumerate().try_fold(0, axis).map_or(0.0, |at| from[at])
                    }));
                }
            }
        }
    }
    let dims = [&[groups * strides.iter().product::<usize>() * each, cin], taps.as_slice()].concat();
    Tensor::from_slice(&dims, &out).ok()
}

/// All places in a box, row-major.
fn places(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<'_> {
    (0..dims.iter().product::<usize>()).map(move |mut n| {
        let mut at = vec![0; dims.len()];
        for (a, d) in at.iter_mut().zip(dims).rev() {
            (*a, n) = (n % d, n / d);
        }
        at
    })
}

/// `[N, M…, group phases each]` to `[N, M*stride…, group each]`.
fn interleave(
    rw: &mut Rewriter<'_>,
    y: ValueId,
    axes: &[Axis],
    groups: usize,
    each: usize,
) -> Result<ValueId, Diagnostic> {
    let rank = axes.len();
    let strides: Vec<i64> = axes.iter().map(|a| a.stride as i64).collect();
    // An extent of 0 is that of the operand.
    let mut apart = vec![0; 1 + rank];
    apart.push(groups as i64);
    apart.extend(&strides);
    apart.push(each as i64);
    let apart = ints(rw, &apart)?;
    let parts = rw.create_one(Reshape { allowzero: false }, &[y, apart])?;
    let pairs = (0..rank).flat_map(|i| [1 + i, 2 + rank + i]);
    let parts = transpose(rw, parts, std::iter::once(0).chain(pairs).chain([1 + rank, 2 + 2 * rank]))?;
    let spatial = rw.create_one(ShapeOf { start: Some(1), end: Some(1 + rank as i64) }, &[y])?;
    let strides = ints(rw, &strides)?;
    let image = rw.create_one(Mul {}, &[spatial, strides])?;
    let samples = rw.create_one(ShapeOf { start: Some(0), end: Some(1) }, &[y])?;
    let channels = ints(rw, &[(groups * each) as i64])?;
    let to = rw.create_one(Concat { axis: 0 }, &[samples, image, channels])?;
    rw.create_one(Reshape { allowzero: true }, &[parts, to])
}

/// The outputs that are wanted.
fn cut(rw: &mut Rewriter<'_>, y: ValueId, axes: &[Axis]) -> Result<ValueId, Diagnostic> {
    let (mut starts, mut ends, mut which) = (Vec::new(), Vec::new(), Vec::new());
    for (i, axis) in axes.iter().enumerate().filter(|(_, a)| a.cut != (0, 0)) {
        starts.push(axis.cut.0);
        ends.push(if axis.cut.1 == 0 { i64::MAX } else { -axis.cut.1 });
        which.push(1 + i as i64);
    }
    if which.is_empty() {
        return Ok(y);
    }
    let (starts, ends, which) = (ints(rw, &starts)?, ints(rw, &ends)?, ints(rw, &which)?);
    let steps = rw.create_one(NoneValue {}, &[])?;
    rw.create_one(Slice {}, &[y, starts, ends, which, steps])
}

fn ints(rw: &mut Rewriter<'_>, numbers: &[i64]) -> Result<ValueId, Diagnostic> {
    rw.create_one(Constant { value: Tensor::from_i64s(numbers) }, &[])
}

fn transpose(rw: &mut Rewriter<'_>, x: ValueId, perm: impl Iterator<Item = usize>) -> Result<ValueId, Diagnostic> {
    rw.create_one(Transpose { perm: Some(perm.map(|a| a as i64).collect()) }, &[x])
}
