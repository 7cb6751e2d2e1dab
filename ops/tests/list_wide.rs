//! Tests over the whole list of ops: what every op must satisfy, whoever wrote it.

use std::collections::{BTreeMap, BTreeSet};

use of_diag::Code;
use of_ir::text::{self, PrintOptions};
use of_ir::{DType, Elements, Func, Graph, Module, PartialKind, Rewriter, Sbp, Tensor, Type, ValueId, verify_module};
use of_ops::sample::Rng;
use of_ops::structural::{Constant, Return};
use of_ops::{GradCx, Kind, OpDecl, Sample, Value, interpret, list};
use of_test_support::compare::{Tolerance, difference};
use of_test_support::op::{self, is_parameter, one_op};

const SEEDS: u64 = 12;

/// Every sample of every op.
fn samples() -> impl Iterator<Item = (&'static dyn OpDecl, u64, Sample)> {
    op::samples(SEEDS)
}

fn module(graph: Graph) -> Module {
    let func = Func::numbered(graph);
    let mut m = Module::default();
    m.funcs.insert("main".into(), func);
    m
}

fn close(a: &Value, b: &Value, part: f64) -> Result<(), String> {
    let (a, b) = (std::slice::from_ref(a), std::slice::from_ref(b));
    difference(a, b, Tolerance::elementwise(part)).map_or(Ok(()), Err)
}

#[test]
fn declarations_are_complete() {
    let mut seen = std::collections::HashSet::new();
    for d in list::ALL {
        assert!(seen.insert(d.name()), "two ops are called {}", d.name());
        assert!(d.name().starts_with("of."), "{} lacks the prefix", d.name());
        assert!(!d.summary().is_empty(), "{} has no documentation", d.name());
        assert!(d.sample(0).is_some() || d.kind() == Kind::Structural, "{} has no sample", d.name());
    }
}

#[test]
fn inference_agrees_with_evaluation() {
    for (d, seed, s) in samples() {
        for fixed in [true, false] {
            let (graph, args) = one_op(&*s.op, &s.operands, |i, t| fixed && is_parameter(i, t))
                .unwrap_or_else(|e| panic!("{} {seed}: {e}", d.name()));
            let types: Vec<Type> = graph.outputs().iter().map(|v| graph.ty(*v).clone()).collect();
            let values = interpret::run_graph(&graph, &args).unwrap_or_else(|e| panic!("{} {seed}: {e}", d.name()));
            for (v, ty) in values.iter().zip(&types) {
                let own = interpret::type_of(v);
                let empty = matches!(v, Value::Sequence(_) | Value::Optional(_));
                assert!(empty || own.compatible(ty), "{} {seed}: the value is {own}, inference says {ty}", d.name());
            }
            verify_module(&module(graph)).unwrap_or_else(|e| panic!("{} {seed}: {e}", d.name()));
        }
    }
}

#[test]
fn text_round_trips() {
    for (d, seed, s) in samples() {
        let (graph, _) = one_op(&*s.op, &s.operands, is_parameter).unwrap_or_else(|e| panic!("{}: {e}", d.name()));
        let m = module(graph);
        for generic in [false, true] {
            let options = PrintOptions { generic, ..PrintOptions::default() };
            let printed = text::print_module(&m, &options);
            let parsed = text::parse_module(&printed, "t.of", &of_ops::registry(), None);
            let parsed = parsed.unwrap_or_else(|e| panic!("{} {seed}: {e}\n{printed}", d.name()));
            assert_eq!(text::print_module(&parsed, &options), printed, "{} {seed}", d.name());
        }
    }
}

#[test]
fn expansions_agree_with_evaluations() {
    let mut compared = 0;
    for (d, seed, s) in samples().filter(|(.., s)| s.op.expands()) {
        let (graph, args) = one_op(&*s.op, &s.operands, is_parameter).unwrap_or_else(|e| panic!("{}: {e}", d.name()));
        let want = interpret::run_graph(&graph, &args).unwrap_or_else(|e| panic!("{} {seed}: {e}", d.name()));
        let mut expanded = graph.clone();
        let op = expanded.walk()[expanded.walk().len() - 2];
        let operands = expanded.op(op).operands.to_vec();
        let types: Vec<Type> = expanded.op(op).results.iter().map(|v| expanded.ty(*v).clone()).collect();
        let mut rw = Rewriter::new(&mut expanded, "expand");
        rw.rewrite(op, &[]);
        let values = s.op.expand(&mut rw, &operands).unwrap_or_else(|e| panic!("{} {seed}: {e}", d.name()));
        for (v, ty) in values.iter().zip(&types) {
            assert!(
                rw.graph().ty(*v).compatible(ty),
                "{} {seed}: the expansion gives {}, inference says {ty}",
                d.name(),
                rw.graph().ty(*v)
            );
        }
        rw.replace(op, &values);
        let got = interpret::run_graph(&expanded, &args).unwrap_or_else(|e| panic!("{} {seed}: {e}", d.name()));
        for (g, w) in got.iter().zip(&want) {
            close(g, w, 1e-5).unwrap_or_else(|e| panic!("{} {seed}: expansion and evaluation: {e}", d.name()));
        }
        compared += 1;
    }
    assert!(compared > 100);
}

/// Operands in f64, where they are floats.
fn widen(v: &Value) -> Value {
    match v {
        Value::Tensor(t) if t.dtype().is_float() => {
            Value::Tensor(Tensor::from_elements(DType::F64, t.dims().to_vec(), t.elements()).unwrap())
        }
        other => other.clone(),
    }
}

/// Zeros for a float, in f64.
fn zeros(rw: &mut Rewriter<'_>, v: ValueId) -> Option<ValueId> {
    let t = rw.graph().ty(v).as_tensor().filter(|t| t.dtype == DType::F64)?;
    let dims = t.fixed_dims()?;
    let none = Elements::Float(vec![0.0; dims.iter().product()]);
    rw.create_one(Constant { value: Tensor::from_elements(DType::F64, dims, none).ok()? }, &[]).ok()
}

fn sum_of_weighted(values: &[Value], weights: &[Vec<f64>]) -> f64 {
    let of = |v: &Value| match v {
        Value::Tensor(t) if t.dtype().is_float() => t.to_f64s().unwrap_or_default(),
        _ => Vec::new(),
    };
    // Where a result is infinite, as the maximum of padding alone is, it does not depend on an operand.
    let weighted = |(x, w): (&f64, &f64)| if x.is_finite() { x * w } else { 0.0 };
    values.iter().zip(weights).map(|(v, w)| of(v).iter().zip(w).map(weighted).sum::<f64>()).sum()
}

#[test]
fn gradients_agree_with_finite_differences() {
    // Derivatives that were compared, for each op that has any.
    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    let mut without_rule = BTreeSet::new();
    // Whether a float operand ever got a gradient, and whether its op says that it never does.
    let mut reached: BTreeMap<(&str, usize), (bool, bool)> = BTreeMap::new();
    for (d, seed, s) in samples().filter(|(d, ..)| d.kind() == Kind::Primitive) {
        let operands: Vec<Value> = s.operands.iter().map(widen).collect();
        let Ok((mut graph, args)) = one_op(&*s.op, &operands, is_parameter) else { continue };
        let Ok(values) = interpret::run_graph(&graph, &args) else { continue };
        let mut rng = Rng::new(seed + 1);
        let weights: Vec<Vec<f64>> =
            values
                .iter()
                .map(|v| {
                    if let Value::Tensor(t) = v { (0..t.len()).map(|_| rng.float(-1.0, 1.0)).collect() } else { vec![] }
                })
                .collect();
        // The gradients of the weighted sum of all results, as a graph.
        let op = graph.walk()[graph.walk().len() - 2];
        let terminator = graph.walk()[graph.walk().len() - 1];
        let (op_operands, results) = (graph.op(op).operands.to_vec(), graph.op(op).results.to_vec());
        let mut rw = Rewriter::new(&mut graph, "differentiate");
        rw.before(terminator);
        let mut grads: Vec<Option<ValueId>> = Vec::new();
        for (v, w) in results.iter().zip(&weights) {
            let t = rw.graph().ty(*v).as_tensor().cloned();
            grads.push(t.filter(|t| t.dtype == DType::F64 && t.fixed_dims().is_some()).map(|t| {
                let value =
                    Tensor::from_elements(DType::F64, t.fixed_dims().unwrap(), Elements::Float(w.clone())).unwrap();
                rw.create_one(Constant { value }, &[]).unwrap()
            }));
        }
        let mut cx = GradCx { rw: &mut rw, operands: &op_operands, results: &results, grads: &grads };
        let Some(gradient) = s.op.gradient(&mut cx) else {
            let float = |v: &&Value| matches!(v, Value::Tensor(t) if t.dtype() == DType::F64);
            if !s.op.expands() && operands.iter().any(|v| float(&v)) && grads.iter().any(Option::is_some) {
                without_rule.insert(d.name());
            }
            continue;
        };
        let gradient = match gradient {
            Ok(gradient) => gradient,
            // The op says why it is not differentiable.
            Err(e) if e.code == Code::UNSUPPORTED => continue,
            Err(e) => panic!("{} {seed}: {e}", d.name()),
        };
        for (slot, v) in op_operands.iter().enumerate() {
            if rw.graph().ty(*v).as_tensor().is_some_and(|t| t.dtype == DType::F64) {
                let seen = reached.entry((d.name(), slot)).or_default();
                seen.0 |= gradient.get(slot).is_some_and(Option::is_some);
                seen.1 |= s.op.operands_without_gradient().contains(&slot);
            }
        }
        let arguments = rw.graph().args().to_vec();
        let wanted: Vec<(usize, ValueId)> = arguments
            .iter()
            .enumerate()
            .filter_map(|(i, a)| {
                let slot = op_operands.iter().position(|o| o == a)?;
                // Nothing must change with an operand that is said to have no gradient.
                Some((i, gradient.get(slot).copied().flatten().or_else(|| zeros(&mut rw, *a))?))
            })
            .collect();
        let outputs: Vec<ValueId> = wanted.iter().map(|(_, v)| *v).collect();
        rw.erase(terminator);
        rw.at_end(rw.graph().entry());
        rw.create(Return {}, &outputs).unwrap();
        let analytic = interpret::run_graph(&graph, &args).unwrap_or_else(|e| panic!("{} {seed}: {e}", d.name()));
        let of_op = compared.entry(d.name()).or_default();
        for ((i, _), g) in wanted.iter().zip(&analytic) {
            let (Value::Tensor(x), Value::Tensor(g)) = (&args[*i], g) else { continue };
            assert_eq!(x.dims(), g.dims(), "{} {seed}: shape of the gradient of operand {i}", d.name());
            let (point, g) = (x.to_f64s().unwrap(), g.to_f64s().unwrap());
            let (forward, _) = one_op(&*s.op, &operands, is_parameter).unwrap();
            for k in 0..point.len().min(6) {
                const STEP: f64 = 1e-5;
                let at = |delta: f64| {
                    let mut p = point.clone();
                    p[k] += delta;
                    let mut moved = args.clone();
                    moved[*i] =
                        Tensor::from_elements(DType::F64, x.dims().to_vec(), Elements::Float(p)).unwrap().into();
                    sum_of_weighted(&interpret::run_graph(&forward, &moved).unwrap(), &weights)
                };
                let numeric = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                let (left, right) = ((at(0.0) - at(-STEP)) / STEP, (at(STEP) - at(0.0)) / STEP);
                // At a kink the two sides differ: no gradient to compare with.
                if (left - right).abs() > 1e-2 * (1.0 + numeric.abs()) {
                    continue;
                }
                assert!(
                    (numeric - g[k]).abs() <= 1e-4 * (1.0 + numeric.abs()),
                    "{} {seed}: operand {i}[{k}]: {} and by differences {numeric}",
                    d.name(),
                    g[k]
                );
                *of_op += 1;
            }
        }
    }
    let all: usize = compared.values().sum();
    assert!(all > 500, "only {all} derivatives were compared");
    let none: Vec<_> = compared.iter().filter(|(_, n)| **n == 0).collect();
    assert!(none.is_empty(), "no derivative of these was compared: {none:?}");
    // Of ops that are piecewise constant no operand has a gradient.
    let differentiable: BTreeSet<&str> =
        reached.iter().filter(|(_, seen)| seen.0).map(|((name, _), _)| *name).collect();
    let is_wrong =
        |((name, _), (got, without)): &(&(&str, usize), &(bool, bool))| differentiable.contains(name) && got == without;
    let wrong: Vec<_> = reached.iter().filter(is_wrong).map(|(operand, _)| operand).collect();
    assert!(wrong.is_empty(), "`operands_without_gradient` is not right for these: {wrong:?}");
    assert!(without_rule.is_empty(), "no gradient, and no reason why there is none: {without_rule:?}");
}

/// The part of `v` that device `rank` of `n` holds.
fn shard(v: &Value, sbp: Sbp, rank: usize, n: usize, rng: &mut Rng) -> Option<Value> {
    let Value::Tensor(t) = v else { return Some(v.clone()) };
    match sbp {
        Sbp::Broadcast => Some(v.clone()),
        Sbp::Split(axis) => {
            let axis = usize::from(axis);
            let size = *t.dims().get(axis)?;
            let (base, more) = (size / n, size % n);
            let start = rank * base + rank.min(more);
            let len = base + usize::from(rank < more);
            slice(t, axis, start, len).map(Value::Tensor)
        }
        Sbp::Partial(kind) => {
            // The same random parts on every call: the generator is seeded by the value, the rank picks one.
            let x = t.to_f64s()?;
            let parts: Vec<Vec<f64>> = x.iter().map(|x| split_partial(*x, kind, n, t.dtype(), rng)).collect();
            let own: Vec<f64> = parts.iter().map(|p| p[rank]).collect();
            let elements = if t.dtype().is_float() {
                Elements::Float(own)
            } else {
                Elements::Int(own.iter().map(|x| *x as i128).collect())
            };
            Tensor::from_elements(t.dtype(), t.dims().to_vec(), elements).ok().map(Value::Tensor)
        }
    }
}

fn split_partial(x: f64, kind: PartialKind, n: usize, dtype: DType, rng: &mut Rng) -> Vec<f64> {
    let mut parts: Vec<f64> = (0..n - 1).map(|_| f64::from(rng.int(1, 3) as i32)).collect();
    match kind {
        PartialKind::Sum => parts.push(x - parts.iter().sum::<f64>()),
        PartialKind::Prod => parts.push(x / parts.iter().product::<f64>()),
        PartialKind::Max => {
            let lowest = dtype.int_range().map_or(f64::MIN, |r| r.0 as f64);
            parts.iter_mut().for_each(|p| *p = (x - *p).max(lowest));
            parts.push(x);
        }
        PartialKind::Min => {
            let highest = dtype.int_range().map_or(f64::MAX, |r| r.1 as f64);
            parts.iter_mut().for_each(|p| *p = (*p + x).min(highest));
            parts.push(x);
        }
    }
    parts
}

fn slice(t: &Tensor, axis: usize, start: usize, len: usize) -> Option<Tensor> {
    let inner: usize = t.dims()[axis + 1..].iter().product();
    let size = t.dims()[axis];
    let keep = |i: usize| (start..start + len).contains(&(i / inner.max(1) % size.max(1)));
    let mut dims = t.dims().to_vec();
    dims[axis] = len;
    let pick = |n: usize| (0..n).filter(|i| keep(*i)).collect::<Vec<_>>();
    let elements = match t.elements() {
        Elements::Float(v) => Elements::Float(pick(v.len()).into_iter().map(|i| v[i]).collect()),
        Elements::Int(v) => Elements::Int(pick(v.len()).into_iter().map(|i| v[i]).collect()),
        Elements::Str(v) => Elements::Str(pick(v.len()).into_iter().map(|i| v[i].clone()).collect()),
    };
    Tensor::from_elements(t.dtype(), dims, elements).ok()
}

/// The global value of what the devices hold.
fn join(parts: &[Value], sbp: Sbp) -> Option<Value> {
    let tensors: Option<Vec<&Tensor>> =
        parts.iter().map(|v| if let Value::Tensor(t) = v { Some(t) } else { None }).collect();
    let tensors = tensors?;
    let first = tensors[0];
    match sbp {
        Sbp::Broadcast => Some(parts[0].clone()),
        Sbp::Split(axis) => {
            let axis = usize::from(axis);
            if tensors.iter().any(|t| t.dims().len() <= axis || t.dims()[..axis] != first.dims()[..axis]) {
                return None;
            }
            let outer: usize = first.dims()[..axis].iter().product();
            let mut dims = first.dims().to_vec();
            dims[axis] = tensors.iter().map(|t| t.dims()[axis]).sum();
            // Elements move and are not converted: 64-bit integers exceed what f64 represents.
            let cells: Vec<_> = tensors.iter().map(|t| t.cells()).collect::<Option<_>>()?;
            let mut out = Vec::new();
            for o in 0..outer {
                for (t, (size, cells)) in tensors.iter().zip(&cells) {
                    let run = t.dims()[axis..].iter().product::<usize>() * size;
                    out.extend_from_slice(&cells[o * run..(o + 1) * run]);
                }
            }
            Tensor::from_cells(first.dtype(), dims, out).ok().map(Value::Tensor)
        }
        Sbp::Partial(kind) => {
            let mut out = first.to_f64s()?;
            for t in &tensors[1..] {
                for (a, b) in out.iter_mut().zip(t.to_f64s()?) {
                    *a = match kind {
                        PartialKind::Sum => *a + b,
                        PartialKind::Prod => *a * b,
                        PartialKind::Max => a.max(b),
                        PartialKind::Min => a.min(b),
                    };
                }
            }
            let elements = if first.dtype().is_float() {
                Elements::Float(out)
            } else {
                Elements::Int(out.iter().map(|x| *x as i128).collect())
            };
            Tensor::from_elements(first.dtype(), first.dims().to_vec(), elements).ok().map(Value::Tensor)
        }
    }
}

#[test]
fn every_sbp_signature_agrees_with_sharded_execution() {
    let mut checked = 0;
    let mut wrong: Vec<String> = Vec::new();
    for (d, seed, s) in samples() {
        let operands: Vec<Value> = s.operands.iter().map(widen).collect();
        let Ok((graph, args)) = one_op(&*s.op, &operands, is_parameter) else { continue };
        let Ok(whole) = interpret::run_graph(&graph, &args) else { continue };
        let op = graph.walk()[graph.walk().len() - 2];
        for signature in s.op.sbp(&graph.view(op)) {
            assert_eq!(signature.results.len(), graph.op(op).results.len(), "{}: {signature}", d.name());
            for devices in [2usize, 3].into_iter().filter(|n| signature.allows(*n)) {
                let mut parts: Vec<Vec<Value>> = Vec::new();
                for rank in 0..devices {
                    let own: Option<Vec<Value>> = operands
                        .iter()
                        .enumerate()
                        .map(|(i, v)| {
                            let sbp = signature.operands.get(i).copied().unwrap_or(Sbp::Broadcast);
                            shard(v, sbp, rank, devices, &mut Rng::new(seed * 31 + i as u64))
                        })
                        .collect();
                    let Some(mut own) = own else { break };
                    if let (Some(k), Sbp::Split(axis), Value::Tensor(t)) =
                        (s.op.shape_operand(), signature.results[0], &whole[0])
                    {
                        let mut dims: Vec<i64> = t.dims().iter().map(|d| *d as i64).collect();
                        let size = dims[usize::from(axis)] as usize;
                        dims[usize::from(axis)] = (size / devices + usize::from(rank < size % devices)) as i64;
                        if dims.contains(&0) {
                            break;
                        }
                        own[k] = Tensor::from_i64s(&dims).into();
                    }
                    // A device without elements runs nothing in practice.
                    if own.iter().any(|v| matches!(v, Value::Tensor(t) if t.is_empty())) {
                        break;
                    }
                    let run = one_op(&*s.op, &own, is_parameter).and_then(|(g, a)| interpret::run_graph(&g, &a));
                    match run {
                        Ok(v) => parts.push(v),
                        Err(e) => wrong.push(format!("{} {seed}: {signature} on {devices} devices: {e}", d.name())),
                    }
                }
                if parts.len() < devices {
                    continue;
                }
                for (r, want) in whole.iter().enumerate() {
                    let of_result: Vec<Value> = parts.iter().map(|p| p[r].clone()).collect();
                    let Some(got) = join(&of_result, signature.results[r]) else { continue };
                    if let Err(e) = close(&got, want, 1e-6) {
                        wrong.push(format!("{} {seed}: {signature} on {devices} devices, result {r}: {e}", d.name()));
                    }
                    checked += 1;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {checked} results are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(checked > 1000, "only {checked} results were checked");
}
