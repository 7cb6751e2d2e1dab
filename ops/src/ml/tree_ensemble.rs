//! `of.tree_ensemble`.

use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{Dim, Elements, OpError, OpView, Sbp, SbpSignature, Tensor, Type, ValueId};

use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, op, op_basics, shape};

op! {
    /// The votes of decision trees for each row of `x` (`[N, F]`), combined target by target: `[N, targets]`.
    ///
    /// Nodes of all trees are in one list, and so are leaves. A branch is the number of a node, or `-1 - leaf`. At a node,
    /// `x[feature]` is compared with the split: `mode` 0 is `<=`, 1 `<`, 2 `>=`, 3 `>`, 4 `==`, 5 `!=`, 6 whether it is a
    /// member of the node's set. Source: ai.onnx.ml TreeEnsemble, whose older forms are brought into this one.
    pub struct TreeEnsemble = "of.tree_ensemble" [Primitive] {
        operands: (x),
        results: (y),
        attrs: {
            /// The first branch of each tree.
            roots: Vec<i64>,
            features: Vec<i64>,
            modes: Vec<i64>,
            splits: Vec<f64>,
            on_true: Vec<i64>,
            on_false: Vec<i64>,
            /// For each node whether NaN goes the way of true.
            missing_true: Vec<i64>,
            /// Where the set of each node begins in `members`; the last set ends with the list. Empty without sets.
            sets: Vec<i64>,
            members: Vec<f64>,
            /// Where the votes of each leaf begin; the votes of the last leaf end with the list.
            leaves: Vec<i64>,
            vote_targets: Vec<i64>,
            vote_weights: Vec<f64>,
            targets: i64,
            /// `SUM`, `AVERAGE` (over trees), `MIN` or `MAX`.
            aggregate: Arc<str>,
        }
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let op = TreeEnsemble {
            roots: vec![0, 2, -4],
            features: vec![0, 1, 2],
            modes: vec![r.int(0, 5), r.int(0, 5), 6],
            splits: vec![r.float(-1.0, 1.0), 0.25, 0.0],
            on_true: vec![1, -2, -3],
            on_false: vec![-1, -3, -1],
            missing_true: vec![0, 1, 0],
            sets: vec![0, 0, 0],
            members: vec![1.0, 2.0],
            leaves: vec![0, 1, 3, 4],
            vote_targets: vec![0, 0, 1, 1, 0],
            vote_weights: vec![0.5, 1.0, -1.0, 2.0, 0.75],
            targets: 2,
            aggregate: r.pick(&["SUM", "AVERAGE"]).into(),
        };
        Some((vec![r.f32s(&[3, 3])], op))
    };
}

/// The part of `list` that belongs to entry `i` of `begins`.
fn part<'a, T>(begins: &[i64], list: &'a [T], i: usize) -> &'a [T] {
    let at = |i: usize| begins.get(i).map_or(list.len(), |b| (*b).max(0) as usize);
    list.get(at(i)..at(i + 1)).unwrap_or_default()
}

impl TreeEnsemble {
    /// Every index points at something, and following branches comes to an end.
    fn check(&self) -> Result<(), OpError> {
        let (n, leaves) = (self.features.len(), self.leaves.len());
        let lists =
            [self.modes.len(), self.splits.len(), self.on_true.len(), self.on_false.len(), self.missing_true.len()];
        if lists.iter().any(|l| *l != n) || (!self.sets.is_empty() && self.sets.len() != n) {
            return Err(OpError::attr("the lists of a tree ensemble's nodes must be of one length"));
        }
        if self.vote_targets.len() != self.vote_weights.len() {
            return Err(OpError::attr("each vote of a leaf needs a target and a weight"));
        }
        let ascending = |begins: &[i64], len: usize| {
            begins.windows(2).all(|p| p[0] <= p[1])
                && begins.iter().all(|b| usize::try_from(*b).is_ok_and(|b| b <= len))
        };
        if !ascending(&self.leaves, self.vote_weights.len()) || !ascending(&self.sets, self.members.len()) {
            return Err(OpError::attr("the begins of votes and sets must ascend within their lists"));
        }
        if !(1..1 << 32).contains(&self.targets) || self.vote_targets.iter().any(|t| !(0..self.targets).contains(t)) {
            return Err(OpError::attr("a vote must be for one of the targets"));
        }
        if let Some(m) = self.modes.iter().find(|m| !(0..=6).contains(*m)) {
            return Err(OpError::attr(format!("mode {m} is not known")));
        }
        if self.features.iter().any(|f| *f < 0) {
            return Err(OpError::attr("a feature is negative"));
        }
        if !["SUM", "AVERAGE", "MIN", "MAX"].contains(&&*self.aggregate) {
            return Err(OpError::attr(format!("aggregate '{}' is not known", self.aggregate)));
        }
        let exists = |b: &i64| if *b < 0 { ((-1 - b) as usize) < leaves } else { (*b as usize) < n };
        if !self.roots.iter().chain(&self.on_true).chain(&self.on_false).all(exists) {
            return Err(OpError::attr("a branch leads to no node and no leaf"));
        }
        // Nodes without incoming branches are taken away until none is left, or a circle remains.
        let branches = || self.on_true.iter().zip(&self.on_false);
        let mut incoming = vec![0usize; n];
        branches().for_each(|(t, f)| [t, f].iter().filter(|b| ***b >= 0).for_each(|b| incoming[**b as usize] += 1));
        let mut free: Vec<usize> = (0..n).filter(|i| incoming[*i] == 0).collect();
        let mut seen = 0;
        while let Some(i) = free.pop() {
            seen += 1;
            for b in [self.on_true[i], self.on_false[i]] {
                if b >= 0 {
                    incoming[b as usize] -= 1;
                    if incoming[b as usize] == 0 {
                        free.push(b as usize);
                    }
                }
            }
        }
        if seen == n { Ok(()) } else { Err(OpError::attr("the branches of a tree go in a circle")) }
    }

    /// The leaf that `row` comes to from `branch`.
    fn leaf(&self, mut branch: i64, row: &[f64]) -> Result<usize, OpError> {
        while branch >= 0 {
            let i = branch as usize;
            let feature = self.features[i] as usize;
            let x = row.get(feature).ok_or_else(|| OpError::eval(format!("there is no feature {feature}")))?;
            let split = self.splits[i];
            let yes = match self.modes[i] {
                0 => *x <= split,
                1 => *x < split,
                2 => *x >= split,
                3 => *x > split,
                4 => *x == split,
                5 => *x != split,
                _ => part(&self.sets, &self.members, i).contains(x),
            };
            let yes = yes || (x.is_nan() && self.missing_true[i] != 0);
            branch = if yes { self.on_true[i] } else { self.on_false[i] };
        }
        Ok((-1 - branch) as usize)
    }
}

impl Op for TreeEnsemble {
    op_basics!(TreeEnsemble);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        self.check()?;
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() {
            return Err(OpError::ty(format!("operand 0 must be floating-point, it is {}", x.dtype)));
        }
        let features = Dim::from(self.features.iter().max().map_or(0, |f| f.saturating_add(1)));
        let n = match &x.shape {
            None => Dim::unknown(),
            Some(s) if s.len() != 2 => return Err(OpError::shape(format!("{} is not [N, F]", shape::show(s)))),
            Some(s) if s[1].as_const() < features.as_const() && s[1].as_const().is_some() => {
                return Err(OpError::shape(format!("the trees ask for {features} features, there are {}", s[1])));
            }
            Some(s) => s[0].clone(),
        };
        Ok(vec![Type::tensor(x.dtype, vec![n, self.targets.into()])])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let (&[n, features], Some(v)) = (x.dims(), x.to_f64s()) else {
            return Err(OpError::eval("operand 0 must be a matrix of numbers"));
        };
        let targets = self.targets as usize;
        let mut y = Vec::with_capacity(shape::count(&[n, targets])?);
        for i in 0..n {
            let mut row: Vec<Option<f64>> = vec![None; targets];
            for root in &self.roots {
                let leaf = self.leaf(*root, &v[i * features..][..features])?;
                let votes = part(&self.leaves, &self.vote_targets, leaf).iter();
                for (target, weight) in votes.zip(part(&self.leaves, &self.vote_weights, leaf)) {
                    let sum = &mut row[*target as usize];
                    *sum = Some(match (*sum, &*self.aggregate) {
                        (None, _) => *weight,
                        (Some(s), "MIN") => s.min(*weight),
                        (Some(s), "MAX") => s.max(*weight),
                        (Some(s), _) => s + weight,
                    });
                }
            }
            let scale = if &*self.aggregate == "AVERAGE" { 1.0 / self.roots.len().max(1) as f64 } else { 1.0 };
            // A target without votes has score zero.
            y.extend(row.into_iter().map(|s| s.unwrap_or(0.0) * scale));
        }
        Ok(vec![Tensor::from_elements(x.dtype(), vec![n, targets], Elements::Float(y))?.into()])
    }

    fn sbp(&self, _cx: &OpView<'_>) -> Vec<SbpSignature> {
        vec![SbpSignature::new(&[Sbp::Split(0)], &[Sbp::Split(0)])]
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        cx.flat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_cycles_are_refused() {
        let (_, good) = <TreeEnsemble as crate::OpSpec>::sample(1).unwrap();
        assert!(good.check().is_ok());
        let circle = TreeEnsemble { on_false: vec![1, 0, -1], ..good.clone() };
        assert!(circle.check().unwrap_err().message.contains("circle"));
        assert!(TreeEnsemble { roots: vec![9], ..good }.check().is_err());
    }
}
