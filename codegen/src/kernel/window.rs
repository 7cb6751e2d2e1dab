//! Sliding windows over `[N, H, W, C]`: pools and depthwise convolutions.

use of_ir::{DType, Dim};
use of_ops::nn::Windows;

use crate::isa::Isa;
use crate::kernel::extent::Extent;

/// The operation on a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowKind {
    /// The largest element.
    Max,
    /// The sum divided by a number of elements.
    Mean(Divisor),
    /// The sum of products with weights `[taps, C]`, the second argument, rows padded to whole vectors. For bytes, the weights
    /// are those of [`pack_depthwise_vnni`], the sum is i32, and every window is inside the input.
    Depthwise,
    /// The sum of products within groups of channels with weights that [`pack_groups`] packs, the second argument.
    Grouped(ChannelGroups),
}

/// Groups of channels that a convolution keeps apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelGroups {
    /// Input channels of a group.
    pub inputs: usize,
    /// Output channels of a group.
    pub outputs: usize,
}

impl ChannelGroups {
    /// Whether a vector of output channels holds whole groups, and a vector their inputs: then lanes of the input are permuted and
    /// multiplied. Groups of a vector and more are better products, whose columns fill vectors.
    pub fn fit(self, lanes: usize) -> bool {
        let ChannelGroups { inputs, outputs } = self;
        (1..=outputs).contains(&inputs) && (2..lanes).contains(&outputs) && lanes.is_multiple_of(outputs)
    }

    /// Input channels of so many output channels.
    pub fn inputs_of(self, outputs: usize) -> usize {
        outputs / self.outputs * self.inputs
    }
}

/// The number of elements by which a mean divides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Divisor {
    /// All elements of the window.
    Window,
    /// Those inside the input.
    Inside,
    /// Those inside the input and its padding.
    Padded,
}

/// Maximum taps along a line for adjacent points to be computed together.
pub const MAX_BLOCK_TAPS: usize = 11;

/// A window over one image axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WindowAxis {
    /// Extent of the input.
    pub input: Extent,
    /// Extent of the output.
    pub output: Extent,
    /// Taps.
    pub kernel: usize,
    /// Stride of the windows.
    pub stride: usize,
    /// Dilation of the taps.
    pub dilation: usize,
    /// Padding before the input.
    pub pad: Extent,
    /// Padding after the input.
    pub pad_end: Extent,
}

impl WindowAxis {
    /// Image axis `i` of windows.
    pub fn of(w: &Windows<Dim>, i: usize) -> WindowAxis {
        WindowAxis {
            input: Extent::from(&w.input[i]),
            output: Extent::from(&w.output[i]),
            kernel: w.kernel[i],
            stride: w.strides[i],
            dilation: w.dilations[i],
            pad: Extent::from(&w.pads_begin[i]),
            pad_end: Extent::from(&w.pads_end[i]),
        }
    }
}

/// Two image axes; a single axis gets a second one of extent 1.
///
/// # Errors
/// When there are more than two.
pub fn image_axes(w: &Windows<Dim>) -> Result<(WindowAxis, WindowAxis), String> {
    let axis = |i: usize| WindowAxis::of(w, i);
    let (one, zero) = (|| Extent::from(1usize), Extent::from(0usize));
    match w.input.len() {
        1 => {
            let pad_end = zero.clone();
            Ok((
                WindowAxis { input: one(), output: one(), kernel: 1, stride: 1, dilation: 1, pad: zero, pad_end },
                axis(0),
            ))
        }
        2 => Ok((axis(0), axis(1))),
        n => Err(format!("{n} image axes have no native code")),
    }
}

/// A sliding window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    /// Samples.
    pub n: Extent,
    /// Lines.
    pub h: WindowAxis,
    /// Points of a line.
    pub w: WindowAxis,
    /// Channels of the output, and of the input but for groups.
    pub c: usize,
    /// The operation.
    pub kind: WindowKind,
    /// Element type of the input: f32, or bytes, which [`WindowKind::Mean`] and [`WindowKind::Grouped`] do not take.
    pub dtype: DType,
}

impl Window {
    /// Channels of the input.
    pub fn input_channels(&self) -> usize {
        match self.kind {
            WindowKind::Grouped(groups) => groups.inputs_of(self.c),
            _ => self.c,
        }
    }

    /// Whether weights are the second argument.
    pub fn has_weights(&self) -> bool {
        matches!(self.kind, WindowKind::Depthwise | WindowKind::Grouped(_))
    }
}

/// Packs weights `[C, inputs, taps]` as `[taps, inputs, C]`, rows of `C` padded to whole vectors. Then, for each input of a group,
/// the lanes of a vector of inputs that the lanes of the outputs read, as the bits of i32.
pub fn pack_groups(w: &[f32], spec: &Window, groups: ChannelGroups, lanes: usize) -> Vec<f32> {
    let ChannelGroups { inputs, outputs } = groups;
    let (taps, padded) = (spec.h.kernel * spec.w.kernel, spec.c.next_multiple_of(lanes));
    let mut out = vec![0f32; taps * inputs * padded];
    for (i, value) in w.iter().enumerate() {
        let (channel, input, tap) = (i / (inputs * taps), i / taps % inputs, i % taps);
        out[(tap * inputs + input) * padded + channel] = *value;
    }
    let lane = |input: usize, lane: usize| f32::from_bits((lane / outputs * inputs + input) as u32);
    out.extend((0..inputs).flat_map(|input| (0..lanes).map(move |l| lane(input, l))));
    out
}

/// Packs byte weights `[C, rows, columns]` as `[rows / 4, columns, C]`: those of four rows in the bytes of one number, rows of
/// `C` padded to whole vectors. Signed input is biased by 128; the negative correction precedes the weights.
pub fn pack_depthwise_vnni(w: &[i8], spec: &Window, isa: &Isa) -> Vec<i32> {
    let (rows, columns) = (spec.h.kernel, spec.w.kernel);
    let padded = spec.c.next_multiple_of(isa.lanes);
    let starts = usize::from(spec.dtype == DType::I8);
    let mut out = vec![0i32; (starts + rows.div_ceil(4) * columns) * padded];
    for (channel, filter) in w.chunks_exact(rows * columns).enumerate() {
        for (tap, x) in filter.iter().enumerate() {
            let (row, column) = (tap / columns, tap % columns);
            let byte = u32::from(*x as u8) << (8 * (row % 4));
            out[(starts + row / 4 * columns + column) * padded + channel] |= byte as i32;
            if starts > 0 {
                out[channel] -= 128 * i32::from(*x);
            }
        }
    }
    out
}
