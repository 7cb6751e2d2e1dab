//! Normalisations.

use of_ir::Attr;
use of_ops::nn::BatchNormTraining;

use super::compose::nothing_left;
use super::legacy;
use crate::import::{ImportError, ImportResult, Importer, Node};

/// `BatchNormalization`, by given statistics or by those of the batch.
pub(super) fn batch_norm(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    if node.version < 7 {
        // Whether it is for a test; the exporters of that time left it as it was in training.
        node.attrs.take_flag("is_test")?;
        legacy::drop_consumed_inputs(&mut node);
    }
    if node.attrs.take_flag("spatial")? == Some(false) {
        return Err(ImportError::unsupported("spatial 0 (statistics for every activation)"));
    }
    let momentum = node.attrs.take("momentum")?.unwrap_or(0.9);
    // Before 14, outputs beyond the first requested training mode.
    let more = (1..node.outputs.len()).any(|i| node.uses_output(i));
    let training = node.attrs.take_flag("training_mode")?.unwrap_or(node.version < 14 && more);
    if !training {
        node.outputs.truncate(1);
        return cx.emit(node);
    }
    if (3..node.outputs.len()).any(|i| node.uses_output(i)) {
        return Err(ImportError::unsupported("the statistics of the batch as outputs"));
    }
    let epsilon = node.attrs.take("epsilon")?.unwrap_or(1e-5);
    nothing_left(&node)?;
    let operands = (0..5).map(|i| node.input(i)).collect::<Result<Vec<_>, _>>()?;
    let op = cx.rw.create(BatchNormTraining { epsilon, momentum }, &operands)?;
    Ok(cx.rw.graph().op(op).results.to_vec())
}

/// `GroupNormalization` of 18: scale and bias are one a group, not one a channel.
pub(super) fn group_norm_18(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let groups: i64 =
        node.attrs.take("num_groups")?.ok_or_else(|| ImportError::invalid("attribute 'num_groups' is missing"))?;
    let x = cx.tensor_ty(node.input(0)?)?;
    let channels = x.shape.as_ref().and_then(|s| s.get(1)?.as_const());
    let each = match channels {
        Some(c) if groups > 0 && c % groups == 0 => c / groups,
        Some(_) => return Err(ImportError::invalid("the number of channels is not a multiple of num_groups")),
        None => return Err(ImportError::unsupported("the number of channels is not known")),
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
