//! Splits concatenations of many operands into trees of narrower ones.
//!
//! The kernel of a concatenation has code for each operand, and a GPU's kernel takes a few kilobytes of arguments. Thousands of
//! operands in one kernel take minutes to compile; a tree copies each element once for every level.

use of_diag::Diagnostic;
use of_ir::{Func, OpId, Rewriter, ValueId};
use of_ops::list::as_op;
use of_ops::movement::Concat;

/// Operands of the widest concatenation that stays one kernel.
pub const MAX_OPERANDS: usize = 128;

/// The function with trees in place of concatenations of more than [`MAX_OPERANDS`] operands; `None` if it has none of these.
///
/// # Errors
/// When a new op is invalid, which is a bug.
pub fn split(func: &Func) -> Result<Option<Func>, Diagnostic> {
    let g = &func.graph;
    let is_wide = |op: &OpId| g.op(*op).operands.len() > MAX_OPERANDS && as_op::<Concat>(g, *op).is_some();
    let wide: Vec<OpId> = g.walk().into_iter().filter(is_wide).collect();
    if wide.is_empty() {
        return Ok(None);
    }
    let mut func = func.clone();
    let mut rw = Rewriter::new(&mut func.graph, "split-wide-concats");
    for op in wide {
        let Some(Concat { axis }) = as_op::<Concat>(rw.graph(), op) else { continue };
        let mut operands: Vec<ValueId> = rw.graph().op(op).operands.to_vec();
        rw.rewrite(op, &[]);
        while operands.len() > 1 {
            let mut level = Vec::with_capacity(operands.len().div_ceil(MAX_OPERANDS));
            for group in operands.chunks(MAX_OPERANDS) {
                level.push(match group {
                    [alone] => *alone,
                    _ => rw.create_one(Concat { axis }, group)?,
                });
            }
            operands = level;
        }
        rw.replace(op, &operands);
    }
    Ok(Some(func))
}

#[cfg(test)]
mod tests {
    use of_ops::OpSpec;

    use super::*;

    /// The number of operands of each concatenation of `n` operands after the rewrite.
    fn widths(n: usize) -> Vec<usize> {
        let operands = vec!["%x"; n].join(", ");
        let text = format!(
            "func @main(%x: tensor<1xf32>) -> (tensor<{n}xf32>) {{\n  %y = of.concat {operands} {{axis = 0}}\n  of.return %y\n}}"
        );
        let module =
            of_ir::text::parse_module(&text, "test", &of_ops::registry(), None).unwrap_or_else(|d| panic!("{d}"));
        let func = &module.funcs["main"];
        let after = split(func).expect("the tree is valid");
        let func = after.as_ref().unwrap_or(func);
        let g = &func.graph;
        g.walk().into_iter().filter(|op| g.op(*op).name() == Concat::NAME).map(|op| g.op(op).operands.len()).collect()
    }

    #[test]
    fn narrow_concats_stay() {
        assert_eq!(widths(MAX_OPERANDS), [MAX_OPERANDS]);
    }

    #[test]
    fn wide_concats_become_trees() {
        assert_eq!(widths(MAX_OPERANDS + 1), [MAX_OPERANDS, 2]);
        assert_eq!(widths(2 * MAX_OPERANDS + 3), [MAX_OPERANDS, MAX_OPERANDS, 3, 3]);
        assert!(widths(20_000).iter().all(|n| *n <= MAX_OPERANDS));
    }
}
