//! What `of-opt train` shows of a training, and how its ranks join one another.

use std::cell::{Cell, RefCell};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use of_diag::Diagnostics;
use of_driver::training::{
    Best, Dataset, EndedJob, EpochReport, ExpectedMemory, JobEvent, JobOptions, Join, PlannedMemory, Rejoin, Schedule,
    StepReport, Trainer, TrainingJob, Waits, Watch,
};
use of_driver::{Observer, count};
use of_plan::PlanFile;
use of_runtime::Transport;
use of_transport::Placement;

use super::train::{Train, augmentation};
use super::train_classes;
use super::train_flags;
use crate::console::Console;
use crate::progress::Progress as Line;
use crate::ranks::{self, JobEnd, Joined};
use crate::telemetry::JobTrace;

/// A rank, and the connection of this process as it.
type Rank = (usize, Arc<dyn Transport>);

/// The connection of a rank to the others.
#[derive(Default)]
pub struct Connection {
    joined: RefCell<Option<Joined>>,
    /// Whether the job had ended when this rank joined.
    end: Cell<Option<JobEnd>>,
}

impl Connection {
    /// Ends the connection there is, and joins the others.
    ///
    /// # Errors
    /// When they do not come.
    pub fn join(&self, c: &Train, placement: &Placement, plan: &PlanFile) -> Result<Option<Rank>, Diagnostics> {
        self.joined.take();
        let joined = ranks::join_attempt(&c.ranks, placement, plan, &c.model.model, c.max_restarts > 0);
        let joined = joined.map_err(|failure| {
            self.end.set(failure.1);
            failure.0
        })?;
        let Some(joined) = joined else { return Ok(None) };
        let transport = Arc::clone(&joined.transport) as Arc<dyn Transport>;
        self.joined.replace(Some(joined));
        Ok(Some((placement.rank as usize, transport)))
    }

    /// How often the ranks have joined before.
    fn attempts(&self) -> u32 {
        self.joined.borrow().as_ref().map_or(0, |joined| joined.transport.attempt())
    }

    /// Whether the ranks may have done steps before.
    fn has_begun(&self) -> bool {
        self.joined.borrow().as_ref().is_some_and(|joined| joined.transport.has_begun())
    }

    /// How the job had ended, when this rank tried to join again.
    pub fn ended(&self) -> Option<EndedJob> {
        self.end.get().map(|end| match end {
            JobEnd::InOrder => EndedJob::InOrder,
            JobEnd::Refused => EndedJob::Refused,
        })
    }

    /// The training ended in order: no session is left.
    ///
    /// # Errors
    /// When MPI cannot be ended.
    pub fn done(self) -> Result<(), Diagnostics> {
        self.joined.into_inner().map_or(Ok(()), Joined::done)
    }
}

/// What the flags say of the course of a training.
pub fn job_options<'o>(
    c: &Train,
    schedule: Schedule,
    is_profiled: &'o (dyn Fn(usize) -> bool + Sync),
) -> JobOptions<'o> {
    JobOptions {
        seed: c.seed,
        shuffle: !c.no_shuffle,
        augmentation: augmentation(c),
        mixup: c.mixup,
        snapshot_every: c.snapshot_every,
        resume: c.resume,
        copy_every: (c.max_restarts > 0).then_some(c.peer_copy_every),
        log_dir: c.log_dir.clone(),
        outputs: c.output.clone(),
        merge: c.merge,
        model: c.model.model.to_string_lossy().into_owned(),
        is_profiled,
        watch: train_flags::watch(c),
        ..JobOptions::new(c.epochs, schedule)
    }
}

/// Trains, shows how far it is, and writes the results. Returns the signal that interrupted it before its end.
///
/// # Errors
/// Those of the training.
pub fn run_job(
    trainer: &mut Trainer,
    data: (&Arc<Dataset>, Option<&Dataset>),
    options: &JobOptions<'_>,
    (join, connection): (Join<'_>, &Connection),
    (c, job, console): (&Train, &JobTrace, &Console),
) -> Result<Option<u8>, Diagnostics> {
    let shows_line = std::io::stderr().is_terminal() && !console.quiet;
    let watch = train_flags::watch(c);
    let (outputs, classes) = (&c.output[..], &data.0.classes[..]);
    let mut shown =
        Shown { job, console, json: c.json, shows_line, top_k: c.top_k, outputs, classes, watch, line: None };
    let mut observe = |event: JobEvent<'_>| shown.event(event);
    let rejoin = Rejoin {
        join,
        attempts: &|| connection.attempts(),
        has_begun: &|| connection.has_begun(),
        ended: &|| connection.ended(),
        started: ranks::job_started(),
    };
    let mut training = TrainingJob::new(trainer, data, options, &mut observe)?;
    training.run(Some(&rejoin))?;
    Ok(training.interruption())
}

/// What a console shows of a training.
struct Shown<'s> {
    job: &'s JobTrace,
    console: &'s Console,
    json: bool,
    shows_line: bool,
    /// How many classes a label may be among.
    top_k: Option<usize>,
    outputs: &'s [PathBuf],
    classes: &'s [String],
    /// What is done with the course of the validation.
    watch: Option<Watch>,
    /// The line of the epoch that is under way.
    line: Option<Line>,
}

impl Shown<'_> {
    fn event(&mut self, event: JobEvent<'_>) -> Result<(), Diagnostics> {
        match event {
            JobEvent::Begins { memory } => self.console.note(&expected(memory)),
            JobEvent::Resumed { place, step, total } => {
                self.console.note(&format!("resumed from {} at step {step} of {total}", place.shown()));
            }
            JobEvent::Recovered { step, total } => {
                self.console.note(&format!("all ranks are there: going on after step {step} of {total}"));
            }
            JobEvent::Step(report) => self.step(report),
            JobEvent::Profiled { step, start, timings } => self.job.step("step", step, start, &timings),
            JobEvent::Epoch(report) => {
                self.line = None;
                self.epoch(&report)?;
            }
            JobEvent::Ends { memory, waits } => {
                if self.console.verbose > 0 {
                    self.waits(waits);
                }
                if let Some(text) = measured(memory) {
                    self.console.note(&text);
                }
            }
            JobEvent::Stopped { epoch, best } => {
                let patience = self.watch.and_then(|watch| watch.patience).unwrap_or(0);
                let best = best.map_or_else(|| "no epoch has one".into(), |best| self.best(best));
                let since = count(patience, "epoch");
                self.console
                    .note(&format!("stopped after epoch {}, {since} without a better validation: {best}", epoch + 1));
            }
            JobEvent::KeptBest(best) => self.console.note(&format!("the result is that of {}", self.best(best))),
            JobEvent::Interrupted { place, step, total } => {
                self.line = None;
                let written = place.map_or_else(String::new, |place| format!(": {} is written", place.shown()));
                let go_on = "the same command with --resume goes on from there";
                self.console.note(&format!("interrupted after step {step} of {total}{written}; {go_on}"));
            }
            JobEvent::Written(path) => {
                self.console.note(&format!("{}: written", path.display()));
                train_classes::write_names(path, self.outputs, self.classes, self.console)?;
            }
            // Later versions may report more.
            _ => {}
        }
        Ok(())
    }

    /// The best epoch for a message.
    fn best(&self, (epoch, value): Best) -> String {
        let metric = self.watch.map_or("loss", |watch| watch.metric.name());
        format!("epoch {}, the best with validation {metric} {value:.4}", epoch + 1)
    }

    fn step(&mut self, report: StepReport) {
        if !self.shows_line {
            return;
        }
        let line = self.line.get_or_insert_with(|| self.console.progress("training"));
        let StepReport { epoch, step, total, loss, samples_per_second } = report;
        let what = format!("epoch {}, loss {loss:.4}, {samples_per_second:.0} samples/s", epoch + 1);
        line.reporter().at(&what, step, total);
    }

    fn epoch(&self, report: &EpochReport) -> Result<(), Diagnostics> {
        let EpochReport { epoch, epochs, step, loss, samples_per_second: rate, evaluation, left, is_best } = *report;
        let accuracy = evaluation.and_then(|e| e.accuracy);
        let top_k = evaluation.and_then(|e| e.top_k_accuracy);
        if self.json {
            let mut line = serde_json::json!({
                "epoch": epoch + 1, "step": step, "loss": loss, "samples_per_second": rate,
                "validation_loss": evaluation.map(|e| e.loss), "accuracy": accuracy,
                "seconds_left": left.as_secs_f64(),
            });
            if let Some(is_best) = is_best {
                line["best"] = is_best.into();
            }
            if let Some(part) = top_k {
                line["top_k_accuracy"] = part.into();
            }
            return self.console.print(&format!("{line}\n"));
        }
        let validation = evaluation.map_or_else(String::new, |e| format!("  validation loss {:.4}", e.loss));
        let accuracy = accuracy.map_or_else(String::new, |a| format!("  accuracy {a:.4}"));
        let top_k = top_k.map_or_else(String::new, |a| format!("  top-{} accuracy {a:.4}", self.top_k.unwrap_or(1)));
        let best = if is_best == Some(true) { "  best" } else { "" };
        let left = if left.is_zero() { String::new() } else { format!("  {} left", duration(left)) };
        self.console.print(&format!(
            "epoch {}/{epochs}  loss {loss:.4}{validation}{accuracy}{top_k}{best}  {rate:.0} samples/s{left}\n",
            epoch + 1
        ))
    }

    fn waits(&self, waits: &Waits) {
        let share = |part: Duration| {
            let (part, whole) = (part.as_secs_f64(), waits.elapsed.as_secs_f64());
            format!("{:.1} ms, {:.2} % of the time", part * 1e3, 100.0 * part / whole.max(1e-9))
        };
        self.console.note(&format!("steps waited for data for {}", share(waits.data)));
        if waits.snapshots.count > 0 {
            let begun = count(waits.snapshots.count, "snapshot");
            self.console.note(&format!("{begun} held steps up for {}", share(waits.snapshots.time)));
        }
        if let Some((own, given)) = waits.copied_bytes.filter(|_| waits.copies.count > 0) {
            let made = format!("{} copies of {own} bytes, of which another rank has {given},", waits.copies.count);
            self.console.note(&format!("{made} held steps up for {}", share(waits.copies.time)));
        }
    }
}

/// What the compiler says about the memory of a training.
fn expected(memory: &ExpectedMemory) -> String {
    let PlannedMemory { values, evaluation, variables, constants, scratch } = memory.planned;
    let mut parts = vec![format!("{} of values", mib(values)), format!("{} of variables", mib(variables))];
    if evaluation > 0 {
        parts.push(format!("{} for evaluations", mib(evaluation)));
    }
    parts.push(format!("{} of constants", mib(constants)));
    parts.push(format!("{} of scratch", mib(scratch)));
    let whole = memory.resident.map_or_else(String::new, |bytes| format!("; {} with the program", mib(bytes)));
    format!("memory as compiled: {}{whole}", parts.join(", "))
}

/// What the steps took of it.
fn measured(memory: &ExpectedMemory) -> Option<String> {
    let (expected, measured) = memory.resident.zip(memory.measured())?;
    let off = 100.0 * (measured as f64 / expected.max(1) as f64 - 1.0);
    Some(format!("memory of the steps: {}, {off:+.1} % of what was expected", mib(measured)))
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3600, seconds / 60 % 60),
    }
}
