//! Normalisations.

use of_ir::Attr;

use super::legacy;
use crate::import::{Fault, Importer, Node, Values};

/// `BatchNormalization` with given statistics.
pub(super) fn batch_norm(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    if node.version < 7 {
        // Whether it is for a test; the exporters of that time left it as it was in training.
        node.attrs.take_flag("is_test")?;
        legacy::drop_consumed_inputs(&mut node);
    }
    let training = node.attrs.take_flag("training_mode")?.unwrap_or(false);
    // Before 14, outputs beyond the first asked for training.
    if training || (1..node.outputs.len()).any(|i| node.uses_output(i)) {
        return Err(Fault::unsupported("normalisation by the statistics of the batch is for training"));
    }
    if node.attrs.take_flag("spatial")? == Some(false) {
        return Err(Fault::unsupported("spatial 0 (statistics for every activation)"));
    }
    node.outputs.truncate(1);
    cx.emit(node)
}

/// `GroupNormalization` of 18: scale and bias are one a group, not one a channel.
pub(super) fn group_norm_18(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let groups: i64 =
        node.attrs.take("num_groups")?.ok_or_else(|| Fault::invalid("attribute 'num_groups' is missing"))?;
    let x = cx.tensor_ty(node.input(0)?)?;
    let channels = x.shape.as_ref().and_then(|s| s.get(1)?.as_const());
    let each = match channels {
        Some(c) if groups > 0 && c % groups == 0 => c / groups,
        Some(_) => return Err(Fault::invalid("the number of channels is not a multiple of num_groups")),
        None => return Err(Fault::unsupported("the number of channels is not known")),
    };
    for i in [1, 2] {
        let v = node.input(i)?;
        let column = cx.ints(&[groups, 1])?;
        let column = cx.emit_one("Reshape", &[Some(v), Some(column)], [])?;
        let grid = cx.ints(&[groups, each])?;
        let grid = cx.emit_one("Expand", &[Some(column), Some(grid)], [])?;
        let flat = cx.ints(&[groups * each])?;
        node.inputs[i] = Some(cx.emit_one("Reshape", &[Some(grid), Some(flat)], [])?);
    }
    node.attrs.set("num_groups", Attr::Int(groups));
    cx.emit(node)
}
