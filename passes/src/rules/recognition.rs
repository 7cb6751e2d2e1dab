//! Recognition rules: a composite written as primitives becomes one op again. A backend may claim it whole, and stores
//! no intermediate result.

use of_ops::elementwise::{Div, Exp, Gelu, Log, Mul, Sigmoid, Sub, Swish};
use of_ops::reduction::{LogSoftmax, ReduceMax, ReduceSum, Softmax};

use super::{code, equation};
use crate::egraph::pattern::{self, Match, Pattern};
use crate::egraph::rule::{Example, ExampleResult, FLOATS, NUMBERS, Rule, Search};
use crate::egraph::view::{Equation, NodeMatch, Term, View};

pub const RULES: &[Rule] = &[
    equation!("relu", Exact, "max(x, 0) = relu(x)", "", NUMBERS),
    equation!("softsign", Rounding, "div(x, add(abs(x), 1)) = softsign(x)", "", FLOATS),
    equation!("softplus", Rounding, "log(add(exp(x), 1)) = softplus(x)", "", FLOATS),
    equation!("mish", Rounding, "mul(x, tanh(softplus(x))) = mish(x)", "", FLOATS),
    equation!("sigmoid", Rounding, "reciprocal(add(exp(neg(x)), 1)) = sigmoid(x)", "", FLOATS),
    equation!("sigmoid-div", Rounding, "div(1, add(exp(neg(x)), 1)) = sigmoid(x)", "", FLOATS),
    equation!("hard-swish", Rounding, "div(mul(x, min(max(add(x, 3), 0), 6)), 6) = hard_swish(x)", "", FLOATS),
    code!("swish", Rounding, swish, swish_example),
    code!("gelu", Rounding, gelu, gelu_example),
    code!("softmax", Rounding, softmax, softmax_example),
    code!("log-softmax", Rounding, log_softmax, log_softmax_example),
];

/// Every match of a pattern, with its class and that of `x`.
fn of_x<'a>(view: &View<'a>, text: &str) -> Vec<(egg::Id, egg::Id, Match<'a>)> {
    let p = pattern::parse(text);
    let Pattern::Op(name, _) = &p else { return Vec::new() };
    let mut out = Vec::new();
    for (class, _) in view.named(name) {
        let mut found = Vec::new();
        pattern::matches(view, &p, class, &Match::default(), &mut found);
        out.extend(found.into_iter().filter_map(|m| Some((class, *m.classes.get("x")?, m))));
    }
    out
}

/// x sigmoid(x) = swish(x)
fn swish(view: &View<'_>, out: &mut Vec<Equation>) {
    for (class, x, m) in of_x(view, "mul(x, sigmoid(x))") {
        out.push(view.equation(class, Term::op(Swish { alpha: 1.0 }, [x.into()]), &m.nodes));
    }
}

fn swish_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let x = e.input(&[2, 3]);
    let s = e.rw.create_one(Sigmoid {}, &[x])?;
    Ok(vec![e.rw.create_one(Mul {}, &[x, s])?])
}

/// x / 2 (1 + erf(x / sqrt 2)) = gelu(x), for each order of the factors
fn gelu(view: &View<'_>, out: &mut Vec<Equation>) {
    const ERF: [&str; 2] = ["erf(div(x, 1.41421356))", "erf(mul(x, 0.70710678))"];
    for erf in ERF {
        for whole in ["mul(mul(x, add(E, 1)), 0.5)", "mul(mul(x, 0.5), add(E, 1))", "mul(x, mul(add(E, 1), 0.5))"] {
            for (class, x, m) in of_x(view, &whole.replace('E', erf)) {
                if view.dtype(x).is_some_and(|t| FLOATS.contains(&t)) {
                    out.push(view.equation(class, Term::op(Gelu { tanh: false }, [x.into()]), &m.nodes));
                }
            }
        }
    }
}

fn gelu_example(e: &mut Example<'_, '_>) -> ExampleResult {
    use of_ops::elementwise::{Add, Erf};
    let x = e.input(&[2, 3]);
    let [root, one, half] = [std::f64::consts::SQRT_2, 1.0, 0.5].map(|n| e.number(n));
    let (root, one, half) = (root?, one?, half?);
    let t = e.rw.create_one(Div {}, &[x, root])?;
    let t = e.rw.create_one(Erf {}, &[t])?;
    let t = e.rw.create_one(Add {}, &[t, one])?;
    let t = e.rw.create_one(Mul {}, &[x, t])?;
    Ok(vec![e.rw.create_one(Mul {}, &[t, half])?])
}

/// The one axis of a reduction that keeps it.
fn axis_of<T>(view: &View<'_>, r: &NodeMatch<'_, T>) -> Option<i64> {
    let [axis] = view.ints(*r.node.children.get(1)?)?[..] else { return None };
    let rank = view.dims(r.operand(0))?.len();
    Some(of_ops::shape::axis(axis, rank).ok()? as i64)
}

/// e / sum(e) with e = exp(x - max(x)) = softmax(x)
fn softmax(view: &View<'_>, out: &mut Vec<Equation>) {
    for div in view.all::<Div>() {
        for sum in view.in_class::<ReduceSum>(div.operand(1)) {
            let Some(axis) = axis_of(view, &sum).filter(|_| sum.op.keepdims) else { continue };
            if !view.same(sum.operand(0), div.operand(0)) {
                continue;
            }
            for exp in view.in_class::<Exp>(div.operand(0)) {
                for (x, nodes) in shifted(view, exp.operand(0), axis) {
                    let from = [vec![div.node, sum.node, exp.node], nodes].concat();
                    out.push(view.equation(div.class, Term::op(Softmax { axis }, [x.into()]), &from));
                }
            }
        }
    }
}

/// x, where a class is x - max(x) along an axis.
fn shifted<'a>(view: &View<'a>, c: egg::Id, axis: i64) -> Vec<(egg::Id, Vec<&'a crate::egraph::language::Node>)> {
    let mut out = Vec::new();
    for sub in view.in_class::<Sub>(c) {
        for max in view.in_class::<ReduceMax>(sub.operand(1)) {
            if max.op.keepdims && axis_of(view, &max) == Some(axis) && view.same(max.operand(0), sub.operand(0)) {
                out.push((sub.operand(0), vec![sub.node, max.node]));
            }
        }
    }
    out
}

/// x - max(x) along an axis, and the axis as an operand.
fn shifted_example(e: &mut Example<'_, '_>) -> Result<(of_ir::ValueId, of_ir::ValueId), of_diag::Diagnostic> {
    let x = e.input(&[2, 3, 4]);
    let axis = e.rng.int(0, 2);
    let axes = e.ints(&[axis])?;
    let m = e.rw.create_one(ReduceMax { keepdims: true }, &[x, axes])?;
    Ok((e.rw.create_one(Sub {}, &[x, m])?, axes))
}

fn softmax_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (d, axes) = shifted_example(e)?;
    let exp = e.rw.create_one(Exp {}, &[d])?;
    let sum = e.rw.create_one(ReduceSum { keepdims: true }, &[exp, axes])?;
    Ok(vec![e.rw.create_one(Div {}, &[exp, sum])?])
}

/// d - log(sum(exp(d))) with d = x - max(x) = log_softmax(x)
fn log_softmax(view: &View<'_>, out: &mut Vec<Equation>) {
    for sub in view.all::<Sub>() {
        for log in view.in_class::<Log>(sub.operand(1)) {
            for sum in view.in_class::<ReduceSum>(log.operand(0)) {
                let Some(axis) = axis_of(view, &sum).filter(|_| sum.op.keepdims) else { continue };
                for exp in view.in_class::<Exp>(sum.operand(0)) {
                    if !view.same(exp.operand(0), sub.operand(0)) {
                        continue;
                    }
                    for (x, nodes) in shifted(view, sub.operand(0), axis) {
                        let from = [vec![sub.node, log.node, sum.node, exp.node], nodes].concat();
                        out.push(view.equation(sub.class, Term::op(LogSoftmax { axis }, [x.into()]), &from));
                    }
                }
            }
        }
    }
}

fn log_softmax_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (d, axes) = shifted_example(e)?;
    let exp = e.rw.create_one(Exp {}, &[d])?;
    let sum = e.rw.create_one(ReduceSum { keepdims: true }, &[exp, axes])?;
    let log = e.rw.create_one(Log {}, &[sum])?;
    Ok(vec![e.rw.create_one(Sub {}, &[d, log])?])
}
