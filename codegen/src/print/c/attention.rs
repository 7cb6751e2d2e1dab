//! Attention in C: the scores of a block of rows stay in scratch memory sized for the L2 cache.
//!
//! Keys and values of a batch are packed into panels once. A block of rows then goes through both products and the row-wise
//! program between them.

use std::fmt::Write;

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::isa::Isa;
use crate::kernel::attention::{Attention, Softmax};
use crate::kernel::body::{Body, Load, Node, TypedNode};
use crate::kernel::contraction::{AccessStrides, Contraction, RhsLayout, Tile};
use crate::kernel::extent::Extent;
use crate::kernel::{float, tile_choice};
use crate::print::Source;
use crate::print::c::contraction::Block;
use crate::print::c::panels::columns_to_panels;
use crate::print::c::rowwise::RowPrinter;
use crate::print::expr::ctype;
use crate::print::index;
use crate::print::index::flat_offset;

/// Maximum bytes of scores in scratch memory.
const MAX_SCORES_BYTES: usize = 1 << 18;

/// Floats of padding between rows, so that they do not map to the same L1 cache sets.
const L1_ALIASING_FLOATS: usize = 64;

/// Tiles of rows from which packing the values pays off.
const MIN_TILES_TO_PACK: usize = 4;

/// Blocks of rows that occupy several workers.
const MIN_ROW_BLOCKS: usize = 16;

/// The kernel.
///
/// # Errors
/// When an extent of scratch memory is not known before the run, or an access cannot follow the rows.
pub fn attention(a: &Attention, isa: &Isa) -> Result<Source, String> {
    let l = Layout::choose(a, isa)?;
    let (scores_strides, epilogue_strides) =
        (a.load_strides(&a.scores, a.dims())?, a.load_strides(&a.epilogue, a.out_dims())?);
    let to = a.output_strides()?;
    if !to.column.is(1) {
        return Err("the rows of the result are not contiguous".into());
    }
    let zeros = vec![Extent::from(0usize); a.batch.len()];
    let scratch_strides =
        AccessStrides { batch: zeros, outer: 0usize.into(), inner: l.pitch.into(), column: 1usize.into() };
    let soft = a.softmax();
    let bodies = match soft {
        Some(s) => deferred_division(&a.row_body, s, a.scores_load, a.element)?,
        None => vec![a.row_body.clone()],
    };
    let rows_dims = a.dims();
    let passes = bodies.iter().map(|body| RowPrinter::of(body, &rows_dims, 1, isa)).collect::<Result<Vec<_>, _>>()?;
    let t = ctype(a.element);
    let (scores, weights) = (format!("({} *)X", ctype(l.scored)), format!("({t} *)X"));
    let q = format!("(const {t} *)args[0] + {} + first * {}", index::batch_start(&a.q), a.q.line_stride);
    let result = format!(
        "({} *)args[{}] + {} + first * {}",
        ctype(stored_type(&a.epilogue)),
        a.result_argument(),
        flat_offset(&a.batch, &to.batch, "batch"),
        to.inner
    );
    let pointers = |body: &Body, argument: usize, strides: &[AccessStrides]| -> Vec<String> {
        let pointer = |(i, (l, w)): (usize, (&Load, &AccessStrides))| {
            let (t, at) = (ctype(l.dtype), flat_offset(&a.batch, &w.batch, "batch"));
            format!("(const {t} *)args[{}] + ({at}) + first * {}", argument + i, w.inner)
        };
        body.loads.iter().zip(strides).enumerate().map(pointer).collect()
    };
    let score_loads = pointers(&a.scores, 3, &scores_strides);
    let epilogue_loads = pointers(&a.epilogue, a.epilogue_argument(), &epilogue_strides);
    let first = Block {
        spec: &l.first,
        tile: l.first_tile,
        body: &a.scores,
        loads: &score_loads,
        load_strides: &scores_strides,
        store_strides: &scratch_strides,
        left: &q,
        right: if l.packs_keys { "KP" } else { "K" },
        result: &scores,
        factors: None,
    };
    let second = Block {
        spec: &l.second,
        tile: l.second_tile,
        body: &a.epilogue,
        loads: &epilogue_loads,
        load_strides: &epilogue_strides,
        store_strides: &to,
        left: &weights,
        right: if l.packs_values { "VP" } else { "V" },
        result: &result,
        factors: soft.map(|_| "F"),
    };
    let mut c = String::new();
    l.print_loop_head(a, isa, &mut c);
    first.print("Y", isa, &mut c)?;
    c.push_str("    }\n    {\n");
    row_wise(a, &l, &passes, &mut c);
    c.push_str("    }\n    {\n");
    second.print("Y", isa, &mut c)?;
    c.push_str("    }\n  }\n");
    let sums = first.sums(isa).max(second.sums(isa)) * 4;
    let scratch = l.scratch(isa) + passes.iter().map(RowPrinter::scratch).fold(sums, usize::max);
    let batches = a.batch.iter().product::<Extent>();
    Ok(Source { scratch_bytes: scratch as u64, ..Source::new(c, batches * l.blocks(a), 1) })
}

/// The type of what a body stores.
fn stored_type(body: &Body) -> DType {
    body.stores.first().map_or(DType::F32, |(_, n)| body.nodes[*n].dtype)
}

/// The sizes of a kernel: both products with their tiles, and the layout of scratch memory.
struct Layout {
    keys: usize,
    depth: usize,
    columns: usize,
    /// The product with the keys, and the one with the values.
    first: Contraction,
    second: Contraction,
    first_tile: Tile,
    second_tile: Tile,
    /// Whether keys, and values, are packed into panels.
    packs_keys: bool,
    packs_values: bool,
    /// The type of the scores, which share their memory with the weights.
    scored: DType,
    /// Row pitch of the scores.
    pitch: usize,
    /// Bytes of a row of scores.
    row_bytes: usize,
    /// Rows of a block.
    block: usize,
}

impl Layout {
    fn choose(a: &Attention, isa: &Isa) -> Result<Layout, String> {
        let known = |e: &Extent| e.number().ok_or("the number of keys is not known before the run");
        let (keys, depth, columns) = (known(&a.keys)?, known(&a.depth)?, known(&a.columns)?);
        supported(a)?;
        // Rows are padded so that they do not all begin in the same few L1 sets.
        let scored = stored_type(&a.scores);
        let pitch = keys.next_multiple_of(isa.lanes);
        let pitch = if pitch.is_multiple_of(L1_ALIASING_FLOATS) { pitch + isa.lanes } else { pitch };
        let weights_pitch = if scored == a.element { pitch } else { 2 * pitch };
        let row_bytes = pitch * if float::is_half(scored) { 2 } else { 4 };
        let (mut first, mut second) =
            (a.product(&a.q.line_stride, &a.depth, &a.keys), a.product(&weights_pitch.into(), &a.keys, &a.columns));
        let (mut first_tile, mut second_tile) =
            (tile_choice::choose_tile(&first, isa), tile_choice::choose_tile(&second, isa));
        // With few rows, keys are read unpacked.
        let few = a.rows.number().is_some_and(|n| n < MIN_TILES_TO_PACK);
        let packs_keys = !(few && a.k.element_stride.is(1) && depth.is_multiple_of(first.element.k_group()));
        if !packs_keys {
            first.rhs = RhsLayout::Transposed(a.k.line_stride.clone());
            first_tile = Tile { rows: 1, vectors: 1 };
        }
        // Blocks are a multiple of both products' tiles.
        let mut unit = first_tile.rows / gcd(first_tile.rows, second_tile.rows) * second_tile.rows;
        if unit * row_bytes > 2 * MAX_SCORES_BYTES && a.rows.size_hint() > unit {
            second_tile = Tile { rows: first_tile.rows, ..second_tile };
            unit = first_tile.rows;
        }
        let (rows, batches) = (a.rows.size_hint(), a.batch.iter().product::<Extent>());
        let most = (MAX_SCORES_BYTES / row_bytes)
            .min(rows * batches.size_hint() / MIN_ROW_BLOCKS)
            .clamp(unit, rows.next_multiple_of(unit));
        let block = most / unit * unit;
        // With few rows, values are read unpacked.
        let packs_values = rows >= MIN_TILES_TO_PACK * second_tile.rows || !a.v.element_stride.is(1);
        if !packs_values {
            second.rhs = RhsLayout::RowMajor(a.v.line_stride.clone());
        }
        Ok(Layout {
            keys,
            depth,
            columns,
            first,
            second,
            first_tile,
            second_tile,
            packs_keys,
            packs_values,
            scored,
            pitch,
            row_bytes,
            block,
        })
    }

    /// Blocks of rows of a batch.
    fn blocks(&self, a: &Attention) -> Extent {
        a.rows.div_ceil(&self.block.into())
    }

    /// Columns of a panel of keys, and of one of values.
    fn widths(&self, isa: &Isa) -> (usize, usize) {
        (self.first_tile.vectors * isa.lanes, self.second_tile.vectors * isa.lanes)
    }

    /// Bytes of the panels of keys, and of those of values.
    fn panels(&self, isa: &Isa) -> (usize, usize) {
        let (many, (width, wide)) = (self.first.element.k_group(), self.widths(isa));
        let keys = 4 * self.depth.div_ceil(many) * width * self.keys.div_ceil(width);
        let values = 4 * self.keys.div_ceil(many) * wide * self.columns.div_ceil(wide);
        (if self.packs_keys { keys } else { 0 }, if self.packs_values { values } else { 0 })
    }

    /// Factors of the rows of a block.
    fn factors(&self, isa: &Isa) -> usize {
        self.block.next_multiple_of(isa.lanes)
    }

    /// Bytes of scratch memory before that of the products and the row-wise program.
    fn scratch(&self, isa: &Isa) -> usize {
        let (keys, values) = self.panels(isa);
        keys + values + self.block * self.row_bytes + 4 * self.factors(isa)
    }

    /// Prints the pointers to scratch memory, the head of the loop over blocks, and the packing of keys and values.
    fn print_loop_head(&self, a: &Attention, isa: &Isa, c: &mut String) {
        let (t, blocks, Layout { block, row_bytes, .. }) = (ctype(a.element), self.blocks(a), self);
        let ((k_size, v_size), (width, wide), factors) = (self.panels(isa), self.widths(isa), self.factors(isa));
        let _ = writeln!(c, "  {t} *const KP = ({t} *)scratch, *const VP = ({t} *)((u8 *)KP + {k_size});");
        let _ = writeln!(c, "  u8 *const X = (u8 *)VP + {v_size};");
        let _ = writeln!(c, "  f32 *const F = (f32 *)(X + {}), *const Y = F + {factors};", block * row_bytes);
        c.push_str("  for (i64 it = begin; it < end; it++) {\n");
        let _ = writeln!(c, "    const i64 batch = it / {blocks}, first = it % {blocks} * {block};");
        let _ = writeln!(c, "    const i64 count = dim_min({block}, {} - first);", a.rows);
        let _ = writeln!(c, "    const {t} *const K = (const {t} *)args[1] + {};", index::batch_start(&a.k));
        let _ = writeln!(c, "    const {t} *const V = (const {t} *)args[2] + {};", index::batch_start(&a.v));
        // Packed once for all rows of a batch that this worker runs.
        c.push_str("    if (first == 0 || it == begin) {\n");
        let many = self.first.element.k_group();
        if self.packs_keys {
            c.push_str("      {\n");
            columns_to_panels(
                ("K", "KP"),
                (&a.k.line_stride, &a.k.element_stride),
                (self.keys, self.depth, width),
                many,
                isa,
                c,
            );
            c.push_str("      }\n");
        }
        if self.packs_values {
            c.push_str("      {\n");
            columns_to_panels(
                ("V", "VP"),
                (&a.v.element_stride, &a.v.line_stride),
                (self.columns, self.keys, wide),
                many,
                isa,
                c,
            );
            c.push_str("      }\n");
        }
        c.push_str("    }\n    {\n");
    }
}

/// Whether the kernel supports the layouts and types.
fn supported(a: &Attention) -> Result<(), String> {
    if !a.saved_row_stats.is_empty() {
        return Err("row values of its softmax have other readers".into());
    }
    if !a.q.element_stride.is(1) {
        return Err("the rows of the left operand are not contiguous".into());
    }
    if a.k.element_stride.is(1)
        && float::is_half(a.element)
        && !a.k.line_stride.number().is_some_and(|n| n.is_multiple_of(2))
    {
        return Err("keys of 16-bit floats are not aligned to 32 bits".into());
    }
    let scored = stored_type(&a.scores);
    if scored != a.element && scored != DType::F32 {
        return Err("its scores have a narrower type than its values".into());
    }
    Ok(())
}

/// Prints the row-wise program between the products, a loop for each of `passes`.
fn row_wise(a: &Attention, l: &Layout, passes: &[RowPrinter<'_>], c: &mut String) {
    let (t, rows_dims, row_bytes) = (ctype(a.element), a.dims(), l.row_bytes);
    let outer = rows_dims.len() - 1;
    for (i, pass) in passes.iter().enumerate() {
        c.push_str("    {\n");
        pass.head("Y", c);
        c.push_str("    for (i64 r = 0; r < count; r++) {\n");
        let _ = writeln!(c, "    const i64 row = batch * {} + first + r;", a.rows);
        for (i, (l, argument)) in a.row_body.loads.iter().zip(a.row_body_arguments()).enumerate() {
            let t = ctype(l.dtype);
            let from = match argument {
                Some(n) => format!("args[{n}] + {}", flat_offset(&rows_dims[..outer], &l.strides[..outer], "row")),
                None => format!("(X + r * {row_bytes})"),
            };
            let _ = writeln!(c, "    const {t} *p{i} = (const {t} *){from};");
        }
        // The values of a row: the largest score first, then the factor.
        let _ = writeln!(c, "    f32 *const numbers = F + r, *const p{} = numbers;", a.row_body.loads.len());
        let largest = passes.len() == 2 && i == 0;
        let _ = match largest {
            true => writeln!(c, "    f32 *const q0 = numbers, *const q1 = numbers;"),
            false => writeln!(c, "    {t} *const q0 = ({t} *)(X + r * {row_bytes}); f32 *const q1 = numbers;"),
        };
        pass.row(c);
        c.push_str("    }\n    }\n");
    }
}

/// A softmax without the final division: exponentials, and a factor for each row that the second product applies. If its
/// argument is the scores themselves, a separate loop computes the row maxima before: it interleaves many rows, which a single
/// loop with two dependent reductions cannot. Exponentials have type `element`; all else is computed in f32.
fn deferred_division(row_body: &Body, s: Softmax, scores_load: usize, element: DType) -> Result<Vec<Body>, String> {
    if [s.row_max, s.exponentials, s.row_sum].iter().any(|n| row_body.nodes[*n].dtype != DType::F32) {
        return Err("the sums of its softmax are rounded to 16 bits".into());
    }
    let mut body = row_body.clone();
    let (value, stored) = row_body.stores[0];
    let typed = |node| TypedNode { node, dtype: DType::F32, per_row: true };
    // The quotient, through casts.
    let mut quotient = stored;
    while let Node::Op(ScalarOp::Cast(_), args) = &row_body.nodes[quotient].node {
        body.nodes[quotient] = typed(Node::Op(ScalarOp::Reciprocal, vec![s.row_sum]));
        quotient = args[0];
    }
    body.nodes[quotient] = typed(Node::Op(ScalarOp::Reciprocal, vec![s.row_sum]));
    let weights = match element {
        DType::F32 => s.exponentials,
        half => body.push(Node::Op(ScalarOp::Cast(half), vec![s.exponentials]), half, false),
    };
    body.stores = vec![(value, weights), (value, quotient)];
    if row_body.nodes[s.argument].node != Node::Load(scores_load) || row_body.loads[scores_load].dtype != DType::F32 {
        return Ok(vec![body]);
    }
    let mut first = row_body.clone();
    first.nodes.truncate(s.row_max + 1);
    first.stores = vec![(value, s.row_max)];
    let strides = vec![Extent::from(0usize); row_body.loads[scores_load].strides.len()];
    body.nodes[s.row_max] = typed(Node::Load(row_body.loads.len()));
    body.loads.push(Load { value, dtype: DType::F32, strides });
    Ok(vec![first, body])
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
