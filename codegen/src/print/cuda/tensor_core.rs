//! Contractions on tensor cores, of 16-bit floats, and of f32 where lower precision was requested: a block computes a tile of
//! the result, its eight warps parts of it by `mma`. The next tiles of the operands are copied unconverted to shared memory
//! while the current ones are multiplied. Sums are f32.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::MmaPrecision;
use crate::kernel::body::Body;
use crate::kernel::contraction::{AccessStrides, Contraction, RhsLayout, k_extent};
use crate::kernel::extent::Extent;
use crate::print::cuda::epilogue::epilogue;
use crate::print::cuda::launch::THREADS;
use crate::print::cuda::matrix_tile::widest;
use crate::print::cuda::node_printer::pointers;
use crate::print::cuda::operands::{right_offset, row_start, term_offset};
use crate::print::expr::ctype;
use crate::print::{Source, expr, index};

impl MmaPrecision {
    /// The type of the operands, in memory and in shared memory.
    pub fn element(self) -> DType {
        if let MmaPrecision::Half(dtype) = self { dtype } else { DType::F32 }
    }

    /// Numbers of adjacent elements that one copy to shared memory may take, the most first.
    pub fn copies(self) -> &'static [usize] {
        if let MmaPrecision::Half(_) = self { &[8, 2, 1] } else { &[4, 1] }
    }

    /// Terms of the sum in shared memory at a time, and the padding against bank conflicts: elements after each row of the left
    /// operand, and of the right one.
    fn tile(self) -> (usize, usize, usize) {
        if let MmaPrecision::Half(_) = self { (32, 8, 8) } else { (16, 4, 8) }
    }

    /// C that multiplies the tiles in shared memory; `at_a` and `at_b` are the first elements of the warp's part `i` or `j` of
    /// both tiles, of `mi` by `ni`.
    fn step(self, (mi, ni): (usize, usize), (left, right): (usize, usize), at_a: &str, at_b: &str) -> String {
        let depth = self.tile().0;
        let (terms, a, b, product) = match self {
            MmaPrecision::Half(dtype) => return format!(
                "      #pragma unroll
      for (i32 kk = 0; kk < {depth}; kk += 16) {{
        u32 a[{mi}][4], b[{ni}][2];
        #pragma unroll
        for (i32 i = 0; i < {mi}; i++)
          ldmatrix_x4(a[i][0], a[i][1], a[i][2], a[i][3], {at_a} + lane % 16 * {left} + kk + lane / 16 * 8);
        #pragma unroll
        for (i32 j = 0; j < {ni}; j += 2)
          ldmatrix_x4_trans(b[j][0], b[j][1], b[j + 1][0], b[j + 1][1], {at_b} + (kk + lane % 16) * {right} + lane / 16 * 8);
        #pragma unroll
        for (i32 i = 0; i < {mi}; i++)
          #pragma unroll
          for (i32 j = 0; j < {ni}; j++) mma_{dtype}(acc[i][j], a[i], b[j]);
      }}
"
            ),
            MmaPrecision::Tf32 | MmaPrecision::Tf32x3 => {
                let small = |name: &str, i: &str| match self {
                    MmaPrecision::Tf32x3 => {
                        format!(" small_{name}[{i}][e] = tf32(x[e] - __int_as_float((i32){name}[{i}][e]));")
                    }
                    _ => String::new(),
                };
                let load = |name: &str, i: &str, n: usize, list: String| {
                    format!(
                        "const f32 x[{n}] = {{{list}}};
          #pragma unroll
          for (i32 e = 0; e < {n}; e++) {{ {name}[{i}][e] = tf32(x[e]);{} }}",
                        small(name, i)
                    )
                };
                let product = match self {
                    MmaPrecision::Tf32x3 => {
                        "mma(acc[i][j], small_a[i], b[j]); mma(acc[i][j], a[i], small_b[j]); mma(acc[i][j], a[i], b[j]);"
                    }
                    _ => "mma(acc[i][j], a[i], b[j]);",
                };
                let a = load("a", "i", 4, format!("p[t], p[{left} * 8 + t], p[t + 4], p[{left} * 8 + t + 4]"));
                let b = load("b", "j", 2, format!("p[t * {right}], p[(t + 4) * {right}]"));
                (8, a, b, product.to_string())
            }
            MmaPrecision::Bf16 | MmaPrecision::F16 => {
                let ty = if self == MmaPrecision::Bf16 { "bf16" } else { "f16" };
                let a: Vec<String> = [0, left * 8, 8, left * 8 + 8]
                    .iter()
                    .enumerate()
                    .map(|(e, at)| format!("a[i][{e}] = pack_{ty}(p[2 * t + {at}], p[2 * t + {at} + 1]);"))
                    .collect();
                let b: Vec<String> = [0, 8]
                    .iter()
                    .enumerate()
                    .map(|(e, k)| {
                        format!("b[j][{e}] = pack_{ty}(p[(2 * t + {k}) * {right}], p[(2 * t + {k} + 1) * {right}]);")
                    })
                    .collect();
                (16, a.join(" "), b.join(" "), format!("mma_{ty}(acc[i][j], a[i], b[j]);"))
            }
        };
        let small = if self == MmaPrecision::Tf32x3 {
            format!("        u32 small_a[{mi}][4], small_b[{ni}][2];\n")
        } else {
            String::new()
        };
        format!(
            "      #pragma unroll
      for (i32 kk = 0; kk < {depth}; kk += {terms}) {{
        u32 a[{mi}][4], b[{ni}][2];
{small}        #pragma unroll
        for (i32 i = 0; i < {mi}; i++) {{
          const auto p = {at_a} + g * {left} + kk;
          {a}
        }}
        #pragma unroll
        for (i32 j = 0; j < {ni}; j++) {{
          const auto p = {at_b} + g + kk * {right};
          {b}
        }}
        #pragma unroll
        for (i32 i = 0; i < {mi}; i++)
          #pragma unroll
          for (i32 j = 0; j < {ni}; j++) {{ {product} }}
      }}
"
        )
    }
}

/// Rows and columns of a warp's `mma`.
const ROWS: usize = 16;

const COLUMNS: usize = 8;

/// Blocks that occupy a GPU.
const MIN_BLOCKS: usize = 256;

/// The kernel; arguments are `a`, `b`, the loads of the epilogue, its stores.
///
/// # Errors
/// When the right operand is packed in panels.
pub fn contraction(
    spec: &Contraction,
    products: MmaPrecision,
    body: &Body,
    load_strides: &[AccessStrides],
    to: &AccessStrides,
) -> Result<Source, String> {
    let k = k_extent(spec);
    let (batches, rows): (Extent, Extent) = (spec.batch.iter().product(), &spec.outer.0 * &spec.inner.0);
    let blocks = |t: usize| rows.size_hint().div_ceil(t) * spec.columns.size_hint().div_ceil(t) * batches.size_hint();
    let tile = if blocks(128) >= MIN_BLOCKS { 128 } else { 64 };
    let (tm, tn) = (rows.div_ceil(&tile.into()), spec.columns.div_ceil(&tile.into()));
    // Two by four warps.
    let (warp_rows, warp_columns) = (tile / 2, tile / 4);
    let (mi, ni) = (warp_rows / ROWS, warp_columns / COLUMNS);
    let (deep, left_gap, right_gap) = products.tile();
    let (left, right) = (deep + left_gap, tile + right_gap);

    let b_at = right_offset(spec)?;
    let copies = TileCopies { spec, products, tile, deep, left, right };
    let (a_count, a_line) = copies.left();
    let row_at = row_start(spec);
    let mut c = String::new();
    pointers(body, 2, &mut c);
    expr::scalar_constants(body, &mut c);
    let _ = write!(
        c,
        "  SHARED({element}, tile_a, {a_size});
  SHARED({element}, tile_b, {b_size});
  const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const i32 wm = warp / 4 * {warp_rows}, wn = warp % 4 * {warp_columns};
  BLOCKS(block) {{
    const i64 batch = block / {per_batch}, m0 = block / {tn} % {tm} * {tile}, n0 = block % {tn} * {tile};
    PTR(const {element}) A = ARG(const {element}, 0) + ({a_batch_strides});
    PTR(const {element}) B = ARG(const {element}, 1) + ({b_batch_strides});
    i64 row_at[{a_count}];
    #pragma unroll
    for (i32 i = 0; i < {a_count}; i++) {{
      const i64 r = m0 + (threadIdx.x + i * THREADS) / {a_line};
      row_at[i] = r < {rows} ? {row_at} : -1;
    }}
    f32 acc[{mi}][{ni}][4] = {{}};
    i32 stage = 0;
    {{
{}    }}
    for (i64 k0 = 0; k0 < {k}; k0 += {deep}, stage ^= 1) {{
{}      async_wait<1>();
      __syncthreads();
{}      __syncthreads();
    }}
    async_wait<0>();
    #pragma unroll
    for (i32 i = 0; i < {mi}; i++)
      #pragma unroll
      for (i32 j = 0; j < {ni}; j++)
      #pragma unroll
      for (i32 e = 0; e < 4; e++) {{
      const i64 r = m0 + wm + i * {ROWS} + g + e / 2 * 8, n = n0 + wn + j * {COLUMNS} + 2 * t + e % 2;
",
        copies.print("0", "0", &b_at),
        copies.print("(stage ^ 1)", &format!("k0 + {deep}"), &b_at),
        products.step(
            (mi, ni),
            (left, right),
            &format!("tile_a + stage * {} + (wm + i * {ROWS}) * {left}", tile * left),
            &format!("tile_b + stage * {} + wn + j * {COLUMNS}", deep * right),
        ),
        element = ctype(products.element()),
        a_size = 2 * tile * left,
        b_size = 2 * deep * right,
        per_batch = &tm * &tn,
        a_batch_strides = index::flat_offset(&spec.batch, &spec.a_batch_strides, "batch"),
        b_batch_strides = index::flat_offset(&spec.batch, &spec.b_batch_strides, "batch"),
    );
    epilogue(spec, body, load_strides, to, "acc[i][j][e]", &mut c);
    c.push_str("    }\n  }\n");
    Ok(Source::new(c, batches * tm * tn, 1))
}

/// The copies of tiles of both operands to shared memory.
struct TileCopies<'a> {
    spec: &'a Contraction,
    products: MmaPrecision,
    /// Rows, and columns, of a tile.
    tile: usize,
    /// Terms of the sum in a tile.
    deep: usize,
    /// Padded elements of a row of both tiles.
    left: usize,
    right: usize,
}

impl TileCopies<'_> {
    /// Elements that one copy of the left operand takes, and of the right one.
    fn widths(&self) -> (usize, usize) {
        let (spec, all) = (self.spec, self.products.copies());
        let steps = spec.taps.iter().map(|(_, step)| step);
        let apart = [&spec.k_inner, &spec.outer.1, &spec.inner.1].into_iter().chain(steps).chain(&spec.a_batch_strides);
        let right = match &spec.rhs {
            RhsLayout::RowMajor(ld) => widest(all, [ld, &spec.columns].into_iter().chain(&spec.b_batch_strides)),
            _ => 1,
        };
        (widest(all, apart), right)
    }

    /// Copies of the left operand by each thread, and those of a row of the tile.
    fn left(&self) -> (usize, usize) {
        let by = self.widths().0;
        (self.tile * self.deep / by / THREADS, self.deep / by)
    }

    /// C that copies the tiles at term `k0` of the sum to the buffers `stage`; `b_at` is the offset of an element of `b`.
    fn print(&self, stage: &str, k0: &str, b_at: &str) -> String {
        let TileCopies { spec, tile, deep, left, right, .. } = self;
        let ((a_by, b_by), (a_count, a_line)) = (self.widths(), self.left());
        let (b_count, b_line) = (tile * deep / b_by / THREADS, tile / b_by);
        format!(
            "      #pragma unroll
      for (i32 i = 0; i < {a_count}; i++) {{
        const i32 e = threadIdx.x + i * THREADS, row = e / {a_line}, kk = e % {a_line} * {a_by};
        const i64 k = {k0} + kk, at = row_at[i] + {k_at};
        const bool in_bounds = row_at[i] >= 0 && k < {k};
        async_copy<{a_by}>(tile_a + {stage} * {a_size} + row * {left} + kk, A + (in_bounds ? at : 0), in_bounds);
      }}
      #pragma unroll
      for (i32 i = 0; i < {b_count}; i++) {{
        const i32 e = threadIdx.x + i * THREADS, kk = e / {b_line}, column = e % {b_line} * {b_by};
        const i64 k = {k0} + kk, n = n0 + column;
        const bool in_bounds = k < {k} && n < {columns};
        async_copy<{b_by}>(tile_b + {stage} * {b_size} + kk * {right} + column, B + (in_bounds ? {b_at} : 0), in_bounds);
      }}
      async_commit();\n",
            k_at = term_offset(spec),
            k = k_extent(spec),
            a_size = tile * left,
            b_size = deep * right,
            columns = spec.columns,
        )
    }
}
