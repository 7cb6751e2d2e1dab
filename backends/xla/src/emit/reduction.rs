//! Reductions along axes, cumulative sums, arg-extrema.

use of_ir::{DType, OpId};
use of_ops::reduction::{ArgMax, ArgMin, CumProd, CumSum, Hardmax, TopK};
use of_ops::shape;

use super::build::Window;
use super::{Emitter, Table, Typed, Val};

/// Ops of this file.
pub const TABLE: Table = &[
    ("of.arg_max", arg_max),
    ("of.arg_min", arg_min),
    ("of.cum_prod", cum_prod),
    ("of.cum_sum", cum_sum),
    ("of.hardmax", hardmax),
    ("of.reduce_max", |e, op| reduce(e, op, "maximum")),
    ("of.reduce_min", |e, op| reduce(e, op, "minimum")),
    ("of.reduce_prod", |e, op| reduce(e, op, "multiply")),
    ("of.reduce_sum", |e, op| reduce(e, op, "add")),
    ("of.top_k", top_k),
];

/// The initial value of a reduction by `name`.
pub fn start(name: &str, dtype: DType) -> f64 {
    let range = dtype.int_range().map_or((0.0, 1.0), |(l, h)| (l as f64, h as f64));
    match name {
        "maximum" if dtype.is_float() => f64::NEG_INFINITY,
        "minimum" if dtype.is_float() => f64::INFINITY,
        "maximum" => range.0,
        "minimum" => range.1,
        "multiply" => 1.0,
        _ => 0.0,
    }
}

fn reduce(e: &mut Emitter<'_>, op: OpId, name: &str) -> Result<Vec<Val>, String> {
    let is_extremum = matches!(name, "maximum" | "minimum");
    let x = if is_extremum { e.computed_once(op, 0)? } else { e.operand(op, 0)? };
    let (dtype, dims) = e.result(op, 0)?;
    if dtype == DType::Bool && matches!(name, "add" | "multiply") {
        return Err("sums of bools are not supported".into());
    }
    let axes = of_ops::reduction::reduced_axes(e.ints(op, 1)?.as_deref(), x.rank()).map_err(|e| e.message)?;
    let wide = if matches!(name, "add" | "multiply") { e.widen(&x) } else { x };
    let y = e.reduce(name, &wide, &axes, start(name, wide.dtype));
    let y = e.convert(&y, dtype);
    Ok(vec![e.reshape(&y, &dims)])
}

fn arg_max(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let ArgMax { axis, select_last_index, .. } = e.attrs(op)?;
    arg_reduce(e, op, "maximum", axis, select_last_index)
}

fn arg_min(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let ArgMin { axis, select_last_index, .. } = e.attrs(op)?;
    arg_reduce(e, op, "minimum", axis, select_last_index)
}

fn arg_reduce(e: &mut Emitter<'_>, op: OpId, name: &str, axis: i64, last: bool) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let axis = shape::axis(axis, x.rank()).map_err(|e| e.message)?;
    let (_, dims) = e.result(op, 0)?;
    let best = arg_extremum(e, &x, name, axis, last);
    Ok(vec![e.reshape(&best, &dims)])
}

/// The index of the extremum along an axis, i64; NaN is the extremum if there is one.
pub fn arg_extremum(e: &mut Emitter<'_>, x: &Val, name: &str, axis: usize, last: bool) -> Val {
    let best = e.reduce(name, x, &[axis], start(name, x.dtype));
    let others: Vec<usize> = (0..x.rank()).filter(|a| *a != axis).collect();
    let best = e.broadcast_in_dim(&best, &x.dims, &others);
    let mut hit = e.compare("EQ", x, &best);
    if x.dtype.is_float() {
        let nan = e.compare("NE", x, x);
        hit = e.binary("or", &hit, &nan);
    }
    let at = e.iota(DType::I64, &x.dims, axis);
    let (fold, beyond) = if last { ("maximum", -1.0) } else { ("minimum", x.dims[axis] as f64) };
    let beyond_all = e.full_like(&at, beyond);
    let at = e.select(&hit, &at, &beyond_all);
    e.reduce(fold, &at, &[axis], beyond)
}

fn hardmax(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    if x.rank() == 0 {
        return Ok(vec![e.full_like(&x, 1.0)]);
    }
    let axis = shape::axis(e.attrs::<Hardmax>(op)?.axis, x.rank()).map_err(|e| e.message)?;
    let best = arg_extremum(e, &x, "maximum", axis, false);
    let others: Vec<usize> = (0..x.rank()).filter(|a| *a != axis).collect();
    let (best, at) = (e.broadcast_in_dim(&best, &x.dims, &others), e.iota(DType::I64, &x.dims, axis));
    let hit = e.compare("EQ", &best, &at);
    Ok(vec![e.convert(&hit, x.dtype)])
}

fn cum_sum(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let CumSum { exclusive, reverse } = e.attrs(op)?;
    cumulative(e, op, "add", exclusive, reverse)
}

fn cum_prod(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let CumProd { exclusive, reverse } = e.attrs(op)?;
    cumulative(e, op, "multiply", exclusive, reverse)
}

/// A cumulative sum or product: one window for each element, which ends at it, or before it if exclusive.
fn cumulative(e: &mut Emitter<'_>, op: OpId, name: &str, exclusive: bool, reverse: bool) -> Result<Vec<Val>, String> {
    let x = e.operand(op, 0)?;
    let axis = e.ints(op, 1)?.and_then(|a| a.first().copied()).ok_or("its axis is left out")?;
    let axis = shape::axis(axis, x.rank()).map_err(|e| e.message)?;
    let n = x.dims[axis];
    if n == 0 {
        return Ok(vec![x]);
    }
    let wide = e.widen(&x);
    let from = start(name, wide.dtype);
    let mut w = Window::unit(x.rank());
    w.size[axis] = n;
    w.pads[axis] = if reverse { (0, n as i64 - 1) } else { (n as i64 - 1, 0) };
    let mut y = e.reduce_window(name, &wide, from, &w);
    if exclusive {
        let mut pads = vec![(0, 0); x.rank()];
        pads[axis] = if reverse { (-1, 1) } else { (1, -1) };
        let value = e.splat(y.dtype, &[], from);
        y = e.pad(&y, &value, &pads);
    }
    Ok(vec![e.convert(&y, x.dtype)])
}

fn top_k(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let TopK { axis, largest, .. } = e.attrs(op)?;
    let x = e.operand(op, 0)?;
    let axis = shape::axis(axis, x.rank()).map_err(|e| e.message)?;
    let (_, dims) = e.result(op, 0)?;
    let at = e.iota(DType::I64, &x.dims, axis);
    let (values, places) = e.sort(&x, &at, axis, largest);
    Ok(vec![e.slice_in_dim(&values, axis, 0, dims[axis]), e.slice_in_dim(&places, axis, 0, dims[axis])])
}

impl Emitter<'_> {
    /// `x` and `with` sorted by `x` along an axis; the sort is stable.
    fn sort(&mut self, x: &Val, with: &Val, axis: usize, descending: bool) -> (Val, Val) {
        let name = self.fresh();
        let of = |i: usize, v: &Val| Val { name: format!("{name}#{i}"), ..v.clone() };
        let (t, u) = (super::type_text(x.dtype, &[]), super::type_text(with.dtype, &[]));
        let direction = if descending { "GT" } else { "LT" };
        // The order of floats is total, so that a sort with NaN is one.
        let kind = if x.dtype.is_float() { ", compare_type = #stablehlo<comparison_type TOTALORDER>" } else { "" };
        let text = format!(
            "{name}:2 = \"stablehlo.sort\"({}, {}) ({{\n    ^bb0(%a: {t}, %b: {t}, %c: {u}, %d: {u}):\n      \
             %res = \"stablehlo.compare\"(%a, %b) {{comparison_direction = #stablehlo<comparison_direction \
             {direction}>{kind}}} : ({t}, {t}) -> tensor<i1>\n      \"stablehlo.return\"(%res) : (tensor<i1>) -> ()\n    \
             }}) {{dimension = {axis} : i64, is_stable = true}} : ({}, {}) -> ({}, {})",
            x.name,
            with.name,
            x.ty(),
            with.ty(),
            x.ty(),
            with.ty()
        );
        self.line(&text);
        (of(0, x), of(1, with))
    }
}
