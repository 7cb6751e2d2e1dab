//! Calls, branches and loops.

use of_ir::{DType, RegionId, Type, ValueId};
use of_ops::OpSpec;
use of_ops::control::{If, Loop};
use of_ops::elementwise::{Add, Eq, Mul, Sub};
use of_ops::movement::{Reshape, ScatterNd};
use of_ops::structural::{NoneValue, OptimizationBarrier};

use super::counted::{Counted, counted};
use crate::import::build::Built;
use crate::import::{Call, ImportError, ImportResult, Importer};
use crate::parse::ast::{Attr, Region};

/// `func.call`: the body of the function.
pub(super) fn call(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    match c.attr(&["callee"]) {
        Some(Attr::Symbol(name)) => cx.inline(name, &c.operands),
        _ => Err(ImportError::invalid("it names no function")),
    }
}

/// `stablehlo.composite`: the body of its decomposition.
pub(super) fn composite(cx: &mut Importer<'_, '_>, c: &Call<'_>) -> ImportResult {
    match c.attr(&["decomposition"]) {
        Some(Attr::Symbol(name)) => cx.inline(name, &c.operands),
        _ => Err(ImportError::invalid("it names no decomposition")),
    }
}

/// `stablehlo.if`.
pub(super) fn if_<'a>(cx: &mut Importer<'a, '_>, c: &Call<'a>) -> ImportResult {
    let [then, other] = c.op.regions.as_slice() else {
        return Err(ImportError::invalid("it must have two regions"));
    };
    let condition = c.operand(0)?;
    match cx.decided(condition) {
        Some(holds) => cx.inline_region(if holds { then } else { other }, &[]),
        None => branch(cx, condition, |cx| cx.inline_region(then, &[]), |cx| cx.inline_region(other, &[])),
    }
}

fn branch<'a, 'g>(
    cx: &mut Importer<'a, 'g>,
    condition: ValueId,
    then: impl FnOnce(&mut Importer<'a, 'g>) -> ImportResult,
    other: impl FnOnce(&mut Importer<'a, 'g>) -> ImportResult,
) -> ImportResult {
    // Both are read before either fault counts, so that one report names everything.
    let then = cx.region(&[], |cx, _| then(cx));
    let other = cx.region(&[], |cx, _| other(cx));
    let op = cx.rw.create_with_regions(If {}, &[condition], &[then?, other?])?;
    Ok(cx.rw.graph().op(op).results.to_vec())
}

/// `stablehlo.case`: the branch of an index; the last one for an index that no branch has.
pub(super) fn case<'a>(cx: &mut Importer<'a, '_>, c: &Call<'a>) -> ImportResult {
    let index = c.operand(0)?;
    let regions = c.op.regions.as_slice();
    if regions.is_empty() {
        return Err(ImportError::invalid("it has no branch"));
    }
    if let Some(known) = cx.fold_int(index) {
        let last = regions.len() - 1;
        return cx.inline_region(&regions[usize::try_from(known).map_or(last, |i| i.min(last))], &[]);
    }
    cases(cx, index, 0, regions)
}

fn cases<'a>(cx: &mut Importer<'a, '_>, index: ValueId, first: usize, regions: &'a [Region<'a>]) -> ImportResult {
    let [region, rest @ ..] = regions else { return Err(ImportError::invalid("it has no branch")) };
    if rest.is_empty() {
        return cx.inline_region(region, &[]);
    }
    let number = cx.number(first as f64, cx.dtype(index)?)?;
    let is_this = cx.one(Eq {}, &[index, number])?;
    branch(cx, is_this, |cx| cx.inline_region(region, &[]), |cx| cases(cx, index, first + 1, rest))
}

/// `stablehlo.while`.
pub(super) fn while_<'a>(cx: &mut Importer<'a, '_>, c: &Call<'a>) -> ImportResult {
    let [condition, body] = c.op.regions.as_slice() else {
        return Err(ImportError::invalid("it must have two regions"));
    };
    if body.args.len() != c.operands.len() || body.ops.last().is_none_or(|end| end.operands.len() != body.args.len()) {
        return Err(ImportError::invalid(format!("its body does not give {} values", c.operands.len())));
    }
    match counted(cx, c, condition, body) {
        Some(known) => count(cx, c, body, &known),
        None => repeat(cx, c, condition, body),
    }
}

/// How the rows of a result that a loop stacks are written: by the iteration, or by the last one first.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Forward,
    Backward,
}

/// What becomes of the values that a loop carries.
struct Plan {
    /// Those that change from one iteration to the next.
    changing: Vec<usize>,
    /// Those of which an iteration does nothing but write a row; a value in the region that stands for each.
    stacked: Vec<(usize, ValueId)>,
}

/// A loop whose number of iterations is known.
fn count<'a>(cx: &mut Importer<'a, '_>, c: &Call<'a>, body: &'a Region<'a>, known: &Counted) -> ImportResult {
    if known.trips <= 0 {
        return Ok(c.operands.clone());
    }
    let end = &body.ops[body.ops.len() - 1];
    let mut plan = Plan { changing: Vec::new(), stacked: Vec::new() };
    for (i, arg) in body.args.iter().enumerate() {
        if i == known.counter || end.operands[i] == arg.name {
            continue;
        }
        let dims = cx.dims(c.operands[i])?;
        // It may be a result that is stacked: the body will show it.
        if (known.first, known.step) == (0, 1) && dims.first() == Some(&known.trips) {
            // Nothing looks through a barrier, so that each read of the value is seen.
            plan.stacked.push((i, cx.one(OptimizationBarrier {}, &[c.operands[i]])?));
        } else {
            plan.changing.push(i);
        }
    }
    loop {
        let mut orders = Vec::new();
        let region = counted_region(cx, c, body, known, &plan, &mut orders)?;
        // Each that is read, or written elsewhere, is carried, and the body is imported again.
        let failed: Vec<usize> =
            plan.stacked.iter().zip(&orders).filter(|(_, o)| o.is_none()).map(|(s, _)| s.0).collect();
        if failed.is_empty() {
            return looped(cx, c, known, &plan, region, &orders.into_iter().flatten().collect::<Vec<_>>());
        }
        cx.discard(region);
        plan.stacked.retain(|s| !failed.contains(&s.0));
        plan.changing.extend(failed);
        plan.changing.sort_unstable();
    }
}

/// The region of a loop that counts. `orders` says of each stacked value how it is written; `None` if it is not.
fn counted_region<'a>(
    cx: &mut Importer<'a, '_>,
    c: &Call<'a>,
    body: &'a Region<'a>,
    known: &Counted,
    plan: &Plan,
    orders: &mut Vec<Option<Order>>,
) -> Result<RegionId, ImportError> {
    let mut types = vec![Type::fixed(DType::I64, &[]), Type::fixed(DType::Bool, &[])];
    types.extend(plan.changing.iter().map(|i| cx.rw.graph().ty(c.operands[*i]).clone()));
    cx.region(&types, |cx, args| {
        let (number, always) = (args[0], args[1]);
        let mut values = c.operands.clone();
        values[known.counter] = counter(cx, number, known, c.operands[known.counter])?;
        plan.changing.iter().zip(&args[2..]).for_each(|(i, v)| values[*i] = *v);
        plan.stacked.iter().for_each(|(i, v)| values[*i] = *v);
        let next = cx.inline_region(body, &values)?;
        let mut yields = vec![always];
        yields.extend(plan.changing.iter().map(|i| next[*i]));
        for (i, stands_for) in &plan.stacked {
            let row = row(cx, next[*i], *stands_for, number, known.trips);
            orders.push(row.map(|r| r.1));
            yields.push(match row {
                Some((update, _)) => {
                    let dims = cx.dims(update)?;
                    cx.reshape(update, &dims[1..])?
                }
                None => next[*i],
            });
        }
        Ok(yields)
    })
}

/// The counter as the number of the iteration, so that analyses see what it is.
fn counter(cx: &mut Importer<'_, '_>, number: ValueId, known: &Counted, like: ValueId) -> Built {
    cx.ranges.insert(number, (0, known.trips - 1));
    let mut wide = number;
    if known.step != 1 {
        let step = cx.number(known.step as f64, DType::I64)?;
        wide = cx.one(Mul {}, &[wide, step])?;
    }
    if known.first != 0 {
        let first = cx.number(known.first as f64, DType::I64)?;
        wide = cx.one(Add {}, &[wide, first])?;
    }
    let counter = cx.cast(wide, cx.dtype(like)?)?;
    let last = known.first + (known.trips - 1) * known.step;
    for v in [wide, counter] {
        cx.ranges.insert(v, (known.first.min(last), known.first.max(last)));
        cx.wide.insert(v, wide);
    }
    Ok(counter)
}

/// The row that an iteration writes, of a value that it does not read.
fn row(
    cx: &Importer<'_, '_>,
    next: ValueId,
    stands_for: ValueId,
    number: ValueId,
    trips: i64,
) -> Option<(ValueId, Order)> {
    let g = cx.rw.graph();
    let write = g.op(g.def_op(next)?);
    let [x, indices, update] = write.operands[..] else { return None };
    let alone = g.uses(stands_for).len() == 1;
    if write.name() != ScatterNd::NAME || x != stands_for || !alone || cx.dims(indices).ok()? != [1, 1] {
        return None;
    }
    let mut index = indices;
    while let Some(op) = g.def_op(index).map(|op| g.op(op)).filter(|op| op.name() == Reshape::NAME) {
        index = op.operands[0];
    }
    if index == number {
        return Some((update, Order::Forward));
    }
    let op = g.op(g.def_op(index)?);
    let from_the_end =
        op.name() == Sub::NAME && op.operands[1] == number && cx.fold_int(op.operands[0]) == Some(trips - 1);
    from_the_end.then_some((update, Order::Backward))
}

/// The loop of a region, and the values that it gives.
fn looped(
    cx: &mut Importer<'_, '_>,
    c: &Call<'_>,
    known: &Counted,
    plan: &Plan,
    region: RegionId,
    orders: &[Order],
) -> ImportResult {
    let trips = cx.number(known.trips as f64, DType::I64)?;
    let mut operands = vec![trips, cx.number(1.0, DType::Bool)?];
    operands.extend(plan.changing.iter().map(|i| c.operands[*i]));
    let op = cx.rw.create_with_regions(Loop {}, &operands, &[region])?;
    let results = cx.rw.graph().op(op).results.clone();
    let mut results = results.into_iter();
    let mut out = c.operands.clone();
    for i in &plan.changing {
        out[*i] = results.next().ok_or_else(|| ImportError::invalid("the loop gives too few values"))?;
    }
    for ((i, _), order) in plan.stacked.iter().zip(orders) {
        let stack = results.next().ok_or_else(|| ImportError::invalid("the loop gives too few values"))?;
        out[*i] = if *order == Order::Forward { stack } else { cx.reverse(stack, &[0])? };
    }
    let end = known.first + known.trips * known.step;
    out[known.counter] = cx.number(end as f64, cx.dtype(c.operands[known.counter])?)?;
    Ok(out)
}

/// A loop that its condition ends: the condition is computed before it, and at the end of each iteration.
fn repeat<'a>(
    cx: &mut Importer<'a, '_>,
    c: &Call<'a>,
    condition: &'a Region<'a>,
    body: &'a Region<'a>,
) -> ImportResult {
    let end = &body.ops[body.ops.len() - 1];
    // What the body passes on unchanged is read from outside.
    let changing: Vec<usize> = (0..body.args.len()).filter(|i| end.operands[*i] != body.args[*i].name).collect();
    let one = |v: Vec<ValueId>| match v[..] {
        [one] => Ok(one),
        _ => Err(ImportError::invalid("the condition must be one value")),
    };
    let first = one(cx.inline_region(condition, &c.operands)?)?;
    let mut types = vec![Type::fixed(DType::I64, &[]), Type::fixed(DType::Bool, &[])];
    types.extend(changing.iter().map(|i| cx.rw.graph().ty(c.operands[*i]).clone()));
    let region = cx.region(&types, |cx, args| {
        let mut values = c.operands.clone();
        changing.iter().zip(&args[2..]).for_each(|(i, v)| values[*i] = *v);
        let next = cx.inline_region(body, &values)?;
        let holds = one(cx.inline_region(condition, &next)?)?;
        Ok(std::iter::once(holds).chain(changing.iter().map(|i| next[*i])).collect())
    })?;
    let nothing = cx.one(NoneValue {}, &[])?;
    let mut operands = vec![nothing, first];
    operands.extend(changing.iter().map(|i| c.operands[*i]));
    let op = cx.rw.create_with_regions(Loop {}, &operands, &[region])?;
    let results = cx.rw.graph().op(op).results.to_vec();
    let mut out = c.operands.clone();
    changing.iter().zip(results).for_each(|(i, v)| out[*i] = v);
    Ok(out)
}
