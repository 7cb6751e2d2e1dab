//! Kernels of products and convolutions: a register tile of accumulators, then the epilogue, then the store.
//!
//! `c[row, col] = sum_k a[row, k] * b[k, col]`. Rows are walked by three strides (batch, outer, inner), `k` by taps and a
//! contiguous run: that covers products, batched products and channels-last convolutions over a padded input. `b` is
//! packed in panels of `tile.vectors` vectors of columns, or read from a row-major matrix.
//!
//! Products of bytes take four elements along `k` at once, from each run by itself; where a run is no multiple of four,
//! its last four overlap those before, with weights of 0.

mod block;

use std::fmt::Write;

use of_ir::DType;
use of_plan::Again;
use rayon::prelude::*;

pub use block::Block;

use super::expr::{self, ctype, vtype};
use super::{Extent, Isa, Source, Zeroed, space};
use crate::lower::body::{Body, Node};

/// What is multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    /// f32 by f32, summed in f32.
    Float,
    /// 16-bit floats of this type, summed in f32: on GPUs alone.
    Half(DType),
    /// Unsigned bytes by signed bytes, summed in i32.
    Unsigned,
    /// Signed bytes by signed bytes, summed in i32. The left ones are moved up by 128; sums start with what that adds.
    Signed,
}

/// A contraction.
#[derive(Clone, PartialEq, Debug)]
pub struct Contraction {
    /// What is multiplied; strides count these elements.
    pub element: Element,
    /// Extents of the batch axes; each batch has rows of its own.
    pub batch: Vec<Extent>,
    /// Elements between batches of `a`, one stride a batch axis.
    pub a_batch: Vec<Extent>,
    /// Elements between batches of `b`; all 0 where all batches share it.
    pub b_batch: Vec<Extent>,
    /// Outer rows (lines of an image) and their distance in `a`.
    pub outer: (Extent, Extent),
    /// Inner rows (points of a line, or all rows of a product) and their distance in `a`.
    pub inner: (Extent, Extent),
    /// Taps of the kernel: extent and distance in `a`; the product of the extents and `run` is K.
    pub taps: Vec<(usize, Extent)>,
    /// Contiguous elements of `a` at each tap.
    pub run: Extent,
    /// Columns.
    pub columns: Extent,
    /// How `b` lies in memory.
    pub b: Operand,
}

/// How the right operand lies in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operand {
    /// Panels made by [`pack`].
    Packed,
    /// The same, in 16-bit floats of this type that hold every element exactly: half as much to read and to keep.
    Halves(DType),
    /// Row-major `[K, columns]` with this distance between rows.
    RowMajor(Extent),
    /// Row-major `[columns, K]` with this distance between rows; packed into scratch by the kernel.
    Transposed(Extent),
}

/// A register tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    /// Rows.
    pub rows: usize,
    /// Vectors of columns.
    pub vectors: usize,
}

/// Terms of a long sum of floats that are added up by themselves.
pub const PIECE: usize = 128;

/// The order of a large product of floats: a block of the left operand, some rows by some terms, stays in the second
/// cache while panels go by; the sums of a group of panels wait in scratch for the next terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Blocks {
    /// Terms of a block; the last may have fewer.
    terms: usize,
    /// Tiles of rows.
    tiles: usize,
    /// Panels of a group.
    group: usize,
}

impl Blocks {
    /// Terms of a block at most.
    const TERMS: usize = 768;
    /// Bytes of a block.
    const LEFT: usize = 3 << 18;
    /// Bytes of the sums of a group.
    const SUMS: usize = 1 << 19;

    /// Nothing where the left operand and two panels stay in the second cache as they are.
    fn choose(c: &Contraction, tile: Tile, width: usize) -> Option<Self> {
        let (k, columns) = (c.run.number()?, c.columns.number()?);
        let plain = c.element == Element::Float && c.taps.iter().all(|t| t.0 == 1) && c.outer.0.is(1);
        if !plain || matches!(c.b, Operand::Transposed(_)) {
            return None;
        }
        let rows = c.inner.0.guess();
        if 4 * k * (rows + 2 * width) < 2 * Self::LEFT || rows < 4 * tile.rows {
            return None;
        }
        let parts = k.div_ceil(Self::TERMS);
        let terms = k.div_ceil(parts);
        let (all, panels) = (rows.div_ceil(tile.rows), columns.div_ceil(width));
        let most = (Self::LEFT / (4 * terms * tile.rows)).max(1);
        // All parts of one size, and enough of them for several workers.
        let tiles = all.div_ceil(all.div_ceil(most).max(16usize.div_ceil(panels)));
        let group = (Self::SUMS / (4 * tiles * tile.rows * width)).clamp(1, panels);
        let group = if parts == 1 { panels } else { panels.div_ceil(panels.div_ceil(group)) };
        Some(Blocks { terms, tiles, group })
    }

    /// C for how many terms the block at `k0` has, of `k`.
    fn count(self, k: &Extent) -> String {
        match k.number() {
            Some(k) if k.is_multiple_of(self.terms) => self.terms.to_string(),
            _ => format!("dim_min({}, {k} - k0)", self.terms),
        }
    }

    /// Whether sums wait.
    fn wait(self, c: &Contraction) -> bool {
        c.run.number() != Some(self.terms)
    }

    /// Floats of scratch; rows that fill no tile are one more.
    fn scratch(self, c: &Contraction, tile: Tile, width: usize) -> usize {
        if self.wait(c) { self.group * (self.tiles + 1) * tile.rows * width } else { 0 }
    }
}

/// Length of the sum.
pub fn depth(c: &Contraction) -> Extent {
    &c.run * c.taps.iter().map(|t| t.0).product::<usize>()
}

/// Elements of `b` in a panel of `width` columns, [`pack`]ed.
pub fn panel(c: &Contraction, width: usize) -> Extent {
    match c.element {
        Element::Float | Element::Half(_) => depth(c) * width,
        Element::Unsigned => words(c) * (4 * width),
        Element::Signed => (words(c) + 1usize) * (4 * width),
    }
}

/// Groups of four bytes along `k`.
fn words(c: &Contraction) -> Extent {
    c.run.div_ceil(&4usize.into()) * c.taps.iter().map(|t| t.0).product::<usize>()
}

/// The tile that needs the fewest cycles: as many multiplications as fit the registers, few half-empty tiles.
pub fn tile(c: &Contraction, isa: &Isa) -> Tile {
    let mut best = (f64::INFINITY, Tile { rows: 1, vectors: 1 });
    for (cycles, tile) in tiles(c, isa) {
        if cycles < best.0 * 0.995 {
            best = (cycles, tile);
        }
    }
    best.1
}

/// The tiles that may be the fastest: [`tile`] first, then those that need few more cycles.
pub fn candidates(c: &Contraction, isa: &Isa) -> Vec<Tile> {
    const MOST: usize = 8;
    let first = tile(c, isa);
    let mut all = tiles(c, isa);
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let few = all.first().map_or(0.0, |best| best.0 * 1.3);
    let others = all.into_iter().filter(|(cycles, tile)| *tile != first && *cycles <= few);
    std::iter::once(first).chain(others.map(|(_, tile)| tile)).take(MOST).collect()
}

/// Every tile that fits the registers, with the cycles that it needs by the model.
fn tiles(c: &Contraction, isa: &Isa) -> Vec<(f64, Tile)> {
    let bytes = c.element != Element::Float;
    let (all_rows, columns) = (c.inner.0.guess().max(1), c.columns.guess());
    let mut out = Vec::new();
    for vectors in 1..=4usize {
        for rows in 1..=14usize {
            // Accumulators, one vector of b each, one broadcast of a; bytes that are widened need more.
            let others = if bytes && !isa.multiplies_bytes() { 2 * vectors + 4 } else { vectors + 1 };
            if rows * vectors + others > isa.registers || rows > all_rows || crowd(rows, c) > WAYS {
                continue;
            }
            let cycles = |r: usize| {
                let (fma, loads) = ((r * vectors) as f64 / 2.0, (r + vectors) as f64 / 2.0);
                // A chain of dependent additions takes 4 cycles a step, 5 for bytes; the loop itself and misses of the
                // first cache cost about one more.
                fma.max(loads).max(if bytes { 5.0 } else { 4.0 }) + 1.0
            };
            let lines = (all_rows / rows) as f64 * cycles(rows)
                + if !all_rows.is_multiple_of(rows) { cycles(all_rows % rows) } else { 0.0 };
            let panels = columns.div_ceil(vectors * isa.lanes) as f64;
            out.push((lines * panels, Tile { rows, vectors }));
        }
    }
    out
}

/// Lines that a set of the first cache holds, some of them left to the right operand. Sets repeat every 4096 bytes.
const WAYS: usize = 8;

/// Lines of the left operand that a tile of `rows` rows needs at once in the fullest set of the first cache; 1 where the
/// distance of the rows is not known.
fn crowd(rows: usize, c: &Contraction) -> usize {
    let size = if c.element == Element::Float { 4 } else { 1 };
    let Some(step) = c.inner.1.number() else { return 1 };
    let mut lines: Vec<usize> = (0..rows).map(|row| row * step * size / 64).collect();
    lines.dedup();
    lines.iter().map(|a| lines.iter().filter(|b| *b % 64 == a % 64).count()).max().unwrap_or(0)
}

/// What of the right operand comes from beyond the second cache once for each tile of rows: a panel that is larger than what
/// stays there, where the product is not done in blocks. Nothing where that is not known.
pub fn again(c: &Contraction, tile: Tile, isa: &Isa) -> Option<Again> {
    let size = if matches!(c.b, Operand::Halves(_)) { 2 } else { 4 };
    let width = tile.vectors * isa.lanes;
    let (k, columns) = (depth(c).number()?, c.columns.number()?);
    if c.element != Element::Float || size * k * width <= STAYS || Blocks::choose(c, tile, width).is_some() {
        return None;
    }
    let lines: Extent = c.batch.iter().chain([&c.outer.0]).product();
    let tiles = (lines * c.inner.0.div_ceil(&tile.rows.into())).number()?;
    Some(Again { bytes: (size * k * columns * tiles.saturating_sub(1)) as u64, after: (size * k * width) as u64 })
}

/// Packs `b` (row-major `[K, columns]`) into panels `[columns / width][K][width]`, zeros beyond the last column.
pub fn pack(b: &[f32], k: usize, columns: usize, width: usize) -> Zeroed<f32> {
    let panels = columns.div_ceil(width);
    let mut out = Zeroed::new(panels * k * width);
    out.par_chunks_exact_mut((k * width).max(1)).enumerate().for_each(|(p, panel)| {
        let n = width.min(columns - p * width);
        for (row, to) in panel.chunks_exact_mut(width).enumerate() {
            to[..n].copy_from_slice(&b[row * columns + p * width..][..n]);
        }
    });
    out
}

/// Packs bytes `b` (row-major `[K, columns]`) for `c` into panels of `width` columns: the start of the sums where the
/// left operand is signed, then groups `[width][4]`. Nothing where an extent is not known now.
pub fn pack_bytes(b: &[i8], c: &Contraction, width: usize) -> Option<Vec<u8>> {
    let (run, columns, size) = (c.run.number()?, c.columns.number()?, panel(c, width).number()?);
    let depth = depth(c).number()?;
    let groups = run.div_ceil(4);
    let mut out = vec![0u8; columns.div_ceil(width) * size];
    out.par_chunks_exact_mut(size.max(1)).enumerate().for_each(|(p, panel)| {
        let header = if c.element == Element::Signed { 4 * width } else { 0 };
        let (starts, body) = panel.split_at_mut(header);
        for column in 0..width.min(columns - p * width) {
            let at = |k: usize| b[k * columns + p * width + column];
            if header > 0 {
                let sum: i32 = (0..depth).map(|k| i32::from(at(k))).sum();
                starts[4 * column..][..4].copy_from_slice(&(-128 * sum).to_le_bytes());
            }
            for (g, group) in body.chunks_exact_mut(4 * width).enumerate() {
                let (tap, first) = (g / groups, g % groups * 4);
                // The last group of a run reads its last four elements; those of the group before count nothing here.
                let from = if first + 4 > run && run >= 4 { run - 4 } else { first };
                for i in 0..4 {
                    if (first..run).contains(&(from + i)) {
                        group[4 * column + i] = at(tap * run + from + i) as u8;
                    }
                }
            }
        }
    });
    Some(out)
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
    if let Element::Half(dtype) = spec.element {
        return Err(format!("products of {dtype} have kernels on GPUs alone; the pass widen-floats makes f32 of them"));
    }
    if !expr::vectorizable(body) {
        return Err("the epilogue has no vector form".into());
    }
    let (k, width) = (depth(spec), tile.vectors * isa.lanes);
    let panels = spec.columns.div_ceil(&width.into());
    let batches: Extent = spec.batch.iter().product();
    // Outer rows are cut so that there is work for several workers; where there is one outer row, inner tiles are.
    let tiles = spec.inner.0.div_ceil(&tile.rows.into());
    let lines = !spec.outer.0.is(1);
    let blocks = Blocks::choose(spec, tile, width);
    let (cuts, per_cut) = match blocks {
        Some(b) => (tiles.div_ceil(&b.tiles.into()).max(&1usize.into()), b.tiles.into()),
        None if lines => cut(&spec.outer.0),
        None => cut(&tiles),
    };
    let mut walk = Vec::new();
    for l in &body.loads {
        walk.push(axes.walk(&l.strides).ok_or("an operand of the epilogue does not follow the rows")?);
    }
    let to = axes.walk(out).ok_or("the result does not follow the rows")?;
    // 16-bit floats are widened once for many tiles, or as they are read for few, of which one that is alone must be fast.
    let many = (&spec.inner.0 * &spec.outer.0).number().is_some_and(|rows| rows > FEW_TILES * tile.rows);
    let widened = matches!(spec.b, Operand::Halves(_)) && many;
    let stored = if let Operand::Halves(d) = spec.b { Some(d).filter(|_| !widened) } else { None };
    let own_panel = widened || matches!(spec.b, Operand::Transposed(_));
    let sums_at = match k.number() {
        Some(k) if own_panel => blocks.map_or(k, |b| b.terms) * width,
        None if own_panel => return Err("the length of its sum is not known before the run".into()),
        _ => 0,
    };
    // Rounding errors grow with the length of a sum: pieces keep them small.
    let long = k.guess() > 2 * PIECE && spec.run.guess() >= PIECE / 2;
    let pieces = spec.element == Element::Float && long && blocks.is_none();
    let mut c = String::new();
    expr::vector_constants(body, &mut c);
    if pieces {
        let _ = writeln!(c, "  f32 *const S = (f32 *)scratch + {sums_at};");
    }
    let all = &panels * &cuts;
    if let Some(b) = blocks {
        let _ = writeln!(c, "  for (i64 i0 = begin, i1; i0 < end; i0 = i1) {{");
        let _ = writeln!(c, "  i1 = dim_min(dim_min(end, i0 + {}), (i0 / {panels} + 1) * {panels});", b.group);
        let _ = writeln!(c, "  for (i64 k0 = 0; k0 < {k}; k0 += {0}) {{ const i64 kn = {1};", b.terms, b.count(&k));
        let _ = writeln!(c, "  for (i64 it = i0; it < i1; it++) {{");
        let _ = writeln!(c, "    const i64 batch = it / {all}, part = it / {panels} % {cuts}, panel = it % {panels};");
        if b.wait(spec) {
            let rows = (b.tiles + 1) * tile.rows;
            let _ = writeln!(
                c,
                "    f32 *const S = (f32 *)scratch + {sums_at} + ((it - i0) * {rows} - part * {}) * {width};",
                b.tiles * tile.rows
            );
        }
    } else {
        let _ = writeln!(c, "  for (i64 it = begin; it < end; it++) {{");
        let _ = writeln!(c, "    const i64 batch = it / {all}, panel = it / {cuts} % {panels}, part = it % {cuts};");
    }
    let first = if blocks.is_some() { "k0" } else { "0" };
    let (t, u) = if spec.element == Element::Float { ("f32", "f32") } else { ("u8", "i8") };
    let run = match spec.element {
        Element::Float => None,
        _ if spec.b == Operand::Packed => Some(spec.run.number().ok_or("a product of bytes of unknown depth")?),
        _ => return Err("a product of bytes whose right operand is not known before the run".into()),
    };
    let a_at = space::offset(&spec.batch, &spec.a_batch, "batch");
    let b_at = space::offset(&spec.batch, &spec.b_batch, "batch");
    let _ = writeln!(c, "    const {t} *const A = (const {t} *)args[0] + ({a_at}) + {first};");
    match &spec.b {
        Operand::Packed => {
            let size = panel(spec, width);
            let _ = writeln!(
                c,
                "    const {u} *const B = (const {u} *)args[1] + ({b_at}) + panel * {size} + {first} * {width};"
            );
            if blocks.is_some() {
                // What is read after this block of the panel: that of the next panel, or the next of the first panel.
                let _ = writeln!(
                    c,
                    "    const f32 *const N = it + 1 < i1 ? B + {size} : k0 + kn < {k} ? B - (it - i0) * {size} + kn * {width} : B;"
                );
            }
        }
        Operand::Halves(d) => {
            let at = format!("({b_at}) + panel * {} + {first} * {width}", panel(spec, width));
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
        Operand::RowMajor(ld) => {
            let _ = writeln!(
                c,
                "    const f32 *const B = (const f32 *)args[1] + ({b_at}) + panel * {width} + {first} * {ld};"
            );
        }
        Operand::Transposed(ld) => {
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
    for (i, l) in body.loads.iter().enumerate() {
        let t = ctype(l.dtype);
        let at = space::offset(&spec.batch, &walk[i].batch, "batch");
        let _ = writeln!(
            c,
            "    const {t} *const P{i} = (const {t} *)args[{}] + ({at}) + panel * {};",
            2 + i,
            &walk[i].column * width
        );
    }
    let to_at = space::offset(&spec.batch, &to.batch, "batch");
    for (s, (_, v)) in body.stores.iter().enumerate() {
        let t = ctype(body.nodes[*v].dtype);
        let _ = writeln!(
            c,
            "    {t} *const Q{s} = ({t} *)args[{}] + ({to_at}) + panel * {width};",
            2 + body.loads.len() + s
        );
    }
    let size = if spec.element == Element::Float { 4 } else { 1 };
    let bytes = size * depth(spec).guess() * spec.columns.guess();
    let ahead = ahead(spec, tile, blocks, bytes, isa);
    let sums = Sums { spec, run, stored, pieces, blocks, tile, isa, width, ahead, dots: false };
    let emit = Emit { sums, body, walk: &walk, to: &to, panels: &panels, factors: None };
    let full = spec.inner.0.div_floor(&tile.rows.into());
    if lines {
        let _ = writeln!(c, "    const i64 o1 = dim_min((part + 1) * {per_cut}, {});", spec.outer.0);
        let _ = writeln!(c, "    for (i64 o = part * {per_cut}; o < o1; o++) {{");
        let _ = writeln!(c, "      for (i64 m = 0; m < {}; m += {}) {{", &full * tile.rows, tile.rows);
    } else {
        let _ = writeln!(c, "    const i64 o = 0, m1 = dim_min((part + 1) * {per_cut}, {full});");
        let _ = writeln!(c, "    {{ for (i64 m = part * {per_cut} * {0}; m < m1 * {0}; m += {0}) {{", tile.rows);
    }
    emit.columns(tile.rows, &mut c);
    c.push_str("      }\n");
    let only_last = if lines { String::new() } else { format!("if (part == {cuts} - 1) ") };
    match spec.inner.0.number() {
        Some(rows) if rows.is_multiple_of(tile.rows) => {}
        Some(rows) => {
            let _ = writeln!(c, "      {only_last}{{ const i64 m = {};", rows / tile.rows * tile.rows);
            emit.columns(rows % tile.rows, &mut c);
            c.push_str("      }\n");
        }
        // The rows that are left of an unknown number go by fours, then one by one.
        None => {
            let _ = writeln!(c, "      {only_last}{{ i64 m = {};", &full * tile.rows);
            for rows in [4, 1].into_iter().filter(|r| *r < tile.rows) {
                let _ = writeln!(c, "      for (; m + {rows} <= {}; m += {rows}) {{", spec.inner.0);
                emit.columns(rows, &mut c);
                c.push_str("      }\n");
            }
            c.push_str("      }\n");
        }
    }
    c.push_str("    }\n  }\n");
    if blocks.is_some() {
        c.push_str("  }\n  }\n");
    }
    let waiting = blocks.map_or(0, |b| b.scratch(spec, tile, width));
    let scratch = (sums_at + waiting + if pieces { tile.rows * width } else { 0 }) * 4;
    Ok(Source { scratch_bytes: scratch as u64, ..Source::new(c, batches * panels * cuts, 1) })
}

/// Prints the product of the rows of `spec`, whole tiles of them, with one packed panel of floats: from `A` and `B` to
/// `Q`, rows of a panel's width. Of `bytes` of panels each is read once before the first is read again.
pub fn panel_product(spec: &Contraction, tile: Tile, bytes: usize, isa: &Isa, c: &mut String) {
    let width = tile.vectors * isa.lanes;
    let ahead = ahead(spec, tile, None, bytes, isa);
    let sums =
        Sums { spec, run: None, stored: None, pieces: false, blocks: None, tile, isa, width, ahead, dots: false };
    let _ = writeln!(c, "      for (i64 o = 0, m = 0; m < {}; m += {}) {{", spec.inner.0, tile.rows);
    sums.tile(tile.rows, &Columns::First(width), c);
    for (r, v) in (0..tile.rows).flat_map(|r| (0..tile.vectors).map(move |v| (r, v))) {
        let _ = writeln!(c, "        store(Q + (m + {r}) * {width} + {}, c{r}_{v});", v * isa.lanes);
    }
    c.push_str("      }\n");
}

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Bytes of a right operand that stays in the second cache.
pub const STAYS: usize = 1 << 19;

/// Bytes that 16-bit floats are asked for ahead.
const HALVES_AHEAD: usize = 4096;

/// Tiles of rows for which 16-bit floats are widened as they are read.
const FEW_TILES: usize = 2;

/// Lines of the next panel that each step of the sum of a tile asks for. Panels come from far away, and are read once for
/// all tiles of rows: without it the first of them waits. `bytes` are all that is read before the first panel is read again.
fn ahead(spec: &Contraction, tile: Tile, blocks: Option<Blocks>, bytes: usize, isa: &Isa) -> Option<usize> {
    let tiles = match blocks {
        Some(b) => b.tiles,
        None => spec.outer.0.guess() * spec.inner.0.guess().div_ceil(tile.rows),
    };
    // A step takes a float, or four bytes, of each column.
    let lines = (4 * tile.vectors * isa.lanes).div_ceil(LINE);
    let packed = spec.b == Operand::Packed;
    // A single tile of rows cannot hide anything: the memory is the limit, and the hardware asks ahead by itself.
    (packed && bytes > STAYS && tiles > 1).then(|| lines.div_ceil(tiles))
}

/// Cuts `n` pieces of work into up to 8 parts of equal size: the number of parts and the size of each.
fn cut(n: &Extent) -> (Extent, Extent) {
    let per = n.div_ceil(&8usize.into()).max(&1usize.into());
    (n.div_ceil(&per), per)
}

/// How the axes of the group's space stand for batch, outer rows and inner rows (columns are the last axis).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowAxes {
    /// Extents of all axes.
    pub dims: Vec<Extent>,
    /// Leading axes that are the batch.
    pub batch: usize,
    /// Axes after those that are the outer rows.
    pub outer: usize,
}

/// Strides of an access of the epilogue.
pub struct Walk {
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
    /// How an access with these strides goes along; `None` where it does not follow the rows.
    pub fn walk(&self, strides: &[Extent]) -> Option<Walk> {
        let columns = self.dims.len() - 1;
        let rows = self.batch + self.outer;
        Some(Walk {
            batch: strides[..self.batch].to_vec(),
            outer: space::single_stride(&self.dims[self.batch..rows], &strides[self.batch..rows])?,
            inner: space::single_stride(&self.dims[rows..columns], &strides[rows..columns])?,
            column: strides[columns].clone(),
        })
    }

    /// Whether every load of `body` can be followed.
    pub fn follows(&self, body: &Body) -> bool {
        body.loads.iter().all(|l| self.walk(&l.strides).is_some())
    }
}

/// The columns of a panel that there are.
enum Columns {
    /// So many.
    First(usize),
    /// The C variable `rest` says.
    Unknown,
}

/// Prints tiles with their epilogue.
struct Emit<'a> {
    sums: Sums<'a>,
    body: &'a Body,
    walk: &'a [Walk],
    to: &'a Walk,
    panels: &'a Extent,
    /// C: a number for each row that multiplies its sums.
    factors: Option<&'a str>,
}

/// Prints the sums of a tile.
struct Sums<'a> {
    spec: &'a Contraction,
    /// The contiguous bytes of `a` at each tap; nothing for a product of floats.
    run: Option<usize>,
    /// The type of the panel's elements where these are 16-bit floats.
    stored: Option<DType>,
    /// Whether a long sum is made of sums over pieces, which are added up in scratch.
    pieces: bool,
    /// Whether the terms are those of a block: `kn` from `k0` on.
    blocks: Option<Blocks>,
    tile: Tile,
    isa: &'a Isa,
    width: usize,
    /// Lines of the cache that a step of the sum asks for ahead; nothing where the right operand stays in the cache.
    ahead: Option<usize>,
    /// Whether each sum is that of a vector along its terms, from a right operand whose columns are contiguous.
    dots: bool,
}

impl Emit<'_> {
    /// A tile of `rows` rows at `(o, m)`: all columns of the panel, or those that the last panel has.
    fn columns(&self, rows: usize, c: &mut String) {
        let Sums { spec, width, .. } = self.sums;
        let rest = match spec.columns.number() {
            Some(n) if n.is_multiple_of(width) => None,
            Some(n) => Some(Columns::First(n % width)),
            None => Some(Columns::Unknown),
        };
        let only = self.panels.is(1);
        match rest {
            None => self.tile(rows, &Columns::First(width), c),
            Some(rest) if only => self.tile(rows, &rest, c),
            Some(rest) => {
                let whole = match rest {
                    Columns::First(_) => format!("panel + 1 < {}", self.panels),
                    Columns::Unknown => format!("(panel + 1) * {} <= {}", width, spec.columns),
                };
                let _ = writeln!(c, "        if ({whole}) {{");
                self.tile(rows, &Columns::First(width), c);
                c.push_str("        } else {\n");
                if matches!(rest, Columns::Unknown) {
                    let _ = writeln!(c, "        const i64 rest = {} - panel * {};", spec.columns, width);
                }
                self.tile(rows, &rest, c);
                c.push_str("        }\n");
            }
        }
    }

    fn tile(&self, rows: usize, columns: &Columns, c: &mut String) {
        let Sums { spec, blocks, .. } = self.sums;
        let vectors = self.sums.vectors(columns);
        self.sums.tile(rows, columns, c);
        let waits = blocks.is_some_and(|b| b.wait(spec));
        if waits {
            c.push_str("        if (k0 > 0) {\n");
            self.sums.each(rows, vectors, "{c} += load({s});", c);
            let _ = writeln!(c, "        }}\n        if (k0 + kn < {}) {{", spec.run);
            self.sums.each(rows, vectors, "store({s}, {c});", c);
            c.push_str("        } else {\n");
        }
        for r in 0..rows {
            for v in 0..vectors {
                self.epilogue(r, v, self.sums.part(columns, v).as_deref(), c);
            }
        }
        if waits {
            c.push_str("        }\n");
        }
    }

    /// The epilogue on one vector of the tile.
    fn epilogue(&self, r: usize, v: usize, part: Option<&str>, c: &mut String) {
        let (body, lanes) = (self.body, self.sums.isa.lanes);
        let name = |i: usize| format!("t{i}");
        c.push_str("        {");
        for (i, t) in body.nodes.iter().enumerate() {
            let value = match &t.node {
                Node::Const(_) | Node::Reduce(..) => continue,
                Node::Anchor => match self.factors {
                    Some(f) => format!("c{r}_{v} * SPLAT({f}[m + {r}])"),
                    None => format!("c{r}_{v}"),
                },
                Node::Load(l) => {
                    let w = &self.walk[*l];
                    let at = format!("P{l} + o * {} + (m + {r}) * {} + {}", w.outer, w.inner, &w.column * (v * lanes));
                    expr::load(t.dtype, &at, &w.column, part)
                }
                Node::Op(op, args) => expr::vector(body, *op, args, &name),
            };
            let _ = write!(c, " const {} t{i} = {value};", vtype(t.dtype));
        }
        for (s, (_, node)) in body.stores.iter().enumerate() {
            let at = format!("Q{s} + o * {} + (m + {r}) * {} + {}", self.to.outer, self.to.inner, v * lanes);
            let _ = write!(c, " {}", expr::store(body.nodes[*node].dtype, &at, &format!("t{node}"), part));
        }
        c.push_str(" }\n");
    }
}

impl Sums<'_> {
    /// The sums `c0_0`, `c0_1` … of `rows` rows from `(o, m)` on.
    fn tile(&self, rows: usize, columns: &Columns, c: &mut String) {
        let (spec, lanes) = (self.spec, self.isa.lanes);
        if let (true, Operand::Transposed(line)) = (self.dots, &spec.b) {
            return self.dots(line, columns, c);
        }
        let vectors = self.vectors(columns);
        let float = spec.element == Element::Float;
        let (t, u, sum) =
            if float { ("f32", ctype(self.stored.unwrap_or(DType::F32)), "vf") } else { ("u8", "i8", "vi") };
        let _ = writeln!(c, "        const {t} *a0 = A + o * {} + m * {};", spec.outer.1, spec.inner.1);
        let header = if spec.element == Element::Signed { 4 * self.width } else { 0 };
        let _ = writeln!(c, "        const {u} *b = B + {header};");
        if let Some(lines) = self.ahead {
            // Each tile asks for its share of the panel that comes next, all of which is there when it is needed.
            let share = lines * self.line();
            if let Some(b) = self.blocks {
                let number = format!("(m / {} - part * {})", self.tile.rows, b.tiles);
                let _ = writeln!(
                    c,
                    "        const f32 *f = {number} * {share} < {0} ? N + {number} * {share} * kn : B;",
                    self.width
                );
            } else {
                let steps = if float { depth(spec) } else { words(spec) };
                let (size, step) = (panel(spec, self.width), steps * share);
                let number =
                    format!("(o * {} + m / {})", spec.inner.0.div_ceil(&self.tile.rows.into()), self.tile.rows);
                let _ = writeln!(
                    c,
                    "        const {u} *f = B + ({number} * {step} < {size} ? {size} + {number} * {step} : 0);"
                );
            }
        }
        let start = |v: usize| {
            if header > 0 { format!("load_i32((const i32 *)B + {})", v * lanes) } else { "{0}".into() }
        };
        for r in 0..rows {
            let list: Vec<String> = (0..vectors).map(|v| format!("c{r}_{v} = {}", start(v))).collect();
            let _ = writeln!(c, "        {sum} {};", list.join(", "));
        }
        if self.pieces {
            self.each(rows, vectors, "store({s}, (vf){0});", c);
        }
        let mut a = String::from("a0");
        for (t, (n, step)) in spec.taps.iter().enumerate() {
            if *n > 1 {
                let _ = writeln!(c, "        for (i64 k{t} = 0; k{t} < {n}; k{t}++)");
                let _ = write!(a, " + k{t} * {step}");
            }
        }
        let _ = writeln!(c, "        {{ const {t} *a = {a};");
        match self.run {
            Some(run) => self.bytes(run, rows, vectors, c),
            None => self.floats(rows, columns, c),
        }
        c.push_str("        }\n");
        if self.pieces {
            self.each(rows, vectors, "{c} = load({s});", c);
        }
        debug_assert!(self.tile.rows >= rows);
    }

    /// Vectors that have columns.
    fn vectors(&self, columns: &Columns) -> usize {
        match columns {
            Columns::First(n) => n.div_ceil(self.isa.lanes),
            Columns::Unknown => self.tile.vectors,
        }
    }

    /// How many lanes of a vector are columns: a C expression, nothing for all.
    fn part(&self, columns: &Columns, v: usize) -> Option<String> {
        let (lanes, before) = (self.isa.lanes, v * self.isa.lanes);
        match columns {
            Columns::First(n) if n - before >= lanes => None,
            Columns::First(n) => Some((n - before).to_string()),
            Columns::Unknown => Some(format!("dim_min(dim_max(rest - {before}, 0), LANES)")),
        }
    }

    /// Elements of the right operand in a line of the cache.
    fn line(&self) -> usize {
        if self.spec.element == Element::Float { LINE / 4 } else { LINE }
    }

    /// Asks for what comes next of the panels.
    fn ask_ahead(&self, c: &mut String) {
        let Some(lines) = self.ahead else { return };
        for line in 0..lines {
            let _ = writeln!(c, "          __builtin_prefetch(f + {}, 0, 2);", line * self.line());
        }
        let _ = writeln!(c, "          f += {};", lines * self.line());
    }

    /// The sum over one run of floats.
    fn floats(&self, rows: usize, columns: &Columns, c: &mut String) {
        let (spec, lanes, vectors) = (self.spec, self.isa.lanes, self.vectors(columns));
        if self.pieces {
            let _ = writeln!(c, "        for (i64 from = 0; from < {}; from += {PIECE}) {{", spec.run);
            let _ = writeln!(c, "        const i64 to = dim_min(from + {PIECE}, {});", spec.run);
            c.push_str("        for (i64 kk = from; kk < to; kk++) {\n");
        } else {
            let terms = if self.blocks.is_some() { "kn".into() } else { spec.run.to_string() };
            let _ = writeln!(c, "        for (i64 kk = 0; kk < {terms}; kk++) {{");
        }
        self.ask_ahead(c);
        if self.stored.is_some() {
            // Few bytes a step: the hardware asks for too little ahead of them.
            for line in (0..2 * vectors * lanes).step_by(LINE) {
                let _ = writeln!(c, "          __builtin_prefetch(b + {});", (HALVES_AHEAD + line) / 2);
            }
        }
        for v in 0..vectors {
            let packed = !matches!(spec.b, Operand::RowMajor(_));
            let part = self.part(columns, v).filter(|_| !packed);
            let dtype = self.stored.unwrap_or(DType::F32);
            let b = expr::load(dtype, &format!("b + {}", v * lanes), &1usize.into(), part.as_deref());
            let _ = writeln!(c, "          const vf b{v} = {b};");
        }
        for r in 0..rows {
            let _ = write!(c, "          {{ const vf x = SPLAT(a[kk + {}]);", &spec.inner.1 * r);
            for v in 0..vectors {
                let _ = write!(c, " c{r}_{v} += x * b{v};");
            }
            c.push_str(" }\n");
        }
        let b_step = match &spec.b {
            Operand::RowMajor(ld) => ld.clone(),
            _ => self.width.into(),
        };
        let _ = writeln!(c, "          b += {b_step};\n        }}");
        if self.pieces {
            self.each(rows, vectors, "store({s}, load({s}) + {c}); {c} = (vf){0};", c);
            c.push_str("        }\n");
        }
    }

    /// A statement for each accumulator `{c}` and its place `{s}` in scratch.
    fn each(&self, rows: usize, vectors: usize, statement: &str, c: &mut String) {
        for r in 0..rows {
            for v in 0..vectors {
                let at = (r * self.tile.vectors + v) * self.isa.lanes;
                let place =
                    if self.blocks.is_some() { format!("S + m * {} + {at}", self.width) } else { format!("S + {at}") };
                let _ =
                    writeln!(c, "        {}", statement.replace("{s}", &place).replace("{c}", &format!("c{r}_{v}")));
            }
        }
    }

    /// The sum over one run of bytes, four at a time.
    fn bytes(&self, run: usize, rows: usize, vectors: usize, c: &mut String) {
        let (spec, lanes) = (self.spec, self.isa.lanes);
        let flip = if spec.element == Element::Signed { " ^ (i32)0x80808080" } else { "" };
        let group = |word: &dyn Fn(Extent) -> String, c: &mut String| {
            for v in 0..vectors {
                let _ = writeln!(c, "          const vi b{v} = load_i32((const i32 *)b + {});", v * lanes);
            }
            self.ask_ahead(c);
            // A panel waits in the second cache.
            for line in (0..vectors * lanes * 4).step_by(LINE) {
                let _ = writeln!(c, "          __builtin_prefetch(b + {});", 2048 + line);
            }
            for r in 0..rows {
                let _ = write!(c, "          {{ const vi x = SPLATI({}{flip});", word(&spec.inner.1 * r));
                for v in 0..vectors {
                    let _ = write!(c, " c{r}_{v} = dot4(c{r}_{v}, x, b{v});");
                }
                c.push_str(" }\n");
            }
            let _ = writeln!(c, "          b += {};\n        }}", 4 * self.width);
        };
        let (full, rest) = (run / 4, run % 4);
        if full > 0 {
            let _ = writeln!(c, "        for (i64 kk = 0; kk < {full}; kk++) {{");
            group(&|at| format!("word(a + kk * 4 + {at})"), c);
        }
        if rest > 0 {
            c.push_str("        {\n");
            match run.checked_sub(4) {
                Some(last) => group(&|at| format!("word(a + {})", at + last), c),
                None => group(&|at| format!("word_part(a + {at}, {rest})"), c),
            }
        }
    }
}
