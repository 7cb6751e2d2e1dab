//! Evaluation op by op, with or without rounding errors thrown in.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Location};
use of_ir::{Attrs, DType, Dim, Elements, Graph, OpDef, OpId, Rewriter, Tensor, ValueId};
use of_ops::control::{Loop, Scan};
use of_ops::interpret::{run_graph, type_of};
use of_ops::structural::{Constant, NoneValue, Return};
use of_ops::{Inputs, OpDecl, OpSpec, Value};

/// The values of the outermost region of a graph.
pub type Values = HashMap<ValueId, Value>;

/// The results of an op for what it reads.
type Evaluate<'a> = dyn FnMut(OpId, &[Value]) -> Result<Vec<Value>, Diagnostic> + 'a;

/// Half units in the last place by which an operand or a result of an inexact op is moved at most.
const AMPLITUDE: f64 = 4.0;

/// Every value of the outermost region.
///
/// # Errors
/// When an op cannot be evaluated.
pub fn exact(graph: &Graph, inputs: &[Value]) -> Result<Values, Diagnostic> {
    run(graph, inputs, &mut |op, operands| evaluate(graph, op, operands))
}

/// The outputs when every inexact op rounds differently: `op(x (1 + d)) (1 + e)` in the place of `op(x)`, which is what
/// an implementation in the precision of its operands computes. Equal numbers move together, so that ties stay ties.
///
/// An op is exact when its results hold nothing but elements of its operands, integers, or truth values: movements,
/// comparisons, extrema, rounding. `values` are those of the exact run.
///
/// # Errors
/// When an op cannot be evaluated any more.
pub fn noisy(graph: &Graph, inputs: &[Value], values: &Values, seed: u64) -> Result<Vec<Value>, Diagnostic> {
    let got = run(graph, inputs, &mut |op, operands| {
        if is_exact(graph, op, values) {
            return evaluate(graph, op, operands);
        }
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(op.index() as u64);
        let read = reads(graph, op);
        let moved: Vec<Value> = operands
            .iter()
            .zip(&read)
            // Constants are weights and parameters such as scales: they are known exactly.
            .map(|(v, id)| if graph.constant(*id).is_some() && is_parameter(v) { v.clone() } else { perturb(v, seed) })
            .collect();
        let results = evaluate(graph, op, &moved)?;
        Ok(results.iter().map(|v| perturb(v, seed ^ 0x5555)).collect())
    })?;
    Ok(graph.outputs().iter().map(|v| got[v].clone()).collect())
}

/// Symbols of extents that no value has: those of the slices of a stack without a slice, unless inference knows them. Any
/// number is as good, and a pass that learns more of the region may give another.
pub fn untold(graph: &Graph, values: &Values) -> HashSet<Arc<str>> {
    let stacks = graph.region_ops(graph.entry()).filter(|op| matches!(graph.op(*op).name(), Loop::NAME | Scan::NAME));
    let results = stacks.flat_map(|op| graph.op(op).results.to_vec());
    let empty = results.filter(|v| matches!(&values[v], Value::Tensor(t) if t.is_empty()));
    let shapes = empty.filter_map(|v| graph.ty(v).as_tensor()?.shape.as_ref());
    shapes.flatten().flat_map(Dim::symbols).collect()
}

fn is_parameter(v: &Value) -> bool {
    matches!(v, Value::Tensor(t) if t.len() <= 1)
}

fn run(graph: &Graph, inputs: &[Value], evaluate: &mut Evaluate<'_>) -> Result<Values, Diagnostic> {
    let mut values: Values = graph.args().iter().copied().zip(inputs.iter().cloned()).collect();
    for op in graph.region_ops(graph.entry()) {
        let data = graph.op(op);
        if data.def.traits().terminator {
            break;
        }
        let operands: Vec<Value> = reads(graph, op).iter().map(|v| values[v].clone()).collect();
        let results = evaluate(op, &operands)?;
        values.extend(data.results.iter().copied().zip(results));
    }
    Ok(values)
}

/// What an op reads of the outermost region: its operands, then what its regions capture.
fn reads(graph: &Graph, op: OpId) -> Vec<ValueId> {
    fn visit(graph: &Graph, op: OpId, inside: &mut HashSet<ValueId>, out: &mut Vec<ValueId>) {
        let data = graph.op(op);
        out.extend(data.operands.iter().filter(|v| !inside.contains(v)));
        for region in &data.regions {
            inside.extend(graph.region_args(*region));
            for inner in graph.region_ops(*region) {
                visit(graph, inner, inside, out);
                inside.extend(&graph.op(inner).results);
            }
        }
    }
    let mut out = Vec::new();
    visit(graph, op, &mut HashSet::new(), &mut out);
    out
}

/// The results of one op of `graph`; for an op with regions the values are those of [`reads`].
fn evaluate(graph: &Graph, op: OpId, operands: &[Value]) -> Result<Vec<Value>, Diagnostic> {
    let data = graph.op(op);
    let unknown = || Diagnostic::error(Code::UNKNOWN_OP, Location::Unknown, format!("'{}' is unknown", data.name()));
    if data.regions.is_empty() {
        let decl = of_ops::decl(data.name()).ok_or_else(unknown)?;
        let types: Vec<_> = data.results.iter().map(|v| graph.ty(*v).clone()).collect();
        let op = decl.decode(&data.attrs).map_err(|e| e.at(data.name(), &data.loc))?;
        let mut region = |_: usize, _: &[Value]| Err(of_ir::OpError::eval("the op has no regions"));
        let mut inputs = Inputs { values: operands, types: &types, region: &mut region };
        // A composite may have no evaluation of its own; then the interpreter expands it.
        return op.eval(&mut inputs).or_else(|_| alone(decl, &data.attrs, operands));
    }
    let mut own = Graph::new();
    let entry = own.entry();
    let mut rw = Rewriter::new(&mut own, "fuzz");
    let (mut map, mut args) = (HashMap::new(), Vec::new());
    for (id, value) in reads(graph, op).into_iter().zip(operands) {
        if let std::collections::hash_map::Entry::Vacant(slot) = map.entry(id) {
            slot.insert(match value {
                Value::None => rw.create_one(NoneValue {}, &[])?,
                other => {
                    args.push(other.clone());
                    rw.add_arg(entry, graph.ty(id).clone(), None)
                }
            });
        }
    }
    let copy = rw.clone_op(graph, op, &mut map);
    let results = rw.graph().op(copy).results.to_vec();
    rw.create(Return {}, &results)?;
    run_graph(&own, &args)
}

/// A graph of one op, small integer operands as constants, and the values of its arguments.
///
/// # Errors
/// When operands and attributes do not fit the op.
pub fn one_op(def: &'static dyn OpDef, attrs: &Attrs, operands: &[Value]) -> Result<(Graph, Vec<Value>), Diagnostic> {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "fuzz");
    let (mut ids, mut args) = (Vec::new(), Vec::new());
    for v in operands {
        ids.push(match v {
            Value::None => rw.create_one(NoneValue {}, &[])?,
            Value::Tensor(t) if t.len() <= 64 && !t.dtype().is_float() => {
                rw.create_one(Constant { value: t.clone() }, &[])?
            }
            other => {
                args.push(other.clone());
                rw.add_arg(entry, type_of(other), None)
            }
        });
    }
    let op = rw.create((def, attrs.clone()), &ids)?;
    let results = rw.graph().op(op).results.to_vec();
    rw.create(Return {}, &results)?;
    Ok((graph, args))
}

fn alone(decl: &'static dyn OpDecl, attrs: &Attrs, operands: &[Value]) -> Result<Vec<Value>, Diagnostic> {
    let (graph, args) = one_op(decl.as_def(), attrs, operands)?;
    run_graph(&graph, &args)
}

fn is_exact(graph: &Graph, op: OpId, values: &Values) -> bool {
    let data = graph.op(op);
    let mut known: HashSet<u64> = HashSet::new();
    let floats = |v: &ValueId| match &values[v] {
        Value::Tensor(t) if t.dtype().is_float() => t.to_f64s().unwrap_or_default(),
        _ => Vec::new(),
    };
    let from_floats = data.operands.iter().any(|v| matches!(&values[v], Value::Tensor(t) if t.dtype().is_float()));
    // The quotient that a number is rounded from may lie between two integers.
    let rounds = |v: &ValueId| matches!(&values[v], Value::Tensor(t) if t.dtype().is_int());
    if from_floats && data.results.iter().any(rounds) {
        return false;
    }
    reads(graph, op).iter().for_each(|v| known.extend(floats(v).iter().map(|x| x.to_bits())));
    data.results
        .iter()
        .all(|v| floats(v).iter().all(|x| !x.is_finite() || x.fract() == 0.0 || known.contains(&x.to_bits())))
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

/// `v` with floats moved; the same number is moved in the same way.
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
