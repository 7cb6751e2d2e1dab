//! Normalisations with fused residual sums.

use of_ir::{Attr, DType, ValueId};

use crate::import::{ImportError, ImportResult, Importer, Node};

const NO_STATISTICS: &str = "mean and deviation as outputs are for training";

/// `epsilon`, rounded to f32.
const EPSILON: f64 = 1e-12_f32 as f64;

/// `SimplifiedLayerNormalization`, now `RMSNormalization`.
pub(crate) fn simplified(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.without_outputs(&[1], NO_STATISTICS)?;
    let outputs = vec![true];
    cx.emit(Node { op: "RMSNormalization", domain: "", outputs, ..node })
}

/// `SkipLayerNormalization`: of a sum, which is output 3.
pub(super) fn skip(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let epsilon = node.attrs.take("epsilon")?.unwrap_or(EPSILON);
    node.done()?;
    node.without_outputs(&[1, 2], NO_STATISTICS)?;
    let sum = cx.sum(node.input(0)?, &[Some(node.input(1)?), node.opt_input(4)])?;
    let attrs = [("axis", Attr::Int(-1)), ("epsilon", Attr::Float(epsilon))];
    let y = cx.emit_one("LayerNormalization", &[Some(sum), Some(node.input(2)?), node.opt_input(3)], attrs)?;
    Ok(vec![y, y, y, sum])
}

/// `SkipSimplifiedLayerNormalization`: of a sum, which is output 3.
pub(super) fn skip_simplified(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let epsilon = node.attrs.take("epsilon")?.unwrap_or(EPSILON);
    node.done()?;
    node.without_outputs(&[1, 2], NO_STATISTICS)?;
    let sum = cx.sum(node.input(0)?, &[Some(node.input(1)?), node.opt_input(3)])?;
    let attrs = [("axis", Attr::Int(-1)), ("epsilon", Attr::Float(epsilon))];
    let y = cx.op_with("RMSNormalization", &[sum, node.input(2)?], attrs)?;
    Ok(vec![y, y, y, sum])
}

/// `EmbedLayerNormalization`: the sum of the embeddings of words, positions and segments, normalised. Output 1 is the
/// number of words of each sample that the mask lets through, output 2 the sum.
pub(super) fn embed(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let epsilon = node.attrs.take("epsilon")?.unwrap_or(EPSILON);
    node.attrs.drop("mask_index_type");
    node.done()?;
    let (ids, words, positions) = (node.input(0)?, node.input(2)?, node.input(3)?);
    let gather = |cx: &mut Importer<'_, '_>, table, ids| cx.op_with("Gather", &[table, ids], [("axis", Attr::Int(0))]);
    let word = gather(cx, words, ids)?;
    let position = match node.opt_input(8) {
        Some(ids) => gather(cx, positions, ids)?,
        None => {
            let length = cx.dim(ids, 1)?;
            let (zero, axis) = (cx.ints(&[0])?, cx.ints(&[0])?);
            cx.op("Slice", &[positions, zero, length, axis])?
        }
    };
    let mut sum = cx.op("Add", &[word, position])?;
    if let (Some(ids), Some(segments)) = (node.opt_input(1), node.opt_input(4)) {
        let segment = gather(cx, segments, ids)?;
        sum = cx.op("Add", &[sum, segment])?;
    }
    let attrs = [("axis", Attr::Int(-1)), ("epsilon", Attr::Float(epsilon))];
    let y = cx.op_with("LayerNormalization", &[sum, node.input(5)?, node.input(6)?], attrs)?;
    if !node.uses_output(1) {
        return Ok(vec![y, y, sum]);
    }
    let count = match node.opt_input(7) {
        Some(mask) => {
            let mask = cx.cast(mask, DType::I32)?;
            let one = cx.constant(of_ir::Tensor::scalar(1i32))?;
            let counts = cx.op("Equal", &[mask, one])?;
            let counts = cx.cast(counts, DType::I32)?;
            let axis = cx.ints(&[1])?;
            cx.op_with("ReduceSum", &[counts, axis], [("keepdims", Attr::Int(0))])?
        }
        None => {
            let batch = cx.dim(ids, 0)?;
            let zero = cx
                .constant(of_ir::Tensor::from_slice(&[1], &[0i32]).map_err(|e| ImportError::invalid(e.to_string()))?)?;
            cx.op("Expand", &[zero, batch])?
        }
    };
    Ok(vec![y, count, sum])
}

/// `GroupNorm`, in either layout, optionally followed by SiLU.
pub(super) fn group(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    let x = node.input(0)?;
    Ok(vec![group_of(cx, node, x)?])
}

/// `SkipGroupNorm`: of a sum, which is output 1.
pub(super) fn skip_group(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    let (x, mut skip, mut bias) = (node.input(0)?, node.input(3)?, node.opt_input(4));
    let last = node.attrs.clone().take_flag("channels_last")?.unwrap_or(true);
    if cx.rank(skip)? == 2 {
        // One vector a sample, for all pixels.
        skip = cx.unsqueeze(skip, if last { &[1, 2] } else { &[2, 3] })?;
    }
    if let Some(b) = bias.filter(|_| !last) {
        bias = Some(cx.unsqueeze(b, &[1, 2])?);
    }
    let sum = cx.sum(x, &[Some(skip), bias])?;
    Ok(vec![group_of(cx, node, sum)?, sum])
}

fn group_of(cx: &mut Importer<'_, '_>, mut node: Node<'_>, x: ValueId) -> Result<ValueId, ImportError> {
    let groups: i64 = node.need("groups")?;
    let activation: i64 = node.need("activation")?;
    let channels_last = node.attrs.take_flag("channels_last")?.unwrap_or(true);
    let epsilon = node.attrs.take("epsilon")?.unwrap_or(f64::from(1e-5_f32));
    node.done()?;
    if !(0..=1).contains(&activation) {
        return Err(ImportError::invalid(format!("attribute 'activation' is {activation}")));
    }
    let dtype = cx.tensor_ty(x)?.dtype;
    let (scale, bias) = (cx.cast(node.input(1)?, dtype)?, cx.cast(node.input(2)?, dtype)?);
    let attrs = [
        ("num_groups", Attr::Int(groups)),
        ("epsilon", Attr::Float(epsilon)),
        ("channels_last", Attr::Bool(channels_last)),
    ];
    let y = cx.op_with("GroupNormalization", &[x, scale, bias], attrs)?;
    if activation == 1 { cx.op("Swish", &[y]) } else { Ok(y) }
}
