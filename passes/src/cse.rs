//! `cse`: common subexpression elimination.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use of_ir::{Attr, Attrs, Func, OpId, RegionId, Rewriter, ValueId};

/// Merges ops of one region that have the same declaration, operands and attributes.
pub fn cse(func: &mut Func) {
    let entry = func.graph.entry();
    let mut rw = Rewriter::new(&mut func.graph, "cse");
    let mut seen = HashMap::new();
    merge(&mut rw, entry, &mut seen);
}

/// Name, operands, and a hash of the tensors among the attributes: constants have no operands.
type Key = (&'static str, Vec<ValueId>, u64);

/// `seen` has the ops of the enclosing regions, which dominate this one.
fn merge(rw: &mut Rewriter<'_>, region: RegionId, seen: &mut HashMap<Key, Vec<OpId>>) {
    let ops: Vec<OpId> = rw.graph().region_ops(region).collect();
    let mut added: Vec<Key> = Vec::new();
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
        let key = (data.name(), data.operands.to_vec(), tensors_hash(&data.attrs));
        let equal = seen
            .get(&key)
            .and_then(|list| list.iter().copied().find(|o| same_attrs(&rw.graph().op(*o).attrs, &data.attrs)));
        match equal {
            Some(first) => {
                let (results, own) = (rw.graph().op(first).results.clone(), data.results.clone());
                own.iter().zip(&results).for_each(|(old, new)| rw.replace_uses(*old, *new));
                merged.push(op);
            }
            None => {
                seen.entry(key.clone()).or_default().push(op);
                added.push(key);
            }
        }
    }
    // From the end: removing the first of many readers of a value moves all others.
    merged.into_iter().rev().for_each(|op| rw.erase(op));
    for key in added {
        if let Some(list) = seen.get_mut(&key) {
            list.pop();
        }
    }
}

/// Tensors of more bytes are compared by their address.
const SMALL: usize = 4096;

fn tensors_hash(attrs: &Attrs) -> u64 {
    let mut hash = DefaultHasher::new();
    for (_, attr) in attrs.iter() {
        if let Attr::Tensor(t) = attr {
            t.dims().hash(&mut hash);
            if let Some(b) = t.bytes().filter(|b| b.len() <= SMALL) {
                b[..].hash(&mut hash);
            }
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
