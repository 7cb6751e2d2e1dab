//! Kernels that move elements: transposes, slices, broadcasts, concatenation, padding, gathering of rows.

use of_ir::DType;

use crate::kernel::extent::Extent;

/// A box of elements with its source and destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyBox {
    /// Extents.
    pub dims: Vec<Extent>,
    /// Index of the argument that is read.
    pub arg: usize,
    /// Offset of the first element read, and the stride along each axis.
    pub from: (Extent, Vec<Extent>),
    /// Offset of the first element written, and the stride along each axis.
    pub to: (Extent, Vec<Extent>),
}

/// The elements of a border.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// These bits.
    Bits(u64),
    /// The element that the second argument holds.
    Argument,
}

/// The axes of a padding; an unpadded axis is merged into the one before it.
pub fn merge_unpadded_axes(axes: &[(Extent, Extent, Extent)]) -> Vec<(Extent, Extent, Extent)> {
    let mut merged: Vec<(Extent, Extent, Extent)> = Vec::new();
    for (out, own, before) in axes {
        match merged.last_mut() {
            Some(last) if out == own && before.is(0) => {
                *last = (&last.0 * out, &last.1 * out, &last.2 * out);
            }
            _ => merged.push((out.clone(), own.clone(), before.clone())),
        }
    }
    merged
}

/// Gathers rows: `to[o, j, i] = from[o, index[j], i]`. Arguments are the data, the indices and the output. A negative
/// index counts from the end; one out of range ends the kernel with the status 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Gather {
    /// Product of the extents before the axis.
    pub outer: Extent,
    /// Extent of the axis.
    pub axis: Extent,
    /// Product of the extents after it.
    pub inner: Extent,
    /// Number of indices.
    pub indices: Extent,
    /// Type of the indices.
    pub index: DType,
    /// Bytes of an element.
    pub bytes: usize,
}
