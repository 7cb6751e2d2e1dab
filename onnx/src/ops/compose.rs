//! Operators that become several ops.

use std::sync::Arc;

use of_ir::{Attr, DType, Tensor, ValueId};

use crate::import::{Fault, Importer, Node, Values};

/// `CenterCropPad`: pads what is short, cuts what is long, on both sides alike.
pub(super) fn center_crop_pad(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let (x, target) = (node.input(0)?, node.input(1)?);
    let mut axes = None;
    let mut fixed = cx.tensor_ty(x)?.fixed_dims();
    if let Some(list) = node.attrs.take::<Vec<i64>>("axes")? {
        let rank = cx.rank(x)?;
        let mut known = Vec::with_capacity(list.len());
        for axis in list {
            known.push(of_ops::shape::axis(axis, rank)? as i64);
        }
        fixed = fixed.map(|dims| known.iter().map(|axis| dims[*axis as usize]).collect());
        axes = Some(cx.ints(&known)?);
    }
    nothing_left(&node)?;
    // With lengths that are known, so are those of the result.
    let lengths = cx.known(target).and_then(|t| t.to_i64s());
    if let (Some(dims), Some(lengths)) = (fixed, lengths)
        && dims.len() == lengths.len()
    {
        let mut bounds = [vec![], vec![], vec![], vec![]];
        for (dim, length) in dims.into_iter().zip(lengths) {
            if length < 0 {
                return Err(Fault::invalid(format!("a length of {length}")));
            }
            let dim = dim as i64;
            let (extra, surplus) = ((length - dim).max(0), (dim - length).max(0));
            let start = surplus / 2;
            for (list, n) in bounds.iter_mut().zip([extra / 2, extra - extra / 2, start, start + length]) {
                list.push(n);
            }
        }
        let [left, right, start, end] = bounds;
        let pads = cx.ints(&[left, right].concat())?;
        let padded = cx.emit_one("Pad", &[Some(x), Some(pads), None, axes], [])?;
        let (start, end) = (cx.ints(&start)?, cx.ints(&end)?);
        return Ok(vec![cx.emit_one("Slice", &[Some(padded), Some(start), Some(end), axes], [])?]);
    }
    let mut dims = cx.emit_one("Shape", &[Some(x)], [])?;
    if axes.is_some() {
        dims = cx.emit_one("Gather", &[Some(dims), axes], [("axis", Attr::Int(0))])?;
    }
    let two = cx.ints(&[2])?;
    let wide = pair(cx, "Max", dims, target)?;
    let extra = pair(cx, "Sub", wide, dims)?;
    let left = pair(cx, "Div", extra, two)?;
    let right = pair(cx, "Sub", extra, left)?;
    let pads = cx.emit_one("Concat", &[Some(left), Some(right)], [("axis", Attr::Int(0))])?;
    let padded = cx.emit_one("Pad", &[Some(x), Some(pads), None, axes], [])?;
    let surplus = pair(cx, "Sub", wide, target)?;
    let start = pair(cx, "Div", surplus, two)?;
    let end = pair(cx, "Add", start, target)?;
    Ok(vec![cx.emit_one("Slice", &[Some(padded), Some(start), Some(end), axes], [])?])
}

/// The windows of signal processing: `a - b cos(t) + c cos(2 t)` over one period.
fn window(cx: &mut Importer<'_, '_>, mut node: Node<'_>, [a, b, c]: [f32; 3]) -> Values {
    let size = node.input(0)?;
    let periodic = node.attrs.take_flag("periodic")?.unwrap_or(true);
    let dtype: i64 = node.attrs.take("output_datatype")?.unwrap_or(1);
    nothing_left(&node)?;
    let float = |cx: &mut Importer<'_, '_>, x: f32| cx.constant(Tensor::scalar(x));
    let size = cx.emit_one("Cast", &[Some(size)], [("to", Attr::DType(DType::F32))])?;
    let (zero, one) = (float(cx, 0.0)?, float(cx, 1.0)?);
    let period = if periodic { size } else { pair(cx, "Sub", size, one)? };
    let turn = float(cx, std::f32::consts::TAU)?;
    let step = pair(cx, "Div", turn, period)?;
    let points = cx.emit_one("Range", &[Some(zero), Some(size), Some(one)], [])?;
    let t = pair(cx, "Mul", points, step)?;
    let cos = cx.emit_one("Cos", &[Some(t)], [])?;
    let (a, b) = (float(cx, a)?, float(cx, b)?);
    let first = pair(cx, "Mul", cos, b)?;
    let mut y = pair(cx, "Sub", a, first)?;
    if c != 0.0 {
        let twice = pair(cx, "Add", t, t)?;
        let cos = cx.emit_one("Cos", &[Some(twice)], [])?;
        let c = float(cx, c)?;
        let second = pair(cx, "Mul", cos, c)?;
        y = pair(cx, "Add", y, second)?;
    }
    Ok(vec![cx.emit_one("Cast", &[Some(y)], [("to", Attr::Int(dtype))])?])
}

/// `HannWindow`.
pub(super) fn hann_window(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    window(cx, node, [0.5, 0.5, 0.0])
}

/// `HammingWindow`.
pub(super) fn hamming_window(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    window(cx, node, [25.0 / 46.0, 21.0 / 46.0, 0.0])
}

/// `BlackmanWindow`.
pub(super) fn blackman_window(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    window(cx, node, [0.42, 0.5, 0.08])
}

/// `SpaceToDepth`, whose channels are the outer part of the new ones (`CRD`) or the inner one (`DCR`).
pub(super) fn space_to_depth(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let mode: Option<Arc<str>> = node.attrs.take("mode")?;
    match mode.as_deref() {
        None | Some("DCR") => return cx.emit(node),
        Some("CRD") => {}
        Some(other) => return Err(Fault::invalid(format!("attribute 'mode' is '{other}'"))),
    }
    let missing = || Fault::invalid("attribute 'blocksize' is missing");
    let block: i64 = node.attrs.take("blocksize")?.ok_or_else(missing)?;
    node.attrs.set("blocksize", Attr::Int(block));
    let y = cx.emit(node)?.first().copied().ok_or_else(|| Fault::invalid("it gives no value"))?;
    // The new channels are a matrix of places in a block by channels, which is turned over.
    let shape = cx.emit_one("Shape", &[Some(y)], [])?;
    let batch = cx.emit_one("Shape", &[Some(y)], [("end", Attr::Int(1))])?;
    let image = cx.emit_one("Shape", &[Some(y)], [("start", Attr::Int(2))])?;
    let matrix = cx.ints(&[block * block, -1])?;
    let parts = [Some(batch), Some(matrix), Some(image)];
    let split = cx.emit_one("Concat", &parts, [("axis", Attr::Int(0))])?;
    let y = cx.emit_one("Reshape", &[Some(y), Some(split)], [])?;
    let y = cx.emit_one("Transpose", &[Some(y)], [("perm", Attr::Ints(vec![0, 2, 1, 3, 4]))])?;
    Ok(vec![cx.emit_one("Reshape", &[Some(y), Some(shape)], [])?])
}

fn pair(cx: &mut Importer<'_, '_>, op: &str, a: ValueId, b: ValueId) -> Result<ValueId, Fault> {
    cx.emit_one(op, &[Some(a), Some(b)], [])
}

/// Attributes that nothing has taken are not known.
pub(super) fn nothing_left(node: &Node<'_>) -> Result<(), Fault> {
    match node.attrs.names().next() {
        Some(name) => Err(Fault::unsupported(format!("attribute '{name}' is not supported"))),
        None => Ok(()),
    }
}
