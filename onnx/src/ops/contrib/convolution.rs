//! Convolutions and pools with other layouts or fused activations.

use of_ir::Attr;

use super::activation;
use crate::import::{Fault, Importer, Node, Values};

/// `FusedConv`: `f(conv(x, w, b) + z)`.
pub(super) fn fused(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    conv(cx, node, false)
}

/// `NhwcConv` and `NhwcFusedConv`: the same with channels last.
pub(super) fn nhwc(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    conv(cx, node, true)
}

fn conv(cx: &mut Importer<'_, '_>, mut node: Node<'_>, channels_last: bool) -> Values {
    let mut behind = node.clone();
    for name in ["activation", "activation_params"] {
        node.attrs.drop(name);
    }
    node.attrs.set("channels_last", Attr::Bool(channels_last));
    let z = node.opt_input(3);
    node.inputs.truncate(3);
    let y = cx.emit(Node { op: "Conv", domain: "", ..node })?;
    let y = y.first().copied().ok_or_else(|| Fault::invalid("a convolution gives one value"))?;
    let y = cx.sum(y, &[z])?;
    Ok(vec![activation::fused(cx, &mut behind, y)?])
}

/// `NhwcMaxPool`.
pub(super) fn nhwc_max_pool(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    node.attrs.set("channels_last", Attr::Bool(true));
    cx.emit(Node { op: "MaxPool", domain: "", ..node })
}

/// `QLinearConv`, in either layout.
pub(super) fn quantized(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    cx.emit(Node { domain: "", ..node })
}

/// `ConvTransposeWithDynamicPads`: the pads are an operand.
pub(super) fn transposed_with_pads(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    if let Some(pads) = node.opt_input(2) {
        let pads = cx.known(pads).and_then(|t| t.to_i64s());
        let pads = pads.ok_or_else(|| Fault::unsupported("pads must be known"))?;
        node.attrs.set("pads", Attr::Ints(pads));
    }
    node.inputs = vec![node.opt_input(0), node.opt_input(1), node.opt_input(3)];
    cx.emit(Node { op: "ConvTranspose", domain: "", ..node })
}
