//! `bind-shape-symbols`: binds extents that are computed in memory to shape symbols before the op that needs them.
//!
//! A backend has no native code for a result whose extents are unknown until the op runs. Where an operand holds the
//! extents, this pass first makes an empty tensor of these extents. It takes no memory, and shape inference names its
//! extents. The op then reads the shape of that tensor.

use of_diag::{Diagnostic, Diagnostics};
use of_ir::{DType, Func, Graph, OpId, Rewriter, Tensor, ValueId};
use of_ops::OpSpec;
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand, MAX_AXES};
use of_ops::nn::Resize;
use of_ops::structural::{Constant, ShapeOf};

use crate::matchers::{def, dims};

/// Binds the extents of every expansion and resize that no shape gives.
///
/// expand(x, s) = expand(x, shape(empty tensor of shape s))
///
/// # Errors
/// When an op does not fit, a bug of the pass.
pub fn bind_shape_symbols(func: &mut Func) -> Result<(), Diagnostics> {
    let mut rw = Rewriter::new(&mut func.graph, "bind-shape-symbols");
    for op in rw.graph().walk() {
        let Some(operand) = sizes(rw.graph(), op) else { continue };
        let (data, given) = (rw.graph().op(op), rw.graph().op(op).operands[operand]);
        if rw.graph().dims_value(given).is_some() || empty(rw.graph(), data.operands[0]) {
            continue;
        }
        let (def, attrs, mut operands) = (data.def, data.attrs.clone(), data.operands.to_vec());
        rw.rewrite(op, &[]);
        let Some(known) = as_bound_extents(&mut rw, given)? else { continue };
        operands[operand] = known;
        let y = rw.create_one((def, attrs), &operands)?;
        rw.replace(op, &[y]);
    }
    if rw.changed() { crate::infer_shapes::infer_shapes(func) } else { Ok(()) }
}

/// The operand of an op that holds extents of its result, which the op checks not to be negative.
fn sizes(g: &Graph, op: OpId) -> Option<usize> {
    let data = g.op(op);
    match data.name() {
        // With an open extent in the operand, the given extent may be broadcast instead.
        Expand::NAME => dims(g, data.operands[0]).map(|_| 1),
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
