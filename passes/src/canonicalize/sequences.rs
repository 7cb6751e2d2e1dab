//! Rules of `canonicalize` for sequences whose elements are known: their readers become readers of tensors, which can be fused,
//! split over devices and differentiated.

use of_diag::Diagnostic;
use of_ir::{Graph, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::control::{
    ConcatFromSequence, OptionalGetElement, OptionalOf, SequenceAt, SequenceConstruct, SequenceEmpty, SequenceErase,
    SequenceInsert, SequenceLength, SplitToSequence,
};
use of_ops::movement::{Concat, Slice, Squeeze, Unsqueeze};
use of_ops::structural::Constant;
use of_ops::{Op, OpSpec};

use super::{as_op, replace};
use crate::matchers::{def, dims, ints};

/// The most elements that are looked at: a longer sequence stays one.
const MAX_ELEMENTS: usize = 4096;

/// An element of a sequence.
#[derive(Clone, Copy)]
enum Element {
    Value(ValueId),
    /// A part of a tensor along an axis, which is dropped with `drops`.
    Part {
        x: ValueId,
        axis: i64,
        start: i64,
        end: i64,
        drops: bool,
    },
}

impl Element {
    /// The element as a tensor.
    fn make(self, rw: &mut Rewriter<'_>) -> Result<ValueId, Diagnostic> {
        let (x, axis, start, end, drops) = match self {
            Element::Value(v) => return Ok(v),
            Element::Part { x, axis, start, end, drops } => (x, axis, start, end, drops),
        };
        let mut operands = vec![x];
        for bound in [start, end, axis] {
            operands.push(rw.create_one(Constant { value: Tensor::from_i64s(&[bound]) }, &[])?);
        }
        let part = rw.create_one(Slice {}, &operands)?;
        // This may run after composites were expanded.
        if drops { first(Squeeze {}.expand(rw, &[part, operands[3]])?) } else { Ok(part) }
    }
}

fn first(values: Vec<ValueId>) -> Result<ValueId, Diagnostic> {
    let missing =
        || Diagnostic::error(of_diag::Code::CODEGEN, of_diag::Location::Unknown, "an expansion has no result");
    values.first().copied().ok_or_else(missing)
}

/// The elements of a sequence, where they are known.
fn elements(g: &Graph, s: ValueId) -> Option<Vec<Element>> {
    // Insertions and erasures, the last first.
    let (mut changes, mut s) = (Vec::new(), s);
    while let Some(op) =
        g.def_op(s).filter(|op| [SequenceInsert::NAME, SequenceErase::NAME].contains(&g.op(*op).name()))
    {
        changes.push(op);
        if changes.len() > MAX_ELEMENTS {
            return None;
        }
        s = g.op(op).operands[0];
    }
    let mut out = begun(g, s)?;
    for op in changes.into_iter().rev() {
        let operands = &g.op(op).operands;
        match g.op(op).name() == SequenceInsert::NAME {
            true => {
                // Before a position, or at the end.
                let at = position(g, operands.get(2), out.len()).map_or(Some(out.len()), |at| at)?;
                out.insert(at, Element::Value(operands[1]));
            }
            false => {
                let at = position(g, operands.get(1), out.len()).map_or(out.len().checked_sub(1), |at| at)?;
                (at < out.len()).then(|| out.remove(at))?;
            }
        }
    }
    (out.len() <= MAX_ELEMENTS).then_some(out)
}

/// A position in a sequence of so many elements, up to their number; `None` where the operand is left out, `Some(None)` where it is
/// outside or not known.
fn position(g: &Graph, operand: Option<&ValueId>, length: usize) -> Option<Option<usize>> {
    let operand = operand.filter(|v| *g.ty(**v) != Type::None)?;
    Some(ints(g, *operand).and_then(|list| {
        let at = *list.first()?;
        let at = if at < 0 { at.checked_add(length as i64)? } else { at };
        usize::try_from(at).ok().filter(|at| *at <= length)
    }))
}

/// The elements of a sequence that is made at once.
fn begun(g: &Graph, s: ValueId) -> Option<Vec<Element>> {
    if let Some((op, _)) = def::<SequenceConstruct>(g, s) {
        return Some(g.op(op).operands.iter().map(|v| Element::Value(*v)).collect());
    }
    if def::<SequenceEmpty>(g, s).is_some() {
        return Some(Vec::new());
    }
    let (op, split) = def::<SplitToSequence>(g, s)?;
    let operands = &g.op(op).operands;
    let x = operands[0];
    let shape = g.ty(x).as_tensor()?.shape.as_ref()?;
    let axis = of_ops::shape::axis(split.axis, shape.len()).ok()?;
    let extent = shape[axis].as_const();
    let lengths = operands.get(1).filter(|v| *g.ty(**v) != Type::None);
    let equal = |by: i64| {
        let n = extent.filter(|n| by > 0 && n / by <= MAX_ELEMENTS as i64)?;
        Some((0..(n + by - 1) / by).map(|i| by.min(n - i * by)).collect::<Vec<i64>>())
    };
    let lengths = match lengths {
        None => equal(1)?,
        Some(v) if dims(g, *v)?.is_empty() => equal(*ints(g, *v)?.first()?)?,
        Some(v) => ints(g, *v)?,
    };
    // Lengths that do not fit are an error of the op.
    let sum = lengths.iter().try_fold(0i64, |sum, n| sum.checked_add(*n).filter(|_| *n >= 0))?;
    if lengths.len() > MAX_ELEMENTS || extent.is_some_and(|n| n != sum) {
        return None;
    }
    let drops = operands.get(1).is_none_or(|v| *g.ty(*v) == Type::None) && !split.keepdims;
    let mut start = 0;
    let part = |length: &i64| {
        let from = start;
        start += length;
        Element::Part { x, axis: axis as i64, start: from, end: start, drops }
    };
    Some(lengths.iter().map(part).collect())
}

/// sequence_at(sequence, known position) = the element
pub(super) fn sequence_at(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if as_op::<SequenceAt>(rw, op).is_none() {
        return Ok(false);
    }
    let g = rw.graph();
    let (s, at) = (g.op(op).operands[0], g.op(op).operands[1]);
    let element = elements(g, s).and_then(|list| list.get(position(g, Some(&at), list.len())??).copied());
    let Some(element) = element else { return Ok(false) };
    rw.rewrite(op, &[]);
    let value = element.make(rw)?;
    replace(rw, op, value)
}

/// concat_from_sequence(sequence) = concat(its elements)
pub(super) fn sequence_concat(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    let Some(concat) = as_op::<ConcatFromSequence>(rw, op) else { return Ok(false) };
    let g = rw.graph();
    let Some(list) = elements(g, g.op(op).operands[0]).filter(|list| !list.is_empty()) else { return Ok(false) };
    let tensor = |v: ValueId| g.ty(v).as_tensor().and_then(|t| t.rank());
    let is_ranked = |element: &Element| match element {
        Element::Value(v) => tensor(*v).is_some(),
        Element::Part { .. } => true,
    };
    if !list.iter().all(is_ranked) {
        return Ok(false);
    }
    rw.rewrite(op, &[]);
    let mut parts = Vec::with_capacity(list.len());
    for element in list {
        let value = element.make(rw)?;
        parts.push(match concat.new_axis {
            true => {
                let axis = rw.create_one(Constant { value: Tensor::from_i64s(&[concat.axis]) }, &[])?;
                first(Unsqueeze {}.expand(rw, &[value, axis])?)?
            }
            false => value,
        });
    }
    let joined = rw.create_one(Concat { axis: concat.axis }, &parts)?;
    replace(rw, op, joined)
}

/// sequence_length(sequence) = the number of its elements
pub(super) fn sequence_length(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if as_op::<SequenceLength>(rw, op).is_none() {
        return Ok(false);
    }
    let Some(list) = elements(rw.graph(), rw.graph().op(op).operands[0]) else { return Ok(false) };
    rw.rewrite(op, &[]);
    let length = rw.create_one(Constant { value: Tensor::scalar(list.len() as i64) }, &[])?;
    replace(rw, op, length)
}

/// optional_get_element(optional(x)) = x
pub(super) fn optional_element(rw: &mut Rewriter<'_>, op: OpId) -> Result<bool, Diagnostic> {
    if as_op::<OptionalGetElement>(rw, op).is_none() {
        return Ok(false);
    }
    let g = rw.graph();
    let value = def::<OptionalOf>(g, g.op(op).operands[0]).and_then(|(made, _)| g.op(made).operands.first().copied());
    let Some(value) = value.filter(|v| *g.ty(*v) != Type::None) else { return Ok(false) };
    rw.rewrite(op, &[]);
    replace(rw, op, value)
}
