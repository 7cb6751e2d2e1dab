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
use crate::kernel::contraction::{AccessStrides, Operand, Tile};
use crate::kernel::extent::Extent;
use crate::kernel::{contraction, expr};
use crate::print::Source;
use crate::print::c::contraction::Block;
use crate::print::c::copy::square;
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
    let known = |e: &Extent| e.number().ok_or("how many keys there are is not known before the run");
    let (keys, depth, columns) = (known(&a.keys)?, known(&a.depth)?, known(&a.columns)?);
    if !a.kept.is_empty() {
        return Err("others read numbers of its rows".into());
    }
    if !a.q.step.is(1) {
        return Err("the rows of the left operand are not contiguous".into());
    }
    if a.k.step.is(1) && expr::is_half(a.element) && !a.k.line.number().is_some_and(|n| n.is_multiple_of(2)) {
        return Err("keys of 16-bit floats do not begin at words".into());
    }
    // Scores and weights share their memory. Rows are padded so that they do not all begin in the same few L1 sets.
    let made = |body: &Body| body.stores.first().map_or(DType::F32, |(_, n)| body.nodes[*n].dtype);
    let (scored, t) = (made(&a.scores), ctype(a.element));
    let pitch = keys.next_multiple_of(isa.lanes);
    let pitch = if pitch.is_multiple_of(SPREAD) { pitch + isa.lanes } else { pitch };
    // Row pitch of scores and of weights.
    let pitch = if scored == a.element { (pitch, pitch) } else { (pitch, 2 * pitch) };
    if scored != a.element && scored != DType::F32 {
        return Err("scores in fewer bits than what they weigh".into());
    }
    let size = |dtype: DType| if expr::is_half(dtype) { 2 } else { 4 };
    let row_bytes = pitch.0 * size(scored);
    let (mut first, mut second) =
        (a.product(&a.q.line, &a.depth, &a.keys), a.product(&pitch.1.into(), &a.keys, &a.columns));
    let many = first.element.group();
    let (mut one, mut two) = (contraction::tile(&first, isa), contraction::tile(&second, isa));
    // With few rows, keys are read unpacked.
    let dots = a.rows.number().is_some_and(|n| n < FEW) && a.k.step.is(1) && depth.is_multiple_of(many);
    if dots {
        first.b = Operand::Transposed(a.k.line.clone());
        one = Tile { rows: 1, vectors: 1 };
    }
    // Blocks are a multiple of both products' tiles.
    let mut unit = one.rows / gcd(one.rows, two.rows) * two.rows;
    if unit * row_bytes > 2 * SCORES && a.rows.guess() > unit {
        two = Tile { rows: one.rows, ..two };
        unit = one.rows;
    }
    let (rows, batches) = (a.rows.guess(), a.batch.iter().product::<Extent>());
    let most = (SCORES / row_bytes).min(rows * batches.guess() / BUSY).clamp(unit, rows.next_multiple_of(unit));
    let block = most / unit * unit;
    let (width, wide) = (one.vectors * isa.lanes, two.vectors * isa.lanes);
    // With few rows, values are read unpacked.
    let packs = rows >= FEW * two.rows || !a.v.step.is(1);
    if !packs {
        second.b = Operand::RowMajor(a.v.line.clone());
    }
    // Bytes of panels.
    let k_size = if dots { 0 } else { 4 * depth.div_ceil(many) * width * keys.div_ceil(width) };
    let v_size = if packs { 4 * keys.div_ceil(many) * wide * columns.div_ceil(wide) } else { 0 };

    let (scores_walk, after_walk) = (a.walks(&a.scores, a.dims())?, a.walks(&a.after, a.out_dims())?);
    let to = a.to()?;
    if !to.column.is(1) {
        return Err("the rows of the result are not contiguous".into());
    }
    let nowhere = vec![Extent::from(0usize); a.batch.len()];
    let waits = AccessStrides { batch: nowhere, outer: 0usize.into(), inner: pitch.0.into(), column: 1usize.into() };
    let rows_dims = a.dims();
    let soft = a.softmax();
    let walks = match soft {
        Some(s) => finished_later(&a.along, s, a.at, a.element)?,
        None => vec![a.along.clone()],
    };
    let walks = walks.iter().map(|body| Rows::of(body, &rows_dims, 1, isa)).collect::<Result<Vec<_>, _>>()?;
    let (scores, weights) = (format!("({} *)X", ctype(scored)), format!("({t} *)X"));
    let q = format!("(const {t} *)args[0] + {} + first * {}", index::batch_start(&a.q), a.q.line);
    let result = format!(
        "({} *)args[{}] + {} + first * {}",
        ctype(made(&a.after)),
        a.result_argument(),
        flat_offset(&a.batch, &to.batch, "batch"),
        to.inner
    );
    let one = Block {
        spec: &first,
        tile: one,
        body: &a.scores,
        first_load: 3,
        walk: &scores_walk,
        to: &waits,
        left: &q,
        right: if dots { "K" } else { "KP" },
        result: &scores,
        factors: None,
    };
    let two = Block {
        spec: &second,
        tile: two,
        body: &a.after,
        first_load: a.after_argument(),
        walk: &after_walk,
        to: &to,
        left: &weights,
        right: if packs { "VP" } else { "V" },
        result: &result,
        factors: soft.map(|_| "F"),
    };

    let cuts = a.rows.div_ceil(&block.into());
    let mut c = String::new();
    let _ = writeln!(c, "  {t} *const KP = ({t} *)scratch, *const VP = ({t} *)((u8 *)KP + {k_size});");
    let _ = writeln!(c, "  u8 *const X = (u8 *)VP + {v_size};");
    let factors = block.next_multiple_of(isa.lanes);
    let _ = writeln!(c, "  f32 *const F = (f32 *)(X + {}), *const Y = F + {factors};", block * row_bytes);
    c.push_str("  for (i64 it = begin; it < end; it++) {\n");
    let _ = writeln!(c, "    const i64 batch = it / {cuts}, first = it % {cuts} * {block};");
    let _ = writeln!(c, "    const i64 count = dim_min({block}, {} - first);", a.rows);
    let _ = writeln!(c, "    const {t} *const K = (const {t} *)args[1] + {};", index::batch_start(&a.k));
    let _ = writeln!(c, "    const {t} *const V = (const {t} *)args[2] + {};", index::batch_start(&a.v));
    // Packed once for all rows of a batch that this worker runs.
    c.push_str("    if (first == 0 || it == begin) {\n");
    if !dots {
        c.push_str("      {\n");
        columns_to_panels(("K", "KP"), (&a.k.line, &a.k.step), (keys, depth, width), many, isa, &mut c);
        c.push_str("      }\n");
    }
    if packs {
        c.push_str("      {\n");
        columns_to_panels(("V", "VP"), (&a.v.step, &a.v.line), (columns, keys, wide), many, isa, &mut c);
        c.push_str("      }\n");
    }
    c.push_str("    }\n    {\n");
    one.print("Y", isa, &mut c)?;
    c.push_str("    }\n    {\n");
    let outer = rows_dims.len() - 1;
    for (i, walk) in walks.iter().enumerate() {
        c.push_str("    {\n");
        walk.head("Y", &mut c);
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
        walk.row(&mut c);
        c.push_str("    }\n    }\n");
    }
    c.push_str("    }\n    {\n");
    two.print("Y", isa, &mut c)?;
    c.push_str("    }\n  }\n");
    let sums = one.sums(isa).max(two.sums(isa)) * 4;
    let scratch =
        k_size + v_size + block * row_bytes + 4 * factors + walks.iter().map(Rows::scratch).fold(sums, usize::max);
    Ok(Source { scratch_bytes: scratch as u64, ..Source::new(c, batches * cuts, 1) })
}

/// A softmax without the final division: exponentials, and a factor for each row that the second product applies. If its
/// argument is the scores themselves, a separate loop computes the row maxima before: it interleaves many rows, which a single
/// loop with two dependent reductions cannot. Exponentials have type `element`; all else is computed in f32.
fn finished_later(along: &Body, s: Softmax, at: usize, element: DType) -> Result<Vec<Body>, String> {
    if [s.largest, s.exponentials, s.sum].iter().any(|n| along.nodes[*n].dtype != DType::F32) {
        return Err("a softmax whose sums are rounded".into());
    }
    let mut body = along.clone();
    let (value, stored) = along.stores[0];
    let typed = |node| Typed { node, dtype: DType::F32, per_row: true };
    // The quotient, through casts.
    let mut quotient = stored;
    while let Node::Op(ScalarOp::Cast(_), args) = &along.nodes[quotient].node {
        body.nodes[quotient] = typed(Node::Op(ScalarOp::Recip, vec![s.sum]));
        quotient = args[0];
    }
    body.nodes[quotient] = typed(Node::Op(ScalarOp::Recip, vec![s.sum]));
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

/// Prints the packing of a matrix of `columns` by `depth` elements into panels of `width` columns, with zero columns at the end.
/// `column` and `step` are the strides of columns and of their elements. With `many` of 2, elements are pairs of 16-bit floats,
/// and an odd last element is paired with zero.
fn columns_to_panels(
    (from, to): (&str, &str),
    (column, step): (&Extent, &Extent),
    (columns, depth, width): (usize, usize, usize),
    many: usize,
    isa: &Isa,
    c: &mut String,
) {
    let lanes = isa.lanes;
    // From here on in words: a float, or a pair.
    let words = depth.div_ceil(many);
    let place = format!("n / {width} * {} + n % {width}", words * width);
    let (whole, deep) = (columns / lanes * lanes, depth / many / lanes * lanes);
    // Start of the remainder that is packed element by element: columns, and words of the other columns.
    let (mut n0, mut d0) = (0, 0);
    let _ = writeln!(c, "      f32 *const panels = (f32 *){to};");
    if step.is(1) {
        let _ =
            writeln!(c, "      for (i64 n = 0; n < {whole}; n += LANES) for (i64 d = 0; d < {deep}; d += LANES) {{");
        let _ = writeln!(c, "          const f32 *p = (const f32 *)({from} + n * {column}) + d;");
        let _ = writeln!(c, "          f32 *q = panels + {place} + d * {width};");
        square(&column.div_floor(&many.into()), &width.into(), lanes, c);
        c.push_str("      }\n");
        (n0, d0) = (whole, deep);
    } else if column.is(1) {
        let full = depth / many;
        let _ = writeln!(c, "      for (i64 d = 0; d < {full}; d++) for (i64 n = 0; n < {whole}; n += LANES)");
        let word = match many {
            1 => format!("load({from} + n + d * {step})"),
            _ => format!("(vf)load_pair({from} + n + 2 * d * {step}, {step})"),
        };
        let _ = writeln!(c, "          store(panels + {place} + d * {width}, {word});");
        (n0, d0) = (whole, full);
    }
    let each = match many {
        1 => format!("panels[{place} + d * {width}] = {from}[n * {column} + d * {step}]"),
        _ => {
            let pair = format!(
                "{{ const bf16 *p = {from} + n * {column}; {to}[2 * ({place} + d * {width})] = LOW; {to}[2 * ({place} + d * {width}) + 1] = HIGH; }}"
            );
            let low = format!("p[2 * d * {step}]");
            let high = match depth.is_multiple_of(2) {
                true => format!("p[(2 * d + 1) * {step}]"),
                false => format!("d < {} ? p[(2 * d + 1) * {step}] : 0", depth / 2),
            };
            pair.replace("LOW", &low).replace("HIGH", &high)
        }
    };
    if d0 < words && n0 > 0 {
        let _ = writeln!(c, "      for (i64 d = {d0}; d < {words}; d++) for (i64 n = 0; n < {n0}; n++) {each};");
    }
    if n0 < columns {
        let _ = writeln!(c, "      for (i64 d = 0; d < {words}; d++) for (i64 n = {n0}; n < {columns}; n++) {each};");
    }
    let end = columns.next_multiple_of(width);
    if columns < end {
        let _ = writeln!(
            c,
            "      for (i64 d = 0; d < {words}; d++) for (i64 n = {columns}; n < {end}; n++) panels[{place} + d * {width}] = 0;"
        );
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
