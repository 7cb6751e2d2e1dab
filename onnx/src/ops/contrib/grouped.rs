//! `GroupQueryAttention`: several query heads share a key head, with a cache.

use std::sync::Arc;

use of_ir::{Attr, DType, ValueId};

use super::attention::Scores;
use super::build::Made;
use super::position::rotate;
use crate::import::{Fault, Importer, Node, Values};

/// `GroupQueryAttention`. A cache has room for `max(total_sequence_length, its length)` keys; those of a sample are the
/// first `seqlens_k + 1`, of which the last are new.
pub(super) fn group_query(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let (heads, kv_heads): (i64, i64) = (node.need("num_heads")?, node.need("kv_num_heads")?);
    if heads < 1 || kv_heads < 1 || heads % kv_heads != 0 {
        return Err(Fault::invalid(format!("{heads} heads of queries are not a multiple of {kv_heads} heads of keys")));
    }
    let softcap = node.attrs.take("softcap")?.unwrap_or(0.0);
    let scale = node.attrs.take("scale")?.filter(|s: &f64| *s != 0.0);
    let window: i64 = node.attrs.take("local_window_size")?.unwrap_or(-1);
    let smooth = node.attrs.take::<i64>("smooth_softmax")?.is_some_and(|s| s > 0);
    let rotary = node.attrs.take_flag("do_rotary")?.unwrap_or(false);
    let interleaved = node.attrs.take_flag("rotary_interleaved")?.unwrap_or(false);
    let causal = node.attrs.take_flag("causal")?.unwrap_or(true);
    let epsilon = node.attrs.take("qk_norm_epsilon")?.unwrap_or(f64::from(1e-6_f32));
    node.without_flag("sliding_window_cache", "a cache that forgets keys by itself")?;
    node.without_flag("qk_output", "scores as an output")?;
    node.without_outputs(&[3], "scores as an output")?;
    for kind in ["k_quant_type", "v_quant_type"] {
        if node.attrs.take::<Arc<str>>(kind)?.is_some_and(|kind| &*kind != "NONE") {
            return Err(Fault::unsupported("a quantised cache"));
        }
    }
    node.attrs.drop("kv_cache_bit_width");
    node.done()?;
    node.without_inputs(&[12, 13], "a quantised cache")?;

    let [mut q, mut k, v] = split(cx, &node, heads, kv_heads)?;
    if let (Some(a), Some(b)) = (node.opt_input(14), node.opt_input(15)) {
        let norm = |cx: &mut Importer<'_, '_>, x, w| {
            let attrs = [("axis", Attr::Int(-1)), ("epsilon", Attr::Float(epsilon))];
            cx.op_with("RMSNormalization", &[x, w], attrs)
        };
        (q, k) = (norm(cx, q, a)?, norm(cx, k, b)?);
    }
    // Where the new keys begin: behind those that are there; a first prompt, which may be padded, begins at 0.
    let last = cx.cast(node.input(5)?, DType::I64)?;
    let last = cx.reshape(last, &[-1])?;
    let one = cx.ints(&[1])?;
    let ends = cx.op("Add", &[last, one])?;
    let length = cx.dim(q, 2)?;
    let start = cx.op("Sub", &[ends, length])?;
    let none = cx.ints(&[0])?;
    let start = cx.op("Max", &[start, none])?;
    let start = cx.reshape(start, &[-1, 1])?;
    let steps = cx.counting(length)?;
    let positions = cx.op("Add", &[start, steps])?;
    if rotary {
        let at = match node.opt_input(9) {
            Some(given) => cx.cast(given, DType::I64)?,
            None => positions,
        };
        let caches = [node.input(7)?, node.input(8)?];
        (q, k) = (rotate(cx, q, caches, at, interleaved)?, rotate(cx, k, caches, at, interleaved)?);
    }
    let cached = match (node.opt_input(3), node.opt_input(4)) {
        (Some(past_k), Some(past_v)) => {
            let total = cx.cast(node.input(6)?, DType::I64)?;
            [cache(cx, past_k, k, start, total)?, cache(cx, past_v, v, start, total)?]
        }
        (None, None) => [k, v],
        _ => return Err(Fault::invalid("the past of keys and of values must be given together")),
    };

    // Which keys a query sees.
    let keys = cx.dim(cached[0], 2)?;
    let keys = cx.counting(keys)?;
    let ends = cx.reshape(ends, &[-1, 1, 1, 1])?;
    let mut seen = cx.op("Less", &[keys, ends])?;
    if causal {
        let at = cx.reshape(positions, &[0, 1, -1, 1])?;
        let before = cx.op("LessOrEqual", &[keys, at])?;
        seen = cx.op("And", &[seen, before])?;
        if window >= 0 {
            let window = cx.ints(&[window])?;
            let first = cx.op("Sub", &[at, window])?;
            let near = cx.op("Greater", &[keys, first])?;
            seen = cx.op("And", &[seen, near])?;
        }
    }
    let infinity = cx.number(f64::NEG_INFINITY, q)?;
    let zero = cx.number(0.0, q)?;
    let mask = cx.op("Where", &[seen, zero, infinity])?;
    let extra = match node.opt_input(10) {
        Some(extra) => Some(widened(cx, extra, cached[0])?),
        None => None,
    };
    let mut mask = cx.sum(mask, &[extra])?;
    let mut operands = [q, cached[0], cached[1]];
    if let Some(sink) = sink(cx, &node, smooth, q)? {
        (operands, mask) = with_sink(cx, operands, (mask, sink), heads)?;
    }
    let scores = Scores { heads, kv_heads, scale, softcap, causal: false };
    let [y, ..] = scores.attend(cx, operands, Some(mask), None)?;
    let y = cx.transpose(y, &[0, 2, 1, 3])?;
    Ok(vec![cx.reshape(y, &[0, 0, -1])?, cached[0], cached[1]])
}

/// Queries, keys and values as `[N, heads, length, size]`.
fn split(cx: &mut Importer<'_, '_>, node: &Node<'_>, heads: i64, kv_heads: i64) -> Result<[ValueId; 3], Fault> {
    let q = node.input(0)?;
    let parts = match (node.opt_input(1), node.opt_input(2)) {
        (Some(k), Some(v)) => [q, k, v],
        (None, None) => {
            let width = cx.need_dim(q, -1, "the queries")?;
            let size = width / (heads + 2 * kv_heads);
            let (a, b) = (heads * size, (heads + kv_heads) * size);
            [cx.slice(q, -1, 0, a)?, cx.slice(q, -1, a, b)?, cx.slice(q, -1, b, i64::MAX)?]
        }
        _ => return Err(Fault::invalid("keys and values must be given together")),
    };
    let mut out = parts;
    for (x, heads) in out.iter_mut().zip([heads, kv_heads, kv_heads]) {
        let apart = cx.reshape(*x, &[0, 0, heads, -1])?;
        *x = cx.transpose(apart, &[0, 2, 1, 3])?;
    }
    Ok(out)
}

/// The past with room for `total` keys, and the new keys of each sample from `start` on.
fn cache(cx: &mut Importer<'_, '_>, past: ValueId, new: ValueId, start: ValueId, total: ValueId) -> Made {
    let length = cx.dim(past, 2)?;
    let total = cx.reshape(total, &[1])?;
    let none = cx.ints(&[0])?;
    let missing = cx.op("Sub", &[total, length])?;
    let missing = cx.op("Max", &[missing, none])?;
    let before = cx.ints(&[0; 6])?;
    let pads = cx.concat(&[before, missing, none], 0)?;
    let roomy = cx.op("Pad", &[past, pads])?;
    let start = cx.reshape(start, &[-1])?;
    cx.op_with("TensorScatter", &[roomy, new, start], [("axis", Attr::Int(2))])
}

/// A bias of the keys that there are, with room for as many as there is in a cache.
fn widened(cx: &mut Importer<'_, '_>, bias: ValueId, cache: ValueId) -> Made {
    let same = cx.known_dim(bias, 3).is_some_and(|n| Some(n) == cx.known_dim(cache, 2));
    if same {
        return Ok(bias);
    }
    let (keys, room) = (cx.dim(bias, 3)?, cx.dim(cache, 2)?);
    let missing = cx.op("Sub", &[room, keys])?;
    let before = cx.ints(&[0; 7])?;
    let pads = cx.concat(&[before, missing], 0)?;
    cx.op("Pad", &[bias, pads])
}

/// What each head adds to the denominator of the softmax, as a logit: `[1, heads, 1, 1]`.
fn sink(cx: &mut Importer<'_, '_>, node: &Node<'_>, smooth: bool, q: ValueId) -> Result<Option<ValueId>, Fault> {
    match node.opt_input(11) {
        Some(sink) => Ok(Some(cx.reshape(sink, &[1, -1, 1, 1])?)),
        None if smooth => {
            let zero = cx.number(0.0, q)?;
            Ok(Some(cx.reshape(zero, &[1, 1, 1, 1])?))
        }
        None => Ok(None),
    }
}

/// A key and a value of zeros more, whose logit is the sink.
fn with_sink(
    cx: &mut Importer<'_, '_>,
    [q, k, v]: [ValueId; 3],
    (mask, sink): (ValueId, ValueId),
    heads: i64,
) -> Result<([ValueId; 3], ValueId), Fault> {
    let pads = cx.ints(&[0, 0, 0, 0, 0, 0, 1, 0])?;
    let (k, v) = (cx.op("Pad", &[k, pads])?, cx.op("Pad", &[v, pads])?);
    // The mask is broadcast over the heads, and the sink over all else.
    let heads = cx.ints(&[1, heads, 1, 1])?;
    let mask = cx.op("Expand", &[mask, heads])?;
    let last = cx.slice(mask, 3, 0, 1)?;
    let shape = cx.op("Shape", &[last])?;
    let column = cx.op("Expand", &[sink, shape])?;
    Ok(([q, k, v], cx.concat(&[mask, column], 3)?))
}
