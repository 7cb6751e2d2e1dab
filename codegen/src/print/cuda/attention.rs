//! Fused attention in one pass: a block keeps some rows of the left operand and iterates over tiles of keys and values. The next
//! tiles are copied to shared memory while the current ones are multiplied. Rows of scores are never complete: each tile
//! rescales the running maximum and sum of exponentials (online softmax).
//!
//! Source: Dao, FlashAttention-2, 2023. It requires a softmax of the scores, after any elementwise ops.

use std::fmt::Write;

use of_ir::DType;

use crate::isa::{Isa, Products};
use crate::kernel::attention::{Attention, MatrixLayout};
use crate::kernel::body::{Body, Node};
use crate::kernel::contraction::AccessStrides;
use crate::kernel::extent::Extent;
use crate::print::cuda::launch::THREADS;
use crate::print::cuda::points::Points;
use crate::print::cuda::tensor::widest;
use crate::print::expr::ctype;
use crate::print::{Source, expr, index};

/// Maximum elements of a line, limited by registers and shared memory.
pub const LONGEST: usize = 128;

/// Rows of a warp's `mma`.
const ROWS: usize = 16;

/// Threads along the rows of a block, and along its columns, without tensor cores.
pub const SIDE: usize = 16;

/// Padding in floats between lines in shared memory against bank conflicts.
pub const GAP: usize = 4;

/// Floats of one copy to shared memory.
pub const FLOATS: &[usize] = &[4, 1];

/// The kernel.
///
/// # Errors
/// When the row-wise computation is no softmax, lines are too long, or an access does not follow the rows.
pub fn attention(a: &Attention, isa: &Isa) -> Result<Source, String> {
    let soft = a.softmax().ok_or("its rows are no softmax")?;
    // Ops before the softmax are elementwise on the scores.
    let mut along = a.along.clone();
    along.nodes.truncate(soft.of + 1);
    if along.nodes.iter().any(|t| matches!(t.node, Node::Reduce(..))) {
        return Err("its rows are a softmax of what needs whole rows".into());
    }
    along.nodes.iter_mut().filter(|t| t.node == Node::Load(a.at)).for_each(|t| t.node = Node::Anchor);
    let number = |n: &usize| match *n {
        n if n == soft.largest => Ok("top"),
        n if n == soft.sum => Ok("sum"),
        _ => Err("others read numbers of its rows that a softmax does not have"),
    };
    let kept = a.kept.iter().map(number).collect::<Result<_, _>>()?;
    let known = |e: &Extent| e.number().filter(|n| *n <= LONGEST).ok_or("its lines are too long for a GPU");
    let (depth, columns) = (known(&a.depth)?, known(&a.columns)?);
    let printer = Printer {
        a,
        mapped: soft.of,
        kept,
        along: &along,
        scores_walk: a.walks(&a.scores, a.dims())?,
        along_walk: a.walks(&a.along, a.dims())?,
        after_walk: a.walks(&a.after, a.out_dims())?,
        to: a.to()?,
        depth: depth.next_multiple_of(16),
        columns: if columns <= 32 { columns.next_multiple_of(16) } else { columns.next_multiple_of(64) },
        wide: depth.max(columns) > 64,
    };
    Ok(match Products::of(isa, a.element) {
        Some(products) => printer.tensor(products),
        None => printer.float(),
    })
}

struct Printer<'a> {
    a: &'a Attention,
    /// The argument node of the softmax.
    mapped: usize,
    /// The C arrays of row values with other readers.
    kept: Vec<&'static str>,
    along: &'a Body,
    scores_walk: Vec<AccessStrides>,
    along_walk: Vec<AccessStrides>,
    after_walk: Vec<AccessStrides>,
    to: AccessStrides,
    /// Padded elements of a line of `q` and `k`, and of `v`, in shared memory.
    depth: usize,
    columns: usize,
    /// Whether lines are long, so that tiles have few of them.
    wide: bool,
}

impl Printer<'_> {
    /// C that turns `s` into the argument of the softmax, at row `r` and key `n` (C variables).
    fn map(&self, c: &mut String) {
        let a = self.a;
        let arguments: Vec<Option<usize>> = (0..a.scores.loads.len()).map(|l| Some(3 + l)).collect();
        let stored = a.scores.stores[0].1;
        self.nodes((&a.scores, stored), &self.scores_walk, &arguments, "s", c);
        self.nodes((self.along, self.mapped), &self.along_walk, &a.along_arguments(), "s", c);
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
        let p = Points { body, width: 1 };
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
    fn store(&self, value: &str, c: &mut String) {
        let a = self.a;
        let first = a.after_argument();
        let arguments: Vec<Option<usize>> = (0..a.after.loads.len()).map(|l| Some(first + l)).collect();
        let _ = writeln!(c, "      if (r >= {} || n >= {}) continue;", a.rows, a.columns);
        // Without keys the sum is empty; if all keys are masked, the row is undefined.
        let empty = if a.keys.number().is_none() { format!("{} == 0 ? 0.0f : ", a.keys) } else { String::new() };
        let _ = writeln!(c, "      f32 y = {empty}{value};");
        self.nodes((&a.after, a.after.stores[0].1), &self.after_walk, &arguments, "y", c);
        let batch = index::flat_offset(&a.batch, &self.to.batch, "batch");
        let dtype = a.after.nodes[a.after.stores[0].1].dtype;
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
    fn keep(&self, alone: &str) -> String {
        let (rows, first) = (&self.a.rows, self.a.result_argument() + 1);
        let store = |(at, number): (usize, &&str)| {
            format!(
                "      if ({alone} && r < {rows}) *(ARG(f32, {}) + (batch * {rows} + r)) = {number}[i];\n",
                first + at
            )
        };
        self.kept.iter().enumerate().map(store).collect()
    }

    /// C at the head of a block of `rows` rows.
    fn head(&self, rows: usize, c: &mut String) {
        let a = self.a;
        let tiles = a.rows.div_ceil(&rows.into());
        let _ = writeln!(c, "    const i64 batch = block / {tiles}, m0 = block % {tiles} * {rows};");
        for (i, (name, own)) in [("Q", &a.q), ("K", &a.k), ("V", &a.v)].into_iter().enumerate() {
            let t = ctype(a.element);
            let _ = writeln!(c, "    PTR(const {t}) {name} = ARG(const {t}, {i}) + ({});", index::batch_start(own));
        }
    }

    /// C that rescales `top`, `sum` and the `count` sums `of` of a row by the tile's maximum `high`, over the lanes that share
    /// the row: those whose numbers differ in bits below `lanes`.
    fn correct(row: &str, lanes: usize, (of, count): (&str, usize), c: &mut String) {
        let _ = write!(
            c,
            "        #pragma unroll
        for (i32 by = {}; by > 0; by /= 2) high = Max::of(high, __shfl_xor_sync(0xffffffffu, high, by));
        const f32 now = Max::of(top[{row}], high), base = now == -INF32 ? 0.0f : now;
        const f32 by = one_exp(top[{row}] - base);
        top[{row}] = now; sum[{row}] *= by;
        #pragma unroll
        for (i32 j = 0; j < {count}; j++) {of} *= by;
",
            lanes / 2
        );
    }

    /// With f32 fused multiply-adds: 16 by 16 threads, each with some rows by some keys, then by some columns.
    fn float(&self) -> Source {
        let (a, depth, columns) = (self.a, self.depth, self.columns);
        let (rows, keys) = if self.wide { (32, 16) } else { (64, 32) };
        let (tm, tn, tc) = (rows / SIDE, keys / SIDE, columns / SIDE);
        let (line, pitch) = (depth + GAP, keys + GAP);
        let group = tc.min(4);
        let mut c = String::new();
        let _ = write!(
            c,
            "  SHARED(f32, tile_q, {});
  SHARED(f32, tile_k, {});
  SHARED(f32, tile_v, {});
  SHARED(f32, tile_p, {});
  const i32 tx = threadIdx.x % {SIDE}, ty = threadIdx.x / {SIDE};
  BLOCKS(block) {{
",
            rows * line,
            keys * line,
            keys * columns,
            rows * pitch,
        );
        self.head(rows, &mut c);
        let copy_k = copy(("K", "tile_k"), &a.k, (&a.keys, &a.depth), (keys, depth), "from", (line, FLOATS));
        let copy_v = copy(("V", "tile_v"), &a.v, (&a.keys, &a.columns), (keys, columns), "from", (columns, FLOATS));
        let _ = write!(
            c,
            "    f32 acc[{tm}][{tc}] = {{}}, top[{tm}], sum[{tm}] = {{}};
    for (i32 i = 0; i < {tm}; i++) top[i] = -INF32;
{}    {{ const i64 from = 0;
{copy_k}      async_commit();
{copy_v}      async_commit();
    }}
    for (i64 n0 = 0; n0 < {}; n0 += {keys}) {{
      async_wait<1>();
      __syncthreads();
      f32 score[{tm}][{tn}] = {{}};
      #pragma unroll 4
      for (i32 x = 0; x < {depth}; x += 4) {{
        Four<f32> q[{tm}], k[{tn}];
        #pragma unroll
        for (i32 i = 0; i < {tm}; i++) q[i] = load4(tile_q + (ty * {tm} + i) * {line} + x);
        #pragma unroll
        for (i32 j = 0; j < {tn}; j++) k[j] = load4(tile_k + (tx + j * {SIDE}) * {line} + x);
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
      #pragma unroll
      for (i32 i = 0; i < {tm}; i++) {{
        const i64 r = m0 + ty * {tm} + i;
        f32 high = -INF32;
        #pragma unroll
        for (i32 j = 0; j < {tn}; j++) {{
          const i64 n = n0 + tx + j * {SIDE};
          f32 s = score[i][j];
          if (n >= {}) s = -INF32;
          else if (r < {}) {{
",
            copy(("Q", "tile_q"), &a.q, (&a.rows, &a.depth), (rows, depth), "m0", (line, FLOATS)),
            a.keys,
            a.keys,
            a.rows,
        );
        self.map(&mut c);
        c.push_str("          }\n          score[i][j] = s;\n          high = Max::of(high, s);\n        }\n");
        Self::correct("i", SIDE, ("acc[i][j]", tc), &mut c);
        let _ = write!(
            c,
            "        #pragma unroll
        for (i32 j = 0; j < {tn}; j++) {{
          const f32 p = one_exp(score[i][j] - base);
          sum[i] += p;
          tile_p[(ty * {tm} + i) * {pitch} + tx + j * {SIDE}] = p;
        }}
      }}
      async_wait<1>();
      __syncthreads();
      #pragma unroll 2
      for (i32 x = 0; x < {keys}; x += 4) {{
        Four<f32> p[{tm}];
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
    async_wait<0>();
    __syncthreads();
    #pragma unroll
    for (i32 i = 0; i < {tm}; i++) {{
      for (i32 by = {half}; by > 0; by /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], by);
      {{ const i64 r = m0 + ty * {tm} + i;
{keep}      }}
      #pragma unroll
      for (i32 j = 0; j < {tc}; j++) {{
      const i64 r = m0 + ty * {tm} + i, n = j / {group} * {apart} + tx * {group} + j % {group};
",
            keep = self.keep("tx == 0"),
            apart = SIDE * group,
            half = SIDE / 2,
        );
        self.store("acc[i][j] / sum[i]", &mut c);
        c.push_str("      }\n    }\n  }\n");
        self.source(c, rows)
    }

    /// On tensor cores: each warp has sixteen rows by all keys of a tile, then by all columns. The scores in a lane are operands
    /// of the second product without a shuffle, if its terms follow the order of the lanes.
    fn tensor(&self, products: Products) -> Source {
        let (a, depth, columns) = (self.a, self.depth, self.columns);
        let half = matches!(products, Products::Half(_));
        // Two tiles of both operands take as much memory in 16-bit floats as in f32, except for the padding.
        let (rows, keys) = (THREADS / 32 * ROWS, if self.wide { 16 } else { 32 } * if half { 2 } else { 1 });
        let gap = if half { 2 * GAP } else { GAP };
        let (k_line, v_line) = (depth + gap, columns + gap);
        let (terms, short) = match products {
            Products::Tf32 | Products::Three => (8, None),
            Products::Bf16 | Products::Half(DType::BF16) => (16, Some("bf16")),
            Products::F16 | Products::Half(_) => (16, Some("f16")),
        };
        let three = products == Products::Three;
        // The fragment of a lane for sixteen rows by `terms` terms, in floats: 16-bit floats are paired along the terms.
        let (held, pairs) = if short.is_some() { (8, 2) } else { (4, 1) };
        let steps = depth / terms;
        // C that makes the operands `name` of `n` registers from floats `x`.
        let operands = |name: &str, n: usize| match short {
            Some(ty) => {
                let list: Vec<String> = (0..n).map(|e| format!("pack_{ty}(x[{}], x[{}])", 2 * e, 2 * e + 1)).collect();
                format!("const u32 {name}[{n}] = {{{}}};", list.join(", "))
            }
            None => {
                let list = |f: &dyn Fn(usize) -> String| (0..n).map(f).collect::<Vec<_>>().join(", ");
                let mut out = format!("const u32 {name}[{n}] = {{{}}};", list(&|e| format!("tf32(x[{e}])")));
                if three {
                    let rest = list(&|e| format!("tf32(x[{e}] - __int_as_float((i32){name}[{e}]))"));
                    let _ = write!(out, " const u32 small_{name}[{n}] = {{{rest}}};");
                }
                out
            }
        };
        let multiply = |sum: &str, b: &str| match (short, three) {
            (Some(ty), _) => format!("mma_{ty}({sum}, a, {b});"),
            (None, true) => format!("mma({sum}, small_a, b); mma({sum}, a, small_b); mma({sum}, a, b);"),
            (None, false) => format!("mma({sum}, a, b);"),
        };
        // The terms of an operand's registers, for lane `t`: those of the left one also alternate between two rows.
        let terms_of = |n: usize| -> Vec<String> {
            let at =
                |e: usize| if pairs == 2 { format!("2 * t + {}", e / 2 * 8 + e % 2) } else { format!("t + {}", e * 4) };
            (0..n).map(at).collect()
        };
        let right = terms_of(2 * pairs);
        let k_list: Vec<String> = right.iter().map(|x| format!("p[{x}]")).collect();
        // The second product takes terms in the order of the scores in a lane.
        let v_terms: Vec<String> = (0..2 * pairs)
            .map(|e| if pairs == 2 { format!("2 * t + {}", e / 2 * 8 + e % 2) } else { format!("2 * t + {e}") })
            .collect();
        let v_list: Vec<String> = v_terms.iter().map(|x| format!("p[({x}) * {v_line}]")).collect();
        let p_list = if pairs == 2 {
            ["0][0", "0][1", "0][2", "0][3", "1][0", "1][1", "1][2", "1][3"]
                .map(|at| format!("score[j * 2 + {at}]"))
                .join(", ")
        } else {
            [0, 2, 1, 3].map(|e| format!("score[j][{e}]")).join(", ")
        };
        // Row and term of each float of the left operand, in register order: rows alternate first.
        let q_at: Vec<(usize, String)> = (0..held)
            .map(|e| {
                let (pair, register) = (e % pairs, e / pairs);
                (register % 2 * 8, right[register / 2 * pairs + pair].clone())
            })
            .collect();
        // A pair of 16-bit floats is one register.
        let q_list: Vec<String> = q_at.iter().enumerate().map(|(e, (row, x))| {
            let to = match (half, e % 2) {
                (false, _) => format!("q[i][{e}] ="),
                (true, 0) => format!("q[i][{}] = (u32)", e / 2),
                (true, _) => format!("q[i][{}] |= 65536u *", e / 2),
            };
            format!("          {{ const i64 r = m0 + wm + g + {row}, x = i * {terms} + {x}; {to} (r < {} && x < {} ? Q[r * {} + x * {}] : {}); }}\n", a.rows, a.depth, a.q.line, a.q.step, if half { "(u16)0" } else { "0.0f" })
        }).collect();
        let tile = |name: &str, own: &MatrixLayout, length: &Extent, (width, line): (usize, usize)| {
            let to = format!("tile_{} + stage * {}", name.to_lowercase(), keys * line);
            copy((name, &to), own, (&a.keys, length), (keys, width), "from", (line, products.copies()))
        };
        let copy_k = tile("K", &a.k, &a.depth, (depth, k_line));
        let copy_v = tile("V", &a.v, &a.columns, (columns, v_line));
        let (sn, cn) = (keys / 8, columns / 8);
        let (k_tile, v_tile) = (keys * k_line, keys * v_line);
        let left = operands("a", 4);
        // C that multiplies block `i` of the lines of `q` by all keys of a tile, and block `j` of keys by all columns. 16-bit
        // tiles are loaded in pairs, those of values transposed.
        let (q, scores, sums) = if half {
            let both = |tile: &str| [0, 1].map(|e| multiply(&format!("{tile} + {e}]"), &format!("b[{e}]"))).join(" ");
            let load = |how: &str, from: String| format!("{how}(b[0][0], b[0][1], b[1][0], b[1][1], {from});");
            let keys_at = format!(
                "tile_k + now_at * {k_tile} + (j * 8 + lane % 8 + lane / 16 * 8) * {k_line} + i * 16 + lane / 8 % 2 * 8"
            );
            let values_at =
                format!("tile_v + now_at * {v_tile} + (j * 16 + lane % 16) * {v_line} + i * 8 + lane / 16 * 8");
            (
                "const auto &a = q[i];".to_string(),
                format!(
                    "for (i32 j = 0; j < {sn}; j += 2) {{
          u32 b[2][2];
          {}
          {}
        }}",
                    load("matrices", keys_at),
                    both("score[j")
                ),
                format!(
                    "for (i32 i = 0; i < {cn}; i += 2) {{
          u32 b[2][2];
          {}
          {}
        }}",
                    load("matrices_turned", values_at),
                    both("acc[i")
                ),
            )
        } else {
            let right = |from: String, list: &str, product: String| {
                format!(
                    "          const auto p = {from};
          const f32 x[{}] = {{{list}}};
          {}
          {product}
        }}",
                    2 * pairs,
                    operands("b", 2),
                )
            };
            let keys_at = format!("tile_k + now_at * {k_tile} + (j * 8 + g) * {k_line} + i * {terms}");
            let values_at = format!("tile_v + now_at * {v_tile} + j * {terms} * {v_line} + i * 8 + g");
            (
                format!("const auto &x = q[i];\n        {left}"),
                format!(
                    "for (i32 j = 0; j < {sn}; j++) {{\n{}",
                    right(keys_at, &k_list.join(", "), multiply("score[j]", "b"))
                ),
                format!(
                    "for (i32 i = 0; i < {cn}; i++) {{\n{}",
                    right(values_at, &v_list.join(", "), multiply("acc[i]", "b"))
                ),
            )
        };
        let (element, held) = (ctype(products.element()), if half { "u32" } else { "f32" });
        let registers = if half { 4 } else { q_at.len() };
        let mut c = String::new();
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
        self.head(rows, &mut c);
        let _ = write!(
            c,
            "    {held} q[{steps}][{registers}];
    f32 acc[{cn}][4] = {{}}, top[2] = {{-INF32, -INF32}}, sum[2] = {{}};
    i32 now_at = 0;
    {{ const i64 from = 0; const i32 stage = 0;
{copy_k}{copy_v}      async_commit();
    }}
    #pragma unroll
    for (i32 i = 0; i < {steps}; i++) {{
{}    }}
    for (i64 n0 = 0; n0 < {}; n0 += {keys}, now_at ^= 1) {{
      {{ const i64 from = n0 + {keys}; const i32 stage = now_at ^ 1;
{copy_k}{copy_v}      async_commit();
      }}
      async_wait<1>();
      __syncthreads();
      f32 score[{sn}][4] = {{}};
      #pragma unroll
      for (i32 i = 0; i < {steps}; i++) {{
        {q}
        #pragma unroll
        {scores}
      }}
      #pragma unroll
      for (i32 i = 0; i < 2; i++) {{
        const i64 r = m0 + wm + g + i * 8;
        f32 high = -INF32;
        #pragma unroll
        for (i32 j = 0; j < {sn} * 2; j++) {{
          const i64 n = n0 + j / 2 * 8 + 2 * t + j % 2;
          f32 s = score[j / 2][i * 2 + j % 2];
          if (n >= {}) s = -INF32;
          else if (r < {}) {{
",
            q_list.concat(),
            a.keys,
            a.keys,
            a.rows,
        );
        self.map(&mut c);
        c.push_str(
            "          }\n          score[j / 2][i * 2 + j % 2] = s;\n          high = Max::of(high, s);\n        }\n",
        );
        Self::correct("i", 4, ("acc[j / 2][i * 2 + j % 2]", 2 * cn), &mut c);
        let _ = write!(
            c,
            "        #pragma unroll
        for (i32 j = 0; j < {sn} * 2; j++) {{
          const f32 p = one_exp(score[j / 2][i * 2 + j % 2] - base);
          sum[i] += p;
          score[j / 2][i * 2 + j % 2] = p;
        }}
      }}
      #pragma unroll
      for (i32 j = 0; j < {}; j++) {{
        const f32 x[{}] = {{{p_list}}};
        {left}
        #pragma unroll
        {sums}
      }}
      __syncthreads();
    }}
    async_wait<0>();
    #pragma unroll
    for (i32 i = 0; i < 2; i++) {{
      for (i32 by = 2; by > 0; by /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], by);
      {{ const i64 r = m0 + wm + g + i * 8;
{}      }}
      #pragma unroll
      for (i32 j = 0; j < {cn} * 2; j++) {{
      const i64 r = m0 + wm + g + i * 8, n = j / 2 * 8 + 2 * t + j % 2;
",
            keys / terms,
            q_at.len(),
            self.keep("t == 0"),
        );
        self.store("acc[j / 2][i * 2 + j % 2] / sum[i]", &mut c);
        c.push_str("      }\n    }\n  }\n");
        self.source(c, rows)
    }

    fn source(&self, body: String, rows: usize) -> Source {
        let batches: Extent = self.a.batch.iter().product();
        Source::new(body, batches * self.a.rows.div_ceil(&rows.into()), 1)
    }
}

/// C that copies `lines` lines of an operand from `from` (a C variable) on to shared memory, `pitch` apart; `by` lists the
/// elements of a copy, the most first.
pub fn copy(
    (name, to): (&str, &str),
    own: &MatrixLayout,
    all: (&Extent, &Extent),
    tile: (usize, usize),
    from: &str,
    (pitch, copies): (usize, &[usize]),
) -> String {
    let ((count, length), (lines, width)) = (all, tile);
    let apart = [&own.offset, &own.line, length].into_iter().chain(own.batch.iter().map(|b| &b.1));
    let by = if own.step.is(1) { widest(copies, apart) } else { 1 };
    // Adjacent threads read adjacent elements.
    let (line, element) = if own.line.is(1) && !own.step.is(1) {
        (format!("e % {lines}"), format!("e / {lines}"))
    } else {
        (format!("e / {}", width / by), format!("e % {} * {by}", width / by))
    };
    format!(
        "      #pragma unroll
      for (i32 e = threadIdx.x; e < {}; e += THREADS) {{
        const i32 line = {line}, x = {element};
        const bool there = {from} + line < {count} && x < {length};
        async_copy<{by}>({to} + line * {pitch} + x, {name} + (there ? ({from} + line) * {} + x * {} : 0), there);
      }}
",
        lines * width / by,
        own.line,
        own.step,
    )
}
