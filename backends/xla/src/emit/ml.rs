//! Classical machine learning: decision trees, and class probabilities from pairwise ones. Both compute in f64, as they are defined.

use of_ir::{DType, OpId, Tensor};
use of_ops::ml::{PairwiseCoupling, TreeEnsemble};

use super::{Emitter, Table, Val};

/// Ops of this file.
pub const TABLE: Table = &[("of.pairwise_coupling", pairwise_coupling), ("of.tree_ensemble", tree_ensemble)];

/// Numbers along one axis.
fn floats(e: &mut Emitter<'_>, list: &[f64]) -> Result<Val, String> {
    e.constant(&Tensor::from_slice(&[list.len()], list).map_err(|e| e.to_string())?)
}

fn tree_ensemble(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let trees = e.attrs::<TreeEnsemble>(op)?;
    let (x, (dtype, dims)) = (e.operand(op, 0)?, e.result(op, 0)?);
    if dims.contains(&0) || trees.roots.is_empty() || trees.vote_weights.is_empty() {
        return Ok(vec![e.splat(dtype, &dims, 0.0)]);
    }
    let x = e.convert(&x, DType::F64);
    let leaves = leaves(e, &trees, &x)?;
    let y = votes(e, &trees, &leaves, dims[1])?;
    Ok(vec![e.convert(&y, dtype)])
}

/// The leaf of each row in each tree. All rows descend together, one branch for each iteration, until all are at leaves.
fn leaves(e: &mut Emitter<'_>, trees: &TreeEnsemble, x: &Val) -> Result<Val, String> {
    let at = [x.dims[0], trees.roots.len()];
    let roots = e.int_list(&trees.roots)?;
    let roots = e.broadcast_to(&roots, &at);
    let (none, minus) = (e.splat(DType::I64, &at, 0.0), e.splat(DType::I64, &at, -1.0));
    let mut branch = roots;
    if !trees.features.is_empty() {
        let nodes = Nodes::of(e, trees)?;
        let down = e.while_loop(
            &[branch],
            |e, s| {
                let inner = e.compare("GE", &s[0], &none);
                Ok(e.reduce("or", &inner, &[0, 1], 0.0))
            },
            |e, s| {
                let inner = e.compare("GE", &s[0], &none);
                let node = e.binary("maximum", &s[0], &none);
                let yes = nodes.takes_true_branch(e, trees, x, &node)?;
                let (on_true, on_false) = (e.take(&nodes.on_true, &node, 0), e.take(&nodes.on_false, &node, 0));
                let next = e.select(&yes, &on_true, &on_false);
                Ok(vec![e.select(&inner, &next, &s[0])])
            },
        )?;
        branch = down[0].clone();
    }
    Ok(e.binary("subtract", &minus, &branch))
}

/// The nodes of all trees, as lists.
struct Nodes {
    features: Val,
    splits: Val,
    modes: Val,
    on_true: Val,
    on_false: Val,
    missing: Val,
    /// The range of members of each node's set, if there are sets.
    sets: Option<[Val; 3]>,
}

impl Nodes {
    fn of(e: &mut Emitter<'_>, trees: &TreeEnsemble) -> Result<Nodes, String> {
        let ends: Vec<i64> = trees.sets.iter().skip(1).copied().chain([trees.members.len() as i64]).collect();
        let sets = match trees.members.is_empty() || trees.sets.is_empty() {
            true => None,
            false => Some([e.int_list(&trees.sets)?, e.int_list(&ends)?, floats(e, &trees.members)?]),
        };
        Ok(Nodes {
            features: e.int_list(&trees.features)?,
            splits: floats(e, &trees.splits)?,
            modes: e.int_list(&trees.modes)?,
            on_true: e.int_list(&trees.on_true)?,
            on_false: e.int_list(&trees.on_false)?,
            missing: e.int_list(&trees.missing_true)?,
            sets,
        })
    }

    /// Whether each row takes the true branch at its node.
    fn takes_true_branch(&self, e: &mut Emitter<'_>, trees: &TreeEnsemble, x: &Val, node: &Val) -> Result<Val, String> {
        let row = e.iota(DType::I64, &node.dims, 0);
        let row = e.times(&row, x.dims[1]);
        let feature = e.take(&self.features, node, 0);
        let place = e.binary("add", &row, &feature);
        let flat = e.reshape(x, &[x.elements()]);
        let value = e.take(&flat, &place, 0);
        let split = e.take(&self.splits, node, 0);
        let mode = e.take(&self.modes, node, 0);
        let mut yes = e.splat(DType::Bool, &node.dims, 0.0);
        for (i, how) in ["LE", "LT", "GE", "GT", "EQ", "NE"].into_iter().enumerate() {
            if trees.modes.contains(&(i as i64)) {
                let own = e.compare(how, &value, &split);
                yes = where_mode(e, &mode, i, &own, &yes);
            }
        }
        if let (Some(sets), true) = (&self.sets, trees.modes.contains(&6)) {
            let own = member(e, sets, node, &value)?;
            yes = where_mode(e, &mode, 6, &own, &yes);
        }
        if trees.missing_true.iter().all(|m| *m == 0) {
            return Ok(yes);
        }
        let missing = e.take(&self.missing, node, 0);
        let zero = e.full_like(&missing, 0.0);
        let (missing, nan) = (e.compare("NE", &missing, &zero), e.compare("NE", &value, &value));
        let missing = e.binary("and", &missing, &nan);
        Ok(e.binary("or", &yes, &missing))
    }
}

/// `own` at nodes of a mode, elsewhere `other`.
fn where_mode(e: &mut Emitter<'_>, mode: &Val, is: usize, own: &Val, other: &Val) -> Val {
    let is = e.full_like(mode, is as f64);
    let here = e.compare("EQ", mode, &is);
    e.select(&here, own, other)
}

/// Whether each value is in the set of its node: each iteration compares one member of every set, until all sets are
/// exhausted.
fn member(e: &mut Emitter<'_>, [begins, ends, members]: &[Val; 3], node: &Val, value: &Val) -> Result<Val, String> {
    let (begin, end) = (e.take(begins, node, 0), e.take(ends, node, 0));
    let none = e.splat(DType::Bool, &node.dims, 0.0);
    let found = e.while_loop(
        &[begin, none],
        |e, s| {
            let more = e.compare("LT", &s[0], &end);
            Ok(e.reduce("or", &more, &[0, 1], 0.0))
        },
        |e, s| {
            let more = e.compare("LT", &s[0], &end);
            let own = e.take(members, &s[0], 0);
            let same = e.compare("EQ", &own, value);
            let hit = e.binary("and", &more, &same);
            let one = e.full_like(&s[0], 1.0);
            Ok(vec![e.binary("add", &s[0], &one), e.binary("or", &s[1], &hit)])
        },
    )?;
    Ok(found[1].clone())
}

/// The sum of the leaves' votes for each target.
fn votes(e: &mut Emitter<'_>, trees: &TreeEnsemble, leaves: &Val, targets: usize) -> Result<Val, String> {
    // The number of votes for each leaf is padded to the maximum; padding votes have no target.
    let votes = |leaf: usize| {
        let at = |i: usize| trees.leaves.get(i).map_or(trees.vote_weights.len(), |b| *b as usize);
        at(leaf)..at(leaf + 1)
    };
    let count = trees.leaves.len();
    let most = (0..count).map(|l| votes(l).len()).max().unwrap_or(0);
    let (mut target, mut weight) = (vec![-1; count * most], vec![0.0; count * most]);
    for leaf in 0..count {
        for (i, vote) in votes(leaf).enumerate() {
            target[leaf * most + i] = trees.vote_targets[vote];
            weight[leaf * most + i] = trees.vote_weights[vote];
        }
    }
    let list = |t: Result<Tensor, of_ir::TensorError>| t.map_err(|e| e.to_string());
    let target = e.constant(&list(Tensor::from_slice(&[count, most], &target))?)?;
    let weight = e.constant(&list(Tensor::from_slice(&[count, most], &weight))?)?;
    let all = [leaves.dims[0], leaves.dims[1], most, targets];
    let (target, weight) = (e.take(&target, leaves, 0), e.take(&weight, leaves, 0));
    let (target, weight) =
        (e.broadcast_in_dim(&target, &all, &[0, 1, 2]), e.broadcast_in_dim(&weight, &all, &[0, 1, 2]));
    let own = e.iota(DType::I64, &all, 3);
    let own = e.compare("EQ", &target, &own);
    let (name, start) = match &*trees.aggregate {
        "MIN" => ("minimum", f64::INFINITY),
        "MAX" => ("maximum", f64::NEG_INFINITY),
        _ => ("add", 0.0),
    };
    if name != "add" && trees.vote_weights.iter().any(|w| w.is_nan()) {
        return Err("a vote is NaN, which XLA propagates through minimum and maximum".into());
    }
    let nothing = e.full_like(&weight, start);
    let weight = e.select(&own, &weight, &nothing);
    let sum = e.reduce(name, &weight, &[1, 2], start);
    if name == "add" {
        let scale = if &*trees.aggregate == "AVERAGE" { 1.0 / trees.roots.len() as f64 } else { 1.0 };
        let scale = e.full_like(&sum, scale);
        return Ok(e.binary("multiply", &sum, &scale));
    }
    // A target without votes has score zero.
    let voted = e.reduce("or", &own, &[1, 2], 0.0);
    let zero = e.full_like(&sum, 0.0);
    Ok(e.select(&voted, &sum, &zero))
}

/// The iteration for all rows at once; a converged row does not change. The state is the iteration, the probabilities, and which
/// rows are active.
fn pairwise_coupling(e: &mut Emitter<'_>, op: OpId) -> Result<Vec<Val>, String> {
    let PairwiseCoupling { classes } = e.attrs(op)?;
    let (x, (dtype, dims)) = (e.operand(op, 0)?, e.result(op, 0)?);
    if dims.contains(&0) {
        return Ok(vec![e.splat(dtype, &dims, 0.0)]);
    }
    let k = dims[1];
    let q = quadratic(e, &x, k);
    let most = e.splat(DType::I64, &[], classes.max(100) as f64);
    let first = e.splat(DType::I64, &[], 0.0);
    let even = e.splat(DType::F64, &dims, 1.0 / k as f64);
    let all = e.splat(DType::Bool, &dims[..1], 1.0);
    let done = e.while_loop(
        &[first, even, all],
        |e, s| {
            let below = e.compare("LT", &s[0], &most);
            let some = e.reduce("or", &s[2], &[0], 0.0);
            Ok(e.binary("and", &below, &some))
        },
        |e, s| {
            let p = e.broadcast_in_dim(&s[1], &q.dims, &[0, 2]);
            let product = e.binary("multiply", &q, &p);
            let qp = e.reduce("add", &product, &[2], 0.0);
            let product = e.binary("multiply", &s[1], &qp);
            let pqp = e.reduce("add", &product, &[1], 0.0);
            let mean = e.broadcast_in_dim(&pqp, &qp.dims, &[0]);
            let off = e.binary("subtract", &qp, &mean);
            let (off, bound) = (e.unary("abs", &off), e.full_like(&off, 0.005 / k as f64));
            let near = e.compare("LT", &off, &bound);
            let near = e.reduce("and", &near, &[1], 1.0);
            let far = e.unary("not", &near);
            let live = e.binary("and", &s[2], &far);
            let next = sweep(e, &q, [s[1].clone(), qp, pqp])?;
            let keep = e.broadcast_in_dim(&live, &dims, &[0]);
            let one = e.full_like(&s[0], 1.0);
            Ok(vec![e.binary("add", &s[0], &one), e.select(&keep, &next, &s[1]), live])
        },
    )?;
    Ok(vec![e.convert(&done[1], dtype)])
}

/// The matrix of each row's quadratic form: `-r_tj r_jt`, and on the diagonal the sum of `r_jt²` over the other classes.
fn quadratic(e: &mut Emitter<'_>, x: &Val, k: usize) -> Val {
    let x = e.convert(x, DType::F64);
    // Clamped away from 0 and 1, so that no single pair excludes a class.
    let (low, high) = (e.full_like(&x, 1e-7), e.full_like(&x, 1.0 - 1e-7));
    let x = e.binary("maximum", &x, &low);
    let x = e.binary("minimum", &x, &high);
    // The pair (i, j), i < j, comes after the pairs of the classes before i: i k - i (i + 1) / 2 + (j - i - 1).
    let (row, column) = (e.iota(DType::I64, &[k, k], 0), e.iota(DType::I64, &[k, k], 1));
    let (i, j) = (e.binary("minimum", &row, &column), e.binary("maximum", &row, &column));
    let (one, two) = (e.full_like(&i, 1.0), e.full_like(&i, 2.0));
    let next = e.binary("add", &i, &one);
    let less = e.binary("multiply", &i, &next);
    let less = e.binary("divide", &less, &two);
    let pair = e.times(&i, k);
    let pair = e.binary("subtract", &pair, &less);
    let rest = e.binary("subtract", &j, &next);
    let pair = e.binary("add", &pair, &rest);
    let own = e.compare("EQ", &row, &column);
    let zero = e.full_like(&pair, 0.0);
    let pair = e.select(&own, &zero, &pair);
    let p = e.take(&x, &pair, 1);
    let ones = e.full_like(&p, 1.0);
    let other = e.binary("subtract", &ones, &p);
    let above = e.compare("LT", &row, &column);
    let (above, own) = (e.broadcast_to(&above, &p.dims), e.broadcast_to(&own, &p.dims));
    let r = e.select(&above, &p, &other);
    let turned = e.select(&above, &other, &p);
    let squares = e.binary("multiply", &r, &r);
    let zeros = e.full_like(&p, 0.0);
    let squares = e.select(&own, &zeros, &squares);
    // Down each column: the diagonal belongs to the second class of the pairs.
    let sums = e.reduce("add", &squares, &[1], 0.0);
    let sums = e.broadcast_in_dim(&sums, &p.dims, &[0, 2]);
    let products = e.binary("multiply", &r, &turned);
    let products = e.unary("negate", &products);
    e.select(&own, &sums, &products)
}

/// One sweep: each class is updated in order, using the updates before it. `p`, `Q p` and `p Q p` are the state.
fn sweep(e: &mut Emitter<'_>, q: &Val, state: [Val; 3]) -> Result<Val, String> {
    let k = q.dims[1];
    let first = e.splat(DType::I64, &[], 0.0);
    let end = e.full_like(&first, k as f64);
    let [p, qp, pqp] = state;
    let done = e.while_loop(
        &[first, p, qp, pqp],
        |e, s| Ok(e.compare("LT", &s[0], &end)),
        |e, s| {
            let [t, p, qp, pqp] = s else { return Err("its loop has another state".into()) };
            let own = e.dynamic_index_in_dim(q, 1, t);
            let (qt, qpt) = (e.dynamic_index_in_dim(&own, 1, t), e.dynamic_index_in_dim(qp, 1, t));
            let diff = e.binary("subtract", pqp, &qpt);
            let diff = e.binary("divide", &diff, &qt);
            let (one, two) = (e.full_like(&diff, 1.0), e.full_like(&diff, 2.0));
            let scale = e.binary("add", &one, &diff);
            // (pqp + diff (diff q_tt + 2 qp_t)) / (1 + diff)²
            let (linear, square) = (e.binary("multiply", &two, &qpt), e.binary("multiply", &diff, &qt));
            let more = e.binary("add", &square, &linear);
            let more = e.binary("multiply", &diff, &more);
            let pqp = e.binary("add", pqp, &more);
            let scales = e.binary("multiply", &scale, &scale);
            let pqp = e.binary("divide", &pqp, &scales);
            let classes = e.iota(DType::I64, &p.dims, 1);
            let here = e.broadcast_to(t, &p.dims);
            let here = e.compare("EQ", &classes, &here);
            let (diff, scale) = (e.broadcast_in_dim(&diff, &p.dims, &[0]), e.broadcast_in_dim(&scale, &p.dims, &[0]));
            let zero = e.full_like(p, 0.0);
            let step = e.select(&here, &diff, &zero);
            let p = e.binary("add", p, &step);
            let p = e.binary("divide", &p, &scale);
            let change = e.binary("multiply", &diff, &own);
            let qp = e.binary("add", qp, &change);
            let qp = e.binary("divide", &qp, &scale);
            let one = e.full_like(t, 1.0);
            Ok(vec![e.binary("add", t, &one), p, qp, pqp])
        },
    )?;
    Ok(done[1].clone())
}
