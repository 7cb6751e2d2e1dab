//! Operators whose axes were attributes before they became inputs.

use of_ir::Attr;

use crate::import::{Fault, Importer, Node, Values};

/// `Squeeze` and `Unsqueeze` before 13.
pub(super) fn squeeze_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    axes_to_operand(cx, &mut node)?;
    cx.emit(node)
}

/// Reductions whose axes are an attribute.
pub(super) fn reduce_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    if node.inputs.len() > 1 {
        return Err(Fault::invalid(format!("{} has no axes operand in opset {}", node.op, node.version)));
    }
    axes_to_operand(cx, &mut node)?;
    cx.emit(node)
}

/// Makes the attribute `axes` operand 1.
fn axes_to_operand(cx: &mut Importer<'_, '_>, node: &mut Node<'_>) -> Result<(), Fault> {
    if let Some(axes) = node.attrs.take::<Vec<i64>>("axes")?
        && !axes.is_empty()
    {
        let axes = cx.ints(&axes)?;
        node.set_input(1, Some(axes));
    }
    Ok(())
}

/// Reductions whose axes are an operand. No axes mean all of them, or none with `noop_with_empty_axes`.
pub(super) fn reduce(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let noop = node.attrs.take_flag("noop_with_empty_axes")?.unwrap_or(false);
    let known = node.opt_input(1).map(|axes| cx.known(axes));
    match known {
        // Nothing is reduced: what is left is the function around the sum.
        None if noop => unreduced(cx, &node),
        Some(Some(axes)) if noop && axes.is_empty() => unreduced(cx, &node),
        Some(None) if noop => {
            let axes = node.input(1)?;
            match cx.tensor_ty(axes)?.fixed_dims().as_deref() {
                Some([n]) if *n > 0 => cx.emit(node),
                Some([0]) => unreduced(cx, &node),
                _ => Err(Fault::unsupported("noop_with_empty_axes needs a known number of axes")),
            }
        }
        _ => cx.emit(node),
    }
}

fn unreduced(cx: &mut Importer<'_, '_>, node: &Node<'_>) -> Values {
    let x = node.input(0)?;
    let none = || std::iter::empty::<(&'static str, Attr)>();
    Ok(vec![match node.op {
        "ReduceL1" | "ReduceL2" => cx.emit_one("Abs", &[Some(x)], none())?,
        "ReduceLogSum" => cx.emit_one("Log", &[Some(x)], none())?,
        "ReduceSumSquare" => cx.emit_one("Mul", &[Some(x), Some(x)], none())?,
        _ => x,
    }])
}
