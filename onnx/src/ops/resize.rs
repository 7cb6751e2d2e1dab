//! Resampling.

use std::sync::Arc;

use of_ir::{Attr, Tensor, Type};

use crate::import::{ImportError, ImportResult, Importer, Node};

/// `Upsample` of 7: the scales are an attribute.
pub(super) fn upsample_7(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let scales: Vec<f64> =
        node.attrs.take("scales")?.ok_or_else(|| ImportError::invalid("attribute 'scales' is missing"))?;
    let scales: Vec<f32> = scales.iter().map(|s| *s as f32).collect();
    let scales = Tensor::from_slice(&[scales.len()], &scales).map_err(|e| ImportError::invalid(e.to_string()))?;
    let scales = cx.constant(scales)?;
    node.set_input(1, Some(scales));
    upsample_9(cx, node)
}

/// `Upsample` of 9: what `Resize` of 10 does.
pub(super) fn upsample_9(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    resize_10(cx, node)
}

/// `Resize` of 10: coordinates are not shifted, the nearest is the one below.
pub(super) fn resize_10(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let scales = node.input(1)?;
    node.inputs = vec![node.inputs[0], None, Some(scales)];
    // Some writers call the linear mode by its rank.
    if let Some(Attr::Str(mode)) = node.attrs.take_any("mode")? {
        let mode = if &*mode == "bilinear" { "linear".into() } else { mode };
        node.attrs.set("mode", Attr::Str(mode));
    }
    node.attrs.set("coordinate_transformation_mode", Attr::Str("asymmetric".into()));
    node.attrs.set("nearest_mode", Attr::Str("floor".into()));
    cx.emit(Node { op: "Resize", ..node })
}

/// `Resize` from 11 on: empty tensors mark omitted operands.
pub(super) fn resize(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    for i in 1..node.inputs.len() {
        if let Some(v) = node.inputs[i]
            && is_empty(cx.ty(v))
        {
            node.inputs[i] = None;
        }
    }
    // The region of interest matters for one mode; a shape that is not known would say nothing.
    let mode: Option<Arc<str>> = node.attrs.take("coordinate_transformation_mode")?;
    let crops = mode.as_deref() == Some("tf_crop_and_resize");
    if let Some(mode) = mode {
        node.attrs.set("coordinate_transformation_mode", Attr::Str(mode));
    }
    if !crops && node.inputs.len() > 1 {
        node.inputs[1] = None;
    }
    cx.emit(node)
}

fn is_empty(ty: &Type) -> bool {
    ty.as_tensor().and_then(|t| t.fixed_dims()).is_some_and(|d| d.contains(&0))
}

/// `RoiAlign` before 16 had no shift by half a pixel.
pub(super) fn roi_align_10(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    node.attrs.set("coordinate_transformation_mode", Attr::Str("output_half_pixel".into()));
    cx.emit(node)
}

/// `GridSample` of 16 called its modes by the rank of an image.
pub(super) fn grid_sample_16(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let mode: Option<Arc<str>> = node.attrs.take("mode")?;
    let mode: Arc<str> = match mode.as_deref() {
        None | Some("bilinear") => "linear".into(),
        Some("bicubic") => "cubic".into(),
        Some(other) => other.into(),
    };
    node.attrs.set("mode", Attr::Str(mode));
    cx.emit(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use of_ir::DType;

    #[test]
    fn only_tensors_without_elements_are_empty() {
        assert!(is_empty(&Type::fixed(DType::F32, &[0])));
        assert!(!is_empty(&Type::fixed(DType::F32, &[4])) && !is_empty(&Type::None));
    }
}
