//! Evaluation op by op, with or without injected rounding errors.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use of_diag::Diagnostic;
use of_ir::{Attrs, DType, Dim, Elements, Graph, OpDef, OpId, PartialKind, Sbp, SbpSignature, Tensor, ValueId};
use of_ops::control::{Loop, Scan};
use of_ops::interpret::run_graph_with_hook;
use of_ops::scalar::ScalarOp;
use of_ops::{OpSpec, Value};

use crate::compare::{MARGIN, numbers};

/// The values of the outermost region of a graph.
pub type Values = HashMap<ValueId, Value>;

/// The maximum perturbation of an operand or a result of an inexact op, in half units in the last place.
const AMPLITUDE: f64 = 4.0;

/// Every value of the outermost region.
///
/// # Errors
/// When an op cannot be evaluated.
pub fn exact(graph: &Graph, inputs: &[Value]) -> Result<Values, Diagnostic> {
    let values: Values = graph.args().iter().copied().zip(inputs.iter().cloned()).collect();
    let values = RefCell::new(values);
    run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        let results = evaluate(operands)?;
        if graph.op(op).parent == graph.entry() {
            values.borrow_mut().extend(graph.op(op).results.iter().copied().zip(results.iter().cloned()));
        }
        Ok(results)
    })?;
    Ok(values.into_inner())
}

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

/// The outputs when cancelling sums and differences keep the rounding error of one operand: a fused multiply-add does not
/// round its product, while the number that it cancels with was rounded.
///
/// # Errors
/// When an op cannot be evaluated any more.
pub fn contracted(graph: &Graph, inputs: &[Value], seed: u64) -> Result<Vec<Value>, Diagnostic> {
    run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        let results = evaluate(operands)?;
        let scalar = of_ops::get(graph, op).and_then(|o| o.scalar());
        if !matches!(scalar, Some(ScalarOp::Add | ScalarOp::Sub)) {
            return Ok(results);
        }
        let largest =
            operands.iter().filter_map(numbers).flatten().filter(|x| x.is_finite()).fold(0.0, |m, x| x.abs().max(m));
        Ok(results.iter().map(|v| uncancelled(v, largest, seed)).collect())
    })
}

/// `v`, with numbers that are negligible relative to `largest` changed by half a unit in the last place of `largest`.
fn uncancelled(v: &Value, largest: f64, seed: u64) -> Value {
    let Value::Tensor(t) = v else { return v.clone() };
    let (true, Elements::Float(x)) = (t.dtype().is_float(), t.elements()) else { return v.clone() };
    let ulp = largest * 2f64.powi(1 - precision(t.dtype()));
    let moved =
        x.iter().enumerate().map(|(i, x)| if x.abs() < 2.0 * ulp { x + ulp * unit(i as u64 ^ seed) } else { *x });
    Tensor::from_elements(t.dtype(), t.dims().to_vec(), Elements::Float(moved.collect()))
        .map_or_else(|_| v.clone(), Value::from)
}

/// The outputs when sums that rounding could make zero are zero, and products that overflow or underflow in some order of
/// multiplication are NaN.
///
/// # Errors
/// When an op cannot be evaluated any more.
pub fn vanished(graph: &Graph, inputs: &[Value], seed: u64) -> Result<Vec<Value>, Diagnostic> {
    run_graph_with_hook(graph, inputs, &|op, operands, evaluate| {
        let results = evaluate(operands)?;
        let mut with = |change: &dyn Fn(f64) -> f64| {
            let operands: Vec<Value> = operands.iter().map(|v| map(v, change)).collect();
            evaluate(&operands)
        };
        if multiplies_elements(graph, op) {
            let large = with(&|x| if x.abs() < 1.0 { 1.0 } else { x })?;
            let small = with(&|x| if x.abs() > 1.0 { 1.0 } else { x })?;
            let leaves = |large: f64, small: f64| large.is_infinite() || small == 0.0;
            let kept = |x, large, small| if leaves(large, small) { f64::NAN } else { x };
            let pairs = results.iter().zip(large.iter().zip(&small));
            return Ok(pairs.map(|(x, (large, small))| zip(x, large, small, kept)).collect());
        }
        if !graph.op(op).regions.is_empty() || is_exact(operands, &results) {
            return Ok(results);
        }
        let moved: Vec<Value> = operands.iter().map(|v| perturb(v, seed)).collect();
        let moved = evaluate(&moved)?;
        let kept = |x: f64, moved: f64, _| if x.abs() <= MARGIN * (moved - x).abs() { 0.0 } else { x };
        Ok(results.iter().zip(&moved).map(|(x, moved)| zip(x, moved, moved, kept)).collect())
    })
}

/// Whether the op multiplies the elements along an axis: where its operand is split, products of the parts are partial.
fn multiplies_elements(graph: &Graph, op: OpId) -> bool {
    let view = graph.view(op);
    let is_product = |s: &SbpSignature| {
        matches!(s.operands.first(), Some(Sbp::Split(_))) && s.results.contains(&Sbp::Partial(PartialKind::Prod))
    };
    of_ops::get(graph, op).is_some_and(|o| o.sbp(&view).iter().any(is_product))
}

/// A float tensor with each element changed; other values as they are.
fn map(v: &Value, change: &dyn Fn(f64) -> f64) -> Value {
    zip(v, v, v, |x, _, _| change(x))
}

/// A float tensor combined elementwise from three of one shape; the first one for other values or other shapes.
fn zip(a: &Value, b: &Value, c: &Value, of: impl Fn(f64, f64, f64) -> f64) -> Value {
    let made = || {
        let Value::Tensor(t) = a else { return None };
        let (true, Elements::Float(x)) = (t.dtype().is_float(), t.elements()) else { return None };
        let (y, z) = (numbers(b)?, numbers(c)?);
        if y.len() != x.len() || z.len() != x.len() {
            return None;
        }
        let elements = x.iter().zip(y.iter().zip(&z)).map(|(x, (y, z))| of(*x, *y, *z)).collect();
        Tensor::from_elements(t.dtype(), t.dims().to_vec(), Elements::Float(elements)).ok()
    };
    made().map_or_else(|| a.clone(), Value::from)
}

/// Symbols of extents that no value has: those of the slices of an empty stack, unless inference knows them. Any number is
/// valid, and a pass that infers more may choose another.
pub fn unbound_symbols(graph: &Graph, values: &Values) -> HashSet<Arc<str>> {
    let stacks = graph.region_ops(graph.entry()).filter(|op| matches!(graph.op(*op).name(), Loop::NAME | Scan::NAME));
    let results = stacks.flat_map(|op| graph.op(op).results.to_vec());
    let empty = results.filter(|v| matches!(&values[v], Value::Tensor(t) if t.is_empty()));
    let shapes = empty.filter_map(|v| graph.ty(v).as_tensor()?.shape.as_ref());
    shapes.flatten().flat_map(Dim::symbols).collect()
}

fn is_parameter(v: &Value) -> bool {
    matches!(v, Value::Tensor(t) if t.len() <= 1)
}

/// A graph of one op, small integer operands as constants, and the values of its arguments.
///
/// # Errors
/// When operands and attributes do not fit the op.
pub fn one_op(def: &'static dyn OpDef, attrs: &Attrs, operands: &[Value]) -> Result<(Graph, Vec<Value>), Diagnostic> {
    let small = |_: usize, t: &Tensor| t.len() <= 64 && !t.dtype().is_float();
    of_test_support::op::build((def, attrs.clone()), operands, small, |ty| ty)
}

/// Whether the results contain only elements of the operands, integers, or truth values: movements, comparisons, extrema,
/// rounding.
fn is_exact(operands: &[Value], results: &[Value]) -> bool {
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
    let exact = |x: f64| !x.is_finite() || x.fract() == 0.0 || known.contains(&x.to_bits());
    results.iter().all(|v| floats(v).into_iter().all(exact))
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
fn perturb(v: &Value, seed: u64) -> Value {
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
fn unit(bits: u64) -> f64 {
    of_ops::sample::Rng::new(bits).float(-1.0, 1.0)
}
