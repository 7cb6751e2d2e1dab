//! Sums over a score matrix that is never materialised: a block keeps some lines of both products and iterates over the lines of
//! their other operands. It recomputes a tile of the matrix, and accumulates its product with the lines just read.
//!
//! Source: the backward pass of Dao, FlashAttention-2, 2023, with a separate pass for each side. No sum is split over blocks, so
//! results have the same bits in every run.

use std::fmt::Write;

use crate::kernel::attention::MatrixLayout;
use crate::kernel::body::{Body, Node};
use crate::kernel::contraction::AccessStrides;
use crate::kernel::extent::Extent;
use crate::kernel::score_matrix::{ScoreMatrix, ScoreSum};
use crate::print::cuda::matrix_tile::{BLOCK_DIM, F32_COPY_WIDTHS, MAX_HEAD_DIM, SMEM_PADDING, copy};
use crate::print::cuda::node_printer::{NodePrinter, pointers};
use crate::print::{Source, expr, index};

/// Elements of a line above which tiles have few lines.
const MAX_SHORT_LINE: usize = 64;

/// The kernel.
///
/// # Errors
/// When lines are too long, or an access does not follow rows and keys.
pub fn score_matrix(t: &ScoreMatrix) -> Result<Source, String> {
    let known = |e: &Extent| e.number().filter(|n| *n <= MAX_HEAD_DIM).ok_or("its lines are too long for a GPU");
    let length = [known(&t.depth[0])?, known(&t.depth[1])?];
    let width = length.map(|n| n.next_multiple_of(BLOCK_DIM));
    // Tiles of the four operands and of the recomputed values share 48 KiB.
    let each = if width[0].max(width[1]) > MAX_SHORT_LINE { 1 } else { 2 };
    let (resident, streamed, lines, others) = match t.over_rows {
        false => (&t.left, &t.right, &t.rows, &t.keys),
        true => (&t.right, &t.left, &t.keys, &t.rows),
    };
    let p = Printer { t, load_strides: t.load_strides()?, length, width, each, resident, streamed, lines, others };
    p.kernel()
}

/// A block has `each` times 16 lines, and iterates over as many others: 16 by 16 threads, each with `each` by `each` of them.
struct Printer<'a> {
    t: &'a ScoreMatrix,
    load_strides: Vec<AccessStrides>,
    /// Elements of a line of each product, in memory and padded in shared memory.
    length: [usize; 2],
    width: [usize; 2],
    each: usize,
    /// The operands that a block keeps, and those that it iterates over.
    resident: &'a [MatrixLayout; 2],
    streamed: &'a [MatrixLayout; 2],
    /// Number of lines of those.
    lines: &'a Extent,
    others: &'a Extent,
}

impl Printer<'_> {
    fn kernel(&self) -> Result<Source, String> {
        let t = self.t;
        let tiles = self.lines.div_ceil(&self.tile().into());
        let mut c = String::new();
        pointers(&Body { stores: Vec::new(), ..t.body.clone() }, 4, &mut c);
        expr::scalar_constants(&t.body, &mut c);
        for product in [0, 1] {
            let floats = self.tile() * self.pitch(product);
            let _ =
                writeln!(c, "  SHARED(f32, resident_{product}, {floats}); SHARED(f32, streamed_{product}, {floats});");
        }
        for s in 0..t.sums.len() {
            let _ = writeln!(c, "  SHARED(f32, tile_{s}, {});", self.tile() * (self.tile() + SMEM_PADDING));
        }
        let _ = writeln!(c, "  const i32 tx = threadIdx.x % {BLOCK_DIM}, ty = threadIdx.x / {BLOCK_DIM};");
        c.push_str("  BLOCKS(block) {\n");
        let _ = writeln!(c, "    const i64 batch = block / {tiles}, m0 = block % {tiles} * {};", self.tile());
        let (first_resident, first_streamed) = if t.over_rows { (2, 0) } else { (0, 2) };
        for product in [0, 1] {
            for (name, own, first) in [("A", self.resident, first_resident), ("B", self.streamed, first_streamed)] {
                let (at, argument) = (index::batch_start(&own[product]), first + product);
                let _ = writeln!(c, "    PTR(const f32) {name}{product} = ARG(const f32, {argument}) + ({at});");
            }
        }
        for (s, sum) in t.sums.iter().enumerate() {
            let _ = writeln!(c, "    f32 acc_{s}[{}][{}] = {{}};", self.each, self.width[sum.factor] / BLOCK_DIM);
        }
        self.copy(("A", "resident"), (self.resident, self.lines), "m0", &mut c);
        let _ = writeln!(c, "    for (i64 n0 = 0; n0 < {}; n0 += {}) {{", self.others, self.tile());
        self.copy(("B", "streamed"), (self.streamed, self.others), "n0", &mut c);
        c.push_str("      async_commit();\n      async_wait<0>();\n      __syncthreads();\n");
        self.product(0, &mut c);
        self.product(1, &mut c);
        self.values(&mut c)?;
        c.push_str("      __syncthreads();\n");
        t.sums.iter().enumerate().for_each(|(s, sum)| self.add(s, sum, &mut c));
        c.push_str("      __syncthreads();\n    }\n");
        for (s, sum) in t.sums.iter().enumerate() {
            self.store(s, sum, &mut c)?;
        }
        c.push_str("  }\n");
        let batches: Extent = t.batch.iter().product();
        Ok(Source::new(c, batches * tiles, 1))
    }

    /// Lines of a tile.
    fn tile(&self) -> usize {
        self.each * BLOCK_DIM
    }

    /// Padded floats of a line of a product's operand in shared memory.
    fn pitch(&self, product: usize) -> usize {
        self.width[product] + SMEM_PADDING
    }

    /// C that copies tiles of the operands of both products, from line `from` (a C variable) of `count` on.
    fn copy(&self, (from, to): (&str, &str), (own, count): (&[MatrixLayout; 2], &Extent), first: &str, c: &mut String) {
        for product in [0, 1] {
            let (from, to) = (format!("{from}{product}"), format!("{to}_{product}"));
            let (all, tile) = ((count, &self.t.depth[product]), (self.tile(), self.width[product]));
            c.push_str(&copy((&from, &to), &own[product], all, tile, first, (self.pitch(product), F32_COPY_WIDTHS)));
        }
    }

    /// C that computes the thread's elements of a product.
    fn product(&self, product: usize, c: &mut String) {
        let (each, pitch) = (self.each, self.pitch(product));
        let _ = write!(
            c,
            "      f32 product_{product}[{each}][{each}] = {{}};
      #pragma unroll 4
      for (i32 x = 0; x < {}; x += 4) {{
        Vec4<f32> a[{each}], b[{each}];
        #pragma unroll
        for (i32 i = 0; i < {each}; i++) a[i] = load4(resident_{product} + (ty * {each} + i) * {pitch} + x);
        #pragma unroll
        for (i32 j = 0; j < {each}; j++) b[j] = load4(streamed_{product} + (tx + j * {BLOCK_DIM}) * {pitch} + x);
        #pragma unroll
        for (i32 i = 0; i < {each}; i++)
          #pragma unroll
          for (i32 j = 0; j < {each}; j++)
            #pragma unroll
            for (i32 e = 0; e < 4; e++) product_{product}[i][j] += a[i].at[e] * b[j].at[e];
      }}
",
            self.width[product]
        );
    }

    /// C that computes the summed values from the products, into tiles in shared memory: zeros beyond the matrix.
    fn values(&self, c: &mut String) -> Result<(), String> {
        let (t, each) = (self.t, self.each);
        let _ = write!(
            c,
            "      #pragma unroll
      for (i32 i = 0; i < {each}; i++)
        #pragma unroll
        for (i32 j = 0; j < {each}; j++) {{
        const i64 r = m0 + ty * {each} + i, n = n0 + tx + j * {BLOCK_DIM};
        const i32 to = (ty * {each} + i) * {} + tx + j * {BLOCK_DIM};
        if (r >= {} || n >= {}) {{
",
            self.tile() + SMEM_PADDING,
            self.lines,
            self.others
        );
        for s in 0..t.sums.len() {
            let _ = writeln!(c, "          tile_{s}[to] = 0.0f;");
        }
        c.push_str("          continue;\n        }\n");
        let p = NodePrinter { body: &t.body, width: 1 };
        let (row, key) = if t.over_rows { ("n", "r") } else { ("r", "n") };
        let at = |l: usize| {
            let w = &self.load_strides[l];
            let batch = index::flat_offset(&t.batch, &w.batch, "batch");
            (format!("p{l} + (({batch}) + {row} * {} + {key} * {})", w.inner, w.column), 0usize.into(), false)
        };
        let mut products = ["product_0[i][j]", "product_1[i][j]"].into_iter();
        for (n, typed) in t.body.nodes.iter().enumerate() {
            let anchor = match typed.node {
                Node::Anchor => products.next().ok_or("a score matrix of more than two products")?,
                _ => "",
            };
            p.node(n, &at, &|_| anchor.into(), c);
        }
        for (s, sum) in t.sums.iter().enumerate() {
            let _ = writeln!(c, "        tile_{s}[to] = {};", p.name(sum.node, 0));
        }
        c.push_str("      }\n");
        Ok(())
    }

    /// C that adds the product of a tile with the iterated lines to the sums of the thread.
    fn add(&self, s: usize, sum: &ScoreSum, c: &mut String) {
        let (each, factor) = (self.each, sum.factor);
        let _ = write!(
            c,
            "      #pragma unroll 2
      for (i32 x = 0; x < {tile}; x += 4) {{
        Vec4<f32> a[{each}];
        #pragma unroll
        for (i32 i = 0; i < {each}; i++) a[i] = load4(tile_{s} + (ty * {each} + i) * {} + x);
        #pragma unroll
        for (i32 e = 0; e < 4; e++)
          #pragma unroll
          for (i32 j = 0; j < {}; j++) {{
            const f32 b = streamed_{factor}[(x + e) * {} + tx + j * {BLOCK_DIM}];
            #pragma unroll
            for (i32 i = 0; i < {each}; i++) acc_{s}[i][j] += a[i].at[e] * b;
          }}
      }}
",
            self.tile() + SMEM_PADDING,
            self.width[factor] / BLOCK_DIM,
            self.pitch(factor),
            tile = self.tile(),
        );
    }

    /// C that stores the sums of the thread.
    fn store(&self, s: usize, sum: &ScoreSum, c: &mut String) -> Result<(), String> {
        let t = self.t;
        let (lead, [line, step]) = sum.out.split_last_chunk().ok_or("a result that is no matrix")?;
        let _ = write!(
            c,
            "    #pragma unroll
    for (i32 i = 0; i < {each}; i++)
      #pragma unroll
      for (i32 j = 0; j < {}; j++) {{
      const i64 r = m0 + ty * {each} + i, n = tx + j * {BLOCK_DIM};
      if (r < {} && n < {}) *(ARG(f32, {}) + (({}) + r * {line} + n * {step})) = acc_{s}[i][j];
    }}
",
            self.width[sum.factor] / BLOCK_DIM,
            self.lines,
            self.length[sum.factor],
            4 + t.body.loads.len() + s,
            index::flat_offset(&t.batch, lead, "batch"),
            each = self.each,
        );
        Ok(())
    }
}
