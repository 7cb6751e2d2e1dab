//! Connectionist temporal classification.

use of_diag::Diagnostic;
use of_ir::ValueId;
use of_ops::elementwise::{And, Eq, Exp, Ge, Log, Lt, Max, Ne, Or, Select};
use of_ops::movement::{Concat, Expand, GatherElements, Reshape, Slice, Unsqueeze};
use of_ops::reduction::{LogSoftmax, ReduceLogSumExp, ReduceSum};
use of_ops::structural::ShapeOf;

use super::arithmetic::{Arithmetic, ValueResult};
use super::contrastive::{LOWEST, ints, positions};
use crate::Builder;

/// Elements `from..to` of axis 1.
fn columns(b: &mut Arithmetic<'_>, x: ValueId, from: i64, to: i64) -> ValueResult {
    let (from, to, axis) = (ints(b, &[from])?, ints(b, &[to])?, ints(b, &[1])?);
    b.op(Slice {}, &[x, from, to, axis])
}

/// The targets with a blank around each label, `[N, 2 S + 1]`, and the number of labels of each row, `[N, 1]`.
fn extended(b: &mut Arithmetic<'_>, labels: ValueId, blank: i64) -> Result<(ValueId, ValueId), Diagnostic> {
    let (zero, one) = (b.integer(0)?, b.integer(1)?);
    let blank = b.integer(blank)?;
    let given = b.op(Ge {}, &[labels, zero])?;
    let counts = b.op(Select {}, &[given, one, zero])?;
    let axis = ints(b, &[1])?;
    let lengths = b.op(ReduceSum { keepdims: true }, &[counts, axis])?;
    let known = b.op(Select {}, &[given, labels, blank])?;
    let blanks = b.op(Select {}, &[given, blank, blank])?;
    let last = ints(b, &[2])?;
    let pair = [b.op(Unsqueeze {}, &[blanks, last])?, b.op(Unsqueeze {}, &[known, last])?];
    let pair = b.op(Concat { axis: 2 }, &pair)?;
    let flat = ints(b, &[0, -1])?;
    let flat = b.op(Reshape { allowzero: false }, &[pair, flat])?;
    let end = columns(b, blanks, 0, 1)?;
    Ok((b.op(Concat { axis: 1 }, &[flat, end])?, lengths))
}

/// `log(exp(x) + exp(y) + exp(z))`.
fn log_sum(b: &mut Arithmetic<'_>, [x, y, z]: [ValueId; 3]) -> ValueResult {
    let largest = b.op(Max {}, &[x, y])?;
    let largest = b.op(Max {}, &[largest, z])?;
    let mut total = None;
    for v in [x, y, z] {
        let shifted = b.sub(v, largest)?;
        let power = b.op(Exp {}, &[shifted])?;
        total = Some(match total {
            None => power,
            Some(total) => b.add(total, power)?,
        });
    }
    let total = total.unwrap_or(largest);
    let logarithm = b.op(Log {}, &[total])?;
    b.add(largest, logarithm)
}

/// The loss of scores `[N, T, C]` against labels `[N, S]`, in which negative labels are padding. All steps of a sample count. A
/// sample whose labels do not fit into its steps has no part.
///
/// Source: Graves et al., "Connectionist Temporal Classification" (2006): the forward variables of equations 6 and 7, as logarithms.
/// The mean is that of PyTorch's `CTCLoss` with `zero_infinity`: each sample divided by the number of its labels.
pub(super) fn ctc(builder: &mut Builder, scores: ValueId, labels: ValueId, blank: i64) -> ValueResult {
    let b = &mut Arithmetic::new(builder);
    let logarithms = b.op(LogSoftmax { axis: -1 }, &[scores])?;
    let (symbols, lengths) = extended(b, labels, blank)?;
    // The logarithms of the symbols at each step: [N, T, U].
    let (outer, inner) = (
        b.op(ShapeOf { start: Some(0), end: Some(2) }, &[scores])?,
        b.op(ShapeOf { start: Some(1), end: Some(2) }, &[symbols])?,
    );
    let shape = b.op(Concat { axis: 0 }, &[outer, inner])?;
    let axis = ints(b, &[1])?;
    let indices = b.op(Unsqueeze {}, &[symbols, axis])?;
    let indices = b.op(Expand {}, &[indices, shape])?;
    let emitted = b.op(GatherElements { axis: 2 }, &[logarithms, indices])?;
    // A label that differs from the one before may follow it without a blank between them.
    let blank = b.integer(blank)?;
    let two = columns(b, symbols, 0, 2)?;
    let rest = columns(b, symbols, 0, -2)?;
    let before = b.op(Concat { axis: 1 }, &[two, rest])?;
    let is_label = b.op(Ne {}, &[symbols, blank])?;
    let differs = b.op(Ne {}, &[symbols, before])?;
    let skips = b.op(And {}, &[is_label, differs])?;
    // Before the first step all is in the first symbol.
    let position = positions(b, symbols, 1)?;
    let start = b.integer(0)?;
    let first = b.op(Eq {}, &[position, start])?;
    let zeros = b.op(Lt {}, &[symbols, start])?;
    let first = b.op(Or {}, &[first, zeros])?;
    let (zero, lowest) = (b.number(0.0, logarithms)?, b.number(LOWEST, logarithms)?);
    let first = b.op(Select {}, &[first, zero, lowest])?;
    let least = b.op(Select {}, &[zeros, lowest, lowest])?;
    let (one_column, two_columns) = (columns(b, least, 0, 1)?, columns(b, least, 0, 2)?);
    let last = builder.scan(&[first], &[emitted], |b, states, now| {
        let b = &mut Arithmetic::new(b);
        let stays = states[0];
        let moved = columns(b, stays, 0, -1)?;
        let moved = b.op(Concat { axis: 1 }, &[one_column, moved])?;
        let skipped = columns(b, stays, 0, -2)?;
        let skipped = b.op(Concat { axis: 1 }, &[two_columns, skipped])?;
        let skipped = b.op(Select {}, &[skips, skipped, lowest])?;
        let sum = log_sum(b, [stays, moved, skipped])?;
        Ok(vec![b.add(sum, now[0])?])
    })?;
    // A path ends in the last label or in the blank behind it.
    let b = &mut Arithmetic::new(builder);
    let two = b.integer(2)?;
    let end = b.op(of_ops::elementwise::Mul {}, &[lengths, two])?;
    let one = b.integer(1)?;
    let label = b.op(of_ops::elementwise::Sub {}, &[end, one])?;
    let (at_end, at_label) = (b.op(Eq {}, &[position, end])?, b.op(Eq {}, &[position, label])?);
    let ends = b.op(Or {}, &[at_end, at_label])?;
    let finals = b.op(Select {}, &[ends, last[0], lowest])?;
    let total = b.op(ReduceLogSumExp { keepdims: true }, &[finals, axis])?;
    let fits = b.number(LOWEST / 2.0, total)?;
    let fits = b.op(Ge {}, &[total, fits])?;
    let kept = b.op(Select {}, &[fits, total, zero])?;
    let divisor = b.op(Max {}, &[lengths, one])?;
    let divisor = b.cast(divisor, b.dtype(kept))?;
    let each = b.div(kept, divisor)?;
    let mean = b.mean(each)?;
    b.scale(mean, -1.0)
}
