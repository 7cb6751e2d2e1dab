//! Contractions: a block computes a tile of the result from tiles of both operands in shared memory, and each thread a small
//! tile in registers; then the epilogue, then the store.
//!
//! While a tile is multiplied, the next one is loaded from memory into registers.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::{Isa, MmaPrecision};
use crate::kernel::body::Body;
use crate::kernel::contraction::{Contraction, Element, PARTIAL_SUM_TERMS, RowAxes, k_extent};
use crate::kernel::extent::Extent;
use crate::print::cuda::epilogue::epilogue;
use crate::print::cuda::launch::THREADS;
use crate::print::cuda::node_printer::{VECTOR_WIDTH, pointers};
use crate::print::cuda::operands::{right_offset, row_start, term_offset};
use crate::print::cuda::tensor_core;
use crate::print::expr::ctype;
use crate::print::{Source, expr, index};

/// Terms of the sum in shared memory at a time.
const K_TILE: usize = 16;

/// Padding in floats between rows in shared memory against bank conflicts.
const SMEM_PADDING: usize = 4;

/// A tile of the result: rows (and as many columns) of a block, and of a thread.
#[derive(Clone, Copy)]
struct Tile {
    block: usize,
    thread: usize,
}

/// Tiles, the largest first: large ones read less, small ones give more blocks.
const TILES: [Tile; 3] = [Tile { block: 128, thread: 8 }, Tile { block: 64, thread: 4 }, Tile { block: 32, thread: 2 }];

/// Blocks that occupy a GPU.
const MIN_BLOCKS: usize = 256;

impl Tile {
    fn choose(rows: &Extent, columns: &Extent, batches: &Extent) -> Tile {
        let blocks =
            |t: &Tile| rows.size_hint().div_ceil(t.block) * columns.size_hint().div_ceil(t.block) * batches.size_hint();
        TILES.into_iter().find(|t| blocks(t) >= MIN_BLOCKS).unwrap_or(TILES[TILES.len() - 1])
    }

    /// Adjacent rows, or columns, of a thread; its groups are strided, so that reads from shared memory spread over all banks.
    fn group(self) -> usize {
        self.thread.min(VECTOR_WIDTH)
    }

    /// C that reads the thread's elements `a` and `b` of line `kk` of both tiles.
    fn reads(self, pitch: usize, sum: &str) -> String {
        let g = self.group();
        let mut c = String::new();
        for (name, t) in [("a", "ty"), ("b", "tx")] {
            for first in (0..self.thread).step_by(g) {
                let at = format!("tile_{name} + kk * {pitch} + {t} * {g} + {}", first * self.block / self.thread);
                if g == VECTOR_WIDTH {
                    let _ = writeln!(c, "        const Vec4<{sum}> {name}{first} = load4({at});");
                }
                for i in 0..g {
                    let value =
                        if g == VECTOR_WIDTH { format!("{name}{first}.at[{i}]") } else { format!("*({at} + {i})") };
                    let _ = writeln!(c, "        {name}[{}] = {value};", first + i);
                }
            }
        }
        c
    }

    /// C expression of the row or column `i` of the thread at `t`.
    fn offset(self, i: &str, t: &str) -> String {
        let g = self.group();
        if g == self.thread {
            format!("{t} * {g} + {i}")
        } else {
            format!("{i} / {g} * {} + {t} * {g} + {i} % {g}", g * self.block / self.thread)
        }
    }
}

/// The kernel; arguments are `a`, `b`, the loads of the epilogue, its stores.
///
/// # Errors
/// When an access of the epilogue cannot follow the rows.
pub fn contraction(
    spec: &Contraction,
    body: &Body,
    axes: &RowAxes,
    out: &[Extent],
    isa: &Isa,
) -> Result<Source, String> {
    let mut load_strides = Vec::new();
    for l in &body.loads {
        load_strides.push(axes.strides_of(&l.strides).ok_or("an operand of the epilogue does not follow the rows")?);
    }
    let to = axes.strides_of(out).ok_or("the result does not follow the rows")?;
    let ((t, u, sum), dtype) = match spec.element {
        Element::F16Pair(dtype) => ((ctype(dtype), ctype(dtype), "f32"), dtype),
        Element::F32F32 => (("f32", "f32", "f32"), DType::F32),
        Element::U8S8 => (("u8", "i8", "i32"), DType::U8),
        Element::S8S8 => (("i8", "i8", "i32"), DType::I8),
    };
    if let Some(products) = MmaPrecision::of(isa, dtype) {
        return tensor_core::contraction(spec, products, body, &load_strides, &to);
    }
    let (batches, rows): (Extent, Extent) = (spec.batch.iter().product(), &spec.outer.0 * &spec.inner.0);
    let tile = Tile::choose(&rows, &spec.columns, &batches);
    let (tm, tn) = (rows.div_ceil(&tile.block.into()), spec.columns.div_ceil(&tile.block.into()));
    // Rounding errors increase with the length of a sum: partial sums keep them small.
    let blocked_sum = spec.element == Element::F32F32 && k_extent(spec).size_hint() > 2 * PARTIAL_SUM_TERMS;
    let b_at = right_offset(spec)?;
    let kernel = Kernel { spec, tile, types: [t, u, sum], b_at, tiles: [&tm, &tn], blocked_sum };
    let mut c = String::new();
    pointers(body, 2, &mut c);
    expr::scalar_constants(body, &mut c);
    kernel.print_loop_head(&rows, &mut c);
    kernel.sums(&mut c);
    let thread = tile.thread;
    let _ = write!(
        c,
        "    #pragma unroll
    for (i32 i = 0; i < {thread}; i++)
      #pragma unroll
      for (i32 j = 0; j < {thread}; j++) {{
      const i64 r = m0 + {}, n = n0 + {};
",
        tile.offset("i", "ty"),
        tile.offset("j", "tx"),
    );
    epilogue(spec, body, &load_strides, &to, "acc[i][j]", &mut c);
    c.push_str("    }\n  }\n");
    Ok(Source::new(c, batches * tm * tn, 1))
}

/// A kernel: its tile, and how it reads the operands.
struct Kernel<'a> {
    spec: &'a Contraction,
    tile: Tile,
    /// C types of the elements of both operands, and of the sums.
    types: [&'static str; 3],
    /// C expression of the offset of an element of the right operand.
    b_at: String,
    /// Tiles along the rows of the result, and along its columns.
    tiles: [&'a Extent; 2],
    /// Whether partial sums are added to the sums from time to time.
    blocked_sum: bool,
}

impl Kernel<'_> {
    /// Elements of each operand that a thread loads for a tile.
    fn loads_per_thread(&self) -> usize {
        self.tile.block * K_TILE / THREADS
    }

    /// Strides of the rows of `a` and `b` that a thread loads.
    fn strides(&self) -> (usize, usize) {
        (THREADS / K_TILE, THREADS / self.tile.block)
    }

    /// Padded elements between the rows of a tile in shared memory.
    fn pitch(&self) -> usize {
        self.tile.block + SMEM_PADDING
    }

    /// C that opens the loop over blocks, and declares the operands and accumulators.
    fn print_loop_head(&self, rows: &Extent, c: &mut String) {
        let Kernel { spec, tile: Tile { block, thread }, types: [t, u, sum], tiles: [tm, tn], .. } = self;
        let (loads_per_thread, (a_rows, _), side) = (self.loads_per_thread(), self.strides(), block / thread);
        let _ = write!(
            c,
            "  SHARED({sum}, tile_a, {size});
  SHARED({sum}, tile_b, {size});
  const i32 ak = threadIdx.x % {K_TILE}, ar = threadIdx.x / {K_TILE}, bn = threadIdx.x % {block}, bk = threadIdx.x / {block};
  const i32 tx = threadIdx.x % {side}, ty = threadIdx.x / {side};
  BLOCKS(block) {{
    const i64 batch = block / {per_batch}, m0 = block / {tn} % {tm} * {block}, n0 = block % {tn} * {block};
    PTR(const {t}) A = ARG(const {t}, 0) + ({a_batch_strides});
    PTR(const {u}) B = ARG(const {u}, 1) + ({b_batch_strides});
    i64 row_at[{loads_per_thread}];
    #pragma unroll
    for (i32 i = 0; i < {loads_per_thread}; i++) {{ const i64 r = m0 + ar + i * {a_rows}; row_at[i] = r < {rows} ? {at} : -1; }}
    {sum} acc[{thread}][{thread}] = {{}}, next_a[{loads_per_thread}], next_b[{loads_per_thread}];
",
            size = K_TILE * self.pitch(),
            per_batch = *tm * *tn,
            a_batch_strides = index::flat_offset(&spec.batch, &spec.a_batch_strides, "batch"),
            b_batch_strides = index::flat_offset(&spec.batch, &spec.b_batch_strides, "batch"),
            at = row_start(spec),
        );
        if self.blocked_sum {
            let _ = writeln!(c, "    {sum} whole[{thread}][{thread}] = {{}};");
        }
    }

    /// C that loads the thread's elements of the tiles at term `k0` of the sum to registers.
    fn fetch(&self, k0: &str) -> String {
        let Kernel { spec, types: [.., sum], b_at, .. } = self;
        let (loads_per_thread, (_, b_rows)) = (self.loads_per_thread(), self.strides());
        format!(
            "      {{ const i64 k = {k0} + ak, at = {k_at};
        #pragma unroll
        for (i32 i = 0; i < {loads_per_thread}; i++) next_a[i] = k < {k} && row_at[i] >= 0 ? ({sum})A[row_at[i] + at] : ({sum})0; }}
      {{ const i64 n = n0 + bn;
        #pragma unroll
        for (i32 i = 0; i < {loads_per_thread}; i++) {{
          const i64 k = {k0} + bk + i * {b_rows};
          next_b[i] = k < {k} && n < {columns} ? ({sum})B[{b_at}] : ({sum})0;
        }} }}\n",
            k_at = term_offset(spec),
            k = k_extent(spec),
            columns = spec.columns,
        )
    }

    /// C that computes the sums of the thread.
    fn sums(&self, c: &mut String) {
        let Kernel { spec, tile, types: [.., sum], .. } = self;
        let (thread, loads_per_thread, (a_rows, b_rows), pitch) =
            (tile.thread, self.loads_per_thread(), self.strides(), self.pitch());
        c.push_str(&self.fetch("0"));
        let _ = write!(
            c,
            "    for (i64 k0 = 0; k0 < {k}; k0 += {K_TILE}) {{
      #pragma unroll
      for (i32 i = 0; i < {loads_per_thread}; i++) {{
        tile_a[ak * {pitch} + ar + i * {a_rows}] = next_a[i];
        tile_b[(bk + i * {b_rows}) * {pitch} + bn] = next_b[i];
      }}
      __syncthreads();
{}      #pragma unroll
      for (i32 kk = 0; kk < {K_TILE}; kk++) {{
        {sum} a[{thread}], b[{thread}];
{}        #pragma unroll
        for (i32 i = 0; i < {thread}; i++)
          #pragma unroll
          for (i32 j = 0; j < {thread}; j++) acc[i][j] += a[i] * b[j];
      }}
",
            self.fetch(&format!("k0 + {K_TILE}")),
            tile.reads(pitch, sum),
            k = k_extent(spec),
        );
        let all = format!("for (i32 i = 0; i < {thread}; i++) for (i32 j = 0; j < {thread}; j++)");
        if self.blocked_sum {
            let _ = writeln!(c, "      if (k0 % {PARTIAL_SUM_TERMS} == {})", PARTIAL_SUM_TERMS - K_TILE);
            let _ = writeln!(c, "        {all} {{ whole[i][j] += acc[i][j]; acc[i][j] = 0; }}");
        }
        c.push_str("      __syncthreads();\n    }\n");
        if self.blocked_sum {
            let _ = writeln!(c, "    {all} acc[i][j] += whole[i][j];");
        }
    }
}
