//! Elementwise operations.

use std::sync::Arc;

use of_ir::{DType, NewOp, ValueId};
use of_ops::OpSpec;
use of_ops::elementwise::*;

use super::reduce::Reducer;
use crate::import::build::Built;
use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::Attr;

/// One op of one operand.
pub(super) fn unary(cx: &mut Importer<'_, '_>, c: &Call<'_>, op: impl NewOp) -> ImportResult {
    Ok(vec![cx.elementwise(op, &[c.operand(0)?])?])
}

/// One op of two operands; `of_bools` is the op of truth values.
pub(super) fn binary(
    cx: &mut Importer<'_, '_>,
    c: &Call<'_>,
    op: impl NewOp,
    of_bools: Option<impl NewOp>,
) -> ImportResult {
    let operands = [c.operand(0)?, c.operand(1)?];
    let is_bool = cx.dtype(operands[0])? == DType::Bool;
    Ok(vec![match of_bools {
        Some(of_bools) if is_bool => cx.elementwise(of_bools, &operands)?,
        _ => cx.elementwise(op, &operands)?,
    }])
}

/// The larger or the smaller one; a bound that is no bound, as JAX begins a maximum with, changes nothing.
pub(super) fn extreme(cx: &mut Importer<'_, '_>, c: &Call<'_>, largest: bool) -> ImportResult {
    let (a, b) = (c.operand(0)?, c.operand(1)?);
    let kind = if largest { Reducer::Max } else { Reducer::Min };
    for (bound, x) in [(a, b), (b, a)] {
        let source = cx.sources.get(&bound).copied().unwrap_or(bound);
        if cx.dims(source)?.iter().product::<i64>() == 1
            && kind.of(cx.dtype(x)?) == kind
            && kind.is_identity(cx, source)
        {
            return Ok(vec![x]);
        }
    }
    if largest { binary(cx, c, Max {}, Some(Or {})) } else { binary(cx, c, Min {}, Some(And {})) }
}

/// A quotient; `1 / (1 + exp(-x))`, as JAX prints it, is the sigmoid.
pub(super) fn divide(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    match logistic(cx, c.operand(0)?, c.operand(1)?) {
        Some(x) => Ok(vec![cx.one(Sigmoid {}, &[x])?]),
        None => binary(cx, c, Div {}, None::<Div>),
    }
}

fn logistic(cx: &Importer<'_, '_>, one: ValueId, sum: ValueId) -> Option<ValueId> {
    let g = cx.rw.graph();
    let is_one = |v: ValueId| {
        let v = cx.sources.get(&v).copied().unwrap_or(v);
        cx.fold(v).and_then(|t| t.to_f64s()).is_some_and(|list| !list.is_empty() && list.iter().all(|x| *x == 1.0))
    };
    let made_by = |v: ValueId, name: &str| g.def_op(v).map(|op| g.op(op)).filter(|op| op.name() == name);
    let operands = &made_by(sum, Add::NAME).filter(|_| is_one(one))?.operands;
    let exp = match (is_one(operands[0]), is_one(operands[1])) {
        (true, _) => operands[1],
        (_, true) => operands[0],
        _ => return None,
    };
    let negative = made_by(exp, Exp::NAME)?.operands[0];
    Some(made_by(negative, Neg::NAME)?.operands[0])
}

/// `not`, of bits or truth values.
pub(super) fn not(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    Ok(vec![if cx.dtype(x)? == DType::Bool { cx.one(Not {}, &[x])? } else { cx.one(BitwiseNot {}, &[x])? }])
}

/// `x x`.
pub(super) fn square(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    Ok(vec![cx.elementwise(Mul {}, &[x, x])?])
}

/// A conversion; the one to truth values asks whether a number is not 0.
pub(super) fn convert(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    Ok(vec![cx.cast(c.operand(0)?, c.ty(0)?.dtype)?])
}

/// The bits as another type.
pub(super) fn bitcast(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let (x, to) = (c.operand(0)?, c.ty(0)?.dtype);
    let from = cx.dtype(x)?;
    if from.bits() != to.bits() || from == DType::Bool || to == DType::Bool {
        return Err(ImportError::unsupported(format!("from {from} to {to}: the widths differ")));
    }
    Ok(vec![bits_as(cx, x, to)?])
}

/// The bits of `x` as `to`.
pub(super) fn bits_as(cx: &mut Importer<'_, '_>, x: of_ir::ValueId, to: DType) -> Built {
    if cx.dtype(x)? == to { Ok(x) } else { cx.one(BitCast { to }, &[x]) }
}

/// The unsigned type of the same width, and the signed one.
pub(super) fn integers_like(dtype: DType) -> Result<[DType; 2], ImportError> {
    Ok(match dtype {
        DType::I8 | DType::U8 => [DType::U8, DType::I8],
        DType::I16 | DType::U16 => [DType::U16, DType::I16],
        DType::I32 | DType::U32 => [DType::U32, DType::I32],
        DType::I64 | DType::U64 => [DType::U64, DType::I64],
        other => return Err(ImportError::unsupported(format!("operands of type {other}"))),
    })
}

/// A shift to the right: as unsigned numbers, or with the sign.
pub(super) fn shift_right(cx: &mut Importer<'_, '_>, c: &Call<'_>, arithmetic: bool) -> ImportResult {
    let (x, n) = (c.operand(0)?, c.operand(1)?);
    let own = cx.dtype(x)?;
    let kind = integers_like(own)?[usize::from(arithmetic)];
    let (x, n) = (bits_as(cx, x, kind)?, bits_as(cx, n, kind)?);
    let y = cx.one(Shr {}, &[x, n])?;
    Ok(vec![bits_as(cx, y, own)?])
}

/// A comparison.
pub(super) fn compare(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let operands = [c.operand(0)?, c.operand(1)?];
    let direction = direction(c).ok_or_else(|| ImportError::invalid("it has no direction"))?;
    Ok(vec![match direction.as_str() {
        "EQ" => cx.elementwise(Eq {}, &operands)?,
        "NE" => cx.elementwise(Ne {}, &operands)?,
        "GE" => cx.elementwise(Ge {}, &operands)?,
        "GT" => cx.elementwise(Gt {}, &operands)?,
        "LE" => cx.elementwise(Le {}, &operands)?,
        "LT" => cx.elementwise(Lt {}, &operands)?,
        other => return Err(ImportError::invalid(format!("the direction is {other}"))),
    }])
}

fn direction(c: &Call<'_>) -> Option<String> {
    direction_of(c.op)
}

/// `GT`, from the pretty form or the generic one.
pub(super) fn direction_of(op: &crate::parse::ast::Op<'_>) -> Option<String> {
    if let Some(word) = op.words.first() {
        return Some(word.clone());
    }
    // `#stablehlo<comparison_direction GT>`.
    match op.attr("comparison_direction") {
        Some(Attr::Dialect(_, body)) => match &**body {
            Attr::List(words) => match words.last() {
                Some(Attr::Word(word)) => Some(word.clone()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// One of two operands for each element. A condition that is known, as that of an index that may be negative, chooses at once.
pub(super) fn select(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let (condition, a, b) = (c.operand(0)?, c.operand(1)?, c.operand(2)?);
    Ok(vec![match cx.decided(condition) {
        Some(true) => a,
        Some(false) => b,
        None => cx.elementwise(Select {}, &[condition, a, b])?,
    }])
}

/// Bounds first and last, which may be scalars.
pub(super) fn clamp(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let (low, x, high) = (c.operand(0)?, c.operand(1)?, c.operand(2)?);
    let [low, high] = [low, high].map(|bound| cx.sources.get(&bound).copied().unwrap_or(bound));
    let x = cx.one(Max {}, &[x, low])?;
    Ok(vec![cx.one(Min {}, &[x, high])?])
}

/// Infinities of the given signs.
pub(super) fn is_inf(cx: &mut Importer<'_, '_>, c: &Call<'_>, positive: bool, negative: bool) -> ImportResult {
    unary(cx, c, IsInf { detect_positive: positive, detect_negative: negative })
}

/// Rounding to a float of fewer bits, kept in the wider type.
pub(super) fn reduce_precision(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    let format = match (c.attr(&["format"]), c.attr(&["exponent_bits"]), c.attr(&["mantissa_bits"])) {
        (Some(Attr::Word(word)), ..) => word.as_str().into(),
        (_, Some(Attr::Int(e)), Some(Attr::Int(m))) => Arc::<str>::from(format!("e{e}m{m}")),
        _ => return Err(ImportError::invalid("it has no format")),
    };
    let own = cx.dtype(x)?;
    let narrow = match &*format {
        "e11m52" => DType::F64,
        "e8m23" => DType::F32,
        "e8m7" => DType::BF16,
        "e5m10" => DType::F16,
        other => return Err(ImportError::unsupported(format!("the format {other}"))),
    };
    if narrow.bits() >= own.bits() {
        return Ok(vec![x]);
    }
    let rounded = cx.cast(x, narrow)?;
    Ok(vec![cx.cast(rounded, own)?])
}
