//! What each op is to the CPU code generator: fused, a kernel of its own, or left to the reference backend and why.

use of_ir::{DType, Graph, OpId, Type, ValueId};
use of_ops::OpSpec;
use of_ops::contraction::MatMul;
use of_ops::list::as_op;
use of_ops::movement::{Concat, Expand, Gather, Pad, Reshape, Slice, Transpose};
use of_ops::nn::{AvgPool, Conv, MaxPool};
use of_ops::reduction::{ReduceMax, ReduceMin, ReduceProd, ReduceSum};
use of_ops::structural::{Constant, NoneValue, Return, Yield};

use crate::fuse::Role;

/// The role of `op`.
pub fn role(g: &Graph, op: OpId) -> Role {
    let data = g.op(op);
    match data.name() {
        Constant::NAME | NoneValue::NAME | Return::NAME | Yield::NAME => return Role::Nothing,
        _ => {}
    }
    match native(g, op) {
        Ok(role) => role,
        Err(why) => Role::Reference(why),
    }
}

fn native(g: &Graph, op: OpId) -> Result<Role, String> {
    let data = g.op(op);
    if !data.regions.is_empty() {
        return Err("control flow runs in the interpreter".into());
    }
    for v in data.operands.iter().chain(&data.results) {
        printable(g, *v)?;
    }
    if let Some(scalar) = of_ops::get(g, op).and_then(|o| o.scalar()) {
        return Ok(Role::Map(scalar));
    }
    let f32s = |v: ValueId| g.ty(v).as_tensor().is_some_and(|t| t.dtype == DType::F32);
    match data.name() {
        Reshape::NAME => Ok(Role::Alias),
        Transpose::NAME | Expand::NAME | Concat::NAME => Ok(Role::Single),
        Slice::NAME => known(g, op, 1..data.operands.len()).map(|()| Role::Single),
        Pad::NAME => {
            known(g, op, 1..data.operands.len())?;
            match as_op::<Pad>(g, op) {
                Some(p) if &*p.mode == "constant" => Ok(Role::Single),
                _ => Err("only constant padding has native code".into()),
            }
        }
        Gather::NAME => Ok(Role::Single),
        ReduceSum::NAME | ReduceMax::NAME | ReduceMin::NAME | ReduceProd::NAME => reduction(g, op),
        MatMul::NAME if data.operands.iter().all(|v| f32s(*v)) => Ok(Role::Anchor),
        MatMul::NAME => Err("only f32 products have native code".into()),
        Conv::NAME => convolution(g, op),
        MaxPool::NAME | AvgPool::NAME => pool(g, op),
        name => Err(format!("'{name}' has no native code")),
    }
}

/// Whether a value has fixed dimensions and an element type that kernels can hold.
fn printable(g: &Graph, v: ValueId) -> Result<(), String> {
    match g.ty(v) {
        Type::None => Ok(()),
        Type::Tensor(t) => {
            let Some(dims) = t.fixed_dims() else { return Err("a shape is not known before the run".into()) };
            if dims.contains(&0) {
                return Err("a tensor is empty".into());
            }
            match t.dtype.bits() {
                Some(..8) | None => Err(format!("kernels cannot hold {}", t.dtype)),
                Some(8) if t.dtype.is_float() => Err(format!("kernels cannot hold {}", t.dtype)),
                _ => Ok(()),
            }
        }
        other => Err(format!("kernels cannot hold {other}")),
    }
}

/// Whether the given operands are constants.
fn known(g: &Graph, op: OpId, operands: std::ops::Range<usize>) -> Result<(), String> {
    let data = g.op(op);
    for i in operands {
        let v = data.operands[i];
        if *g.ty(v) != Type::None && g.constant(v).is_none() {
            return Err(format!("operand {i} is not known before the run"));
        }
    }
    Ok(())
}

/// Reductions over the last axes join rows; others are kernels of their own.
fn reduction(g: &Graph, op: OpId) -> Result<Role, String> {
    let data = g.op(op);
    let keeps = data.attrs.typed::<bool>("keepdims").unwrap_or(false);
    let dims = |v| g.ty(v).as_tensor().and_then(|t| t.fixed_dims()).unwrap_or_default();
    let (from, to) = (dims(data.operands[0]), dims(data.results[0]));
    if !keeps || from.len() != to.len() {
        return Err("a reduction whose axes are not kept".into());
    }
    known(g, op, 1..data.operands.len())?;
    let axes = reduced_axes(g, op, from.len());
    let inner = axes.len();
    let trailing = axes.iter().enumerate().all(|(i, a)| *a == from.len() - inner + i);
    if axes.is_empty() {
        return Err("a reduction over no axis".into());
    }
    Ok(if trailing { Role::RowReduce(inner) } else { Role::Single })
}

/// The axes that a reduction with constant axes removes, sorted.
pub fn reduced_axes(g: &Graph, op: OpId, rank: usize) -> Vec<usize> {
    let data = g.op(op);
    let noop = data.attrs.typed::<bool>("noop_with_empty_axes").unwrap_or(false);
    let given = data.operands.get(1).and_then(|v| g.constant(*v)).and_then(|t| t.to_i64s()).unwrap_or_default();
    if given.is_empty() {
        return if noop { Vec::new() } else { (0..rank).collect() };
    }
    of_ops::shape::axes(&given, rank).unwrap_or_default()
}

fn convolution(g: &Graph, op: OpId) -> Result<Role, String> {
    let data = g.op(op);
    let Some(conv) = as_op::<Conv>(g, op) else { return Err("its attributes do not decode".into()) };
    let x = g.ty(data.operands[0]).as_tensor().ok_or("no tensor")?;
    if x.dtype != DType::F32 {
        return Err("only f32 convolutions have native code".into());
    }
    if !conv.channels_last {
        return Err("only channels-last convolutions have native code".into());
    }
    if !matches!(x.rank(), Some(3 | 4)) {
        return Err("only 1-D and 2-D convolutions have native code".into());
    }
    if g.constant(data.operands[1]).is_none() {
        return Err("its weights are not known before the run".into());
    }
    Ok(Role::Anchor)
}

fn pool(g: &Graph, op: OpId) -> Result<Role, String> {
    let data = g.op(op);
    let last =
        as_op::<MaxPool>(g, op).map(|p| p.channels_last).or_else(|| as_op::<AvgPool>(g, op).map(|p| p.channels_last));
    let x = g.ty(data.operands[0]).as_tensor().ok_or("no tensor")?;
    if last != Some(true) || data.results.len() != 1 {
        return Err("only channels-last pools without indices have native code".into());
    }
    if x.dtype != DType::F32 || !matches!(x.rank(), Some(3 | 4)) {
        return Err("only 1-D and 2-D pools of f32 have native code".into());
    }
    Ok(Role::Anchor)
}
