//! Matrix products of floats with fused epilogues.

use of_ir::{Attr, DType, ValueId};

use super::activation;
use super::build::Made;
use crate::import::{Fault, Importer, Node, Values};

/// `FusedMatMul` and `FusedMatMulActivation`: `f(alpha A' B')`.
pub(super) fn fused_matmul(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let alpha = node.attrs.take("alpha")?.unwrap_or(1.0);
    let mut operands = Vec::new();
    for (i, [batch, matrix]) in [["transBatchA", "transA"], ["transBatchB", "transB"]].into_iter().enumerate() {
        let x = node.input(i)?;
        let (batch, matrix) = (node.attrs.take_flag(batch)?, node.attrs.take_flag(matrix)?);
        operands.push(turned(cx, x, batch.unwrap_or(false), matrix.unwrap_or(false))?);
    }
    let y = cx.op("MatMul", &operands)?;
    let y = cx.times(y, alpha)?;
    node.attrs.drop("activation_axis");
    let y = activation::fused(cx, &mut node, y)?;
    node.done()?;
    Ok(vec![y])
}

/// An operand whose first axis stands behind its batches (`batch`), or whose matrices are transposed.
fn turned(cx: &mut Importer<'_, '_>, x: ValueId, batch: bool, matrix: bool) -> Made {
    let rank = cx.rank(x)? as i64;
    if rank < 2 || !(batch || matrix) {
        return Ok(x);
    }
    let mut perm: Vec<i64> = (0..rank).collect();
    if batch {
        perm = (1..rank - 1).chain([0, rank - 1]).collect();
    }
    if matrix {
        perm.swap(rank as usize - 1, rank as usize - 2);
    }
    cx.transpose(x, &perm)
}

/// `FusedGemm`: `Gemm` and an activation.
pub(super) fn fused_gemm(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let attrs = ["alpha", "beta", "transA", "transB"].map(|name| Ok((name, node.attrs.take_any(name)?)));
    let attrs: Vec<(&'static str, Option<Attr>)> = attrs.into_iter().collect::<Result<_, Fault>>()?;
    let attrs = attrs.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let y = cx.emit_one("Gemm", &node.inputs, attrs)?;
    let y = activation::fused(cx, &mut node, y)?;
    node.done()?;
    Ok(vec![y])
}

/// `MatMulNBits`: the product with a matrix `[N, K]` that is stored in `bits` bits an element, with a scale and a zero
/// point for each block of `block_size` elements of a row.
pub(super) fn matmul_n_bits(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let (k, n): (i64, i64) = (node.need("K")?, node.need("N")?);
    let block: i64 = node.need("block_size")?;
    let bits = node.attrs.take("bits")?.unwrap_or(4);
    // How exact the product must be at least; it is exact.
    node.attrs.take::<i64>("accuracy_level")?;
    node.without_flag("weight_prepacked", "weights in the layout of one device")?;
    node.done()?;
    node.without_inputs(&[4], "an order of groups (g_idx)")?;
    if ![2, 4, 8].contains(&bits) {
        return Err(Fault::unsupported(format!("weights of {bits} bits")));
    }
    if k < 1 || n < 1 || !(1..=1 << 20).contains(&block) || block * bits % 8 != 0 || k.max(n) > 1 << 40 {
        return Err(Fault::invalid(format!("K {k}, N {n} and block_size {block} do not form a matrix of blocks")));
    }
    let blocks = (k + block - 1) / block;
    let (x, w, scales) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let dtype = cx.tensor_ty(x)?.dtype;
    let w = cx.reshape(w, &[n, -1])?;
    let w = unpacked(cx, w, bits)?;
    let w = cx.cast(w, dtype)?;
    let w = cx.reshape(w, &[n, blocks, block])?;
    let zero = match node.opt_input(3) {
        None => cx.number((1 << (bits - 1)) as f64, w)?,
        Some(zero) if cx.tensor_ty(zero)?.dtype == DType::U8 => {
            let zero = cx.reshape(zero, &[n, -1])?;
            let zero = unpacked(cx, zero, bits)?;
            let zero = cx.slice(zero, 1, 0, blocks)?;
            let zero = cx.cast(zero, dtype)?;
            cx.reshape(zero, &[n, blocks, 1])?
        }
        Some(zero) => cx.reshape(zero, &[n, blocks, 1])?,
    };
    let scales = cx.reshape(scales, &[n, blocks, 1])?;
    let w = cx.op("Sub", &[w, zero])?;
    let w = cx.op("Mul", &[w, scales])?;
    let w = cx.reshape(w, &[n, blocks * block])?;
    let w = if blocks * block == k { w } else { cx.slice(w, 1, 0, k)? };
    let w = cx.transpose(w, &[1, 0])?;
    let y = cx.op("MatMul", &[x, w])?;
    Ok(vec![cx.sum(y, &[node.opt_input(5)])?])
}

/// The elements of `bits` bits in each row of bytes, the lowest first.
pub(super) fn unpacked(cx: &mut Importer<'_, '_>, x: ValueId, bits: i64) -> Made {
    if bits == 8 {
        return Ok(x);
    }
    if cx.tensor_ty(x)?.dtype != DType::U8 {
        return Err(Fault::invalid("packed elements must be in ui8"));
    }
    let byte = |cx: &mut Importer<'_, '_>, i: i64| cx.constant(of_ir::Tensor::scalar(i as u8));
    let mask = byte(cx, (1 << bits) - 1)?;
    let mut parts = Vec::new();
    for i in 0..8 / bits {
        let mut part = x;
        if i > 0 {
            let by = byte(cx, i * bits)?;
            part = cx.rw.create_one(of_ops::elementwise::Shr {}, &[part, by])?;
        }
        let part = cx.op("BitwiseAnd", &[part, mask])?;
        parts.push(cx.unsqueeze(part, &[2])?);
    }
    let all = cx.concat(&parts, 2)?;
    cx.reshape(all, &[0, -1])
}

/// `GatherBlockQuantized`: rows of a table that is stored in few bits, with a scale and a zero point for each block of
/// a row.
pub(super) fn gather_blocks(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let bits: i64 = node.attrs.take("bits")?.unwrap_or(4);
    let block: i64 = node.attrs.take("block_size")?.unwrap_or(128);
    let (gathered, blocked) =
        (node.attrs.take("gather_axis")?.unwrap_or(0), node.attrs.take("quantize_axis")?.unwrap_or(1));
    node.done()?;
    let (table, ids, scales) = (node.input(0)?, node.input(1)?, node.input(2)?);
    if cx.rank(table)? != 2 || ![0, -2].contains(&gathered) || ![1, -1].contains(&blocked) {
        return Err(Fault::unsupported("anything but rows of a matrix with blocks along them"));
    }
    let (stored, dtype) = (cx.tensor_ty(table)?.dtype, cx.tensor_ty(scales)?.dtype);
    let packed = stored == DType::U8;
    if packed && ![2, 4, 8].contains(&bits) {
        return Err(Fault::unsupported(format!("a table of {bits} bits")));
    }
    let width = cx.need_dim(table, 1, "the table")? * if packed { 8 / bits } else { 1 };
    if block < 1 || width % block != 0 {
        return Err(Fault::unsupported(format!("rows of {width} in blocks of {block}")));
    }
    let flat = cx.reshape(ids, &[-1])?;
    let rows = |cx: &mut Importer<'_, '_>, x| cx.op_with("Gather", &[x, flat], [("axis", Attr::Int(0))]);
    let real = |cx: &mut Importer<'_, '_>, x| {
        let x = rows(cx, x)?;
        let x = if packed { unpacked(cx, x, bits)? } else { x };
        cx.cast(x, dtype)
    };
    let blocks = width / block;
    let x = real(cx, table)?;
    let x = cx.reshape(x, &[0, blocks, block])?;
    let zero = match node.opt_input(3) {
        Some(zero) => {
            let zero = real(cx, zero)?;
            // The last byte may be part full.
            let zero = cx.slice(zero, 1, 0, blocks)?;
            cx.unsqueeze(zero, &[2])?
        }
        None => cx.number(if packed { (1 << (bits - 1)) as f64 } else { 0.0 }, x)?,
    };
    let scales = rows(cx, scales)?;
    let scales = cx.unsqueeze(scales, &[2])?;
    let x = cx.op("Sub", &[x, zero])?;
    let x = cx.op("Mul", &[x, scales])?;
    let (dims, width) = (cx.op("Shape", &[ids])?, cx.ints(&[width])?);
    let dims = cx.concat(&[dims, width], 0)?;
    Ok(vec![cx.op("Reshape", &[x, dims])?])
}

/// `MatMulInteger16`: the product of 16-bit integers in i32.
pub(super) fn matmul_integer_16(cx: &mut Importer<'_, '_>, node: Node<'_>) -> Values {
    node.done()?;
    let to = match cx.tensor_ty(node.input(0)?)?.dtype {
        DType::U16 => DType::U32,
        _ => DType::I32,
    };
    let (a, b) = (cx.cast(node.input(0)?, to)?, cx.cast(node.input(1)?, to)?);
    Ok(vec![cx.op("MatMul", &[a, b])?])
}

/// `CDist`: the distances of all rows of one matrix to all rows of another.
pub(super) fn cdist(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> Values {
    let metric: Option<std::sync::Arc<str>> = node.attrs.take("metric")?;
    node.done()?;
    let (a, b) = (cx.unsqueeze(node.input(0)?, &[1])?, cx.unsqueeze(node.input(1)?, &[0])?);
    let difference = cx.op("Sub", &[a, b])?;
    let op = match metric.as_deref() {
        None | Some("sqeuclidean") => "ReduceSumSquare",
        Some("euclidean") => "ReduceL2",
        Some(other) => return Err(Fault::unsupported(format!("the metric {other}"))),
    };
    let axis = cx.ints(&[2])?;
    Ok(vec![cx.op_with(op, &[difference, axis], [("keepdims", Attr::Int(0))])?])
}
