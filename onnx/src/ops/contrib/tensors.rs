//! Operators that create, crop, pad and sample tensors.

use std::sync::Arc;

use of_ir::{Attr, DType, Tensor};

use crate::import::{ImportError, ImportResult, Importer, NEWEST_OPSET, Node};
use crate::ops::resize;

/// Operators that are what those of the same name in ai.onnx are.
pub(super) fn same(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    cx.emit(Node { domain: "", version: NEWEST_OPSET, ..node })
}

/// `GridSample`, as ai.onnx had it at first.
pub(super) fn grid_sample(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    resize::grid_sample_16(cx, Node { domain: "", version: 16, ..node })
}

/// `ExpandDims`: a new axis.
pub(super) fn expand_dims(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let axis = cx.cast(node.input(1)?, DType::I64)?;
    let axis = cx.reshape(axis, &[1])?;
    Ok(vec![cx.op("Unsqueeze", &[node.input(0)?, axis])?])
}

/// `Range`, whose operands may be of rank 1, and whose step may be left out.
pub(super) fn range(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let start = node.input(0)?;
    let step = match node.opt_input(2) {
        Some(step) => step,
        None => {
            let one = cx.constant(Tensor::scalar(1i64))?;
            let dtype = cx.tensor_ty(start)?.dtype;
            cx.cast(one, dtype)?
        }
    };
    let mut operands = [start, node.input(1)?, step];
    for x in &mut operands {
        *x = cx.reshape(*x, &[])?;
    }
    Ok(vec![cx.op("Range", &operands)?])
}

/// `Unique`: the different elements in order of appearance, the place of each element among them, and their numbers.
pub(super) fn unique(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let values = cx.op_many("Unique", vec![Some(node.input(0)?)], [("sorted", Attr::Int(0))], 4)?;
    let [y, _, places, counts] = values[..] else { return Err(ImportError::invalid("Unique gives four values")) };
    Ok(vec![y, places, counts])
}

/// `Pad`, whose pads may be one row of a matrix.
pub(super) fn pad(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let pads = node.input(1)?;
    if cx.rank(pads)? == 2 {
        node.inputs[1] = Some(cx.reshape(pads, &[-1])?);
    }
    if let Some(value) = node.opt_input(2)
        && cx.rank(value)? == 1
    {
        node.inputs[2] = Some(cx.reshape(value, &[])?);
    }
    cx.emit(Node { domain: "", ..node })
}

/// `CropAndResize`: samples a grid of pixels within each box, whose corners are on pixels; what is outside of the
/// image is `extrapolation_value`.
pub(super) fn crop_and_resize(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let mode: Option<Arc<str>> = node.attrs.take("mode")?;
    let outside = node.attrs.take("extrapolation_value")?.unwrap_or(0.0);
    node.done()?;
    let mode: Arc<str> = match mode.as_deref() {
        None | Some("bilinear") => "linear".into(),
        Some("nearest") => "nearest".into(),
        Some(other) => return Err(ImportError::invalid(format!("attribute 'mode' is '{other}'"))),
    };
    let (x, boxes) = (node.input(0)?, node.input(1)?);
    let size = cx.known(node.input(3)?).and_then(|t| t.to_i64s());
    let [height, width] = match size.as_deref() {
        Some([h, w]) if (1..1 << 16).contains(h) && (1..1 << 16).contains(w) => [*h, *w],
        Some(_) => return Err(ImportError::invalid("crop_size must be two numbers above 0")),
        None => return Err(ImportError::unsupported("crop_size must be known")),
    };
    // Coordinates between 0 and 1 along both axes, of each box.
    let mut grids = Vec::new();
    for (axis, n, dims) in [(1, width, [-1, 1, width]), (0, height, [-1, height, 1])] {
        let (from, to) = (cx.slice(boxes, 1, axis, axis + 1)?, cx.slice(boxes, 1, axis + 2, axis + 3)?);
        // A single pixel is in the middle of the box.
        let part = |i: i64| if n == 1 { 0.5 } else { i as f32 / (n - 1) as f32 };
        let steps = Tensor::from_slice(&[1, n as usize], &(0..n).map(part).collect::<Vec<f32>>());
        let steps = cx.constant(steps.map_err(|e| ImportError::invalid(e.to_string()))?)?;
        let dtype = cx.tensor_ty(boxes)?.dtype;
        let steps = cx.cast(steps, dtype)?;
        let length = cx.op("Sub", &[to, from])?;
        let way = cx.op("Mul", &[length, steps])?;
        let at = cx.op("Add", &[from, way])?;
        let at = cx.reshape(at, &dims)?;
        let rows = cx.dim(boxes, 0)?;
        let image = cx.ints(&[height, width])?;
        let dims = cx.concat(&[rows, image], 0)?;
        let at = cx.op("Expand", &[at, dims])?;
        grids.push(cx.unsqueeze(at, &[3])?);
    }
    let places = cx.concat(&grids, 3)?;
    let (zero, one, two) = (cx.number(0.0, places)?, cx.number(1.0, places)?, cx.number(2.0, places)?);
    let mut pixels = places;
    if &*mode == "nearest" {
        // x.5 rounds up; GridSample rounds it to even.
        let (width, height) = (cx.dim(x, 3)?, cx.dim(x, 2)?);
        let last = cx.concat(&[width, height], 0)?;
        let dtype = cx.tensor_ty(places)?.dtype;
        let last = cx.cast(last, dtype)?;
        let last = cx.op("Sub", &[last, one])?;
        let half = cx.number(0.5, places)?;
        let scaled = cx.op("Mul", &[places, last])?;
        let above = cx.op("Add", &[scaled, half])?;
        let whole = cx.op("Floor", &[above])?;
        let last = cx.op("Max", &[last, one])?;
        pixels = cx.op("Div", &[whole, last])?;
    }
    let twice = cx.op("Mul", &[pixels, two])?;
    let grid = cx.op("Sub", &[twice, one])?;
    let images = cx.op_with("Gather", &[x, node.input(2)?], [("axis", Attr::Int(0))])?;
    let attrs =
        [("mode", Attr::Str(mode)), ("padding_mode", Attr::Str("border".into())), ("align_corners", Attr::Int(1))];
    let y = cx.op_with("GridSample", &[images, grid], attrs)?;
    let (above, below) = (cx.op("GreaterOrEqual", &[places, zero])?, cx.op("LessOrEqual", &[places, one])?);
    let both = cx.op("And", &[above, below])?;
    let (a, b) = (cx.pick(both, 3, 0)?, cx.pick(both, 3, 1)?);
    let inside = cx.op("And", &[a, b])?;
    let inside = cx.unsqueeze(inside, &[1])?;
    let outside = cx.number(outside, x)?;
    Ok(vec![cx.op("Where", &[inside, y, outside])?])
}

/// `Rfft`: the Fourier transform along the last axis, half of it.
pub(super) fn rfft(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    if node.attrs.take::<i64>("signal_ndim")?.is_some_and(|n| n != 1) {
        return Err(ImportError::unsupported("a transform along several axes"));
    }
    node.without_flag("normalized", "a normalised transform")?;
    node.attrs.take::<i64>("onesided")?;
    node.done()?;
    let x = cx.unsqueeze(node.input(0)?, &[-1])?;
    Ok(vec![cx.op_with("DFT", &[x], [("onesided", Attr::Int(1))])?])
}
