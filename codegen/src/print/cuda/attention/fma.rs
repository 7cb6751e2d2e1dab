//! Fused attention with f32 fused multiply-adds: 16 by 16 threads, each with some rows by some keys, then by some columns.

use std::fmt::Write;

use crate::print::Source;
use crate::print::cuda::attention::printer::Printer;
use crate::print::cuda::matrix_tile::{BLOCK_DIM, F32_COPY_WIDTHS, SMEM_PADDING, copy};

/// The kernel.
pub(super) fn kernel(p: &Printer<'_>) -> Source {
    let (rows, keys) = if p.wide { (32, 16) } else { (64, 32) };
    let columns = p.columns / BLOCK_DIM;
    let kernel =
        FmaKernel { p, rows, keys, line: p.depth + SMEM_PADDING, pitch: keys + SMEM_PADDING, group: columns.min(4) };
    let mut c = String::new();
    kernel.declarations(&mut c);
    p.head(rows, &mut c);
    kernel.first_tiles(&mut c);
    kernel.scores(&mut c);
    kernel.softmax(&mut c);
    kernel.sums(&mut c);
    kernel.results(&mut c);
    p.source(c, rows)
}

/// The sizes of a kernel.
struct FmaKernel<'a> {
    p: &'a Printer<'a>,
    /// Rows of a block, and keys of a tile.
    rows: usize,
    keys: usize,
    /// Padded elements of a line of `q` and `k`, and of the weights, in shared memory.
    line: usize,
    pitch: usize,
    /// Adjacent columns of a thread.
    group: usize,
}

impl FmaKernel<'_> {
    /// Rows, keys and columns of a thread.
    fn tile(&self) -> (usize, usize, usize) {
        (self.rows / BLOCK_DIM, self.keys / BLOCK_DIM, self.p.columns / BLOCK_DIM)
    }

    /// C that declares the tiles in shared memory, and opens the loop over blocks.
    fn declarations(&self, c: &mut String) {
        let _ = write!(
            c,
            "  SHARED(f32, tile_q, {});
  SHARED(f32, tile_k, {});
  SHARED(f32, tile_v, {});
  SHARED(f32, tile_p, {});
  const i32 tx = threadIdx.x % {BLOCK_DIM}, ty = threadIdx.x / {BLOCK_DIM};
  BLOCKS(block) {{
",
            self.rows * self.line,
            self.keys * self.line,
            self.keys * self.p.columns,
            self.rows * self.pitch,
        );
    }

    /// C that copies the tile of keys from line `from` (a C variable) on to shared memory.
    fn copy_k(&self) -> String {
        let (a, depth) = (self.p.a, self.p.depth);
        copy(("K", "tile_k"), &a.k, (&a.keys, &a.depth), (self.keys, depth), "from", (self.line, F32_COPY_WIDTHS))
    }

    /// The same for values.
    fn copy_v(&self) -> String {
        let (a, columns) = (self.p.a, self.p.columns);
        copy(("V", "tile_v"), &a.v, (&a.keys, &a.columns), (self.keys, columns), "from", (columns, F32_COPY_WIDTHS))
    }

    /// C that initialises the accumulators, and copies the rows of the block and the first tiles.
    fn first_tiles(&self, c: &mut String) {
        let (a, depth, (tm, _, tc)) = (self.p.a, self.p.depth, self.tile());
        let (copy_k, copy_v) = (self.copy_k(), self.copy_v());
        let _ = write!(
            c,
            "    f32 acc[{tm}][{tc}] = {{}}, row_max[{tm}], row_sum[{tm}] = {{}};
    for (i32 i = 0; i < {tm}; i++) row_max[i] = -INF32;
{}    {{ const i64 from = 0;
{copy_k}      async_commit();
{copy_v}      async_commit();
    }}
",
            copy(("Q", "tile_q"), &a.q, (&a.rows, &a.depth), (self.rows, depth), "m0", (self.line, F32_COPY_WIDTHS)),
        );
    }

    /// C that opens the loop over tiles, computes the thread's scores, and copies the next keys.
    fn scores(&self, c: &mut String) {
        let FmaKernel { p, keys, line, .. } = self;
        let ((tm, tn, _), depth, copy_k) = (self.tile(), p.depth, self.copy_k());
        let _ = write!(
            c,
            "    for (i64 n0 = 0; n0 < {}; n0 += {keys}) {{
      async_wait<1>();
      __syncthreads();
      f32 score[{tm}][{tn}] = {{}};
      #pragma unroll 4
      for (i32 x = 0; x < {depth}; x += 4) {{
        Vec4<f32> q[{tm}], k[{tn}];
        #pragma unroll
        for (i32 i = 0; i < {tm}; i++) q[i] = load4(tile_q + (ty * {tm} + i) * {line} + x);
        #pragma unroll
        for (i32 j = 0; j < {tn}; j++) k[j] = load4(tile_k + (tx + j * {BLOCK_DIM}) * {line} + x);
        #pragma unroll
        for (i32 i = 0; i < {tm}; i++)
          #pragma unroll
          for (i32 j = 0; j < {tn}; j++)
            #pragma unroll
            for (i32 e = 0; e < 4; e++) score[i][j] += q[i].at[e] * k[j].at[e];
      }}
      __syncthreads();
      {{ const i64 from = n0 + {keys};
{copy_k}      async_commit();
      }}
",
            p.a.keys,
        );
    }

    /// C that updates the online softmax with the scores, and stores their weights in shared memory.
    fn softmax(&self, c: &mut String) {
        let (p, pitch, (tm, tn, tc)) = (self.p, self.pitch, self.tile());
        let _ = write!(
            c,
            "      #pragma unroll
      for (i32 i = 0; i < {tm}; i++) {{
        const i64 r = m0 + ty * {tm} + i;
        f32 tile_max = -INF32;
        #pragma unroll
        for (i32 j = 0; j < {tn}; j++) {{
          const i64 n = n0 + tx + j * {BLOCK_DIM};
          f32 s = score[i][j];
          if (n >= {}) s = -INF32;
          else if (r < {}) {{
",
            p.a.keys, p.a.rows,
        );
        p.map(c);
        c.push_str("          }\n          score[i][j] = s;\n          tile_max = Max::of(tile_max, s);\n        }\n");
        Printer::rescale("i", BLOCK_DIM, ("acc[i][j]", tc), c);
        let _ = write!(
            c,
            "        #pragma unroll
        for (i32 j = 0; j < {tn}; j++) {{
          const f32 p = one_exp(score[i][j] - base);
          row_sum[i] += p;
          tile_p[(ty * {tm} + i) * {pitch} + tx + j * {BLOCK_DIM}] = p;
        }}
      }}
"
        );
    }

    /// C that adds the weighted values of the tile, copies the next values, and closes the loop over tiles.
    fn sums(&self, c: &mut String) {
        let FmaKernel { p, keys, pitch, group, .. } = self;
        let ((tm, _, tc), columns, copy_v) = (self.tile(), p.columns, self.copy_v());
        let _ = write!(
            c,
            "      async_wait<1>();
      __syncthreads();
      #pragma unroll 2
      for (i32 x = 0; x < {keys}; x += 4) {{
        Vec4<f32> p[{tm}];
        #pragma unroll
        for (i32 i = 0; i < {tm}; i++) p[i] = load4(tile_p + (ty * {tm} + i) * {pitch} + x);
        #pragma unroll
        for (i32 e = 0; e < 4; e++)
          #pragma unroll
          for (i32 j = 0; j < {tc}; j++) {{
            const f32 v = tile_v[(x + e) * {columns} + j / {group} * {apart} + tx * {group} + j % {group}];
            #pragma unroll
            for (i32 i = 0; i < {tm}; i++) acc[i][j] += p[i].at[e] * v;
          }}
      }}
      __syncthreads();
      {{ const i64 from = n0 + {keys};
{copy_v}      async_commit();
      }}
    }}
",
            apart = BLOCK_DIM * group,
        );
    }

    /// C that combines the sums of the threads of a row, and stores the results.
    fn results(&self, c: &mut String) {
        let (p, group, (tm, _, tc)) = (self.p, self.group, self.tile());
        let _ = write!(
            c,
            "    async_wait<0>();
    __syncthreads();
    #pragma unroll
    for (i32 i = 0; i < {tm}; i++) {{
      for (i32 by = {half}; by > 0; by /= 2) row_sum[i] += __shfl_xor_sync(0xffffffffu, row_sum[i], by);
      {{ const i64 r = m0 + ty * {tm} + i;
{keep}      }}
      #pragma unroll
      for (i32 j = 0; j < {tc}; j++) {{
      const i64 r = m0 + ty * {tm} + i, n = j / {group} * {apart} + tx * {group} + j % {group};
",
            keep = p.store_row_stats("tx == 0"),
            apart = BLOCK_DIM * group,
            half = BLOCK_DIM / 2,
        );
        p.store("acc[i][j] / row_sum[i]", c);
        c.push_str("      }\n    }\n  }\n");
    }
}
