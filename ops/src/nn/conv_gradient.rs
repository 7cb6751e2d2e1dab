//! Gradients of convolutions and of the average pool, as convolutions.

use of_diag::Diagnostic;
use of_ir::{Dim, Elements, OpError, Tensor, ValueId};

use super::conv::{Conv, ConvGeometry};
use super::conv_transpose::ConvTranspose;
use super::depthwise_weight_gradient::DepthwiseWeightGradient;
use super::pool::PoolGeometry;
use super::window::{Windows, fixed, notset};
use crate::GradCx;
use crate::build::{Build, BuildResult, diagnostic};
use crate::contraction::MatMul;

type Gradients = Option<Result<Vec<Option<ValueId>>, Diagnostic>>;

/// What the rules need: numbers for everything but the batch.
struct Fixed {
    windows: Windows<usize>,
    cin: usize,
    cout: usize,
    group: usize,
}

impl Fixed {
    /// `None` where a spatial or channel dimension is a symbol.
    fn new(g: &ConvGeometry<Dim>) -> Option<Fixed> {
        let c = fixed(&[g.cin.clone(), g.cout.clone()])?;
        Some(Fixed { windows: g.windows.fixed()?, cin: c[0], cout: c[1], group: g.group })
    }
}

fn ints(list: &[usize]) -> Vec<i64> {
    list.iter().map(|v| *v as i64).collect()
}

/// The convolution over these windows.
fn forward(w: &Windows<usize>, group: usize) -> Conv {
    Conv {
        strides: ints(&w.strides),
        pads: ints(&[w.pads_begin.as_slice(), &w.pads_end].concat()),
        dilations: ints(&w.dilations),
        group: group as i64,
        auto_pad: notset(),
        channels_last: false,
    }
}

/// The transposed convolution that gives exactly the windows' input.
fn backward(w: &Windows<usize>, group: usize) -> ConvTranspose {
    let (mut end, mut extra) = (Vec::new(), Vec::new());
    for a in 0..w.input.len() {
        // What the last window reaches, against where the input ends.
        let reach = w.strides[a] * w.output[a].saturating_sub(1) + w.dilations[a] * (w.kernel[a] - 1) + 1;
        let ends = w.pads_begin[a] + w.input[a];
        end.push(reach.saturating_sub(ends));
        extra.push(ends.saturating_sub(reach));
    }
    ConvTranspose {
        strides: ints(&w.strides),
        pads: ints(&[w.pads_begin.as_slice(), &end].concat()),
        dilations: ints(&w.dilations),
        output_padding: ints(&extra),
        output_shape: vec![],
        group: group as i64,
        auto_pad: notset(),
        channels_last: false,
    }
}

/// Gradient of a kernel `[Cout, Cin / group, kernel…]` that maps `big` (`[N, Cin, input…]`) to `small`
/// (`[N, Cout, output…]`).
///
/// It is the convolution of `big` by `small`, with batch and channels swapped and strides and dilations swapped: position
/// `k` of its result sums `big[p * stride + k * dilation - pad] * small[p]` over `p`.
fn kernel(b: &mut Build<'_, '_>, f: &Fixed, big: ValueId, small: ValueId) -> BuildResult {
    let w = &f.windows;
    let rank = w.input.len();
    if f.group == 1 && w.kernel.iter().all(|k| *k == 1) && w.pads_begin.iter().chain(&w.pads_end).all(|p| *p == 0) {
        return pointwise_kernel(b, f, big, small);
    }
    if f.group > 1 && f.cin == f.group && f.cout == f.group && rank <= 2 {
        let op = DepthwiseWeightGradient {
            kernel: ints(&w.kernel),
            strides: ints(&w.strides),
            pads: ints(&[w.pads_begin.as_slice(), &w.pads_end].concat()),
            dilations: ints(&w.dilations),
            channels_last: false,
        };
        // `[kernel…, C]` becomes `[C, 1, kernel…]`.
        let y = b.op(op, &[big, small])?;
        let y = b.transpose(y, &[&[rank], (0..rank).collect::<Vec<_>>().as_slice()].concat())?;
        return b.reshape(y, &[&[0, 1], ints(&w.kernel).as_slice()].concat());
    }
    convolved_kernel(b, f, big, small)
}

/// [`kernel`] as a convolution.
fn convolved_kernel(b: &mut Build<'_, '_>, f: &Fixed, big: ValueId, small: ValueId) -> BuildResult {
    let w = &f.windows;
    let rank = w.input.len();
    let rest: Vec<usize> = (2..rank + 2).collect();
    let swap = [&[1, 0], rest.as_slice()].concat();
    let swapped = if f.group == 1 {
        b.transpose(big, &swap)?
    } else {
        // [N, G * C, …] becomes [C, G * N, …], so that each group of samples pairs with its group of outputs.
        let spatial = ints(&w.input);
        let per_group = f.cin / f.group;
        let parts = b.reshape(big, &[&[0, f.group as i64, per_group as i64], spatial.as_slice()].concat())?;
        let order = [&[2, 1, 0], (3..rank + 3).collect::<Vec<_>>().as_slice()].concat();
        let parts = b.transpose(parts, &order)?;
        b.reshape(parts, &[&[per_group as i64, -1], spatial.as_slice()].concat())?
    };
    let filter = b.transpose(small, &swap)?;
    let pads = [w.pads_begin.as_slice(), &w.pads_end].concat();
    let conv = Conv {
        strides: ints(&w.dilations),
        pads: ints(&pads),
        dilations: ints(&w.strides),
        group: f.group as i64,
        auto_pad: notset(),
        channels_last: false,
    };
    let y = b.op(conv, &[swapped, filter])?;
    // Input behind the last window gives positions behind the last kernel element.
    let y = b.head(y, &rest, &w.kernel)?;
    b.transpose(y, &swap)
}

/// `of.depthwise_weight_gradient` of channels-first operands as a convolution.
pub(super) fn depthwise_kernel(
    b: &mut Build<'_, '_>,
    op: &DepthwiseWeightGradient,
    x: ValueId,
    g: ValueId,
) -> BuildResult {
    let unknown = || diagnostic(OpError::shape("its image and channels must be numbers"));
    let shape = b.shape(x).ok_or_else(unknown)?;
    let geometry = op.geometry(&shape).map_err(diagnostic)?;
    let windows = geometry.windows.fixed().ok_or_else(unknown)?;
    let c = geometry.c.as_const().and_then(|c| usize::try_from(c).ok()).ok_or_else(unknown)?;
    let y = convolved_kernel(b, &Fixed { windows, cin: c, cout: c, group: c }, x, g)?;
    let y = b.reshape(y, &[&[c as i64], op.kernel.as_slice()].concat())?;
    let rank = op.kernel.len();
    b.transpose(y, &[(1..=rank).collect::<Vec<_>>().as_slice(), &[0]].concat())
}

/// [`kernel`] of a convolution by single elements without padding: a product over all positions of all samples.
fn pointwise_kernel(b: &mut Build<'_, '_>, f: &Fixed, big: ValueId, small: ValueId) -> BuildResult {
    let w = &f.windows;
    let rank = w.input.len();
    let spatial: Vec<usize> = (2..rank + 2).collect();
    let x = if w.strides.iter().all(|s| *s == 1) { big } else { b.every(big, &spatial, &w.output, &w.strides)? };
    // [N, C, …] becomes [N, …, C], and [N, K, …] becomes [K, N, …].
    let channels_last = [&[0], spatial.as_slice(), &[1]].concat();
    let x = b.transpose(x, &channels_last)?;
    let x = b.reshape(x, &[-1, f.cin as i64])?;
    let y = b.transpose(small, &[&[1, 0], spatial.as_slice()].concat())?;
    let y = b.reshape(y, &[f.cout as i64, -1])?;
    let product = b.op(MatMul {}, &[y, x])?;
    b.reshape(product, &[&[f.cout as i64, f.cin as i64], ints(&w.kernel).as_slice()].concat())
}

/// Gradient of a bias: the sum over everything but the channels.
fn bias(b: &mut Build<'_, '_>, operands: &[ValueId], g: ValueId) -> Result<Option<ValueId>, Diagnostic> {
    if b.given(operands, 2).is_none() {
        return Ok(None);
    }
    let axes: Vec<usize> = (0..b.rank(g)?).filter(|a| *a != 1).collect();
    Ok(Some(b.sum(g, &axes, false)?))
}

/// One entry an operand.
fn listed(operands: &[ValueId], x: ValueId, w: ValueId, bias: Option<ValueId>) -> Vec<Option<ValueId>> {
    [Some(x), Some(w), bias].into_iter().take(operands.len()).collect()
}

pub(super) fn conv(cx: &mut GradCx<'_, '_>, g: ValueId, geometry: &ConvGeometry<Dim>) -> Gradients {
    let f = Fixed::new(geometry)?;
    let operands = cx.operands;
    let mut b = Build::new(cx.rw);
    let mut run = || {
        let x = b.op(backward(&f.windows, f.group), &[g, operands[1]])?;
        let w = kernel(&mut b, &f, operands[0], g)?;
        let bias = bias(&mut b, operands, g)?;
        Ok(listed(operands, x, w, bias))
    };
    Some(run())
}

pub(super) fn conv_transpose(cx: &mut GradCx<'_, '_>, g: ValueId, geometry: &ConvGeometry<Dim>) -> Gradients {
    let mut f = Fixed::new(geometry)?;
    // The adjoint convolution has the channels of the result as its input; it must have as many
    // positions as this op has inputs, which padding at the end adjusts.
    (f.cin, f.cout) = (f.cout, f.cin);
    let w = &mut f.windows;
    for a in 0..w.input.len() {
        let reach = w.strides[a] * w.output[a].checked_sub(1)? + w.dilations[a] * (w.kernel[a] - 1) + 1;
        w.pads_end[a] = reach.saturating_sub(w.pads_begin[a] + w.input[a]);
        // More output padding than a stride would make further positions.
        if w.pads_begin[a] + w.input[a] >= reach + w.strides[a] {
            return None;
        }
    }
    let operands = cx.operands;
    let mut b = Build::new(cx.rw);
    let mut run = || {
        let x = b.op(forward(&f.windows, f.group), &[g, operands[1]])?;
        let w = kernel(&mut b, &f, g, operands[0])?;
        let bias = bias(&mut b, operands, g)?;
        Ok(listed(operands, x, w, bias))
    };
    Some(run())
}

/// Each gradient, divided by the number of elements that its window averaged, goes to all of them.
pub(super) fn avg_pool(cx: &mut GradCx<'_, '_>, g: ValueId, geometry: &PoolGeometry<Dim>, counts: &[f64]) -> Gradients {
    let spread = Spread::new(geometry)?;
    let mut b = Build::new(cx.rw);
    let mut run = || {
        let share = counts.iter().map(|n| 1.0 / n.max(1.0)).collect();
        let dims = [&[1, 1], spread.windows.output.as_slice()].concat();
        let share =
            Tensor::from_elements(b.dtype(g), dims, Elements::Float(share)).map_err(|e| diagnostic(e.into()))?;
        let share = b.constant(share)?;
        let each = b.mul(g, share)?;
        Ok(vec![Some(spread.to_windows(&mut b, each)?)])
    };
    Some(run())
}

/// `[N, C, image…]` cut into windows, `[N, C * kernel…, positions]`: a convolution each of whose filters has a single 1.
pub(super) fn columns(b: &mut Build<'_, '_>, w: &Windows<usize>, channels: usize, image: ValueId) -> BuildResult {
    let area: usize = w.kernel.iter().product();
    let dims = [&[channels * area, 1], w.kernel.as_slice()].concat();
    let picks = (0..channels * area * area).map(|i| f64::from(u8::from(i / area % area == i % area))).collect();
    let picks =
        Tensor::from_elements(b.dtype(image), dims, Elements::Float(picks)).map_err(|e| diagnostic(e.into()))?;
    let picks = b.constant(picks)?;
    let y = b.op(forward(w, channels.max(1)), &[image, picks])?;
    b.reshape(y, &[0, (channels * area) as i64, w.output.iter().product::<usize>() as i64])
}

/// The transpose of summing windows.
pub(super) struct Spread {
    windows: Windows<usize>,
    channels: usize,
}

impl Spread {
    /// `None` where a spatial axis or the number of channels is a symbol.
    pub fn new(geometry: &PoolGeometry<Dim>) -> Option<Spread> {
        let channels = geometry.c.as_const().and_then(|c| usize::try_from(c).ok())?;
        Some(Spread { windows: geometry.windows.fixed()?, channels })
    }

    /// Each number, one a window, is added to all elements of its window.
    pub fn to_windows(&self, b: &mut Build<'_, '_>, each: ValueId) -> BuildResult {
        let dims = [&[self.channels, 1], self.windows.kernel.as_slice()].concat();
        let ones = Elements::Float(vec![1.0; dims.iter().product()]);
        let ones = Tensor::from_elements(b.dtype(each), dims, ones).map_err(|e| diagnostic(e.into()))?;
        let ones = b.constant(ones)?;
        b.op(backward(&self.windows, self.channels.max(1)), &[each, ones])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_pool_gradient_has_the_input_size() {
        for (input, pads) in [(7i64, (0, 0)), (8, (1, 1)), (6, (0, 2))] {
            let w = crate::nn::WindowAttrs {
                strides: &[3],
                pads: &[pads.0, pads.1],
                dilations: &[2],
                auto_pad: "NOTSET",
                ceil: false,
            };
            let w = w.windows(&[Dim::from(input)], &[2]).unwrap().fixed().unwrap();
            let x = [1, 1, w.output[0] as i64].map(Dim::from);
            let y = backward(&w, 1).geometry(&x, &[1i64, 1, 2].map(Dim::from)).unwrap();
            assert_eq!(y.windows.input[0], Dim::from(input));
        }
    }
}
