//! A rule of `canonicalize` for convolutions whose windows are mostly in the padding or far apart: kernels that read a padded copy
//! of the input would allocate far more than they read.

use of_diag::Diagnostic;
use of_ir::{DType, Elements, OpError, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::list::as_op;
use of_ops::movement::{Gather, Pad};
use of_ops::nn::{Conv, ConvInteger};
use of_ops::structural::Constant;

use crate::matchers::dims;

/// A padded axis may be so many times as long as the input's without being far.
const FAR: i64 = 2;

/// A spatial axis of a convolution.
struct Axis {
    /// Its position in the input.
    at: usize,
    input: i64,
    output: i64,
    kernel: i64,
    stride: i64,
    dilation: i64,
    before: i64,
    after: i64,
}

impl Axis {
    /// The elements that windows read.
    fn read(&self) -> i64 {
        self.output * self.kernel
    }

    /// Whether a padded copy holds more than windows read.
    fn is_far(&self) -> bool {
        let padded = self.input + self.before + self.after;
        padded > FAR * self.input && padded > self.read()
    }

    /// The element that each tap of each window reads; padding is the element after the last.
    fn taps(&self) -> Vec<i64> {
        let tap = |i: i64| i / self.kernel * self.stride + i % self.kernel * self.dilation - self.before;
        (0..self.read()).map(|i| Some(tap(i)).filter(|x| (0..self.input).contains(x)).unwrap_or(self.input)).collect()
    }
}

/// conv(x) = conv(elements of x that its windows read), without padding and with windows side by side, along the axes where a
/// padded copy would be larger. An infinite weight times padding is NaN, as in every kernel that reads padding.
pub(super) fn far_windows(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let g = rw.graph();
    let integer = as_op::<ConvInteger>(g, op);
    let conv = match &integer {
        Some(ConvInteger { strides, pads, dilations, group, auto_pad, channels_last }) => Conv {
            strides: strides.clone(),
            pads: pads.clone(),
            dilations: dilations.clone(),
            group: *group,
            auto_pad: auto_pad.clone(),
            channels_last: *channels_last,
        },
        None => match as_op::<Conv>(g, op) {
            Some(conv) => conv,
            None => return Ok(false),
        },
    };
    let Some(axes) = axes(rw, op, &conv) else { return Ok(false) };
    let Some(x) = Some(g.op(op).operands[0]).filter(|_| axes.iter().any(Axis::is_far)) else { return Ok(false) };
    let Some(dtype) = g.ty(x).as_tensor().map(|t| t.dtype) else { return Ok(false) };
    let is_scalar = |v: ValueId| {
        g.ty(v).as_tensor().is_some_and(|t| t.dtype == dtype)
            && dims(g, v).is_some_and(|d| d.iter().product::<usize>() == 1)
    };
    let zero = match g.op(op).operands.get(2).filter(|_| integer.is_some()).filter(|v| *g.ty(**v) != Type::None) {
        Some(z) if !is_scalar(*z) => return Ok(false),
        other => other.copied(),
    };
    let rest = g.op(op).operands[1..].to_vec();
    rw.rewrite(op, &[]);
    let fill = match zero {
        Some(z) => crate::builders::reshape_to(rw, z, &[])?,
        None => number(rw, dtype)?,
    };
    let near = gathered(rw, x, fill, &axes)?;
    let operands = [&[near], rest.as_slice()].concat();
    let conv = side_by_side(conv, &axes);
    let y = match integer {
        Some(_) => {
            let Conv { strides, pads, dilations, group, auto_pad, channels_last } = conv;
            rw.create_one(ConvInteger { strides, pads, dilations, group, auto_pad, channels_last }, &operands)?
        }
        None => rw.create_one(conv, &operands)?,
    };
    rw.replace(op, &[y]);
    Ok(true)
}

/// The spatial axes, where their extents are known.
fn axes(rw: &Rewriter<'_>, op: OpId, conv: &Conv) -> Option<Vec<Axis>> {
    let g = rw.graph();
    let (x, w) = (g.op(op).operands[0], g.op(op).operands[1]);
    let shape = |v: ValueId| g.ty(v).as_tensor()?.shape.clone();
    let windows = conv.geometry(&shape(x)?, &shape(w)?).ok()?.windows;
    let first = if conv.channels_last { 1 } else { 2 };
    let one = |i: usize| {
        let whole = |n: usize| i64::try_from(n).ok();
        Some(Axis {
            at: first + i,
            input: windows.input[i].as_const()?,
            output: windows.output[i].as_const()?,
            kernel: whole(windows.kernel[i])?,
            stride: whole(windows.strides[i])?,
            dilation: whole(windows.dilations[i])?,
            before: windows.pads_begin[i].as_const()?,
            after: windows.pads_end[i].as_const()?,
        })
    };
    (0..windows.input.len()).map(one).collect()
}

/// Zero, as a scalar.
fn number(rw: &mut Rewriter<'_>, dtype: DType) -> Result<ValueId, Diagnostic> {
    let zero = if dtype.is_float() { Elements::Float(vec![0.0]) } else { Elements::Int(vec![0]) };
    let value = Tensor::from_elements(dtype, Vec::new(), zero)
        .map_err(|e| OpError::from(e).at("of.conv", &of_diag::Location::Unknown))?;
    rw.create_one(Constant { value }, &[])
}

/// The elements that windows read along far axes. Axes that become shorter come first.
fn gathered(rw: &mut Rewriter<'_>, x: ValueId, fill: ValueId, axes: &[Axis]) -> Result<ValueId, Diagnostic> {
    let rank = axes.len() + 2;
    let mut far: Vec<&Axis> = axes.iter().filter(|a| a.is_far()).collect();
    of_ir::sort::by_key(&mut far, |a| a.read() - a.input);
    let mut y = x;
    for axis in far {
        let mut pads = vec![0; 2 * rank];
        pads[rank + axis.at] = 1;
        let pads = Constant::ints(rw, &pads)?;
        let longer = rw.create_one(Pad { mode: "constant".into() }, &[y, pads, fill])?;
        let taps = Constant::ints(rw, &axis.taps())?;
        y = rw.create_one(Gather { axis: axis.at as i64 }, &[longer, taps])?;
    }
    Ok(y)
}

/// The convolution whose windows lie side by side along far axes.
fn side_by_side(conv: Conv, axes: &[Axis]) -> Conv {
    let each = |near: fn(&Axis) -> i64, far: fn(&Axis) -> i64| -> Vec<i64> {
        axes.iter().map(|a| if a.is_far() { far(a) } else { near(a) }).collect()
    };
    Conv {
        strides: each(|a| a.stride, |a| a.kernel),
        pads: [each(|a| a.before, |_| 0), each(|a| a.after, |_| 0)].concat(),
        dilations: each(|a| a.dilation, |_| 1),
        auto_pad: "NOTSET".into(),
        ..conv
    }
}
