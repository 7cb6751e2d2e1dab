//! The gradient of a max pool.

use crate::kernel::extent::Extent;
use crate::kernel::window::WindowAxis;

/// Adds the gradient of each window where its first maximum is. Arguments are the pool's input `[N, spatial…, C]`, the gradient of its
/// result, and the gradient of the input; all are f32.
#[derive(Clone, PartialEq, Debug)]
pub struct MaxPoolGradient {
    /// N.
    pub n: Extent,
    /// The windows along the image axes.
    pub windows: Vec<WindowAxis>,
    /// C.
    pub c: Extent,
    /// The extents of the gradient, and those of the result, which must be the same.
    pub gradient: Vec<(Extent, Extent)>,
}

impl MaxPoolGradient {
    /// Distances of neighbours along each image axis of the input, in elements.
    pub fn steps(&self) -> Vec<Extent> {
        steps(self.windows.iter().map(|w| &w.input), &self.c)
    }

    /// The same of the pool's result.
    pub fn result_steps(&self) -> Vec<Extent> {
        steps(self.windows.iter().map(|w| &w.output), &self.c)
    }

    /// Elements of a sample of the input.
    pub fn sample(&self) -> Extent {
        self.windows.iter().map(|w| &w.input).product::<Extent>() * &self.c
    }

    /// Elements of a sample of the pool's result.
    pub fn result_sample(&self) -> Extent {
        self.windows.iter().map(|w| &w.output).product::<Extent>() * &self.c
    }

    /// Whether no element is in two windows.
    pub fn is_disjoint(&self) -> bool {
        self.windows.iter().all(|w| w.stride > (w.kernel - 1) * w.dilation)
    }

    /// Whether every element is in exactly one window, which has no padding.
    pub fn is_partition(&self) -> bool {
        let along = |w: &WindowAxis| w.stride == w.kernel && w.dilation == 1 && w.pad.is(0);
        self.windows.iter().all(|w| along(w) && w.input == &w.output * w.kernel)
    }
}

fn steps<'e>(extents: impl DoubleEndedIterator<Item = &'e Extent>, c: &Extent) -> Vec<Extent> {
    let mut step = c.clone();
    let mut all: Vec<Extent> = extents
        .rev()
        .map(|extent| {
            let next = &step * extent;
            std::mem::replace(&mut step, next)
        })
        .collect();
    all.reverse();
    all
}
