//! A new last layer, for a model that was trained on other classes.

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Attr, Elements, Func, Graph, IdSet, Module, OpId, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::contraction::{Gemm, MatMul};
use of_ops::elementwise::Add;
use of_ops::list::as_op;
use of_ops::movement::Transpose;
use of_ops::reduction::{LogSoftmax, Softmax};
use of_ops::sample::Rng;

use super::weights::{Weight, weights};
use super::{output_index, parameters, plain};

/// The last layer of a model that got a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The name of its weight.
    pub weight: String,
    /// The name of its bias, if it has one.
    pub bias: Option<String>,
    /// The scores that it gave before.
    pub scores: usize,
}

/// Puts new values into the last linear layer of a model, which then gives `scores` numbers for each sample. They are random as those of
/// PyTorch's `Linear`: uniform in ±1 / sqrt(inputs). A softmax may follow the layer. `output` is the one that the layer is of; `None` is the
/// first.
///
/// # Errors
/// When another op gives the output, or the weights of the layer have other readers.
pub fn reset_head(module: &mut Module, output: Option<&str>, scores: usize, seed: u64) -> Result<Head, Diagnostics> {
    let func = module.main_mut().ok_or_else(|| plain(Code::NAME, "the module has no function".into()))?;
    let index = output_index(func, output)?;
    let layer = last_layer(func, index, scores)?;
    let (weight, inputs) = (&layer.weight, layer.weight.value.dims()[layer.weight.input_axis]);
    let before = weight.value.dims()[weight.output_axis];
    let bound = 1.0 / (inputs.max(1) as f64).sqrt();
    let mut rng = Rng::new(seed);
    let mut changed = Vec::new();
    let bias = layer.bias.iter().map(|(_, op, value)| (*op, value, value.dims().len().saturating_sub(1)));
    for (op, old, axis) in std::iter::once((weight.constant, &weight.value, weight.output_axis)).chain(bias) {
        let mut dims = old.dims().to_vec();
        dims[axis] = scores;
        let values = (0..dims.iter().product()).map(|_| rng.float(-bound, bound)).collect();
        let value = Tensor::from_elements(old.dtype(), dims, Elements::Float(values));
        let value = value.map_err(|e| plain(Code::TYPE, format!("the new layer of {scores} scores: {e}")))?;
        changed.push((op, value));
    }
    let head =
        Head { weight: weight.name.clone(), bias: layer.bias.as_ref().map(|(name, ..)| name.clone()), scores: before };
    for (op, value) in &changed {
        Rewriter::new(&mut func.graph, PASS).set_attr(*op, "value", Attr::Tensor(value.clone()));
    }
    infer_from(&mut func.graph, changed.into_iter().map(|(op, _)| op))?;
    Ok(head)
}

/// What locations call the rewrite.
const PASS: &str = "reset-head";

/// A linear layer.
struct Layer {
    weight: Weight,
    /// Name, constant and value.
    bias: Option<(String, OpId, Tensor)>,
}

/// The linear layer that an output comes from.
fn last_layer(func: &Func, index: usize, scores: usize) -> Result<Layer, Diagnostic> {
    let g = &func.graph;
    let name = &func.outputs[index];
    let unfit = |loc: &Location, what: String| {
        let what = format!("the last layer of output '{name}' cannot be replaced: {what}");
        Diagnostic::error(Code::UNSUPPORTED, loc.clone(), what).hint(format!("export the model with {scores} scores"))
    };
    let parameters = parameters::parameters(g, &[]);
    let parameter = |v: ValueId| parameters.iter().find(|(_, op, _)| g.def_op(v) == Some(*op)).cloned();
    let (mut v, mut bias) = (g.outputs()[index], None);
    let layer = loop {
        let op = g.def_op(v).ok_or_else(|| unfit(&Location::Unknown, "it is an input".into()))?;
        let operands = &g.op(op).operands;
        if as_op::<Softmax>(g, op).is_some() || as_op::<LogSoftmax>(g, op).is_some() {
            v = operands[0];
            continue;
        }
        if as_op::<Add>(g, op).is_some()
            && bias.is_none()
            && let Some(at) = operands.iter().position(|operand| parameter(*operand).is_some())
        {
            (bias, v) = (parameter(operands[at]), operands[1 - at]);
            continue;
        }
        let is_product = as_op::<Gemm>(g, op).is_some() || as_op::<MatMul>(g, op).is_some();
        let right = operands.get(1).filter(|_| is_product).map(|v| untransposed(g, *v));
        let weight = weights(g).into_iter().find(|weight| Some(g.op(weight.constant).results[0]) == right);
        let weight = weight.filter(|weight| weight.is_matrix).ok_or_else(|| {
            unfit(&g.op(op).loc, format!("{} gives it, and no product with a matrix of weights", g.op(op).name()))
        })?;
        if let Some(added) = as_op::<Gemm>(g, op).and_then(|_| operands.get(2)).and_then(|v| parameter(*v)) {
            bias = Some(added);
        }
        break Layer { weight, bias };
    };
    let before = layer.weight.value.dims()[layer.weight.output_axis];
    let loc = &g.op(layer.weight.reader).loc;
    if let Some((name, _, value)) = layer.bias.as_ref().filter(|(_, _, value)| value.dims().last() != Some(&before)) {
        return Err(unfit(loc, format!("'{name}' of extents {:?} is no bias of {before} scores", value.dims())));
    }
    let constants = std::iter::once((&layer.weight.name, layer.weight.constant))
        .chain(layer.bias.iter().map(|(name, op, _)| (name, *op)));
    for (name, op) in constants {
        let readers = g.uses(g.op(op).results[0]).len();
        if readers > 1 {
            return Err(unfit(loc, format!("'{name}' is read {readers} times, and not by it alone")));
        }
    }
    Ok(layer)
}

/// What a transpose reads; otherwise the value itself.
fn untransposed(g: &Graph, v: ValueId) -> ValueId {
    let transpose = g.def_op(v).filter(|op| as_op::<Transpose>(g, *op).is_some());
    transpose.map_or(v, |op| g.op(op).operands[0])
}

/// Infers the types of some ops, and of all that depend on them.
fn infer_from(g: &mut Graph, ops: impl Iterator<Item = OpId>) -> Result<(), Diagnostic> {
    let first: Vec<OpId> = ops.collect();
    let mut changed: IdSet<ValueId> = IdSet::default();
    for op in g.region_ops(g.entry()).collect::<Vec<_>>() {
        let data = g.op(op);
        if !first.contains(&op) && !data.operands.iter().any(|v| changed.contains(v)) {
            continue;
        }
        let types = data.def.infer(&g.view(op)).map_err(|e| e.at(data.name(), &data.loc))?;
        let results = data.results.to_vec();
        for (v, mut ty) in results.into_iter().zip(types) {
            if let (Type::Tensor(TensorType { sbp, .. }), Type::Tensor(known)) = (&mut ty, g.ty(v)) {
                *sbp = known.sbp.clone();
            }
            changed.insert(v);
            Rewriter::new(g, PASS).set_type(v, ty);
        }
    }
    Ok(())
}
