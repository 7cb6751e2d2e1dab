//! The gradient of a depthwise convolution for its weights.

use crate::isa::L2_BYTES;
use crate::kernel::extent::Extent;
use crate::kernel::window::WindowAxis;

/// Sums products of the convolution's input `[N, H, W, C]`, the first argument, and the gradient of its result, the second, for each
/// element of the kernel. The result is `[parts, taps, C]`; all are f32.
#[derive(Clone, PartialEq, Debug)]
pub struct DepthwiseWeightGradient {
    /// N.
    pub n: Extent,
    /// Lines.
    pub h: WindowAxis,
    /// Points of a line.
    pub w: WindowAxis,
    /// C.
    pub c: Extent,
    /// The extents of the gradient, and those of the result, which must be the same.
    pub gradient: Vec<(Extent, Extent)>,
    /// The lines of all gradients are divided into so many parts.
    pub parts: usize,
}

/// The most parts: their results are written and read once more.
const MAX_PARTS: usize = 256;

impl DepthwiseWeightGradient {
    /// Elements of the kernel.
    pub fn taps(&self) -> usize {
        self.h.kernel * self.w.kernel
    }

    /// Lines of the gradients of all samples.
    pub fn lines(&self) -> Extent {
        &self.n * &self.h.output
    }

    /// A good number of parts: each reads what fits half of the L2 cache, since all channels of a part are read after one another.
    pub fn best_parts(&self) -> usize {
        let line = |w: &Extent| w.size_hint() * self.c.size_hint() * 4;
        let bytes = line(&self.w.output) + self.h.stride * line(&self.w.input);
        let lines = self.lines().size_hint();
        (lines * bytes).div_ceil(L2_BYTES / 2).clamp(1, MAX_PARTS.min(lines.max(1)))
    }
}
