//! Contractions of a block of rows, as a part of another kernel.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::Isa;
use crate::kernel::body::Body;
use crate::kernel::contraction::{
    AccessStrides, Contraction, Element, PARTIAL_SUM_TERMS, RhsLayout, Tile, k_extent, panel_elements,
};
use crate::kernel::extent::Extent;
use crate::print::c::contraction::emit::Emit;
use crate::print::c::contraction::sums::{Columns, Sums};
use crate::print::c::{copy, vector};
use crate::print::expr::ctype;

/// A contraction of a block of rows with all columns, inside a kernel that computes the left operand or consumes the result.
pub struct Block<'a> {
    /// The contraction; it reads panels, or contiguous rows of any batch.
    pub spec: &'a Contraction,
    /// The register tile.
    pub tile: Tile,
    /// The epilogue.
    pub body: &'a Body,
    /// C expressions of the pointers of its loads at the first row of the block.
    pub loads: &'a [String],
    /// Access strides of its loads.
    pub load_strides: &'a [AccessStrides],
    /// Access strides of the result.
    pub store_strides: &'a AccessStrides,
    /// C expression of the left operand at the first row of the block.
    pub left: &'a str,
    /// C expression of the right operand.
    pub right: &'a str,
    /// C expression of the result at that row.
    pub result: &'a str,
    /// C expression of a factor for the sums of each row.
    pub factors: Option<&'a str>,
}

impl Block<'_> {
    /// Floats of scratch for partial sums of blocked contractions.
    pub fn sums(&self, isa: &Isa) -> usize {
        if self.blocked_sum() { self.tile.rows * self.tile.vectors * isa.lanes } else { 0 }
    }

    fn blocked_sum(&self) -> bool {
        self.spec.element == Element::F32F32 && k_extent(self.spec).size_hint() > 2 * PARTIAL_SUM_TERMS
    }

    /// Prints the contraction of `count` rows (a C variable), where every block but the last has whole tiles. `sums` is the scratch for
    /// partial sums.
    ///
    /// # Errors
    /// When the right operand is stored in fewer bits than its element type, or the depth is unknown.
    pub fn print(&self, sums: &str, isa: &Isa, c: &mut String) -> Result<(), String> {
        let Block { spec, tile, body, .. } = self;
        let width = tile.vectors * isa.lanes;
        let panels = spec.columns.div_ceil(&width.into());
        vector::vector_constants(body, c);
        if self.blocked_sum() {
            let _ = writeln!(c, "    f32 *const S = {sums};");
        }
        let [t, u, ..] = spec.element.c_types();
        let _ = writeln!(c, "    const {t} *const A = {};", self.left);
        let _ = writeln!(c, "    for (i64 panel = 0; panel < {panels}; panel++) {{");
        let step = match &spec.rhs {
            RhsLayout::Packed => panel_elements(spec, width),
            RhsLayout::PackedHalf(_) => {
                return Err("a product inside another kernel does not widen panels of 16-bit floats".into());
            }
            RhsLayout::NarrowPanels(_) => return Err("a product inside another kernel has panels of its own".into()),
            RhsLayout::Corrected => return Err("a product inside another kernel has no corrections".into()),
            RhsLayout::FewColumns => return Err("a product inside another kernel has vectors of columns".into()),
            RhsLayout::RowMajor(_) => width.into(),
            RhsLayout::Transposed(line) => line * width,
        };
        let k_inner = match (spec.element, &spec.rhs) {
            (Element::F16Pair(_), RhsLayout::Packed) => {
                Some(spec.k_inner.number().ok_or("the depth of a product of groups is not known before the run")?)
            }
            _ => None,
        };
        let _ = writeln!(c, "    const {u} *const B = {} + panel * {step};", self.right);
        for (i, (l, w)) in body.loads.iter().zip(self.load_strides).enumerate() {
            let (t, at) = (ctype(l.dtype), &self.loads[i]);
            let _ = writeln!(c, "    const {t} *const P{i} = {at} + panel * {};", &w.column * width);
        }
        let made = body.stores.first().map_or(DType::F32, |(_, n)| body.nodes[*n].dtype);
        let _ = writeln!(c, "    {} *const Q0 = {} + panel * {width};", ctype(made), self.result);
        let dot_product_form = matches!(spec.rhs, RhsLayout::Transposed(_));
        let sums = Sums {
            spec,
            k_inner,
            stored: None,
            blocked_sum: self.blocked_sum(),
            blocks: None,
            tile: *tile,
            isa,
            width,
            prefetch_lines: None,
            dot_product_form,
        };
        let emit = Emit {
            sums,
            body,
            load_strides: self.load_strides,
            store_strides: self.store_strides,
            panels: &panels,
            factors: self.factors,
        };
        let _ = writeln!(c, "    const i64 o = 0; i64 m = 0;");
        let _ = writeln!(c, "    for (; m + {0} <= count; m += {0}) {{", tile.rows);
        emit.columns(tile.rows, c);
        c.push_str("    }\n");
        match spec.inner.0.number() {
            Some(rows) if rows.is_multiple_of(tile.rows) => {}
            Some(rows) => {
                c.push_str("    if (m < count) {\n");
                emit.columns(rows % tile.rows, c);
                c.push_str("    }\n");
            }
            None => {
                for rows in [4, 1].into_iter().filter(|r| *r < tile.rows) {
                    let _ = writeln!(c, "    for (; m + {rows} <= count; m += {rows}) {{");
                    emit.columns(rows, c);
                    c.push_str("    }\n");
                }
            }
        }
        c.push_str("    }\n");
        Ok(())
    }
}

impl Sums<'_> {
    /// Computes the sums `c0_0` of a row, for as many columns as a vector has lanes. Each column accumulates in a vector along
    /// its terms (whole groups of them). A transpose-like butterfly then reduces these vectors.
    pub(super) fn dot_products(&self, line: &Extent, columns: &Columns, c: &mut String) {
        let (spec, lanes, many) = (self.spec, self.isa.lanes, self.spec.element.k_group());
        let [t, _, _, dot] = spec.element.c_types();
        // Missing columns repeat the last one.
        let last = match columns {
            Columns::First(n) => n - 1,
            Columns::Unknown => lanes - 1,
        };
        let list: Vec<String> = (0..lanes).map(|i| format!("r{i}_0 = {{0}}")).collect();
        let _ = writeln!(c, "        const {t} *a = A + m * {};\n        vf {};", spec.inner.1, list.join(", "));
        let step = |part: Option<&str>, c: &mut String| {
            // Pairs of 16-bit floats are loaded as words.
            let load = |at: String| match (many, part) {
                (1, _) => vector::load(DType::F32, &at, &1usize.into(), part),
                (_, None) => format!("load_i32((const i32 *)({at}))"),
                (_, Some(n)) => format!("load_part_i32((const i32 *)({at}), {n})"),
            };
            let _ =
                writeln!(c, "          const {} x = {};", if many == 1 { "vf" } else { "vi" }, load("a + kk".into()));
            for i in 0..lanes {
                let y = load(format!("B + {} + kk", line * i.min(last)));
                let _ = match many {
                    1 => writeln!(c, "          r{i}_0 += x * {y};"),
                    _ => writeln!(c, "          r{i}_0 = {dot}(r{i}_0, x, {y});"),
                };
            }
        };
        let step_by = many * lanes;
        let _ = writeln!(c, "        for (i64 kk = 0; kk + {step_by} <= {}; kk += {step_by}) {{", spec.k_inner);
        step(None, c);
        let _ = writeln!(
            c,
            "        }}\n        if ({0} % {step_by}) {{ const i64 kk = {0} / {step_by} * {step_by};",
            spec.k_inner
        );
        step(Some(&format!("({} - kk) / {many}", spec.k_inner)), c);
        c.push_str("        }\n");
        self.add_lanes("c0_0", c);
    }

    /// Adds up the lanes of each of the vectors `r0_0`, `r1_0` …, as many as a vector has lanes, to the lanes of `sums`.
    pub(super) fn add_lanes(&self, sums: &str, c: &mut String) {
        let lanes = self.isa.lanes;
        for step in 0..lanes.trailing_zeros() {
            let s = 1 << step;
            for i in (0..lanes).step_by(2 * s) {
                let (a, b) = (format!("r{i}_{step}"), format!("r{}_{step}", i + s));
                let (low, high) = copy::interleave_shuffle(lanes, s);
                let _ = writeln!(
                    c,
                    "        const vf r{i}_{} = SHUFFLE({a}, {b}, {low}) + SHUFFLE({a}, {b}, {high});",
                    step + 1
                );
            }
        }
        let _ = writeln!(c, "        const vf {sums} = r0_{};", lanes.trailing_zeros());
    }
}
