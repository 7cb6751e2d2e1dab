//! Minimizes a failing case.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use of_diag::Diagnostic;
use of_ir::text::{Constants, PrintOptions, print_module};
use of_ir::{Elements, Graph, IdMap, IdSet, OpId, Rewriter, Tensor, Type, ValueId};
use of_ops::Value;
use of_ops::interpret::type_of;
use of_ops::structural::{Constant, Return};

use crate::Case;
use crate::copy::copy_op;
use crate::evaluate::{Values, exact};
use crate::open::Opening;

/// The smallest case found for which `fails` still holds.
pub fn shrink(case: &Case, fails: &mut dyn FnMut(&Case) -> bool) -> Case {
    let mut best = case.clone();
    loop {
        let guarded = |make: &Make| catch_unwind(AssertUnwindSafe(|| make(&best))).ok().flatten();
        let found = candidates(&best).iter().find_map(|make| guarded(make).filter(|c| smaller(c, &best) && fails(c)));
        match found {
            Some(c) => best = c,
            None => return best,
        }
    }
}

/// The text of a case, with its small inputs.
pub fn show(case: &Case) -> String {
    let options = PrintOptions { constants: Constants::Elided, ..PrintOptions::default() };
    let mut out = print_module(&case.module(), &options);
    if case.opening != Opening::Closed {
        out += &format!("// opening: {:?}\n", case.opening);
    }
    for (name, v) in case.func.inputs.iter().zip(&case.inputs) {
        let text = match v {
            Value::Tensor(t) if t.len() <= 32 => match t.elements() {
                Elements::Float(v) => format!("{v:?}"),
                Elements::Int(v) => format!("{v:?}"),
                Elements::Str(v) => format!("{v:?}"),
            },
            Value::Tensor(_) => "…".into(),
            other => format!("{other:?}"),
        };
        out += &format!("// {name} = {text}\n");
    }
    out
}

/// The size of a case: ops, outputs, elements.
fn size(case: &Case) -> (usize, usize, usize) {
    let g = &case.func.graph;
    let elements = |v: &Value| if let Value::Tensor(t) = v { t.dims().iter().map(|d| d + 1).sum() } else { 1 };
    let constants = g.walk().into_iter().filter_map(|op| g.op(op).def.constant(&g.op(op).attrs));
    let held: usize = constants.map(|t| t.dims().iter().map(|d| d + 1).sum::<usize>()).sum();
    let ops = g.walk().len() - g.walk().iter().filter(|op| g.op(**op).def.traits().constant).count();
    (ops, g.outputs().len(), held + case.inputs.iter().map(elements).sum::<usize>())
}

fn smaller(a: &Case, b: &Case) -> bool {
    size(a) < size(b)
}

type Make = Box<dyn Fn(&Case) -> Option<Case>>;

/// Reductions to try, the largest first.
fn candidates(case: &Case) -> Vec<Make> {
    let g = &case.func.graph;
    let mut out: Vec<Make> = Vec::new();
    let outputs = g.outputs().len();
    if outputs > 1 {
        out.extend(
            (0..outputs)
                .map(|i| -> Make { Box::new(move |c| rebuild(c, &Edit { output: Some(i), ..Edit::default() })) }),
        );
    }
    let absent = |op: &OpId| g.op(*op).results.iter().any(|v| *g.ty(*v) == Type::None);
    let fixed = |op: &OpId| g.op(*op).def.traits().constant || absent(op);
    let ops: Vec<OpId> = g.region_ops(g.entry()).filter(|op| !fixed(op)).collect();
    // All ops before an op are replaced by inputs: the later the op, the more are removed.
    for op in ops.iter().rev().copied() {
        out.push(Box::new(move |c| rebuild(c, &Edit { cut: Some(op), ..Edit::default() })));
    }
    for op in ops.iter().rev().copied() {
        out.push(Box::new(move |c| rebuild(c, &Edit { bypass: Some(op), ..Edit::default() })));
    }
    let mut sizes: Vec<usize> =
        case.inputs.iter().flat_map(|v| if let Value::Tensor(t) = v { t.dims().to_vec() } else { vec![] }).collect();
    sizes.extend(
        ops.iter().flat_map(|op| &g.op(*op).operands).filter_map(|v| g.constant(*v)).flat_map(|t| t.dims().to_vec()),
    );
    sizes.sort_unstable();
    sizes.dedup();
    for from in sizes.into_iter().rev() {
        for to in
            [0, 1, 2, from / 2, from.saturating_sub(8), from.saturating_sub(1)].into_iter().filter(|to| *to < from)
        {
            out.push(Box::new(move |c| rebuild(c, &Edit { resize: Some((from, to)), ..Edit::default() })));
        }
    }
    out
}

#[derive(Default)]
struct Edit {
    /// The only output that is kept.
    output: Option<usize>,
    /// The op whose results become inputs.
    cut: Option<OpId>,
    /// The op whose results are replaced by operands of their type.
    bypass: Option<OpId>,
    /// Dimensions of one size are changed to another.
    resize: Option<(usize, usize)>,
}

fn rebuild(case: &Case, edit: &Edit) -> Option<Case> {
    let values = exact(&case.func.graph, &case.inputs).ok()?;
    try_rebuild(case, edit, &values).ok().flatten()
}

fn try_rebuild(case: &Case, edit: &Edit, values: &Values) -> Result<Option<Case>, Diagnostic> {
    let from = &case.func.graph;
    let mut outputs: Vec<ValueId> = from.outputs().to_vec();
    if let Some(i) = edit.output {
        outputs = vec![outputs[i]];
    }
    let replaced = edit.bypass.map(|op| replacements(from, op)).unwrap_or_default();
    let follow = |v: ValueId| replaced.get(&v).copied().unwrap_or(v);
    let needed = needed(from, &outputs, edit.cut, &follow);
    let mut graph = Graph::new();
    let entry = graph.entry();
    let (mut map, mut inputs) = (HashMap::default(), Vec::new());
    let mut rw = Rewriter::new(&mut graph, "fuzz");
    let resized = |v: &Value| match (v, edit.resize) {
        (Value::Tensor(t), Some((a, b))) => resize(t, a, b).map_or_else(|| v.clone(), Value::Tensor),
        _ => v.clone(),
    };
    for (v, value) in from.args().iter().zip(&case.inputs) {
        if needed.contains(v) {
            let value = resized(value);
            map.insert(*v, rw.add_arg(entry, type_of(&value), None));
            inputs.push(value);
        }
    }
    for op in from.region_ops(from.entry()) {
        let data = from.op(op);
        if edit.cut == Some(op) {
            for v in data.results.iter().filter(|v| needed.contains(v)) {
                map.insert(*v, rw.add_arg(entry, from.ty(*v).clone(), None));
                inputs.push(values[v].clone());
            }
            continue;
        }
        if data.def.traits().terminator || !data.results.iter().any(|v| needed.contains(v)) || edit.bypass == Some(op) {
            continue;
        }
        if data.regions.is_empty() {
            let operands: Vec<ValueId> = data.operands.iter().map(|v| map[&follow(*v)]).collect();
            let new = match data.def.constant(&data.attrs).map(Value::Tensor).map(|v| resized(&v)) {
                Some(Value::Tensor(value)) => rw.create(Constant { value }, &[])?,
                _ => rw.create((data.def, data.attrs.clone()), &operands)?,
            };
            let results = rw.graph().op(new).results.to_vec();
            if results.len() != data.results.len() {
                return Ok(None);
            }
            map.extend(data.results.iter().copied().zip(results));
        } else {
            if edit.resize.is_some() {
                return Ok(None);
            }
            for (a, b) in &replaced {
                let to = map.get(b).copied();
                map.extend(to.map(|to| (*a, to)));
            }
            copy_op(&mut rw, from, op, &mut map)?;
        }
    }
    let outputs: Vec<ValueId> = outputs.iter().map(|v| map[&follow(*v)]).collect();
    rw.create(Return {}, &outputs)?;
    let case = Case { opening: case.opening, ..Case::new(graph, inputs) };
    // A case that the interpreter rejects fails for another reason.
    Ok(exact(&case.func.graph, &case.inputs).is_ok().then_some(case))
}

/// For each result of `op` an operand of the same type, where there is one.
fn replacements(g: &Graph, op: OpId) -> IdMap<ValueId, ValueId> {
    let data = g.op(op);
    let same = |v: &ValueId| data.operands.iter().find(|o| g.ty(**o) == g.ty(*v)).map(|o| (*v, *o));
    data.results.iter().filter_map(same).collect()
}

/// Values that the outputs depend on.
fn needed(g: &Graph, outputs: &[ValueId], cut: Option<OpId>, follow: &dyn Fn(ValueId) -> ValueId) -> IdSet<ValueId> {
    fn reads(g: &Graph, op: OpId, out: &mut Vec<ValueId>) {
        out.extend(&g.op(op).operands);
        for r in &g.op(op).regions {
            g.region_ops(*r).for_each(|inner| reads(g, inner, out));
        }
    }
    let mut seen = HashSet::default();
    let mut todo: Vec<ValueId> = outputs.iter().map(|v| follow(*v)).collect();
    while let Some(v) = todo.pop() {
        if !seen.insert(v) {
            continue;
        }
        if let Some(op) = g.def_op(v).filter(|op| Some(*op) != cut) {
            let mut all = Vec::new();
            reads(g, op, &mut all);
            todo.extend(all.into_iter().map(follow));
        }
    }
    seen
}

/// The leading part of `t` along every axis of size `from`.
fn resize(t: &Tensor, from: usize, to: usize) -> Option<Tensor> {
    let dims: Vec<usize> = t.dims().iter().map(|d| if *d == from { to } else { *d }).collect();
    if dims == t.dims() {
        return None;
    }
    let mut picked = Vec::new();
    let n: usize = dims.iter().product();
    for i in 0..n {
        let (mut rest, mut at, mut stride) = (i, 0, 1);
        for (own, new) in t.dims().iter().zip(&dims).rev() {
            at += rest % new * stride;
            rest /= new;
            stride *= own;
        }
        picked.push(at);
    }
    let elements = match t.elements() {
        Elements::Float(v) => Elements::Float(picked.iter().map(|i| v[*i]).collect()),
        Elements::Int(v) => Elements::Int(picked.iter().map(|i| v[*i]).collect()),
        Elements::Str(v) => Elements::Str(picked.iter().map(|i| v[*i].clone()).collect()),
    };
    Tensor::from_elements(t.dtype(), dims, elements).ok()
}
