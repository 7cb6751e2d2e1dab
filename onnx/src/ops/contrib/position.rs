//! Positional encodings: rotary embeddings and relative position biases.

use of_ir::{Attr, DType, Tensor, ValueId};

use super::build::BuildResult;
use crate::import::{ImportError, ImportResult, Importer, Node};

/// `RotaryEmbedding`, with its positions as operand 1: one a token, or the first of all samples.
pub(super) fn rotary(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let heads: i64 = node.attrs.take("num_heads")?.unwrap_or(0);
    node.attrs.take::<i64>("rotary_embedding_dim")?;
    let interleaved = node.attrs.take_flag("interleaved")?.unwrap_or(false);
    if node.attrs.take("scale")?.is_some_and(|s: f64| s != 1.0) {
        return Err(ImportError::unsupported("attribute 'scale' is supported as 1 only"));
    }
    node.without_flag("is_packed_batching", "packed sequences")?;
    node.done()?;
    let (x, mut at) = (node.input(0)?, node.input(1)?);
    let caches = [node.input(2)?, node.input(3)?];
    let flat = cx.rank(x)? == 3;
    let length = cx.dim(x, if flat { 1 } else { 2 })?;
    if cx.rank(at)? == 1 {
        let steps = cx.counting(length)?;
        let positions = cx.op("Add", &[at, steps])?;
        let batch = cx.dim(x, 0)?;
        let dims = cx.concat(&[batch, length], 0)?;
        at = cx.op("Expand", &[positions, dims])?;
    }
    if !flat {
        return Ok(vec![rotate(cx, x, caches, at, interleaved)?]);
    }
    // Without a number of heads, all features of a head are rotated.
    let size = if heads > 0 { -1 } else { 2 * cx.need_dim(caches[0], -1, "the cache")? };
    let apart = cx.reshape(x, &[0, 0, if heads > 0 { heads } else { -1 }, size])?;
    let apart = cx.transpose(apart, &[0, 2, 1, 3])?;
    let y = rotate(cx, apart, caches, at, interleaved)?;
    let y = cx.transpose(y, &[0, 2, 1, 3])?;
    Ok(vec![cx.reshape(y, &[0, 0, -1])?])
}

/// Rotates the features of `x`, `[N, heads, length, size]`, by the positions `at`, `[N, length]`. It rotates as many as the
/// caches of cosines and sines have columns for.
pub(super) fn rotate(
    cx: &mut Importer<'_, '_>,
    x: ValueId,
    [cos, sin]: [ValueId; 2],
    at: ValueId,
    interleaved: bool,
) -> BuildResult {
    let turning = 2 * cx.need_dim(cos, -1, "the cache")?;
    let attrs = [("rotary_embedding_dim", Attr::Int(turning)), ("interleaved", Attr::Int(interleaved.into()))];
    cx.op_with("RotaryEmbedding", &[x, cos, sin, at], attrs)
}

/// `RelativePositionBias`: for every query and key the row of a table that their distance selects, the further the
/// coarser. Source: Raffel et al., "Exploring the limits of transfer learning" (2020).
pub(super) fn relative(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let furthest: i64 = node.need("max_distance")?;
    let both = node.attrs.take_flag("is_bidirectional")?.unwrap_or(false);
    node.done()?;
    let table = node.input(0)?;
    let (buckets, heads) = (cx.need_dim(table, 0, "the table")?, cx.need_dim(table, 1, "the table")?);
    let mut lengths = [0; 2];
    for (i, length) in lengths.iter_mut().enumerate() {
        *length = match cx.known(node.input(i + 1)?).and_then(|t| t.to_i64s()).as_deref() {
            Some([n]) if (0..1 << 20).contains(n) => *n,
            Some(_) => return Err(ImportError::invalid("a length must be one number that is not negative")),
            None => return Err(ImportError::unsupported("the numbers of queries and keys must be known")),
        };
    }
    let [queries, keys] = lengths;
    if queries * keys > 1 << 28 || buckets < 2 || furthest < 1 {
        return Err(ImportError::invalid(format!("{queries} queries, {keys} keys, {buckets} buckets")));
    }
    let all = (0..queries).flat_map(|q| (0..keys).map(move |k| bucket(k - q, buckets, furthest, both)));
    let all = Tensor::from_slice(&[queries as usize, keys as usize], &all.collect::<Vec<i64>>());
    let all = cx.constant(all.map_err(|e| ImportError::invalid(e.to_string()))?)?;
    // The table is stored by columns.
    let table = cx.reshape(table, &[heads, buckets])?;
    let bias = cx.op_with("Gather", &[table, all], [("axis", Attr::Int(1))])?;
    Ok(vec![cx.unsqueeze(bias, &[0])?])
}

/// The bucket of a distance: one each for the nearer half, then by the logarithm.
fn bucket(distance: i64, buckets: i64, furthest: i64, both: bool) -> i64 {
    let (buckets, first, distance) = match both {
        true => (buckets / 2, if distance > 0 { buckets / 2 } else { 0 }, distance.abs()),
        false => (buckets, 0, (-distance).max(0)),
    };
    let exact = buckets / 2;
    if distance < exact || exact == 0 {
        return first + distance.min(buckets - 1);
    }
    let part = (distance as f32 / exact as f32).ln() / (furthest as f32 / exact as f32).ln();
    let far = exact + (part * (buckets - exact) as f32) as i64;
    first + far.min(buckets - 1)
}

/// `GatedRelativePositionBias`: a bias by distance under a gate that the queries open. Source: Chi et al., "XLM-E"
/// (2022).
pub(super) fn gated_relative(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let heads: i64 = node.need("num_heads")?;
    node.done()?;
    node.without_inputs(&[6], "packed sequences")?;
    let q = cx.op("Add", &[node.input(0)?, node.input(1)?])?;
    let q = cx.reshape(q, &[0, 0, heads, -1])?;
    let q = cx.transpose(q, &[0, 2, 1, 3])?;
    let linear = cx.op("MatMul", &[q, node.input(3)?])?;
    let linear = cx.op("Add", &[linear, node.input(4)?])?;
    let pairs = cx.reshape(linear, &[0, 0, 0, 2, -1])?;
    let axis = cx.ints(&[4])?;
    let sums = cx.op_with("ReduceSum", &[pairs, axis], [("keepdims", Attr::Int(0))])?;
    let gates = cx.op("Sigmoid", &[sums])?;
    let (u, r) = (cx.slice(gates, 3, 0, 1)?, cx.slice(gates, 3, 1, 2)?);
    let (one, two) = (cx.number(1.0, u)?, cx.number(2.0, u)?);
    let scaled = cx.op("Mul", &[r, node.input(5)?])?;
    let scaled = cx.op("Sub", &[scaled, one])?;
    let gate = cx.op("Mul", &[u, scaled])?;
    let gate = cx.op("Add", &[gate, two])?;
    Ok(vec![cx.op("Mul", &[gate, node.input(2)?])?])
}

/// `TorchEmbedding`: rows of a table. What else it takes matters in training only.
pub(super) fn embedding(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let ids = cx.cast(node.input(1)?, DType::I64)?;
    Ok(vec![cx.op_with("Gather", &[node.input(0)?, ids], [("axis", Attr::Int(0))])?])
}
