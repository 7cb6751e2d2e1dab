//! Sorting and the largest elements.

use of_ir::ValueId;
use of_ops::movement::GatherElements;
use of_ops::reduction::TopK;

use super::axes;
use super::elementwise::direction_of;
use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::{Attr, Op, Region};

/// The largest elements of the last axis, and where they are.
pub(super) fn top_k(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let x = c.operand(0)?;
    let k = match c.attr(&["mhlo.attributes"]).and_then(|a| a.get("k")).and_then(Attr::int) {
        Some(k) => k,
        None => c.int(&["k"])?,
    };
    let largest = c.attr(&["mhlo.attributes"]).and_then(|a| a.get("largest")) != Some(&Attr::Bool(false));
    let axis = cx.dims(x)?.len() as i64 - 1;
    let [values, places] = ordered(cx, x, axis, k, largest)?;
    Ok(vec![values, cx.cast(places, c.ty(1)?.dtype)?])
}

/// `k` elements in order, and where they are.
fn ordered(
    cx: &mut Importer<'_, '_>,
    x: ValueId,
    axis: i64,
    k: i64,
    largest: bool,
) -> Result<[ValueId; 2], ImportError> {
    let own = cx.dtype(x)?;
    let x = if own == of_ir::DType::Bool { cx.cast(x, of_ir::DType::U8)? } else { x };
    let k = cx.ints(&[k])?;
    let op = cx.rw.create(TopK { axis, largest, sorted: true }, &[x, k])?;
    let results = cx.rw.graph().op(op).results.clone();
    let [values, places] = results[..] else { return Err(ImportError::invalid("it gives two results")) };
    Ok([cx.cast(values, own)?, places])
}

/// `stablehlo.sort`: all operands in the order of the keys.
pub(super) fn sort(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    let first = c.operand(0)?;
    let dims = cx.dims(first)?;
    let axis = axes(&[c.int(&["dimension"])?], dims.len())?[0];
    let region = c.op.regions.first().ok_or_else(|| ImportError::invalid("it has no comparator"))?;
    let keys = comparator(region).ok_or_else(|| {
        ImportError::unsupported("its comparator is not a comparison of one or several operands by GT or LT")
    })?;
    let mut values = c.operands.clone();
    // Each sort keeps the order of equal elements, so the last key is the first one to sort by.
    for (key, largest) in keys.iter().rev() {
        let x = *values.get(*key).ok_or_else(|| ImportError::invalid("its comparator has too many arguments"))?;
        let [sorted, places] = ordered(cx, x, axis as i64, dims[axis], *largest)?;
        for (i, v) in values.iter_mut().enumerate() {
            *v = if i == *key { sorted } else { cx.one(GatherElements { axis: axis as i64 }, &[*v, places])? };
        }
    }
    Ok(values)
}

/// The operands that a comparator compares, the first one first, each with whether larger elements come first.
fn comparator(region: &Region<'_>) -> Option<Vec<(usize, bool)>> {
    let end = region.ops.last()?;
    let mut keys = Vec::new();
    collect(region, end.operands.first()?, &mut keys, 0)?;
    Some(keys)
}

fn made_by<'t, 'a>(region: &'t Region<'a>, name: &str) -> Option<&'t Op<'a>> {
    region.ops.iter().find(|op| op.results.first().is_some_and(|r| r.0 == name))
}

/// A comparison of one key, or `a < b or (a = b and …)` as JAX prints it: `select(a = b, …, a < b)`.
fn collect(region: &Region<'_>, value: &str, keys: &mut Vec<(usize, bool)>, depth: usize) -> Option<()> {
    if depth > 16 {
        return None;
    }
    let op = made_by(region, value)?;
    match (op.name.as_str(), op.operands.as_slice()) {
        ("stablehlo.compare", [a, b]) => {
            let (i, j) = (argument(region, a, 0)?, argument(region, b, 0)?);
            let larger = match direction_of(op)?.as_str() {
                "GT" => true,
                "LT" => false,
                _ => return None,
            };
            // The arguments of an operand are next to each other.
            match (i % 2, i + 1 == j, j + 1 == i) {
                (0, true, _) => keys.push((i / 2, larger)),
                (1, _, true) => keys.push((j / 2, !larger)),
                _ => return None,
            }
            Some(())
        }
        ("stablehlo.select", [equal, next, less]) => {
            is_equality(region, equal)?;
            collect(region, less, keys, depth + 1)?;
            collect(region, next, keys, depth + 1)
        }
        ("stablehlo.or", [less, both]) => {
            let both = made_by(region, both)?;
            let [equal, next] = both.operands[..] else { return None };
            if both.name != "stablehlo.and" {
                return None;
            }
            is_equality(region, equal)?;
            collect(region, less, keys, depth + 1)?;
            collect(region, next, keys, depth + 1)
        }
        _ => None,
    }
}

fn is_equality(region: &Region<'_>, value: &str) -> Option<()> {
    let op = made_by(region, value)?;
    (op.name == "stablehlo.compare" && direction_of(op)? == "EQ").then_some(())
}

/// The argument that a value is, but for zeros that lose their sign and NaN that become one.
fn argument(region: &Region<'_>, value: &str, depth: usize) -> Option<usize> {
    if let Some(i) = region.args.iter().position(|a| a.name == value) {
        return Some(i);
    }
    let op = made_by(region, value)?;
    match (op.name.as_str(), op.operands.as_slice()) {
        ("stablehlo.select", [_, constant, x]) if depth < 4 => {
            (made_by(region, constant)?.name == "stablehlo.constant").then(|| argument(region, x, depth + 1)).flatten()
        }
        _ => None,
    }
}
