//! `bind-shape-symbols`: binds extents that are computed in memory to shape symbols before the op that needs them.
//!
//! A backend has no native code for a result whose extents are unknown until the op runs. Where an operand holds the
//! extents, this pass first makes an empty tensor of these extents. It takes no memory, and shape inference names its
//! extents. The op then reads the shape of that tensor.

use std::collections::HashSet;
use std::sync::Arc;

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{DType, Dim, Func, Graph, OpId, Rewriter, Tensor, ValueId};
use of_ops::elementwise::{Cast, Div, Eq, Max, Select};
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand, MAX_AXES, Reshape};
use of_ops::nn::Resize;
use of_ops::reduction::ReduceProd;
use of_ops::structural::{Constant, ShapeOf};
use of_ops::{Op, OpSpec};

use crate::matchers::{def, dims};

/// Binds the extents of every expansion, reshape and resize that no shape gives, and names extents of inputs from which their
/// symbols do not follow.
///
/// expand(x, s) = expand(x, shape(empty tensor of shape s))
///
/// # Errors
/// When an op does not fit, a bug of the pass.
pub fn bind_shape_symbols(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "bind-shape-symbols");
    name_input_extents(&mut rw);
    for op in rw.graph().walk() {
        let Some(operand) = sizes(rw.graph(), op) else { continue };
        let (data, given) = (rw.graph().op(op), rw.graph().op(op).operands[operand]);
        if rw.graph().dims_value(given).is_some() || empty(rw.graph(), data.operands[0]) {
            continue;
        }
        let (def, mut attrs, mut operands) = (data.def, data.attrs.clone(), data.operands.to_vec());
        rw.rewrite(op, &[]);
        let is_i64 = rw.graph().ty(given).as_tensor().is_some_and(|t| t.dtype == DType::I64);
        let given = if is_i64 { given } else { rw.create_one(Cast::to(DType::I64), &[given])? };
        let reshape = as_op::<Reshape>(rw.graph(), op);
        let resolved = match &reshape {
            // A 0 that is left is an extent of 0.
            Some(r) => {
                attrs = Reshape { allowzero: true }.attrs();
                resolve(&mut rw, r, operands[0], given)?
            }
            None => given,
        };
        let Some(known) = as_bound_extents(&mut rw, resolved)? else { continue };
        operands[operand] = known;
        let y = rw.create_one((def, attrs), &operands)?;
        rw.replace(op, &[y]);
    }
    if rw.changed() { crate::infer_shapes::infer_shapes(func) } else { Ok(()) }
}

/// Replaces the extents of inputs that do not tell the values of their symbols, such as `b*s`, by one symbol each.
fn name_input_extents(rw: &mut Rewriter<'_>) {
    let g = rw.graph();
    let inputs = g.args().to_vec();
    let shapes = inputs.iter().filter_map(|v| g.ty(*v).as_tensor()?.shape.clone());
    let extents: Vec<Dim> = shapes.flatten().collect();
    let mut bound: HashSet<Arc<str>> = HashSet::new();
    while let Some(s) = extents.iter().find_map(|d| d.determines(&|s| bound.contains(s))) {
        bound.insert(s);
    }
    let unbound = |d: &Dim| d.symbols().iter().any(|s| !bound.contains(s));
    if !extents.iter().any(unbound) {
        return;
    }
    for v in inputs {
        let ty = rw.graph().ty(v).map_dims(&mut |d| if unbound(d) { Dim::symbol(d.to_string()) } else { d.clone() });
        rw.set_type(v, ty);
    }
}

/// What stands for an extent that cannot be.
const NO_EXTENT: i64 = -2;

/// The extents of a reshape as numbers: 0 and -1 in its shape operand replaced by what they stand for.
fn resolve(rw: &mut Rewriter<'_>, op: &Reshape, x: ValueId, shape: ValueId) -> Result<ValueId, Diagnostic> {
    let number = |rw: &mut Rewriter<'_>, n: i64| rw.create_one(Constant { value: Tensor::from_i64s(&[n]) }, &[]);
    let rank = rw.graph().ty(x).as_tensor().and_then(|t| t.rank()).unwrap_or(0);
    let count = dims(rw.graph(), shape).and_then(|d| d.first().copied()).unwrap_or(0);
    let mut extents = shape;
    if !op.allowzero && rank > 0 && count > 0 {
        let kept = rank.min(count);
        let mut own = rw.create_one(ShapeOf { start: Some(0), end: Some(kept as i64) }, &[x])?;
        if kept < count {
            // The operand has no such axis, so a 0 there is an error, as a negative extent is.
            let rest = rw.create_one(Constant { value: Tensor::from_i64s(&vec![NO_EXTENT; count - kept]) }, &[])?;
            own = rw.create_one(Concat { axis: 0 }, &[own, rest])?;
        }
        let zero = number(rw, 0)?;
        let keeps = rw.create_one(Eq {}, &[shape, zero])?;
        extents = rw.create_one(Select {}, &[keeps, own, shape])?;
    }
    let (one, open) = (number(rw, 1)?, number(rw, -1)?);
    let inferred = rw.create_one(Eq {}, &[extents, open])?;
    let given = rw.create_one(Select {}, &[inferred, one, extents])?;
    let axes = number(rw, 0)?;
    let product = |rw: &mut Rewriter<'_>, v: ValueId| rw.create_one(ReduceProd { keepdims: true }, &[v, axes]);
    let shape_of_x = rw.create_one(ShapeOf { start: None, end: None }, &[x])?;
    let (all, rest) = (product(rw, shape_of_x)?, product(rw, given)?);
    // Where an extent is 0, there is no -1.
    let rest = rw.create_one(Max {}, &[rest, one])?;
    let left = rw.create_one(Div {}, &[all, rest])?;
    rw.create_one(Select {}, &[inferred, left, extents])
}

/// The operand of an op that holds extents of its result, which the op checks not to be negative.
fn sizes(g: &Graph, op: OpId) -> Option<usize> {
    let data = g.op(op);
    match data.name() {
        // With an open extent in the operand, the given extent may be broadcast instead.
        Expand::NAME => dims(g, data.operands[0]).map(|_| 1),
        Reshape::NAME => {
            let count = dims(g, data.operands[1]);
            let known = g.ty(data.operands[0]).as_tensor().is_some_and(|t| t.rank().is_some());
            (known && count.is_some_and(|c| c[0] > 0 && c[0] < MAX_AXES)).then_some(1)
        }
        Resize::NAME => {
            let plain = as_op::<Resize>(g, op).is_some_and(|r| &*r.keep_aspect_ratio_policy == "stretch");
            let given = data.operands.get(3).is_some_and(|v| g.ty(*v).as_tensor().is_some());
            (plain && given).then_some(3)
        }
        _ => None,
    }
}

/// Whether a tensor is known to have no elements.
fn empty(g: &Graph, v: ValueId) -> bool {
    let shape = g.ty(v).as_tensor().and_then(|t| t.shape.as_ref());
    shape.is_some_and(|s| s.iter().any(|d| d.as_const() == Some(0)))
}

/// The numbers of `v` as extents. Known parts stay; an empty tensor binds the others. `None` where their number is
/// unknown.
fn as_bound_extents(rw: &mut Rewriter<'_>, v: ValueId) -> Result<Option<ValueId>, Diagnostic> {
    let g = rw.graph();
    if g.dims_value(v).is_some() {
        return Ok(Some(v));
    }
    let Some(&[count]) = dims(g, v).as_deref() else { return Ok(None) };
    // The empty tensor has an axis more.
    if count == 0 || count >= MAX_AXES || g.ty(v).as_tensor().is_none_or(|t| t.dtype != DType::I64) {
        return Ok(None);
    }
    if let Some((concat, joined)) = def::<Concat>(g, v) {
        let parts = g.op(concat).operands.to_vec();
        let parts = parts.into_iter().map(|p| as_bound_extents(rw, p)).collect::<Result<Option<Vec<_>>, _>>()?;
        return parts.map(|parts| rw.create_one(joined, &parts)).transpose();
    }
    let zero = rw.create_one(Constant { value: Tensor::from_i64s(&[0]) }, &[])?;
    let shape = rw.create_one(Concat { axis: 0 }, &[v, zero])?;
    let nothing = rw.create_one(Constant { value: Tensor::from_i64s(&[]) }, &[])?;
    let tensor = rw.create_one(Expand {}, &[nothing, shape])?;
    Ok(Some(rw.create_one(ShapeOf { start: Some(0), end: Some(count as i64) }, &[tensor])?))
}
