//! Training: gradients and parameter updates.

mod adagrad;
mod adam;
mod gradient;
mod momentum;
mod variables;

pub use adagrad::Adagrad;
pub use adam::Adam;
pub use gradient::Gradient;
pub use momentum::Momentum;
pub use variables::{INITIAL_VALUES, InitialValue, VARIABLES, VariableInput, data_inputs, variables};

use of_diag::Diagnostic;
use of_ir::{DType, OpError, OpView, Sbp, SbpSignature, TensorType, Type, ValueId};

use crate::build::Build;
use crate::sample::Rng;
use crate::{Inferred, Value};

/// The attribute of a function that says which output is the next value of which input: one number an output, that of
/// the input or -1. Such outputs get the placement of their inputs.
pub const CARRIED: &str = "of.carried";

/// The operands of an update behind rate and count: parameters, their gradients, then kinds of state, each as many.
/// The results are parameters and states.
fn infer(cx: &OpView<'_>, states: usize) -> Inferred {
    let (rate, count) = (cx.tensor(0)?, cx.tensor(1)?);
    let one = |t: &TensorType| t.fixed_dims().is_none_or(|d| d.iter().all(|n| *n == 1));
    if !rate.dtype.is_float() || !count.dtype.is_int() || !one(rate) || !one(count) {
        return Err(OpError::ty("the rate must be one float and the count one integer"));
    }
    let given = cx.operands.len() - 2;
    let kinds = 2 + states;
    if given == 0 || !given.is_multiple_of(kinds) {
        return Err(OpError::ty(format!(
            "{given} tensors are not a multiple of {kinds}, one of each kind a parameter"
        )));
    }
    let n = given / kinds;
    let tensors = (2..cx.operands.len()).map(|i| cx.tensor(i)).collect::<Result<Vec<_>, _>>()?;
    for (i, t) in tensors.iter().enumerate() {
        let own = tensors[i % n];
        if !t.dtype.is_float() || !Type::Tensor((*t).clone()).compatible(&Type::Tensor(own.clone())) {
            let what = format!("tensor {i} must be as its parameter, floating-point {}", Type::Tensor(own.clone()));
            return Err(OpError::ty(what));
        }
    }
    let kept = tensors[..n].iter().chain(&tensors[2 * n..]);
    Ok(kept.map(|t| Type::Tensor(TensorType { sbp: None, ..(*t).clone() })).collect())
}

/// Updates are elementwise: all tensors may be split along the same axis.
fn signatures(cx: &OpView<'_>, states: usize) -> Vec<SbpSignature> {
    let tensors: Option<Vec<usize>> = (2..cx.operands.len()).map(|i| cx.tensor(i).ok()?.rank()).collect();
    let n = cx.operands.len();
    let rank = tensors.and_then(|ranks| ranks.into_iter().min()).unwrap_or(0);
    let results = (n - 2) / (2 + states) * (1 + states);
    (0..rank)
        .filter_map(|a| u8::try_from(a).ok().map(Sbp::Split))
        .map(|s| {
            let mut operands = vec![s; n];
            operands[..2].fill(Sbp::Broadcast);
            SbpSignature::new(&operands, &vec![s; results])
        })
        .collect()
}

/// Rate and count as numbers of rank 0 in f64, and the groups of parameter, gradient and states.
fn parts(
    b: &mut Build<'_, '_>,
    operands: &[ValueId],
    states: usize,
) -> Result<(ValueId, ValueId, Vec<Vec<ValueId>>), Diagnostic> {
    let (rate, count) = (b.cast(operands[0], DType::F64)?, b.cast(operands[1], DType::F64)?);
    let (rate, count) = (b.reshape(rate, &[])?, b.reshape(count, &[])?);
    let tensors = &operands[2..];
    let n = tensors.len() / (2 + states);
    let groups = (0..n).map(|i| tensors.iter().copied().skip(i).step_by(n).collect()).collect();
    Ok((rate, count, groups))
}

/// Results in the order of the operands: first of every group, then second of every group.
fn by_kind(groups: Vec<Vec<ValueId>>) -> Vec<ValueId> {
    let kinds = groups.first().map_or(0, Vec::len);
    (0..kinds).flat_map(|k| groups.iter().map(move |g| g[k])).collect()
}

/// `norm * x + g`.
fn regularized(b: &mut Build<'_, '_>, norm: f64, x: ValueId, g: ValueId) -> Result<ValueId, Diagnostic> {
    if norm == 0.0 {
        return Ok(g);
    }
    let penalty = b.scale(x, norm)?;
    b.add(penalty, g)
}

/// Test operands: one or two parameters, states that are not negative.
fn sample(r: &mut Rng, states: usize) -> Vec<Value> {
    let rate = r.tensor(DType::F32, &[], 0.0, 1.0);
    let mut operands: Vec<Value> = vec![rate.into(), of_ir::Tensor::scalar(r.int(0, 3)).into()];
    let shapes: Vec<Vec<usize>> = (0..r.int(1, 2)).map(|_| r.dims(2, 1, 3)).collect();
    for kind in 0..2 + states {
        let low = if kind < 2 { -2.0 } else { 0.5 };
        operands.extend(shapes.iter().map(|d| Value::from(r.tensor(DType::F32, d, low, 2.0))));
    }
    operands
}
