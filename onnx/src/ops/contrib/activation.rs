//! Activations with fused biases.

use std::sync::Arc;

use of_ir::{Attr, ValueId};
use of_ops::elementwise::Gelu;

use super::build::BuildResult;
use crate::import::{ImportError, ImportResult, Importer, Node};

/// `Gelu`: `x / 2 (1 + erf(x / sqrt 2))`.
pub(super) fn gelu(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    bias_gelu_of(cx, &node, false)
}

/// `BiasGelu`: `Gelu` of a sum.
pub(super) fn bias_gelu(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.input(1)?;
    bias_gelu_of(cx, &node, false)
}

/// `FastGelu`: the approximation by tanh, of `x` or of a sum.
pub(super) fn fast_gelu(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    bias_gelu_of(cx, &node, true)
}

fn bias_gelu_of(cx: &mut Importer<'_, '_>, node: &Node<'_>, tanh: bool) -> ImportResult {
    node.done()?;
    let x = cx.sum(node.input(0)?, &[node.opt_input(1)])?;
    Ok(vec![cx.rw.create_one(Gelu { tanh }, &[x])?])
}

/// `GemmFastGelu`: `FastGelu` of a product.
pub(super) fn gemm_fast_gelu(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let y = cx.op("MatMul", &[node.input(0)?, node.input(1)?])?;
    let y = cx.sum(y, &[node.opt_input(2)])?;
    Ok(vec![cx.rw.create_one(Gelu { tanh: true }, &[y])?])
}

/// `QuickGelu`: `x sigmoid(alpha x)`.
pub(super) fn quick_gelu(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let alpha = node.attrs.take("alpha")?.unwrap_or(f64::from(1.702_f32));
    node.done()?;
    Ok(vec![cx.op_with("Swish", &[node.input(0)?], [("alpha", Attr::Float(alpha))])?])
}

/// `BiasAdd`: `x + bias + skip`.
pub(super) fn bias_add(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    Ok(vec![cx.sum(node.input(0)?, &[Some(node.input(1)?), Some(node.input(2)?)])?])
}

/// `BiasSplitGelu`: `a gelu(b)`, where `a` and `b` are `x + bias` split in two along the last axis.
pub(super) fn bias_split_gelu(cx: &mut Importer<'_, '_>, node: Node<'_>) -> ImportResult {
    node.done()?;
    let x = cx.op("Add", &[node.input(0)?, node.input(1)?])?;
    let attrs = [("axis", Attr::Int(-1)), ("num_outputs", Attr::Int(2))];
    let parts = cx.op_many("Split", vec![Some(x)], attrs, 2)?;
    let [a, b] = parts[..] else { return Err(ImportError::invalid("a split in two has two results")) };
    let gate = cx.rw.create_one(Gelu { tanh: false }, &[b])?;
    Ok(vec![cx.op("Mul", &[a, gate])?])
}

/// `BiasSoftmax`: `softmax(x + bias)` over the axes from `axis` on, which are one.
pub(super) fn bias_softmax(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let axis: i64 = node.attrs.take("axis")?.unwrap_or(1);
    // How the bias broadcasts; where its shape has ones already there is nothing to say.
    let inner: bool = node.attrs.take_flag("is_inner_broadcast")?.unwrap_or(false);
    node.done()?;
    let (x, bias) = (node.input(0)?, node.input(1)?);
    let (rank, narrow) = (cx.rank(x)?, cx.rank(bias)?);
    if inner && rank != narrow {
        return Err(ImportError::unsupported("an inner broadcast of a bias of another rank"));
    }
    if of_ops::shape::axis(axis, rank)? + 1 != rank {
        return Err(ImportError::unsupported("a softmax of several axes"));
    }
    let x = cx.op("Add", &[x, bias])?;
    Ok(vec![cx.op_with("Softmax", &[x], [("axis", Attr::Int(-1))])?])
}

/// Applies the activation that the attributes `activation…` name, with its parameters.
pub(super) fn fused(cx: &mut Importer<'_, '_>, node: &mut Node<'_>, x: ValueId) -> BuildResult {
    let name: Option<Arc<str>> = node.attrs.take("activation")?;
    let mut parameters: Vec<f64> = node.attrs.take("activation_params")?.unwrap_or_default();
    for name in ["activation_alpha", "activation_beta", "activation_gamma"] {
        parameters.extend(node.attrs.take::<f64>(name)?);
    }
    let (first, second) = (parameters.first().copied(), parameters.get(1).copied());
    let number = |name, value: Option<f64>| value.map(|v| (name, Attr::Float(v)));
    match name.as_deref() {
        None | Some("") => Ok(x),
        Some(op @ ("Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign" | "HardSwish")) => cx.op(op, &[x]),
        Some(op @ ("LeakyRelu" | "Elu" | "ThresholdedRelu")) => cx.op_with(op, &[x], number("alpha", first)),
        Some("HardSigmoid") => {
            let attrs = number("alpha", first).into_iter().chain(number("beta", second));
            cx.op_with("HardSigmoid", &[x], attrs)
        }
        Some("Selu") => {
            let attrs = number("alpha", first).into_iter().chain(number("gamma", second));
            cx.op_with("Selu", &[x], attrs)
        }
        Some("Clip") => {
            let mut bounds = Vec::new();
            for bound in [first, second] {
                bounds.push(match bound {
                    Some(bound) => Some(cx.number(bound, x)?),
                    None => None,
                });
            }
            cx.emit_one("Clip", &[Some(x), bounds[0], bounds[1]], [])
        }
        Some(other) => Err(ImportError::unsupported(format!("the activation {other}"))),
    }
}
