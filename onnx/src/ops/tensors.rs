//! Operators that slice, pad and gather, in the forms before their parameters became inputs.

use of_ir::{Attr, Tensor};

use crate::import::{Fault, Importer, Node, Values};

/// `Slice` before 10: bounds and axes are attributes.
pub(super) fn slice_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    for (i, name) in ["starts", "ends", "axes"].into_iter().enumerate() {
        match node.attrs.take::<Vec<i64>>(name)? {
            Some(list) => {
                let list = cx.ints(&list)?;
                node.set_input(i + 1, Some(list));
            }
            None if i < 2 => return Err(Fault::invalid(format!("attribute '{name}' is missing"))),
            None => {}
        }
    }
    cx.emit(node)
}

/// `Pad` before 11: pads and value are attributes.
pub(super) fn pad_2(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let pads: Vec<i64> = node.attrs.take("pads")?.ok_or_else(|| Fault::invalid("attribute 'pads' is missing"))?;
    let pads = cx.ints(&pads)?;
    let value = cx.number(node.attrs.take("value")?.unwrap_or(0.0), node.input(0)?)?;
    node.set_input(1, Some(pads));
    node.set_input(2, Some(value));
    cx.emit(node)
}

/// `Split` before 13: the lengths are an attribute.
pub(super) fn split_2(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    if let Some(sizes) = node.attrs.take::<Vec<i64>>("split")?
        && !sizes.is_empty()
    {
        let sizes = cx.ints(&sizes)?;
        node.set_input(1, Some(sizes));
    }
    split(cx, node)
}

/// `Split` has as many pieces as outputs; 18 says the number once more.
pub(super) fn split(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let pieces = node.outputs.len() as i64;
    if let Some(n) = node.attrs.take::<i64>("num_outputs")?
        && n != pieces
    {
        return Err(Fault::invalid(format!("num_outputs is {n}, the node has {pieces} outputs")));
    }
    node.attrs.set("num_outputs", Attr::Int(pieces));
    cx.emit(node)
}

/// `TopK` before 10: the count is an attribute.
pub(super) fn top_k_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let k: i64 = node.attrs.take("k")?.ok_or_else(|| Fault::invalid("attribute 'k' is missing"))?;
    let k = cx.ints(&[k])?;
    node.set_input(1, Some(k));
    cx.emit(node)
}

/// `Scatter`, later called `ScatterElements`.
pub(super) fn scatter_9(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    cx.emit(Node { op: "ScatterElements", ..node })
}

/// `DFT` of 17: the axis is an attribute.
pub(super) fn dft_17(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let axis: i64 = node.attrs.take("axis")?.unwrap_or(1);
    let axis = cx.constant(Tensor::scalar(axis))?;
    node.set_input(2, Some(axis));
    cx.emit(node)
}
