//! Extents of zero, extents whose products overflow, and ranks that were not known: every op gives a result or an error, and never panics.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use of_ir::{Elements, Rewriter, Tensor, TensorType, Type};
use of_ops::{Value, interpret};
use of_test_support::op::{self, is_parameter, one_op};

/// Beyond what an evaluation may allocate; a product of two overflows.
const HUGE: usize = 1 << 41;

/// No tensor of a test is larger.
const MAX_ELEMENTS: usize = 1 << 16;

/// The operands with extents replaced, equal ones alike; `None` where a tensor would be too large, or nothing changes.
fn replaced(operands: &[Value], with: impl Fn(usize) -> usize) -> Option<Vec<Value>> {
    let mut changed = false;
    let all = operands.iter().enumerate().map(|(i, v)| match v {
        Value::Tensor(t) if !is_parameter(i, t) && !t.dims().is_empty() => {
            let dims: Vec<usize> = t.dims().iter().map(|d| with(*d)).collect();
            changed |= dims != t.dims();
            let n = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            let n = if dims.contains(&0) { 0 } else { n.filter(|n| *n <= MAX_ELEMENTS)? };
            repeated(t, dims, n).map(Value::Tensor)
        }
        other => Some(other.clone()),
    });
    let all = all.collect::<Option<Vec<Value>>>()?;
    changed.then_some(all)
}

/// A tensor of `n` elements, which repeat those of another one.
fn repeated(t: &Tensor, dims: Vec<usize>, n: usize) -> Option<Tensor> {
    let again = |i: usize| i % t.len().max(1);
    let elements = match t.elements() {
        Elements::Float(v) => Elements::Float((0..n).map(|i| v.get(again(i)).copied().unwrap_or(0.0)).collect()),
        Elements::Int(v) => Elements::Int((0..n).map(|i| v.get(again(i)).copied().unwrap_or(0)).collect()),
        Elements::Str(v) => Elements::Str((0..n).map(|i| v.get(again(i)).cloned().unwrap_or_default()).collect()),
    };
    Tensor::from_elements(t.dtype(), dims, elements).ok()
}

/// Every op with operands whose extents are replaced: those that panic, or do not end.
fn failures(seeds: u64, replacements: impl Fn(&[usize]) -> Vec<Vec<usize>>) -> (usize, BTreeSet<String>) {
    let (mut ran, mut failed) = (0, BTreeSet::new());
    for (d, seed, s) in op::samples(seeds) {
        let extents: BTreeSet<usize> = (s.operands.iter().enumerate())
            .filter_map(|(i, v)| if let Value::Tensor(t) = v { Some((i, t)) } else { None })
            .filter(|(i, t)| !is_parameter(*i, t))
            .flat_map(|(_, t)| t.dims().to_vec())
            .collect();
        let extents: Vec<usize> = extents.into_iter().collect();
        for new in replacements(&extents) {
            let with = |d: usize| extents.iter().position(|e| *e == d).map_or(d, |i| new[i]);
            let Some(operands) = replaced(&s.operands, with) else { continue };
            let dims: Vec<String> = operands
                .iter()
                .map(|v| if let Value::Tensor(t) = v { format!("{:?}", t.dims()) } else { "-".into() })
                .collect();
            let at = format!("{} {seed} on {}", d.name(), dims.join(" "));
            let (send, receive) = mpsc::channel();
            let sample = d.sample(seed);
            // A run that does not end keeps its thread; the process ends all the same.
            std::thread::spawn(move || {
                let Some(s) = sample else { return };
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    if let Ok((graph, args)) = one_op(&*s.op, &operands, is_parameter) {
                        let _ = interpret::run_graph(&graph, &args);
                    }
                }));
                let _ = send.send(outcome.is_ok());
            });
            match receive.recv_timeout(Duration::from_secs(5)) {
                Ok(true) => ran += 1,
                Ok(false) => {
                    failed.insert(format!("{at} panics"));
                }
                Err(_) => {
                    failed.insert(format!("{at} does not end"));
                    break;
                }
            }
        }
    }
    (ran, failed)
}

fn report(ran: usize, failed: &BTreeSet<String>) {
    let list: Vec<&str> = failed.iter().map(String::as_str).collect();
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), ran + failed.len(), list.join("\n"));
    assert!(ran > 500, "only {ran} runs");
}

#[test]
fn extents_of_zero_give_a_result_or_an_error() {
    // Each extent alone, and all.
    let (ran, failed) = failures(6, |extents| {
        let one = |i: usize| extents.iter().enumerate().map(|(k, e)| if k == i { 0 } else { *e }).collect();
        (0..extents.len()).map(one).chain([vec![0; extents.len()]]).collect()
    });
    report(ran, &failed);
}

#[test]
fn products_of_extents_that_overflow_give_a_result_or_an_error() {
    let (ran, failed) = failures(6, |extents| {
        let one = |i: usize| (0..extents.len()).map(|k| if k == i { 0 } else { HUGE }).collect();
        (0..extents.len()).map(one).collect()
    });
    report(ran, &failed);
}

#[test]
fn a_product_without_inner_extent_may_be_too_large() {
    let empty = |dims: [usize; 2]| Value::from(Tensor::from_slice::<f32>(&dims, &[]).unwrap());
    let operands = [empty([1 << 32, 0]), empty([0, 1 << 32])];
    let (graph, args) = one_op(&of_ops::contraction::MatMul {}, &operands, |_, _| false).unwrap();
    let e = interpret::run_graph(&graph, &args).unwrap_err();
    assert!(e.message.contains("too large"), "{e}");
}

/// Ranks that were unknown before the run: inference has checked nothing then.
#[test]
fn other_ranks_give_a_result_or_an_error() {
    let (mut ran, mut failed) = (0, BTreeSet::new());
    for (d, seed, s) in op::samples(6) {
        let Ok((mut graph, args)) = one_op(&*s.op, &s.operands, is_parameter) else { continue };
        let results = graph.walk().into_iter().flat_map(|op| graph.op(op).results.clone());
        let values: Vec<_> = results.chain(graph.args().to_vec()).collect();
        for v in values {
            if let Type::Tensor(t) = graph.ty(v).clone() {
                Rewriter::new(&mut graph, "test").set_type(v, Type::Tensor(TensorType { shape: None, ..t }));
            }
        }
        for change in 0..3 {
            let with = |dims: &[usize]| match change {
                0 => vec![],
                1 => dims[1..].to_vec(),
                _ => [&[1], dims].concat(),
            };
            let args = args.iter().map(|v| match v {
                Value::Tensor(t) if !t.dims().is_empty() => {
                    let dims = with(t.dims());
                    let n = dims.iter().product();
                    repeated(t, dims, n).map(Value::Tensor)
                }
                other => Some(other.clone()),
            });
            let Some(args) = args.collect::<Option<Vec<Value>>>() else { continue };
            match catch_unwind(AssertUnwindSafe(|| interpret::run_graph(&graph, &args))) {
                Ok(_) => ran += 1,
                Err(_) => _ = failed.insert(format!("{} {seed} panics", d.name())),
            }
        }
    }
    report(ran, &failed);
}
