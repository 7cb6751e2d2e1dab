//! Attribute mapping: ops whose ONNX operator has an attribute where the op has an operand, or another name.

use of_ir::{Attr, DType, Elements, Graph, OpData, OpId, Tensor, ValueId};
use of_ops::list::as_op;
use of_ops::ml::{LabelMap, PairwiseCoupling, TreeEnsemble};
use of_ops::random::{Multinomial, RandomNormal, RandomUniform};
use of_ops::structural::{OptimizationBarrier, ShapeOf};
use of_ops::training::Gradient;

use super::attribute::attribute;
use crate::proto::AttributeProto;

/// An ONNX operator with its operands and attributes, as it is exported.
pub(super) struct AttributeMapping {
    /// Its name, with its domain.
    pub operator: &'static str,
    pub operands: Vec<ValueId>,
    pub attributes: Vec<AttributeProto>,
}

/// The attribute mapping of an op that needs one; `None` for all others. `name` returns the names of values.
///
/// # Errors
/// When the operator cannot say what the op does.
pub(super) fn attribute_mapping(
    g: &Graph,
    id: OpId,
    name: &mut dyn FnMut(ValueId) -> String,
) -> Option<Result<AttributeMapping, String>> {
    let data = g.op(id);
    let random = |op: [&'static str; 2], dtype: DType, seed: i64, numbers: [(&str, f64); 2]| {
        let (operator, operands, shape) = shaped(g, data, op)?;
        let mut attrs = vec![("dtype", Attr::DType(dtype)), ("seed", self::seed(seed)?)];
        attrs.extend(numbers.map(|(name, x)| (name, Attr::Float(x))));
        attrs.extend(shape.map(|s| ("shape", Attr::Ints(s))));
        mapping(operator, operands, &attrs)
    };
    let same = data.operands.to_vec();
    if as_op::<OptimizationBarrier>(g, id).is_some() {
        return Some(mapping("Identity", same, &[]));
    }
    if let Some(op) = as_op::<RandomUniform>(g, id) {
        let operators = ["RandomUniform", "RandomUniformLike"];
        return Some(random(operators, op.dtype, op.seed, [("low", op.low), ("high", op.high)]));
    }
    if let Some(op) = as_op::<RandomNormal>(g, id) {
        let operators = ["RandomNormal", "RandomNormalLike"];
        return Some(random(operators, op.dtype, op.seed, [("mean", op.mean), ("scale", op.scale)]));
    }
    if let Some(op) = as_op::<Multinomial>(g, id) {
        let mapped = seed(op.seed).and_then(|seed| {
            let size = Attr::Int(op.sample_size);
            mapping("Multinomial", same, &[("dtype", Attr::DType(op.dtype)), ("sample_size", size), ("seed", seed)])
        });
        return Some(mapped);
    }
    if let Some(op) = as_op::<LabelMap>(g, id) {
        let tensors = [("keys_tensor", op.keys), ("values_tensor", op.values), ("default_tensor", op.default)];
        return Some(mapping("ai.onnx.ml::LabelEncoder", same, &tensors.map(|(name, t)| (name, Attr::Tensor(t)))));
    }
    if as_op::<Gradient>(g, id).is_some() {
        let (y, xs) = same.split_first()?;
        let names = xs.iter().map(|x| name(*x).into()).collect();
        let attrs = [("xs", Attr::Strs(names)), ("y", Attr::Str(name(*y).into()))];
        return Some(mapping("ai.onnx.preview.training::Gradient", xs.to_vec(), &attrs));
    }
    if let Some(op) = as_op::<PairwiseCoupling>(g, id) {
        return Some(coupling(op.classes).and_then(|attrs| mapping("ai.onnx.ml::SVMClassifier", same, &attrs)));
    }
    let trees = as_op::<TreeEnsemble>(g, id)?;
    let dtype = g.ty(*data.operands.first()?).as_tensor()?.dtype;
    Some(ensemble(&trees, dtype).and_then(|attrs| mapping("ai.onnx.ml::TreeEnsemble", same, &attrs)))
}

fn mapping(operator: &'static str, operands: Vec<ValueId>, attrs: &[(&str, Attr)]) -> Result<AttributeMapping, String> {
    let attributes = attrs.iter().map(|(name, value)| attribute(name, value)).collect::<Result<_, _>>()?;
    Ok(AttributeMapping { operator, operands, attributes })
}

type Shaped = (&'static str, Vec<ValueId>, Option<Vec<i64>>);

/// The shape of random numbers: an attribute of the first operator, or that of the operand of the second.
fn shaped(g: &Graph, data: &OpData, [given, like]: [&'static str; 2]) -> Result<Shaped, String> {
    let shape = data.operands.first().ok_or("it has no shape")?;
    if let Some(shape) = g.constant(*shape).and_then(|t| t.to_i64s()) {
        return Ok((given, Vec::new(), Some(shape)));
    }
    match whole_shape(g, *shape) {
        Some(x) => Ok((like, vec![x], None)),
        None => Err("its shape is no constant and that of no value".into()),
    }
}

/// The value that `shape` is the shape of, all of it.
pub(super) fn whole_shape(g: &Graph, shape: ValueId) -> Option<ValueId> {
    let op = g.def_op(shape)?;
    let whole = as_op::<ShapeOf>(g, op)? == ShapeOf { start: None, end: None };
    g.op(op).operands.first().copied().filter(|_| whole)
}

/// Seeds are floats in ONNX.
fn seed(seed: i64) -> Result<Attr, String> {
    let x = seed as f32;
    if x as i64 == seed { Ok(Attr::Float(x.into())) } else { Err(format!("its seed {seed} is not a 32-bit float")) }
}

/// The attributes of a support vector machine whose score of a pair is its feature, which is the logarithm of the odds
/// against the first of the pair (`graph` writes how that comes of its probability): its probabilities are the coupled ones.
///
/// Each pair has a vector, which belongs to the first of the pair: a unit vector, so that the linear kernel picks the
/// feature out.
fn coupling(classes: i64) -> Result<Vec<(&'static str, Attr)>, String> {
    /// The vectors have as many numbers as there are pairs of pairs.
    const MAX_CLASSES: usize = 64;
    let k = usize::try_from(classes).unwrap_or(usize::MAX);
    if k > MAX_CLASSES {
        return Err(format!("a support vector machine of {classes} classes would be absurdly large"));
    }
    let pairs = k * (k - 1) / 2;
    let mut unit = vec![0.0; pairs * pairs];
    (0..pairs).for_each(|p| unit[p * pairs + p] = 1.0);
    // Pair (i, j) weighs the vectors of i by row j - 1 of the coefficients.
    let mut weights = vec![0.0; (k - 1) * pairs];
    let of_pairs = (0..k).flat_map(|i| (i + 1..k).map(move |j| j - 1));
    of_pairs.enumerate().for_each(|(vector, row)| weights[row * pairs + vector] = 1.0);
    Ok(vec![
        ("classlabels_ints", Attr::Ints((0..classes).collect())),
        ("coefficients", Attr::Floats(weights)),
        ("kernel_params", Attr::Floats(vec![0.0; 3])),
        ("kernel_type", Attr::Str("LINEAR".into())),
        ("prob_a", Attr::Floats(vec![1.0; pairs])),
        ("prob_b", Attr::Floats(vec![0.0; pairs])),
        ("rho", Attr::Floats(vec![0.0; pairs])),
        ("support_vectors", Attr::Floats(unit)),
        ("vectors_per_class", Attr::Ints((0..classes).map(|i| classes - 1 - i).collect())),
    ])
}

/// The attributes of `TreeEnsemble` for trees over features of type `dtype`.
///
/// A leaf has one vote there, so trees whose leaves have several come once for each; and a tree is no leaf, so one that
/// is gets a node that leads to it either way.
fn ensemble(op: &TreeEnsemble, dtype: DType) -> Result<Vec<(&'static str, Attr)>, String> {
    let leaves = op.leaves.len();
    let votes = |leaf: usize| {
        let at = |i: usize| op.leaves.get(i).map_or(op.vote_targets.len(), |b| *b as usize);
        at(leaf)..at(leaf + 1)
    };
    let most = (0..leaves).map(|l| votes(l).len()).max().unwrap_or(1).max(1);
    let summed = matches!(&*op.aggregate, "SUM" | "AVERAGE");
    if !summed && (0..leaves).any(|l| votes(l).is_empty()) {
        return Err("a leaf without a vote has no place among smallest and largest votes".into());
    }
    // With several copies of each tree the average is that of other trees.
    let (aggregate, scale) = match &*op.aggregate {
        "AVERAGE" if most == 1 => (0, 1.0),
        "AVERAGE" => (1, 1.0 / op.roots.len().max(1) as f64),
        "SUM" => (1, 1.0),
        "MIN" => (2, 1.0),
        _ => (3, 1.0),
    };
    let (mut roots, mut features, mut modes, mut splits) = (vec![], vec![], vec![], vec![]);
    let (mut missing, mut targets, mut weights, mut members) = (vec![], vec![], vec![], vec![]);
    let (mut yes, mut no) = (vec![], vec![]);
    for vote in 0..most {
        let (first_node, first_leaf) = (features.len() as i64, targets.len() as i64);
        let moved = |b: &i64| if *b < 0 { b - first_leaf } else { b + first_node };
        features.extend(&op.features);
        modes.extend(&op.modes);
        splits.extend(op.splits.iter().zip(&op.modes).map(|(s, m)| threshold(*s, *m, dtype)));
        missing.extend(&op.missing_true);
        yes.extend(op.on_true.iter().map(moved));
        no.extend(op.on_false.iter().map(moved));
        for (i, _) in op.modes.iter().enumerate().filter(|(_, m)| **m == 6) {
            let at = |i: usize| op.sets.get(i).map_or(op.members.len(), |b| *b as usize);
            members.extend(op.members[at(i)..at(i + 1)].iter().filter(|m| !m.is_nan()));
            members.push(f64::NAN);
        }
        for leaf in 0..leaves {
            // The smallest and the largest vote stay what they are when a vote comes twice; a sum does not.
            let own = votes(leaf).nth(vote).or_else(|| votes(leaf).next().filter(|_| !summed));
            targets.push(own.map_or(0, |v| op.vote_targets[v]));
            weights.push(own.map_or(0.0, |v| op.vote_weights[v] * scale));
        }
        for root in &op.roots {
            let root = moved(root);
            if root >= 0 {
                roots.push(root);
                continue;
            }
            roots.push(features.len() as i64);
            features.push(0);
            modes.push(0);
            splits.push(0.0);
            missing.push(0);
            yes.push(root);
            no.push(root);
        }
    }
    let numbers = |v: Vec<f64>| tensor(dtype, Elements::Float(v));
    let to = |b: &[i64]| Attr::Ints(b.iter().map(|b| if *b < 0 { -1 - b } else { *b }).collect());
    let leaf = |b: &[i64]| Attr::Ints(b.iter().map(|b| i64::from(*b < 0)).collect());
    let modes = tensor(DType::U8, Elements::Int(modes.into_iter().map(i128::from).collect()))?;
    let mut attrs = vec![
        ("aggregate_function", Attr::Int(aggregate)),
        ("leaf_targetids", Attr::Ints(targets)),
        ("leaf_weights", numbers(weights)?),
        ("n_targets", Attr::Int(op.targets)),
        ("nodes_falseleafs", leaf(&no)),
        ("nodes_falsenodeids", to(&no)),
        ("nodes_featureids", Attr::Ints(features)),
        ("nodes_missing_value_tracks_true", Attr::Ints(missing)),
        ("nodes_modes", modes),
        ("nodes_splits", numbers(splits)?),
        ("nodes_trueleafs", leaf(&yes)),
        ("nodes_truenodeids", to(&yes)),
        ("tree_roots", Attr::Ints(roots)),
    ];
    if !members.is_empty() {
        attrs.push(("membership_values", numbers(members)?));
    }
    Ok(attrs)
}

fn tensor(dtype: DType, elements: Elements) -> Result<Attr, String> {
    let n = match &elements {
        Elements::Float(v) => v.len(),
        Elements::Int(v) => v.len(),
        Elements::Str(v) => v.len(),
    };
    Tensor::from_elements(dtype, vec![n], elements).map(Attr::Tensor).map_err(|e| e.to_string())
}

/// A threshold among the numbers of type `dtype` that decides for all of them as `split` does in a node of mode `mode`.
fn threshold(split: f64, mode: i64, dtype: DType) -> f64 {
    let near = split as f32;
    if dtype != DType::F32 || f64::from(near) == split || split.is_nan() {
        return split;
    }
    let (below, above) = if f64::from(near) < split { (near, near.next_up()) } else { (near.next_down(), near) };
    match mode {
        0 | 3 => below.into(),
        1 | 2 => above.into(),
        // No number equals it, and none NaN.
        _ => f64::NAN,
    }
}
