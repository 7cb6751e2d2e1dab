//! `expand-composites`: expands composite ops into primitives.
//!
//! This is the decomposition of composite ops into primitives.

use std::collections::HashSet;

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Func, OpId, Rewriter, ValueId};
use of_ops::structural::Alternatives;
use of_ops::{Kind, OpSpec};

/// The name of the pass, in pipelines and locations.
pub const NAME: &str = "expand-composites";

/// Limit on nested expansion; deeper nesting is an expansion that does not terminate.
const MAX_NESTING: usize = 16;

/// Expands every composite for which `claimed` does not hold. A composite whose expansion needs an unknown rank or
/// value stays: a backend that evaluates ops runs it.
///
/// # Errors
/// When an expansion does not fit, a bug of the op that is reported with its location.
pub fn expand_composites(func: &mut Func, claimed: &dyn Fn(&str) -> bool) -> Result<(), Diagnostics> {
    let mut kept = HashSet::new();
    for _ in 0..MAX_NESTING {
        let mut rw = Rewriter::new(&mut func.graph, NAME);
        let mut composites = rw.graph().walk();
        composites.retain(|op| !kept.contains(op) && expandable(&rw, *op, claimed));
        if composites.is_empty() {
            return Ok(());
        }
        for op in composites {
            let data = rw.graph().op(op);
            let (name, loc, operands) = (data.name(), data.loc.clone(), data.operands.clone());
            let Some(imp) = of_ops::get(rw.graph(), op) else { continue };
            rw.rewrite(op, &[]);
            match imp.expand(&mut rw, &operands) {
                Ok(values) if values.len() == rw.graph().op(op).results.len() => {
                    keep_ranks(&mut rw, op, &values);
                    rw.replace(op, &values);
                }
                Ok(values) => {
                    let what = format!("the expansion of '{name}' has {} results", values.len());
                    return Err(Diagnostic::error(Code::CODEGEN, loc, what).into());
                }
                Err(why) => {
                    tracing::debug!("'{name}' stays whole: {why}");
                    kept.insert(op);
                }
            }
        }
    }
    Err(Diagnostic::error(Code::CODEGEN, func.loc.clone(), "the expansion of composites does not terminate").into())
}

/// A warning where the pass drops alternatives of an `of.alternatives`.
pub fn warn_dropped_alternatives(func: &Func, claimed: &dyn Fn(&str) -> bool) -> Option<Diagnostic> {
    let g = &func.graph;
    let several = |op: &OpId| {
        let data = g.op(*op);
        data.name() == Alternatives::NAME && data.operands.iter().any(|v| *v != data.operands[0])
    };
    let dropped: Vec<OpId> =
        if claimed(Alternatives::NAME) { Vec::new() } else { g.walk().into_iter().filter(several).collect() };
    let first = g.op(*dropped.first()?);
    let what = match dropped.len() {
        1 => "this value has alternatives: 'expand-composites' selects the first".into(),
        n => format!("this value and {} others have alternatives: 'expand-composites' selects the first", n - 1),
    };
    let hint =
        "'shard' chooses among alternatives: run it first, or keep them with 'expand-composites{keep=of.alternatives}'";
    Some(Diagnostic::warning(Code::PIPELINE, first.loc.clone(), what).hint(hint))
}

/// Keeps the result types where they say more than inference finds in the expansion.
fn keep_ranks(rw: &mut Rewriter<'_>, op: OpId, values: &[ValueId]) {
    for (old, new) in rw.graph().op(op).results.clone().iter().zip(values) {
        let ranked = |v: ValueId| rw.graph().ty(v).as_tensor().is_some_and(|t| t.shape.is_some());
        if ranked(*old) && !ranked(*new) {
            let ty = rw.graph().ty(*old).clone();
            rw.set_type(*new, ty);
        }
    }
}

fn expandable(rw: &Rewriter<'_>, op: OpId, claimed: &dyn Fn(&str) -> bool) -> bool {
    let data = rw.graph().op(op);
    let ranked = |v: &ValueId| rw.graph().ty(*v).as_tensor().is_none_or(|t| t.shape.is_some());
    of_ops::decl(data.name()).is_some_and(|d| d.kind() == Kind::Composite)
        && !claimed(data.name())
        && data.operands.iter().chain(&data.results).all(ranked)
}
