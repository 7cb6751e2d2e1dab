//! Kernels that move elements, in CUDA: a thread moves one word of up to 16 bytes.

use std::fmt::Write;

use crate::kernel::copy::{CopyBox, Fill, Gather};
use crate::kernel::extent::Extent;
use crate::kernel::indexed::Scatter;
use crate::kernel::space::Space;
use crate::kernel::{copy, space};
use crate::print::cuda::launch::{THREADS, index_type, span, thread_per_index};
use crate::print::expr::ctype;
use crate::print::index::{self, word};
use crate::print::indexed::{self, ElementText};
use crate::print::source::Source;

/// Maximum bytes that a thread moves.
const MAX_WORD_BYTES: usize = 16;

/// Rows and columns of a tile of a transpose, which goes through shared memory so that reads and writes are contiguous.
const TILE: usize = 32;

/// The C type of words of this many bytes.
fn wide_word(bytes: usize) -> &'static str {
    if bytes == MAX_WORD_BYTES { "u128" } else { word(bytes) }
}

/// Number of elements in the widest word that divides all of `numbers`.
fn widening<'a>(bytes: usize, numbers: impl Iterator<Item = &'a Extent> + Clone) -> usize {
    let mut by = MAX_WORD_BYTES / bytes;
    while by > 1 && !numbers.clone().all(|n| n.dim().as_const().is_some_and(|n| n % by as i64 == 0)) {
        by /= 2;
    }
    by
}

/// A number of elements in words of `by` elements, which divide it.
fn words(n: &Extent, by: usize) -> Extent {
    match n.dim().as_const() {
        Some(n) => Extent::from(n / by as i64),
        None => n.clone(),
    }
}

/// Copies pieces; arguments are the inputs, then the output (number `out`).
pub fn copy(boxes: &[CopyBox], bytes: usize, out: usize) -> Source {
    let mut c = String::new();
    let mut base = Extent::from(0usize);
    let mut tiled = false;
    for p in boxes {
        let s = space::collapse(&p.dims, &[p.from.1.clone(), p.to.1.clone()]);
        let mut text = String::new();
        let blocks = match transposed(&s) {
            Some(other) => {
                tiled = true;
                transpose(p, &s, other, bytes, out, &mut text)
            }
            None => flat(p, s, bytes, out, &mut text),
        };
        let _ = writeln!(c, "    if (block >= {base} && block < {}) {{", &base + &blocks);
        let _ = writeln!(c, "      const i64 b = block - {base};\n{text}    }}");
        base = base + blocks;
    }
    let tile = format!("  SHARED({}, tile, {});\n", word(bytes), TILE * (TILE + 1));
    let head = if tiled { tile.as_str() } else { "" };
    Source::new(format!("{head}  BLOCKS(block) {{\n{c}  }}\n"), base, 1)
}

/// The contiguous axis of the source, if another one is contiguous in the destination and both are long.
fn transposed(s: &Space) -> Option<usize> {
    const MIN_TILED_EXTENT: usize = 8;
    let last = s.dims.len() - 1;
    let other = (0..last).find(|a| s.strides[0][*a].is(1))?;
    let long = |a: usize| s.dims[a].size_hint() >= MIN_TILED_EXTENT;
    (s.strides[1][last].is(1) && long(last) && long(other)).then_some(other)
}

/// Copies one word a thread; returns the number of blocks.
fn flat(p: &CopyBox, mut s: Space, bytes: usize, out: usize, c: &mut String) -> Extent {
    let last = s.dims.len() - 1;
    let mut by = 1;
    if s.strides.iter().all(|s| s[last].is(1)) {
        let others = s.strides.iter().flat_map(|s| &s[..last]);
        by = widening(bytes, others.chain([&s.dims[last], &p.from.0, &p.to.0]));
        s.dims[last] = words(&s.dims[last], by);
        s.strides.iter_mut().for_each(|s| s[..last].iter_mut().for_each(|n| *n = words(n, by)));
    }
    let (t, total): (_, Extent) = (wide_word(bytes * by), s.dims.iter().product());
    let index = index_type([&total, &span(&s.dims, &s.strides[0]), &span(&s.dims, &s.strides[1])]);
    let _ = writeln!(c, "      const {index} e = ({index})(b * THREADS + threadIdx.x);");
    let offset = |stride: usize, first: &Extent| {
        format!("{} + ({})", words(first, by), index::flat_offset(&s.dims, &s.strides[stride], "e"))
    };
    let (to, from) = (offset(1, &p.to.0), offset(0, &p.from.0));
    let _ = writeln!(c, "      if (e < {total}) ARG({t}, {out})[{to}] = ARG(const {t}, {})[{from}];", p.arg);
    total.div_ceil(&THREADS.into())
}

/// Copies one tile a block; returns the number of blocks.
fn transpose(p: &CopyBox, s: &Space, other: usize, bytes: usize, out: usize, c: &mut String) -> Extent {
    let last = s.dims.len() - 1;
    let t = word(bytes);
    let (n, m) = (&s.dims[other], &s.dims[last]);
    let keep: Vec<usize> = (0..last).filter(|a| *a != other).collect();
    let pick = |all: &[Extent]| keep.iter().map(|a| all[*a].clone()).collect::<Vec<_>>();
    let outer = pick(&s.dims);
    let (tn, tm) = (n.div_ceil(&TILE.into()), m.div_ceil(&TILE.into()));
    let (from, to) = (&s.strides[0], &s.strides[1]);
    let _ = writeln!(
        c,
        "      const i64 i0 = b % {tn} * {TILE}, j0 = b / {tn} % {tm} * {TILE}, row = b / {};
      PTR(const {t}) from = ARG(const {t}, {}) + {} + ({});
      PTR({t}) to = ARG({t}, {out}) + {} + ({});
      const i32 x = threadIdx.x % {TILE}, y = threadIdx.x / {TILE};
      for (i32 k = y; k < {TILE}; k += THREADS / {TILE})
        if (i0 + x < {n} && j0 + k < {m}) tile[k * {pitch} + x] = from[i0 + x + (j0 + k) * {}];
      __syncthreads();
      for (i32 k = y; k < {TILE}; k += THREADS / {TILE})
        if (i0 + k < {n} && j0 + x < {m}) to[(i0 + k) * {} + j0 + x] = tile[x * {pitch} + k];
      __syncthreads();",
        &tn * &tm,
        p.arg,
        p.from.0,
        index::flat_offset(&outer, &pick(from), "row"),
        p.to.0,
        index::flat_offset(&outer, &pick(to), "row"),
        from[last],
        to[other],
        pitch = TILE + 1,
    );
    outer.iter().product::<Extent>() * tn * tm
}

/// Pads with `fill`: output extent, input extent and elements before, for each axis.
pub fn pad(axes: &[(Extent, Extent, Extent)], bytes: usize, fill: Fill) -> Source {
    let mut axes = copy::merge_unpadded_axes(axes);
    let last = axes.len() - 1;
    // Only zeros are equal in words of any width.
    let zeros = fill == Fill::Bits(0);
    let by = if zeros { widening(bytes, [&axes[last].0, &axes[last].1, &axes[last].2].into_iter()) } else { 1 };
    let (out, own, before) = &axes[last];
    axes[last] = (words(out, by), words(own, by), words(before, by));
    let dims: Vec<Extent> = axes.iter().map(|a| a.0.clone()).collect();
    let from = space::row_major(&axes.iter().map(|a| a.1.clone()).collect::<Vec<_>>());
    let steps = space::row_major(&dims);
    let t = wide_word(bytes * by);
    let (mut text, mut inside, mut at) = (String::new(), Vec::new(), Vec::new());
    for (a, (out, own, before)) in axes.iter().enumerate() {
        let _ = writeln!(text, "    const i64 x{a} = it / {} % {out} - ({before});", steps[a]);
        inside.push(format!("x{a} >= 0 && x{a} < {own}"));
        at.push(format!("x{a} * {}", from[a]));
    }
    let (inside, at) = (inside.join(" && "), at.join(" + "));
    let _ = writeln!(text, "    {t} v = {{}};\n    if ({inside}) v = ARG(const {t}, 0)[{at}];");
    let _ = match fill {
        Fill::Bits(0) => writeln!(text, "    ARG({t}, 1)[it] = v;"),
        Fill::Bits(bits) => writeln!(text, "    else v = ({t}){bits}ULL;\n    ARG({t}, 1)[it] = v;"),
        Fill::Argument => writeln!(text, "    else v = ARG(const {t}, 1)[0];\n    ARG({t}, 2)[it] = v;"),
    };
    thread_per_index(&dims.iter().product(), "it", "", &text)
}

/// Gathers the rows that indices select.
pub fn gather(g: &Gather) -> Source {
    let by = widening(g.bytes, [&g.inner].into_iter());
    let (t, inner, axis) = (wide_word(g.bytes * by), words(&g.inner, by), &g.axis);
    let total = &g.outer * &g.indices * &inner;
    let text = format!(
        "    const i64 i = it % {inner}, j = it / {inner} % {}, o = it / {};
    i64 k = ARG(const {}, 1)[j]; if (k < 0) k += {axis};
    if (k < 0 || k >= {axis}) return 1;
    ARG({t}, 2)[it] = ARG(const {t}, 0)[(o * {axis} + k) * {inner} + i];\n",
        g.indices,
        &inner * &g.indices,
        ctype(g.index),
    );
    thread_per_index(&total, "it", "", &text)
}

/// Elements whose positions are computed.
pub fn elements(p: &ElementText) -> Source {
    let one = [Extent::from(1usize)];
    let dims = if p.dims.is_empty() { &one[..] } else { &p.dims };
    let (outer, width) = (&dims[..dims.len() - 1], &dims[dims.len() - 1]);
    let mut text = format!("    const i64 row = it / {width}, x{} = it % {width};\n", outer.len());
    for (axis, (d, step)) in outer.iter().zip(&space::row_major(outer)).enumerate() {
        let _ = writeln!(text, "    const i64 x{axis} = row / {step} % {d};");
    }
    let _ = writeln!(text, "{}{}    ARG({}, {})[it] = {};", p.row, p.point, p.element, p.out, p.value);
    thread_per_index(&dims.iter().product(), "it", &p.head, &text)
}

/// Minimum blocks of a scatter, if it has as many rows.
const MIN_SCATTER_BLOCKS: usize = 256;

/// Copies the first argument to the fourth, then writes the slices of the third into it; overlapping slices are written in
/// order. The result is rows of `inner` elements, partitioned into rows or columns over blocks, which need no synchronisation.
/// Each block scans all indices, a slice a thread, and collects those in its part, in order; then each thread applies the
/// updates of its elements.
pub fn scatter(s: &Scatter) -> Source {
    let (text, inner, slices) = (indexed::scatter(s), &s.inner(), s.slices());
    let t = text.element;
    let rows = s.total().div_floor(&inner.max(&1usize.into()));
    // Threads over the columns of a row; the other threads of a block have other rows.
    let width = inner.number().map_or(THREADS, |n| n.next_power_of_two().min(THREADS));
    let (side, together) = (THREADS / width, inner.div_ceil(&width.into()));
    let most = rows.number().map_or(MIN_SCATTER_BLOCKS, |n| n.clamp(1, MIN_SCATTER_BLOCKS));
    let tiles = together.number().map_or(MIN_SCATTER_BLOCKS, |n| MIN_SCATTER_BLOCKS.div_ceil(n.max(1))).min(most);
    let each = rows.div_ceil(&tiles.into());
    let mut c = text.head;
    let _ = write!(
        c,
        "  PTR(const {t}) x = ARG(const {t}, 0);
  PTR(const {t}) u = ARG(const {t}, 2);
  PTR({t}) y = ARG({t}, 3);
  SHARED(i64, rows, THREADS);
  SHARED(i64, from, THREADS);
  SHARED(i32, counts, THREADS / 32);
  const auto find = [&](const i64 i, i64 &row) -> i32 {{
{}
    row = at / {inner};
    return 0;
  }};
  const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, side = threadIdx.x / {width};
  i32 status = 0;
  BLOCKS(block) {{
    const i64 low = block / {together} * {each}, high = low + {each} < {rows} ? low + {each} : {rows};
    const i64 j = block % {together} * {width} + threadIdx.x % {width};
    for (i64 row = low + side; row < high; row += {side})
      if (j < {inner}) y[row * {inner} + j] = x[row * {inner} + j];
    for (i64 first = 0; first < {slices}; first += THREADS) {{
      const i64 own = first + threadIdx.x;
      i64 row = -1;
      if (own < {slices}) {{
        const i32 found = find(own, row);
        if (found) {{ row = -1; status = found; }}
      }}
      const bool ours = row >= low && row < high;
      const u32 all = __ballot_sync(0xffffffffu, ours);
      if (lane == 0) counts[warp] = __popc(all);
      __syncthreads();
      i32 before = 0, count = 0;
      for (i32 w = 0; w < THREADS / 32; w++) {{
        if (w < warp) before += counts[w];
        count += counts[w];
      }}
      if (ours) {{
        const i32 n = before + __popc(all & ((1u << lane) - 1));
        rows[n] = row;
        from[n] = own;
      }}
      __syncthreads();
      for (i32 n = 0; n < count; n++) {{
        if ((rows[n] - low) % {side} != side || j >= {inner}) continue;
        const i64 at = rows[n] * {inner} + j;
        const {t} a = y[at], b = u[from[n] * {inner} + j];
        y[at] = {};
      }}
      __syncthreads();
    }}
  }}
  if (status) return status;
",
        text.slice, text.combine,
    );
    Source::new(c, together * tiles, 1)
}
