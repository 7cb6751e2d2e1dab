//! Support vector machines.

use std::sync::Arc;

use of_ir::{DType, ValueId};
use of_ops::elementwise::Pow;
use of_ops::ml::PairwiseCoupling;

use super::{best, both_signs, cast, class_labels, floats, list, matrix, nothing_left, pair, post_transform};
use crate::import::{ImportError, ImportResult, Importer, Node};

/// `k(x, v)` of every row and every vector: `[N, vectors]`. Without vectors the kernel is not needed.
fn kernel(cx: &mut Importer<'_, '_>, node: &mut Node<'_>, x: ValueId, vectors: usize) -> Result<ValueId, ImportError> {
    let support = floats(node, "support_vectors")?;
    let kind: Option<Arc<str>> = node.attrs.take("kernel_type")?;
    let params = floats(node, "kernel_params")?;
    let &[gamma, coef0, degree] = (if params.is_empty() { &[0.0; 3] } else { params.as_slice() }) else {
        return Err(ImportError::invalid("kernel_params must be gamma, coef0 and degree"));
    };
    if vectors == 0 || support.is_empty() || support.len() % vectors != 0 {
        return Err(ImportError::invalid(format!("{} numbers do not form {vectors} support vectors", support.len())));
    }
    let features = support.len() / vectors;
    // [F, V], so that a product gives all dot products.
    let columns = (0..features).flat_map(|f| (0..vectors).map(move |v| (v, f)));
    let columns: Vec<f64> = columns.map(|(v, f)| support[v * features + f]).collect();
    let columns = matrix(cx, DType::F32, &[features, vectors], columns)?;
    let dot = pair(cx, "MatMul", x, columns)?;
    let scaled = |cx: &mut Importer<'_, '_>| {
        let (gamma, coef0) = (cx.number(gamma, dot)?, cx.number(coef0, dot)?);
        let y = pair(cx, "Mul", dot, gamma)?;
        pair(cx, "Add", y, coef0)
    };
    match kind.as_deref().unwrap_or("LINEAR") {
        "LINEAR" => Ok(dot),
        "POLY" => {
            let (y, degree) = (scaled(cx)?, cx.number(degree, dot)?);
            Ok(cx.rw.create_one(Pow {}, &[y, degree])?)
        }
        "SIGMOID" => {
            let y = scaled(cx)?;
            cx.emit_one("Tanh", &[Some(y)], [])
        }
        // exp(-gamma |x - v|²); the difference is formed, not the squares alone, which would cancel.
        "RBF" => {
            let middle = cx.ints(&[1])?;
            let x = pair(cx, "Unsqueeze", x, middle)?;
            let support = matrix(cx, DType::F32, &[vectors, features], support)?;
            let difference = pair(cx, "Sub", x, support)?;
            let last = cx.ints(&[-1])?;
            let square =
                cx.emit_one("ReduceSumSquare", &[Some(difference), Some(last)], [("keepdims", of_ir::Attr::Int(0))])?;
            let gamma = cx.number(-gamma, dot)?;
            let exponent = pair(cx, "Mul", square, gamma)?;
            cx.emit_one("Exp", &[Some(exponent)], [])
        }
        other => Err(ImportError::invalid(format!("kernel_type '{other}' is not known"))),
    }
}

/// Drops what a machine without support vectors does not use.
fn drop_kernel(node: &mut Node<'_>) {
    ["support_vectors", "kernel_type", "kernel_params", "vectors_per_class"].iter().for_each(|n| node.attrs.drop(n));
}

/// `SVMRegressor`: the weighted sum of kernels, or of features; a sign for one class.
pub(super) fn regressor(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let supports: i64 = node.attrs.take("n_supports")?.unwrap_or(0);
    let (w, rho) = (floats(&mut node, "coefficients")?, floats(&mut node, "rho")?);
    let one_class = node.attrs.take_flag("one_class")?.unwrap_or(false);
    let mut x = cast(cx, node.input(0)?, DType::F32)?;
    if supports > 0 {
        x = kernel(cx, &mut node, x, supports as usize)?;
    } else {
        drop_kernel(&mut node);
    }
    let w = matrix(cx, DType::F32, &[w.len(), 1], w)?;
    let y = pair(cx, "MatMul", x, w)?;
    let rho = cx.number(rho.first().copied().unwrap_or(0.0), y)?;
    let mut y = pair(cx, "Add", y, rho)?;
    if one_class {
        let (zero, one, minus) = (cx.number(0.0, y)?, cx.number(1.0, y)?, cx.number(-1.0, y)?);
        let inside = pair(cx, "Greater", y, zero)?;
        y = cx.emit_one("Where", &[Some(inside), Some(one), Some(minus)], [])?;
    }
    let y = post_transform(cx, &mut node, y)?;
    nothing_left(&node)?;
    Ok(vec![y])
}

/// `SVMClassifier`: a vote between every two classes, or a linear function a class.
pub(super) fn classifier(cx: &mut Importer<'_, '_>, mut node: Node<'_>) -> ImportResult {
    let labels = class_labels(&mut node, "classlabels_strings", "classlabels_ints")?;
    let classes = labels.len();
    if classes < 2 {
        return Err(ImportError::unsupported("a classifier of one class"));
    }
    let (w, rho) = (floats(&mut node, "coefficients")?, floats(&mut node, "rho")?);
    let (prob_a, prob_b) = (floats(&mut node, "prob_a")?, floats(&mut node, "prob_b")?);
    let per_class: Vec<i64> = list(&mut node, "vectors_per_class")?;
    let x = cast(cx, node.input(0)?, DType::F32)?;
    if per_class.is_empty() {
        drop_kernel(&mut node);
        return linear(cx, node, x, labels, w, rho);
    }
    let sizes: Option<Vec<usize>> =
        per_class.iter().map(|n| usize::try_from(*n).ok().filter(|n| *n < 1 << 32)).collect();
    let sizes = sizes.filter(|s| s.len() == classes).ok_or_else(|| {
        ImportError::invalid(format!("vectors_per_class must give a number for each of {classes} classes"))
    })?;
    let vectors: usize = sizes.iter().sum();
    let pairs = classes * (classes - 1) / 2;
    if w.len() != (classes - 1) * vectors || rho.len() != pairs {
        let (w, rho) = (w.len(), rho.len());
        return Err(ImportError::invalid(format!(
            "{w} coefficients and {rho} offsets are not those of {classes} classes"
        )));
    }
    let k = kernel(cx, &mut node, x, vectors)?;
    // Pair (i, j) weighs the vectors of i by row j - 1 of the coefficients, those of j by row i.
    let starts: Vec<usize> = sizes.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect();
    let mut weights = vec![0.0; vectors * pairs];
    let (mut turn, mut base) = (vec![0.0; pairs * classes], vec![0.0; classes]);
    let mut number = 0;
    for i in 0..classes {
        for j in i + 1..classes {
            for (class, row) in [(i, j - 1), (j, i)] {
                for v in starts[class]..starts[class] + sizes[class] {
                    weights[v * pairs + number] = w[row * vectors + v];
                }
            }
            // Every vote goes to j, and over to i where the score is positive.
            base[j] += 1.0;
            turn[number * classes + i] = 1.0;
            turn[number * classes + j] = -1.0;
            number += 1;
        }
    }
    let weights = matrix(cx, DType::F32, &[vectors, pairs], weights)?;
    let rho = matrix(cx, DType::F32, &[pairs], rho)?;
    let s = pair(cx, "MatMul", k, weights)?;
    let s = pair(cx, "Add", s, rho)?;
    let zero = cx.number(0.0, s)?;
    let first = pair(cx, "Greater", s, zero)?;
    let first = cast(cx, first, DType::F32)?;
    let (turn, base) = (matrix(cx, DType::F32, &[pairs, classes], turn)?, matrix(cx, DType::F32, &[classes], base)?);
    let votes = pair(cx, "MatMul", first, turn)?;
    let votes = pair(cx, "Add", votes, base)?;
    let y = best(cx, labels, votes)?;
    let scores = if !prob_a.is_empty() {
        if prob_a.len() != pairs || prob_b.len() != pairs {
            return Err(ImportError::invalid(format!("prob_a and prob_b must have {pairs} entries")));
        }
        // The probability of the first of each pair: 1 - sigmoid(a s + b).
        let negated = |v: Vec<f64>| v.into_iter().map(|x| -x).collect();
        let (a, b) =
            (matrix(cx, DType::F32, &[pairs], negated(prob_a))?, matrix(cx, DType::F32, &[pairs], negated(prob_b))?);
        let p = pair(cx, "Mul", s, a)?;
        let p = pair(cx, "Add", p, b)?;
        let p = cx.emit_one("Sigmoid", &[Some(p)], [])?;
        cx.rw.create_one(PairwiseCoupling { classes: classes as i64 }, &[p])?
    } else if pairs == 1 {
        both_signs(cx, s)?
    } else {
        s
    };
    let z = post_transform(cx, &mut node, scores)?;
    nothing_left(&node)?;
    Ok(vec![y, z])
}

/// A linear function a class; the largest wins.
fn linear(
    cx: &mut Importer<'_, '_>,
    mut node: Node<'_>,
    x: ValueId,
    labels: of_ir::Tensor,
    w: Vec<f64>,
    rho: Vec<f64>,
) -> ImportResult {
    let classes = labels.len();
    if w.is_empty() || !w.len().is_multiple_of(classes) {
        return Err(ImportError::invalid(format!("{} coefficients do not divide into {classes} classes", w.len())));
    }
    let features = w.len() / classes;
    let columns: Vec<f64> = (0..w.len()).map(|i| w[i % classes * features + i / classes]).collect();
    let w = matrix(cx, DType::F32, &[features, classes], columns)?;
    let s = pair(cx, "MatMul", x, w)?;
    let rho = cx.number(rho.first().copied().unwrap_or(0.0), s)?;
    let s = pair(cx, "Add", s, rho)?;
    let y = best(cx, labels, s)?;
    let z = post_transform(cx, &mut node, s)?;
    nothing_left(&node)?;
    Ok(vec![y, z])
}
