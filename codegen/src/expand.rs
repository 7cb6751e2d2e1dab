//! Composites in simpler ops, for backends that have forms for some ops of the list.

use of_ir::{Func, OpId, Rewriter};
use of_ops::Kind;

/// The function with every composite that has no form by itself in simpler ops; `has_form` says which op has one. Locations name
/// `pass`.
///
/// # Errors
/// When the expansion of an op fails, with the reason.
pub fn expanded(func: &Func, pass: &'static str, has_form: impl Fn(&str) -> bool) -> Result<Func, String> {
    let mut func = func.clone();
    loop {
        let left = |op: &OpId| {
            let name = func.graph.op(*op).name();
            !has_form(name) && of_ops::decl(name).is_some_and(|d| d.kind() == Kind::Composite)
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
