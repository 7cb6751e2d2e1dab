//! The tiles of a contraction with their epilogue.

use std::fmt::Write;

use crate::isa::CACHE_LINE_BYTES;
use crate::kernel::body::{Body, Node};
use crate::kernel::contraction::{AccessStrides, RhsLayout};
use crate::kernel::extent::Extent;
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
            // An unknown remainder runs in tiles of four rows, then one.
            None => {
                let _ = writeln!(c, "      {only_last}{{ i64 m = {};", &full * tile.rows);
                for rows in [4, 1].into_iter().filter(|r| *r < tile.rows) {
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
            // Names of a tile do not meet those of the next.
            c.push_str("        {\n");
            self.few_columns(rows, c);
            return c.push_str("        }\n");
        }
        let vectors = self.sums.vectors(columns);
        self.prefetch_operands(rows, vectors, c);
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
                self.epilogue(r, v, self.sums.part(columns, v).as_deref(), c);
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
        match self.sums.spec.row(r) {
            (0, inner) => format!("o * {} + (m + {inner}) * {}", w.outer, w.inner),
            (outer, inner) => format!("(o + {outer}) * {} + (m + {inner}) * {}", w.outer, w.inner),
        }
    }

    /// The epilogue on one vector of the tile.
    pub(super) fn epilogue(&self, r: usize, v: usize, part: Option<&str>, c: &mut String) {
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
                    let w = &self.load_strides[*l];
                    let at = format!("P{l} + {} + {}", self.row_at(w, r), &w.column * (v * lanes));
                    vector::load(t.dtype, &at, &w.column, part)
                }
                Node::Op(op, args) => vector::vector(body, *op, args, &name),
            };
            let _ = write!(c, " const {} t{i} = {value};", vtype(t.dtype));
        }
        for (s, (_, node)) in body.stores.iter().enumerate() {
            let at = format!("Q{s} + {} + {}", self.row_at(self.store_strides, r), v * lanes);
            let _ = write!(c, " {}", vector::store(body, *node, &at, part));
        }
        c.push_str(" }\n");
    }
}
