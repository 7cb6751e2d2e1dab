//! Loops that count: `while i < n` with a body that adds a number to `i`.

use super::elementwise::direction_of;
use crate::import::{Call, Importer};
use crate::parse::ast::{Attr, Op, Region};

/// A loop that counts.
pub(super) struct Counted {
    /// Which value is the counter.
    pub counter: usize,
    /// Its value in the first iteration.
    pub first: i64,
    pub step: i64,
    /// Number of iterations.
    pub trips: i64,
}

/// What is known of a loop; `None` if it does not count.
pub(super) fn counted(
    cx: &Importer<'_, '_>,
    c: &Call<'_>,
    condition: &Region<'_>,
    body: &Region<'_>,
) -> Option<Counted> {
    let holds = made_by(condition, condition.ops.last()?.operands.first()?)?;
    let [a, b] = holds.operands[..] else { return None };
    if holds.name != "stablehlo.compare" {
        return None;
    }
    let direction = direction_of(holds)?;
    let counter = condition.args.iter().position(|arg| arg.name == a)?;
    let limit = number(cx, c, condition, b)?;
    let first = cx.fold_int(*c.operands.get(counter)?)?;
    // The next counter.
    let next = made_by(body, body.ops.last()?.operands.get(counter)?)?;
    let name = body.args.get(counter)?.name;
    let step = match (next.name.as_str(), next.operands.as_slice()) {
        ("stablehlo.add", [x, y]) if *x == name => number(cx, c, body, y)?,
        ("stablehlo.add", [x, y]) if *y == name => number(cx, c, body, x)?,
        ("stablehlo.subtract", [x, y]) if *x == name => number(cx, c, body, y)?.checked_neg()?,
        _ => return None,
    };
    let distance = match direction.as_str() {
        "LT" if step > 0 => limit.checked_sub(first)?,
        "LE" if step > 0 => limit.checked_sub(first)?.checked_add(1)?,
        "GT" if step < 0 => first.checked_sub(limit)?,
        "GE" if step < 0 => first.checked_sub(limit)?.checked_add(1)?,
        _ => return None,
    };
    let trips = if distance <= 0 { 0 } else { (distance - 1) / step.checked_abs()? + 1 };
    // The numbers of iterations times steps stay in the type, or the counter wraps.
    first.checked_add(trips.checked_mul(step)?).filter(|end| i32::try_from(*end).is_ok())?;
    Some(Counted { counter, first, step, trips })
}

fn made_by<'t, 'a>(region: &'t Region<'a>, name: &str) -> Option<&'t Op<'a>> {
    region.ops.iter().find(|op| op.results.iter().any(|r| r.0 == name))
}

/// A number that a region has as a constant, or that is passed to it and never changes.
fn number(cx: &Importer<'_, '_>, c: &Call<'_>, region: &Region<'_>, name: &str) -> Option<i64> {
    if let Some(op) = made_by(region, name) {
        return match op.attr("value") {
            Some(Attr::Dense(t)) if op.name == "stablehlo.constant" && t.len() == 1 => t.to_i64s()?.first().copied(),
            _ => None,
        };
    }
    match region.args.iter().position(|a| a.name == name) {
        Some(i) => {
            let body = c.op.regions.get(1)?;
            let stays = body.ops.last()?.operands.get(i) == Some(&body.args.get(i)?.name);
            if stays { cx.fold_int(*c.operands.get(i)?) } else { None }
        }
        None => cx.fold_int(cx.visible(name)?),
    }
}
