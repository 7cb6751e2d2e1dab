//! Operators in the forms of operator sets 1 to 6.

use std::sync::Arc;

use of_ir::{Attr, DType, Elements, ValueId};

use super::{elementwise, resize, tensors};
use crate::import::{Fault, Importer, Node, Values};
use crate::proto::tensor_proto::DataType;

/// Operators whose only difference is `consumed_inputs`, a permission to overwrite operands that binds nobody.
pub(super) fn in_place(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    drop_consumed_inputs(&mut node);
    cx.emit(node)
}

/// Removes the attribute that operator sets before 6 had.
pub(super) fn drop_consumed_inputs(node: &mut Node<'_>) {
    if node.version < 6 {
        node.attrs.drop("consumed_inputs");
    }
}

/// Binary operators whose second operand broadcasts by the attributes `broadcast` and `axis`.
pub(super) fn broadcast(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    align(cx, &mut node)?;
    cx.emit(node)
}

/// `Pow` that broadcasts by attributes.
pub(super) fn pow_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    align(cx, &mut node)?;
    elementwise::pow(cx, node)
}

/// Gives operand 1 axes of length 1 behind its own, so that they line up with those of operand 0 from `axis` on.
fn align(cx: &mut Importer<'_, '_>, node: &mut Node<'_>) -> Result<(), Fault> {
    drop_consumed_inputs(node);
    let broadcasts = node.attrs.take_flag("broadcast")?.unwrap_or(false);
    let axis: Option<i64> = node.attrs.take("axis")?;
    let (a, b) = (node.input(0)?, node.input(1)?);
    if !broadcasts {
        // Without the attribute the shapes are equal; what would broadcast now was a mistake then.
        let dims = |v| Ok::<_, Fault>(cx.tensor_ty(v)?.fixed_dims());
        return match (dims(a)?, dims(b)?) {
            (Some(a), Some(b)) if a != b => Err(Fault::invalid(format!(
                "operands of shapes {a:?} and {b:?} need attribute 'broadcast' in opset {}",
                node.version
            ))),
            _ => Ok(()),
        };
    }
    // Without an axis the last axes line up, as they do now; -1 said the same. A single number fits anywhere.
    let single = cx.tensor_ty(b)?.fixed_dims().is_some_and(|dims| dims.iter().all(|d| *d == 1));
    let Some(axis) = axis.filter(|axis| *axis != -1 && !single) else { return Ok(()) };
    let (wide, narrow) = (cx.rank(a)? as i64, cx.rank(b)? as i64);
    let first = if axis < 0 { axis.saturating_add(wide) } else { axis };
    let behind = wide.saturating_sub(first).saturating_sub(narrow);
    if first < 0 || behind < 0 {
        return Err(Fault::invalid(format!("an operand of rank {narrow} does not fit at axis {axis} of rank {wide}")));
    }
    if behind > 0 {
        let b = append_axes(cx, b, narrow, behind)?;
        node.set_input(1, Some(b));
    }
    Ok(())
}

/// `count` axes of length 1 behind the `rank` axes of a value.
fn append_axes(cx: &mut Importer<'_, '_>, value: ValueId, rank: i64, count: i64) -> Result<ValueId, Fault> {
    let axes: Vec<i64> = (rank..rank + count).collect();
    let axes = cx.ints(&axes)?;
    cx.emit_one("Unsqueeze", &[Some(value), Some(axes)], [])
}

/// `PRelu`, whose slope is one a channel.
pub(super) fn prelu_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    drop_consumed_inputs(&mut node);
    let (x, slope) = (node.input(0)?, node.input(1)?);
    if cx.tensor_ty(slope)?.rank() == Some(1) {
        let behind = cx.rank(x)? as i64 - 2;
        if behind > 0 {
            let slope = append_axes(cx, slope, 1, behind)?;
            node.set_input(1, Some(slope));
        }
    }
    cx.emit(node)
}

/// `Gemm`, which said whether its bias broadcasts.
pub(super) fn gemm_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    node.attrs.take_flag("broadcast")?;
    cx.emit(node)
}

/// `Selu`, with constants of fewer digits.
pub(super) fn selu_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    drop_consumed_inputs(&mut node);
    for (name, usual) in [("alpha", 1.6732_f32), ("gamma", 1.0507)] {
        let value = node.attrs.take::<f64>(name)?.unwrap_or(usual.into());
        node.attrs.set(name, Attr::Float(value));
    }
    cx.emit(node)
}

/// `Reshape` with its shape as an attribute.
pub(super) fn reshape_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    drop_consumed_inputs(&mut node);
    let shape: Vec<i64> = node.attrs.take("shape")?.ok_or_else(|| Fault::invalid("attribute 'shape' is missing"))?;
    let shape = cx.ints(&shape)?;
    node.set_input(1, Some(shape));
    cx.emit(node)
}

/// `Cast`, which named the element type in words.
pub(super) fn cast_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    if let Some(to) = node.attrs.take_any("to")? {
        let to = match &to {
            Attr::Str(name) => match DataType::from_str_name(&name.to_ascii_uppercase()) {
                Some(dtype) => Attr::Int((dtype as i32).into()),
                None => return Err(Fault::invalid(format!("there is no element type '{name}'"))),
            },
            _ => to,
        };
        node.attrs.set("to", to);
    }
    cx.emit(node)
}

/// `Concat`, along axis 1 where nothing is said.
pub(super) fn concat_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let axis: i64 = node.attrs.take("axis")?.unwrap_or(1);
    node.attrs.set("axis", Attr::Int(axis));
    cx.emit(node)
}

/// `Tile` along one axis.
pub(super) fn tile_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let (x, tiles, axis) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let rank = cx.rank(x)?;
    let axis = match integers(cx, axis).as_deref() {
        Some([axis]) => of_ops::shape::axis(*axis, rank)?,
        Some(_) => return Err(Fault::invalid("the axis must be one number")),
        None => return Err(Fault::unsupported("the axis of its repetition must be known")),
    };
    let repeats = match integers(cx, tiles).as_deref() {
        Some([n]) => {
            let mut repeats = vec![1; rank];
            repeats[axis] = *n;
            cx.ints(&repeats)?
        }
        Some(_) => return Err(Fault::invalid("the number of repetitions must be one number")),
        None => {
            let one = cx.ints(&[1])?;
            let n = lengths(cx, tiles)?;
            let n = cx.emit_one("Reshape", &[Some(n), Some(one)], [])?;
            let mut parts = vec![Some(one); rank];
            parts[axis] = Some(n);
            cx.emit_one("Concat", &parts, [("axis", Attr::Int(0))])?
        }
    };
    node.inputs = vec![Some(x), Some(repeats)];
    cx.emit(node)
}

/// The integers of a constant, which may be stored as numbers of another type.
fn integers(cx: &Importer<'_, '_>, value: ValueId) -> Option<Vec<i64>> {
    match cx.known(value)?.elements() {
        Elements::Float(list) if list.iter().all(|x| x.fract() == 0.0) => {
            Some(list.iter().map(|x| *x as i64).collect())
        }
        Elements::Float(_) => None,
        _ => cx.known(value)?.to_i64s(),
    }
}

/// Lengths that had the element type of the data, as integers.
fn lengths(cx: &mut Importer<'_, '_>, value: ValueId) -> Result<ValueId, Fault> {
    if cx.tensor_ty(value)?.dtype == DType::I64 {
        return Ok(value);
    }
    cx.emit_one("Cast", &[Some(value)], [("to", Attr::DType(DType::I64))])
}

/// `Split`, whose lengths are an attribute or an operand.
pub(super) fn split_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    if let Some(sizes) = node.opt_input(1) {
        let sizes = match integers(cx, sizes) {
            Some(list) => cx.ints(&list)?,
            None => lengths(cx, sizes)?,
        };
        node.set_input(1, Some(sizes));
    }
    tensors::split_2(cx, node)
}

/// `Pad`, whose pads had another name.
pub(super) fn pad_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    match node.attrs.take_any("paddings")? {
        Some(pads) => node.attrs.set("pads", pads),
        None => return Err(Fault::invalid("attribute 'paddings' is missing")),
    }
    tensors::pad_2(cx, node)
}

/// `Upsample` of images by two factors.
pub(super) fn upsample_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let mut scales = vec![1.0, 1.0];
    for name in ["height_scale", "width_scale"] {
        let scale: Option<f64> = node.attrs.take(name)?;
        scales.push(scale.ok_or_else(|| Fault::invalid(format!("attribute '{name}' is missing")))?);
    }
    node.attrs.set("scales", Attr::Floats(scales));
    resize::upsample_7(cx, node)
}

/// `LpPool` and `GlobalLpPool`, whose norm was a real number.
pub(super) fn lp_pool_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    if let Some(p) = node.attrs.take_any("p")? {
        let p = match p {
            Attr::Float(p) if p.fract() == 0.0 && p.abs() < 1e9 => Attr::Int(p as i64),
            Attr::Float(p) => return Err(Fault::unsupported(format!("the norm {p} is not an integer"))),
            p => p,
        };
        node.attrs.set("p", p);
    }
    cx.emit(node)
}

/// `RNN`, `GRU` and `LSTM`, which have an attribute that says whether the sequence is an output.
pub(super) fn recurrent_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    node.attrs.take_flag("output_sequence")?;
    // The default of GRU 1 was misspelt, and so it was written by some.
    if let Some(direction) = node.attrs.take::<Arc<str>>("direction")? {
        let direction = if &*direction == "foward" { "forward".into() } else { direction };
        node.attrs.set("direction", Attr::Str(direction));
    }
    cx.emit(node)
}
