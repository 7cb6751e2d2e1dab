//! Convolutions as cuDNN calls with fused epilogues: which ones qualify, and how a plan encodes a call.
//!
//! A library call replaces a whole fused group or nothing. A convolution qualifies if its operands and result have one type
//! (f32, f16 or bf16), all extents are numbers, and its epilogue is `activation(scale * sums + beta * residual + bias)`. The
//! library documents this pattern, and has engines for it whatever the extents, strides, dilations, pads and groups are. It
//! scales sums only where nothing else is fused, or together with an added tensor, and adds a bias whenever it does anything
//! else. Engines for GELU and SiLU are compiled when the plan is loaded: such calls need tensor cores, and channels that fill
//! whole words of [`ACCESS_BYTES`] bytes. 16-bit floats are rounded once, at the end.

use of_ir::DType;

use crate::isa::Isa;
use crate::kernel::body::Body;
use crate::kernel::extent::Extent;
use crate::kernel::float::is_half;
use crate::kernel::window;
use crate::vendor_libraries::epilogue::{Activation, Epilogue};
use crate::vendor_libraries::words::{FloatPrecision, Words, kinds};

/// Bytes of an access by engines that are compiled at run time.
const ACCESS_BYTES: u64 = 16;

/// One of the two axes of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvolutionAxis {
    /// Extent of the input.
    pub input: u64,
    /// Taps of the filters.
    pub kernel: u64,
    /// Stride of the windows.
    pub stride: u64,
    /// Dilation of the taps.
    pub dilation: u64,
    /// Zero padding before the input.
    pub before: u64,
    /// Zero padding after the input.
    pub after: u64,
}

impl ConvolutionAxis {
    /// Extent of the result; `None` where no window fits or the numbers are too large.
    pub fn output(&self) -> Option<u64> {
        let padded = self.input.checked_add(self.before)?.checked_add(self.after)?;
        let reach = self.kernel.checked_sub(1)?.checked_mul(self.dilation)?.checked_add(1)?;
        (self.stride > 0 && self.dilation > 0 && self.input > 0)
            .then(|| padded.checked_sub(reach))?
            .map(|rest| rest / self.stride + 1)
    }
}

/// A call: `activation(scale * sums + beta * residual + bias)`, channels last. Its arguments are the images `[samples, height,
/// width, inputs]`, the filters `[outputs, height, width, inputs / groups]`, `residual` (as the result) and
/// `bias` if present, and the result `[samples, height, width, outputs]`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Convolution {
    /// Type of all elements.
    pub dtype: DType,
    /// How f32 is multiplied.
    pub precision: FloatPrecision,
    /// Images.
    pub samples: u64,
    /// Channels of the images.
    pub inputs: u64,
    /// Channels of the result.
    pub outputs: u64,
    /// Groups of channels with separate filters.
    pub groups: u64,
    /// Height and width.
    pub axes: [ConvolutionAxis; 2],
    /// Factor of the sums.
    pub scale: f32,
    /// Factor of the added tensor, which has the result's layout, if there is one.
    pub residual: Option<f32>,
    /// Whether a bias is added to each channel.
    pub bias: bool,
    /// The activation at the end.
    pub activation: Activation,
}

/// A channels-last convolution that may qualify as a call.
pub struct ConvolutionShape<'a> {
    /// Type of its operands.
    pub dtype: DType,
    /// Images.
    pub samples: &'a Extent,
    /// Height and width.
    pub axes: [&'a window::WindowAxis; 2],
    /// Channels of the images and of the result.
    pub channels: (usize, usize),
    /// Groups of channels.
    pub groups: usize,
}

/// A convolution with its epilogue as a call, and the loads of the body for the added tensor and the bias. Loads of the body
/// have a stride for each axis of the result, whose strides are `out`. The call has a bias wherever it adds a tensor or ends in
/// an activation: if the body has none, the third value is the bias of every channel.
///
/// # Errors
/// The reason why it does not qualify, in one sentence.
pub fn convolution(
    shape: &ConvolutionShape<'_>,
    body: &Body,
    out: &[Extent],
    isa: &Isa,
) -> Result<(Convolution, Vec<usize>, f64), String> {
    let dtype = shape.dtype;
    if dtype != DType::F32 && !is_half(dtype) {
        return Err("it multiplies bytes".into());
    }
    let precision = match FloatPrecision::of(isa, dtype)? {
        FloatPrecision::Bf16 | FloatPrecision::F16 => {
            return Err("the library has no products of f32 rounded to 16 bits".into());
        }
        precision => precision,
    };
    let number = |e: &Extent| e.number().map(|n| n as u64).ok_or("its extents are not known before the run");
    let (h, w) = (axis(shape.axes[0])?, axis(shape.axes[1])?);
    let (inputs, outputs) = (shape.channels.0 as u64, shape.channels.1 as u64);
    let samples = number(shape.samples)?;
    let space = [samples, h.output().unwrap_or(0), w.output().unwrap_or(0), outputs];
    // The stride of an axis of extent 1 does not matter.
    let walks = |l: usize, steps: [bool; 4]| {
        let strides = &body.loads[l].strides;
        strides.len() == 4
            && (0..4).filter(|i| space[*i] > 1).all(|i| if steps[i] { strides[i] == out[i] } else { strides[i].is(0) })
    };
    let is_line = |l: usize| Ok(walks(l, [false, false, false, true]));
    let is_alike = |l: usize| Ok(walks(l, [true; 4]));
    let e = Epilogue::of(body, dtype, &is_line, &is_alike)?;
    if e.bias.is_some() && e.number.is_some() {
        return Err("its epilogue adds both a row vector and a constant".into());
    }
    let more = e.bias.is_some() || e.number.is_some() || e.activation != Activation::None;
    if e.scale != 1.0 && more && e.residual.is_none() {
        return Err("the library scales sums only in calls that add a tensor".into());
    }
    if !matches!(e.activation, Activation::None | Activation::Relu) {
        let tensor_cores = is_half(dtype) || precision == FloatPrecision::Tf32;
        let word = ACCESS_BYTES * 8 / dtype.bits().map_or(32, |b| b as u64);
        if !tensor_cores || shape.groups != 1 || !inputs.is_multiple_of(word) || !outputs.is_multiple_of(word) {
            return Err(format!(
                "the library has GELU and SiLU on tensor cores alone, for one group of channels in multiples of {word}"
            ));
        }
        if e.scale != 1.0 || e.residual.is_some_and(|(_, factor)| factor != 1.0) {
            return Err("the library does not scale sums before a GELU or a SiLU".into());
        }
    }
    let convolution = Convolution {
        dtype,
        precision,
        samples,
        inputs,
        outputs,
        groups: shape.groups as u64,
        axes: [h, w],
        scale: e.scale as f32,
        residual: e.residual.map(|(_, factor)| factor as f32),
        bias: more || e.residual.is_some(),
        activation: e.activation,
    };
    convolution.spans().ok_or("it has no elements, or too many")?;
    Ok((convolution, e.added_loads(), e.number.unwrap_or(0.0)))
}

/// An axis in numbers. The padding is symmetric where the result stays the same: most engines require that.
fn axis(a: &window::WindowAxis) -> Result<ConvolutionAxis, String> {
    let number = |e: &Extent| e.number().map(|n| n as u64).ok_or("its extents are not known before the run");
    let (input, output, before) = (number(&a.input)?, number(&a.output)?, number(&a.pad)?);
    let (kernel, stride, dilation) = (a.kernel as u64, a.stride as u64, a.dilation as u64);
    let alike = ConvolutionAxis { input, kernel, stride, dilation, before, after: before };
    if alike.output() == Some(output) {
        return Ok(alike);
    }
    let reach = output.saturating_sub(1) * stride + kernel.saturating_sub(1) * dilation + 1;
    let own = ConvolutionAxis { after: reach.saturating_sub(input + before), ..alike };
    if own.output() == Some(output) { Ok(own) } else { Err("its windows do not fit its input".into()) }
}

impl Convolution {
    /// Number of elements that each argument spans; `None` where the numbers are not those of a convolution.
    pub fn spans(&self) -> Option<Vec<u64>> {
        let product = |list: &[u64]| list.iter().try_fold(1u64, |n, x| n.checked_mul(*x)).filter(|n| *n > 0);
        let whole =
            self.groups > 0 && self.inputs.is_multiple_of(self.groups) && self.outputs.is_multiple_of(self.groups);
        let [h, w] = self.axes;
        let images = product(&[self.samples, h.input, w.input, self.inputs])?;
        let filters = product(&[self.outputs, h.kernel, w.kernel, self.inputs.checked_div(self.groups)?])?;
        let result = product(&[self.samples, h.output()?, w.output()?, self.outputs])?;
        let mut out = vec![images, filters];
        out.extend(self.residual.map(|_| result));
        out.extend(self.bias.then_some(self.outputs));
        out.push(result);
        // Fused calls have a bias; the library counts in signed numbers.
        let fused = self.residual.is_none() && self.activation == Activation::None || self.bias;
        (whole && fused && out.iter().all(|n| i64::try_from(*n).is_ok())).then_some(out)
    }

    /// The plan's encoding of the call.
    pub(super) fn words(&self) -> Vec<u64> {
        let mut words = kinds(self.dtype, self.precision, self.activation);
        words.extend([self.samples, self.inputs, self.outputs, self.groups]);
        for a in self.axes {
            words.extend([a.input, a.kernel, a.stride, a.dilation, a.before, a.after]);
        }
        let residual = self.residual.unwrap_or_default();
        words.extend([self.scale, residual].map(|x| u64::from(x.to_bits())));
        words.extend([self.residual.is_some(), self.bias].map(u64::from));
        words
    }

    /// The inverse of [`Convolution::words`].
    pub(super) fn of(words: &mut Words<'_>) -> Option<Convolution> {
        let (dtype, precision, activation) = words.kinds()?;
        let [samples, inputs, outputs, groups] = words.numbers()?;
        let mut axis = || {
            let [input, kernel, stride, dilation, before, after] = words.numbers()?;
            Some(ConvolutionAxis { input, kernel, stride, dilation, before, after })
        };
        let axes = [axis()?, axis()?];
        let (scale, residual) = (words.float()?, words.float()?);
        let residual = words.flag()?.then_some(residual);
        let bias = words.flag()?;
        Some(Convolution {
            dtype,
            precision,
            samples,
            inputs,
            outputs,
            groups,
            axes,
            scale,
            residual,
            bias,
            activation,
        })
    }
}
