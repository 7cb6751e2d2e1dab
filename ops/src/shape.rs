//! Shape arithmetic that several ops share.

use of_ir::{Dim, OpError, Sbp, SbpSignature, Shape, TensorType};

/// The shape to which `shapes` broadcast by NumPy's rule: aligned at the last axis, a 1 broadcasts.
///
/// Two different symbols, neither known to be 1, are taken to be equal to the larger side's name: the run checks.
///
/// # Errors
/// When two fixed dimensions differ and neither is 1.
pub fn broadcast(shapes: &[&Shape]) -> Result<Shape, OpError> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out = Vec::with_capacity(rank);
    for axis in 0..rank {
        let mut dim = Dim::from(1i64);
        for s in shapes {
            let Some(i) = (axis + s.len()).checked_sub(rank) else { continue };
            let d = &s[i];
            dim = match (dim.as_const(), d.as_const()) {
                (Some(1), _) => d.clone(),
                (_, Some(1)) => dim,
                (Some(a), Some(b)) if a != b => {
                    let list = shapes.iter().map(|s| show(s)).collect::<Vec<_>>().join(", ");
                    return Err(OpError::shape(format!(
                        "shapes {list} do not broadcast: {a} and {b} at axis {axis} of the result"
                    )));
                }
                (None, Some(_)) => d.clone(),
                _ => dim,
            };
        }
        out.push(dim);
    }
    Ok(out)
}

/// Checks that `operand`, called `what` in the message, broadcasts against `whole` without making it larger.
///
/// # Errors
/// When it has more axes, or a fixed dimension that is neither 1 nor that of `whole`.
pub fn within(what: &str, operand: &Shape, whole: &Shape) -> Result<(), OpError> {
    let mut pairs = operand.iter().rev().zip(whole.iter().rev());
    if operand.len() > whole.len() || pairs.any(|(d, w)| d.as_const() != Some(1) && d.provably_ne(w)) {
        let (operand, whole) = (show(operand), show(whole));
        return Err(OpError::shape(format!("{what} has shape {operand}, which does not broadcast to {whole}")));
    }
    Ok(())
}

/// `[N, 3, 224]`.
pub fn show(shape: &Shape) -> String {
    format!("[{}]", shape.iter().map(Dim::to_string).collect::<Vec<_>>().join(", "))
}

/// Resolves a possibly negative axis.
///
/// # Errors
/// When it is outside `-rank..rank`.
pub fn axis(axis: i64, rank: usize) -> Result<usize, OpError> {
    let r = i64::try_from(rank).unwrap_or(i64::MAX);
    let a = if axis < 0 { axis + r } else { axis };
    if (0..r).contains(&a) {
        Ok(a as usize)
    } else {
        Err(OpError::shape(format!("axis {axis} is outside a tensor of rank {rank}")))
    }
}

/// Resolves possibly negative axes; sorted, each once.
///
/// # Errors
/// When one is out of range or named twice.
pub fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
    let mut out = list.iter().map(|a| axis(*a, rank)).collect::<Result<Vec<_>, _>>()?;
    out.sort_unstable();
    let n = out.len();
    out.dedup();
    if out.len() == n { Ok(out) } else { Err(OpError::shape(format!("an axis is named twice in {list:?}"))) }
}

/// The shape, or an error that says it must be known.
///
/// # Errors
/// When not even the rank is known.
pub fn ranked(t: &TensorType) -> Result<&Shape, OpError> {
    t.shape.as_ref().ok_or_else(|| OpError::shape("the rank of an operand is not known"))
}

/// Row-major strides in elements.
pub fn strides(dims: &[usize]) -> Vec<usize> {
    let mut out = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        out[i - 1] = out[i] * dims[i];
    }
    out
}

/// Number of elements of a tensor that is about to be computed.
///
/// # Errors
/// When it is beyond 2^40, more than a reference evaluation should ever allocate, or more than there is memory for.
pub fn count(dims: &[usize]) -> Result<usize, OpError> {
    // Zeros are passed over, so that every product of some of the dimensions fits too.
    dims.iter()
        .filter(|d| **d != 0)
        .try_fold(1usize, |n, d| n.checked_mul(*d))
        .filter(|n| *n <= 1 << 40)
        .map(|n| if dims.contains(&0) { 0 } else { n })
        // Evaluations compute in numbers of eight bytes; running out of memory later would end the process.
        .filter(|n| *n < 1 << 28 || Vec::<f64>::new().try_reserve_exact(*n).is_ok())
        .ok_or_else(|| OpError::eval(format!("a result of shape {dims:?} is too large")))
}

/// Calls `f` with every index of a tensor of dimensions `dims`, in row-major order.
pub fn for_each_index(dims: &[usize], mut f: impl FnMut(&[usize])) {
    if dims.contains(&0) {
        return;
    }
    let mut index = vec![0; dims.len()];
    loop {
        f(&index);
        let Some(axis) = (0..dims.len()).rev().find(|a| index[*a] + 1 < dims[*a]) else { return };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

/// Splits over the axes of an elementwise result: an operand that spans the axis is split with it, one that is
/// broadcast along it is broadcast.
pub fn elementwise_splits(operands: &[&Shape], result: &Shape) -> Vec<SbpSignature> {
    let rank = result.len();
    (0..rank)
        .filter(|axis| result[*axis].as_const() != Some(1))
        .map(|axis| {
            let of = |s: &Shape| match (axis + s.len()).checked_sub(rank) {
                Some(i) if s[i].as_const() != Some(1) => Sbp::Split(i as u8),
                _ => Sbp::Broadcast,
            };
            let operands: Vec<Sbp> = operands.iter().map(|s| of(s)).collect();
            SbpSignature::new(&operands, &[Sbp::Split(axis as u8)])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(d: &[i64]) -> Shape {
        d.iter().map(|x| Dim::from(*x)).collect()
    }

    #[test]
    fn broadcast_follows_numpy() {
        assert_eq!(broadcast(&[&s(&[4, 1, 3]), &s(&[5, 1])]).unwrap(), s(&[4, 5, 3]));
        assert!(broadcast(&[&s(&[2]), &s(&[3])]).unwrap_err().message.contains("do not broadcast"));
        assert_eq!(broadcast(&[&vec![Dim::symbol("N")], &s(&[1])]).unwrap(), vec![Dim::symbol("N")]);
    }

    #[test]
    fn nonzero_indices_are_row_major() {
        let mut seen = Vec::new();
        for_each_index(&[2, 2], |i| seen.push(i.to_vec()));
        assert_eq!(seen, [[0, 0], [0, 1], [1, 0], [1, 1]]);
        let mut n = 0;
        for_each_index(&[], |_| n += 1);
        for_each_index(&[3, 0], |_| n += 10);
        assert_eq!(n, 1);
    }
}
