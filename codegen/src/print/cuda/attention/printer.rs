//! What fused attention prints with and without tensor cores: scores, the online softmax, and stores.

use std::fmt::Write;

use crate::kernel::attention::Attention;
use crate::kernel::body::Body;
use crate::kernel::contraction::AccessStrides;
use crate::kernel::extent::Extent;
use crate::print::cuda::node_printer::NodePrinter;
use crate::print::expr::ctype;
use crate::print::{Source, expr, index};

/// What the kernels with and without tensor cores have in common: the epilogues, and the bookkeeping of the softmax.
pub(super) struct Printer<'a> {
    pub a: &'a Attention,
    /// The argument node of the softmax.
    pub softmax_argument: usize,
    /// The C arrays of row values with other readers.
    pub saved_row_stats: Vec<&'static str>,
    pub row_body: &'a Body,
    pub scores_strides: Vec<AccessStrides>,
    pub row_body_strides: Vec<AccessStrides>,
    pub epilogue_strides: Vec<AccessStrides>,
    pub to: AccessStrides,
    /// Padded elements of a line of `q` and `k`, and of `v`, in shared memory.
    pub depth: usize,
    pub columns: usize,
    /// Whether lines are long, so that tiles have few of them.
    pub wide: bool,
}

impl Printer<'_> {
    /// C that replaces `s` by the argument of the softmax, at row `r` and key `n` (C variables).
    pub fn map(&self, c: &mut String) {
        let a = self.a;
        let arguments: Vec<Option<usize>> = (0..a.scores.loads.len()).map(|l| Some(3 + l)).collect();
        let stored = a.scores.stores[0].1;
        self.nodes((&a.scores, stored), &self.scores_strides, &arguments, "s", c);
        self.nodes((self.row_body, self.softmax_argument), &self.row_body_strides, &a.row_body_arguments(), "s", c);
    }

    /// C that evaluates a node into the variable `value`, which is also its anchor, at row `r` and column `n`.
    fn nodes(
        &self,
        (body, node): (&Body, usize),
        walk: &[AccessStrides],
        arguments: &[Option<usize>],
        value: &str,
        c: &mut String,
    ) {
        c.push_str("      {\n");
        let p = NodePrinter { body, width: 1 };
        let mut constants = String::new();
        expr::scalar_constants(body, &mut constants);
        c.push_str(&constants);
        let at = |l: usize| {
            let (w, t) = (&walk[l], ctype(body.loads[l].dtype));
            let batch = index::flat_offset(&self.a.batch, &w.batch, "batch");
            let from = arguments[l].map_or(String::new(), |i| format!("ARG(const {t}, {i})"));
            (format!("{from} + (({batch}) + r * {} + n * {})", w.inner, w.column), 0usize.into(), false)
        };
        for n in 0..=node {
            p.node(n, &at, &|_| value.to_string(), c);
        }
        let _ = writeln!(c, "      {value} = {};\n      }}", p.name(node, 0));
    }

    /// C that stores the element at row `r` and column `n` (C variables), which is `value`.
    pub fn store(&self, value: &str, c: &mut String) {
        let a = self.a;
        let first = a.epilogue_argument();
        let arguments: Vec<Option<usize>> = (0..a.epilogue.loads.len()).map(|l| Some(first + l)).collect();
        let _ = writeln!(c, "      if (r >= {} || n >= {}) continue;", a.rows, a.columns);
        // Without keys the sum is empty; if all keys are masked, the row is undefined.
        let empty = if a.keys.number().is_none() { format!("{} == 0 ? 0.0f : ", a.keys) } else { String::new() };
        let _ = writeln!(c, "      f32 y = {empty}{value};");
        self.nodes((&a.epilogue, a.epilogue.stores[0].1), &self.epilogue_strides, &arguments, "y", c);
        let batch = index::flat_offset(&a.batch, &self.to.batch, "batch");
        let dtype = a.epilogue.nodes[a.epilogue.stores[0].1].dtype;
        let _ = writeln!(
            c,
            "      *(ARG({}, {}) + (({batch}) + r * {} + n * {})) = {};",
            ctype(dtype),
            a.result_argument(),
            self.to.inner,
            self.to.column,
            expr::narrowed(dtype, "y"),
        );
    }

    /// C that stores the row values of row `r` (a C variable), number `i` of a thread, in the thread for which `alone` holds.
    pub fn store_row_stats(&self, alone: &str) -> String {
        let (rows, first) = (&self.a.rows, self.a.result_argument() + 1);
        let store = |(at, number): (usize, &&str)| {
            format!(
                "      if ({alone} && r < {rows}) *(ARG(f32, {}) + (batch * {rows} + r)) = {number}[i];\n",
                first + at
            )
        };
        self.saved_row_stats.iter().enumerate().map(store).collect()
    }

    /// C at the head of a block of `rows` rows.
    pub fn head(&self, rows: usize, c: &mut String) {
        let a = self.a;
        let tiles = a.rows.div_ceil(&rows.into());
        let _ = writeln!(c, "    const i64 batch = block / {tiles}, m0 = block % {tiles} * {rows};");
        for (i, (name, own)) in [("Q", &a.q), ("K", &a.k), ("V", &a.v)].into_iter().enumerate() {
            let t = ctype(a.element);
            let _ = writeln!(c, "    PTR(const {t}) {name} = ARG(const {t}, {i}) + ({});", index::batch_start(own));
        }
    }

    /// C that rescales `row_max`, `row_sum` and the `count` sums `of` of a row by the tile's maximum `tile_max`, over the lanes
    /// that share the row: those whose numbers differ in bits below `lanes`.
    pub fn rescale(row: &str, lanes: usize, (of, count): (&str, usize), c: &mut String) {
        let _ = write!(
            c,
            "        #pragma unroll
        for (i32 by = {}; by > 0; by /= 2) tile_max = Max::of(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, by));
        const f32 now = Max::of(row_max[{row}], tile_max), base = now == -INF32 ? 0.0f : now;
        const f32 by = one_exp(row_max[{row}] - base);
        row_max[{row}] = now; row_sum[{row}] *= by;
        #pragma unroll
        for (i32 j = 0; j < {count}; j++) {of} *= by;
",
            lanes / 2
        );
    }

    pub fn source(&self, body: String, rows: usize) -> Source {
        let batches: Extent = self.a.batch.iter().product();
        Source::new(body, batches * self.a.rows.div_ceil(&rows.into()), 1)
    }
}
