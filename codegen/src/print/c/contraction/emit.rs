//! The tiles of a contraction with their epilogue.

use std::fmt::Write;

use crate::isa::CACHE_LINE_BYTES;
use crate::kernel::body::{Body, Node};
use crate::kernel::contraction::{AccessStrides, RhsLayout};
use crate::kernel::extent::Extent;
use crate::kernel::matrix_tiles;
use crate::print::c::contraction::sums::{Columns, Sums};
use crate::print::c::vector;
use crate::print::c::vector::vtype;

/// Prints tiles with their epilogue.
pub struct Emit<'a> {
    pub sums: Sums<'a>,
    pub body: &'a Body,
    pub load_strides: &'a [AccessStrides],
    pub store_strides: &'a AccessStrides,
    pub panels: &'a Extent,
    /// C expression of a factor for the sums of each row.
    pub factors: Option<&'a str>,
}

impl Emit<'_> {
    /// The tiles of a part of the rows: whole ones, then the remainder.
    pub fn part(&self, per_row_part: &Extent, row_parts: &Extent, c: &mut String) {
        let Sums { spec, tile, .. } = self.sums;
        let lines = !spec.outer.0.is(1);
        let full = spec.inner.0.div_floor(&tile.rows.into());
        let covered = tile.lines(spec);
        if covered > 1 {
            let _ = writeln!(c, "    const i64 o1 = dim_min((part + 1) * {per_row_part}, {}), m = 0;", spec.outer.0);
            let _ = writeln!(c, "    {{ i64 o = part * {per_row_part};");
            for (covered, rows) in [(covered, tile.rows), (1, tile.rows / covered)] {
                let _ = writeln!(c, "      for (; o + {covered} <= o1; o += {covered}) {{");
                self.columns(rows, c);
                c.push_str("      }\n");
            }
            return;
        }
        if lines {
            let _ = writeln!(c, "    const i64 o1 = dim_min((part + 1) * {per_row_part}, {});", spec.outer.0);
            let _ = writeln!(c, "    for (i64 o = part * {per_row_part}; o < o1; o++) {{");
            let _ = writeln!(c, "      for (i64 m = 0; m < {}; m += {}) {{", &full * tile.rows, tile.rows);
        } else {
            let _ = writeln!(c, "    const i64 o = 0, m1 = dim_min((part + 1) * {per_row_part}, {full});");
            let _ =
                writeln!(c, "    {{ for (i64 m = part * {per_row_part} * {0}; m < m1 * {0}; m += {0}) {{", tile.rows);
        }
        self.columns(tile.rows, c);
        c.push_str("      }\n");
        let only_last = if lines { String::new() } else { format!("if (part == {row_parts} - 1) ") };
        match spec.inner.0.number() {
            Some(rows) if rows.is_multiple_of(tile.rows) => {}
            Some(rows) => {
                let _ = writeln!(c, "      {only_last}{{ const i64 m = {};", rows / tile.rows * tile.rows);
                self.columns(rows % tile.rows, c);
                c.push_str("      }\n");
            }
            // An unknown remainder runs in smaller tiles.
            None => {
                let _ = writeln!(c, "      {only_last}{{ i64 m = {};", &full * tile.rows);
                for rows in [matrix_tiles::ROWS, 4, 1].into_iter().filter(|r| *r < tile.rows) {
                    let _ = writeln!(c, "      for (; m + {rows} <= {}; m += {rows}) {{", spec.inner.0);
                    self.columns(rows, c);
                    c.push_str("      }\n");
                }
                c.push_str("      }\n");
            }
        }
    }

    /// A tile of `rows` rows at `(o, m)`: all columns of the panel, or the remaining ones of the last panel.
    pub fn columns(&self, rows: usize, c: &mut String) {
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
        if spec.rhs == RhsLayout::FewColumns {
            // A scope for the names of the tile.
            c.push_str("        {\n");
            self.few_columns(rows, c);
            return c.push_str("        }\n");
        }
        let vectors = self.sums.vectors(columns);
        self.prefetch_operands(rows, vectors, c);
        if let Some(depth) = matrix_tiles::depth(spec, self.sums.isa) {
            return self.matrix_tile(rows, columns, depth, c);
        }
        self.sums.tile(rows, columns, c);
        let spills = blocks.is_some_and(|b| b.spills_partial_sums(spec));
        if spills {
            c.push_str("        if (k0 > 0) {\n");
            self.sums.each(rows, vectors, "{c} += load({s});", c);
            let _ = writeln!(c, "        }}\n        if (k0 + kn < {}) {{", spec.k_inner);
            self.sums.each(rows, vectors, "store({s}, {c});", c);
            c.push_str("        } else {\n");
        }
        for r in 0..rows {
            for v in 0..vectors {
                self.row_epilogue(r, v, self.sums.part(columns, v).as_deref(), c);
            }
        }
        if spills {
            c.push_str("        }\n");
        }
    }

    /// Prefetches epilogue operands as large as the result while the sums are computed: a tile reads a few lines of many rows,
    /// which the hardware does not prefetch.
    fn prefetch_operands(&self, rows: usize, vectors: usize, c: &mut String) {
        let lanes = self.sums.isa.lanes;
        for (i, (l, w)) in self.body.loads.iter().zip(self.load_strides).enumerate() {
            let (Some(bits), true) = (l.dtype.bits(), w.column.is(1) && !w.inner.is(0)) else { continue };
            let step = 8 * CACHE_LINE_BYTES / bits;
            for (r, at) in (0..rows).flat_map(|r| (0..vectors * lanes).step_by(step).map(move |at| (r, at))) {
                let _ = writeln!(c, "        __builtin_prefetch(P{i} + {} + {at}, 0, 2);", self.row_at(w, r));
            }
        }
    }

    /// C expression of the offset of row `r` of the tile.
    fn row_at(&self, w: &AccessStrides, r: usize) -> String {
        let (line, inner) = self.sums.spec.row(r);
        Position { line, inner: inner.to_string(), column: 0 }.offset(w)
    }

    /// The epilogue on vector `v` of row `r` of the tile.
    pub(super) fn row_epilogue(&self, r: usize, v: usize, part: Option<&str>, c: &mut String) {
        let sums = match self.factors {
            Some(f) => format!("c{r}_{v} * SPLAT({f}[m + {r}])"),
            None => format!("c{r}_{v}"),
        };
        let (line, inner) = self.sums.spec.row(r);
        let at = Position { line, inner: inner.to_string(), column: v * self.sums.isa.lanes };
        self.epilogue(&sums, &at, &|w| &w.column, part, c);
    }

    /// The epilogue on a vector of sums, whose first lane is at `at`; `step` are the strides between lanes, along the columns or
    /// along the rows.
    pub(super) fn epilogue(
        &self,
        sums: &str,
        at: &Position,
        step: &dyn Fn(&AccessStrides) -> &Extent,
        part: Option<&str>,
        c: &mut String,
    ) {
        let body = self.body;
        let name = |i: usize| format!("t{i}");
        c.push_str("        {");
        for (i, t) in body.nodes.iter().enumerate() {
            let value = match &t.node {
                Node::Const(_) | Node::Reduce(..) => continue,
                Node::Anchor => sums.into(),
                Node::Load(l) => {
                    let w = &self.load_strides[*l];
                    let from = format!("P{l} + {} + {}", at.offset(w), &w.column * at.column);
                    vector::load(t.dtype, &from, step(w), part)
                }
                Node::Op(op, args) => vector::vector(body, *op, args, &name),
            };
            let _ = write!(c, " const {} t{i} = {value};", vtype(t.dtype));
        }
        for (s, (_, node)) in body.stores.iter().enumerate() {
            let to = format!("Q{s} + {} + {}", at.offset(self.store_strides), at.column);
            let _ = write!(c, " {}", vector::store(body, *node, &to, part));
        }
        c.push_str(" }\n");
    }
}

/// The position of a vector of sums in the tile at `(o, m)`.
pub(super) struct Position {
    /// The outer row.
    pub line: usize,
    /// C expression of the inner row.
    pub inner: String,
    /// The column in the panel.
    pub column: usize,
}

impl Position {
    /// C expression of the offset of its row.
    fn offset(&self, w: &AccessStrides) -> String {
        match (self.line, &self.inner) {
            (0, inner) => format!("o * {} + (m + {inner}) * {}", w.outer, w.inner),
            (line, inner) => format!("(o + {line}) * {} + (m + {inner}) * {}", w.outer, w.inner),
        }
    }
}
