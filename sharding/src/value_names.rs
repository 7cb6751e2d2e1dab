//! Names of values for messages and explanations.

use of_ir::{Func, IdMap, OpId, ValueDef, ValueId};

/// A readable name of each value, by position in the arena.
pub fn value_names(func: &Func) -> Vec<String> {
    let g = &func.graph;
    let order: IdMap<OpId, usize> = g.walk().into_iter().zip(0..).collect();
    (0..g.value_slots())
        .map(|i| {
            let Some(v) = g.value_at(i) else { return String::new() };
            name(func, v, &order)
        })
        .collect()
}

fn name(func: &Func, v: ValueId, order: &IdMap<OpId, usize>) -> String {
    let g = &func.graph;
    match (g.name(v), g.def(v)) {
        (Some(n), _) => format!("%{n}"),
        (None, ValueDef::Arg(_, i)) => {
            format!("%{}", func.inputs.get(i as usize).cloned().unwrap_or_else(|| format!("arg{i}")))
        }
        (None, ValueDef::Result(op, i)) => {
            let op_name = if g.is_live(op) { g.op(op).name() } else { "" };
            let n = order.get(&op).copied().unwrap_or(0);
            if i == 0 { format!("{op_name} {n}") } else { format!("{op_name} {n}:{i}") }
        }
    }
}
