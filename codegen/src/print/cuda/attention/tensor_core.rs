//! Fused attention on tensor cores: each warp has sixteen rows by all keys of a tile, then by all columns. The scores in a lane
//! are operands of the second product without a shuffle, if its terms follow the order of the lanes.

use std::fmt::Write;

use crate::isa::MmaPrecision;
use crate::kernel::attention::MatrixLayout;
use crate::kernel::extent::Extent;
use crate::print::Source;
use crate::print::cuda::attention::fragments::Fragments;
use crate::print::cuda::attention::printer::Printer;
use crate::print::cuda::launch::THREADS;
use crate::print::cuda::matrix_tile::{SMEM_PADDING, copy};
use crate::print::expr::ctype;

/// Rows of a warp's `mma`.
const ROWS: usize = 16;

/// Rows of a block.
const BLOCK_ROWS: usize = THREADS / 32 * ROWS;

/// The kernel.
pub(super) fn kernel(p: &Printer<'_>, products: MmaPrecision) -> Source {
    let fragments = Fragments::of(products);
    // Two tiles of both operands take as much memory in 16-bit floats as in f32, except for the padding.
    let scale = if fragments.unconverted { 2 } else { 1 };
    let keys = if p.wide { 16 } else { 32 } * scale;
    let (k_line, v_line) = (p.depth + SMEM_PADDING * scale, p.columns + SMEM_PADDING * scale);
    let kernel = TensorCoreKernel { p, products, fragments, keys, k_line, v_line };
    let mut c = String::new();
    kernel.declarations(&mut c);
    p.head(BLOCK_ROWS, &mut c);
    kernel.first_tiles(&mut c);
    kernel.scores(&mut c);
    kernel.softmax(&mut c);
    kernel.sums(&mut c);
    kernel.results(&mut c);
    p.source(c, BLOCK_ROWS)
}

/// The sizes of a kernel.
struct TensorCoreKernel<'a> {
    p: &'a Printer<'a>,
    products: MmaPrecision,
    fragments: Fragments,
    /// Keys of a tile.
    keys: usize,
    /// Padded elements of a line of keys, and of values, in shared memory.
    k_line: usize,
    v_line: usize,
}

impl TensorCoreKernel<'_> {
    /// Parts of `q` along its lines, each of which is the operand of one `mma`.
    fn steps(&self) -> usize {
        self.p.depth / self.fragments.terms
    }

    /// Elements of a tile of keys, and of one of values.
    fn tiles(&self) -> (usize, usize) {
        (self.keys * self.k_line, self.keys * self.v_line)
    }

    /// Fragments of eight keys of a tile, and of eight columns.
    fn eighths(&self) -> (usize, usize) {
        (self.keys / 8, self.p.columns / 8)
    }

    /// C that declares the tiles in shared memory, and opens the loop over blocks.
    fn declarations(&self, c: &mut String) {
        let (element, (k_tile, v_tile)) = (ctype(self.products.element()), self.tiles());
        let _ = write!(
            c,
            "  SHARED({element}, tile_k, {});
  SHARED({element}, tile_v, {});
  const i32 wm = threadIdx.x / 32 * {ROWS}, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  BLOCKS(block) {{
",
            2 * k_tile,
            2 * v_tile
        );
    }

    /// C that copies the tiles of keys and values from line `from` on to the buffers `stage` (C variables).
    fn copies(&self) -> String {
        let a = self.p.a;
        let tile = |name: &str, own: &MatrixLayout, length: &Extent, (width, line): (usize, usize)| {
            let to = format!("tile_{} + stage * {}", name.to_lowercase(), self.keys * line);
            let all = (&a.keys, length);
            copy((name, &to), own, all, (self.keys, width), "from", (line, self.products.copies()))
        };
        let copy_k = tile("K", &a.k, &a.depth, (self.p.depth, self.k_line));
        copy_k + &tile("V", &a.v, &a.columns, (self.p.columns, self.v_line))
    }

    /// C that loads part `i` of `q` to registers.
    fn load_q(&self) -> String {
        let (a, f) = (self.p.a, &self.fragments);
        let load = |(e, (row, x)): (usize, (usize, String))| {
            // A pair of unconverted 16-bit floats is one register.
            let to = match (f.unconverted, e % 2) {
                (false, _) => format!("q[i][{e}] ="),
                (true, 0) => format!("q[i][{}] = (u32)", e / 2),
                (true, _) => format!("q[i][{}] |= 65536u *", e / 2),
            };
            let zero = if f.unconverted { "(u16)0" } else { "0.0f" };
            format!(
                "          {{ const i64 r = m0 + wm + g + {row}, x = i * {} + {x}; {to} (r < {} && x < {} ? Q[r * {} + x * {}] : {zero}); }}\n",
                f.terms, a.rows, a.depth, a.q.line_stride, a.q.element_stride,
            )
        };
        f.left_elements().into_iter().enumerate().map(load).collect()
    }

    /// C that initialises the accumulators, copies the first tiles, and loads the rows of the warp.
    fn first_tiles(&self, c: &mut String) {
        let (steps, copies, (_, cn)) = (self.steps(), self.copies(), self.eighths());
        let elements = self.fragments.left_elements().len();
        let (ty, registers) = if self.fragments.unconverted { ("u32", 4) } else { ("f32", elements) };
        let _ = write!(
            c,
            "    {ty} q[{steps}][{registers}];
    f32 acc[{cn}][4] = {{}}, row_max[2] = {{-INF32, -INF32}}, row_sum[2] = {{}};
    i32 now_at = 0;
    {{ const i64 from = 0; const i32 stage = 0;
{copies}      async_commit();
    }}
    #pragma unroll
    for (i32 i = 0; i < {steps}; i++) {{
{}    }}
",
            self.load_q(),
        );
    }

    /// C that opens the loop over tiles, copies the next tiles, and computes the scores of the warp.
    fn scores(&self, c: &mut String) {
        let (steps, keys, copies, (sn, _)) = (self.steps(), self.keys, self.copies(), self.eighths());
        let (k_tile, k_line, terms) = (self.tiles().0, self.k_line, self.fragments.terms);
        let (q, product) = if self.fragments.unconverted {
            let at = format!(
                "tile_k + now_at * {k_tile} + (j * 8 + lane % 8 + lane / 16 * 8) * {k_line} + i * 16 + lane / 8 % 2 * 8"
            );
            let pair = self.fragments.pair("ldmatrix_x4", &at, "score[j");
            ("const auto &a = q[i];".to_string(), format!("for (i32 j = 0; j < {sn}; j += 2) {{\n{pair}"))
        } else {
            let at = format!("tile_k + now_at * {k_tile} + (j * 8 + g) * {k_line} + i * {terms}");
            let elements: Vec<String> = self.fragments.right_elements().iter().map(|x| format!("p[{x}]")).collect();
            let one = self.fragments.converted(&at, &elements, "score[j]");
            let left = self.fragments.registers("a", 4);
            (format!("const auto &x = q[i];\n        {left}"), format!("for (i32 j = 0; j < {sn}; j++) {{\n{one}"))
        };
        let _ = write!(
            c,
            "    for (i64 n0 = 0; n0 < {}; n0 += {keys}, now_at ^= 1) {{
      {{ const i64 from = n0 + {keys}; const i32 stage = now_at ^ 1;
{copies}      async_commit();
      }}
      async_wait<1>();
      __syncthreads();
      f32 score[{sn}][4] = {{}};
      #pragma unroll
      for (i32 i = 0; i < {steps}; i++) {{
        {q}
        #pragma unroll
        {product}
      }}
",
            self.p.a.keys,
        );
    }

    /// C that updates the online softmax with the scores, and replaces these with their weights.
    fn softmax(&self, c: &mut String) {
        let (p, (sn, cn)) = (self.p, self.eighths());
        let _ = write!(
            c,
            "      #pragma unroll
      for (i32 i = 0; i < 2; i++) {{
        const i64 r = m0 + wm + g + i * 8;
        f32 tile_max = -INF32;
        #pragma unroll
        for (i32 j = 0; j < {sn} * 2; j++) {{
          const i64 n = n0 + j / 2 * 8 + 2 * t + j % 2;
          f32 s = score[j / 2][i * 2 + j % 2];
          if (n >= {}) s = -INF32;
          else if (r < {}) {{
",
            p.a.keys, p.a.rows,
        );
        p.map(c);
        c.push_str(
            "          }\n          score[j / 2][i * 2 + j % 2] = s;\n          tile_max = Max::of(tile_max, s);\n        }\n",
        );
        Printer::rescale("i", 4, ("acc[j / 2][i * 2 + j % 2]", 2 * cn), c);
        let _ = write!(
            c,
            "        #pragma unroll
        for (i32 j = 0; j < {sn} * 2; j++) {{
          const f32 p = one_exp(score[j / 2][i * 2 + j % 2] - base);
          row_sum[i] += p;
          score[j / 2][i * 2 + j % 2] = p;
        }}
      }}
"
        );
    }

    /// C that adds the weighted values of the tile, and closes the loop over tiles.
    fn sums(&self, c: &mut String) {
        let (f, terms, (_, cn)) = (&self.fragments, self.fragments.terms, self.eighths());
        let (v_tile, v_line) = (self.tiles().1, self.v_line);
        let product = if f.unconverted {
            let at = format!("tile_v + now_at * {v_tile} + (j * 16 + lane % 16) * {v_line} + i * 8 + lane / 16 * 8");
            format!("for (i32 i = 0; i < {cn}; i += 2) {{\n{}", f.pair("ldmatrix_x4_trans", &at, "acc[i"))
        } else {
            let at = format!("tile_v + now_at * {v_tile} + j * {terms} * {v_line} + i * 8 + g");
            let elements: Vec<String> = f.score_terms().iter().map(|x| format!("p[({x}) * {v_line}]")).collect();
            format!("for (i32 i = 0; i < {cn}; i++) {{\n{}", f.converted(&at, &elements, "acc[i]"))
        };
        let weights = f.weights();
        let _ = write!(
            c,
            "      #pragma unroll
      for (i32 j = 0; j < {}; j++) {{
        const f32 x[{}] = {{{}}};
        {}
        #pragma unroll
        {product}
      }}
      __syncthreads();
    }}
",
            self.keys / terms,
            weights.len(),
            weights.join(", "),
            f.registers("a", 4),
        );
    }

    /// C that combines the sums of the lanes of a row, and stores the results.
    fn results(&self, c: &mut String) {
        let (p, (_, cn)) = (self.p, self.eighths());
        let _ = write!(
            c,
            "    async_wait<0>();
    #pragma unroll
    for (i32 i = 0; i < 2; i++) {{
      for (i32 by = 2; by > 0; by /= 2) row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], by);
      {{ const i64 r = m0 + wm + g + i * 8;
{}      }}
      #pragma unroll
      for (i32 j = 0; j < {cn} * 2; j++) {{
      const i64 r = m0 + wm + g + i * 8, n = j / 2 * 8 + 2 * t + j % 2;
",
            p.store_row_stats("t == 0"),
        );
        p.store("acc[j / 2][i * 2 + j % 2] / row_sum[i]", c);
        c.push_str("      }\n    }\n  }\n");
    }
}
