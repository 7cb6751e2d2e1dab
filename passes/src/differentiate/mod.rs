//! `differentiate`: reverse-mode automatic differentiation. Gradients become the ops that compute them.

mod region;
mod repeat;

use std::collections::{HashMap, HashSet};

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Func, Graph, IdMap, IdSet, OpId, RegionId, Rewriter, Type, ValueId};
use of_ops::control::{If, Loop, Scan};
use of_ops::elementwise::Add;
use of_ops::movement::Expand;
use of_ops::structural::{Constant, ShapeOf};
use of_ops::training::Gradient;
use of_ops::{GradCx, Kind, OpSpec};

use crate::canonicalize::sequences_to_tensors;
use crate::expand_composites;

/// Replaces every `of.gradient` by reverse accumulation over the ops between its operands. Gradients are replaced in
/// order, so that a gradient of a gradient sees the ops of the first.
///
/// An op gives the gradients of its operands by its own rule. An op without a rule but with an expansion is expanded in
/// place and differentiated as its parts. The gradient of a scan or a loop is a reversed scan, that of a branch is a
/// branch on the same condition.
///
/// # Errors
/// Every op between the operands that is not differentiable, with its location.
pub fn differentiate(func: &mut Func) -> Result<(), Diagnostics> {
    let gradients = |g: &Graph| {
        let mut all = g.walk();
        all.retain(|op| g.op(*op).name() == Gradient::NAME);
        all
    };
    if gradients(&func.graph).is_empty() {
        return Ok(());
    }
    // Gradients propagate through tensors alone.
    sequences_to_tensors(func)?;
    let mut errors = Diagnostics::default();
    let mut rw = Rewriter::new(&mut func.graph, "differentiate");
    let all = gradients(rw.graph());
    for op in all {
        if let Err(more) = resolve(&mut rw, op, None) {
            add_new(&mut errors, more);
        }
    }
    errors.into_result(())
}

/// Adds the diagnostics that a list does not have. An op on the path of several gradients is reported once.
fn add_new(errors: &mut Diagnostics, more: Diagnostics) {
    for d in more.0 {
        if !errors.0.contains(&d) {
            errors.0.push(d);
        }
    }
}

/// The state of one reverse accumulation from `y`.
struct Tape {
    /// Values that depend on `xs` through floats: tensors, and sequences and optionals of them.
    active: IdSet<ValueId>,
    /// Ops still to be visited; the last is the next.
    path: Vec<OpId>,
    /// The gradient with respect to each value visited so far.
    grads: IdMap<ValueId, ValueId>,
    /// The ops that are not differentiable.
    errors: Diagnostics,
}

/// Replaces `gradient`. With `within`, values from outside of that region are taken as independent of `xs`.
///
/// # Errors
/// All ops on the path that are not differentiable. `gradient` is replaced all the same, so that the caller can look for more.
fn resolve(rw: &mut Rewriter<'_>, gradient: OpId, within: Option<RegionId>) -> Result<(), Diagnostics> {
    rw.rewrite(gradient, &[]);
    let operands = rw.graph().op(gradient).operands.to_vec();
    let Some((y, xs)) = operands.split_first() else { return Ok(()) };
    let mut tape = Tape {
        active: xs.iter().copied().collect(),
        path: Vec::new(),
        grads: HashMap::default(),
        errors: Diagnostics::default(),
    };
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
        let reads = [&rw.graph().op(op).operands[..], &rw.graph().captured(op)].concat();
        if let Err(d) = tape.step(rw, gradient, op) {
            add_new(&mut tape.errors, d.into());
            tape.skip(rw, gradient, &reads)?;
        }
    }
    rw.rewrite(gradient, &[]);
    // Expansion replaces results of ops.
    let xs = rw.graph().op(gradient).operands[1..].to_vec();
    let mut results = Vec::with_capacity(xs.len());
    for x in xs {
        results.push(match tape.grads.get(&x) {
            Some(g) => *g,
            None => filled(rw, 0.0, x)?,
        });
    }
    rw.replace(gradient, &results);
    tape.errors.into_result(())
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

/// Whether a value has floats: a tensor, or a sequence or an optional of some.
fn has_floats(ty: &Type) -> bool {
    match ty {
        Type::Tensor(t) => t.dtype.is_float(),
        Type::Sequence(element) | Type::Optional(element) => has_floats(element),
        _ => false,
    }
}

/// The hint where an op has a gradient only for known extents.
const OPEN_EXTENTS_HINT: &str =
    "some of its extents are unknown: 'infer-shapes' infers some, 'specialize' (or --shape) binds others";

impl Tape {
    /// Forward activity analysis: results of active operands that have floats are active. Sequences and optionals have no gradient, so a
    /// path through them ends in an error rather than in zeros.
    fn visit(&mut self, g: &Graph, op: OpId) {
        if self.reads_active(g, op) {
            let results = &g.op(op).results;
            let floats: Vec<ValueId> = results.iter().copied().filter(|v| has_floats(g.ty(*v))).collect();
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

    /// Keeps the ops on which `y` depends.
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

    /// Propagates the gradients of the results of `op` to its operands (vector-Jacobian product).
    fn step(&mut self, rw: &mut Rewriter<'_>, gradient: OpId, op: OpId) -> Result<(), Diagnostic> {
        let data = rw.graph().op(op);
        let (operands, results, loc) = (data.operands.to_vec(), data.results.to_vec(), data.loc.clone());
        let name = data.name();
        let grads: Vec<Option<ValueId>> = results.iter().map(|v| self.grads.get(v).copied()).collect();
        if grads.iter().all(Option::is_none) {
            return Ok(());
        }
        let fixed = |v: &ValueId| rw.graph().ty(*v).as_tensor().is_none_or(|t| t.fixed_dims().is_some());
        let open = !operands.iter().chain(&results).all(fixed);
        let none = || {
            let what = format!("'{name}' has no gradient, but a gradient propagates through it");
            let d = Diagnostic::error(Code::UNSUPPORTED, loc.clone(), what);
            if open { d.hint(OPEN_EXTENTS_HINT) } else { d }
        };
        let captured = rw.graph().captured(op);
        if captured.iter().any(|v| self.active.contains(v) && !is_float(rw.graph(), *v)) {
            return Err(none());
        }
        match name {
            Scan::NAME | Loop::NAME => return self.repeat(rw, gradient, op),
            If::NAME => return self.branch(rw, gradient, op),
            _ => {}
        }
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
                // A primitive keeps its result, for which backends have code; its expansion only serves the gradient.
                let replaces = imp.decl().kind() == Kind::Composite;
                let at = if replaces { op } else { gradient };
                if replaces {
                    rw.set_location(Location::derived(expand_composites::NAME, [&loc]));
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

    /// Goes on before an op that is not differentiable, as if its gradients were zero: the ops before it may be others.
    fn skip(&mut self, rw: &mut Rewriter<'_>, gradient: OpId, reads: &[ValueId]) -> Result<(), Diagnostic> {
        rw.rewrite(gradient, &[]);
        for v in reads {
            if self.active.contains(v) && is_float(rw.graph(), *v) && !self.grads.contains_key(v) {
                let zeros = filled(rw, 0.0, *v)?;
                self.grads.insert(*v, zeros);
            }
        }
        Ok(())
    }

    /// Accumulates the gradient of `v`.
    fn add(&mut self, rw: &mut Rewriter<'_>, v: ValueId, g: ValueId) -> Result<(), Diagnostic> {
        let sum = match self.grads.get(&v) {
            Some(before) => rw.create_one(Add {}, &[*before, g])?,
            None => g,
        };
        self.grads.insert(v, sum);
        Ok(())
    }
}
