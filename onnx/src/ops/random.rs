//! Random numbers.

use of_ir::{Attr, DType, Type, ValueId};
use of_ops::elementwise::{Cast, Lt};
use of_ops::random::{Multinomial, RandomNormal, RandomUniform};
use of_ops::structural::ShapeOf;

use super::compose::nothing_left;
use crate::import::{ImportError, ImportResult, Importer, Node};
use crate::tensor;

/// `RandomUniform`, of a shape given as an attribute.
pub(super) fn uniform(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let shape = shape(cx, &mut node)?;
    emit_uniform(cx, node, shape, DType::F32)
}

/// `RandomUniformLike`, of the shape of its input.
pub(super) fn uniform_like(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    let (shape, dtype) = like(cx, &node)?;
    emit_uniform(cx, node, shape, dtype)
}

/// `RandomNormal`, of a shape given as an attribute.
pub(super) fn normal(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let shape = shape(cx, &mut node)?;
    emit_normal(cx, node, shape, DType::F32)
}

/// `RandomNormalLike`, of the shape of its input.
pub(super) fn normal_like(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    let (shape, dtype) = like(cx, &node)?;
    emit_normal(cx, node, shape, dtype)
}

/// `Bernoulli`: 1 with the probability that the input says.
pub(super) fn bernoulli(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let p = node.input(0)?;
    let own = cx.tensor_ty(p)?.dtype;
    let to = dtype(&mut node, own)?;
    let seed = seed(cx, &mut node)?;
    nothing_left(&node)?;
    let shape = cx.rw.create_one(ShapeOf { start: None, end: None }, &[p])?;
    let drawn = cx.rw.create_one(RandomUniform { dtype: own, low: 0.0, high: 1.0, seed }, &[shape])?;
    let hit = cx.rw.create_one(Lt {}, &[drawn, p])?;
    Ok(vec![cx.rw.create_one(Cast::to(to), &[hit])?])
}

/// `Multinomial`.
pub(super) fn multinomial(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let logits = node.input(0)?;
    let dtype = dtype(&mut node, DType::I32)?;
    let sample_size: i64 = node.attrs.take("sample_size")?.unwrap_or(1);
    let seed = seed(cx, &mut node)?;
    nothing_left(&node)?;
    Ok(vec![cx.rw.create_one(Multinomial { dtype, sample_size, seed }, &[logits])?])
}

/// The seed of a node. One without a seed gets the number of such nodes before it, so that runs repeat and no two
/// nodes draw the same numbers.
pub(super) fn seed(cx: &mut Importer<'_, '_>, node: &mut Node<'_>) -> Result<i64, ImportError> {
    match node.attrs.take_any("seed")? {
        Some(Attr::Int(i)) => Ok(i),
        // NaN also means that no seed is given.
        Some(Attr::Float(x)) if !x.is_nan() => Ok(x as i64),
        None | Some(Attr::Float(_)) => Ok(cx.next_seed()),
        Some(_) => Err(ImportError::invalid("attribute 'seed' must be a number")),
    }
}

fn emit_uniform(cx: &mut Importer<'_, '_>, mut node: Node<'_>, shape: ValueId, dtype: DType) -> ImportResult {
    let dtype = self::dtype(&mut node, dtype)?;
    let (low, high) = (node.attrs.take("low")?.unwrap_or(0.0), node.attrs.take("high")?.unwrap_or(1.0));
    let seed = seed(cx, &mut node)?;
    nothing_left(&node)?;
    Ok(vec![cx.rw.create_one(RandomUniform { dtype, low, high, seed }, &[shape])?])
}

fn emit_normal(cx: &mut Importer<'_, '_>, mut node: Node<'_>, shape: ValueId, dtype: DType) -> ImportResult {
    let dtype = self::dtype(&mut node, dtype)?;
    let (mean, scale) = (node.attrs.take("mean")?.unwrap_or(0.0), node.attrs.take("scale")?.unwrap_or(1.0));
    let seed = seed(cx, &mut node)?;
    nothing_left(&node)?;
    Ok(vec![cx.rw.create_one(RandomNormal { dtype, mean, scale, seed }, &[shape])?])
}

/// The element type that the node specifies, or `default`.
fn dtype(node: &mut Node<'_>, default: DType) -> Result<DType, ImportError> {
    match node.attrs.take::<i64>("dtype")? {
        None | Some(0) => Ok(default),
        Some(i) => Ok(tensor::dtype(i)?),
    }
}

fn shape(cx: &mut Importer<'_, '_>, node: &mut Node<'_>) -> Result<ValueId, ImportError> {
    let shape: Option<Vec<i64>> = node.attrs.take("shape")?;
    cx.ints(&shape.ok_or_else(|| ImportError::invalid("attribute 'shape' is missing"))?)
}

/// Shape and element type of a node's input; f32 for one that is not floating-point.
fn like(cx: &mut Importer<'_, '_>, node: &Node<'_>) -> Result<(ValueId, DType), ImportError> {
    let x = node.input(0)?;
    let dtype = match cx.ty(x) {
        Type::Tensor(t) if t.dtype.is_float() => t.dtype,
        _ => DType::F32,
    };
    Ok((cx.rw.create_one(ShapeOf { start: None, end: None }, &[x])?, dtype))
}
