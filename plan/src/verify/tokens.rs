//! The token game: a proof that the register tokens cannot deadlock.
//!
//! Each register starts with `num` free tokens at its producer. A task takes a full token from every register it
//! consumes and a free one from every register it produces, and gives them back the other way round. As every register
//! has one producer and each consumer gets its own copy of a token, firing one task never takes a token from another:
//! the game is a marked graph, so the order of firing does not matter. If firing whatever can fire lets every task fire
//! once, the game is back where it began and goes on for ever; if it stops before, it stops in every order.

use super::{Finding, FindingKind};
use crate::{Links, Program};

/// A counterexample, when the tokens deadlock.
pub(super) fn deadlock(program: &Program, links: &Links) -> Option<Finding> {
    let fired = play(program, links);
    let first = fired.iter().position(|&fired| !fired)?;
    Some(Finding::new(
        FindingKind::Deadlock,
        format!("program `{}`", program.name),
        explain(program, links, &fired, first),
    ))
}

/// Fires every task that can fire, once each, and says which did. A free token is there on the first round, as `num`
/// is at least 1, so only full tokens can be missing.
fn play(program: &Program, links: &Links) -> Vec<bool> {
    let mut missing: Vec<usize> = program.tasks.iter().map(|task| task.consumes.len()).collect();
    let mut fired = vec![false; program.tasks.len()];
    let mut ready: Vec<usize> = (0..missing.len()).filter(|&task| missing[task] == 0).collect();
    while let Some(task) = ready.pop() {
        fired[task] = true;
        for &regst in &program.tasks[task].produces {
            for &consumer in &links.consumers[regst as usize] {
                missing[consumer as usize] -= 1;
                if missing[consumer as usize] == 0 {
                    ready.push(consumer as usize);
                }
            }
        }
    }
    fired
}

/// Follows "waits for" from a stuck task until a task comes again: that is the cycle.
fn explain(program: &Program, links: &Links, fired: &[bool], start: usize) -> String {
    let mut path: Vec<(usize, u32)> = Vec::new();
    let mut at = start;
    loop {
        if let Some(begin) = path.iter().position(|&(task, _)| task == at) {
            let steps: Vec<_> = path[begin..].iter().map(|&(task, regst)| step(program, links, task, regst)).collect();
            return format!("the register tokens deadlock: {}", steps.join("; "));
        }
        let producer = |regst: &u32| links.producer[*regst as usize] as usize;
        let waits = program.tasks[at].consumes.iter().copied().find(|regst| !fired[producer(regst)]);
        // A task that did not fire misses a token, so some producer did not fire either.
        let Some(regst) = waits else {
            return format!("task `{}` never acts", program.tasks[at].name);
        };
        path.push((at, regst));
        at = producer(&regst);
    }
}

fn step(program: &Program, links: &Links, task: usize, regst: u32) -> String {
    let producer = &program.tasks[links.producer[regst as usize] as usize].name;
    let regst = &program.regsts[regst as usize];
    format!("`{}` waits for `{}` of `{producer}`", program.tasks[task].name, regst.name)
}
