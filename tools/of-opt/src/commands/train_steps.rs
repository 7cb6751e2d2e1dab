//! The steps of a training; and how it goes on after another rank was lost.

use std::cell::{Cell, RefCell};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use of_diag::{Code, Diagnostics};
use of_driver::training::{
    Batches, Dataset, Draw, Evaluation, EventWriter, ExpectedMemory, Join, Note, PlannedMemory, Progress, Recovery,
    Schedule, SnapshotPlace, Trainer,
};
use of_driver::zoo::ZooModel;
use of_driver::{Observer, count, error};
use of_onnx::ExportOptions;
use of_plan::PlanFile;
use of_runtime::Transport;
use of_transport::Placement;

use super::train::{Train, augmentation};
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
    fn attempt(&self) -> u32 {
        self.joined.borrow().as_ref().map_or(0, |joined| joined.transport.attempt())
    }

    /// The training ended in order: no session is left.
    ///
    /// # Errors
    /// When MPI cannot be ended.
    pub fn done(self) -> Result<(), Diagnostics> {
        self.joined.into_inner().map_or(Ok(()), Joined::done)
    }
}

/// How a rank joins the others again.
#[derive(Clone, Copy)]
pub struct Rejoin<'j> {
    /// Joins them.
    pub join: Join<'j>,
    /// What that makes.
    pub connection: &'j Connection,
}

/// A training that is under way.
pub struct Training<'t> {
    c: &'t Train,
    job: &'t JobTrace,
    trainer: &'t mut Trainer,
    data: &'t Arc<Dataset>,
    validation: Option<&'t Dataset>,
    zoo: Option<&'t ZooModel>,
    schedule: Schedule,
    console: &'t Console,
    /// Where snapshots are written.
    place: Option<SnapshotPlace>,
    course: Course,
    /// Whether no state was copied yet since this process was there.
    fresh: bool,
    /// Whether the training has just gone back to a step.
    recovered: bool,
    events: Option<EventWriter>,
    snapshots: Held,
    copies: Held,
    waited: Duration,
    start: Instant,
    /// The step at which it began in this process.
    first: usize,
}

/// How far a training is.
#[derive(Clone, Copy, Debug)]
struct Course {
    progress: Progress,
    /// The epoch that is under way: after its last step the one that ends.
    epoch: usize,
    /// Epochs whose ends are over: evaluated, and reported.
    reported: usize,
    /// The sum of the losses of the epoch so far, and their number.
    sum: f64,
    count: usize,
    /// The step after which state was copied.
    copied: Option<usize>,
}

/// For how long steps waited for copies.
#[derive(Default)]
struct Held {
    count: usize,
    held: Duration,
}

impl Held {
    fn since(&mut self, began: Instant) {
        (self.count, self.held) = (self.count + 1, self.held + began.elapsed());
    }
}

impl Course {
    /// At a step; `reported` epochs are over.
    fn at(progress: Progress, steps: usize, reported: usize, [sum, count]: Note) -> Course {
        let epoch = progress.step / steps;
        // At the end of an epoch that is not reported, that is next.
        let is_open = progress.step.is_multiple_of(steps) && epoch > reported;
        let epoch = if is_open { epoch - 1 } else { epoch };
        Course { progress, epoch, reported, sum: f64::from_bits(sum), count: count as usize, copied: None }
    }

    /// Epochs of which this rank knows that they are reported. The rank that reports is known to have done so when it takes part in a later
    /// step: the others evaluate without it.
    fn surely_reported(&self, reports: bool, steps: usize) -> usize {
        match reports {
            true => self.reported,
            false => self.reported.min(self.progress.step.saturating_sub(1) / steps.max(1)),
        }
    }

    fn note(&self) -> Note {
        [self.sum.to_bits(), self.count as u64]
    }
}

impl<'t> Training<'t> {
    /// A training that has not begun.
    pub fn new(
        (c, job): (&'t Train, &'t JobTrace),
        trainer: &'t mut Trainer,
        (data, validation): (&'t Arc<Dataset>, Option<&'t Dataset>),
        place: Option<SnapshotPlace>,
        zoo: Option<&'t ZooModel>,
        schedule: Schedule,
        console: &'t Console,
    ) -> Training<'t> {
        let progress = Progress { step: 0, seed: c.seed, batch: c.batch, samples: data.len() };
        Training {
            c,
            job,
            trainer,
            data,
            validation,
            zoo,
            schedule,
            console,
            place,
            course: Course { progress, epoch: 0, reported: 0, sum: 0.0, count: 0, copied: None },
            fresh: true,
            recovered: false,
            events: None,
            snapshots: Held::default(),
            copies: Held::default(),
            waited: Duration::ZERO,
            start: Instant::now(),
            first: 0,
        }
    }

    /// Steps of an epoch.
    fn steps(&self) -> usize {
        self.data.len() / self.c.batch
    }

    fn total(&self) -> usize {
        self.steps() * self.c.epochs
    }

    fn restarts(&self) -> bool {
        self.c.max_restarts > 0
    }

    /// Trains, and writes the results. Where lost ranks are started again, it goes on with them.
    ///
    /// # Errors
    /// When a step fails, a file cannot be written, or a rank is lost for good.
    pub fn train(&mut self, rejoin: &Rejoin<'_>) -> Result<(), Diagnostics> {
        // The others may have waited for this process.
        let mut again = rejoin.connection.attempt() > 0;
        self.fresh = !again;
        self.start = Instant::now();
        if self.trainer.reports() {
            self.events = self.c.log_dir.as_ref().map(|folder| EventWriter::new(folder)).transpose()?;
        }
        loop {
            let began = if again { self.recover() } else { self.begin() };
            let done = began.and_then(|()| self.run()).and_then(|()| self.write());
            let Err(errors) = done else { return Ok(()) };
            if !self.restarts() || !self.trainer.is_ended_by_another() {
                return Err(errors);
            }
            tracing::debug!(%errors, "the ranks join again");
            if let Err(failed) = self.trainer.rejoin(rejoin.join) {
                return match rejoin.connection.end.get() {
                    Some(JobEnd::InOrder) => Ok(()),
                    // What this rank did when the other one was lost says more.
                    Some(JobEnd::Refused) => Err(errors),
                    None => Err(failed),
                };
            }
            again = true;
        }
    }

    /// Begins where a snapshot says, or in the beginning.
    fn begin(&mut self) -> Result<(), Diagnostics> {
        let own = Progress { step: 0, ..self.course.progress };
        self.course = Course::at(own, self.steps(), 0, [0, 0]);
        if let Some(place) = self.place.clone().filter(|_| self.c.resume)
            && written(&place)?.is_some()
        {
            self.restore(&place)?;
        }
        Ok(())
    }

    /// Goes on from a snapshot.
    fn restore(&mut self, place: &SnapshotPlace) -> Result<(), Diagnostics> {
        let restored = self.trainer.restore(place)?;
        check_same_data(place.shown(), restored, self.course.progress)?;
        self.course = Course::at(restored, self.steps(), restored.step / self.steps(), [0, 0]);
        self.first = restored.step;
        if self.trainer.reports() {
            let total = self.total();
            self.console.note(&format!("resumed from {} at step {} of {total}", place.shown(), restored.step));
        }
        Ok(())
    }

    /// Goes back to the newest step that all ranks have, or to a snapshot that this job wrote.
    fn recover(&mut self) -> Result<(), Diagnostics> {
        let reported = self.course.surely_reported(self.trainer.reports(), self.steps());
        match self.trainer.recover(self.fresh, reported as u64)? {
            Recovery::Begin => {
                self.fresh = true;
                self.begin()
            }
            Recovery::Step { step, note, mark } => {
                self.fresh = false;
                self.recovered = true;
                let progress = Progress { step: step as usize, ..self.course.progress };
                self.course = Course::at(progress, self.steps(), mark as usize, note);
                self.course.copied = Some(progress.step);
                if self.trainer.reports() {
                    self.console.note(&format!("all ranks are there: going on after step {step} of {}", self.total()));
                }
                Ok(())
            }
            Recovery::Lost(lost) => {
                // A snapshot that is being written is whole before a rank reads it.
                self.trainer.finish_snapshots()?;
                self.trainer.wait_for_all()?;
                self.fresh = false;
                let written = self.place.as_ref().map(written).transpose()?.flatten();
                let usable = written.is_some_and(|written| self.c.resume || is_of_job(written));
                match self.place.clone().filter(|_| usable) {
                    Some(place) => self.restore(&place),
                    None => Err(lost_state(&lost)),
                }
            }
        }
    }

    /// Copies the state in memory, where it is due.
    fn copy(&mut self) -> Result<(), Diagnostics> {
        let step = self.course.progress.step;
        let due = self.course.copied.is_none() || step.is_multiple_of(self.c.peer_copy_every);
        if !self.restarts() || !due || self.course.copied == Some(step) {
            return Ok(());
        }
        let began = Instant::now();
        self.trainer.copy_state(step, self.course.note())?;
        self.copies.since(began);
        self.course.copied = Some(step);
        self.fresh = false;
        Ok(())
    }

    /// Begins a snapshot, if there is a place for it. `waits` says whether to wait for the one that is being written, rather than to leave
    /// this one out.
    fn snapshot(&mut self, waits: bool) -> Result<(), Diagnostics> {
        let Some(place) = &self.place else { return Ok(()) };
        let began = Instant::now();
        if self.trainer.begin_snapshot(place, self.course.progress, waits)? {
            self.snapshots.since(began);
        }
        Ok(())
    }

    /// Whether a snapshot is due, within an epoch.
    fn is_snapshot_due(&self) -> bool {
        let step = self.course.progress.step;
        self.c.snapshot_every.is_some_and(|n| step.is_multiple_of(n)) && !step.is_multiple_of(self.steps())
    }

    /// The steps that are left.
    fn run(&mut self) -> Result<(), Diagnostics> {
        let reports = self.trainer.reports();
        let memory = self.trainer.expected_memory(self.validation.is_some());
        if reports {
            self.console.note(&expected(&memory));
        }
        self.copy()?;
        if std::mem::take(&mut self.recovered) && self.is_snapshot_due() {
            // The loss may have come before it was begun.
            self.snapshot(false)?;
        }
        while self.course.epoch < self.c.epochs {
            let rate = self.epoch()?;
            if self.course.epoch >= self.course.reported {
                self.end_epoch(rate)?;
            }
            self.course.epoch += 1;
        }
        let share = |part: Duration| {
            let (part, whole) = (part.as_secs_f64(), self.start.elapsed().as_secs_f64());
            format!("{:.1} ms, {:.2} % of the time", part * 1e3, 100.0 * part / whole.max(1e-9))
        };
        if reports && self.console.verbose > 0 {
            self.console.note(&format!("steps waited for data for {}", share(self.waited)));
            if self.snapshots.count > 0 {
                let begun = count(self.snapshots.count, "snapshot");
                self.console.note(&format!("{begun} held steps up for {}", share(self.snapshots.held)));
            }
            if let Some((own, given)) = self.trainer.copied_bytes().filter(|_| self.copies.count > 0) {
                let made = format!("{} copies of {own} bytes, of which another rank has {given},", self.copies.count);
                self.console.note(&format!("{made} held steps up for {}", share(self.copies.held)));
            }
        }
        self.trainer.finish_snapshots()?;
        if let Some(text) = measured(&memory).filter(|_| reports) {
            self.console.note(&text);
        }
        Ok(())
    }

    /// The steps of the epoch that is under way. Returns samples each second.
    fn epoch(&mut self) -> Result<f64, Diagnostics> {
        let (c, steps, total) = (self.c, self.steps(), self.total());
        let epoch = self.course.epoch;
        let done = self.course.progress.step - epoch * steps;
        if done == 0 {
            (self.course.sum, self.course.count) = (0.0, 0);
        }
        let before = self.course.count;
        let began = Instant::now();
        let seed = self.course.progress.seed;
        let order = match c.no_shuffle {
            true => (0..self.data.len()).collect(),
            false => self.data.order(seed, epoch),
        };
        let line = self.line();
        let changes = augmentation(c);
        let is_changed = !changes.is_none() || c.mixup.is_some();
        let draw = is_changed.then_some(Draw { augmentation: changes, mixup: c.mixup, seed, epoch });
        let mut batches = Batches::new(self.data, &order[done * c.batch..], c.batch, draw)?;
        for batch in &mut batches {
            let step = self.course.progress.step;
            let rate = self.schedule.rate(step, total);
            let batch = match (batch, &self.place) {
                (Err(why), Some(place)) if c.codegen.mesh.is_none() => {
                    // A damaged image ends the training, but loses no step.
                    self.trainer.snapshot(place, self.course.progress)?;
                    return Err(why);
                }
                (batch, _) => batch?,
            };
            let traced = self.job.takes(step).then(|| {
                self.trainer.set_profiling(true);
                Instant::now()
            });
            let loss = self.trainer.step(batch, rate)?;
            if let Some(start) = traced {
                self.job.step("step", step, start, &self.trainer.timings());
                self.trainer.set_profiling(false);
            }
            if !loss.is_finite() {
                let what = format!("the loss is {loss} at step {step}");
                let hint = "try a smaller --learning-rate, --warmup, or --clip-norm";
                return Err(error(Code::RUN, what).hint(hint).into());
            }
            (self.course.sum, self.course.count) = (self.course.sum + loss, self.course.count + 1);
            self.course.progress.step += 1;
            self.copy()?;
            if let Some(events) = &mut self.events {
                events.scalars(step + 1, &[("train/loss", loss), ("train/learning_rate", rate)])?;
            }
            if let Some(line) = &line {
                let loss = self.course.sum / self.course.count as f64;
                line.reporter().at(&format!("epoch {}, loss {loss:.4}", epoch + 1), step + 1, total);
            }
            if self.is_snapshot_due() {
                self.snapshot(false)?;
            }
        }
        drop(line);
        self.waited += batches.waited();
        Ok(((self.course.count - before) * c.batch) as f64 / began.elapsed().as_secs_f64())
    }

    fn line(&self) -> Option<Line> {
        let is_terminal = std::io::stderr().is_terminal() && !self.console.quiet && self.trainer.reports();
        is_terminal.then(|| self.console.progress("training"))
    }

    /// Evaluates after an epoch, and reports it. `rate` are samples each second.
    fn end_epoch(&mut self, rate: f64) -> Result<(), Diagnostics> {
        let checked = self.validation.map(|data| self.trainer.evaluate(data)).transpose()?;
        self.snapshot(true)?;
        let step = self.course.progress.step;
        if let Some(events) = &mut self.events {
            let mut scalars = vec![("train/samples_per_second", rate)];
            scalars.extend(checked.map(|e| ("validation/loss", e.loss)));
            scalars.extend(checked.and_then(|e| e.accuracy).map(|a| ("validation/accuracy", a)));
            events.scalars(step, &scalars)?;
        }
        if self.trainer.reports() {
            self.report(rate, checked)?;
        }
        self.course.reported = self.course.epoch + 1;
        Ok(())
    }

    fn report(&self, rate: f64, checked: Option<Evaluation>) -> Result<(), Diagnostics> {
        let Course { progress: Progress { step, .. }, epoch, sum, count, .. } = self.course;
        let loss = sum / count.max(1) as f64;
        if self.c.json {
            let line = serde_json::json!({
                "epoch": epoch + 1, "step": step, "loss": loss, "samples_per_second": rate,
                "validation_loss": checked.map(|e| e.loss), "accuracy": checked.and_then(|e| e.accuracy),
            });
            return self.console.print(&format!("{line}\n"));
        }
        let (done, total) = (step.saturating_sub(self.first), self.total());
        let left = self.start.elapsed().mul_f64((total - step) as f64 / done.max(1) as f64);
        let validation = checked.map_or_else(String::new, |e| format!("  validation loss {:.4}", e.loss));
        let accuracy = checked.and_then(|e| e.accuracy).map_or_else(String::new, |a| format!("  accuracy {a:.4}"));
        let left = if step < total { format!("  {} left", duration(left)) } else { String::new() };
        let epochs = self.c.epochs;
        self.console.print(&format!(
            "epoch {}/{epochs}  loss {loss:.4}{validation}{accuracy}  {rate:.0} samples/s{left}\n",
            epoch + 1
        ))
    }

    /// Writes the results. Where lost ranks are started again, no rank ends before all is written.
    fn write(&mut self) -> Result<(), Diagnostics> {
        for path in &self.c.output {
            write(self.c, path, self.trainer, self.zoo, self.course.progress, self.console)?;
        }
        if self.restarts() { self.trainer.wait_for_all() } else { Ok(()) }
    }
}

/// When the snapshot at a place was written.
fn written(place: &SnapshotPlace) -> Result<Option<SystemTime>, Diagnostics> {
    let written = place.written();
    written.map_err(|e| error(Code::IO, format!("'{}' cannot be looked at: {e}", place.shown())).into())
}

/// Whether this is after the job of this rank started.
fn is_of_job(written: SystemTime) -> bool {
    ranks::job_started().is_some_and(|started| written >= started)
}

/// No copy is left of the state of some ranks.
fn lost_state(ranks: &[u32]) -> Diagnostics {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    let (them, were) = if ranks.len() == 1 { ("rank", "it and the rank") } else { ("ranks", "they and the ranks") };
    let what = format!(
        "the state of {them} {} is gone: {were} that kept copies of it were lost at once, and there is no snapshot",
        names.join(", ")
    );
    error(Code::RUN, what).hint("--snapshot FILE with --snapshot-every N writes snapshots to go on from").into()
}

/// Rejects a snapshot whose step is no position in this data, or that goes on with other random numbers.
fn check_same_data(place: &str, snapshot: Progress, own: Progress) -> Result<(), Diagnostics> {
    let Progress { seed, batch, samples, .. } = snapshot;
    if (seed, batch, samples) == (own.seed, own.batch, own.samples) {
        return Ok(());
    }
    let what = format!(
        "'{place}' is of a training with --seed {seed} and --batch {batch} on {}; this one has --seed {} and --batch {} on {}",
        of_driver::count(samples, "sample"),
        own.seed,
        own.batch,
        of_driver::count(own.samples, "sample"),
    );
    Err(error(Code::INPUT, what).hint("go on with the same data and flags, or leave out --resume").into())
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

fn write(
    c: &Train,
    path: &Path,
    trainer: &Trainer,
    zoo: Option<&ZooModel>,
    progress: Progress,
    console: &Console,
) -> Result<(), Diagnostics> {
    if path.extension().is_some_and(|e| e == "safetensors") {
        match c.lora {
            Some(_) => trainer.write_adapters(path, &c.model.model.to_string_lossy())?,
            None => trainer.write_parameters(path, progress)?,
        }
    } else {
        // All ranks give their parts; the first one writes.
        trainer.lend_model(c.merge, |model| {
            let of_zoo = zoo.map(|zoo| zoo.trained(model)).transpose()?;
            if trainer.reports() {
                of_onnx::export_file(path, of_zoo.as_ref().unwrap_or(model), &ExportOptions::default())?;
            }
            Ok(())
        })?;
    }
    if trainer.reports() {
        console.note(&format!("{}: written", path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_epoch_is_reported_for_sure_after_the_next_step() {
        let at = |step| {
            let progress = Progress { step, seed: 0, batch: 1, samples: 13 };
            Course::at(progress, 13, step / 13, [0, 0])
        };
        // Another rank may have evaluated before the first one has reported.
        assert_eq!((at(39).surely_reported(true, 13), at(39).surely_reported(false, 13)), (3, 2));
        assert_eq!((at(40).surely_reported(true, 13), at(40).surely_reported(false, 13)), (3, 3));
        assert_eq!(at(0).surely_reported(false, 13), 0);
    }
}
