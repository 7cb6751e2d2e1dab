//! Expands ops to simpler ones, for backends that support a subset of the ops.

use of_ir::{Func, OpId, Rewriter};
use of_ops::Kind;

/// Expands every unsupported op that has an expansion to simpler ops; `has_form` says which ops are supported. Ops with a scalar
/// definition count as supported unless they are composites. Locations name `pass`.
///
/// # Errors
/// When the expansion of an op fails, with the reason.
pub fn expanded(func: &Func, pass: &'static str, has_form: impl Fn(&str) -> bool) -> Result<Func, String> {
    let mut func = func.clone();
    loop {
        let left = |op: &OpId| {
            let name = func.graph.op(*op).name();
            let composite = || of_ops::decl(name).is_some_and(|d| d.kind() == Kind::Composite);
            let has_parts = || of_ops::get(&func.graph, *op).is_some_and(|o| o.expands() && o.scalar().is_none());
            !has_form(name) && (composite() || has_parts())
        };
        let ops: Vec<OpId> = func.graph.walk().into_iter().filter(left).collect();
        if ops.is_empty() {
            return Ok(func);
        }
        let mut rw = Rewriter::new(&mut func.graph, pass);
        for op in ops {
            let Some(imp) = of_ops::get(rw.graph(), op) else { continue };
            let name = rw.graph().op(op).name();
            let operands = rw.graph().op(op).operands.clone();
            rw.rewrite(op, &[]);
            let values =
                imp.expand(&mut rw, &operands).map_err(|d| format!("'{name}' has no expansion: {}", d.message))?;
            rw.replace(op, &values);
        }
    }
}
