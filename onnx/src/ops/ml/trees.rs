//! Ensembles of decision trees.

use std::collections::HashMap;
use std::sync::Arc;

use of_ir::{Attr, DType, Tensor, ValueId};
use of_ops::ml::TreeEnsemble;

use super::{
    best, both_signs, cast, class_labels, floats, list, matrix, nothing_left, pair, post_transform, transform,
};
use crate::import::{ImportError, ImportResult, Importer, Node};

/// The comparisons in the order of their numbers.
const MODES: [&str; 7] =
    ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"];

/// What `aggregate_function` and `post_transform` are as numbers.
const AGGREGATES: [&str; 4] = ["AVERAGE", "SUM", "MIN", "MAX"];
const TRANSFORMS: [&str; 5] = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"];

/// The name with a number.
fn named(node: &mut Node<'_>, name: &str, names: &[&'static str], default: i64) -> Result<&'static str, ImportError> {
    let i: i64 = node.attrs.take(name)?.unwrap_or(default);
    let found = usize::try_from(i).ok().and_then(|i| names.get(i).copied());
    found.ok_or_else(|| ImportError::invalid(format!("{name} is {i}")))
}

/// The required tensor of numbers called `name`.
fn numbers(node: &mut Node<'_>, name: &str) -> Result<Vec<f64>, ImportError> {
    let t: Option<Tensor> = node.attrs.take(name)?;
    t.and_then(|t| t.to_f64s())
        .ok_or_else(|| ImportError::invalid(format!("attribute '{name}' must be a tensor of numbers")))
}

/// Operand 0 as floats: those that it has, or f32.
fn input(cx: &mut Importer<'_, '_>, node: &Node<'_>) -> Result<ValueId, ImportError> {
    let x = node.input(0)?;
    if cx.tensor_ty(x)?.dtype.is_float() { Ok(x) } else { cast(cx, x, DType::F32) }
}

/// `TreeEnsemble`.
pub(super) fn ensemble(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let x = input(cx, &node)?;
    let modes: Vec<i64> = numbers(&mut node, "nodes_modes")?.into_iter().map(|m| m as i64).collect();
    let features: Vec<i64> = list(&mut node, "nodes_featureids")?;
    let branch = |node: &mut Node<'_>, way: &str| -> Result<Vec<i64>, ImportError> {
        let to: Vec<i64> = list(node, &format!("nodes_{way}nodeids"))?;
        let leafs: Vec<i64> = list(node, &format!("nodes_{way}leafs"))?;
        if leafs.len() != to.len() || to.iter().any(|b| *b < 0) {
            return Err(ImportError::invalid(format!("nodes_{way}nodeids and nodes_{way}leafs do not fit")));
        }
        Ok(to.iter().zip(&leafs).map(|(b, leaf)| if *leaf != 0 { -1 - b } else { *b }).collect())
    };
    let (on_true, on_false) = (branch(&mut node, "true")?, branch(&mut node, "false")?);
    // The sets of members are in the order of their nodes, each closed by NaN.
    let all: Option<Tensor> = node.attrs.take("membership_values")?;
    let all = all.and_then(|t| t.to_f64s()).unwrap_or_default();
    let (mut sets, mut members) = (Vec::new(), Vec::new());
    let mut rest = all.as_slice();
    for mode in &modes {
        sets.push(members.len() as i64);
        if *mode == 6 {
            let end = rest.iter().position(|v| v.is_nan());
            let end = end.ok_or_else(|| ImportError::invalid("membership_values lacks the set of a node"))?;
            members.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
        }
    }
    let weights = numbers(&mut node, "leaf_weights")?;
    let missing: Vec<i64> = list(&mut node, "nodes_missing_value_tracks_true")?;
    node.attrs.drop("nodes_hitrates");
    let op = TreeEnsemble {
        roots: list(&mut node, "tree_roots")?,
        missing_true: if missing.is_empty() { vec![0; features.len()] } else { missing },
        features,
        modes,
        splits: numbers(&mut node, "nodes_splits")?,
        on_true,
        on_false,
        sets,
        members,
        leaves: (0..weights.len() as i64).collect(),
        vote_targets: list(&mut node, "leaf_targetids")?,
        vote_weights: weights,
        targets: node.attrs.take("n_targets")?.unwrap_or(1),
        aggregate: named(&mut node, "aggregate_function", &AGGREGATES, 1)?.into(),
    };
    let kind = named(&mut node, "post_transform", &TRANSFORMS, 0)?;
    nothing_left(&node)?;
    let y = cx.rw.create_one(op, &[x])?;
    Ok(vec![transform(cx, kind, y)?])
}

/// The trees of the older operators, whose votes are called `votes` (`class` or `target`).
fn old_form(node: &mut Node<'_>, votes: &str, targets: i64, aggregate: Arc<str>) -> Result<TreeEnsemble, ImportError> {
    let (trees, ids) = (list::<Vec<i64>>(node, "nodes_treeids")?, list::<Vec<i64>>(node, "nodes_nodeids")?);
    let modes: Vec<Arc<str>> = list(node, "nodes_modes")?;
    let values = floats(node, "nodes_values")?;
    let features: Vec<i64> = list(node, "nodes_featureids")?;
    let (yes, no) = (list::<Vec<i64>>(node, "nodes_truenodeids")?, list::<Vec<i64>>(node, "nodes_falsenodeids")?);
    let missing: Vec<i64> = list(node, "nodes_missing_value_tracks_true")?;
    node.attrs.drop("nodes_hitrates");
    node.attrs.drop("nodes_hitrates_as_tensor");
    let n = ids.len();
    if [trees.len(), modes.len(), values.len(), features.len(), yes.len(), no.len()].iter().any(|l| *l != n) {
        return Err(ImportError::invalid("the lists of a tree ensemble's nodes must be of one length"));
    }
    let (vote_trees, vote_nodes) =
        (list::<Vec<i64>>(node, &format!("{votes}_treeids"))?, list::<Vec<i64>>(node, &format!("{votes}_nodeids"))?);
    let (vote_ids, weights) =
        (list::<Vec<i64>>(node, &format!("{votes}_ids"))?, floats(node, &format!("{votes}_weights"))?);
    if [vote_nodes.len(), vote_ids.len(), weights.len()].iter().any(|l| *l != vote_trees.len()) {
        return Err(ImportError::invalid("the lists of a tree ensemble's votes must be of one length"));
    }
    let mut of_leaf: HashMap<(i64, i64), Vec<usize>> = HashMap::new();
    for (i, (tree, id)) in vote_trees.iter().zip(&vote_nodes).enumerate() {
        of_leaf.entry((*tree, *id)).or_default().push(i);
    }
    let mut op = TreeEnsemble {
        roots: vec![],
        features: vec![],
        modes: vec![],
        splits: vec![],
        on_true: vec![],
        on_false: vec![],
        missing_true: vec![],
        sets: vec![],
        members: vec![],
        leaves: vec![],
        vote_targets: vec![],
        vote_weights: vec![],
        targets,
        aggregate,
    };
    // First a place for every node among nodes or leaves, then the branches between the places.
    let mut places: HashMap<(i64, i64), i64> = HashMap::new();
    let mut nodes = Vec::new();
    for i in 0..n {
        let key = (trees[i], ids[i]);
        let place = if &*modes[i] == "LEAF" {
            op.leaves.push(op.vote_targets.len() as i64);
            for vote in of_leaf.get(&key).into_iter().flatten() {
                op.vote_targets.push(vote_ids[*vote]);
                op.vote_weights.push(weights[*vote]);
            }
            -(op.leaves.len() as i64)
        } else {
            nodes.push(i);
            nodes.len() as i64 - 1
        };
        // The first node of a tree is its root.
        if i == 0 || !trees[..i].contains(&trees[i]) {
            op.roots.push(place);
        }
        if places.insert(key, place).is_some() {
            return Err(ImportError::invalid(format!("node {} of tree {} is given twice", key.1, key.0)));
        }
    }
    let place = |tree: i64, id: i64| {
        let found = places.get(&(tree, id)).copied();
        found.ok_or_else(|| ImportError::invalid(format!("tree {tree} has no node {id}")))
    };
    for i in nodes {
        let mode = MODES.iter().position(|m| *m == &*modes[i]);
        let mode =
            mode.filter(|m| *m < 6).ok_or_else(|| ImportError::invalid(format!("mode '{}' is not known", modes[i])))?;
        op.modes.push(mode as i64);
        op.features.push(features[i]);
        op.splits.push(values[i]);
        op.on_true.push(place(trees[i], yes[i])?);
        op.on_false.push(place(trees[i], no[i])?);
        op.missing_true.push(missing.get(i).copied().unwrap_or(0));
    }
    Ok(op)
}

/// The sum with `base_values`, of which there may be one for all.
fn with_base(cx: &mut Importer<'_, '_>, y: ValueId, base: Vec<f64>) -> Result<ValueId, ImportError> {
    if base.is_empty() {
        return Ok(y);
    }
    let dtype = cx.tensor_ty(y)?.dtype;
    let base = matrix(cx, dtype, &[base.len()], base)?;
    pair(cx, "Add", y, base)
}

/// `TreeEnsembleRegressor`.
pub(super) fn regressor(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let x = input(cx, &node)?;
    let targets: i64 = node.attrs.take("n_targets")?.unwrap_or(1);
    let aggregate: Option<Arc<str>> = node.attrs.take("aggregate_function")?;
    let op = old_form(&mut node, "target", targets, aggregate.unwrap_or_else(|| "SUM".into()))?;
    let base = floats(&mut node, "base_values")?;
    let y = cx.rw.create_one(op, &[x])?;
    let y = with_base(cx, y, base)?;
    let y = post_transform(cx, &mut node, y)?;
    nothing_left(&node)?;
    Ok(vec![cast(cx, y, DType::F32)?])
}

/// `TreeEnsembleClassifier`: the class with the largest score. Where all votes are for one of two classes, the score of
/// the other is what is left.
pub(super) fn classifier(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let x = input(cx, &node)?;
    let labels = class_labels(&mut node, "classlabels_strings", "classlabels_int64s")?;
    if labels.len() < 2 {
        return Err(ImportError::unsupported("a classifier of one class"));
    }
    let mut op = old_form(&mut node, "class", labels.len() as i64, "SUM".into())?;
    let base = floats(&mut node, "base_values")?;
    let kind: Option<Arc<str>> = node.attrs.take("post_transform")?;
    let kind = kind.as_deref().unwrap_or("NONE").to_owned();
    nothing_left(&node)?;
    let single = labels.len() == 2 && op.vote_targets.windows(2).all(|p| p[0] == p[1]);
    let scores = if single {
        op.vote_targets.iter_mut().for_each(|t| *t = 0);
        op.targets = 1;
        let s = cx.rw.create_one(op, &[x])?;
        let s = with_base(cx, s, base.last().copied().into_iter().collect())?;
        if matches!(kind.as_str(), "NONE" | "PROBIT") {
            let one = cx.number(1.0, s)?;
            let other = pair(cx, "Sub", one, s)?;
            cx.emit_one("Concat", &[Some(other), Some(s)], [("axis", Attr::Int(-1))])?
        } else {
            both_signs(cx, s)?
        }
    } else {
        let s = cx.rw.create_one(op, &[x])?;
        with_base(cx, s, base)?
    };
    let z = transform(cx, &kind, scores)?;
    let y = best(cx, labels, z)?;
    Ok(vec![y, cast(cx, z, DType::F32)?])
}
