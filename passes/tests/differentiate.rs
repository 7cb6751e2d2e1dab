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

/// The gradient of a weighted sum of pieces of `x`, which `made` makes.
fn gradient_of_pieces(made: &str) -> Result<Vec<f64>, String> {
    let text = format!(
        "func @main(%x: tensor<2x6xf64>, %i: tensor<i64>, %flag: tensor<i1>) -> (tensor<2x6xf64>) {{
  %zero = of.constant {{value = dense<0> : tensor<i64>}}
  %one = of.constant {{value = dense<1> : tensor<i64>}}
  %lengths = of.constant {{value = dense<[2, 4]> : tensor<2xi64>}}
  {made}
  %p = of.reduce_sum %a {{keepdims = false}}
  %square = of.mul %b, %b
  %q = of.reduce_sum %square {{keepdims = false}}
  %loss = of.add %p, %q
  %g = of.gradient %loss, %x
  of.return %g
}}"
    );
    let mut module = of_ir::text::parse_module(&text, "test.of", &of_ops::registry(), None).unwrap();
    let func = module.main_mut().unwrap();
    differentiate(func).map_err(|e| e.to_string())?;
    let elements = Elements::Float((0..12).map(f64::from).collect());
    let x = Tensor::from_elements(DType::F64, vec![2, 6], elements).unwrap();
    let flag = Tensor::from_elements(DType::Bool, vec![], Elements::Int(vec![1])).unwrap();
    let got = interpret::run_graph(&func.graph, &[x.into(), Tensor::scalar(0i64).into(), flag.into()]).unwrap();
    let Value::Tensor(g) = &got[0] else { panic!("a tensor") };
    Ok(g.to_f64s().unwrap())
}

#[test]
fn gradients_propagate_through_sequences_of_known_elements() {
    let split = gradient_of_pieces("%a, %b = of.split %x, %lengths {axis = 1, num_outputs = 2}").unwrap();
    assert_eq!(split, [1.0, 1.0, 4.0, 6.0, 8.0, 10.0, 1.0, 1.0, 16.0, 18.0, 20.0, 22.0]);
    let sequences = [
        "%s = of.split_to_sequence %x, %lengths {axis = 1, keepdims = true}
         %a = of.sequence_at %s, %zero
         %b = of.sequence_at %s, %one",
        "%s = of.split_to_sequence %x, %lengths {axis = 1, keepdims = true}
         %first = of.sequence_at %s, %zero
         %second = of.sequence_at %s, %one
         %t = of.sequence_construct %second, %first
         %o = of.optional %t
         %u = of.optional_get_element %o
         %a = of.sequence_at %u, %one
         %b = of.sequence_at %u, %zero",
    ];
    for made in sequences {
        assert_eq!(gradient_of_pieces(made).as_ref(), Ok(&split), "{made}");
    }
}

#[test]
fn gradients_through_other_sequences_are_errors() {
    let at = gradient_of_pieces(
        "%s = of.split_to_sequence %x, %lengths {axis = 1, keepdims = true}
         %a = of.sequence_at %s, %i
         %b = of.sequence_at %s, %one",
    );
    let errors = at.unwrap_err();
    assert!(errors.contains("'of.sequence_at' has no gradient, but a gradient propagates through it"), "{errors}");
    // Within a branch, too.
    let captured = gradient_of_pieces(
        "%s = of.split_to_sequence %x, %lengths {axis = 1, keepdims = true}
         %a = of.if %flag : (tensor<i1>) -> tensor<2x?xf64> {
           %first = of.sequence_at %s, %i
           of.yield %first
         }, {
           %second = of.sequence_at %s, %i
           of.yield %second
         }
         %b = of.sequence_at %s, %one",
    );
    let errors = captured.unwrap_err();
    assert!(errors.contains("'of.if' has no gradient"), "{errors}");
}

#[test]
fn gradients_through_integers_and_comparisons_are_zero() {
    let got = gradient_of_pieces(
        "%whole = of.cast %x {to = #of.dtype<i64>}
         %list = of.sequence_construct %whole
         %back = of.sequence_at %list, %i
         %a = of.cast %back {to = #of.dtype<f64>}
         %best = of.arg_max %x {axis = 1, keepdims = true, select_last_index = false}
         %number = of.cast %best {to = #of.dtype<f64>}
         %b = of.mul %x, %number",
    );
    // The derivative of the square of 5 x.
    let expected: Vec<f64> = (0..12).map(|x| 50.0 * f64::from(x)).collect();
    assert_eq!(got, Ok(expected));
}
