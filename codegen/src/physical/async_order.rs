//! Orders steps where some are asynchronous to the host.
//!
//! A thread runs its steps in order, and waits at the first that reads an unfinished result. So asynchronous steps are launched
//! as early as possible, their producers come before other steps, and readers of their results come last.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use crate::physical::{Step, StepGraph, StepKind};

/// Reorders the steps. Programs with symbols or transfers, which impose another order, are unchanged.
pub fn order(physical: &mut StepGraph) {
    let steps = &physical.steps;
    let is_async: Vec<bool> =
        steps.iter().map(|s| matches!(s.kind, StepKind::Backend { is_async: true, .. })).collect();
    let is_rendezvous = |s: &Step| match &s.kind {
        StepKind::Boxing { .. } => true,
        StepKind::Backend { rendezvous, .. } => !rendezvous.is_empty(),
        _ => false,
    };
    if !is_async.contains(&true)
        || !physical.time.phases.is_empty()
        || !physical.symbols.is_empty()
        || steps.iter().any(is_rendezvous)
    {
        return;
    }
    let needs = needs(steps);
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    needs.iter().enumerate().for_each(|(s, all)| all.iter().for_each(|n| readers[*n].push(s)));
    let mut needed = is_async.clone();
    for s in (0..steps.len()).rev() {
        needed[s] |= readers[s].iter().any(|r| needed[*r]);
    }
    // The step of highest priority comes next.
    let priority = |s: usize| {
        let waits = !is_async[s] && needs[s].iter().any(|n| is_async[*n]);
        (is_async[s], !waits, needed[s], Reverse(s))
    };
    let mut left: Vec<usize> = needs.iter().map(BTreeSet::len).collect();
    let mut ready: BTreeSet<_> = (0..steps.len()).filter(|s| left[*s] == 0).map(priority).collect();
    let mut out = Vec::with_capacity(steps.len());
    while let Some((.., Reverse(s))) = ready.pop_last() {
        out.push(s);
        for r in &readers[s] {
            left[*r] -= 1;
            if left[*r] == 0 {
                ready.insert(priority(*r));
            }
        }
    }
    let mut steps: Vec<Option<Step>> = std::mem::take(&mut physical.steps).into_iter().map(Some).collect();
    physical.steps = out.into_iter().filter_map(|s| steps[s].take()).collect();
}

/// For each step its predecessors: writers of slots that it reads, and users of slots that it writes.
fn needs(steps: &[Step]) -> Vec<BTreeSet<usize>> {
    let (mut wrote, mut used): (HashMap<usize, usize>, HashMap<usize, Vec<usize>>) = Default::default();
    let mut out = Vec::with_capacity(steps.len());
    for (s, step) in steps.iter().enumerate() {
        let (reads, writes) = (step.reads(), step.writes());
        let mut own: BTreeSet<usize> = reads.iter().filter_map(|slot| wrote.get(slot).copied()).collect();
        own.extend(writes.iter().filter_map(|slot| used.get(slot)).flatten());
        reads.iter().chain(&writes).for_each(|slot| used.entry(*slot).or_default().push(s));
        wrote.extend(writes.iter().map(|slot| (*slot, s)));
        own.remove(&s);
        out.push(own);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::physical::{BufferRef, Flops, Operand};

    /// Steps by the slots that they read and the slot that they write; uppercase names are asynchronous.
    fn physical(steps: &[(&str, &[usize], usize)]) -> StepGraph {
        let step = |(name, reads, write): &(&str, &[usize], usize)| Step {
            name: (*name).into(),
            locations: Vec::new(),
            kind: StepKind::Backend {
                backend: "gpu",
                payload: (0, 0),
                inputs: reads.iter().map(|s| Operand::whole(BufferRef::Slot(*s))).collect(),
                outputs: vec![*write],
                rendezvous: Vec::new(),
                is_async: name.chars().all(char::is_uppercase),
                keeps_variables: false,
            },
            flops: Flops::default(),
            bytes: 0,
            reread: None,
            in_place: Vec::new(),
        };
        StepGraph { steps: steps.iter().map(step).collect(), ..StepGraph::default() }
    }

    fn ordered(steps: &[(&str, &[usize], usize)]) -> String {
        let mut physical = physical(steps);
        order(&mut physical);
        physical.steps.iter().map(|s| &s.name[..]).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn async_steps_run_first_and_their_readers_last() {
        // A branch, an asynchronous subgraph with its producer, its reader, and a branch after that.
        let steps: &[(&str, &[usize], usize)] = &[
            ("x", &[], 0),
            ("branch", &[0], 1),
            ("pre", &[0], 2),
            ("R", &[2], 3),
            ("reader", &[3], 4),
            ("b2", &[1], 5),
        ];
        assert_eq!(ordered(steps), "x pre R branch b2 reader");
        // Producers for a second subgraph come before other readers of the first.
        let steps: &[(&str, &[usize], usize)] =
            &[("x", &[], 0), ("R", &[0], 1), ("out", &[1], 2), ("mid", &[1], 3), ("S", &[1, 3], 4), ("end", &[4], 5)];
        assert_eq!(ordered(steps), "x R mid S out end");
        // The order is kept without asynchronous steps, and where a step overwrites a slot that others read.
        assert_eq!(ordered(&[("b", &[], 1), ("a", &[], 0), ("c", &[1], 2)]), "b a c");
        assert_eq!(ordered(&[("x", &[], 0), ("y", &[0], 1), ("again", &[], 0), ("R", &[0], 2)]), "x y again R");
    }

    #[test]
    fn symbols_keep_their_order() {
        let mut physical = physical(&[("branch", &[], 0), ("R", &[], 1)]);
        physical.symbols.push("N".into());
        order(&mut physical);
        assert_eq!(physical.steps[0].name, "branch");
    }
}
