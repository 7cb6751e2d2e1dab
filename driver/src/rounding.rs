//! Injected rounding errors: how far an implementation that rounds otherwise may move a result.

use std::collections::HashSet;

use of_diag::Diagnostic;
use of_ir::{DType, Elements, Graph, Tensor, ValueId};
use of_ops::Value;
use of_ops::interpret::run_graph_with_hook;

/// The maximum perturbation of an operand or a result of an inexact op, in half units in the last place.
const AMPLITUDE: f64 = 4.0;

/// The outputs when every inexact op rounds differently: `op(x (1 + d)) (1 + e)` instead of `op(x)`, as an implementation in
/// the precision of its operands computes. Equal numbers get equal perturbations, so ties stay ties. For an op with regions,
/// the ops inside round.
///
/// # Errors
/// When an op cannot be evaluated any more.
pub fn noisy(graph: &Graph, inputs: &[Value], seed: u64) -> Result<Vec<Value>, Diagnostic> {
    run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        let results = evaluate(operands)?;
        if !graph.op(op).regions.is_empty() || is_exact(operands, &results) {
            return Ok(results);
        }
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(op.index() as u64);
        let ids = &graph.op(op).operands;
        // Constants are weights and parameters such as scales: they are known exactly.
        let known = |(v, id): (&Value, &ValueId)| graph.constant(*id).is_some() && is_parameter(v);
        let moved = |pair: (&Value, &ValueId)| if known(pair) { pair.0.clone() } else { perturb(pair.0, seed) };
        let moved: Vec<Value> = operands.iter().zip(ids).map(moved).collect();
        Ok(evaluate(&moved)?.iter().map(|v| perturb(v, seed ^ 0x5555)).collect())
    })
}

fn is_parameter(v: &Value) -> bool {
    matches!(v, Value::Tensor(t) if t.len() <= 1)
}

/// Whether the results contain only elements of the operands, integers, or truth values: movements, comparisons, extrema,
/// rounding.
pub fn is_exact(operands: &[Value], results: &[Value]) -> bool {
    let floats = |v: &Value| match v {
        Value::Tensor(t) if t.dtype().is_float() => t.to_f64s().unwrap_or_default(),
        _ => Vec::new(),
    };
    let from_floats = operands.iter().any(|v| matches!(v, Value::Tensor(t) if t.dtype().is_float()));
    // The quotient before rounding may be between two integers.
    if from_floats && results.iter().any(|v| matches!(v, Value::Tensor(t) if t.dtype().is_int())) {
        return false;
    }
    let known: HashSet<u64> = operands.iter().flat_map(floats).map(f64::to_bits).collect();
    results.iter().all(|v| {
        let Value::Tensor(t) = v else { return true };
        // Beyond, every number is an integer, rounded or not.
        let largest = 2f64.powi(precision(t.dtype()));
        let integer = |x: f64| x.fract() == 0.0 && x.abs() <= largest;
        floats(v).into_iter().all(|x| !x.is_finite() || integer(x) || known.contains(&x.to_bits()))
    })
}

/// Bits of the significand, the leading one included.
pub fn precision(dtype: DType) -> i32 {
    match dtype {
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::F8E4M3FN | DType::F8E4M3FNUZ => 4,
        _ => 3,
    }
}

/// The smallest number above 0.
pub fn smallest(dtype: DType) -> f64 {
    2f64.powi(match dtype {
        DType::F64 => -1074,
        DType::F32 => -149,
        DType::F16 => -24,
        DType::BF16 => -133,
        DType::F8E4M3FN | DType::F8E4M3FNUZ => -10,
        _ => -17,
    })
}

/// `v` with perturbed floats; equal numbers get equal perturbations.
pub fn perturb(v: &Value, seed: u64) -> Value {
    match v {
        Value::Tensor(t) if t.dtype().is_float() => {
            let Elements::Float(x) = t.elements() else { return v.clone() };
            let step = AMPLITUDE * 2f64.powi(-precision(t.dtype()));
            let moved = x.iter().map(|x| x * (1.0 + step * unit(x.to_bits() ^ seed))).collect();
            Tensor::from_elements(t.dtype(), t.dims().to_vec(), Elements::Float(moved))
                .map_or_else(|_| v.clone(), Value::from)
        }
        Value::Sequence(list) => Value::Sequence(list.iter().map(|v| perturb(v, seed)).collect()),
        Value::Optional(Some(v)) => Value::Optional(Some(Box::new(perturb(v, seed)))),
        other => other.clone(),
    }
}

/// A number in -1..1 that depends on `bits` alone.
pub fn unit(bits: u64) -> f64 {
    of_ops::sample::Rng::new(bits).float(-1.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(v: &[f32]) -> Value {
        Tensor::from_slice(&[v.len()], v).unwrap().into()
    }

    #[test]
    fn large_results_are_exact_only_if_they_are_operands() {
        let operands = [floats(&[3e9, 0.5])];
        assert!(is_exact(&operands, &[floats(&[3e9, 12.0, f32::INFINITY])]));
        assert!(!is_exact(&operands, &[floats(&[4e9])]));
        assert!(!is_exact(&operands, &[floats(&[12.5])]));
    }

    #[test]
    fn equal_numbers_are_perturbed_equally_and_by_little() {
        let Value::Tensor(t) = perturb(&floats(&[1.5, 2.5, 1.5]), 7) else { panic!("no tensor") };
        let x = t.to_f64s().unwrap();
        assert!(x[0] == x[2] && (x[0] - 1.5).abs() <= 1.5 * AMPLITUDE * 2f64.powi(-24) && x[1] > x[0]);
    }
}
