//! Which ops are elementwise, composites included.

use std::collections::HashSet;
use std::sync::OnceLock;

use of_ir::{Graph, Rewriter, ValueId};

use crate::interpret::type_of;
use crate::structural::{Constant, NoneValue};
use crate::{Kind, Op, OpDecl, OpSpec, Value, list};

/// Whether the op `name` is elementwise: a primitive map over elements, or a composite of such.
pub fn is_elementwise(name: &str) -> bool {
    static MAPS: OnceLock<HashSet<&'static str>> = OnceLock::new();
    MAPS.get_or_init(|| {
        let mut maps = HashSet::new();
        // Composites may contain composites.
        for _ in 0..2 {
            maps.extend(
                list::ALL.iter().filter(|d| samples_are_maps(**d, &maps)).map(|d| d.name()).collect::<Vec<_>>(),
            );
        }
        maps
    })
    .contains(name)
}

fn samples_are_maps(decl: &'static dyn OpDecl, maps: &HashSet<&'static str>) -> bool {
    (0..4).all(|seed| {
        let Some(sample) = decl.sample(seed) else { return false };
        sample.op.scalar().is_some()
            || (decl.kind() == Kind::Composite
                && !decl.traits().effect
                && expands_into(&*sample.op, &sample.operands, maps).unwrap_or(false))
    })
}

fn expands_into(op: &dyn Op, operands: &[Value], maps: &HashSet<&'static str>) -> Option<bool> {
    let mut graph = Graph::new();
    let entry = graph.entry();
    let mut rw = Rewriter::new(&mut graph, "facts");
    let mut args = Vec::new();
    for v in operands {
        args.push(match v {
            Value::None => rw.create_one(NoneValue {}, &[]).ok()?,
            v => rw.add_arg(entry, type_of(v), None),
        });
    }
    let results = op.expand(&mut rw, &args).ok()?;
    let ops: Vec<&str> = graph.region_ops(entry).map(|o| graph.op(o).name()).collect();
    let plain = |n: &&str| *n == Constant::NAME || maps.contains(*n);
    let computes = |v: &ValueId| graph.def_op(*v).is_some();
    Some(results.len() == 1 && results.iter().all(computes) && ops.iter().all(plain))
}
