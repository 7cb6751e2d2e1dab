//! Folding rules: evaluate small constants in the e-graph, so that other rules can read them. `fold-constants`
//! evaluates large ones; expressions of constants are almost free here.

use egg::Id;
use of_ir::Tensor;
use of_ops::elementwise::{Add, Mul};
use of_ops::structural::Constant;
use of_ops::{Inputs, OpSpec, Value};

use super::code;
use crate::egraph::language::Node;
use crate::egraph::rule::{Example, ExampleResult, Rule, Search};
use crate::egraph::view::{Equation, Term, View};

pub const RULES: &[Rule] =
    &[code!("fold", Exact, fold, fold_example), code!("neutral", ZeroSign, neutral, neutral_example)];

/// Most elements of operands and results.
const MAX_ELEMENTS: usize = 64;

/// f(constants) = constant
fn fold(view: &View<'_>, out: &mut Vec<Equation>) {
    for class in view.classes() {
        let small = view.dims(*class).is_some_and(|d| d.iter().product::<usize>() <= MAX_ELEMENTS);
        if !view.known(*class) || !small || view.constant(*class).is_some() {
            continue;
        }
        if let Some((node, value)) = view.nodes(*class).iter().find_map(|n| Some((n, evaluate(view, *class, n)?))) {
            out.push(view.equation(*class, Term::constant(value), &[node]));
        }
    }
}

fn evaluate(view: &View<'_>, class: Id, node: &Node) -> Option<Tensor> {
    let (def, attrs) = view.graph.op_and_attrs(node)?;
    let value = |c: &Id| match view.left_out(*c) {
        true => Some(Value::None),
        false => view.constant(*c).filter(|t| t.len() <= MAX_ELEMENTS).map(Value::Tensor),
    };
    let values = node.children.iter().map(value).collect::<Option<Vec<_>>>()?;
    let op = of_ops::decl(def.name())?.decode(attrs).ok()?;
    let types = [view.graph.ty(class)];
    let mut no_region = |_: usize, _: &[Value]| Err(of_ir::OpError::eval("the op has no region"));
    match op.eval(&mut Inputs { values: &values, types: &types, region: &mut no_region }).ok()?.pop()? {
        Value::Tensor(t) if t.ty().dtype == types[0].as_tensor()?.dtype => Some(t),
        _ => None,
    }
}

fn fold_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let (a, b) = (e.known(&[2])?, e.known(&[2])?);
    Ok(vec![e.rw.create_one(Add {}, &[a, b])?])
}

/// x + 0 = x, x 1 = x, where the shape stays the same
fn neutral(view: &View<'_>, out: &mut Vec<Equation>) {
    for (name, number) in [(Add::NAME, 0.0), (Mul::NAME, 1.0)] {
        for (class, node) in view.named(name) {
            for (x, n) in [(0, 1), (1, 0)].map(|(a, b)| (node.children[a], node.children[b])) {
                if view.splat(n) == Some(number) && view.graph.ty(x) == view.graph.ty(class) {
                    out.push(view.equation(class, Term::Class(x), &[node]));
                }
            }
        }
    }
}

fn neutral_example(e: &mut Example<'_, '_>) -> ExampleResult {
    let x = e.input(&[2, 3]);
    let zero = e.rw.create_one(Constant { value: Tensor::scalar(0f32) }, &[])?;
    let one = e.rw.create_one(Constant { value: Tensor::scalar(1f32) }, &[])?;
    Ok(vec![e.rw.create_one(Add {}, &[x, zero])?, e.rw.create_one(Mul {}, &[one, x])?])
}
