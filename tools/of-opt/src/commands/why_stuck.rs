//! `of-opt why-stuck`: why the ranks of a job are stuck, or how they ended, from the recordings of their flight recorders.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use of_diag::{Code, Diagnostics};
use of_driver::why_stuck::{self, RankReport, Root, TaskPlace, WhyStuck};
use of_driver::{Observer, count, error, io_error};
use of_plan::{Exec, Plan, PlanFile, Task};
use of_runtime::flight_recorder::{FlightLog, Phase, describe};
use of_transport::plan_hash;
use serde_json::{Value, json};

use crate::console::Console;
use crate::{ranks, trace};

/// Flags.
#[derive(Args, Debug)]
pub struct WhyStuckCommand {
    /// The folder of the recordings, one of each rank (rank-0.flight …); the ranks may run, or have ended in whatever way
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The plan, which names tasks and registers [default: what the ranks kept of it there]
    #[arg(value_name = "PLAN")]
    pub plan: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print every actor, register and credit of every rank, too
    #[arg(long, conflicts_with_all = ["json", "metrics"])]
    pub actors: bool,
    /// Print metrics of the ranks for Prometheus instead
    #[arg(long, conflicts_with = "json")]
    pub metrics: bool,
    /// Write the timeline of what the recordings cover, for ui.perfetto.dev
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
}

/// Executes the subcommand.
///
/// # Errors
/// When there are no recordings, or the plan is another one.
pub fn why_stuck(c: &WhyStuckCommand, console: &Console) -> Result<(), Diagnostics> {
    let (logs, unread) = why_stuck::recordings(&c.dir)?;
    unread.iter().for_each(|what| console.note(what));
    let plan = plan(c, &logs)?;
    if plan.is_none() && !c.metrics {
        console.note("the plan that the ranks ran is not there any more; give it as PLAN to see names");
    }
    if let Some(path) = &c.trace {
        let text = timeline(&logs, plan.as_ref()).to_string();
        of_files::write(path, text).map_err(|e| io_error(path, "written", &e))?;
    }
    if c.metrics {
        return console.print(&ranks::metrics(&logs));
    }
    let report = why_stuck::look(&c.dir, plan.as_ref())?;
    if c.json {
        return console.print(&format!("{:#}\n", as_json(&report)));
    }
    let mut out = as_text(&report);
    if c.actors {
        for log in report.ranks.iter().filter_map(|rank| rank.log.as_ref()) {
            if let Some(program) = why_stuck::program(log, plan.as_ref()) {
                let _ =
                    write!(out, "\nrank {}, {}", log.of.rank, describe(program, &log.tasks, log.steps_of_program()));
            }
        }
    }
    console.print(&out)
}

/// The plan of these recordings: the one that was given, or else what the ranks kept of it, or the file that they ran, where it is still
/// the same.
fn plan(c: &WhyStuckCommand, logs: &[FlightLog]) -> Result<Option<Plan>, Diagnostics> {
    let Some(first) = logs.first() else { return Ok(None) };
    let is_it = |plan: &PlanFile| plan_hash(plan) == first.of.plan_hash;
    if let Some(path) = &c.plan {
        let plan = PlanFile::open(path).map_err(|e| error(Code::PLAN, format!("'{}': {e}", path.display())))?;
        return match is_it(&plan) {
            true => Ok(Some(plan.plan().clone())),
            false => Err(error(Code::INPUT, format!("the ranks ran another plan than '{}'", path.display())).into()),
        };
    }
    let kept = why_stuck::kept_plan(&c.dir, &first.of.plan_hash);
    let of_file = || first.of.plan.as_ref().and_then(|path| PlanFile::open(path).ok()).filter(is_it);
    Ok(kept.or_else(|| of_file().map(|plan| plan.plan().clone())))
}

fn as_text(report: &WhyStuck) -> String {
    let mut out = String::new();
    for rank in &report.ranks {
        let _ = writeln!(out, "{}{}", name(rank), sentence(rank, report.now));
    }
    match &report.roots[..] {
        [] => out.push_str("no rank waits for another\n"),
        roots => roots.iter().for_each(|root| {
            let _ = writeln!(out, "root: {}", explained(root, report));
        }),
    }
    out
}

/// A rank with host and process.
fn name(rank: &RankReport) -> String {
    match &rank.log {
        Some(log) => format!("rank {} on {} (process {}, {})", rank.rank, log.of.host, log.pid, rank.process.name()),
        None => format!("rank {}", rank.rank),
    }
}

fn sentence(rank: &RankReport, now: u64) -> String {
    let Some(log) = &rank.log else { return " has no recording in this folder".into() };
    let mut out = match log.phase {
        Phase::Joins => " waits for the other ranks to join".to_owned(),
        Phase::Loads => " loads the plan".into(),
        Phase::Ended => " ended in order".into(),
        Phase::Failed | Phase::EndedByAnother => {
            format!(" ended: {}", log.failure.as_deref().unwrap_or("it does not say why"))
        }
        Phase::Runs => format!(" is in step {}", log.steps.0.saturating_sub(1)),
    };
    let between_steps = log.phase == Phase::Runs && log.steps.0 == log.steps.1;
    if between_steps && rank.of_outputs {
        out = format!(" has ended {}", count(log.steps.1 as usize, "step"));
    } else if between_steps {
        out = format!(" has ended {} and not begun another", count(log.steps.1 as usize, "step"));
    }
    if log.phase != Phase::Runs {
        return out;
    }
    if let Some(task) = &rank.task {
        let _ = write!(out, ", in {}", task_text(task));
    }
    if let Some(transfer) = rank.transfer {
        match rank.of_outputs {
            true => {
                let what = rank.exchanged.as_deref().unwrap_or("outputs");
                let _ = write!(out, ", in the exchange of {what}");
            }
            false => _ = write!(out, ", in transfer {transfer}"),
        }
    }
    if !rank.waits_for.is_empty() {
        let _ = write!(out, ", waits for {}", named_ranks(&rank.waits_for));
    }
    if let Some(actor) = &rank.actor {
        let _ = write!(out, "; {actor}");
    }
    if let Some(last) = rank.last() {
        let _ = write!(out, "; last event {:.3} s ago", now.saturating_sub(last) as f64 * 1e-9);
    }
    out
}

fn task_text(task: &TaskPlace) -> String {
    /// As many ops of a fused group are named.
    const NAMED: usize = 3;
    if task.name.is_empty() {
        return format!("task {}", task.number);
    }
    let ops = task.ops.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = task.ops.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let at = if ops.is_empty() { ops } else { format!(" at {ops}{more}") };
    format!("task `{}`{at}", task.name)
}

/// `rank 3`, or `ranks 1 and 2`.
fn named_ranks(list: &[u32]) -> String {
    let names: Vec<String> = list.iter().map(u32::to_string).collect();
    match &names[..] {
        [one] => format!("rank {one}"),
        [first @ .., last] => format!("ranks {} and {last}", first.join(", ")),
        [] => "no rank".into(),
    }
}

fn explained(root: &Root, report: &WhyStuck) -> String {
    let of = |rank: u32| &report.ranks[rank as usize];
    let at = |rank: u32| {
        let place = of(rank).task.as_ref().map_or(String::new(), |task| format!(" in {}", task_text(task)));
        let transfer = of(rank).transfer.filter(|_| !of(rank).of_outputs);
        let transfer = transfer.map_or(String::new(), |id| format!(", transfer {id}"));
        let outputs = of(rank).exchanged.as_ref().map_or(String::new(), |what| format!(" in the exchange of {what}"));
        place + &transfer + &outputs
    };
    let waiting = |rank: u32| match &of(rank).waited_for_by[..] {
        [] => String::new(),
        by => format!(
            "; {} for it",
            if by.len() == 1 { format!("{} waits", named_ranks(by)) } else { format!("{} wait", named_ranks(by)) }
        ),
    };
    match root {
        Root::Gone(rank) => {
            let ended = "ended without a word: it was killed, or crashed";
            // The others may have seen more, such as a rank that did not answer before it was killed.
            let words = report
                .ranks
                .iter()
                .find_map(|other| other.log.as_ref().filter(|log| log.of.rank != *rank)?.failure.as_ref());
            let words = words.map_or(String::new(), |words| format!("; another rank says: {words}"));
            format!("the process of rank {rank} {ended}{}{}{words}", at(*rank), waiting(*rank))
        }
        Root::Missing(rank) => format!("rank {rank} was not started, or its recording is on another host"),
        Root::Stopped(rank) => {
            format!("the process of rank {rank} is stopped (SIGSTOP, or a debugger){}{}", at(*rank), waiting(*rank))
        }
        Root::Failed(rank, why) => format!("rank {rank} failed: {why}"),
        Root::Silent(rank) => {
            format!("rank {rank} recorded nothing while others waited: look at its host{}{}", at(*rank), waiting(*rank))
        }
        Root::Cycle(cycle) => {
            let waits = cycle.iter().zip(cycle.iter().cycle().skip(1));
            let waits = waits.map(|(from, to)| format!("rank {from}{} waits for rank {to}", at(*from)));
            format!("deadlock: {}", waits.collect::<Vec<_>>().join(", and "))
        }
        Root::Ended(rank) => format!("rank {rank} has ended{}", waiting(*rank)),
        Root::Idle(rank) => {
            let why = of(*rank).actor.as_ref().map_or(String::new(), |actor| format!(" ({actor})"));
            format!("rank {rank} has not begun the next step{why}{}", waiting(*rank))
        }
        Root::Works(rank) => format!("rank {rank} works{}{}", at(*rank), waiting(*rank)),
    }
}

fn as_json(report: &WhyStuck) -> Value {
    let rank = |r: &RankReport| {
        let task = r.task.as_ref().map(|t| json!({"number": t.number, "name": t.name, "ops": t.ops}));
        let log = r.log.as_ref();
        json!({
            "rank": r.rank, "host": log.map(|l| &l.of.host), "pid": log.map(|l| l.pid), "process": r.process.name(),
            "phase": log.map(|l| phase(l.phase)), "failure": log.and_then(|l| l.failure.as_ref()),
            "steps_begun": log.map(|l| l.steps.0), "steps_ended": log.map(|l| l.steps.1), "task": task,
            "transfer": r.transfer, "of_outputs": r.of_outputs, "exchanged": r.exchanged, "waits_for": r.waits_for,
            "waited_for_by": r.waited_for_by, "actor": r.actor,
            "last_event_seconds_ago": r.last().map(|last| report.now.saturating_sub(last) as f64 * 1e-9),
        })
    };
    let root = |root: &Root| json!({"kind": root.name(), "ranks": root.ranks(), "text": explained(root, report)});
    json!({
        "ranks": report.ranks.iter().map(rank).collect::<Vec<_>>(),
        "roots": report.roots.iter().map(root).collect::<Vec<_>>(),
    })
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Joins => "joins",
        Phase::Loads => "loads",
        Phase::Runs => "runs",
        Phase::Ended => "ended",
        Phase::Failed => "failed",
        Phase::EndedByAnother => "ended_by_another",
    }
}

/// The acts that the recordings cover, by the names of the simulator's timeline.
fn timeline(logs: &[FlightLog], plan: Option<&Plan>) -> Value {
    let slices = |log| {
        let program = why_stuck::program(log, plan);
        let task = |number: u32| program.and_then(|program| program.tasks.get(number as usize));
        why_stuck::slices(log, &|number| task(number).is_some_and(|task| matches!(task.exec, Some(Exec::Boxing(_)))))
    };
    let all: Vec<_> = logs.iter().map(|log| (log, slices(log))).collect();
    let begin = all.iter().flat_map(|(_, slices)| slices).map(|slice| slice.start).min().unwrap_or(0);
    let us = |ns: u64| ns as f64 / 1e3;
    let mut out = Vec::new();
    for (log, slices) in all {
        let program = why_stuck::program(log, plan);
        out.push(trace::name("process_name", log.of.rank, 0, &format!("rank {}", log.of.rank)));
        let threads = program.into_iter().flat_map(|program| &program.threads);
        let concurrent = threads.map(|thread| thread.id + 1).max().unwrap_or(1);
        if program.is_some_and(|program| program.tasks.iter().any(Task::is_async_transfer)) {
            out.push(trace::name("thread_name", log.of.rank, concurrent, "transfers"));
        }
        for slice in slices {
            let task = program.and_then(|program| program.tasks.get(slice.task as usize));
            let name = task.map_or_else(|| format!("task {}", slice.task), |task| task.name.clone());
            let is_transfer = task.is_some_and(|task| matches!(task.exec, Some(Exec::Boxing(_))));
            let args = json!({
                "task": slice.task, "act": slice.act, "waited_us": us(slice.waited), "ended": slice.ended,
                "from": task.map(|task| &task.locations),
            });
            let when = (us(slice.start - begin), us(slice.end - slice.start));
            let thread = task.map_or(0, |task| if task.is_async_transfer() { concurrent } else { task.thread });
            out.push(trace::event(
                &name,
                if is_transfer { "transfer" } else { "compute" },
                (log.of.rank, thread),
                when,
                args,
            ));
        }
    }
    trace::file(out)
}
