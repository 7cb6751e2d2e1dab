//! Kernels that move elements: transposes, slices, broadcasts, concatenation, padding, gathering of rows.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::{CACHE_LINE_BYTES, Isa};
use crate::kernel::copy::{CopyBox, Fill, Gather, merge_unpadded_axes};
use crate::kernel::extent::Extent;
use crate::kernel::space;
use crate::kernel::space::Space;
use crate::print::c::vector;
use crate::print::expr::ctype;
use crate::print::extent::LongExtents;
use crate::print::index::word;
use crate::print::{Source, index};

/// Copies pieces; arguments are the inputs, then the output (number `out`).
pub fn copy(boxes: &[CopyBox], element_bytes: usize, out: usize, isa: &Isa) -> Source {
    let t = word(element_bytes);
    let mut base = Extent::from(0usize);
    let mut largest = 1;
    let mut long = LongExtents::default();
    let mut pieces = Vec::with_capacity(boxes.len());
    for p in boxes {
        let s = space::collapse(&p.dims, &[p.from.1.clone(), p.to.1.clone()]);
        let plan = CopyLoop::of(&s, element_bytes).in_whole_vectors(isa);
        let end = &base + &plan.rows();
        largest = largest.max(plan.inner());
        let plan = plan.shortened(&mut long);
        let first = long.short(&base);
        let (row, block) = match plan.outer_rows() {
            Some(rows) => (format!("% {rows}"), format!("/ {rows}")),
            None => (format!("/ {}", plan.blocks()), format!("% {}", plan.blocks())),
        };
        let mut c = format!(
            "    if (it >= {first} && it < {}) {{ const i64 row = (it - {first}) {row}, block = (it - {first}) {block};\n",
            long.short(&end)
        );
        let _ = writeln!(
            c,
            "      const {t} *from = (const {t} *)args[{}] + {} + ({});",
            p.arg,
            long.short(&p.from.0),
            index::flat_offset(&plan.outer, &plan.from, "row")
        );
        let _ = writeln!(
            c,
            "      {t} *to = ({t} *)args[{out}] + {} + ({});",
            long.short(&p.to.0),
            index::flat_offset(&plan.outer, &plan.to, "row")
        );
        plan.body(isa, &mut c);
        c.push_str("    }\n");
        pieces.push((first, c));
        base = end;
    }
    let mut c = format!("{}  for (i64 it = begin; it < end; it++) {{\n", long.declarations);
    bisect(&pieces, &mut c);
    c.push_str("  }\n");
    /// Pieces whose loops are inlined: a C compiler takes seconds for some hundred loops in one function.
    const MAX_INLINED_PIECES: usize = 16;
    let source = Source::new(c, base, (16384 / largest.max(1)).max(1) as i64);
    Source { calls_functions: boxes.len() > MAX_INLINED_PIECES, ..source }
}

/// Prints the pieces, each with its first iteration, as a search tree: an iteration compares with few of many pieces.
fn bisect(pieces: &[(Extent, String)], c: &mut String) {
    /// Pieces that are compared one after another.
    const MAX_LINEAR_PIECES: usize = 8;
    if pieces.len() <= MAX_LINEAR_PIECES {
        pieces.iter().for_each(|(_, text)| c.push_str(text));
        return;
    }
    let (low, high) = pieces.split_at(pieces.len() / 2);
    let _ = writeln!(c, "    if (it < {}) {{", high[0].0);
    bisect(low, c);
    c.push_str("    } else {\n");
    bisect(high, c);
    c.push_str("    }\n");
}

/// The loop nest of one piece: outer rows, then one or two inner axes.
struct CopyLoop {
    outer: Vec<Extent>,
    from: Vec<Extent>,
    to: Vec<Extent>,
    /// (extent, source stride, destination stride) of the inner axes; two where reads and writes are contiguous along different
    /// axes.
    inner: Vec<(Extent, Extent, Extent)>,
    /// Adjacent elements that are moved at once. More than one where runs are contiguous on both sides, and the inner axes are those along
    /// which they follow each other in the source and in the destination.
    run: usize,
    /// Where the last inner axis is merged with the last outer one: the extent of the former, and the source strides of both.
    merged: Option<(usize, Extent, Extent)>,
    /// Bytes of an element.
    bytes: usize,
}

/// Bytes of the source that a block of runs reads at once: short pieces of lines that are far apart take three times as long.
const READ_BYTES: usize = 512;

/// Runs of a block along the destination.
const BLOCK_RUNS: usize = 64;

impl CopyLoop {
    fn of(s: &Space, bytes: usize) -> CopyLoop {
        let n = s.dims.len();
        let axis = |i: usize| (s.dims[i].clone(), s.strides[0][i].clone(), s.strides[1][i].clone());
        let last = axis(n - 1);
        // A transpose: another axis of the source is contiguous.
        let scattered = !last.1.is(1) && !last.1.is(0);
        let other = if scattered { (0..n - 1).find(|i| s.strides[0][*i].is(1)) } else { None };
        let (run, inner) = match (other, transposed_runs(s, bytes)) {
            (Some(other), _) => (1, vec![other, n - 1]),
            (None, Some((run, other))) => (run, vec![other, n - 2]),
            (None, None) => (1, vec![n - 1]),
        };
        let keep: Vec<usize> = (0..if run > 1 { n - 1 } else { n }).filter(|i| !inner.contains(i)).collect();
        CopyLoop {
            outer: keep.iter().map(|i| s.dims[*i].clone()).collect(),
            from: keep.iter().map(|i| s.strides[0][*i].clone()).collect(),
            to: keep.iter().map(|i| s.strides[1][*i].clone()).collect(),
            inner: inner.into_iter().map(axis).collect(),
            run,
            merged: None,
            bytes,
        }
    }

    /// The same, where the columns of a transpose of words are a part of a vector, and several rows fill it.
    fn in_whole_vectors(mut self, isa: &Isa) -> CopyLoop {
        let [(n, ..), (m, fb, _)] = &self.inner[..] else { return self };
        let (Some(_), Some(m), true) = (n.number(), m.number(), self.in_vectors() && isa.has_masks()) else {
            return self;
        };
        let fb = fb.clone();
        if let (Some(rows), Some(from), Some(to)) = (self.outer.last_mut(), self.from.last_mut(), self.to.last_mut())
            && m < isa.lanes
            && isa.lanes.is_multiple_of(m)
            && rows.is_multiple_of(isa.lanes / m)
            && to.is(m as i64)
        {
            let several = Extent::from(isa.lanes / m);
            self.merged = Some((m, from.clone(), fb));
            (*rows, *from, *to) = (rows.div_floor(&several), &*from * &several, &*to * &several);
            self.inner[1].0 = isa.lanes.into();
        }
        self
    }

    /// The same with variables for long extents.
    fn shortened(self, long: &mut LongExtents) -> CopyLoop {
        let mut list = |extents: &[Extent]| extents.iter().map(|e| long.short(e)).collect();
        let (outer, from, to) = (list(&self.outer), list(&self.from), list(&self.to));
        let inner = self.inner.iter().map(|(n, a, b)| (long.short(n), long.short(a), long.short(b))).collect();
        CopyLoop { outer, from, to, inner, ..self }
    }

    /// Whether square blocks of words are transposed in vectors.
    fn in_vectors(&self) -> bool {
        matches!(&self.inner[..], [(_, fa, _), (_, _, tb)] if self.bytes == 4 && fa.is(1) && tb.is(1))
    }

    /// Elements in a word of 64 bits, where square blocks of so many rows and columns are transposed in words.
    fn in_words(&self) -> Option<usize> {
        match &self.inner[..] {
            [(_, fa, _), (_, _, tb)] if matches!(self.bytes, 1 | 2) && fa.is(1) && tb.is(1) => Some(8 / self.bytes),
            _ => None,
        }
    }

    /// Rows and columns of a transpose block: it fits the L1 cache, and whole lines are read.
    fn block(&self) -> usize {
        match self.in_words() {
            Some(_) => 64,
            None if self.run > 1 => READ_BYTES / (self.run * self.bytes),
            None if self.in_vectors() => 32,
            None => 16,
        }
    }

    /// Iterations: rows, times blocks of the first inner axis of a transpose.
    fn rows(&self) -> Extent {
        self.outer.iter().product::<Extent>() * self.blocks()
    }

    /// The outer rows, where a block of all of them comes before the next: rows then fill cache lines of the destination one after
    /// another, which the columns of a row do not.
    fn outer_rows(&self) -> Option<Extent> {
        let [_, (m, _, _)] = &self.inner[..] else { return None };
        if self.run > 1 {
            return None;
        }
        let short = m.number().is_some_and(|m| m * self.bytes < CACHE_LINE_BYTES);
        (short && self.to.last() == Some(m)).then(|| self.outer.iter().product())
    }

    /// Blocks of the inner axes.
    fn blocks(&self) -> Extent {
        if self.inner.len() == 2 {
            self.inner[0].0.div_ceil(&self.block().into()) * self.chunks()
        } else {
            1usize.into()
        }
    }

    /// Blocks of the last inner axis.
    fn chunks(&self) -> Extent {
        if self.run > 1 { self.inner[1].0.div_ceil(&BLOCK_RUNS.into()) } else { 1usize.into() }
    }

    fn inner(&self) -> usize {
        match self.run {
            1 => self.inner.iter().map(|a| a.0.size_hint()).product(),
            run => run * self.block() * BLOCK_RUNS,
        }
    }

    /// A block of runs: a few that are adjacent in the source, for each of those that are in the destination.
    fn runs(&self, isa: &Isa, c: &mut String) {
        let [(n, fa, ta), (m, fb, tb)] = &self.inner[..] else { return };
        let (side, chunks, bytes) = (self.block(), self.chunks(), self.run * self.bytes);
        let end = |first: &str, size: usize, all: &Extent| format!("dim_min({first} + {size}, {all})");
        let _ = writeln!(
            c,
            "      const i64 i0 = block / {chunks} * {side}, i1 = {}, b0 = block % {chunks} * {BLOCK_RUNS}, b1 = {};",
            end("i0", side, n),
            end("b0", BLOCK_RUNS, m)
        );
        c.push_str("      for (i64 b = b0; b < b1; b++) for (i64 i = i0; i < i1; i++) {\n");
        let (p, q) = (format!("from + i * {fa} + b * {fb}"), format!("to + i * {ta} + b * {tb}"));
        if bytes.is_multiple_of(4 * isa.lanes) {
            let _ = writeln!(c, "        const f32 *p = (const f32 *)({p}); f32 *q = (f32 *)({q});");
            for at in (0..bytes / 4).step_by(isa.lanes) {
                let _ = writeln!(c, "        store(q + {at}, load(p + {at}));");
            }
        } else {
            let _ = writeln!(c, "        move({q}, {p}, {bytes});");
        }
        c.push_str("      }\n");
    }

    /// A block of a transpose of words, tile by tile: `n` columns of the source, whose lines are `from` apart, become lines `to` apart of
    /// `m` columns. The last tiles may be narrower.
    fn tiles(&self, [(n, from), (m, to)]: [(usize, &Extent); 2], lanes: usize, c: &mut String) {
        let _ = writeln!(c, "      const i64 i2 = i0 + (i1 - i0) / {lanes} * {lanes};");
        let tile = |lines: usize, columns: usize, c: &mut String| {
            let _ = writeln!(c, "          const f32 *p = (const f32 *)from + i + b * {from};");
            let _ = writeln!(c, "          f32 *q = (f32 *)to + i * {to} + b;");
            let line = |l: usize| match &self.merged {
                Some((m, outer, inner)) => outer * (l / m) + inner * (l % m),
                None => from * l,
            };
            transpose_part(&line, to, (lines, columns), lanes, c);
        };
        let lines = |lines: usize, c: &mut String| {
            if n >= lanes {
                let _ = writeln!(c, "        for (i64 i = i0; i < i2; i += {lanes}) {{");
                tile(lines, lanes, c);
                c.push_str("        }\n");
            }
            if n % lanes > 0 {
                c.push_str("        if (i2 < i1) { const i64 i = i2;\n");
                tile(lines, n % lanes, c);
                c.push_str("        }\n");
            }
        };
        if m >= lanes {
            let _ = writeln!(c, "      for (i64 b = 0; b + {lanes} <= {m}; b += {lanes}) {{");
            lines(lanes, c);
            c.push_str("      }\n");
        }
        if m % lanes > 0 {
            let _ = writeln!(c, "      {{ const i64 b = {};", m / lanes * lanes);
            lines(m % lanes, c);
            c.push_str("      }\n");
        }
    }

    fn body(&self, isa: &Isa, c: &mut String) {
        /// Columns that are copied without blocking.
        const MAX_UNROLLED_COLUMNS: usize = 4;
        if self.run > 1 {
            return self.runs(isa, c);
        }
        if let [(n, from, to)] = &self.inner[..] {
            if from.is(1) && to.is(1) {
                let _ = writeln!(c, "      move(to, from, {});", n * self.bytes);
                return;
            }
            let value = if from.is(0) { "from[0]".into() } else { format!("from[i * {from}]") };
            let _ = writeln!(c, "      for (i64 i = 0; i < {n}; i++) to[i * {to}] = {value};");
        } else if let [(n, fa, ta), (m, fb, tb)] = &self.inner[..] {
            // Square blocks fit the L1 cache; inside, writes are contiguous.
            let side = self.block();
            let _ = writeln!(c, "      const i64 i0 = block * {side}, i1 = i0 + {side} < {n} ? i0 + {side} : {n};");
            if self.in_vectors()
                && isa.has_masks()
                && let (Some(n), Some(m)) = (n.number(), m.number())
            {
                return self.tiles([(n, fb), (m, ta)], isa.lanes, c);
            }
            if let Some(m) = m.number().filter(|m| *m <= MAX_UNROLLED_COLUMNS) {
                c.push_str("      for (i64 i = i0; i < i1; i++) {");
                for j in 0..m {
                    let _ = write!(c, " to[i * {ta} + {}] = from[i * {fa} + {}];", tb * j, fb * j);
                }
                c.push_str(" }\n");
                return;
            }
            let tile = if self.in_vectors() { Some(isa.lanes) } else { self.in_words() };
            if let Some(side) = tile {
                let _ = writeln!(c, "      i64 b = 0, i2 = i0 + (i1 - i0) / {side} * {side};");
                let _ = writeln!(c, "      for (; b + {side} <= {m}; b += {side}) {{");
                let _ = writeln!(c, "        for (i64 i = i0; i < i2; i += {side}) {{");
                match self.in_words() {
                    Some(_) => {
                        let _ = writeln!(c, "          const u8 *p = (const u8 *)(from + i + b * {fb});");
                        let _ = writeln!(c, "          u8 *q = (u8 *)(to + i * {ta} + b);");
                        transpose_words(&(fb * self.bytes), &(ta * self.bytes), self.bytes, c);
                    }
                    None => {
                        let _ = writeln!(c, "          const f32 *p = (const f32 *)from + i + b * {fb};");
                        let _ = writeln!(c, "          f32 *q = (f32 *)to + i * {ta} + b;");
                        transpose_tile(fb, ta, side, c);
                    }
                }
                c.push_str("        }\n");
                let _ = writeln!(
                    c,
                    "        for (i64 i = i2; i < i1; i++) for (i64 j = b; j < b + {side}; j++) to[i * {ta} + j] = from[i + j * {fb}];\n      }}"
                );
                let _ = writeln!(
                    c,
                    "      for (i64 i = i0; i < i1; i++) for (i64 j = b; j < {m}; j++) to[i * {ta} + j] = from[i + j * {fb}];"
                );
                return;
            }
            let _ = writeln!(c, "      for (i64 b = 0; b < {m}; b += {side}) for (i64 i = i0; i < i1; i++)");
            let _ = writeln!(
                c,
                "        for (i64 j = b; j < b + {side} && j < {m}; j++) to[i * {ta} + j * {tb}] = from[i * {fa} + j * {fb}];"
            );
        }
    }
}

/// Elements of a run and the axis along which runs are adjacent in the source, where the axis before the last is the one along which they
/// are in the destination, and runs are short.
fn transposed_runs(s: &Space, bytes: usize) -> Option<(usize, usize)> {
    let n = s.dims.len();
    let run = s.dims.last()?.number().filter(|_| n > 2)?;
    let follows = |i: usize, side: usize| s.strides[side][i].is(run as i64);
    let contiguous = s.strides.iter().all(|strides| strides[n - 1].is(1));
    if run < 2 || 2 * run * bytes > READ_BYTES || !contiguous || !follows(n - 2, 1) {
        return None;
    }
    (0..n - 2).find(|i| follows(*i, 0)).map(|other| (run, other))
}

/// Transposes a tile of words from `p`, whose lines are at the offsets `from`, to `q`, lines `to` apart: swaps blocks of half a line, then of a quarter, and
/// so on. Lines of it that are no lanes, and lanes that are no lines, are neither read nor written.
fn transpose_part(
    from: &dyn Fn(usize) -> Extent,
    to: &Extent,
    (lines, columns): (usize, usize),
    lanes: usize,
    c: &mut String,
) {
    let one = Extent::from(1usize);
    let part = |n: usize| (n < lanes).then(|| n.to_string());
    for i in 0..lines {
        let line = vector::load(DType::F32, &format!("p + {}", from(i)), &one, part(columns).as_deref());
        let _ = writeln!(c, "          const vf r{i}_0 = {line};");
    }
    // Whether there is a vector, or it would have zeros alone.
    let mut there: Vec<bool> = (0..lanes).map(|i| i < lines).collect();
    let steps = lanes.trailing_zeros();
    for (step, s) in (0..steps).map(|step| (step, 1 << step)) {
        let (low, high) = interleave_shuffle(lanes, s);
        for i in (0..lanes).filter(|i| i & s == 0) {
            let some = there[i] || there[i + s];
            if some {
                let name = |i: usize| if there[i] { format!("r{i}_{step}") } else { "SPLAT(0)".into() };
                let (a, b) = (name(i), name(i + s));
                let _ = writeln!(c, "          const vf r{i}_{} = SHUFFLE({a}, {b}, {low});", step + 1);
                let _ = writeln!(c, "          const vf r{}_{} = SHUFFLE({a}, {b}, {high});", i + s, step + 1);
            }
            (there[i], there[i + s]) = (some, some);
        }
    }
    for i in 0..columns {
        let at = format!("q + {}", to * i);
        let _ = match part(lines) {
            None => writeln!(c, "          store({at}, r{i}_{steps});"),
            Some(n) => writeln!(c, "          store_part({at}, r{i}_{steps}, {n});"),
        };
    }
}

/// As [`transpose_part`], of a whole square.
pub fn transpose_tile(from: &Extent, to: &Extent, lanes: usize, c: &mut String) {
    transpose_part(&|line| from * line, to, (lanes, lanes), lanes, c);
}

/// Transposes a square of elements of one or two bytes, each line of which is a word of 64 bits: swaps the two 32-bit parts of words, then
/// quarters, and so on. Lines are `from` bytes apart at `p`, and `to` bytes at `q`.
fn transpose_words(from: &Extent, to: &Extent, bytes: usize, c: &mut String) {
    let side = 8 / bytes;
    for i in 0..side {
        let _ = writeln!(c, "          u64 r{i} = eight(p + {});", from * i);
    }
    for s in (0..side.trailing_zeros()).rev().map(|step| 1 << step) {
        let bits = 8 * bytes * s;
        // The elements of even blocks of `s`.
        let mask = (0..64).filter(|bit| (bit / bits).is_multiple_of(2)).fold(0u64, |mask, bit| mask | 1 << bit);
        for i in (0..side).filter(|i| i & s == 0) {
            let (a, b) = (format!("r{i}"), format!("r{}", i + s));
            let _ = writeln!(c, "          const u64 t{i}_{s} = (({a} >> {bits}) ^ {b}) & {mask}ULL;");
            let _ = writeln!(c, "          {b} = {b} ^ t{i}_{s}; {a} = {a} ^ (t{i}_{s} << {bits});");
        }
    }
    for i in 0..side {
        let _ = writeln!(c, "          put_eight(q + {}, r{i});", to * i);
    }
}

/// The lane selections that swap blocks of `s` lanes between two vectors.
pub fn interleave_shuffle(lanes: usize, s: usize) -> (String, String) {
    let list = |of: &dyn Fn(usize) -> usize| (0..lanes).map(|l| of(l).to_string()).collect::<Vec<_>>().join(", ");
    let low = list(&|l| if l & s > 0 { lanes + l - s } else { l });
    let high = list(&|l| if l & s > 0 { lanes + l } else { l + s });
    (low, high)
}

/// Pads with `fill`: output extent, input extent and elements before, for each axis. A negative number of elements before
/// crops.
pub fn pad(axes: &[(Extent, Extent, Extent)], element_bytes: usize, fill: Fill) -> Source {
    let t = word(element_bytes);
    let (fill, result) = match fill {
        Fill::Bits(bits) => (format!("({t}){bits}ULL"), 1),
        Fill::Argument => (format!("*(const {t} *)args[1]"), 2),
    };
    let axes = &merge_unpadded_axes(axes);
    let out: Vec<Extent> = axes.iter().map(|a| a.0.clone()).collect();
    let input: Vec<Extent> = axes.iter().map(|a| a.1.clone()).collect();
    let strides = space::row_major(&input);
    let n = axes.len() - 1;
    let rows: Extent = out[..n].iter().product();
    let (width, own, before) = &axes[n];
    let ones = u64::MAX / (u64::MAX >> (64 - 8 * element_bytes.clamp(1, 8)));
    let mut c =
        format!("  const u64 pattern = (u64){fill} * {ones}ULL;\n  for (i64 row = begin; row < end; row++) {{\n");
    let _ = writeln!(c, "    {t} *to = ({t} *)args[{result}] + row * {width};");
    let mut below = Extent::from(1usize);
    let (mut inside, mut at) = (vec!["1".to_string()], vec!["0".to_string()]);
    for axis in (0..n).rev() {
        let _ = writeln!(c, "    const i64 x{axis} = row / {below} % {} - ({});", out[axis], axes[axis].2);
        inside.push(format!("x{axis} >= 0 && x{axis} < {}", axes[axis].1));
        at.push(format!("x{axis} * {}", strides[axis]));
        below = below * &out[axis];
    }
    let first = before.max(&0usize.into()).min(width);
    let last = (before + own).max(&first).min(width);
    let _ = writeln!(c, "    if ({}) {{", inside.join(" && "));
    let _ = writeln!(c, "      const {t} *from = (const {t} *)args[0] + ({}) - ({before});", at.join(" + "));
    let _ = writeln!(c, "      fill(to, pattern, {});", &first * element_bytes);
    let _ = writeln!(c, "      move(to + {first}, from + {first}, {});", (&last - &first) * element_bytes);
    let _ = writeln!(c, "      fill(to + {last}, pattern, {});", (width - &last) * element_bytes);
    let _ = writeln!(c, "    }} else fill(to, pattern, {});\n  }}", width * element_bytes);
    Source::new(c, rows, (16384 / width.size_hint().max(1)).max(1) as i64)
}

/// Gathers the rows that indices select.
pub fn gather(g: &Gather) -> Source {
    let Gather { outer, axis, inner, indices, index, bytes } = g;
    let (t, index) = (word(*bytes), ctype(*index));
    let mut c = String::from("  for (i64 it = begin; it < end; it++) {\n");
    let _ = writeln!(c, "    const i64 o = it / {indices}, j = it % {indices};");
    let _ = writeln!(c, "    i64 k = ((const {index} *)args[1])[j]; if (k < 0) k += {axis};");
    let _ = writeln!(c, "    if (k < 0 || k >= {axis}) return 1;");
    let _ = writeln!(c, "    const {t} *from = (const {t} *)args[0] + (o * {axis} + k) * {inner};");
    let _ = writeln!(c, "    {t} *to = ({t} *)args[2] + it * {inner};");
    let _ = writeln!(c, "    move(to, from, {});\n  }}", inner * *bytes);
    Source::new(c, outer * indices, (16384 / inner.size_hint().max(1)).max(1) as i64)
}
