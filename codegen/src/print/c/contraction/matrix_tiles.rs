//! Tiles of sums in matrix registers, and their epilogue.

use std::fmt::Write;

use crate::kernel::contraction::Element;
use crate::kernel::matrix_tiles::{ROW_BYTES, RowBlock, row_blocks};
use crate::print::c::contraction::emit::{Emit, Position};
use crate::print::c::contraction::sums::Columns;

/// Floats of scratch before the sums: the shapes of the registers.
const SHAPES: usize = 16;

/// Floats of scratch of a tile of `rows` rows.
pub(super) fn scratch_floats(rows: usize, width: usize) -> usize {
    SHAPES + rows * width
}

/// The register of the sums of rows `i` and columns `j`.
fn sum(i: usize, j: usize) -> usize {
    2 * i + j
}

/// The register of rows `i` of the left operand.
fn left(i: usize) -> usize {
    4 + i
}

/// The register of columns `j` of the right operand.
fn right(j: usize) -> usize {
    6 + j
}

/// A number whose lowest part of `bits` bits is the first of `parts`.
fn word(parts: &[usize], bits: usize) -> u64 {
    parts.iter().enumerate().map(|(i, part)| (*part as u64) << (i * bits)).sum()
}

impl Emit<'_> {
    /// A tile of `rows` rows, with products of `depth` terms: sums in registers, stored to scratch, then the epilogue.
    pub(super) fn matrix_tile(&self, rows: usize, columns: &Columns, depth: usize, c: &mut String) {
        let blocks = row_blocks(self.sums.spec, rows);
        let vectors = self.sums.vectors(columns);
        self.set_shapes(rows, &blocks, depth, c);
        self.matrix_sums(&blocks, vectors, depth, c);
        let (spec, lanes, width) = (self.sums.spec, self.sums.isa.lanes, self.sums.width);
        for block in &blocks {
            let (line, inner) = spec.row(block.first);
            let _ = writeln!(c, "        for (i64 r = 0; r < {}; r++) {{", block.count);
            for v in 0..vectors {
                let at = format!("S + {} + r * {width}", SHAPES + block.first * width + v * lanes);
                let sums = format!("load_i32((const i32 *)({at}))");
                let at = Position { line, inner: format!("{inner} + r"), column: v * lanes };
                self.epilogue(&sums, &at, &|w| &w.column, self.sums.part(columns, v).as_deref(), c);
            }
            c.push_str("        }\n");
        }
    }

    /// Sets the shapes of the registers for a tile of `rows` rows, if they are those of another tile.
    fn set_shapes(&self, rows: usize, blocks: &[RowBlock], depth: usize, c: &mut String) {
        let count = |i: usize| blocks.get(i).unwrap_or(&blocks[0]).count;
        let terms = depth / self.sums.spec.element.k_group();
        let bytes = [ROW_BYTES, ROW_BYTES, ROW_BYTES, ROW_BYTES, depth, depth, ROW_BYTES, ROW_BYTES];
        let rows_of = [count(0), count(0), count(1), count(1), count(0), count(1), terms, terms];
        let (low, high) = bytes.split_at(4);
        let _ = writeln!(
            c,
            "        if (shape != {rows}) {{ tile_shapes((i64 *)S, {}, {}, {}); shape = {rows}; }}",
            word(low, 16),
            word(high, 16),
            word(&rows_of, 8)
        );
    }

    /// Computes the sums of a tile and stores them to scratch, in rows of a panel's width.
    fn matrix_sums(&self, blocks: &[RowBlock], vectors: usize, depth: usize, c: &mut String) {
        let (spec, lanes, width) = (self.sums.spec, self.sums.isa.lanes, self.sums.width);
        let (dot, header) = match spec.element {
            Element::S8S8 => ("tile_dot_signed", 4 * width),
            _ => ("tile_dot_unsigned", 0),
        };
        let pairs = || (0..blocks.len()).flat_map(|i| (0..vectors).map(move |j| (i, j)));
        for (i, j) in pairs() {
            let _ = writeln!(c, "        tile_zero({});", sum(i, j));
        }
        let _ = writeln!(c, "        const i8 *b = B + {header};");
        let mut a = format!("A + o * {} + m * {}", spec.outer.1, spec.inner.1);
        for (t, (n, step)) in spec.taps.iter().enumerate().filter(|(_, tap)| tap.0 > 1) {
            let _ = writeln!(c, "        for (i64 k{t} = 0; k{t} < {n}; k{t}++)");
            let _ = write!(a, " + k{t} * {step}");
        }
        let _ = writeln!(c, "        {{ const u8 *a = {a};");
        let _ = writeln!(c, "        for (i64 kk = 0; kk < {}; kk += {depth}) {{", spec.k_inner);
        for (i, block) in blocks.iter().enumerate() {
            let from = spec.row_offset(block.first);
            let _ = writeln!(c, "          tile_load({}, a + kk + {from}, {});", left(i), spec.inner.1);
        }
        for j in 0..vectors {
            let _ = writeln!(c, "          tile_load({}, b + {}, {});", right(j), 4 * j * lanes, 4 * width);
        }
        for (i, j) in pairs() {
            let _ = writeln!(c, "          {dot}({}, {}, {});", sum(i, j), left(i), right(j));
        }
        let _ = writeln!(c, "          b += {};\n        }}\n        }}", depth * width);
        for (i, j) in pairs() {
            let to = SHAPES + blocks[i].first * width + j * lanes;
            let _ = writeln!(c, "        tile_store({}, S + {to}, {});", sum(i, j), 4 * width);
        }
    }
}
