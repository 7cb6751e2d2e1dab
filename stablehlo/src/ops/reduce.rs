//! Reductions whose reducer is recognised.

use of_ir::{DType, NewOp, ValueId};
use of_ops::elementwise::{Add, And, Max, Min, Mul, Ne, Or};
use of_ops::reduction::{ArgMax, ArgMin, ReduceMax, ReduceMin, ReduceProd, ReduceSum};

use super::elementwise::direction_of;
use crate::import::build::Built;
use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::{Attr, Op, Region};

/// A reducer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reducer {
    Add,
    Mul,
    Min,
    Max,
    And,
    Or,
}

impl Reducer {
    fn named(name: &str) -> Option<Reducer> {
        Some(match name {
            "stablehlo.add" => Reducer::Add,
            "stablehlo.multiply" => Reducer::Mul,
            "stablehlo.minimum" => Reducer::Min,
            "stablehlo.maximum" => Reducer::Max,
            "stablehlo.and" => Reducer::And,
            "stablehlo.or" => Reducer::Or,
            _ => return None,
        })
    }

    /// The reducer that does the same to truth values.
    pub fn of(self, dtype: DType) -> Reducer {
        match self {
            Reducer::Add | Reducer::Max if dtype == DType::Bool => Reducer::Or,
            Reducer::Mul | Reducer::Min if dtype == DType::Bool => Reducer::And,
            other => other,
        }
    }

    /// Two values combined.
    pub fn combine(self, cx: &mut Importer<'_, '_>, a: ValueId, b: ValueId) -> Built {
        match self {
            Reducer::Add => cx.one(Add {}, &[a, b]),
            Reducer::Mul => cx.one(Mul {}, &[a, b]),
            Reducer::Min => cx.one(Min {}, &[a, b]),
            Reducer::Max => cx.one(Max {}, &[a, b]),
            Reducer::And => cx.one(And {}, &[a, b]),
            Reducer::Or => cx.one(Or {}, &[a, b]),
        }
    }

    /// Whether `v` changes nothing in values of its type.
    pub fn is_identity(self, cx: &Importer<'_, '_>, v: ValueId) -> bool {
        let Some(t) = cx.fold(v) else { return false };
        let (Some(x), dtype) = (t.to_f64s().and_then(|v| v.first().copied()), t.dtype()) else { return false };
        let range = dtype.int_range().map(|(low, high)| (low as f64, high as f64));
        let (low, high) = range.unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
        match self {
            Reducer::Add | Reducer::Or => x == 0.0,
            Reducer::Mul | Reducer::And => x == 1.0,
            Reducer::Min => x == high,
            Reducer::Max => x == low,
        }
    }
}

/// The reducer that result `i` of a region of `2 n` arguments is; `None` for anything else.
pub(super) fn reducer(region: &Region<'_>, i: usize) -> Option<Reducer> {
    let n = region.args.len() / 2;
    let (a, b) = (region.args.get(i)?.name, region.args.get(i + n)?.name);
    let (end, before) = region.ops.split_last()?;
    let value = end.operands.get(i)?;
    let op = before.iter().find(|op| op.results.first().is_some_and(|r| r.0 == *value))?;
    let operands = op.operands.as_slice();
    (operands == [a, b] || operands == [b, a]).then(|| Reducer::named(&op.name)).flatten()
}

/// `stablehlo.reduce`.
pub(super) fn reduce(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let n = c.operands.len() / 2;
    let (values, starts) = c.operands.split_at(n);
    let first = *values.first().ok_or_else(|| ImportError::invalid("it has no operand"))?;
    let axes = c.axes(&["dimensions"], cx.dims(first)?.len())?;
    let applied = match c.attr(&["applies"]) {
        Some(Attr::Word(name)) => Some(Reducer::named(name).ok_or_else(|| unknown(name))?),
        _ => None,
    };
    let region = c.op.regions.first();
    if let (Some(region), [x, index], [axis]) = (region, values, axes.as_slice())
        && cx.iotas.get(index) == Some(axis)
        && let Some((largest, last)) = extreme(region)
    {
        return position(cx, c, (*x, *axis), largest, last);
    }
    let mut out = Vec::new();
    for (i, (x, start)) in values.iter().zip(starts).enumerate() {
        let kind = applied.or_else(|| reducer(region?, i)).ok_or_else(|| unknown(&body(region)))?;
        let kind = kind.of(cx.dtype(*x)?);
        let y = along(cx, *x, &axes, kind)?;
        out.push(if kind.is_identity(cx, *start) { y } else { kind.combine(cx, y, *start)? });
    }
    Ok(out)
}

fn unknown(what: &str) -> ImportError {
    ImportError::unsupported(format!(
        "the reducer {what} is neither add, multiply, minimum, maximum, and, or, argmax nor argmin"
    ))
}

/// The operations of a reducer, for messages.
fn body(region: Option<&Region<'_>>) -> String {
    let names = region.iter().flat_map(|r| r.ops.iter()).map(|op| op.name.trim_start_matches("stablehlo."));
    names.filter(|n| *n != "return").collect::<Vec<_>>().join(" ")
}

/// The reduction of `x` along axes, which are dropped. The reduction itself keeps them: a broadcast behind it then reads that.
pub(super) fn along(cx: &mut Importer<'_, '_>, x: ValueId, axes: &[usize], kind: Reducer) -> Built {
    let dims = cx.dims(x)?;
    let left: Vec<i64> = (0..dims.len()).filter(|a| !axes.contains(a)).map(|a| dims[a]).collect();
    let y = kept_along(cx, x, axes, kind)?;
    cx.reshape(y, &left)
}

fn kept_along(cx: &mut Importer<'_, '_>, x: ValueId, axes: &[usize], kind: Reducer) -> Built {
    if axes.is_empty() {
        return Ok(x);
    }
    let list: Vec<i64> = axes.iter().map(|a| *a as i64).collect();
    let list = cx.ints(&list)?;
    let own = cx.dtype(x)?;
    let mut of = |op: &dyn Fn(&mut Importer<'_, '_>, ValueId) -> Built| -> Built {
        // Truth values are reduced as numbers.
        if own != DType::Bool {
            return op(cx, x);
        }
        let wide = cx.cast(x, DType::I32)?;
        let y = op(cx, wide)?;
        let zero = cx.number(0.0, DType::I32)?;
        cx.one(Ne {}, &[y, zero])
    };
    fn one(cx: &mut Importer<'_, '_>, op: impl NewOp, x: ValueId, axes: ValueId) -> Built {
        cx.one(op, &[x, axes])
    }
    match kind {
        Reducer::Add => of(&|cx, x| one(cx, ReduceSum { keepdims: true }, x, list)),
        Reducer::Mul => of(&|cx, x| one(cx, ReduceProd { keepdims: true }, x, list)),
        Reducer::Min => of(&|cx, x| one(cx, ReduceMin { keepdims: true }, x, list)),
        Reducer::Max => of(&|cx, x| one(cx, ReduceMax { keepdims: true }, x, list)),
        Reducer::And if own == DType::Bool => of(&|cx, x| one(cx, ReduceMin { keepdims: true }, x, list)),
        Reducer::Or if own == DType::Bool => of(&|cx, x| one(cx, ReduceMax { keepdims: true }, x, list)),
        Reducer::And | Reducer::Or => Err(ImportError::unsupported("the bits of integers cannot be reduced")),
    }
}

/// Whether a region of values and their positions keeps the largest (else the smallest) and of equal ones the last.
fn extreme(region: &Region<'_>) -> Option<(bool, bool)> {
    let [a, i, b, j] = region.args.as_slice() else { return None };
    let known = |op: &Op<'_>| {
        matches!(
            op.name.as_str(),
            "stablehlo.compare" | "stablehlo.or" | "stablehlo.and" | "stablehlo.select" | "stablehlo.return"
        )
    };
    if !region.ops.iter().all(known) {
        return None;
    }
    let made_by = |name: &str| region.ops.iter().find(|op| op.results.first().is_some_and(|r| r.0 == name));
    let end = region.ops.last()?;
    for (value, pair) in end.operands.iter().zip([[a.name, b.name], [i.name, j.name]]) {
        let op = made_by(value)?;
        if op.name != "stablehlo.select" || op.operands.get(1..) != Some(&pair[..]) {
            return None;
        }
    }
    let direction = |x: &str, y: &str| {
        let between = region.ops.iter().filter(|op| op.name == "stablehlo.compare" && op.operands == [x, y]);
        between.filter_map(direction_of).find(|d| d != "EQ" && d != "NE")
    };
    let largest = match direction(a.name, b.name)?.as_str() {
        "GT" | "GE" => true,
        "LT" | "LE" => false,
        _ => return None,
    };
    let last = direction(i.name, j.name).is_some_and(|d| d == "GT" || d == "GE");
    Some((largest, last))
}

/// The extreme value along an axis, and where it is.
fn position(
    cx: &mut Importer<'_, '_>,
    c: &Call<'_>,
    (x, axis): (ValueId, usize),
    largest: bool,
    last: bool,
) -> ImportResult {
    let own = cx.dtype(x)?;
    let number = if own == DType::Bool { cx.cast(x, DType::I32)? } else { x };
    let kind = if largest { Reducer::Max } else { Reducer::Min };
    let value = along(cx, number, &[axis], kind)?;
    let value = cx.cast(value, own)?;
    let axis = axis as i64;
    let at = match largest {
        true => cx.one(ArgMax { axis, keepdims: true, select_last_index: last }, &[number])?,
        false => cx.one(ArgMin { axis, keepdims: true, select_last_index: last }, &[number])?,
    };
    let at = cx.cast(at, c.ty(1)?.dtype)?;
    Ok(vec![value, cx.reshape(at, &c.dims(1)?)?])
}
