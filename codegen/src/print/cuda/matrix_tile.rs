//! Tiles of matrices in shared memory: their sizes, and the copies that fill them.

use crate::kernel::attention::MatrixLayout;
use crate::kernel::extent::Extent;

/// Maximum elements of a line, limited by registers and shared memory.
pub const MAX_HEAD_DIM: usize = 128;

/// Threads along the rows of a block, and along its columns, without tensor cores.
pub const BLOCK_DIM: usize = 16;

/// Padding in floats between lines in shared memory against bank conflicts.
pub const SMEM_PADDING: usize = 4;

/// Floats of one copy to shared memory.
pub const F32_COPY_WIDTHS: &[usize] = &[4, 1];

/// C that copies `lines` lines of an operand from `from` (a C variable) on to shared memory, `pitch` apart; `by` lists the
/// elements of a copy, the most first.
pub fn copy(
    (name, to): (&str, &str),
    own: &MatrixLayout,
    all: (&Extent, &Extent),
    tile: (usize, usize),
    from: &str,
    (pitch, copies): (usize, &[usize]),
) -> String {
    let ((count, length), (lines, width)) = (all, tile);
    let apart = [&own.offset, &own.line_stride, length].into_iter().chain(own.batch.iter().map(|b| &b.1));
    let by = if own.element_stride.is(1) { widest(copies, apart) } else { 1 };
    // Adjacent threads read adjacent elements.
    let (line, element) = if own.line_stride.is(1) && !own.element_stride.is(1) {
        (format!("e % {lines}"), format!("e / {lines}"))
    } else {
        (format!("e / {}", width / by), format!("e % {} * {by}", width / by))
    };
    format!(
        "      #pragma unroll
      for (i32 e = threadIdx.x; e < {}; e += THREADS) {{
        const i32 line = {line}, x = {element};
        const bool in_bounds = {from} + line < {count} && x < {length};
        async_copy<{by}>({to} + line * {pitch} + x, {name} + (in_bounds ? ({from} + line) * {} + x * {} : 0), in_bounds);
      }}
",
        lines * width / by,
        own.line_stride,
        own.element_stride,
    )
}

/// The largest element count of `by` that divides these extents and strides.
pub fn widest<'a>(by: &[usize], apart: impl Iterator<Item = &'a Extent> + Clone) -> usize {
    by.iter().copied().find(|n| apart.clone().all(|e| e.is_multiple_of(*n))).unwrap_or(1)
}
