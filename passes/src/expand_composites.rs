//! `expand-composites`: composites become primitives.

use of_diag::{Code, Diagnostic, Diagnostics};
use of_ir::{Func, OpId, Rewriter, ValueId};
use of_ops::Kind;

/// Expansions may hold composites in turn; deeper nesting than this is an expansion that never ends.
const DEEPEST: usize = 16;

/// Expands every composite for which `claimed` does not hold. One with an operand or result of unknown rank stays whole:
/// what it expands to follows from its shapes.
///
/// # Errors
/// When an expansion does not fit (a bug of the op, reported with its location).
pub fn expand_composites(func: &mut Func, claimed: &dyn Fn(&str) -> bool) -> Result<(), Diagnostics> {
    let mut errors = Diagnostics::default();
    for _ in 0..DEEPEST {
        let mut rw = Rewriter::new(&mut func.graph, "expand-composites");
        let composites: Vec<OpId> = rw.graph().walk().into_iter().filter(|op| expandable(&rw, *op, claimed)).collect();
        if composites.is_empty() {
            return Ok(());
        }
        for op in composites {
            let data = rw.graph().op(op);
            let (name, loc, operands) = (data.name(), data.loc.clone(), data.operands.clone());
            let Some(imp) = of_ops::get(rw.graph(), op) else { continue };
            rw.rewrite(op, &[]);
            match imp.expand(&mut rw, &operands) {
                Ok(values) if values.len() == rw.graph().op(op).results.len() => rw.replace(op, &values),
                Ok(values) => {
                    let what = format!("'{name}': its expansion has {} results", values.len());
                    errors.0.push(Diagnostic::error(Code::CODEGEN, loc, what));
                }
                Err(d) => errors.0.push(d.or_at(&loc)),
            }
        }
        if errors.has_errors() {
            return Err(errors);
        }
    }
    Err(Diagnostic::error(Code::CODEGEN, func.loc.clone(), "the expansion of composites does not end").into())
}

fn expandable(rw: &Rewriter<'_>, op: OpId, claimed: &dyn Fn(&str) -> bool) -> bool {
    let data = rw.graph().op(op);
    let ranked = |v: &ValueId| rw.graph().ty(*v).as_tensor().is_none_or(|t| t.shape.is_some());
    of_ops::decl(data.name()).is_some_and(|d| d.kind() == Kind::Composite)
        && !claimed(data.name())
        && data.operands.iter().chain(&data.results).all(ranked)
}
