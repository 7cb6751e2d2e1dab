//! Updates of small variables in one kernel: horizontal fusion, as the multi-tensor updates of NVIDIA Apex and PyTorch's `foreach`.

use of_ir::{Graph, IdSet, RegionId, ValueId};

use super::{Group, GroupKind};
use crate::kernel::extent::Extent;

/// The most elements of a small variable. A larger one takes longer than the task that updates it.
const MOST_ELEMENTS: usize = 1024;

/// The most ops of such a kernel, which bounds its arguments and the time to compile it.
const MOST_OPS: usize = 128;

/// Merges the elementwise groups that compute nothing but `updates`, the next values of variables, and have one space of few elements. Each
/// element is computed as before. Groups are in execution order, before and after: as nothing reads an update but the end of `region`, a
/// merged group is where its last part was.
pub fn merge_updates(g: &Graph, region: RegionId, groups: Vec<Group>, updates: &IdSet<ValueId>) -> Vec<Group> {
    let mut out: Vec<Option<Group>> = Vec::with_capacity(groups.len());
    // The last place of each space.
    let mut last: Vec<(Vec<Extent>, usize)> = Vec::new();
    for mut group in groups {
        if is_update(g, region, &group, updates) {
            let known = last.iter_mut().find(|(space, _)| *space == group.space);
            let before = known.as_ref().and_then(|(_, at)| out[*at].take_if(|before| fits(before, &group)));
            if let Some(before) = before {
                group = merged(before, group);
            }
            match known {
                Some((_, at)) => *at = out.len(),
                None => last.push((group.space.clone(), out.len())),
            }
        }
        out.push(Some(group));
    }
    out.into_iter().flatten().collect()
}

/// Whether a group computes updates alone, of few elements.
fn is_update(g: &Graph, region: RegionId, group: &Group, updates: &IdSet<ValueId>) -> bool {
    let elements: Extent = group.space.iter().product();
    let is_small = elements.number().is_some_and(|n| n <= MOST_ELEMENTS);
    let terminator = g.terminator(region);
    let mut results = group.ops.iter().flat_map(|op| g.op(*op).results.iter());
    let ends = |v: &ValueId| {
        let mut outside = g.uses(*v).iter().filter(|u| !group.ops.contains(&u.op)).peekable();
        outside.peek().is_none() || updates.contains(v) && outside.all(|u| Some(u.op) == terminator)
    };
    group.kind == GroupKind::Elementwise && group.parts.is_empty() && is_small && results.all(ends)
}

/// Whether two groups have room for each other, and neither recomputes what the other one stores.
fn fits(a: &Group, b: &Group) -> bool {
    let count = |group: &Group| group.ops.len() + group.recomputed.len();
    let apart = |a: &Group, b: &Group| a.recomputed.iter().all(|op| !b.ops.contains(op));
    count(a) + count(b) <= MOST_OPS && apart(a, b) && apart(b, a)
}

fn merged(mut a: Group, b: Group) -> Group {
    a.ops.extend(b.ops);
    let more: Vec<_> = b.recomputed.into_iter().filter(|op| !a.recomputed.contains(op)).collect();
    a.recomputed.extend(more);
    a.unstored.extend(b.unstored);
    a
}
