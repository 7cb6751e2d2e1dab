//! Operators of the preview domains.

use std::sync::Arc;

use of_ir::{Attr, DType, Rewriter, ValueId};
use of_ops::contraction::MatMul;
use of_ops::elementwise::{Cast, Mul};
use of_ops::movement::{Expand, Reshape, Transpose, Unsqueeze};
use of_ops::reduction::Softmax;
use of_ops::training::Gradient;

use super::compose::nothing_left;
use super::entry::ImporterEntry;
use crate::import::{ImportError, ImportResult, Importer, Node};
use crate::proto::GraphProto;
use crate::tensor;

/// The operators that are not as their op declares them.
pub(crate) const TABLE: &[ImporterEntry] = &[
    ImporterEntry { domain: "ai.onnx.preview", op: "FlexAttention", since: 1, import: flex_attention },
    ImporterEntry { domain: "ai.onnx.preview.training", op: "Gradient", since: 1, import: gradient },
];

/// `FlexAttention`: attention whose scores and probabilities go through subgraphs.
fn flex_attention<'m>(cx: &mut Importer<'m, '_>, mut node: Node<'m>) -> ImportResult {
    let (q, k, v) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let dims = |cx: &Importer<'_, '_>, v| -> Result<Vec<Option<i64>>, ImportError> {
        let shape = cx.tensor_ty(v)?.shape.as_ref();
        let shape = shape.ok_or_else(|| ImportError::unsupported("the rank of its operand is not known"))?;
        if shape.len() != 4 {
            return Err(ImportError::invalid(format!("operands must have rank 4, one has {}", shape.len())));
        }
        Ok(shape.iter().map(of_ir::Dim::as_const).collect())
    };
    let (own, other) = (dims(cx, q)?, dims(cx, k)?);
    dims(cx, v)?;
    let dtype = cx.tensor_ty(q)?.dtype;
    let precise = match node.attrs.take::<i64>("softmax_precision")? {
        Some(i) => tensor::dtype(i)?,
        None if dtype == DType::F64 => DType::F64,
        None => DType::F32,
    };
    let scale = match (node.attrs.take::<f64>("scale")?, own[3]) {
        (Some(scale), _) => scale,
        (None, Some(size)) => 1.0 / (size as f64).sqrt(),
        (None, None) => return Err(ImportError::unsupported("the size of its heads is not known")),
    };
    let (score_mod, prob_mod) = (subgraph(&mut node, "score_mod")?, subgraph(&mut node, "prob_mod")?);
    nothing_left(&node)?;
    let (Some(heads), Some(kv)) = (own[1], other[1]) else {
        return Err(ImportError::unsupported("the number of its heads is not known"));
    };
    if kv < 1 || heads % kv != 0 {
        return Err(ImportError::invalid(format!("{heads} heads of Q are not a multiple of {kv} heads of K")));
    }
    let (k, v) = (repeat_heads(cx, k, heads, kv)?, repeat_heads(cx, v, heads, kv)?);
    // The root of the scale on both sides keeps 16-bit products in range.
    let root = cx.number(scale.sqrt(), q)?;
    let q = cx.rw.create_one(Mul {}, &[q, root])?;
    let k = cx.rw.create_one(Mul {}, &[k, root])?;
    let k = cx.rw.create_one(Transpose { perm: Some(vec![0, 1, 3, 2]) }, &[k])?;
    let products = cx.rw.create_one(MatMul {}, &[q, k])?;
    let scores = cast(&mut cx.rw, products, precise)?;
    let scores = modified(cx, score_mod, scores)?;
    let weights = cx.rw.create_one(Softmax { axis: -1 }, &[scores])?;
    let weights = modified(cx, prob_mod, weights)?;
    let out = cx.tensor_ty(v)?.dtype;
    let v = cast(&mut cx.rw, v, precise)?;
    let y = cx.rw.create_one(MatMul {}, &[weights, v])?;
    Ok(vec![cast(&mut cx.rw, y, out)?])
}

fn subgraph<'m>(node: &mut Node<'m>, name: &str) -> Result<Option<&'m GraphProto>, ImportError> {
    if node.attrs.names().any(|n| n == name) { node.attrs.take_graph(name).map(Some) } else { Ok(None) }
}

/// Applies a subgraph of one input and one output to a value. The type must not change.
fn modified<'m>(cx: &mut Importer<'m, '_>, graph: Option<&'m GraphProto>, x: ValueId) -> Result<ValueId, ImportError> {
    let Some(graph) = graph else { return Ok(x) };
    let outputs = cx.inline(graph, &[x])?;
    let (was, is) = (cx.ty(x), outputs.first().map(|y| cx.ty(*y)));
    match (outputs.as_slice(), is) {
        ([y], Some(is)) if is.compatible(was) => Ok(*y),
        _ => Err(ImportError::invalid(format!("subgraph '{}' must give one value of type {was}", graph.name()))),
    }
}

/// `heads` heads out of `kv`, each as often as its neighbours.
fn repeat_heads(cx: &mut Importer<'_, '_>, x: ValueId, heads: i64, kv: i64) -> Result<ValueId, ImportError> {
    if heads == kv {
        return Ok(x);
    }
    let axis = cx.ints(&[2])?;
    let wide = cx.rw.create_one(Unsqueeze {}, &[x, axis])?;
    let times = cx.ints(&[1, 1, heads / kv, 1, 1])?;
    let wide = cx.rw.create_one(Expand {}, &[wide, times])?;
    let inner = cx.emit_one("Shape", &[Some(x)], [("start", Attr::Int(2))])?;
    let outer = cx.ints(&[0, heads])?;
    let dims = cx.emit_one("Concat", &[Some(outer), Some(inner)], [("axis", Attr::Int(0))])?;
    Ok(cx.rw.create_one(Reshape { allowzero: false }, &[wide, dims])?)
}

fn cast(rw: &mut Rewriter<'_>, x: ValueId, to: DType) -> Result<ValueId, ImportError> {
    let own = rw.graph().ty(x).as_tensor().map(|t| t.dtype);
    Ok(if own == Some(to) { x } else { rw.create_one(Cast::to(to), &[x])? })
}

/// `Gradient` of the value called `y` by those called `xs`; `zs` are the other values that it depends on.
///
/// The inputs of the node are the points at which the derivative is taken, in the order of `xs` and `zs`.
fn gradient(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let names: Vec<Arc<str>> =
        node.attrs.take("xs")?.ok_or_else(|| ImportError::invalid("attribute 'xs' is missing"))?;
    let others: Vec<Arc<str>> = node.attrs.take("zs")?.unwrap_or_default();
    let y: Arc<str> = node.attrs.take("y")?.ok_or_else(|| ImportError::invalid("attribute 'y' is missing"))?;
    nothing_left(&node)?;
    let y = cx.named(&y)?;
    let own = names.iter().chain(&others).map(|n| cx.named(n)).collect::<Result<Vec<_>, _>>()?;
    if own.len() != node.inputs.len() {
        return Err(ImportError::invalid(format!(
            "xs and zs are {} values, {} are given",
            own.len(),
            node.inputs.len()
        )));
    }
    let points = (0..own.len()).map(|i| node.input(i)).collect::<Result<Vec<_>, _>>()?;
    if points != own {
        return Err(ImportError::unsupported("a derivative at other values than those that 'xs' and 'zs' name"));
    }
    let operands: Vec<ValueId> = std::iter::once(y).chain(own.into_iter().take(names.len())).collect();
    let op = cx.rw.create(Gradient {}, &operands)?;
    Ok(cx.rw.graph().op(op).results.to_vec())
}
