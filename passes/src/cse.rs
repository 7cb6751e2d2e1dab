//! `cse`: common subexpression elimination.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use of_ir::{Attr, Attrs, Func, OpData, OpId, RegionId, Rewriter};
use rustc_hash::{FxBuildHasher, FxHasher};
use smallvec::SmallVec;

/// Merges ops of one region that have the same declaration, operands and attributes.
pub fn cse(func: &mut Func) {
    let entry = func.graph.entry();
    let mut rw = Rewriter::new(&mut func.graph, "cse");
    let mut seen = Seen::default();
    merge(&mut rw, entry, &mut seen);
}

/// Ops by their hash.
type Seen = HashMap<u64, SmallVec<[OpId; 2]>, FxBuildHasher>;

/// `seen` has the ops of the enclosing regions, which dominate this one.
fn merge(rw: &mut Rewriter<'_>, region: RegionId, seen: &mut Seen) {
    let ops: Vec<OpId> = rw.graph().region_ops(region).collect();
    let mut added: Vec<u64> = Vec::new();
    let mut merged: Vec<OpId> = Vec::new();
    for op in ops {
        let data = rw.graph().op(op);
        let traits = data.def.traits();
        if traits.terminator || traits.effect {
            continue;
        }
        if !data.regions.is_empty() {
            for r in data.regions.clone() {
                merge(rw, r, seen);
            }
            continue;
        }
        let key = hash(data);
        let candidates = seen.entry(key).or_default();
        match candidates.iter().find(|o| equal(rw.graph().op(**o), data)) {
            Some(first) => {
                let (results, own) = (rw.graph().op(*first).results.clone(), data.results.clone());
                own.iter().zip(&results).for_each(|(old, new)| rw.replace_uses(*old, *new));
                merged.push(op);
            }
            None => {
                candidates.push(op);
                added.push(key);
            }
        }
    }
    // From the end, so that readers of merged ops that are merged, too, are erased first.
    merged.into_iter().rev().for_each(|op| rw.erase(op));
    for key in added {
        if let Some(list) = seen.get_mut(&key) {
            list.pop();
        }
    }
}

fn equal(a: &OpData, b: &OpData) -> bool {
    a.name() == b.name() && a.operands == b.operands && same_attrs(&a.attrs, &b.attrs)
}

/// Tensors of more bytes are compared by their address.
const SMALL: usize = 4096;

/// The hash of what [`equal`] compares. Constants have no operands, and many ops may read one value.
fn hash(op: &OpData) -> u64 {
    let mut hash = FxHasher::default();
    (op.name(), &op.operands).hash(&mut hash);
    for (_, attr) in op.attrs.iter() {
        match attr {
            Attr::Int(n) => n.hash(&mut hash),
            Attr::Float(x) => x.to_bits().hash(&mut hash),
            Attr::Str(text) | Attr::Symbol(text) => text.hash(&mut hash),
            Attr::Ints(list) => list.hash(&mut hash),
            Attr::Floats(list) => list.iter().for_each(|x| x.to_bits().hash(&mut hash)),
            Attr::DType(ty) => ty.hash(&mut hash),
            Attr::Tensor(t) => {
                t.dims().hash(&mut hash);
                if let Some(b) = t.bytes().filter(|b| b.len() <= SMALL) {
                    b[..].hash(&mut hash);
                }
            }
            _ => {}
        }
    }
    hash.finish()
}

/// Equality without comparing the contents of large tensors: these are equal if they share memory.
fn same_attrs(a: &Attrs, b: &Attrs) -> bool {
    a.iter().count() == b.iter().count()
        && a.iter().zip(b.iter()).all(|((n, x), (m, y))| {
            n == m
                && match (x, y) {
                    (Attr::Tensor(s), Attr::Tensor(t)) => match (s.bytes(), t.bytes()) {
                        (Some(p), Some(q)) if p.len() > SMALL => {
                            s.dtype() == t.dtype() && s.dims() == t.dims() && p.same(q)
                        }
                        _ => s == t,
                    },
                    // NaN attributes equal themselves: compares bits.
                    (Attr::Float(s), Attr::Float(t)) => s.to_bits() == t.to_bits(),
                    _ => x == y,
                }
        })
}
