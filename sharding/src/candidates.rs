//! Candidates: the sharding strategies of each op, one SBP signature for every mesh axis.
//!
//! Data parallelism, tensor parallelism and ZeRO (FSDP) are layouts among these candidates, not concepts of their own.

use std::collections::HashMap;

use of_ir::{Graph, OpId, PartialKind, Sbp, SbpSignature, ValueDef, ValueId};
use smallvec::SmallVec;

use crate::cost;
use crate::layout::{self, Layout};
use crate::regions;

/// Kinds of partial values, sorted.
pub type Kinds = SmallVec<[PartialKind; 2]>;

/// A layout for every operand and result of an op. An empty layout denotes an operand that is not read or a result
/// that is not made.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Candidate {
    /// One layout per operand.
    pub operands: SmallVec<[Layout; 3]>,
    /// One layout per result.
    pub results: SmallVec<[Layout; 1]>,
}

impl Candidate {
    /// Whether the op does not run: it reads and makes nothing.
    pub fn is_left_out(&self) -> bool {
        self.results.first().is_some_and(Layout::is_empty)
    }
}

/// The SBP signatures of `op` along one mesh axis of `devices` devices, including broadcast.
pub fn signatures(g: &Graph, op: OpId, devices: usize) -> Vec<SbpSignature> {
    let data = g.op(op);
    let (n, m) = (data.operands.len(), data.results.len());
    let mut out = vec![SbpSignature::broadcast(n, m)];
    if !data.regions.is_empty() {
        out.extend(regions::signatures(g, op, devices, &signatures).into_iter().filter(|s| s.allows(devices)));
    } else if !data.def.traits().effect
        && let Some(o) = of_ops::get(g, op)
    {
        let mut listed = o.sbp(&g.view(op));
        for s in &mut listed {
            s.operands.resize(n, Sbp::Broadcast);
        }
        out.extend(listed.into_iter().filter(|s| s.results.len() == m && s.allows(devices)));
    }
    out
}

/// The kinds of partial values that each value may hold, by position in the arena. A partial value arises where an op
/// makes one of whole operands, or where a region adds one to its state, and propagates through ops that accept it. No value becomes
/// partial without such an op.
pub fn partial_kinds(g: &Graph) -> Vec<Kinds> {
    let mut kinds: Vec<Kinds> = vec![SmallVec::new(); g.value_slots()];
    for op in g.walk() {
        let data = g.op(op);
        for s in signatures(g, op, 1) {
            let partial = |s: &Sbp| if let Sbp::Partial(k) = s { Some(*k) } else { None };
            let operands: Vec<(PartialKind, ValueId)> =
                s.operands.iter().zip(&data.operands).filter_map(|(s, v)| Some((partial(s)?, *v))).collect();
            let arises = arises_inside(g, op)
                || operands.is_empty()
                || operands.iter().any(|(k, v)| kinds[v.index()].contains(k));
            if !arises {
                continue;
            }
            for (s, v) in s.results.iter().zip(&data.results) {
                if let Some(k) = partial(s)
                    && !kinds[v.index()].contains(&k)
                {
                    kinds[v.index()].push(k);
                }
            }
        }
    }
    // Annotated partial layouts are allowed.
    for (i, own) in kinds.iter_mut().enumerate() {
        let Some(v) = g.value_at(i) else { continue };
        if let Some(k) = g.ty(v).as_tensor().and_then(|t| layout::partial_kind(&t.sbp.as_ref()?.axes))
            && !own.contains(&k)
        {
            own.push(k);
        }
    }
    kinds.iter_mut().for_each(|k| k.sort_unstable());
    kinds
}

/// All candidates of `op` on a mesh of this shape. At least one partial operand of a signature must be able to arise;
/// the others become partial by embedding. Every device has an element of every axis of every tensor.
pub fn candidates(g: &Graph, op: OpId, shape: &[usize], kinds: &[Kinds]) -> Vec<Candidate> {
    let data = g.op(op);
    let lists: Vec<Vec<SbpSignature>> = shape.iter().map(|d| usable(g, op, *d, kinds)).collect();
    let devices = shape.iter().product();
    let dims: Vec<Option<Vec<usize>>> = data
        .operands
        .iter()
        .chain(&data.results)
        .map(|v| g.ty(*v).as_tensor().and_then(|t| cost::extents(t, devices)))
        .collect();
    let n = data.operands.len();
    let mut seen: HashMap<Candidate, ()> = HashMap::new();
    let mut out = Vec::new();
    let mut chosen: Vec<&SbpSignature> = Vec::new();
    combine(&lists, &mut chosen, &mut |chosen| {
        // One signature along several mesh axes slices by the product of their extents.
        let divides = chosen.iter().all(|s| {
            let devices: usize = chosen.iter().zip(shape).filter(|(t, _)| t == &s).map(|(_, d)| *d).product();
            s.allows(devices)
        });
        if !divides {
            return;
        }
        let layout = |i: usize| -> Layout {
            chosen.iter().map(|s| if i < n { s.operands[i] } else { s.results[i - n] }).collect()
        };
        let all: Vec<Layout> = (0..dims.len()).map(layout).collect();
        let possible = all.iter().zip(&dims).all(|(l, d)| match d {
            Some(d) => layout::consistent(l) && layout::fits(l, shape, d),
            None => l.iter().all(|s| *s == Sbp::Broadcast),
        });
        if possible {
            let c =
                Candidate { operands: all[..n].iter().cloned().collect(), results: all[n..].iter().cloned().collect() };
            if seen.insert(c.clone(), ()).is_none() {
                out.push(c);
            }
        }
    });
    out
}

/// The signatures whose partial operands can arise.
fn usable(g: &Graph, op: OpId, devices: usize, kinds: &[Kinds]) -> Vec<SbpSignature> {
    let data = g.op(op);
    let mut list = signatures(g, op, devices);
    list.retain(|s| {
        let mut partial = s.operands.iter().zip(&data.operands).filter_map(|(s, v)| match s {
            Sbp::Partial(k) => Some(kinds[v.index()].contains(k)),
            _ => None,
        });
        match partial.next() {
            None => true,
            Some(first) => first || arises_inside(g, op) || partial.any(|p| p),
        }
    });
    list
}

/// Whether an op makes partial values of whole ones inside of its regions, so that its partial operands need no other source.
pub(crate) fn arises_inside(g: &Graph, op: OpId) -> bool {
    !g.op(op).regions.is_empty()
}

fn combine<'a>(
    lists: &'a [Vec<SbpSignature>],
    chosen: &mut Vec<&'a SbpSignature>,
    found: &mut dyn FnMut(&[&'a SbpSignature]),
) {
    let Some((first, rest)) = lists.split_first() else {
        return found(chosen);
    };
    for s in first {
        chosen.push(s);
        combine(rest, chosen, found);
        chosen.pop();
    }
}

/// Everything that the candidates of an op depend on. Ops with equal keys have equal candidates.
pub fn equivalence_key(g: &Graph, op: OpId, kinds: &[Kinds]) -> String {
    use std::fmt::Write;
    let data = g.op(op);
    let mut out = String::from(data.name());
    let _ = write!(out, "{:?}", data.attrs);
    if !data.regions.is_empty() {
        let _ = write!(out, "#{}", op.index());
    }
    for v in data.operands.iter().chain(&data.results) {
        let _ = write!(out, ";{}{:?}", g.ty(*v), kinds[v.index()]);
        // Constant axes and shapes decide too.
        if matches!(g.def(*v), ValueDef::Result(..))
            && let Some(dims) = g.dims_value(*v)
        {
            let _ = write!(out, "{dims:?}");
        }
    }
    out
}
