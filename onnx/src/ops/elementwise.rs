//! Elementwise operators.

use std::sync::Arc;

use of_ir::{Tensor, ValueId};
use of_ops::elementwise::{Cast, Fmod, Gelu, Mod, Pow, Shl, Shr};

use super::legacy;
use crate::import::{Fault, Importer, Node, Values};

/// `Clip` before 11: the bounds are attributes.
pub(super) fn clip_6(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    legacy::drop_consumed_inputs(&mut node);
    let x = node.input(0)?;
    for (i, name) in ["min", "max"].into_iter().enumerate() {
        if let Some(bound) = node.attrs.take::<f64>(name)? {
            let bound = cx.number(bound, x)?;
            node.set_input(i + 1, Some(bound));
        }
    }
    cx.emit(node)
}

/// `CastLike`: the element type of an operand.
pub(super) fn cast_like(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let like = cx.tensor_ty(node.input(1)?)?.clone();
    node.attrs.set("to", crate::import::dtype_attr(&like));
    node.inputs.truncate(1);
    cx.emit(Node { op: "Cast", ..node })
}

/// `BitShift` in the direction of its attribute.
pub(super) fn bit_shift(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let operands = [node.input(0)?, node.input(1)?];
    let direction: Option<Arc<str>> = node.attrs.take("direction")?;
    Ok(vec![match direction.as_deref() {
        Some("LEFT") => cx.rw.create_one(Shl {}, &operands)?,
        Some("RIGHT") => cx.rw.create_one(Shr {}, &operands)?,
        _ => return Err(Fault::invalid("attribute 'direction' must be LEFT or RIGHT")),
    }])
}

/// `Mod`, whose remainder has the sign of the divisor, or of the dividend with `fmod`.
pub(super) fn modulo(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let operands = [node.input(0)?, node.input(1)?];
    Ok(vec![if node.attrs.take_flag("fmod")?.unwrap_or(false) {
        cx.rw.create_one(Fmod {}, &operands)?
    } else {
        cx.rw.create_one(Mod {}, &operands)?
    }])
}

/// `Pow`, whose exponent may be of another type; the result has that of the base.
pub(super) fn pow(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    let (x, y) = (node.input(0)?, node.input(1)?);
    let (base, exponent) = (cx.tensor_ty(x)?.dtype, cx.tensor_ty(y)?.dtype);
    if base == exponent {
        return Ok(vec![cx.rw.create_one(Pow {}, &[x, y])?]);
    }
    let cast = |cx: &mut Importer<'_, '_>, v: ValueId, to| cx.rw.create_one(Cast::to(to), &[v]);
    if exponent.is_float() && !base.is_float() {
        let wide = cast(cx, x, exponent)?;
        let z = cx.rw.create_one(Pow {}, &[wide, y])?;
        return Ok(vec![cast(cx, z, base)?]);
    }
    // A constant is converted now, so that passes see a number.
    let y = match cx.known(y).and_then(|t| Tensor::from_elements(base, t.dims().to_vec(), t.elements()).ok()) {
        Some(t) => cx.constant(t)?,
        None => cast(cx, y, base)?,
    };
    Ok(vec![cx.rw.create_one(Pow {}, &[x, y])?])
}

/// `Gelu`, exact or approximated by tanh.
pub(super) fn gelu(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let approximate: Option<Arc<str>> = node.attrs.take("approximate")?;
    let tanh = match approximate.as_deref() {
        None | Some("none") => false,
        Some("tanh") => true,
        Some(other) => return Err(Fault::invalid(format!("attribute 'approximate' is '{other}'"))),
    };
    Ok(vec![cx.rw.create_one(Gelu { tanh }, &[node.input(0)?])?])
}
