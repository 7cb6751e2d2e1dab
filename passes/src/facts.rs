//! Questions about values that several passes ask.

use std::collections::HashSet;
use std::sync::OnceLock;

use of_ir::{Elements, Graph, OpId, Rewriter, Tensor, ValueId};
use of_ops::interpret::type_of;
use of_ops::list::{self, as_op};
use of_ops::structural::{Constant, NoneValue};
use of_ops::{Kind, OpDecl, OpSpec, Value};

/// The op that defines `v` and its attributes, if it is a `T`.
pub fn def<T: OpSpec>(g: &Graph, v: ValueId) -> Option<(OpId, T)> {
    let op = g.def_op(v)?;
    Some((op, as_op::<T>(g, op)?))
}

/// The fixed dimensions of a tensor value.
pub fn dims(g: &Graph, v: ValueId) -> Option<Vec<usize>> {
    g.ty(v).as_tensor()?.fixed_dims()
}

/// The one number that every element of a constant has.
pub fn splat(g: &Graph, v: ValueId) -> Option<f64> {
    /// Larger constants are data: looking through them costs more than it finds.
    const LARGEST: usize = 1 << 16;
    let t = g.constant(v)?;
    if t.is_empty() || t.len() > LARGEST {
        return None;
    }
    match t.elements() {
        Elements::Float(e) => e.iter().all(|x| x.to_bits() == e[0].to_bits()).then_some(e[0]),
        Elements::Int(e) => e.iter().all(|x| *x == e[0]).then(|| e[0] as f64),
        Elements::Str(_) => None,
    }
}

/// Whether `v` has exactly one reader.
pub fn single_use(g: &Graph, v: ValueId) -> bool {
    g.uses(v).len() == 1
}

/// A constant's integers.
pub fn ints(g: &Graph, v: ValueId) -> Option<Vec<i64>> {
    g.constant(v).as_ref().and_then(Tensor::to_i64s)
}

/// Whether the op called `name` computes each element of its result from the elements of its operands in the same
/// place: an elementwise primitive, or a composite that is nothing but such.
pub fn is_map(name: &str) -> bool {
    static MAPS: OnceLock<HashSet<&'static str>> = OnceLock::new();
    MAPS.get_or_init(|| {
        let mut maps = HashSet::new();
        // Composites may be made of composites.
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

fn expands_into(op: &dyn of_ops::Op, operands: &[Value], maps: &HashSet<&'static str>) -> Option<bool> {
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
