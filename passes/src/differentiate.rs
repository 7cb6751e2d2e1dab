//! `differentiate`: derivatives become the ops that compute them.

mod region;
mod repeat;

use std::collections::{HashMap, HashSet};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Graph, OpId, RegionId, Rewriter, Type, ValueId};
use of_ops::control::{If, Loop, Scan};
use of_ops::elementwise::Add;
use of_ops::movement::Expand;
use of_ops::structural::{Constant, ShapeOf};
use of_ops::training::Gradient;
use of_ops::{GradCx, Kind, OpSpec};

use crate::Pass;
use crate::list::ExpandComposites;

/// Replaces every `of.gradient` by reverse accumulation over the ops between its operands, in order, so that a
/// derivative of a derivative sees the ops of the first.
///
/// An op gives the gradients of its operands by its own rule. One without a rule that has an expansion is expanded where
/// it stands and differentiated as its parts. The derivative of a scan or a loop is a scan the other way,
/// that of a branch a branch on the same condition.
///
/// # Errors
/// An op between the operands that is not differentiable, with its location.
pub fn differentiate(func: &mut Func) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::default();
    let mut rw = Rewriter::new(&mut func.graph, "differentiate");
    let mut all = rw.graph().walk();
    all.retain(|op| rw.graph().op(*op).name() == Gradient::NAME);
    for op in all {
        if let Err(d) = resolve(&mut rw, op, None) {
            errors.0.push(d);
        }
    }
    errors.into_result(())
}

/// One derivative on its way back from `y`.
struct Tape {
    /// Values that depend on `xs` by floats.
    active: HashSet<ValueId>,
    /// Ops that are still to be passed, the last first to come.
    path: Vec<OpId>,
    /// The derivative by each value that was reached.
    grads: HashMap<ValueId, ValueId>,
}

/// Replaces `gradient`. Where `within` says so, all values from outside of that region are taken to be independent.
fn resolve(rw: &mut Rewriter<'_>, gradient: OpId, within: Option<RegionId>) -> Result<(), Diagnostic> {
    rw.rewrite(gradient, &[]);
    let operands = rw.graph().op(gradient).operands.to_vec();
    let Some((y, xs)) = operands.split_first() else { return Ok(()) };
    let mut tape = Tape { active: xs.iter().copied().collect(), path: Vec::new(), grads: HashMap::new() };
    let before = rw.graph().walk().into_iter().take_while(|op| *op != gradient);
    for op in before.collect::<Vec<_>>() {
        if within.is_none_or(|r| rw.graph().encloses(r, rw.graph().op(op).parent)) {
            tape.visit(rw.graph(), op);
        }
    }
    tape.keep_path_to(rw.graph(), *y);
    if tape.active.contains(y) {
        let ones = filled(rw, 1.0, *y)?;
        tape.grads.insert(*y, ones);
    }
    while let Some(op) = tape.path.pop() {
        tape.step(rw, gradient, op)?;
    }
    rw.rewrite(gradient, &[]);
    // Where an op was expanded, its results have become others.
    let xs = rw.graph().op(gradient).operands[1..].to_vec();
    let mut results = Vec::with_capacity(xs.len());
    for x in xs {
        results.push(match tape.grads.get(&x) {
            Some(g) => *g,
            None => filled(rw, 0.0, x)?,
        });
    }
    rw.replace(gradient, &results);
    Ok(())
}

/// A tensor of the type of `like` whose elements are all `value`.
fn filled(rw: &mut Rewriter<'_>, value: f64, like: ValueId) -> Result<ValueId, Diagnostic> {
    let dtype = rw.graph().ty(like).as_tensor().map_or(of_ir::DType::F32, |t| t.dtype);
    let value = Constant::number(rw, value, dtype)?;
    let dims = rw.create_one(ShapeOf { start: None, end: None }, &[like])?;
    rw.create_one(Expand {}, &[value, dims])
}

fn is_float(g: &Graph, v: ValueId) -> bool {
    matches!(g.ty(v), Type::Tensor(t) if t.dtype.is_float())
}

/// What helps where an op has a gradient for extents that are numbers alone.
const OPEN: &str = "some of its extents are not known: 'infer-shapes' finds those that follow, 'specialize' (or --shape) gives numbers to others";

impl Tape {
    /// Follows `op` forward: floats that it makes of active values are active.
    fn visit(&mut self, g: &Graph, op: OpId) {
        if self.reads_active(g, op) {
            let results = &g.op(op).results;
            let floats: Vec<ValueId> = results.iter().copied().filter(|v| is_float(g, *v)).collect();
            if !floats.is_empty() {
                self.active.extend(floats);
                self.path.push(op);
            }
        }
    }

    /// Whether `op`, or an op in its regions, reads an active value.
    fn reads_active(&self, g: &Graph, op: OpId) -> bool {
        let data = g.op(op);
        let inside = |r: &of_ir::RegionId| g.region_ops(*r).any(|inner| self.reads_active(g, inner));
        data.operands.iter().any(|v| self.active.contains(v)) || data.regions.iter().any(inside)
    }

    /// Leaves the ops on which `y` depends.
    fn keep_path_to(&mut self, g: &Graph, y: ValueId) {
        let mut needed = HashSet::from([y]);
        let mut kept = Vec::new();
        for op in self.path.iter().rev() {
            let data = g.op(*op);
            if data.results.iter().any(|v| needed.contains(v)) {
                let inside = g.captured(*op);
                needed.extend(data.operands.iter().copied().chain(inside).filter(|v| self.active.contains(v)));
                kept.push(*op);
            }
        }
        kept.reverse();
        self.path = kept;
    }

    /// Carries the derivatives by the results of `op` to its operands.
    fn step(&mut self, rw: &mut Rewriter<'_>, gradient: OpId, op: OpId) -> Result<(), Diagnostic> {
        let data = rw.graph().op(op);
        let (operands, results, loc) = (data.operands.to_vec(), data.results.to_vec(), data.loc.clone());
        let name = data.name();
        let grads: Vec<Option<ValueId>> = results.iter().map(|v| self.grads.get(v).copied()).collect();
        if grads.iter().all(Option::is_none) {
            return Ok(());
        }
        match name {
            Scan::NAME | Loop::NAME => return self.repeat(rw, gradient, op),
            If::NAME => return self.branch(rw, gradient, op),
            _ => {}
        }
        let fixed = |v: &ValueId| rw.graph().ty(*v).as_tensor().is_none_or(|t| t.fixed_dims().is_some());
        let open = !operands.iter().chain(&results).all(fixed);
        let none = || {
            let what = format!("'{name}' has no gradient, and a derivative passes through it");
            let d = Diagnostic::error(Code::UNSUPPORTED, loc.clone(), what);
            if open { d.hint(OPEN) } else { d }
        };
        let imp = of_ops::get(rw.graph(), op).ok_or_else(none)?;
        rw.rewrite(op, &[gradient]);
        rw.before(gradient);
        let mut cx = GradCx { rw, operands: &operands, results: &results, grads: &grads };
        match imp.gradient(&mut cx) {
            Some(list) => {
                for (v, g) in operands.iter().zip(list.map_err(|d| d.or_at(&loc))?) {
                    if let Some(g) = g.filter(|_| self.active.contains(v)) {
                        self.add(rw, *v, g)?;
                    }
                }
                Ok(())
            }
            None if imp.expands() => {
                let first_new = rw.graph().op_slots();
                // A primitive still gives its result: backends have code for it. Its parts are there for the derivative.
                let replaces = imp.decl().kind() == Kind::Composite;
                let at = if replaces { op } else { gradient };
                if replaces {
                    rw.set_location(Location::derived(ExpandComposites::NAME, [&loc]));
                }
                rw.before(at);
                let values = imp.expand(rw, &operands).map_err(|d| d.or_at(&loc))?;
                if values.len() != results.len() {
                    return Err(none());
                }
                let new = rw.graph().ops_before(at).take_while(|o| o.index() >= first_new);
                let parts: Vec<OpId> = new.collect();
                rw.rewrite(op, &[gradient]);
                rw.before(gradient);
                for (v, g) in values.iter().zip(grads) {
                    if let Some(g) = g {
                        self.add(rw, *v, g)?;
                    }
                }
                if replaces {
                    rw.replace(op, &values);
                }
                parts.into_iter().rev().for_each(|o| self.visit(rw.graph(), o));
                Ok(())
            }
            None => Err(none()),
        }
    }

    /// Adds to the derivative by `v`.
    fn add(&mut self, rw: &mut Rewriter<'_>, v: ValueId, g: ValueId) -> Result<(), Diagnostic> {
        let sum = match self.grads.get(&v) {
            Some(before) => rw.create_one(Add {}, &[*before, g])?,
            None => g,
        };
        self.grads.insert(v, sum);
        Ok(())
    }
}
