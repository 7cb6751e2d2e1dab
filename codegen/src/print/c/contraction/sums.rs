//! The sums of a register tile, for every element type.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::{CACHE_LINE_BYTES, Isa};
use crate::kernel::contraction::{
    CacheBlocking, Contraction, Element, PARTIAL_SUM_TERMS, RhsLayout, Tile, k_extent, k_groups, panel_elements,
    panel_header_bytes,
};
use crate::kernel::corrected;
use crate::kernel::extent::Extent;
use crate::print::c::vector;
use crate::print::expr::ctype;

/// Prefetch distance for 16-bit floats, in bytes.
const HALF_PREFETCH_BYTES: usize = 4096;

/// The valid columns of a panel.
pub(crate) enum Columns {
    /// This many.
    First(usize),
    /// The value of the C variable `rest`.
    Unknown,
}

/// Prints the sums of a tile.
pub(crate) struct Sums<'a> {
    pub spec: &'a Contraction,
    /// Length of the contiguous run of `a` at each tap, for packed groups; `None` where rows of `b` are read.
    pub k_inner: Option<usize>,
    /// The type of the panel's elements where these are 16-bit floats.
    pub stored: Option<DType>,
    /// Whether a long sum is split into partial sums, which are accumulated in scratch.
    pub blocked_sum: bool,
    /// The blocking, where a tile sums only a block of terms: `kn` from `k0` on.
    pub blocks: Option<CacheBlocking>,
    pub tile: Tile,
    pub isa: &'a Isa,
    pub width: usize,
    /// Cache lines that each step of the sum prefetches; `None` where the right operand stays in the cache.
    pub prefetch_lines: Option<usize>,
    /// Whether each sum is a dot product along its terms, for a right operand with contiguous columns.
    pub dot_product_form: bool,
}

impl Sums<'_> {
    /// The sums `c0_0`, `c0_1` … of `rows` rows from `(o, m)` on.
    pub(super) fn tile(&self, rows: usize, columns: &Columns, c: &mut String) {
        let (spec, lanes) = (self.spec, self.isa.lanes);
        if let (true, RhsLayout::Transposed(line)) = (self.dot_product_form, &spec.rhs) {
            return self.dot_products(line, columns, c);
        }
        let vectors = self.vectors(columns);
        let [t, u, sum, _] = spec.element.c_types();
        let u = self.stored.map_or(u, ctype);
        let _ = writeln!(c, "        const {t} *a0 = A + o * {} + m * {};", spec.outer.1, spec.inner.1);
        let header = panel_header_bytes(spec, self.width);
        let _ = writeln!(c, "        const {u} *b = B + {header};");
        if let Some(lines) = self.prefetch_lines {
            // Each tile prefetches its share of the next panel.
            let (share, group) = (lines * self.line(), spec.element.k_group());
            if let Some(b) = self.blocks {
                let number = format!("(m / {} - part * {})", self.tile.rows, b.row_tiles);
                let _ = writeln!(
                    c,
                    "        const {u} *f = {number} * {share} < {0} ? N + {number} * {share} * (kn / {group}) : B;",
                    group * self.width
                );
            } else {
                let (size, step) = (panel_elements(spec, self.width), k_groups(spec) * share);
                let number = match self.tile.lines(spec) {
                    1 => format!("(o * {} + m / {})", spec.inner.0.div_ceil(&self.tile.rows.into()), self.tile.rows),
                    lines => format!("(o / {lines})"),
                };
                let _ = writeln!(
                    c,
                    "        const {u} *f = B + ({number} * {step} < {size} ? {size} + {number} * {step} : 0);"
                );
            }
        }
        let start = |v: usize| {
            if spec.element == Element::S8S8 {
                format!("load_i32((const i32 *)B + {})", v * lanes)
            } else {
                "{0}".into()
            }
        };
        for r in 0..rows {
            let list: Vec<String> = (0..vectors).map(|v| format!("c{r}_{v} = {}", start(v))).collect();
            let _ = writeln!(c, "        {sum} {};", list.join(", "));
        }
        if self.blocked_sum {
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
        match (self.k_inner, spec.element) {
            (Some(k_inner), _) => self.groups(k_inner, rows, vectors, c),
            (None, Element::F16Pair(_)) => self.pairs(rows, columns, c),
            (None, _) => self.floats(rows, columns, c),
        }
        c.push_str("        }\n");
        if spec.rhs == RhsLayout::Corrected {
            self.corrections(rows, vectors, c);
        }
        if self.blocked_sum {
            self.each(rows, vectors, "{c} = load({s});", c);
        }
        debug_assert!(self.tile.rows >= rows);
    }

    /// Number of vectors with valid columns.
    pub(super) fn vectors(&self, columns: &Columns) -> usize {
        match columns {
            Columns::First(n) => n.div_ceil(self.isa.lanes),
            Columns::Unknown => self.tile.vectors,
        }
    }

    /// C expression of the number of valid lanes; `None` for all.
    pub(super) fn part(&self, columns: &Columns, v: usize) -> Option<String> {
        let (lanes, before) = (self.isa.lanes, v * self.isa.lanes);
        match columns {
            Columns::First(n) if n - before >= lanes => None,
            Columns::First(n) => Some((n - before).to_string()),
            Columns::Unknown => Some(format!("dim_min(dim_max(rest - {before}, 0), LANES)")),
        }
    }

    /// Elements of the right operand in a cache line.
    fn line(&self) -> usize {
        CACHE_LINE_BYTES / self.spec.element.size()
    }

    /// Prefetches the next panel.
    fn prefetch(&self, c: &mut String) {
        let Some(lines) = self.prefetch_lines else { return };
        for line in 0..lines {
            let _ = writeln!(c, "          __builtin_prefetch(f + {}, 0, 2);", line * self.line());
        }
        let _ = writeln!(c, "          f += {};", lines * self.line());
    }

    /// The sum over one run of floats.
    fn floats(&self, rows: usize, columns: &Columns, c: &mut String) {
        let (spec, lanes, vectors) = (self.spec, self.isa.lanes, self.vectors(columns));
        if self.blocked_sum {
            let _ = writeln!(c, "        for (i64 from = 0; from < {}; from += {PARTIAL_SUM_TERMS}) {{", spec.k_inner);
            let _ = writeln!(c, "        const i64 to = dim_min(from + {PARTIAL_SUM_TERMS}, {});", spec.k_inner);
            c.push_str("        for (i64 kk = from; kk < to; kk++) {\n");
        } else {
            let terms = if self.blocks.is_some() { "kn".into() } else { spec.k_inner.to_string() };
            let _ = writeln!(c, "        for (i64 kk = 0; kk < {terms}; kk++) {{");
        }
        self.prefetch(c);
        if self.stored.is_some() {
            // The hardware prefetcher does not run far enough ahead of so few bytes a step.
            for line in (0..2 * vectors * lanes).step_by(CACHE_LINE_BYTES) {
                let _ = writeln!(c, "          __builtin_prefetch(b + {});", (HALF_PREFETCH_BYTES + line) / 2);
            }
        }
        // A step goes from one row of the right operand to the next.
        let (b_step, panel) = match &spec.rhs {
            RhsLayout::RowMajor(ld) => (ld.clone(), self.tile.vectors),
            RhsLayout::NarrowPanels(narrow) => (Extent::from(narrow * lanes), *narrow),
            _ => (self.width.into(), self.tile.vectors),
        };
        for v in 0..vectors {
            let packed = !matches!(spec.rhs, RhsLayout::RowMajor(_));
            let part = self.part(columns, v).filter(|_| !packed);
            let dtype = self.stored.unwrap_or(DType::F32);
            let at = k_extent(spec) * (v / panel * panel * lanes) + v % panel * lanes;
            let b = vector::load(dtype, &format!("b + {at}"), &1usize.into(), part.as_deref());
            let _ = writeln!(c, "          const vf b{v} = {b};");
        }
        for r in 0..rows {
            let _ = write!(c, "          {{ const vf x = SPLAT(a[kk + {}]);", spec.row_offset(r));
            for v in 0..vectors {
                let _ = write!(c, " c{r}_{v} += x * b{v};");
            }
            c.push_str(" }\n");
        }
        let _ = writeln!(c, "          b += {b_step};\n        }}");
        if self.blocked_sum {
            self.each(rows, vectors, "store({s}, load({s}) + {c}); {c} = (vf){0};", c);
            c.push_str("        }\n");
        }
    }

    /// A statement for each accumulator `{c}` and its slot `{s}` in scratch.
    pub(super) fn each(&self, rows: usize, vectors: usize, statement: &str, c: &mut String) {
        for r in 0..rows {
            for v in 0..vectors {
                let at = (r * self.tile.vectors + v) * self.isa.lanes;
                let slot =
                    if self.blocks.is_some() { format!("S + m * {} + {at}", self.width) } else { format!("S + {at}") };
                let _ = writeln!(c, "        {}", statement.replace("{s}", &slot).replace("{c}", &format!("c{r}_{v}")));
            }
        }
    }

    /// The sum over one run, in groups of elements that are multiplied at once.
    fn groups(&self, k_inner: usize, rows: usize, vectors: usize, c: &mut String) {
        let (spec, lanes, many) = (self.spec, self.isa.lanes, self.spec.element.k_group());
        let [t, ..] = spec.element.c_types();
        let group = |word: &dyn Fn(Extent) -> String, c: &mut String| {
            for v in 0..vectors {
                let _ = writeln!(c, "          const vi b{v} = load_i32((const i32 *)b + {});", v * lanes);
            }
            self.prefetch(c);
            // The panel is in the L2 cache.
            for line in (0..vectors * lanes * 4).step_by(CACHE_LINE_BYTES) {
                let at = (2048 + line) / spec.element.size();
                let _ = writeln!(c, "          __builtin_prefetch(b + {at});");
            }
            self.multiply(rows, vectors, word, c);
            let _ = writeln!(c, "          b += {};\n        }}", many * self.width);
        };
        let (full, rest) = (k_inner / many, k_inner % many);
        if full > 0 {
            let full = if self.blocks.is_some() { format!("kn / {many}") } else { full.to_string() };
            let _ = writeln!(c, "        for (i64 kk = 0; kk < {full}; kk++) {{");
            group(&|at| format!("word(a + kk * {many} + {at})"), c);
        }
        if rest > 0 {
            c.push_str("        {\n");
            match k_inner.checked_sub(many).filter(|_| spec.element.is_exact()) {
                Some(last) => group(&|at| format!("word(a + {})", at + last), c),
                // Reading a float again with weight 0 could multiply infinity by 0.
                None => group(
                    &|at| format!("word_part((const u8 *)(a + {}), {rest} * sizeof({t}))", at + (k_inner - rest)),
                    c,
                ),
            }
        }
    }

    /// Adds what is missing in the weights of a panel ([`corrected`]).
    fn corrections(&self, rows: usize, vectors: usize, c: &mut String) {
        let step = corrected::correction_bytes(self.width);
        let _ = writeln!(c, "        for (i64 n = 0; n < corrections; n++) {{");
        let _ = writeln!(c, "          const i8 *const e = E + n * {step};");
        c.push_str("          const u8 *const a = a0 + word(e);\n");
        for v in 0..vectors {
            let _ = writeln!(c, "          const vi b{v} = load_i32((const i32 *)(e + 4) + {});", v * self.isa.lanes);
        }
        self.multiply(rows, vectors, &|at| format!("word(a + {at})"), c);
        c.push_str("        }\n");
    }

    /// Adds the products of a group of each row, the word at offset `word` of its run, with the column vectors `b0`, `b1` …
    fn multiply(&self, rows: usize, vectors: usize, word: &dyn Fn(Extent) -> String, c: &mut String) {
        let [.., dot] = self.spec.element.c_types();
        let dot = if self.spec.rhs == RhsLayout::Corrected { "dot4_unsaturated" } else { dot };
        let flip = if self.spec.element == Element::S8S8 { " ^ (i32)0x80808080" } else { "" };
        for r in 0..rows {
            let _ = write!(c, "          {{ const vi x = SPLATI({}{flip});", word(self.spec.row_offset(r)));
            for v in 0..vectors {
                let _ = write!(c, " c{r}_{v} = {dot}(c{r}_{v}, x, b{v});");
            }
            c.push_str(" }\n");
        }
    }

    /// The sum over one run of 16-bit floats in pairs, with a row-major right operand.
    fn pairs(&self, rows: usize, columns: &Columns, c: &mut String) {
        let (spec, vectors) = (self.spec, self.vectors(columns));
        let RhsLayout::RowMajor(ld) = &spec.rhs else { return };
        let step = |load: &str, word: &dyn Fn(Extent) -> String, c: &mut String| {
            for v in 0..vectors {
                let at = format!("b + {}", v * self.isa.lanes);
                let (part, count) = self.part(columns, v).map_or(("", String::new()), |n| ("_part", format!(", {n}")));
                let load = load.replace("{part}", part).replace("{at}", &at).replace("{count}", &count);
                let _ = writeln!(c, "          const vi b{v} = {load};");
            }
            self.multiply(rows, vectors, word, c);
        };
        let terms = if self.blocks.is_some() { "kn".into() } else { spec.k_inner.to_string() };
        let _ = writeln!(c, "        i64 kk = 0;\n        for (; kk + 2 <= {terms}; kk += 2) {{");
        step(&format!("load{{part}}_pair({{at}}, {ld}{{count}})"), &|at| format!("word(a + kk + {at})"), c);
        let _ = writeln!(c, "          b += 2 * {ld};\n        }}");
        if !spec.k_inner.number().is_some_and(|k| k.is_multiple_of(2)) {
            let _ = writeln!(c, "        if (kk < {terms}) {{");
            step("load{part}_u16({at}{count})", &|at| format!("a[kk + {at}]"), c);
            // The next tap begins after the last row of this one.
            let _ = writeln!(c, "          b += {ld};\n        }}");
        }
    }
}
