//! Contractions in C: a register tile of accumulators, then the epilogue, then the store.

mod block;
mod emit;
mod few_columns;
mod matrix_tiles;
mod sums;

pub use block::Block;

use std::fmt::Write;

use crate::isa::{CACHE_LINE_BYTES, Isa};
use crate::kernel::body::Body;
use crate::kernel::contraction::{
    AccessStrides, CORRECTIONS_HEADER_BYTES, CacheBlocking, Contraction, Element, L2_RESIDENT_BYTES, PARTIAL_SUM_TERMS,
    RhsLayout, RowAxes, Tile, k_extent, panel_elements, panel_header_bytes,
};
use crate::kernel::extent::Extent;
use crate::kernel::matrix_tiles::depth;
use crate::print::c::contraction::emit::Emit;
use crate::print::c::contraction::sums::{Columns, Sums};
use crate::print::c::vector;
use crate::print::expr::ctype;
use crate::print::{Source, index};

impl Element {
    /// The C types of an element of the left operand, of the right one and of a vector of sums, and the multiply-add function.
    pub fn c_types(self) -> [&'static str; 4] {
        match self {
            Element::F32F32 => ["f32", "f32", "vf", ""],
            Element::F16Pair(_) => ["bf16", "bf16", "vf", "dot2_bf16"],
            Element::U8S8 | Element::S8S8 => ["u8", "i8", "vi", "dot4"],
        }
    }
}

impl CacheBlocking {
    /// C expression of the number of terms of the block at `k0`, of `k` in total.
    fn count(self, k: &Extent) -> String {
        match k.number() {
            Some(k) if k.is_multiple_of(self.k_block) => self.k_block.to_string(),
            _ => format!("dim_min({}, {k} - k0)", self.k_block),
        }
    }
}

/// The kernel; arguments are `a`, `b`, the loads of the epilogue, its stores. The last axes of the space of `body` are
/// batch, outer rows, inner rows and columns with the extents of `axes`; `out` are the strides of the stores along them.
///
/// # Errors
/// When the epilogue has no vector form or an access of it cannot follow the rows.
pub fn contraction(
    spec: &Contraction,
    tile: Tile,
    body: &Body,
    axes: &RowAxes,
    out: &[Extent],
    isa: &Isa,
) -> Result<Source, String> {
    if let Element::F16Pair(dtype) = spec.element
        && !isa.contracts_natively(dtype)
    {
        return Err(format!("{} does not multiply {dtype}; the pass legalize-float16 makes f32 of it", isa.name));
    }
    if !vector::vectorizable(body) {
        return Err("the epilogue has no vector form".into());
    }
    let (k, width) = (k_extent(spec), tile.vectors * isa.lanes);
    let panels = spec.columns.div_ceil(&width.into());
    let batches: Extent = spec.batch.iter().product();
    // Outer rows are split so that several workers have work; with one outer row, inner tiles are split.
    let tiles = spec.inner.0.div_ceil(&tile.rows.into());
    let lines = !spec.outer.0.is(1);
    let blocks = CacheBlocking::choose(spec, tile, width);
    let (row_parts, per_row_part) = match blocks {
        Some(b) => (tiles.div_ceil(&b.row_tiles.into()).max(&1usize.into()), b.row_tiles.into()),
        None if lines => {
            let covered = tile.lines(spec);
            let (parts, tiles) = split_work(&spec.outer.0.div_ceil(&covered.into()));
            (parts, tiles * covered)
        }
        None => split_work(&tiles),
    };
    let mut load_strides = Vec::new();
    for l in &body.loads {
        load_strides.push(axes.strides_of(&l.strides).ok_or("an operand of the epilogue does not follow the rows")?);
    }
    let to = axes.strides_of(out).ok_or("the result does not follow the rows")?;
    // 16-bit floats are widened once for many tiles, or while they are read for few; a single tile must be fast.
    let many =
        (&spec.inner.0 * &spec.outer.0).number().is_some_and(|rows| rows > MAX_TILES_WIDENED_ON_LOAD * tile.rows);
    let widened = matches!(spec.rhs, RhsLayout::PackedHalf(_)) && many;
    let stored = if let RhsLayout::PackedHalf(d) = spec.rhs { Some(d).filter(|_| !widened) } else { None };
    let own_panel = widened || matches!(spec.rhs, RhsLayout::Transposed(_));
    let sums_at = match k.number() {
        Some(k) if own_panel => blocks.map_or(k, |b| b.k_block) * width,
        None if own_panel => return Err("the length of its sum is not known before the run".into()),
        _ => 0,
    };
    // Rounding errors increase with the length of a sum: partial sums keep them small.
    let long = k.size_hint() > 2 * PARTIAL_SUM_TERMS && spec.k_inner.size_hint() >= PARTIAL_SUM_TERMS / 2;
    let few_columns = spec.rhs == RhsLayout::FewColumns;
    let in_matrix_tiles = depth(spec, isa).is_some();
    let blocked_sum = spec.element == Element::F32F32 && long && blocks.is_none() && !few_columns;
    let mut c = String::new();
    vector::vector_constants(body, &mut c);
    if blocked_sum || few_columns || in_matrix_tiles {
        let _ = writeln!(c, "  f32 *const S = (f32 *)scratch + {sums_at};");
    }
    if in_matrix_tiles {
        c.push_str("  i64 shape = 0;\n");
    }
    let at = Iteration { panels: &panels, row_parts: &row_parts, sums_at, width };
    at.print_loop_head(spec, blocks, tile, &mut c);
    let first = if blocks.is_some() { "k0" } else { "0" };
    let [t, ..] = spec.element.c_types();
    let k_inner = match (spec.element, &spec.rhs) {
        (Element::F32F32, _) | (Element::F16Pair(_), RhsLayout::RowMajor(_)) => None,
        (_, RhsLayout::Packed | RhsLayout::Corrected) => {
            Some(spec.k_inner.number().ok_or("the depth of a product of groups is not known before the run")?)
        }
        _ => return Err("a product of groups whose right operand is not known before the run".into()),
    };
    let a_at = index::flat_offset(&spec.batch, &spec.a_batch_strides, "batch");
    let _ = writeln!(c, "    const {t} *const A = (const {t} *)args[0] + ({a_at}) + {first};");
    right_operand(spec, blocks, widened, width, &mut c);
    epilogue_pointers(spec, body, (&load_strides, &to), width, &mut c);
    let bytes = spec.element.size() * k_extent(spec).size_hint() * spec.columns.size_hint();
    let prefetch_lines = prefetch_lines(spec, tile, blocks, bytes, isa);
    let sums =
        Sums { spec, k_inner, stored, blocked_sum, blocks, tile, isa, width, prefetch_lines, dot_product_form: false };
    let emit = Emit { sums, body, load_strides: &load_strides, store_strides: &to, panels: &panels, factors: None };
    emit.part(&per_row_part, &row_parts, &mut c);
    c.push_str("    }\n  }\n");
    if blocks.is_some() {
        c.push_str("  }\n  }\n");
    }
    if in_matrix_tiles {
        c.push_str("  tile_release();\n");
    }
    let spill_floats = blocks.map_or(0, |b| b.scratch_floats(spec, tile, width));
    let sum_floats = match (blocked_sum, few_columns) {
        (true, _) => tile.rows * width,
        // Rows are read as whole vectors.
        (_, true) => 2 * isa.lanes,
        _ if in_matrix_tiles => matrix_tiles::scratch_floats(tile.rows, width),
        _ => 0,
    };
    let scratch = (sums_at + spill_floats + sum_floats) * 4;
    Ok(Source { scratch_bytes: scratch as u64, ..Source::new(c, batches * panels * row_parts, 1) })
}

/// Whether all panels are multiplied with a part of the rows before the next part: panels that stay in the L2 cache are read again
/// for each part, instead of a larger left operand for each panel. Workers then share a product by rows, as they share windows
/// and elementwise loops, and find the rows of the producer in their own cache.
fn rows_first(spec: &Contraction, width: usize) -> bool {
    let (size, columns) = (spec.element.size(), spec.columns.size_hint());
    let right = size * k_extent(spec).size_hint() * columns;
    let left = size * spec.inner.0.size_hint() * spec.outer.0.size_hint() * spec.k_inner.size_hint();
    let packed = matches!(spec.rhs, RhsLayout::Packed | RhsLayout::Corrected);
    packed && columns > width && right <= L2_RESIDENT_BYTES && right <= left
}

/// An iteration of the outer loop: a panel of columns and a part of the rows, of each batch.
struct Iteration<'a> {
    panels: &'a Extent,
    row_parts: &'a Extent,
    /// Floats of scratch before the partial sums.
    sums_at: usize,
    width: usize,
}

impl Iteration<'_> {
    /// Prints the heads of the loops, and declares `batch`, `part` and `panel`.
    fn print_loop_head(&self, spec: &Contraction, blocks: Option<CacheBlocking>, tile: Tile, c: &mut String) {
        let Iteration { panels, row_parts, sums_at, width } = self;
        let (k, all) = (k_extent(spec), *panels * *row_parts);
        if let Some(b) = blocks {
            let _ = writeln!(c, "  for (i64 i0 = begin, i1; i0 < end; i0 = i1) {{");
            let _ = writeln!(
                c,
                "  i1 = dim_min(dim_min(end, i0 + {}), (i0 / {panels} + 1) * {panels});",
                b.panels_per_group
            );
            let _ =
                writeln!(c, "  for (i64 k0 = 0; k0 < {k}; k0 += {0}) {{ const i64 kn = {1};", b.k_block, b.count(&k));
            let _ = writeln!(c, "  for (i64 it = i0; it < i1; it++) {{");
            let _ = writeln!(
                c,
                "    const i64 batch = it / {all}, part = it / {panels} % {row_parts}, panel = it % {panels};"
            );
            if b.spills_partial_sums(spec) {
                let rows = (b.row_tiles + 1) * tile.rows;
                let _ = writeln!(
                    c,
                    "    f32 *const S = (f32 *)scratch + {sums_at} + ((it - i0) * {rows} - part * {}) * {width};",
                    b.row_tiles * tile.rows
                );
            }
        } else {
            let _ = writeln!(c, "  for (i64 it = begin; it < end; it++) {{");
            let (panel, part) = match rows_first(spec, *width) {
                true => (format!("it % {panels}"), format!("it / {panels} % {row_parts}")),
                false => (format!("it / {row_parts} % {panels}"), format!("it % {row_parts}")),
            };
            let _ = writeln!(c, "    const i64 batch = it / {all}, panel = {panel}, part = {part};");
        }
    }
}

/// Prints the pointer `B` to a panel of the right operand, and the packing or widening of the panel if needed.
fn right_operand(spec: &Contraction, blocks: Option<CacheBlocking>, widened: bool, width: usize, c: &mut String) {
    let (k, [_, u, ..]) = (k_extent(spec), spec.element.c_types());
    let first = if blocks.is_some() { "k0" } else { "0" };
    let b_at = index::flat_offset(&spec.batch, &spec.b_batch_strides, "batch");
    match &spec.rhs {
        RhsLayout::Packed | RhsLayout::NarrowPanels(_) => {
            let size = panel_elements(spec, width);
            let _ = writeln!(
                c,
                "    const {u} *const B = (const {u} *)args[1] + ({b_at}) + panel * {size} + {first} * {width};"
            );
            if blocks.is_some() {
                // Prefetch the same block of the next panel, or the next block of the first panel.
                let _ = writeln!(
                    c,
                    "    const {u} *const N = it + 1 < i1 ? B + {size} : k0 + kn < {k} ? B - (it - i0) * {size} + kn * {width} : B;"
                );
            }
        }
        RhsLayout::Corrected => {
            let size = panel_elements(spec, width);
            let header = panel_header_bytes(spec, width) - CORRECTIONS_HEADER_BYTES;
            let _ = writeln!(c, "    const i8 *const B = (const i8 *)args[1] + ({b_at}) + panel * {size};");
            let _ = writeln!(c, "    const i8 *const E = B + word(B + {header});");
            let _ = writeln!(c, "    const i64 corrections = word(B + {});", header + 4);
        }
        RhsLayout::PackedHalf(d) => {
            let at = format!("({b_at}) + panel * {} + {first} * {width}", panel_elements(spec, width));
            let name = if widened { "H" } else { "B" };
            let _ = writeln!(c, "    const {d} *const {name} = (const {d} *)args[1] + {at};");
            if widened {
                let (each, terms) = match blocks {
                    Some(_) => ("", "kn".into()),
                    None => ("if (part == 0 || it == begin) ", k.to_string()),
                };
                let _ = writeln!(c, "    f32 *const B = (f32 *)scratch;");
                let _ = writeln!(
                    c,
                    "    {each}for (i64 j = 0; j < {terms} * {width}; j += LANES) store(B + j, load_{d}(H + j));"
                );
            }
        }
        RhsLayout::FewColumns => {
            let _ = writeln!(c, "    const {u} *const B = (const {u} *)args[1] + ({b_at});");
        }
        RhsLayout::RowMajor(ld) => {
            let _ = writeln!(
                c,
                "    const {u} *const B = (const {u} *)args[1] + ({b_at}) + panel * {width} + {first} * {ld};"
            );
        }
        RhsLayout::Transposed(ld) => {
            let _ = writeln!(c, "    const f32 *const BT = (const f32 *)args[1] + ({b_at}) + panel * {};", ld * width);
            let _ = writeln!(c, "    f32 *const B = (f32 *)scratch;");
            // Packed once for all parts of a panel that this worker runs.
            let _ = writeln!(
                c,
                "    if (part == 0 || it == begin) {{ const i64 n = {} - panel * {width} < {width} ? {} - panel * {width} : {width};",
                spec.columns, spec.columns
            );
            let _ = writeln!(
                c,
                "      for (i64 j = 0; j < n; j++) for (i64 kk = 0; kk < {k}; kk++) B[kk * {width} + j] = BT[j * {ld} + kk];"
            );
            let _ = writeln!(
                c,
                "      for (i64 j = n; j < {width}; j++) for (i64 kk = 0; kk < {k}; kk++) B[kk * {width} + j] = 0; }}"
            );
        }
    }
}

/// Prints pointers to the loads and stores of the epilogue.
fn epilogue_pointers(
    spec: &Contraction,
    body: &Body,
    (load_strides, to): (&[AccessStrides], &AccessStrides),
    width: usize,
    c: &mut String,
) {
    for (i, l) in body.loads.iter().enumerate() {
        let t = ctype(l.dtype);
        let at = index::flat_offset(&spec.batch, &load_strides[i].batch, "batch");
        let _ = writeln!(
            c,
            "    const {t} *const P{i} = (const {t} *)args[{}] + ({at}) + panel * {};",
            2 + i,
            &load_strides[i].column * width
        );
    }
    let to_at = index::flat_offset(&spec.batch, &to.batch, "batch");
    for (s, (_, v)) in body.stores.iter().enumerate() {
        let t = ctype(body.nodes[*v].dtype);
        let _ = writeln!(
            c,
            "    {t} *const Q{s} = ({t} *)args[{}] + ({to_at}) + panel * {width};",
            2 + body.loads.len() + s
        );
    }
}

/// Prints the product of the first `rows` of `spec`, in whole tiles, with one packed panel of floats: from `A` and `B` to `Q`, whose
/// rows have a panel's width. `bytes` of panels are read before the first is read again.
pub fn panel_product(spec: &Contraction, rows: &str, tile: Tile, bytes: usize, isa: &Isa, c: &mut String) {
    let width = tile.vectors * isa.lanes;
    let prefetch_lines = prefetch_lines(spec, tile, None, bytes, isa);
    let sums = Sums {
        spec,
        k_inner: None,
        stored: None,
        blocked_sum: false,
        blocks: None,
        tile,
        isa,
        width,
        prefetch_lines,
        dot_product_form: false,
    };
    let _ = writeln!(c, "      for (i64 o = 0, m = 0; m < {rows}; m += {}) {{", tile.rows);
    sums.tile(tile.rows, &Columns::First(width), c);
    for (r, v) in (0..tile.rows).flat_map(|r| (0..tile.vectors).map(move |v| (r, v))) {
        let _ = writeln!(c, "        store(Q + (m + {r}) * {width} + {}, c{r}_{v});", v * isa.lanes);
    }
    c.push_str("      }\n");
}

/// Maximum row tiles for which 16-bit floats are widened while they are read.
const MAX_TILES_WIDENED_ON_LOAD: usize = 2;

/// Lines of the next panel that each step of a tile's sum prefetches. Panels come from beyond the L2 cache, and all row tiles
/// share one read: without prefetching the first tile stalls. `bytes` are read before the first panel is read again.
fn prefetch_lines(
    spec: &Contraction,
    tile: Tile,
    blocks: Option<CacheBlocking>,
    bytes: usize,
    isa: &Isa,
) -> Option<usize> {
    let tiles = match blocks {
        Some(b) => b.row_tiles,
        None => tile.row_tiles(spec).size_hint(),
    };
    // A step takes four bytes of each column.
    let lines = (4 * tile.vectors * isa.lanes).div_ceil(CACHE_LINE_BYTES);
    let packed = matches!(spec.rhs, RhsLayout::Packed | RhsLayout::Corrected);
    // With one row tile the memory bandwidth is the limit, and the hardware prefetches by itself.
    (packed && bytes > L2_RESIDENT_BYTES && tiles > 1).then(|| lines.div_ceil(tiles))
}

/// Splits `n` pieces of work into up to 8 parts of equal size: the number of parts and the size of each.
fn split_work(n: &Extent) -> (Extent, Extent) {
    let per = n.div_ceil(&8usize.into()).max(&1usize.into());
    (n.div_ceil(&per), per)
}
