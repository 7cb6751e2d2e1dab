//! Why the ranks of a job are stuck, or how they ended: the recordings of all ranks, merged against the plan.
//!
//! Each rank that is in a transfer waits for others, which the plan and its last records name. Ranks that are waited for and wait for
//! no one are the root, and so is a cycle. What a process does is asked of the system, where the rank is on this host.

mod kept_plan;
mod process;
mod root;
mod timeline;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use of_diag::{Code, Diagnostic, Diagnostics};
use of_plan::{Plan, Program, Task};
use of_runtime::INPUT_EXTENTS;
use of_runtime::flight_recorder::{Event, FlightLog, Phase, actors};

use crate::error::{error, io_error};

pub use kept_plan::{is_kept_plan, keep_plan, kept_plan};
pub use process::{ProcessState, state as process_state};
pub use root::Root;
pub use timeline::{Slice, slices};

/// What is known of a job.
#[derive(Clone, Debug)]
pub struct WhyStuck {
    /// Every rank of the job, in order.
    pub ranks: Vec<RankReport>,
    /// Where the chain of waiting ranks begins.
    pub roots: Vec<Root>,
    /// The time of this report, in nanoseconds since 1970.
    pub now: u64,
}

/// What is known of a rank.
#[derive(Clone, Debug)]
pub struct RankReport {
    /// The rank.
    pub rank: u32,
    /// Its recording; none where there is none in the folder.
    pub log: Option<FlightLog>,
    /// What its process does.
    pub process: ProcessState,
    /// The task that it is in.
    pub task: Option<TaskPlace>,
    /// The transfer that it is in.
    pub transfer: Option<u32>,
    /// Whether that is an exchange of whole outputs or variables, behind the plan's own transfers.
    pub of_outputs: bool,
    /// The output or variable that is exchanged, where the plan is known.
    pub exchanged: Option<String>,
    /// The ranks that it waits for there.
    pub waits_for: Vec<u32>,
    /// The ranks that wait for it.
    pub waited_for_by: Vec<u32>,
    /// For what its next actor waits, where none is acting.
    pub actor: Option<String>,
}

/// A task and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPlace {
    /// Its number in the program.
    pub number: u32,
    /// Its name; empty without a plan.
    pub name: String,
    /// The ops that it came from.
    pub ops: Vec<String>,
}

impl RankReport {
    /// The time of the last record, in nanoseconds since 1970.
    pub fn last(&self) -> Option<u64> {
        self.log.as_ref()?.records.last().map(|record| record.at)
    }

    fn phase(&self) -> Option<Phase> {
        self.log.as_ref().map(|log| log.phase)
    }
}

/// The file of a rank's recording in a folder.
pub fn recording(dir: &Path, rank: u32) -> PathBuf {
    dir.join(format!("rank-{rank}.flight"))
}

/// The recordings in a folder, by rank, and a line for each file that cannot be read. They must be of one job.
///
/// # Errors
/// When there is none that can be read, or two belong to different jobs.
pub fn recordings(dir: &Path) -> Result<(Vec<FlightLog>, Vec<String>), Diagnostics> {
    let entries = std::fs::read_dir(dir).map_err(|e| io_error(dir, "read", &e))?;
    let (mut logs, mut unread) = (Vec::new(), Vec::new());
    for entry in entries {
        let path = entry.map_err(|e| io_error(dir, "read", &e))?.path();
        if path.extension().is_some_and(|e| e == "flight") {
            match FlightLog::read(&path) {
                Ok(log) if recording(dir, log.of.rank) == path => logs.push(log),
                Ok(log) => unread.push(format!("'{}' is left out: it is of rank {}", path.display(), log.of.rank)),
                Err(e) => unread.push(format!("'{}' cannot be read: {e}", path.display())),
            }
        }
    }
    logs.sort_by_key(|log| log.of.rank);
    unread.sort();
    let Some(first) = logs.first() else {
        let hint =
            "ranks that are processes write rank-N.flight there: of-opt run PLAN --ranks N --flight-recorder DIR";
        let none = error(Code::INPUT, format!("'{}' has no recordings", dir.display())).hint(hint);
        return Err(unread.into_iter().fold(none, Diagnostic::note).into());
    };
    let other = |log: &&FlightLog| log.of.ranks != first.of.ranks || log.of.plan_hash != first.of.plan_hash;
    if let Some(log) = logs.iter().find(other) {
        let what = format!("rank {} in '{}' is of another job than rank {}", log.of.rank, dir.display(), first.of.rank);
        return Err(error(Code::INPUT, what).hint("remove what an earlier job left there").into());
    }
    Ok((logs, unread))
}

/// How long ranks that wait for one another are watched before that counts as a deadlock.
const WATCHED: Duration = Duration::from_millis(300);

/// What the recordings in a folder say now. Those of ranks that run are read one after another, so ranks seem to wait for each other that
/// do not: a deadlock is what is still the same a moment later.
///
/// # Errors
/// As [`recordings`].
pub fn look(dir: &Path, plan: Option<&Plan>) -> Result<WhyStuck, Diagnostics> {
    let mut report = why_stuck(recordings(dir)?.0, plan);
    if report.roots.iter().any(|root| matches!(root, Root::Cycle(_))) {
        std::thread::sleep(WATCHED);
        let later = why_stuck(recordings(dir)?.0, plan);
        let position = |ranks: &[RankReport]| -> Vec<_> {
            ranks.iter().map(|rank| rank.log.as_ref().map(|log| (log.steps, log.records.last().copied()))).collect()
        };
        let stands = position(&report.ranks) == position(&later.ranks);
        report = later;
        if !stands {
            report.roots.retain(|root| !matches!(root, Root::Cycle(_)));
        }
    }
    Ok(report)
}

/// What the recordings say; with the plan, by its names.
pub fn why_stuck(logs: Vec<FlightLog>, plan: Option<&Plan>) -> WhyStuck {
    let count = logs.first().map_or(0, |log| log.of.ranks);
    let mut logs = logs.into_iter().peekable();
    let mut ranks: Vec<RankReport> =
        (0..count).map(|rank| report(rank, logs.next_if(|log| log.of.rank == rank), plan)).collect();
    let edges: Vec<(u32, u32)> = ranks.iter().flat_map(|r| r.waits_for.iter().map(move |to| (r.rank, *to))).collect();
    for (from, to) in edges {
        if let Some(rank) = ranks.get_mut(to as usize) {
            rank.waited_for_by.push(from);
        }
    }
    let roots = root::roots(&ranks);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    WhyStuck { ranks, roots, now }
}

/// The program that a rank runs.
pub fn program<'p>(log: &FlightLog, plan: Option<&'p Plan>) -> Option<&'p Program> {
    plan?.programs.get(log.program?.1)
}

fn report(rank: u32, log: Option<FlightLog>, plan: Option<&Plan>) -> RankReport {
    let Some(log) = log else {
        let (process, waits) = (ProcessState::Unknown, Vec::new());
        return RankReport {
            rank,
            log: None,
            process,
            task: None,
            transfer: None,
            of_outputs: false,
            exchanged: None,
            waits_for: waits.clone(),
            waited_for_by: waits,
            actor: None,
        };
    };
    let program = program(&log, plan);
    let place = |number: usize| {
        let task: Option<&Task> = program.and_then(|program| program.tasks.get(number));
        let name = task.map_or(String::new(), |task| task.name.clone());
        TaskPlace { number: number as u32, name, ops: task.map_or(Vec::new(), |task| task.locations.clone()) }
    };
    let transfer = open_transfer(&log);
    let of_transfer = transfer.as_ref().and_then(|(id, ..)| {
        let program = program?;
        program.tasks.iter().position(|task| program.transfers(task).any(|(transfer, _)| transfer.id == *id))
    });
    let task = of_transfer.or_else(|| log.tasks.iter().position(|task| task.acting)).map(place);
    let waits_for = transfer.as_ref().map_or(Vec::new(), |open| waits_for(open, &log, plan));
    let of_outputs = transfer.as_ref().is_some_and(|(id, ..)| *id >= FIRST_OF_OUTPUTS);
    let exchanged = transfer.as_ref().filter(|_| of_outputs).and_then(|(id, ..)| {
        if *id == INPUT_EXTENTS {
            return Some("the extents of inputs".into());
        }
        let (mesh, number) = (plan?.meshes.get(log.program?.0)?, (u32::MAX - *id) as usize);
        let port = mesh.outputs.get(number).map(|port| format!("output `{}`", port.name));
        let variable = |n: usize| mesh.variables.get(n).map(|port| format!("variable `{}`", port.name));
        port.or_else(|| variable(number.checked_sub(mesh.outputs.len())?))
    });
    let actor = program.filter(|_| task.is_none() && transfer.is_none()).and_then(|program| {
        let states = actors(program, &log.tasks, log.steps_of_program().0)?;
        let (task, state) = program.tasks.iter().zip(states).find(|(_, state)| !state.waits.is_empty())?;
        let waits: Vec<String> = state.waits.iter().map(|wait| wait.describe(program)).collect();
        Some(format!("task `{}` waits for {}", task.name, waits.join(", ")))
    });
    let process = process::state(&log);
    let transfer = transfer.map(|(id, ..)| id);
    RankReport {
        rank,
        process,
        task,
        transfer,
        of_outputs,
        exchanged,
        waits_for,
        waited_for_by: Vec::new(),
        actor,
        log: Some(log),
    }
}

/// The transfers of a plan have numbers below; from the last number down, those of whole outputs and variables follow.
const FIRST_OF_OUTPUTS: u32 = 1 << 31;

/// A transfer that began and did not end: its number, the ranks of the blocks that were received and sent, and the last wait.
type OpenTransfer = (u32, Vec<u32>, Vec<u32>, Option<u32>);

fn open_transfer(log: &FlightLog) -> Option<OpenTransfer> {
    let (mut received, mut sent, mut wait) = (Vec::new(), Vec::new(), None);
    for record in log.records.iter().rev() {
        match record.event {
            Event::TransferEnds { .. } => return None,
            Event::TransferBegins { transfer } => return Some((transfer, received, sent, wait)),
            Event::Received { peer, .. } => received.push(peer),
            Event::Sent { peer, .. } => sent.push(peer),
            Event::WaitsForBlock { peer, .. } | Event::WaitsUntilTaken { peer, .. } => wait = wait.or(Some(peer)),
            _ => {}
        }
    }
    None
}

/// The ranks whose blocks have not come; where all have, those that have not taken this rank's.
fn waits_for((id, received, sent, wait): &OpenTransfer, log: &FlightLog, plan: Option<&Plan>) -> Vec<u32> {
    let planned = || {
        let (program, mesh) = (program(log, plan)?, plan?.meshes.get(log.program?.0)?);
        let mut transfers = program.tasks.iter().flat_map(|task| program.transfers(task));
        let (transfer, _) = transfers.find(|(transfer, _)| transfer.id == *id)?;
        let group = transfer.group(&mesh.extents(), log.of.rank);
        let from = transfer.receives(&group).into_iter().map(|part| part.peer).filter(|peer| *peer != group.me);
        let from = from.map(|peer| group.ranks[peer]).filter(|rank| !received.contains(rank));
        let from: Vec<u32> = from.collect();
        if !from.is_empty() {
            return Some(from);
        }
        let to = transfer.sends(&group).into_iter().map(|(to, _)| group.ranks[to]);
        Some(to.filter(|rank| !sent.contains(rank)).collect())
    };
    planned().filter(|ranks: &Vec<u32>| !ranks.is_empty()).unwrap_or_else(|| wait.iter().copied().collect())
}
