//! Gradients of every op that has an expansion, through that expansion, against finite differences.

use of_ir::{Attrs, DType, Elements, Func, Graph, Rewriter, Tensor, Type};
use of_ops::structural::{Constant, NoneValue, Return};
use of_ops::training::Gradient;
use of_ops::{Sample, Value, interpret, list};
use of_passes::differentiate::differentiate;

const STEP: f64 = 1e-5;

/// Floats in f64, so that differences are exact enough.
fn widen(v: &Value) -> Value {
    match v {
        Value::Tensor(t) if t.dtype().is_float() => {
            Tensor::from_elements(DType::F64, t.dims().to_vec(), t.elements()).unwrap().into()
        }
        other => other.clone(),
    }
}

/// The op with its float operands as arguments; returns result 0, or its gradients.
fn graph(sample: &Sample, operands: &[Value], derivatives: bool) -> Option<(Graph, Vec<Value>)> {
    let mut g = Graph::new();
    let entry = g.entry();
    let mut rw = Rewriter::new(&mut g, "test");
    let (mut ids, mut args) = (Vec::new(), Vec::new());
    for v in operands {
        ids.push(match v {
            Value::Tensor(t) if t.dtype() == DType::F64 => {
                args.push(v.clone());
                rw.add_arg(entry, interpret::type_of(v), None)
            }
            Value::Tensor(t) => rw.create_one(Constant { value: t.clone() }, &[]).ok()?,
            _ => rw.create_one(NoneValue {}, &[]).ok()?,
        });
    }
    let op = rw.create((sample.op.decl().as_def(), sample.op.attrs()), &ids).ok()?;
    let y = *rw.graph().op(op).results.first()?;
    if !matches!(rw.graph().ty(y), Type::Tensor(t) if t.dtype == DType::F64) {
        return None;
    }
    let mut results = vec![y];
    if derivatives {
        let xs = rw.graph().args().to_vec();
        let op = rw.create(Gradient {}, &[&[y], xs.as_slice()].concat()).ok()?;
        results = rw.graph().op(op).results.to_vec();
    }
    rw.create(Return {}, &results).ok()?;
    Some((g, args))
}

fn sum(values: &[Value]) -> f64 {
    let Value::Tensor(t) = &values[0] else { panic!("a tensor") };
    t.to_f64s().unwrap().iter().sum()
}

#[test]
fn ops_differentiate_through_their_expansion() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (decl, seed) in list::ALL.iter().flat_map(|d| (0..6).map(move |seed| (d, seed))) {
        let Some(sample) = decl.sample(seed).filter(|s| s.op.expands()) else { continue };
        let operands: Vec<Value> = sample.operands.iter().map(widen).collect();
        let Some((g, args)) = graph(&sample, &operands, true) else { continue };
        let Some((forward, _)) = graph(&sample, &operands, false) else { continue };
        let loc = of_diag::Location::Unknown;
        let mut func = Func { graph: g, inputs: vec![], outputs: vec![], attrs: Attrs::new(), loc };
        if let Err(e) = differentiate(&mut func) {
            wrong.push(format!("{} {seed}: {e}", decl.name()));
            continue;
        }
        let got = interpret::run_graph(&func.graph, &args).unwrap_or_else(|e| panic!("{} {seed}: {e}", decl.name()));
        for (i, g) in got.iter().enumerate() {
            let (Value::Tensor(x), Value::Tensor(g)) = (&args[i], g) else { panic!("tensors") };
            if x.dims() != g.dims() {
                wrong.push(format!("{} {seed}: operand {i}: {:?} for {:?}", decl.name(), g.dims(), x.dims()));
                continue;
            }
            let (point, g) = (x.to_f64s().unwrap(), g.to_f64s().unwrap());
            for k in 0..point.len().min(4) {
                let at = |delta: f64| {
                    let mut p = point.clone();
                    p[k] += delta;
                    let mut moved = args.clone();
                    moved[i] = Tensor::from_elements(DType::F64, x.dims().to_vec(), Elements::Float(p)).unwrap().into();
                    interpret::run_graph(&forward, &moved).ok().map(|v| sum(&v))
                };
                let (Some(low), Some(mid), Some(high)) = (at(-STEP), at(0.0), at(STEP)) else { continue };
                let (left, right, numeric) = ((mid - low) / STEP, (high - mid) / STEP, (high - low) / (2.0 * STEP));
                // At a kink the one-sided differences differ: there is no derivative to compare with.
                if !numeric.is_finite() || (left - right).abs() > 1e-2 * (1.0 + numeric.abs()) {
                    continue;
                }
                let close = (numeric - g[k]).abs() <= 1e-3 * (1.0 + numeric.abs());
                if !close {
                    wrong.push(format!(
                        "{} {seed}: operand {i}[{k}]: {} and by differences {numeric}",
                        decl.name(),
                        g[k]
                    ));
                }
                compared += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared > 300, "only {compared} derivatives were compared");
}
