//! Matchers: queries about values that several passes share (defining op, constant, splat, single use, elementwise).

use std::collections::HashSet;
use std::sync::OnceLock;

use of_ir::{DType, Elements, Graph, OpId, Rewriter, Tensor, ValueId};
use of_ops::interpret::type_of;
use of_ops::list::{self, as_op};
use of_ops::structural::{Constant, NoneValue};
use of_ops::{Kind, OpDecl, OpSpec, Value};

/// The op that defines `v` with its attributes, if it is a `T`.
pub fn def<T: OpSpec>(g: &Graph, v: ValueId) -> Option<(OpId, T)> {
    let op = g.def_op(v)?;
    Some((op, as_op::<T>(g, op)?))
}

/// The fixed dimensions of a tensor value.
pub fn dims(g: &Graph, v: ValueId) -> Option<Vec<usize>> {
    g.ty(v).as_tensor()?.fixed_dims()
}

/// The number that every element of a constant has.
pub fn splat(g: &Graph, v: ValueId) -> Option<f64> {
    /// Larger constants are data: scanning them costs more than it gains.
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

/// Whether `v` has exactly one use.
pub fn single_use(g: &Graph, v: ValueId) -> bool {
    g.uses(v).len() == 1
}

/// The integers of a constant.
pub fn ints(g: &Graph, v: ValueId) -> Option<Vec<i64>> {
    g.constant(v).as_ref().and_then(Tensor::to_i64s)
}

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

/// Whether every value of `narrow` is representable in `wide`.
pub fn holds_all_values(wide: DType, narrow: DType) -> bool {
    use DType::{BF16, F16, F32, F64};
    match (narrow, wide) {
        (a, b) if a == b => true,
        (F16 | BF16, F32 | F64) | (F32, F64) => true,
        // A float of p bits of mantissa holds whole numbers up to 2^p.
        (_, F32 | F64) => narrow.int_range().is_some_and(|(lo, hi)| {
            let most = 1i128 << if wide == F32 { 24 } else { 53 };
            lo >= -most && hi <= most
        }),
        _ => match (narrow.int_range(), wide.int_range()) {
            (Some((a, b)), Some((lo, hi))) => lo <= a && b <= hi,
            _ => false,
        },
    }
}
