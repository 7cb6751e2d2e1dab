//! Elementwise operators.

use of_ir::{Attr, Attrs, Tensor, ValueId};
use of_ops::elementwise::{Cast, Pow};

use super::{legacy, schema};
use crate::import::{ImportError, ImportResult, Importer, Node};

/// `Clip` before 11: the bounds are attributes.
pub(super) fn clip_6(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
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
pub(super) fn cast_like(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let like = cx.tensor_ty(node.input(1)?)?.clone();
    node.attrs.set("to", crate::import::dtype_attr(&like));
    node.inputs.truncate(1);
    cx.emit(Node { op: "Cast", ..node })
}

/// Operators that are several ops, by the value of an attribute.
pub(super) fn variant(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let mut rows = schema::variants(node.op).peekable();
    let Some(first) = rows.peek() else { return Err(ImportError::unsupported("the operator has no counterpart")) };
    let name = first.attr;
    let default = (!schema::is_required(node.op, name)).then(|| first.value());
    let Some(given) = node.attrs.take_any(name)?.or(default) else {
        return Err(ImportError::invalid(format!("attribute '{name}' is missing")));
    };
    // Any number but 0 is a truth.
    let given = if let Attr::Int(i) = given { Attr::Int(i64::from(i != 0)) } else { given };
    let mut rows = rows.filter(|row| row.value() == given);
    let Some((row, decl)) = rows.next().and_then(|row| Some((row, of_ops::list::decl(row.op)?))) else {
        return Err(ImportError::invalid(format!("attribute '{name}' cannot be {}", text(&given))));
    };
    if let Some(other) = node.attrs.names().next() {
        return Err(ImportError::unsupported(format!("attribute '{other}' is not supported")));
    }
    let mut attrs = Attrs::new();
    if let Some((flag, is)) = row.with {
        attrs.set(flag, Attr::Bool(is));
    }
    let operands: Vec<ValueId> = (0..node.inputs.len()).map(|i| node.input(i)).collect::<Result<_, _>>()?;
    Ok(vec![cx.rw.create_one((decl.as_def(), attrs), &operands)?])
}

fn text(attr: &Attr) -> String {
    match attr {
        Attr::Str(s) => format!("'{s}'"),
        Attr::Int(i) => i.to_string(),
        other => format!("of kind {}", other.kind()),
    }
}

/// `Pow`, whose exponent may be of another type; the result has that of the base.
pub(super) fn pow(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
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
