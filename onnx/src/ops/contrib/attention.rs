//! Attention of as many heads of keys as of queries, in its several forms: with its projections (`Attention`,
//! `QAttention`) or without (`MultiHeadAttention`, `DecoderMaskedMultiHeadAttention`).

use of_ir::{Attr, DType, Dim, ValueId};

use super::build::BuildResult;
use super::quantized;
use crate::import::{ImportError, ImportResult, Importer, Node};

const SHARED: &str = "a buffer that past and present share";

/// What all forms have: attributes of the scores.
pub(super) struct Scores {
    pub heads: i64,
    pub kv_heads: i64,
    pub scale: Option<f64>,
    pub softcap: f64,
    pub causal: bool,
}

impl Scores {
    /// From the attributes of a node, and the number that a padding mask adds.
    fn of(node: &mut Node<'_>) -> Result<(Scores, f64), ImportError> {
        let heads: i64 = node.need("num_heads")?;
        if heads < 1 {
            return Err(ImportError::invalid(format!("attribute 'num_heads' is {heads}")));
        }
        // 0 selects the default.
        let scale = node.attrs.take("scale")?.filter(|s: &f64| *s != 0.0);
        let causal = node.attrs.take_flag("unidirectional")?.unwrap_or(false);
        let filter = node.attrs.take("mask_filter_value")?.unwrap_or(-10000.0);
        node.without_flag("past_present_share_buffer", SHARED)?;
        node.without_flag("do_rotary", "a rotary embedding inside of it")?;
        node.attrs.drop("rotary_embedding_dim");
        Ok((Scores { heads, kv_heads: heads, scale, softcap: 0.0, causal }, filter))
    }

    /// The result and the key-value cache: `q`, `k` and `v` of rank 3 or 4, a bias or mask of rank 4, the past of `k` and `v`.
    pub fn attend(
        &self,
        cx: &mut Importer<'_, '_>,
        [q, k, v]: [ValueId; 3],
        mask: Option<ValueId>,
        past: Option<[ValueId; 2]>,
    ) -> Result<[ValueId; 3], ImportError> {
        let [past_k, past_v] = past.map_or([None; 2], |past| past.map(Some));
        let mut attrs = vec![
            ("q_num_heads", Attr::Int(self.heads)),
            ("kv_num_heads", Attr::Int(self.kv_heads)),
            ("is_causal", Attr::Int(self.causal.into())),
            ("softcap", Attr::Float(self.softcap)),
        ];
        attrs.extend(self.scale.map(|s| ("scale", Attr::Float(s))));
        let inputs = vec![Some(q), Some(k), Some(v), mask, past_k, past_v];
        match cx.op_many("Attention", inputs, attrs, 3)?[..] {
            [y, k, v] => Ok([y, k, v]),
            _ => Err(ImportError::invalid("attention gives three values")),
        }
    }
}

/// `MultiHeadAttention`.
pub(super) fn multi_head(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let (scores, filter) = Scores::of(&mut node)?;
    node.done()?;
    node.without_inputs(&[8, 9], SHARED)?;
    node.without_outputs(&[3], "scores as an output")?;
    let qkv =
        [node.input(0)?, node.opt_input(1).unwrap_or(node.input(0)?), node.opt_input(2).unwrap_or(node.input(0)?)];
    let given = [node.opt_input(1), node.opt_input(2)];
    let [bias, mask, extra] = [3, 4, 5].map(|i| node.opt_input(i));
    let past = past(&node, [6, 7])?;
    projected(cx, &scores, filter, (qkv, given), [bias, mask, extra], past)
}

/// `DecoderMaskedMultiHeadAttention`: one query a sample.
pub(super) fn decoder_masked(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let (scores, filter) = Scores::of(&mut node)?;
    node.without_flag("output_qk", "scores as an output")?;
    node.done()?;
    node.without_inputs(&[8, 9], "beams that share a cache")?;
    node.without_outputs(&[3], "scores as an output")?;
    let qkv =
        [node.input(0)?, node.opt_input(1).unwrap_or(node.input(0)?), node.opt_input(2).unwrap_or(node.input(0)?)];
    let given = [node.opt_input(1), node.opt_input(2)];
    let [mask, extra, bias] = [3, 4, 10].map(|i| node.opt_input(i));
    let past = past(&node, [5, 6])?;
    projected(cx, &scores, filter, (qkv, given), [bias, mask, extra], past)
}

/// The inputs that hold the past of keys and values.
fn past(node: &Node<'_>, at: [usize; 2]) -> Result<Option<[ValueId; 2]>, ImportError> {
    match at.map(|i| node.opt_input(i)) {
        [Some(k), Some(v)] => Ok(Some([k, v])),
        [None, None] => Ok(None),
        _ => Err(ImportError::invalid("the past of keys and of values must be given together")),
    }
}

/// Attention of what the projections gave: apart, or packed into one or two tensors.
fn projected(
    cx: &mut Importer<'_, '_>,
    scores: &Scores,
    filter: f64,
    (qkv, given): ([ValueId; 3], [Option<ValueId>; 2]),
    [bias, mask, extra]: [Option<ValueId>; 3],
    past: Option<[ValueId; 2]>,
) -> ImportResult {
    let [mut q, mut k, mut v] = qkv;
    let packed = given[1].is_none();
    if packed && cx.rank(q)? == 3 && given[0].is_none() {
        // Side by side.
        [q, k, v] = thirds(cx, q)?;
    } else if packed {
        if bias.is_some() {
            return Err(ImportError::unsupported("a bias of packed queries, keys and values"));
        }
        // `[N, length, heads, parts, size]`.
        let unpack = |cx: &mut Importer<'_, '_>, x, i| {
            let part = cx.pick(x, 3, i)?;
            cx.transpose(part, &[0, 2, 1, 3])
        };
        match given[0] {
            None => {
                let x = q;
                [q, k, v] = [unpack(cx, x, 0)?, unpack(cx, x, 1)?, unpack(cx, x, 2)?];
            }
            Some(x) => [k, v] = [unpack(cx, x, 0)?, unpack(cx, x, 1)?],
        }
    }
    if let Some(bias) = bias {
        let width = cx.need_dim(q, -1, "the queries")?;
        let part = cx.slice(bias, 0, 0, width)?;
        q = cx.op("Add", &[q, part])?;
        // Keys and values that are cached with their heads apart have theirs already.
        if cx.rank(k)? == 3 {
            let part = cx.slice(bias, 0, width, 2 * width)?;
            k = cx.op("Add", &[k, part])?;
            let part = cx.slice(bias, 0, 2 * width, i64::MAX)?;
            v = cx.op("Add", &[v, part])?;
        }
    }
    let flat = cx.rank(q)? == 3;
    let mask = bias_of(cx, [q, k], mask, extra, past, filter)?;
    let [mut y, k, v] = scores.attend(cx, [q, k, v], mask, past)?;
    if !flat {
        let heads_inside = cx.transpose(y, &[0, 2, 1, 3])?;
        y = cx.reshape(heads_inside, &[0, 0, -1])?;
    }
    Ok(vec![y, k, v])
}

/// The thirds of the last axis.
fn thirds(cx: &mut Importer<'_, '_>, x: ValueId) -> Result<[ValueId; 3], ImportError> {
    let attrs = [("axis", Attr::Int(-1)), ("num_outputs", Attr::Int(3))];
    match cx.op_many("Split", vec![Some(x)], attrs, 3)?[..] {
        [q, k, v] => Ok([q, k, v]),
        _ => Err(ImportError::invalid("a split into thirds gives three")),
    }
}

/// `Attention`: with its projections.
pub(super) fn attention(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let (scores, filter) = Scores::of(&mut node)?;
    let sizes: Option<Vec<i64>> = node.attrs.take("qkv_hidden_sizes")?;
    node.done()?;
    node.without_inputs(&[6], SHARED)?;
    let x = cx.op("MatMul", &[node.input(0)?, node.input(1)?])?;
    let x = cx.sum(x, &[node.opt_input(2)])?;
    let [mask, past, extra] = [3, 4, 5].map(|i| node.opt_input(i));
    self_attention(cx, &scores, filter, (x, sizes), [mask, extra], (past, node.uses_output(1)))
}

/// `QAttention`: with its projections, of quantised operands.
pub(super) fn quantized_attention(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let (scores, filter) = Scores::of(&mut node)?;
    node.done()?;
    let operands = [node.input(0)?, node.input(1)?];
    let zeros = [node.opt_input(6), node.opt_input(7)];
    let scales = [node.input(3)?, node.input(4)?];
    let x = quantized::real_product(cx, operands, zeros, scales)?;
    let x = cx.sum(x, &[node.opt_input(2)])?;
    let past = (node.opt_input(8), node.uses_output(1));
    self_attention(cx, &scores, filter, (x, None), [node.opt_input(5), None], past)
}

/// Attention of queries, keys and values that are stored side by side. Past and present are `[2, N, heads, length, size]`.
fn self_attention(
    cx: &mut Importer<'_, '_>,
    scores: &Scores,
    filter: f64,
    (x, sizes): (ValueId, Option<Vec<i64>>),
    [mask, extra]: [Option<ValueId>; 2],
    (past, present): (Option<ValueId>, bool),
) -> ImportResult {
    let [q, k, v] = match sizes.as_deref() {
        None | Some([]) => thirds(cx, x)?,
        Some([a, b, _]) => {
            let both = a.saturating_add(*b);
            [cx.slice(x, -1, 0, *a)?, cx.slice(x, -1, *a, both)?, cx.slice(x, -1, both, i64::MAX)?]
        }
        Some(list) => {
            return Err(ImportError::invalid(format!("qkv_hidden_sizes has {} numbers, it must have 3", list.len())));
        }
    };
    let past = match past {
        Some(past) => Some([cx.pick(past, 0, 0)?, cx.pick(past, 0, 1)?]),
        None => None,
    };
    let mask = bias_of(cx, [q, k], mask, extra, past, filter)?;
    let [y, k, v] = scores.attend(cx, [q, k, v], mask, past)?;
    if !present {
        return Ok(vec![y]);
    }
    let (k, v) = (cx.unsqueeze(k, &[0])?, cx.unsqueeze(v, &[0])?);
    Ok(vec![y, cx.concat(&[k, v], 0)?])
}

/// The bias of the scores: the given bias, and `filter` where the padding mask says so.
fn bias_of(
    cx: &mut Importer<'_, '_>,
    [q, k]: [ValueId; 2],
    mask: Option<ValueId>,
    extra: Option<ValueId>,
    past: Option<[ValueId; 2]>,
    filter: f64,
) -> Result<Option<ValueId>, ImportError> {
    let Some(mask) = mask else { return Ok(extra) };
    let zero = cx.number(0.0, q)?;
    let filter = cx.number(filter, q)?;
    let keeps = match cx.rank(mask)? {
        1 => within(cx, [q, k], mask, past)?,
        rank @ (2 | 3) => {
            let axes: &[i64] = if rank == 2 { &[1, 2] } else { &[1] };
            let mask = cx.unsqueeze(mask, axes)?;
            let mask = cx.cast(mask, DType::I32)?;
            let none = cx.constant(of_ir::Tensor::scalar(0i32))?;
            cx.op("Greater", &[mask, none])?
        }
        rank => return Err(ImportError::unsupported(format!("a mask of rank {rank}"))),
    };
    let mask = cx.op("Where", &[keeps, zero, filter])?;
    Ok(Some(cx.sum(mask, &[extra])?))
}

/// Which keys are within the lengths of the samples: `ends` are exclusive ends, with the starts behind them or without.
fn within(cx: &mut Importer<'_, '_>, [q, k]: [ValueId; 2], ends: ValueId, past: Option<[ValueId; 2]>) -> BuildResult {
    let shape = |v| cx.tensor_ty(v).ok().and_then(|t| t.shape.clone());
    let (Some(bounds), Some(batch)) = (shape(ends), shape(q)) else {
        return Err(ImportError::unsupported("the dimensions of queries and mask must be known"));
    };
    let (bounds, batch) = (bounds[0].clone(), batch[0].clone());
    let both = bounds != batch;
    if both && bounds != &batch * &Dim::from(2i64) {
        return Err(ImportError::unsupported(format!("a mask of {bounds} lengths for {batch} samples")));
    }
    let axis = cx.rank(k)? as i64 - 2;
    let mut length = cx.dim(k, axis)?;
    if let Some([past, _]) = past {
        let before = cx.dim(past, 2)?;
        length = cx.op("Add", &[before, length])?;
    }
    let keys = cx.counting(length)?;
    let ends = cx.cast(ends, DType::I64)?;
    if !both {
        let ends = cx.reshape(ends, &[-1, 1, 1, 1])?;
        return cx.op("Less", &[keys, ends]);
    }
    let grid = cx.reshape(ends, &[2, -1, 1, 1, 1])?;
    let (ends, starts) = (cx.pick(grid, 0, 0)?, cx.pick(grid, 0, 1)?);
    let (before, after) = (cx.op("Less", &[keys, ends])?, cx.op("GreaterOrEqual", &[keys, starts])?);
    cx.op("And", &[before, after])
}
