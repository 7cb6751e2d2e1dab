//! Attention in C: the scores of a block of rows stay in scratch memory sized for the L2 cache.
//!
//! Keys and values of a batch are packed into panels once. A block of rows then goes through both products and the row-wise
//! program between them.

use std::fmt::Write;

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::isa::Isa;
use crate::kernel::attention::{Attention, Softmax};
use crate::kernel::body::{Body, Load, Node, Typed};
use crate::kernel::contraction::{AccessStrides, Contraction, Operand, Tile};
use crate::kernel::extent::Extent;
use crate::kernel::{contraction, float};
use crate::print::Source;
use crate::print::c::contraction::Block;
use crate::print::c::panels::columns_to_panels;
use crate::print::c::rowwise::Rows;
use crate::print::expr::ctype;
use crate::print::index;
use crate::print::index::flat_offset;

/// Maximum bytes of scores in scratch memory.
const SCORES: usize = 1 << 18;

/// Floats of padding between rows, so that they do not map to the same L1 cache sets.
const SPREAD: usize = 64;

/// Tiles of rows from which packing the values pays off.
const FEW: usize = 4;

/// Blocks of rows that occupy several workers.
const BUSY: usize = 16;

/// The kernel.
///
/// # Errors
/// When an extent of scratch memory is not known before the run, or an access cannot follow the rows.
pub fn attention(a: &Attention, isa: &Isa) -> Result<Source, String> {
    let l = Layout::choose(a, isa)?;
    let (scores_walk, after_walk) = (a.walks(&a.scores, a.dims())?, a.walks(&a.after, a.out_dims())?);
    let to = a.to()?;
    if !to.column.is(1) {
        return Err("the rows of the result are not contiguous".into());
    }
    let nowhere = vec![Extent::from(0usize); a.batch.len()];
    let waits = AccessStrides { batch: nowhere, outer: 0usize.into(), inner: l.pitch.into(), column: 1usize.into() };
    let soft = a.softmax();
    let bodies = match soft {
        Some(s) => deferred_division(&a.along, s, a.at, a.element)?,
        None => vec![a.along.clone()],
    };
    let rows_dims = a.dims();
    let walks = bodies.iter().map(|body| Rows::of(body, &rows_dims, 1, isa)).collect::<Result<Vec<_>, _>>()?;
    let t = ctype(a.element);
    let (scores, weights) = (format!("({} *)X", ctype(l.scored)), format!("({t} *)X"));
    let q = format!("(const {t} *)args[0] + {} + first * {}", index::batch_start(&a.q), a.q.line);
    let result = format!(
        "({} *)args[{}] + {} + first * {}",
        ctype(stored_type(&a.after)),
        a.result_argument(),
        flat_offset(&a.batch, &to.batch, "batch"),
        to.inner
    );
    let first = Block {
        spec: &l.first,
        tile: l.first_tile,
        body: &a.scores,
        first_load: 3,
        walk: &scores_walk,
        to: &waits,
        left: &q,
        right: if l.packs_keys { "KP" } else { "K" },
        result: &scores,
        factors: None,
    };
    let second = Block {
        spec: &l.second,
        tile: l.second_tile,
        body: &a.after,
        first_load: a.after_argument(),
        walk: &after_walk,
        to: &to,
        left: &weights,
        right: if l.packs_values { "VP" } else { "V" },
        result: &result,
        factors: soft.map(|_| "F"),
    };
    let mut c = String::new();
    l.open(a, isa, &mut c);
    first.print("Y", isa, &mut c)?;
    c.push_str("    }\n    {\n");
    row_wise(a, &l, &walks, &mut c);
    c.push_str("    }\n    {\n");
    second.print("Y", isa, &mut c)?;
    c.push_str("    }\n  }\n");
    let sums = first.sums(isa).max(second.sums(isa)) * 4;
    let scratch = l.scratch(isa) + walks.iter().map(Rows::scratch).fold(sums, usize::max);
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
        let pitch = if pitch.is_multiple_of(SPREAD) { pitch + isa.lanes } else { pitch };
        let weights_pitch = if scored == a.element { pitch } else { 2 * pitch };
        let row_bytes = pitch * if float::is_half(scored) { 2 } else { 4 };
        let (mut first, mut second) =
            (a.product(&a.q.line, &a.depth, &a.keys), a.product(&weights_pitch.into(), &a.keys, &a.columns));
        let (mut first_tile, mut second_tile) = (contraction::tile(&first, isa), contraction::tile(&second, isa));
        // With few rows, keys are read unpacked.
        let few = a.rows.number().is_some_and(|n| n < FEW);
        let packs_keys = !(few && a.k.step.is(1) && depth.is_multiple_of(first.element.group()));
        if !packs_keys {
            first.b = Operand::Transposed(a.k.line.clone());
            first_tile = Tile { rows: 1, vectors: 1 };
        }
        // Blocks are a multiple of both products' tiles.
        let mut unit = first_tile.rows / gcd(first_tile.rows, second_tile.rows) * second_tile.rows;
        if unit * row_bytes > 2 * SCORES && a.rows.guess() > unit {
            second_tile = Tile { rows: first_tile.rows, ..second_tile };
            unit = first_tile.rows;
        }
        let (rows, batches) = (a.rows.guess(), a.batch.iter().product::<Extent>());
        let most = (SCORES / row_bytes).min(rows * batches.guess() / BUSY).clamp(unit, rows.next_multiple_of(unit));
        let block = most / unit * unit;
        // With few rows, values are read unpacked.
        let packs_values = rows >= FEW * second_tile.rows || !a.v.step.is(1);
        if !packs_values {
            second.b = Operand::RowMajor(a.v.line.clone());
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
        let (many, (width, wide)) = (self.first.element.group(), self.widths(isa));
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
    fn open(&self, a: &Attention, isa: &Isa, c: &mut String) {
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
        let many = self.first.element.group();
        if self.packs_keys {
            c.push_str("      {\n");
            columns_to_panels(("K", "KP"), (&a.k.line, &a.k.step), (self.keys, self.depth, width), many, isa, c);
            c.push_str("      }\n");
        }
        if self.packs_values {
            c.push_str("      {\n");
            columns_to_panels(("V", "VP"), (&a.v.step, &a.v.line), (self.columns, self.keys, wide), many, isa, c);
            c.push_str("      }\n");
        }
        c.push_str("    }\n    {\n");
    }
}

/// Whether the kernel supports the layouts and types.
fn supported(a: &Attention) -> Result<(), String> {
    if !a.kept.is_empty() {
        return Err("row values of its softmax have other readers".into());
    }
    if !a.q.step.is(1) {
        return Err("the rows of the left operand are not contiguous".into());
    }
    if a.k.step.is(1) && float::is_half(a.element) && !a.k.line.number().is_some_and(|n| n.is_multiple_of(2)) {
        return Err("keys of 16-bit floats are not aligned to 32 bits".into());
    }
    let scored = stored_type(&a.scores);
    if scored != a.element && scored != DType::F32 {
        return Err("its scores have a narrower type than its values".into());
    }
    Ok(())
}

/// Prints the row-wise program between the products, a loop for each of `walks`.
fn row_wise(a: &Attention, l: &Layout, walks: &[Rows<'_>], c: &mut String) {
    let (t, rows_dims, row_bytes) = (ctype(a.element), a.dims(), l.row_bytes);
    let outer = rows_dims.len() - 1;
    for (i, walk) in walks.iter().enumerate() {
        c.push_str("    {\n");
        walk.head("Y", c);
        c.push_str("    for (i64 r = 0; r < count; r++) {\n");
        let _ = writeln!(c, "    const i64 row = batch * {} + first + r;", a.rows);
        for (i, (l, argument)) in a.along.loads.iter().zip(a.along_arguments()).enumerate() {
            let t = ctype(l.dtype);
            let from = match argument {
                Some(n) => format!("args[{n}] + {}", flat_offset(&rows_dims[..outer], &l.strides[..outer], "row")),
                None => format!("(X + r * {row_bytes})"),
            };
            let _ = writeln!(c, "    const {t} *p{i} = (const {t} *){from};");
        }
        // The values of a row: the largest score first, then the factor.
        let _ = writeln!(c, "    f32 *const numbers = F + r, *const p{} = numbers;", a.along.loads.len());
        let largest = walks.len() == 2 && i == 0;
        let _ = match largest {
            true => writeln!(c, "    f32 *const q0 = numbers, *const q1 = numbers;"),
            false => writeln!(c, "    {t} *const q0 = ({t} *)(X + r * {row_bytes}); f32 *const q1 = numbers;"),
        };
        walk.row(c);
        c.push_str("    }\n    }\n");
    }
}

/// A softmax without the final division: exponentials, and a factor for each row that the second product applies. If its
/// argument is the scores themselves, a separate loop computes the row maxima before: it interleaves many rows, which a single
/// loop with two dependent reductions cannot. Exponentials have type `element`; all else is computed in f32.
fn deferred_division(along: &Body, s: Softmax, at: usize, element: DType) -> Result<Vec<Body>, String> {
    if [s.largest, s.exponentials, s.sum].iter().any(|n| along.nodes[*n].dtype != DType::F32) {
        return Err("the sums of its softmax are rounded to 16 bits".into());
    }
    let mut body = along.clone();
    let (value, stored) = along.stores[0];
    let typed = |node| Typed { node, dtype: DType::F32, per_row: true };
    // The quotient, through casts.
    let mut quotient = stored;
    while let Node::Op(ScalarOp::Cast(_), args) = &along.nodes[quotient].node {
        body.nodes[quotient] = typed(Node::Op(ScalarOp::Reciprocal, vec![s.sum]));
        quotient = args[0];
    }
    body.nodes[quotient] = typed(Node::Op(ScalarOp::Reciprocal, vec![s.sum]));
    let weights = match element {
        DType::F32 => s.exponentials,
        half => body.push(Node::Op(ScalarOp::Cast(half), vec![s.exponentials]), half, false),
    };
    body.stores = vec![(value, weights), (value, quotient)];
    if along.nodes[s.of].node != Node::Load(at) || along.loads[at].dtype != DType::F32 {
        return Ok(vec![body]);
    }
    let mut first = along.clone();
    first.nodes.truncate(s.largest + 1);
    first.stores = vec![(value, s.largest)];
    let strides = vec![Extent::from(0usize); along.loads[at].strides.len()];
    body.nodes[s.largest] = typed(Node::Load(along.loads.len()));
    body.loads.push(Load { value, dtype: DType::F32, strides });
    Ok(vec![first, body])
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
