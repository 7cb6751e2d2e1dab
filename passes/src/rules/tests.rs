//! Tests every rule on random instances: both sides of each equation compute the same.

use std::collections::BTreeMap;

use egg::Id;
use of_diag::{Diagnostic, Location};
use of_ir::{DType, Graph, Rewriter, Tensor, Type, ValueId};
use of_ops::Value;
use of_ops::exactness::Exactness;
use of_ops::interpret::run_graph;
use of_ops::sample::Rng;
use of_ops::structural::{Constant, Return};
use of_test_support::compare::{Tolerance, difference};

use crate::egraph::graph::EGraph;
use crate::egraph::pattern::{self, Pattern};
use crate::egraph::rule::{Example, Rule, Search};
use crate::egraph::saturate::search;
use crate::egraph::view::{Equation, Term, View};
use crate::test_values::{bits_differ, special};

/// Instances made of each rule, and how many of them must match at least.
const INSTANCES: u64 = 24;
const FOUND: usize = 4;

#[test]
fn both_sides_of_every_rule_compute_the_same() {
    let mut wrong = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for rule in super::all() {
        assert!(names.insert(rule.name), "two rules are called {}", rule.name);
        let (mut checked, mut directions) = (0, std::collections::BTreeSet::new());
        for seed in 0..INSTANCES {
            for direction in 0..rule.search.compile().len().max(1) {
                match check(rule, direction, seed, false) {
                    Ok(0) => {}
                    Ok(n) => {
                        checked += n;
                        directions.insert(direction);
                    }
                    Err(e) => wrong.push(format!("{}, seed {seed}: {e}", rule.name)),
                }
                if rule.exactness.keeps_roundings()
                    && let Err(e) = check(rule, direction, seed, true)
                {
                    wrong.push(format!("{} is not exact, seed {seed}: {e}", rule.name));
                }
            }
        }
        if checked < FOUND || directions.len() < rule.search.compile().len() {
            wrong.push(format!("{} was found {checked} times, {directions:?}", rule.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Makes one instance and compares both sides of every equation that the rule finds in it. Returns the number of
/// equations. With `bits` operands are special numbers, and every bit must be the same that the rule promises.
fn check(rule: &Rule, direction: usize, seed: u64, bits: bool) -> Result<usize, String> {
    let mut graph = Graph::new();
    let mut rng = Rng::new(seed);
    let made = make(rule, direction, &mut graph, &mut rng, bits).map_err(|d| d.message)?;
    let inputs: Vec<Value> = (graph.args().iter())
        .map(|v| {
            let Type::Tensor(t) = graph.ty(*v) else { return Value::None };
            let dims = t.fixed_dims().unwrap_or_default();
            // Integers may be indices.
            match bits && t.dtype.is_float() {
                true => special(&mut rng, t.dtype, &dims).into(),
                false => rng.tensor(t.dtype, &dims, low(t.dtype), 3.0).into(),
            }
        })
        .collect();

    // The instance as an e-graph.
    let mut e = EGraph::default();
    let mut classes: BTreeMap<ValueId, Id> = BTreeMap::new();
    for (i, v) in graph.args().iter().enumerate() {
        classes.insert(*v, e.leaf(i as u32, graph.ty(*v), None));
    }
    let entry = graph.entry();
    for op in graph.region_ops(entry) {
        let operands: Vec<Id> = graph.op(op).operands.iter().map(|v| classes[v]).collect();
        let id = e.original(&graph, op, &operands).ok_or("an op was refused")?;
        classes.insert(graph.op(op).results[0], id);
    }
    e.egg.rebuild();
    let mut equations = Vec::new();
    {
        let view = View::new(&e);
        equations.extend(search(rule, &rule.search.compile(), &view));
    }
    let mut count = 0;
    for q in &equations {
        count += usize::from(compare(&graph, &mut e, &classes, q, &inputs, bits.then_some(rule.exactness))?);
    }
    if made.is_empty() { Err("the example gives no value".into()) } else { Ok(count) }
}

/// Lower end of operand values; positive where logarithms and roots need it.
fn low(dtype: DType) -> f64 {
    if dtype.is_float() { 0.25 } else { 0.0 }
}

/// The left side of a rule with random operands.
fn make(
    rule: &Rule,
    direction: usize,
    graph: &mut Graph,
    rng: &mut Rng,
    bits: bool,
) -> Result<Vec<ValueId>, Diagnostic> {
    let mut rw = Rewriter::new(graph, "test");
    match rule.search {
        Search::Code { example, .. } => example(&mut Example { rw: &mut rw, rng, inputs: Vec::new() }),
        Search::Text { shapes, types, .. } => {
            let left = &rule.search.compile()[direction];
            let dtype = rng.pick(types);
            let variables = operands(&mut rw, rng, left.left(), &pattern::shapes(shapes), dtype, bits)?;
            Ok(vec![build(&mut rw, left.left(), &variables, dtype)?])
        }
    }
}

/// A value for each variable: of its declared shape, or of one that broadcasts with the others.
fn operands(
    rw: &mut Rewriter<'_>,
    rng: &mut Rng,
    left: &Pattern,
    shapes: &BTreeMap<String, pattern::ShapePattern>,
    dtype: DType,
    bits: bool,
) -> Result<BTreeMap<String, ValueId>, Diagnostic> {
    let mut names = Vec::new();
    pattern::variables(left, &mut names);
    let whole = rng.dims(3, 1, 4);
    let mut extents: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut out = BTreeMap::new();
    for name in names {
        let dims = match shapes.get(&name) {
            Some(d) => {
                let mut dims = match &d.lead {
                    Some(l) => extents.entry(l.clone()).or_insert_with(|| rng_dims(rng)).clone(),
                    None => Vec::new(),
                };
                for a in &d.axes {
                    match a.parse() {
                        Ok(n) => dims.push(n),
                        Err(_) => dims.extend(extents.entry(a.clone()).or_insert_with(|| rng.dims(1, 1, 4)).iter()),
                    }
                }
                dims
            }
            None => {
                let from = rng.int(0, 3) as usize;
                whole[from..].iter().map(|d| if rng.int(0, 3) == 0 { 1 } else { *d }).collect()
            }
        };
        // The condition of a selection.
        let own = if name == "c" && names_condition(left) { DType::Bool } else { dtype };
        let value = if name.starts_with(char::is_uppercase) {
            let value = match bits && own.is_float() {
                true => special(rng, own, &dims),
                false => rng.tensor(own, &dims, if own.is_float() { 0.25 } else { 0.0 }, 3.0),
            };
            rw.create_one(Constant { value }, &[])?
        } else {
            let entry = rw.graph().entry();
            rw.add_arg(entry, Type::fixed(own, &dims), None)
        };
        out.insert(name, value);
    }
    Ok(out)
}

fn rng_dims(rng: &mut Rng) -> Vec<usize> {
    let rank = rng.int(0, 2) as usize;
    rng.dims(rank, 1, 3)
}

fn names_condition(p: &Pattern) -> bool {
    match p {
        Pattern::Op(name, operands) => name == "of.select" || operands.iter().any(names_condition),
        _ => false,
    }
}

fn build(
    rw: &mut Rewriter<'_>,
    p: &Pattern,
    variables: &BTreeMap<String, ValueId>,
    dtype: DType,
) -> Result<ValueId, Diagnostic> {
    match p {
        Pattern::Variable(v) => Ok(variables[v]),
        Pattern::Number(n) => Constant::number(rw, *n, dtype),
        Pattern::Op(name, operands) => {
            let operands = operands.iter().map(|o| build(rw, o, variables, dtype)).collect::<Result<Vec<_>, _>>()?;
            let (def, attrs) = pattern::bare(name).expect("rules name ops of the list");
            rw.create_one((def, attrs), &operands)
        }
    }
}

/// Evaluates both sides; whether the right side could be made.
fn compare(
    graph: &Graph,
    e: &mut EGraph,
    classes: &BTreeMap<ValueId, Id>,
    q: &Equation,
    inputs: &[Value],
    exactness: Option<Exactness>,
) -> Result<bool, String> {
    let mut g = graph.clone();
    let find = |id: Id| classes.iter().find(|(_, c)| e.egg.find(**c) == e.egg.find(id)).map(|(v, _)| *v);
    let left = find(q.class).ok_or("an equation about a class that is not in the graph")?;
    let mut rw = Rewriter::new(&mut g, "test");
    rw.set_location(Location::Unknown);
    let right = term(&mut rw, &q.term, &find).map_err(|d| format!("the right side does not fit: {}", d.message))?;
    if rw.graph().ty(left) != rw.graph().ty(right) {
        // The e-graph does not take such an equation.
        return Ok(false);
    }
    rw.create(Return {}, &[left, right]).map_err(|d| d.message)?;
    let out = run_graph(&g, inputs).map_err(|d| d.message)?;
    let [Value::Tensor(a), Value::Tensor(b)] = &out[..] else { return Err("no tensors".into()) };
    let same = match exactness {
        Some(e) => bits_differ(&out[..1], &out[1..], e == Exactness::Exact).is_none(),
        None => close(a, b),
    };
    if same {
        Ok(true)
    } else {
        Err(format!("{:?} is not {:?} in\n{g:?}", a.elements(), b.elements(), g = of_ir::Func::numbered(g.clone())))
    }
}

fn term(rw: &mut Rewriter<'_>, t: &Term, find: &impl Fn(Id) -> Option<ValueId>) -> Result<ValueId, Diagnostic> {
    match t {
        Term::Class(id) => Ok(find(*id).expect("the class of a value")),
        Term::Op(def, attrs, operands) => {
            let operands = operands.iter().map(|o| term(rw, o, find)).collect::<Result<Vec<_>, _>>()?;
            rw.create_one((*def, attrs.clone()), &operands)
        }
    }
}

/// Floats differ by rounding: by little against the largest of them.
fn close(a: &Tensor, b: &Tensor) -> bool {
    let unit = if a.dtype() == DType::F64 { 1e-12 } else { 1e-5 };
    difference(&[a.clone().into()], &[b.clone().into()], Tolerance::of_largest(20.0 * unit)).is_none()
}
