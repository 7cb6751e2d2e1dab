//! The loops of elementwise kernels for CPUs, which all printers for CPUs share: rows, and the elements of a row.

use crate::kernel::body::Body;
use crate::kernel::extent::Extent;
use crate::kernel::space;
use crate::kernel::space::Space;

/// Minimum elements of an iteration over a flat space.
pub const CHUNK_ELEMENTS: usize = 4096;

/// How many elements an iteration computes.
pub enum Length {
    /// A whole innermost extent.
    Whole(Extent),
    /// A chunk of this flat extent; the last is shorter.
    Chunk(Extent),
}

impl Length {
    /// Iterations of the outer loop.
    pub fn rows(&self, s: &Space) -> Extent {
        match self {
            Length::Chunk(all) => all.div_ceil(&CHUNK_ELEMENTS.into()),
            Length::Whole(_) => s.dims[..s.dims.len() - 1].iter().product(),
        }
    }
}

/// The space of a body over `dims` and the length of its rows; the strides are those of the loads, then the one of all stores.
pub fn schedule(body: &Body, dims: &[Extent]) -> (Space, Length) {
    let mut strides: Vec<Vec<Extent>> = body.loads.iter().map(|l| l.strides.clone()).collect();
    strides.push(space::row_major(dims));
    let s = in_chunks(space::collapse(dims, &strides));
    let length = match s.dims.as_slice() {
        [all] if all.number().is_none_or(|n| n > CHUNK_ELEMENTS) => Length::Chunk(all.clone()),
        dims => Length::Whole(dims.last().cloned().unwrap_or_else(|| 1usize.into())),
    };
    (s, length)
}

/// Splits a flat space into chunks if they divide it, so that it can run in parallel.
fn in_chunks(mut s: Space) -> Space {
    if let [n] = s.dims.as_slice()
        && let Some(n) = n.number()
        && n > CHUNK_ELEMENTS
        && n.is_multiple_of(CHUNK_ELEMENTS)
    {
        s.dims = vec![(n / CHUNK_ELEMENTS).into(), CHUNK_ELEMENTS.into()];
        s.strides.iter_mut().for_each(|v| *v = vec![&v[0] * CHUNK_ELEMENTS, v[0].clone()]);
    }
    s
}
