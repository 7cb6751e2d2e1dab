//! Sums of few columns as dot products, and their epilogue along rows.

use std::fmt::Write;

use of_ir::DType;

use crate::kernel::contraction::k_extent;
use crate::kernel::extent::Extent;
use crate::print::c::contraction::emit::{Emit, Position};
use crate::print::c::contraction::sums::Sums;
use crate::print::c::vector;

impl Sums<'_> {
    /// The sums of `rows` rows from `(o, m)` on with all columns: the vector `sums`, whose lanes are the columns of the first row,
    /// then those of the next.
    pub(super) fn few_columns(&self, rows: usize, c: &mut String) {
        let (spec, lanes, columns) = (self.spec, self.isa.lanes, self.spec.columns.size_hint());
        let k_inner = spec.k_inner.size_hint();
        let list: Vec<String> = (0..lanes).map(|i| format!("r{i}_0 = {{0}}")).collect();
        let _ = writeln!(c, "        const f32 *a0 = A + o * {} + m * {};", spec.outer.1, spec.inner.1);
        let _ = writeln!(c, "        vf {};", list.join(", "));
        let (mut a, mut tap) = (String::from("a0"), String::from("0"));
        for (t, (n, step)) in spec.taps.iter().enumerate().filter(|(_, tap)| tap.0 > 1) {
            let _ = writeln!(c, "        for (i64 k{t} = 0; k{t} < {n}; k{t}++)");
            let _ = write!(a, " + k{t} * {step}");
            tap = format!("({tap} * {n} + k{t})");
        }
        let _ = writeln!(c, "        {{ const f32 *a = {a}, *b = B + {tap} * {k_inner};");
        let whole = k_inner / lanes * lanes;
        if whole > 0 {
            let _ = writeln!(c, "        for (i64 kk = 0; kk < {whole}; kk += LANES) {{");
            self.dot_product_step(rows, columns, None, c);
            c.push_str("        }\n");
        }
        if whole < k_inner {
            let _ = writeln!(c, "        {{ const i64 kk = {whole};");
            self.dot_product_step(rows, columns, Some(&(k_inner - whole).to_string()), c);
            c.push_str("        }\n");
        }
        c.push_str("        }\n");
        self.add_lanes("sums", c);
    }

    /// Adds the products of a vector of terms, or of the first `part`, for each pair of a row and a column.
    fn dot_product_step(&self, rows: usize, columns: usize, part: Option<&str>, c: &mut String) {
        let one = Extent::from(1usize);
        let load = |at: String| vector::load(DType::F32, &at, &one, part);
        for j in 0..columns {
            let value = load(format!("b + {} + kk", k_extent(self.spec) * j));
            let _ = writeln!(c, "          const vf w{j} = {value};");
        }
        for r in 0..rows {
            let _ = write!(c, "          {{ const vf x = {};", load(format!("a + kk + {}", self.spec.row_offset(r))));
            for j in 0..columns {
                let _ = write!(c, " r{}_0 += x * w{j};", r * columns + j);
            }
            c.push_str(" }\n");
        }
    }
}

impl Emit<'_> {
    /// Whether the lanes of a vector of sums are adjacent elements of the result: there is one column.
    fn sums_are_adjacent(&self) -> bool {
        self.sums.spec.columns.is(1) && self.store_strides.inner.is(1)
    }

    /// A tile of `rows` rows with its epilogue.
    pub(super) fn few_columns(&self, rows: usize, c: &mut String) {
        self.sums.few_columns(rows, c);
        if self.sums_are_adjacent() {
            let part = (rows < self.sums.isa.lanes).then(|| rows.to_string());
            let at = Position { line: 0, inner: "0".into(), column: 0 };
            return self.epilogue("sums", &at, &|w| &w.inner, part.as_deref(), c);
        }
        let columns = self.sums.spec.columns.size_hint();
        c.push_str("        store(S, sums);\n");
        for r in 0..rows {
            let _ = writeln!(c, "        const vf c{r}_0 = load(S + {});", r * columns);
            self.row_epilogue(r, 0, Some(&columns.to_string()), c);
        }
    }
}
