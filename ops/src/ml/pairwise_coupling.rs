//! `of.pairwise_coupling`.

use of_diag::Diagnostic;
use of_ir::{DType, Dim, Elements, OpError, OpView, Sbp, SbpSignature, Tensor, Type, ValueId};

use crate::sample::Rng;
use crate::{Evaluated, GradCx, Inferred, Inputs, Op, OpSpec, op, op_basics, shape};

op! {
    /// Class probabilities from pairwise probabilities: `[N, classes (classes - 1) / 2]` to `[N, classes]`.
    ///
    /// A column of `x` is the probability of the first class of a pair; the pairs are 01, 02, …, 12, ….
    /// Minimises the sum over pairs of `(r_ji p_i - r_ij p_j)²` by the fixed-point iteration of Wu, Lin, Weng,
    /// "Probability Estimates for Multi-class Classification by Pairwise Coupling" (2004), stopped where libsvm stops.
    pub struct PairwiseCoupling = "of.pairwise_coupling" [Primitive] {
        operands: (x),
        results: (y),
        attrs: { classes: i64 },
    }
    samples: |seed| {
        let mut r = Rng::new(seed);
        let (n, classes) = (r.int(1, 3) as usize, r.int(2, 4));
        let x = r.tensor(DType::F32, &[n, (classes * (classes - 1) / 2) as usize], 0.1, 0.9);
        Some((vec![x.into()], PairwiseCoupling { classes }))
    };
}

impl PairwiseCoupling {
    /// Classes and pairs.
    fn counts(&self) -> Result<(usize, usize), OpError> {
        match usize::try_from(self.classes) {
            Ok(k) if (2..1 << 12).contains(&k) => Ok((k, k * (k - 1) / 2)),
            _ => Err(OpError::attr(format!("classes is {}, it must be at least 2 and fit in memory", self.classes))),
        }
    }
}

/// Probabilities of `k` classes whose pairwise ones are `row`.
fn couple(row: &[f64], k: usize) -> Vec<f64> {
    let mut r = vec![vec![0.0; k]; k];
    let pairs = (0..k).flat_map(|i| (i + 1..k).map(move |j| (i, j)));
    for ((i, j), p) in pairs.zip(row) {
        // Away from certainty, so that no class is ruled out by one pair.
        r[i][j] = p.clamp(1e-7, 1.0 - 1e-7);
        r[j][i] = 1.0 - r[i][j];
    }
    let q: Vec<Vec<f64>> = (0..k)
        .map(|t| {
            let own: f64 = (0..k).filter(|j| *j != t).map(|j| r[j][t] * r[j][t]).sum();
            (0..k).map(|j| if j == t { own } else { -r[j][t] * r[t][j] }).collect()
        })
        .collect();
    let mut p = vec![1.0 / k as f64; k];
    for _ in 0..k.max(100) {
        let mut qp: Vec<f64> = q.iter().map(|row| row.iter().zip(&p).map(|(a, b)| a * b).sum()).collect();
        let mut pqp: f64 = p.iter().zip(&qp).map(|(a, b)| a * b).sum();
        if qp.iter().all(|v| (v - pqp).abs() < 0.005 / k as f64) {
            break;
        }
        for t in 0..k {
            let diff = (pqp - qp[t]) / q[t][t];
            p[t] += diff;
            pqp = (pqp + diff * (diff * q[t][t] + 2.0 * qp[t])) / ((1.0 + diff) * (1.0 + diff));
            p.iter_mut().for_each(|v| *v /= 1.0 + diff);
            qp.iter_mut().zip(&q[t]).for_each(|(v, a)| *v = (*v + diff * a) / (1.0 + diff));
        }
    }
    p
}

impl Op for PairwiseCoupling {
    op_basics!(PairwiseCoupling);

    fn infer(&self, cx: &OpView<'_>) -> Inferred {
        let (classes, pairs) = self.counts()?;
        let x = cx.tensor(0)?;
        if !x.dtype.is_float() {
            return Err(OpError::ty(format!("operand 0 must be floating-point, it is {}", x.dtype)));
        }
        let n = match &x.shape {
            None => Dim::unknown(),
            Some(s) if s.len() == 2 && !s[1].provably_ne(&pairs.into()) => s[0].clone(),
            Some(s) => return Err(OpError::shape(format!("{} is not [N, {pairs}]", shape::show(s)))),
        };
        Ok(vec![Type::tensor(x.dtype, vec![n, classes.into()])])
    }

    fn eval(&self, inputs: &mut Inputs<'_>) -> Evaluated {
        let x = inputs.tensor(0)?;
        let (classes, pairs) = self.counts()?;
        let (&[n, own], Some(v)) = (x.dims(), x.to_f64s()) else {
            return Err(OpError::eval("operand 0 must be a matrix of numbers"));
        };
        if own != pairs {
            return Err(OpError::eval(format!("{classes} classes have {pairs} pairs, not {own}")));
        }
        shape::count(&[n, classes])?;
        let y = v.chunks_exact(pairs).flat_map(|row| couple(row, classes)).collect();
        Ok(vec![Tensor::from_elements(x.dtype(), vec![n, classes], Elements::Float(y))?.into()])
    }

    fn sbp(&self, _cx: &OpView<'_>) -> Vec<SbpSignature> {
        vec![SbpSignature::new(&[Sbp::Split(0)], &[Sbp::Split(0)])]
    }

    fn gradient(&self, cx: &mut GradCx<'_, '_>) -> Option<Result<Vec<Option<ValueId>>, Diagnostic>> {
        cx.not_differentiable(Self::NAME, "the number of its iterations depends on the data")
    }
}
