//! Contraction kernels (matrix products and convolutions): a register tile of accumulators, then the epilogue, then the store.
//!
//! `c[row, col] = sum_k a[row, k] * b[k, col]`. Rows have three strides (batch, outer, inner), and `k` has taps and a contiguous
//! run: that covers matrix products, batched products and channels-last convolutions over a padded input. `b` is packed in
//! panels of `tile.vectors` vectors of columns, or read from a row-major matrix.
//!
//! Byte contractions multiply groups of four elements along `k`, 16-bit float contractions groups of two, within each run. If a
//! run is no multiple of four, its last byte group overlaps the previous one with weights of 0. An odd last float is handled
//! separately.
//!
//! Convolutions are implicit GEMMs, without im2col. `CacheBlocking` holds the tile sizes of each loop.

use of_ir::DType;
use of_plan::Reread;

use crate::isa::{CACHE_LINE_BYTES, Isa};
use crate::kernel::body::Body;
use crate::kernel::extent::Extent;
use crate::kernel::space;

/// The element types of a contraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    /// f32 by f32, summed in f32.
    F32F32,
    /// Pairs of 16-bit floats of this type, summed in f32, where the instruction set
    /// [contracts them natively](Isa::contracts_natively).
    F16Pair(DType),
    /// Unsigned bytes by signed bytes, summed in i32.
    U8S8,
    /// Signed bytes by signed bytes, summed in i32. Left bytes are biased by 128; the accumulators start with the correction.
    S8S8,
}

impl Element {
    /// Elements along `k` that a CPU multiplies at once in each 32-bit lane (the VNNI factor).
    pub fn k_group(self) -> usize {
        match self {
            Element::F32F32 => 1,
            Element::F16Pair(_) => 2,
            Element::U8S8 | Element::S8S8 => 4,
        }
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        4 / self.k_group()
    }

    /// Whether sums are exact, as those of bytes are.
    pub fn is_exact(self) -> bool {
        matches!(self, Element::U8S8 | Element::S8S8)
    }
}

/// A contraction.
#[derive(Clone, PartialEq, Debug)]
pub struct Contraction {
    /// Element types; strides count these elements.
    pub element: Element,
    /// Extents of the batch axes.
    pub batch: Vec<Extent>,
    /// Strides of `a` along the batch axes.
    pub a_batch_strides: Vec<Extent>,
    /// Strides of `b` along the batch axes; all 0 where all batches share it.
    pub b_batch_strides: Vec<Extent>,
    /// Number of outer rows (lines of an image) and their stride in `a`.
    pub outer: (Extent, Extent),
    /// Number of inner rows (points of a line, or all rows of a matrix) and their stride in `a`.
    pub inner: (Extent, Extent),
    /// Taps of the kernel: extent and stride in `a`; the product of the extents and `k_inner` is K.
    pub taps: Vec<(usize, Extent)>,
    /// Contiguous elements of `a` at each tap: the inner part of K.
    pub k_inner: Extent,
    /// Columns.
    pub columns: Extent,
    /// The layout of `b`.
    pub rhs: RhsLayout,
}

/// The layout of the right operand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RhsLayout {
    /// Panels made by [`pack`].
    Packed,
    /// The same, where panels have this many vectors of columns, and a tile reads several of them: another program of the plan, for
    /// more rows, has narrower tiles.
    NarrowPanels(usize),
    /// The same, in 16-bit floats of this type that represent every element exactly: half the memory and bandwidth.
    PackedHalf(DType),
    /// Panels of bytes whose pairs do not saturate, and corrections ([`corrected`](crate::kernel::corrected)).
    Corrected,
    /// Row-major `[K, columns]` with this row stride.
    RowMajor(Extent),
    /// Row-major `[columns, K]` with this row stride; packed into scratch by the kernel.
    Transposed(Extent),
    /// Row-major `[columns, K]`, for so few columns that sums are dot products ([`few_columns`](crate::kernel::few_columns)).
    FewColumns,
}

/// A register tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    /// Inner rows; a multiple of their number where a tile covers several outer rows.
    pub rows: usize,
    /// Vectors of columns.
    pub vectors: usize,
}

impl Tile {
    /// Outer rows that the tile covers: several where an outer row has few inner ones, so that they share what they read of the
    /// right operand.
    pub fn lines(self, c: &Contraction) -> usize {
        c.inner.0.number().map_or(1, |inner| self.rows / inner.max(1)).max(1)
    }

    /// Number of row tiles of a batch.
    pub fn row_tiles(self, c: &Contraction) -> Extent {
        match self.lines(c) {
            1 => &c.outer.0 * c.inner.0.div_ceil(&self.rows.into()),
            lines => c.outer.0.div_ceil(&lines.into()),
        }
    }
}

impl Contraction {
    /// The outer and the inner row of row `r` of a tile, from its first row.
    pub fn row(&self, r: usize) -> (usize, usize) {
        match self.inner.0.number() {
            Some(inner) if r >= inner && inner > 0 => (r / inner, r % inner),
            _ => (0, r),
        }
    }

    /// The offset in `a` of row `r` of a tile.
    pub fn row_offset(&self, r: usize) -> Extent {
        match self.row(r) {
            (0, inner) => &self.inner.1 * inner,
            (outer, inner) => &self.outer.1 * outer + &self.inner.1 * inner,
        }
    }
}

/// Terms of a partial sum, for long sums of floats.
pub const PARTIAL_SUM_TERMS: usize = 128;

/// The loop blocking of a large float contraction: a block of the left operand, some rows by some terms, stays in the L2 cache
/// while panels stream through. Partial sums of a group of panels stay in scratch until the next block of terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CacheBlocking {
    /// Terms of a block (K block); the last may have fewer.
    pub k_block: usize,
    /// Tiles of rows.
    pub row_tiles: usize,
    /// Panels in a group.
    pub panels_per_group: usize,
}

impl CacheBlocking {
    /// Maximum terms of a block of floats.
    const MAX_K_BLOCK: usize = 768;

    /// Bytes of a block of the left operand.
    const LHS_BLOCK_BYTES: usize = 3 << 18;

    /// Bytes of the accumulators of a group of panels.
    const ACC_BLOCK_BYTES: usize = 1 << 19;

    /// `None` where the left operand and two panels fit in the L2 cache without blocking.
    pub fn choose(c: &Contraction, tile: Tile, width: usize) -> Option<Self> {
        let (k, columns) = (c.k_inner.number()?, c.columns.number()?);
        let (size, group) = (c.element.size(), c.element.k_group());
        let plain = !c.element.is_exact() && c.taps.iter().all(|t| t.0 == 1) && c.outer.0.is(1);
        let by_column = matches!(c.rhs, RhsLayout::Transposed(_) | RhsLayout::FewColumns);
        if !plain || !k.is_multiple_of(group) || by_column {
            return None;
        }
        let rows = c.inner.0.size_hint();
        if size * k * (rows + 2 * width) < 2 * Self::LHS_BLOCK_BYTES || rows < 4 * tile.rows {
            return None;
        }
        let parts = k.div_ceil(Self::MAX_K_BLOCK * group);
        let k_block = k.div_ceil(parts).next_multiple_of(group);
        let (all, panels) = (rows.div_ceil(tile.rows), columns.div_ceil(width));
        let most = (Self::LHS_BLOCK_BYTES / (size * k_block * tile.rows)).max(1);
        // Use blocks of equal size, and enough of them for several workers.
        let row_tiles = all.div_ceil(all.div_ceil(most).max(16usize.div_ceil(panels)));
        let panels_per_group = (Self::ACC_BLOCK_BYTES / (4 * row_tiles * tile.rows * width)).clamp(1, panels);
        let panels_per_group = if parts == 1 { panels } else { panels.div_ceil(panels.div_ceil(panels_per_group)) };
        Some(CacheBlocking { k_block, row_tiles, panels_per_group })
    }

    /// Whether partial sums stay in scratch between blocks.
    pub fn spills_partial_sums(self, c: &Contraction) -> bool {
        c.k_inner.number() != Some(self.k_block)
    }

    /// Floats of scratch; rows that do not fill a tile count as one more tile.
    pub fn scratch_floats(self, c: &Contraction, tile: Tile, width: usize) -> usize {
        if self.spills_partial_sums(c) { self.panels_per_group * (self.row_tiles + 1) * tile.rows * width } else { 0 }
    }
}

/// Number of terms of each sum.
pub fn k_extent(c: &Contraction) -> Extent {
    &c.k_inner * c.taps.iter().map(|t| t.0).product::<usize>()
}

/// Elements of `b` in a packed panel ([`pack`]) of `width` columns.
pub fn panel_elements(c: &Contraction, width: usize) -> Extent {
    k_groups(c) * (c.element.k_group() * width) + panel_header_bytes(c, width)
}

/// Bytes of a panel with corrections before its groups: where the corrections begin, counted from the panel, and how many there are,
/// as `i32`.
pub const CORRECTIONS_HEADER_BYTES: usize = CACHE_LINE_BYTES;

/// Bytes of a panel before its groups: initial sums, where the left operand is signed, and the position of the corrections.
pub(crate) fn panel_header_bytes(c: &Contraction, width: usize) -> usize {
    let initial = if c.element == Element::S8S8 { 4 * width } else { 0 };
    initial + if c.rhs == RhsLayout::Corrected { CORRECTIONS_HEADER_BYTES } else { 0 }
}

/// Number of groups of elements along `k` that are multiplied at once.
pub(crate) fn k_groups(c: &Contraction) -> Extent {
    match c.element.k_group() {
        1 => k_extent(c),
        group => c.k_inner.div_ceil(&group.into()) * c.taps.iter().map(|t| t.0).product::<usize>(),
    }
}

/// Modelled cycles of tiles of `rows` rows: those of the inner rows, for each outer row where a tile covers several. `cycles` are those
/// of a tile by its rows. Where the inner rows are open, this is the geometric mean of the fewest rows and of typical ones.
pub(crate) fn row_tile_cycles(c: &Contraction, rows: usize, cycles: &dyn Fn(usize) -> f64) -> f64 {
    let rest = |rows: usize| if rows > 0 { cycles(rows) } else { 0.0 };
    let in_one_row = |all: usize| (all / rows) as f64 * cycles(rows) + rest(all % rows);
    let all_rows = c.inner.0.size_hint().max(1);
    if c.inner.0.number().is_none() {
        return (in_one_row(c.inner.0.smallest()) * in_one_row(all_rows)).sqrt();
    }
    let outer = known_outer_rows(c);
    match rows / all_rows {
        0 | 1 => in_one_row(all_rows),
        lines => ((outer / lines) as f64 * cycles(rows) + (outer % lines) as f64 * cycles(all_rows)) / outer as f64,
    }
}

/// Outer rows where the extents of rows are known, else 1: tiles then stay in an outer row.
pub(crate) fn known_outer_rows(c: &Contraction) -> usize {
    match (c.inner.0.number(), c.outer.0.number()) {
        (Some(_), Some(outer)) => outer.max(1),
        _ => 1,
    }
}

/// Whether a tile of `rows` rows is a part of an outer row, or whole outer rows that there are.
pub(crate) fn covers_whole_lines(c: &Contraction, rows: usize) -> bool {
    let all_rows = c.inner.0.size_hint().max(1);
    rows <= all_rows || (rows.is_multiple_of(all_rows) && rows / all_rows <= known_outer_rows(c))
}

/// Bytes of the right operand that each tile of rows rereads from beyond the L2 cache: those of panels larger than
/// [`L2_RESIDENT_BYTES`], unless the contraction is blocked. `None` where unknown.
pub fn reread_traffic(c: &Contraction, tile: Tile, isa: &Isa) -> Option<Reread> {
    let size = if matches!(c.rhs, RhsLayout::PackedHalf(_)) { 2 } else { c.element.size() };
    let width = tile.vectors * isa.lanes;
    let (k, columns) = (k_extent(c).number()?, c.columns.number()?);
    if c.element.is_exact() || size * k * width <= L2_RESIDENT_BYTES || CacheBlocking::choose(c, tile, width).is_some()
    {
        return None;
    }
    let batches: Extent = c.batch.iter().product();
    let tiles = (batches * tile.row_tiles(c)).number()?;
    Some(Reread { bytes: (size * k * columns * tiles.saturating_sub(1)) as u64, distance: (size * k * width) as u64 })
}

/// Maximum bytes of a right operand that stays in the L2 cache.
pub const L2_RESIDENT_BYTES: usize = 1 << 19;

/// How the axes of the group's space divide into batch, outer rows and inner rows (columns are the last axis).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowAxes {
    /// Extents of all axes.
    pub dims: Vec<Extent>,
    /// Number of leading batch axes.
    pub batch: usize,
    /// Number of outer-row axes after those.
    pub outer: usize,
}

/// Strides of an access of the epilogue.
pub struct AccessStrides {
    /// Along the batch axes.
    pub batch: Vec<Extent>,
    /// Along the outer rows.
    pub outer: Extent,
    /// Along the inner rows.
    pub inner: Extent,
    /// Along the columns.
    pub column: Extent,
}

impl RowAxes {
    /// The strides of an access along these rows; `None` where it does not follow them.
    pub fn strides_of(&self, strides: &[Extent]) -> Option<AccessStrides> {
        let columns = self.dims.len() - 1;
        let rows = self.batch + self.outer;
        Some(AccessStrides {
            batch: strides[..self.batch].to_vec(),
            outer: space::single_stride(&self.dims[self.batch..rows], &strides[self.batch..rows])?,
            inner: space::single_stride(&self.dims[rows..columns], &strides[rows..columns])?,
            column: strides[columns].clone(),
        })
    }

    /// Whether every load of `body` follows the rows.
    pub fn matches(&self, body: &Body) -> bool {
        body.loads.iter().all(|l| self.strides_of(&l.strides).is_some())
    }
}
