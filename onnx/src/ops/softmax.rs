//! Softmax, LogSoftmax and Hardmax before operator set 13, which flatten the input to a matrix.

use of_ir::Attr;

use crate::import::{ImportResult, Importer, Node};

/// The axes from `axis` on are one axis of the function; those before it are the other.
pub(super) fn softmax_1(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let axis: i64 = node.attrs.take("axis")?.unwrap_or(1);
    let x = node.input(0)?;
    let rank = cx.rank(x)? as i64;
    if axis == -1 || axis == rank - 1 {
        node.attrs.set("axis", Attr::Int(-1));
        return cx.emit(node);
    }
    let matrix = cx.emit_one("Flatten", &[Some(x)], [("axis", Attr::Int(axis))])?;
    let y = cx.emit_one(node.op, &[Some(matrix)], [("axis", Attr::Int(-1))])?;
    let shape = cx.emit_one("Shape", &[Some(x)], [])?;
    // A dimension of 0 is one, not a copy: both reshapes keep the number of elements.
    Ok(vec![cx.emit_one("Reshape", &[Some(y), Some(shape)], [("allowzero", Attr::Int(1))])?])
}
