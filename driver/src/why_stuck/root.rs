//! The root of a chain of waiting ranks.

use of_runtime::flight_recorder::Phase;

use super::{ProcessState, RankReport};

/// A rank on another host that recorded nothing for so long after the others is silent.
const SILENT: u64 = 500_000_000;

/// Where a chain of waiting ranks begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// The process ended without a word: it was killed, or crashed.
    Gone(u32),
    /// The rank has no recording: it was not started, or its host has it.
    Missing(u32),
    /// The process is stopped.
    Stopped(u32),
    /// The rank failed; why.
    Failed(u32, String),
    /// The rank, on another host, recorded nothing while the others waited for it.
    Silent(u32),
    /// Each of these ranks waits for the next one, and the last one for the first.
    Cycle(Vec<u32>),
    /// The rank ended, and others wait for it.
    Ended(u32),
    /// The rank has not begun the step that others wait for.
    Idle(u32),
    /// The rank works, and others wait for it.
    Works(u32),
}

impl Root {
    /// Its ranks.
    pub fn ranks(&self) -> Vec<u32> {
        match self {
            Root::Cycle(ranks) => ranks.clone(),
            Root::Gone(rank)
            | Root::Missing(rank)
            | Root::Stopped(rank)
            | Root::Failed(rank, _)
            | Root::Silent(rank)
            | Root::Ended(rank)
            | Root::Idle(rank)
            | Root::Works(rank) => vec![*rank],
        }
    }

    /// A word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Root::Gone(_) => "gone",
            Root::Missing(_) => "missing",
            Root::Stopped(_) => "stopped",
            Root::Failed(..) => "failed",
            Root::Silent(_) => "silent",
            Root::Cycle(_) => "cycle",
            Root::Ended(_) => "ended",
            Root::Idle(_) => "idle",
            Root::Works(_) => "works",
        }
    }
}

/// Whether a rank is a root of some kind.
type Kind<'k> = &'k dyn Fn(&RankReport) -> Option<Root>;

/// The roots of the most serious kind that there is; of those, ranks that were silent first come first.
pub(super) fn roots(ranks: &[RankReport]) -> Vec<Root> {
    let is_over = |r: &RankReport| matches!(r.phase(), Some(Phase::Ended | Phase::Failed | Phase::EndedByAnother));
    let mut by_time: Vec<&RankReport> = ranks.iter().collect();
    by_time.sort_by_key(|r| r.last());
    let list = |is_root: Kind<'_>| -> Vec<Root> { by_time.iter().filter_map(|r| is_root(r)).collect() };
    let waited = |r: &RankReport| !r.waited_for_by.is_empty();
    let newest = ranks.iter().filter_map(RankReport::last).max().unwrap_or(0);
    let kinds: [Kind<'_>; 5] = [
        &|r| (r.process == ProcessState::Gone && !is_over(r)).then_some(Root::Gone(r.rank)),
        &|r| r.log.is_none().then_some(Root::Missing(r.rank)),
        &|r| (r.process == ProcessState::Stopped).then_some(Root::Stopped(r.rank)),
        &|r| {
            let why = r.log.as_ref()?.failure.clone().unwrap_or_default();
            (r.phase() == Some(Phase::Failed)).then_some(Root::Failed(r.rank, why))
        },
        &|r| {
            let late = r.last().is_none_or(|last| newest.saturating_sub(last) > SILENT);
            (r.process == ProcessState::Unknown && !is_over(r) && late && waited(r)).then_some(Root::Silent(r.rank))
        },
    ];
    if let Some(found) = kinds.iter().map(|kind| list(*kind)).find(|found| !found.is_empty()) {
        return found;
    }
    if let Some(cycle) = cycle(ranks).filter(|cycle| !cycle.iter().any(|rank| is_over(&ranks[*rank as usize]))) {
        return vec![Root::Cycle(cycle)];
    }
    let kinds: [Kind<'_>; 3] = [
        &|r| (r.phase() == Some(Phase::Ended) && waited(r)).then_some(Root::Ended(r.rank)),
        &|r| {
            let idle = r.log.as_ref().is_some_and(|log| log.steps.0 == log.steps.1);
            (idle && r.transfer.is_none() && r.waits_for.is_empty() && waited(r)).then_some(Root::Idle(r.rank))
        },
        &|r| (r.waits_for.is_empty() && waited(r)).then_some(Root::Works(r.rank)),
    ];
    kinds.iter().map(|kind| list(*kind)).find(|found| !found.is_empty()).unwrap_or_default()
}

/// A cycle of ranks that wait for one another.
fn cycle(ranks: &[RankReport]) -> Option<Vec<u32>> {
    // Depth first: a rank on the path that is reached again closes a cycle.
    let mut done = vec![false; ranks.len()];
    for start in 0..ranks.len() {
        let mut path: Vec<(usize, usize)> = vec![(start, 0)];
        while let Some((rank, next)) = path.last_mut() {
            let rank = *rank;
            let Some(to) = ranks[rank].waits_for.get(*next).map(|to| *to as usize).filter(|_| !done[rank]) else {
                done[rank] = true;
                path.pop();
                continue;
            };
            *next += 1;
            if let Some(at) = path.iter().position(|(on_path, _)| *on_path == to) {
                return Some(path[at..].iter().map(|(rank, _)| *rank as u32).collect());
            }
            if to < ranks.len() && !done[to] {
                path.push((to, 0));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use of_runtime::flight_recorder::{FlightLog, RecordingOf};

    use super::*;

    /// A rank that runs and waits for others.
    fn rank(rank: u32, waits_for: &[u32]) -> RankReport {
        let log = FlightLog {
            of: RecordingOf { rank, ..RecordingOf::default() },
            pid: 1,
            started: 1,
            program: None,
            phase: Phase::Runs,
            failure: None,
            steps: (1, 0),
            of_others: (0, 0),
            sent: (0, 0),
            received: (0, 0),
            waits: 0,
            tasks: Vec::new(),
            records: Vec::new(),
            torn: 0,
        };
        RankReport {
            rank,
            log: Some(log),
            process: ProcessState::Runs,
            task: None,
            transfer: None,
            of_outputs: false,
            exchanged: None,
            waits_for: waits_for.to_vec(),
            waited_for_by: Vec::new(),
            actor: None,
        }
    }

    fn job(waits: &[&[u32]], change: impl Fn(&mut [RankReport])) -> Vec<Root> {
        let mut ranks: Vec<RankReport> = waits.iter().zip(0..).map(|(waits, n)| rank(n, waits)).collect();
        for (from, list) in waits.iter().enumerate() {
            list.iter().for_each(|to| ranks[*to as usize].waited_for_by.push(from as u32));
        }
        change(&mut ranks);
        roots(&ranks)
    }

    #[test]
    fn the_end_of_a_chain_is_the_root() {
        assert_eq!(job(&[&[1], &[2], &[]], |_| ()), [Root::Works(2)]);
        assert_eq!(job(&[&[], &[]], |_| ()), []);
        let idle = |ranks: &mut [RankReport]| ranks[2].log.as_mut().unwrap().steps = (1, 1);
        assert_eq!(job(&[&[1], &[2], &[]], idle), [Root::Idle(2)]);
        // Between two steps it may still give its outputs to the others.
        let gives = |ranks: &mut [RankReport]| {
            idle(ranks);
            (ranks[2].transfer, ranks[2].of_outputs) = (Some(u32::MAX), true);
        };
        assert_eq!(job(&[&[1], &[2], &[]], gives), [Root::Works(2)]);
        let ended = |ranks: &mut [RankReport]| ranks[2].log.as_mut().unwrap().phase = Phase::Ended;
        assert_eq!(job(&[&[1], &[2], &[]], ended), [Root::Ended(2)]);
    }

    #[test]
    fn cycles_are_found_behind_chains() {
        assert_eq!(job(&[&[1], &[2], &[3], &[1]], |_| ()), [Root::Cycle(vec![1, 2, 3])]);
        assert_eq!(job(&[&[1, 2], &[], &[0, 1]], |_| ()), [Root::Cycle(vec![0, 2])]);
    }

    #[test]
    fn a_lost_process_comes_before_all_else() {
        let waits: &[&[u32]] = &[&[1], &[0], &[1]];
        let gone = |ranks: &mut [RankReport]| {
            ranks[1].process = ProcessState::Gone;
            ranks[2].process = ProcessState::Stopped;
        };
        assert_eq!(job(waits, gone), [Root::Gone(1)]);
        assert_eq!(job(waits, |ranks| ranks[2].process = ProcessState::Stopped), [Root::Stopped(2)]);
        assert_eq!(job(waits, |ranks| ranks[0].log = None), [Root::Missing(0)]);
        let failed = |ranks: &mut [RankReport]| {
            // Its process has ended, but not without a word.
            ranks[0].process = ProcessState::Gone;
            let log = ranks[0].log.as_mut().unwrap();
            (log.phase, log.failure) = (Phase::Failed, Some("no memory".into()));
        };
        assert_eq!(job(waits, failed), [Root::Failed(0, "no memory".into())]);
    }
}
