//! A training from its first step to its results: epochs, evaluations, snapshots, and how it goes on after a rank was lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use of_diag::{Code, Diagnostics};
use of_onnx::ExportOptions;
use of_runtime::TaskTiming;

use super::checks::{check_adapters_of_zoo, check_room, check_updates, check_writable, explain_loss};
use super::interruption::Agreement;
use super::monitor::{Best, History, Watch};
use super::{
    Augmentation, Batches, Dataset, Draw, Evaluation, EventWriter, ExpectedMemory, Join, Note, Progress, Recovery,
    Schedule, SnapshotPlace, Trainer,
};
use crate::error::{count, error};
use crate::session::{SessionVariables, run_error};
use crate::zoo::ZooModel;

/// What a training does.
pub struct JobOptions<'o> {
    /// How often it takes all samples.
    pub epochs: usize,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// Gives the order of samples, and the changes of images.
    pub seed: u64,
    /// Whether each epoch takes the samples in an order of its own.
    pub shuffle: bool,
    /// Random changes of images.
    pub augmentation: Augmentation,
    /// How strongly samples are mixed, if they are.
    pub mixup: Option<f64>,
    /// Where snapshots are written: after each epoch, and after steps.
    pub snapshots: Option<SnapshotPlace>,
    /// Steps between two snapshots within an epoch.
    pub snapshot_every: Option<usize>,
    /// Whether it begins at the snapshot that is there.
    pub resume: bool,
    /// Steps between two copies of the state in memory, for ranks that are processes and are started again when they are lost.
    pub copy_every: Option<usize>,
    /// The folder for TensorBoard's events.
    pub log_dir: Option<PathBuf>,
    /// Files for the trained model: `.onnx` for the model, `.safetensors` for its parameters or adapters.
    pub outputs: Vec<PathBuf>,
    /// Whether a model that is written has its adapters in its weights.
    pub merge: bool,
    /// The name of the model, which adapters refer to.
    pub model: String,
    /// The model of the zoo that is trained, whose form for inference is written.
    pub zoo: Option<&'o ZooModel>,
    /// Whether the tasks of a step are timed, by its number.
    pub is_profiled: &'o (dyn Fn(usize) -> bool + Sync),
    /// What is done with the course of the validation.
    pub watch: Option<Watch>,
    /// Why the training is to end after the step that runs, with a snapshot instead of results: a number of the caller, such as that of a
    /// signal, but not 0. Ranks that are processes and write snapshots all end after a step on which they agree, for the largest number that
    /// any of them gives; without snapshots, all must give the same after the same step.
    pub interruption: &'o (dyn Fn() -> Option<u8> + Sync),
}

impl JobOptions<'_> {
    /// Epochs in random order, of which nothing is written.
    pub fn new(epochs: usize, schedule: Schedule) -> Self {
        JobOptions {
            epochs,
            schedule,
            seed: 0,
            shuffle: true,
            augmentation: Augmentation::default(),
            mixup: None,
            snapshots: None,
            snapshot_every: None,
            resume: false,
            copy_every: None,
            log_dir: None,
            outputs: Vec::new(),
            merge: false,
            model: String::new(),
            zoo: None,
            is_profiled: &|_| false,
            watch: None,
            interruption: &|| None,
        }
    }
}

/// What happens in a training. Of ranks that are processes, the first one hears of it; of times of tasks, each one does.
#[non_exhaustive]
pub enum JobEvent<'e> {
    /// The steps begin.
    Begins {
        /// What they will need.
        memory: &'e ExpectedMemory,
    },
    /// It goes on from a snapshot.
    Resumed {
        /// Where the snapshot is.
        place: &'e SnapshotPlace,
        /// Steps before it.
        step: usize,
        /// All steps.
        total: usize,
    },
    /// A rank that was lost is back.
    Recovered {
        /// Steps that are kept.
        step: usize,
        /// All steps.
        total: usize,
    },
    /// A step is done.
    Step(StepReport),
    /// The tasks of a step were timed.
    Profiled {
        /// Its number, from 0.
        step: usize,
        /// When it began.
        start: Instant,
        /// The tasks of each rank in this process.
        timings: Vec<(Option<usize>, Vec<TaskTiming>)>,
    },
    /// An epoch is over.
    Epoch(EpochReport),
    /// The training ends before its last epoch, because the validation did not improve any more.
    Stopped {
        /// The epoch that was the last, from 0.
        epoch: usize,
        /// The best epoch, where there is one.
        best: Option<Best>,
    },
    /// The training was interrupted, and a snapshot was written.
    Interrupted {
        /// Where the snapshot is; `None` where there is none.
        place: Option<&'e SnapshotPlace>,
        /// Steps that are done.
        step: usize,
        /// All steps.
        total: usize,
    },
    /// The results are those of the best epoch.
    KeptBest(Best),
    /// The steps are over.
    Ends {
        /// What they were expected to need.
        memory: &'e ExpectedMemory,
        /// What held them up.
        waits: &'e Waits,
    },
    /// A result was written.
    Written(&'e Path),
}

/// How far a training is after a step.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// The epoch, from 0.
    pub epoch: usize,
    /// Steps that are done.
    pub step: usize,
    /// All steps.
    pub total: usize,
    /// The mean loss of the epoch so far.
    pub loss: f64,
    /// Samples each second of the epoch so far.
    pub samples_per_second: f64,
}

/// The result of an epoch.
#[derive(Clone, Copy, Debug)]
pub struct EpochReport {
    /// The epoch, from 0.
    pub epoch: usize,
    /// All epochs.
    pub epochs: usize,
    /// Steps that are done.
    pub step: usize,
    /// The mean loss of its steps.
    pub loss: f64,
    /// Samples each second.
    pub samples_per_second: f64,
    /// What an evaluation found, where there are data for it.
    pub evaluation: Option<Evaluation>,
    /// Whether the validation is the best so far; `None` where it is not watched.
    pub is_best: Option<bool>,
    /// The time that the steps will still take.
    pub left: Duration,
}

/// What steps waited for.
#[derive(Default, Debug)]
pub struct Waits {
    /// The time of all steps.
    pub elapsed: Duration,
    /// Data.
    pub data: Duration,
    /// Snapshots that were begun.
    pub snapshots: Held,
    /// Copies of the state in memory.
    pub copies: Held,
    /// Bytes that this rank copies, and those of them that another rank gets.
    pub copied_bytes: Option<(usize, usize)>,
}

/// For how long steps waited for copies.
#[derive(Clone, Copy, Default, Debug)]
pub struct Held {
    /// Number of copies.
    pub count: usize,
    /// Time of all of them.
    pub time: Duration,
}

impl Held {
    fn since(&mut self, began: Instant) {
        (self.count, self.time) = (self.count + 1, self.time + began.elapsed());
    }
}

/// How ranks that are processes join again after one was lost.
#[derive(Clone, Copy)]
pub struct Rejoin<'j> {
    /// Joins the others.
    pub join: Join<'j>,
    /// How often the ranks have joined before.
    pub attempts: &'j dyn Fn() -> u32,
    /// Whether all ranks were connected in one of these times, so that they may have done steps.
    pub has_begun: &'j dyn Fn() -> bool,
    /// Why a rank could not join: the job had ended.
    pub ended: &'j dyn Fn() -> Option<EndedJob>,
    /// When the job started: snapshots that are newer are its own.
    pub started: Option<SystemTime>,
}

/// How a job ended that a rank tried to join again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndedJob {
    /// All was done.
    InOrder,
    /// The others go on without it.
    Refused,
}

type Observe<'t> = &'t mut dyn FnMut(JobEvent<'_>) -> Result<(), Diagnostics>;

/// A training that is under way.
pub struct TrainingJob<'t> {
    trainer: &'t mut Trainer,
    data: &'t Arc<Dataset>,
    validation: Option<&'t Dataset>,
    options: &'t JobOptions<'t>,
    observe: Observe<'t>,
    course: Course,
    /// Whether this process was there in the beginning, and no state was copied since.
    fresh: bool,
    /// Whether the training has just gone back to a step.
    recovered: bool,
    events: Option<EventWriter>,
    waits: Waits,
    /// What the evaluations found, where they are watched.
    history: History,
    start: Instant,
    /// The step at which it began in this process.
    first: usize,
    /// How ranks that are processes agree on the end of an interrupted training.
    agreement: Agreement,
    /// Why it ends before its last epoch, on all ranks.
    interruption: Option<u8>,
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

    fn mean_loss(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}

impl<'t> TrainingJob<'t> {
    /// A training that has not begun. All ranks must make the same one.
    ///
    /// # Errors
    /// When the data has no whole batch, a label that is no class or a number that is no row of its table, no step would update parameters, or results could not be written.
    pub fn new(
        trainer: &'t mut Trainer,
        (data, validation): (&'t Arc<Dataset>, Option<&'t Dataset>),
        options: &'t JobOptions<'t>,
        observe: Observe<'t>,
    ) -> Result<TrainingJob<'t>, Diagnostics> {
        let batch = trainer.batch();
        if data.len() < batch {
            let what = format!("the data has {}, fewer than the {batch} of a step", count(data.len(), "sample"));
            return Err(error(Code::INPUT, what).hint("give a smaller --batch").into());
        }
        check_updates(data.len() / batch * options.epochs, trainer.accumulate())?;
        trainer.check_data(data, "training")?;
        validation.map_or(Ok(()), |data| trainer.check_data(data, "validation"))?;
        if options.watch.is_some() && validation.is_none() {
            let what = "--patience and --keep-best watch the validation, and there is none";
            return Err(error(Code::INPUT, what).hint("give --validation").into());
        }
        if let Some(zoo) = options.zoo.filter(|_| trainer.has_adapters() && !options.merge) {
            check_adapters_of_zoo(&zoo.spec.to_string(), &options.outputs)?;
        }
        if trainer.reports() {
            check_writable(&options.outputs, options.snapshots.as_ref())?;
            check_room(&options.outputs, options.snapshots.as_ref(), trainer.file_bytes()?)?;
        }
        let progress = Progress { step: 0, seed: options.seed, batch, samples: data.len() };
        Ok(TrainingJob {
            trainer,
            data,
            validation,
            options,
            observe,
            course: Course { progress, epoch: 0, reported: 0, sum: 0.0, count: 0, copied: None },
            fresh: true,
            recovered: false,
            events: None,
            waits: Waits::default(),
            history: History::default(),
            start: Instant::now(),
            first: 0,
            agreement: Agreement::new(),
            interruption: None,
        })
    }

    /// Steps of an epoch.
    fn steps(&self) -> usize {
        self.data.len() / self.course.progress.batch
    }

    fn total(&self) -> usize {
        self.steps() * self.options.epochs
    }

    /// Trains, and writes the results. With `rejoin`, it goes on when a rank that was lost is back.
    ///
    /// # Errors
    /// When a step fails, a file cannot be written, or a rank is lost for good.
    pub fn run(&mut self, rejoin: Option<&Rejoin<'_>>) -> Result<(), Diagnostics> {
        // The others may have waited for this process.
        let mut again = rejoin.is_some_and(|rejoin| (rejoin.attempts)() > 0);
        self.fresh = !rejoin.is_some_and(|rejoin| (rejoin.has_begun)());
        self.start = Instant::now();
        if self.trainer.reports() {
            self.events = self.options.log_dir.as_ref().map(|folder| EventWriter::new(folder)).transpose()?;
        }
        loop {
            let began = match rejoin.filter(|_| again) {
                Some(rejoin) => self.recover(rejoin),
                None => self.begin(),
            };
            let trained = began.and_then(|()| self.train());
            let done = trained.and_then(|is_whole| if is_whole { self.write() } else { Ok(()) });
            let Err(errors) = done else { return Ok(()) };
            let Some(rejoin) = rejoin.filter(|_| self.copies_state() && self.trainer.is_ended_by_another()) else {
                return Err(errors);
            };
            tracing::debug!(%errors, "the ranks join again");
            if let Err(failed) = self.trainer.rejoin(rejoin.join) {
                return match (rejoin.ended)() {
                    Some(EndedJob::InOrder) => Ok(()),
                    // What this rank did when the other one was lost says more.
                    Some(EndedJob::Refused) => Err(errors),
                    None => Err(failed),
                };
            }
            again = true;
        }
    }

    fn copies_state(&self) -> bool {
        self.options.copy_every.is_some()
    }

    /// Begins where a snapshot says, or in the beginning.
    fn begin(&mut self) -> Result<(), Diagnostics> {
        let own = Progress { step: 0, ..self.course.progress };
        self.course = Course::at(own, self.steps(), 0, [0, 0]);
        match &self.options.snapshots {
            Some(place) if self.options.resume && written(place)?.is_some() => self.restore(place),
            _ => Ok(()),
        }
    }

    /// Goes on from a snapshot.
    fn restore(&mut self, place: &SnapshotPlace) -> Result<(), Diagnostics> {
        let (restored, notes) = self.trainer.restore_noted(place)?;
        check_same_data(place.shown(), restored, self.course.progress)?;
        check_epochs(place.shown(), restored.step, self.steps(), self.options.epochs)?;
        if let (Some(watch), Some(text)) = (&self.options.watch, notes.get(HISTORY)) {
            self.history = History::parse(text, watch, place.shown())?;
            self.check_kept(place.shown())?;
        }
        self.course = Course::at(restored, self.steps(), restored.step / self.steps(), [0, 0]);
        self.first = restored.step;
        let total = self.total();
        self.tell(JobEvent::Resumed { place, step: restored.step, total })
    }

    /// Passes on what happened, if this process reports.
    fn tell(&mut self, event: JobEvent<'_>) -> Result<(), Diagnostics> {
        if self.trainer.reports() { (self.observe)(event) } else { Ok(()) }
    }

    /// Goes back to the newest step that all ranks have, or to a snapshot that this job wrote.
    fn recover(&mut self, rejoin: &Rejoin<'_>) -> Result<(), Diagnostics> {
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
                let total = self.total();
                self.tell(JobEvent::Recovered { step: progress.step, total })
            }
            Recovery::Lost(lost) => {
                // A snapshot that is being written is whole before a rank reads it.
                self.trainer.finish_snapshots()?;
                self.trainer.wait_for_all()?;
                self.fresh = false;
                let place = self.options.snapshots.as_ref();
                let written = place.map(written).transpose()?.flatten();
                let is_own = |written| rejoin.started.is_some_and(|started| written >= started);
                match place.filter(|_| written.is_some_and(|written| self.options.resume || is_own(written))) {
                    Some(place) => self.restore(place),
                    None => Err(lost_state(&lost)),
                }
            }
        }
    }

    /// Copies the state in memory, where it is due.
    fn copy(&mut self) -> Result<(), Diagnostics> {
        let step = self.course.progress.step;
        let Some(every) = self.options.copy_every else { return Ok(()) };
        let due = self.course.copied.is_none() || step.is_multiple_of(every);
        if !due || self.course.copied == Some(step) {
            return Ok(());
        }
        let began = Instant::now();
        self.trainer.copy_state(step, self.course.note())?;
        self.waits.copies.since(began);
        self.course.copied = Some(step);
        self.fresh = false;
        Ok(())
    }

    /// Begins a snapshot, if there is a place for it. `waits` says whether to wait for the one that is being written, rather than to leave
    /// this one out.
    fn snapshot(&mut self, waits: bool) -> Result<(), Diagnostics> {
        let Some(place) = &self.options.snapshots else { return Ok(()) };
        let began = Instant::now();
        if self.trainer.begin_snapshot(place, self.course.progress, waits)? {
            self.waits.snapshots.since(began);
        }
        Ok(())
    }

    /// Whether a snapshot is due, within an epoch.
    fn is_snapshot_due(&self) -> bool {
        let step = self.course.progress.step;
        self.options.snapshot_every.is_some_and(|n| step.is_multiple_of(n)) && !step.is_multiple_of(self.steps())
    }

    /// The steps that are left. Returns whether it came to its end; otherwise it was interrupted.
    fn train(&mut self) -> Result<bool, Diagnostics> {
        let memory = self.trainer.expected_memory(self.validation.is_some());
        self.tell(JobEvent::Begins { memory: &memory })?;
        let (batch, mixed) = (self.trainer.batch(), self.options.mixup.is_some());
        let read = self.trainer.rows().read(0, batch, mixed).len();
        tracing::debug!(read, of = batch, "samples that this process reads of each batch");
        if let Some(place) = &self.options.snapshots {
            self.trainer.prepare_snapshots(place)?;
        }
        // All ranks are here, also those that came back.
        (self.agreement, self.interruption) = (Agreement::new(), None);
        self.copy()?;
        if std::mem::take(&mut self.recovered) && self.is_snapshot_due() {
            // The loss may have come before it was begun.
            self.snapshot(false)?;
        }
        while self.course.epoch < self.options.epochs && !self.stops()? {
            let rate = self.epoch()?;
            // A snapshot in the middle of an epoch is one that a resumed training goes on with; at its end it is evaluated first.
            let is_over = self.course.progress.step >= (self.course.epoch + 1) * self.steps();
            if is_over && self.course.epoch >= self.course.reported {
                self.end_epoch(rate)?;
            }
            if self.course.progress.step < self.total() && self.is_interrupted(true)? {
                self.interrupt()?;
                return Ok(false);
            }
            self.course.epoch += 1;
        }
        // One that comes with the last step interrupts nothing.
        self.interruption = None;
        self.waits.elapsed = self.start.elapsed();
        self.waits.copied_bytes = self.trainer.copied_bytes();
        self.trainer.finish_snapshots()?;
        if self.trainer.reports() {
            (self.observe)(JobEvent::Ends { memory: &memory, waits: &self.waits })?;
        }
        Ok(true)
    }

    /// Why the training ended before its last epoch, with a snapshot instead of results: the number that [`JobOptions::interruption`] gave, on
    /// any rank.
    pub fn interruption(&self) -> Option<u8> {
        self.interruption
    }

    /// Whether the training is to end here, on all ranks. All must ask after each step and each epoch.
    fn is_interrupted(&mut self, after_epoch: bool) -> Result<bool, Diagnostics> {
        if self.interruption.is_none() {
            let own = (self.options.interruption)();
            self.interruption = match self.trainer.of_rank().filter(|_| self.options.snapshots.is_some()) {
                None => own,
                Some(ranks) if after_epoch => self.agreement.after_epoch(ranks, own)?,
                Some(ranks) => self.agreement.after_step(ranks, own)?,
            };
        }
        Ok(self.interruption.is_some())
    }

    /// Writes a snapshot of an interrupted training.
    fn interrupt(&mut self) -> Result<(), Diagnostics> {
        // The end of an epoch has one.
        if !self.course.progress.step.is_multiple_of(self.steps()) {
            self.snapshot(true)?;
        }
        self.trainer.finish_snapshots()?;
        if self.options.snapshots.is_some() {
            // No rank ends before the snapshot is whole.
            self.trainer.of_rank().map_or(Ok(()), |ranks| ranks.tell_all(0).map(drop)).map_err(|e| run_error(&e))?;
        }
        let (step, total) = (self.course.progress.step, self.total());
        self.tell(JobEvent::Interrupted { place: self.options.snapshots.as_ref(), step, total })
    }

    /// Whether the validation did not improve for so long that the training ends.
    fn stops(&mut self) -> Result<bool, Diagnostics> {
        let Some(watch) = self.options.watch.filter(|watch| self.history.is_stale(watch)) else { return Ok(false) };
        let best = self.history.best(&watch);
        self.tell(JobEvent::Stopped { epoch: self.course.epoch.saturating_sub(1), best })?;
        Ok(true)
    }

    /// The best epoch so far, whose results are kept.
    fn kept(&self) -> Option<Best> {
        let watch = self.options.watch.filter(|watch| watch.keep_best)?;
        self.history.best(&watch)
    }

    /// Rejects a snapshot after a best epoch whose results are not there any more.
    fn check_kept(&self, place: &str) -> Result<(), Diagnostics> {
        let missing = self.options.outputs.iter().find(|path| !path.exists());
        let Some(((epoch, _), path)) = self.kept().zip(missing).filter(|_| self.trainer.reports()) else {
            return Ok(());
        };
        let what = format!(
            "'{place}' goes on after epoch {}, the best so far, and '{}', which --keep-best wrote then, is not there",
            epoch + 1,
            path.display()
        );
        Err(error(Code::INPUT, what).hint("give the same --output as before, or leave out --keep-best").into())
    }

    /// Takes note of an evaluation, the same on all ranks, and writes results that are the best so far. Returns whether they are.
    fn watch(&mut self, checked: Option<Evaluation>) -> Result<Option<bool>, Diagnostics> {
        let (Some(watch), Some(evaluation)) = (self.options.watch, checked) else { return Ok(None) };
        let epoch = self.course.epoch;
        self.history.record(&watch, epoch, &evaluation)?;
        self.trainer.agree_on(&mut self.history, epoch)?;
        let is_best = self.history.best(&watch).is_some_and(|(best, _)| best == epoch);
        if is_best && watch.keep_best {
            self.options.outputs.iter().try_for_each(|path| self.write_output(path))?;
        }
        let text = self.history.text(&watch);
        self.trainer.note(HISTORY, text);
        Ok(Some(is_best))
    }

    /// The steps of the epoch that is under way. Returns samples each second.
    fn epoch(&mut self) -> Result<f64, Diagnostics> {
        let (options, steps, total) = (self.options, self.steps(), self.total());
        let Progress { step, seed, batch: samples, .. } = self.course.progress;
        let epoch = self.course.epoch;
        let done = step - epoch * steps;
        if done == 0 {
            (self.course.sum, self.course.count) = (0.0, 0);
        }
        let before = self.course.count;
        let began = Instant::now();
        let order = match options.shuffle {
            true => self.data.order(seed, epoch),
            false => (0..self.data.len()).collect(),
        };
        let is_changed = !options.augmentation.is_none() || options.mixup.is_some();
        let draw = is_changed.then_some(Draw { augmentation: options.augmentation, mixup: options.mixup, seed, epoch });
        let left = &order[done * samples..];
        let mut batches = Batches::new(self.data, left, samples, draw, self.trainer.rows())?;
        let mut numbers = left.chunks_exact(samples);
        let mut rate = 0.0;
        for batch in &mut batches {
            let step = self.course.progress.step;
            let batch = match (batch, &options.snapshots) {
                (Err(why), Some(place)) if self.is_on_one_device() => {
                    // A damaged image ends the training, but loses no step.
                    self.trainer.snapshot(place, self.course.progress)?;
                    return Err(why);
                }
                // The other ranks may not read what is damaged.
                (batch, _) => batch.inspect_err(|why| self.trainer.fail(why))?,
            };
            let learning_rate = options.schedule.rate(step, total);
            let numbers = numbers.next().unwrap_or_default();
            self.trainer.check_batch((self.data, "training"), &batch, numbers)?;
            let loss = self.step(batch, learning_rate)?;
            if !loss.is_finite() {
                return Err(explain_loss(loss, step, self.data, numbers));
            }
            (self.course.sum, self.course.count) = (self.course.sum + loss, self.course.count + 1);
            self.course.progress.step += 1;
            self.copy()?;
            if let Some(events) = &mut self.events {
                events.scalars(step + 1, &[("train/loss", loss), ("train/learning_rate", learning_rate)])?;
            }
            rate = ((self.course.count - before) * samples) as f64 / began.elapsed().as_secs_f64();
            let loss = self.course.mean_loss();
            self.tell(JobEvent::Step(StepReport { epoch, step: step + 1, total, loss, samples_per_second: rate }))?;
            if self.is_interrupted(false)? {
                break;
            }
            if self.is_snapshot_due() {
                self.snapshot(false)?;
            }
        }
        self.waits.data += batches.waited();
        Ok(rate)
    }

    /// A step, whose tasks are timed where that is wanted.
    fn step(&mut self, batch: Vec<of_runtime::Value>, rate: f64) -> Result<f64, Diagnostics> {
        let step = self.course.progress.step;
        let profiled = (self.options.is_profiled)(step).then(|| {
            self.trainer.set_profiling(true);
            Instant::now()
        });
        let loss = self.trainer.step(batch, rate)?;
        if let Some(start) = profiled {
            let timings = self.trainer.timings();
            (self.observe)(JobEvent::Profiled { step, start, timings })?;
            self.trainer.set_profiling(false);
        }
        Ok(loss)
    }

    fn is_on_one_device(&self) -> bool {
        matches!(self.trainer.variables(), Ok(SessionVariables::One(_)))
    }

    /// Evaluates after an epoch, and reports it. `rate` are samples each second.
    fn end_epoch(&mut self, rate: f64) -> Result<(), Diagnostics> {
        let checked = self.validation.map(|data| self.trainer.evaluate(data)).transpose()?;
        let is_best = self.watch(checked)?;
        self.snapshot(true)?;
        let Course { progress: Progress { step, .. }, epoch, .. } = self.course;
        if let Some(events) = &mut self.events {
            let mut scalars = vec![("train/samples_per_second", rate)];
            scalars.extend(checked.map(|e| ("validation/loss", e.loss)));
            scalars.extend(checked.and_then(|e| e.accuracy).map(|a| ("validation/accuracy", a)));
            scalars.extend(checked.and_then(|e| e.top_k_accuracy).map(|a| ("validation/top_k_accuracy", a)));
            events.scalars(step, &scalars)?;
        }
        let done = step.saturating_sub(self.first).max(1);
        let report = EpochReport {
            epoch,
            epochs: self.options.epochs,
            step,
            loss: self.course.mean_loss(),
            samples_per_second: rate,
            evaluation: checked,
            is_best,
            left: self.start.elapsed().mul_f64((self.total() - step) as f64 / done as f64),
        };
        self.tell(JobEvent::Epoch(report))?;
        self.course.reported = self.course.epoch + 1;
        Ok(())
    }

    /// Writes the results. Where lost ranks are started again, no rank ends before all is written.
    fn write(&mut self) -> Result<(), Diagnostics> {
        let kept = self.kept();
        kept.map_or(Ok(()), |best| self.tell(JobEvent::KeptBest(best)))?;
        for path in &self.options.outputs {
            if kept.is_none() {
                self.write_output(path)?;
            }
            self.tell(JobEvent::Written(path))?;
        }
        if self.copies_state() { self.trainer.wait_for_all() } else { Ok(()) }
    }

    fn write_output(&self, path: &Path) -> Result<(), Diagnostics> {
        let JobOptions { merge, model, zoo, .. } = self.options;
        if path.extension().is_some_and(|e| e == "safetensors") {
            return match self.trainer.has_adapters() {
                true => self.trainer.write_adapters(path, model),
                false => self.trainer.write_parameters(path, self.course.progress),
            };
        }
        // All ranks give their parts; the first one writes.
        self.trainer.lend_model(*merge, |model| {
            let of_zoo = zoo.map(|zoo| zoo.trained(model)).transpose()?;
            if self.trainer.reports() {
                of_onnx::export_file(path, of_zoo.as_ref().unwrap_or(model), &ExportOptions::default())?;
            }
            Ok(())
        })
    }
}

/// What a snapshot calls the course of the validation.
const HISTORY: &str = "validation";

/// Rejects a snapshot after more epochs than the training is to have.
fn check_epochs(place: &str, step: usize, steps: usize, epochs: usize) -> Result<(), Diagnostics> {
    if step <= steps * epochs {
        return Ok(());
    }
    let what = format!(
        "'{place}' is at step {step}, in epoch {}; --epochs {epochs} ends at step {}",
        step.div_ceil(steps.max(1)),
        steps * epochs
    );
    Err(error(Code::INPUT, what).hint("give as many --epochs, or leave out --resume").into())
}

/// When the snapshot at a place was written.
fn written(place: &SnapshotPlace) -> Result<Option<SystemTime>, Diagnostics> {
    let written = place.written();
    written.map_err(|e| error(Code::IO, format!("'{}' cannot be looked at: {e}", place.shown())).into())
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
        count(samples, "sample"),
        own.seed,
        own.batch,
        count(own.samples, "sample"),
    );
    Err(error(Code::INPUT, what).hint("go on with the same data and flags, or leave out --resume").into())
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
