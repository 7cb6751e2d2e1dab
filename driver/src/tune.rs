//! Autotuning: which register tile of each contraction is the fastest, measured in the model itself.
//!
//! Each round compiles the model with an untried tile for every contraction that has one, and runs it with profiling. So kernels
//! are measured between their neighbours, with the caches as they are in the model, and all of them at once. Short rounds
//! find the fastest tile of each contraction; a few long ones compare it with the cost model's choice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use of_codegen::Compiled;
use of_codegen::kernel::contraction::Tile;
use of_codegen::kernel::schedule::{Schedules, TunableContraction};
use of_codegen::toolchain::{read_private, write_private};
use of_diag::{Code, Diagnostics};
use of_ir::Func;
use of_plan::PlanFile;

use crate::backends::Backends;
use crate::error::{count, error, io_error};
use crate::generate::{Generator, isa};
use crate::model::Model;
use crate::observer::Observer;
use crate::options::{CompileOptions, SessionOptions};
use crate::session::{program_session, run_error};
use crate::{process, random_inputs, tensor_files};

/// A tile replaces the cost model's choice when it takes at most this share of its time: a smaller gain is noise.
const GAIN: f64 = 0.98;

/// How long a round measures: at least so many runs, and at least so many seconds.
struct Measure {
    runs: usize,
    seconds: f64,
}

/// A round that finds the tiles that may be faster.
const SCREENING: Measure = Measure { runs: 3, seconds: 0.1 };
/// A round that decides.
const CONFIRMATION: Measure = Measure { runs: 5, seconds: 0.5 };

/// What a round measures.
#[derive(Clone, Copy)]
enum Round {
    /// The tile of this index, of every contraction that has one.
    Screen(usize),
    /// By even numbers the tile of the cost model again, by odd ones the fastest of the screening.
    Confirm(usize),
}

/// Rounds that decide: in turn, so that what disturbs the machine for a while disturbs both.
const CONFIRMATIONS: usize = 4;

/// The tiles of a contraction and their times, in seconds of all tasks that execute the contraction.
struct Candidates {
    /// Tiles to try, the cost model's choice first.
    tiles: Vec<Tile>,
    /// The times of the tiles that were screened.
    screened: Vec<f64>,
    /// The times in the rounds that decide.
    confirmed: Vec<f64>,
}

impl Candidates {
    /// The index of the fastest tile that was screened.
    fn fastest(&self) -> usize {
        (1..self.screened.len()).fold(0, |best, i| if self.screened[i] < self.screened[best] { i } else { best })
    }

    /// The tile for a round.
    fn tile(&self, round: Round) -> Tile {
        match round {
            Round::Screen(i) => self.tiles[if i < self.tiles.len() { i } else { self.fastest() }],
            Round::Confirm(i) if i % 2 == 0 => self.tiles[0],
            Round::Confirm(_) => self.tiles[self.fastest()],
        }
    }

    /// Adds the time of a round.
    fn add(&mut self, round: Round, seconds: f64) {
        match round {
            Round::Screen(i) if i < self.tiles.len() => self.screened.push(seconds),
            Round::Screen(_) => {}
            Round::Confirm(_) => self.confirmed.push(seconds),
        }
    }

    /// The best times of the cost model's tile and of the fastest one, by the rounds that decide.
    fn confirmed(&self) -> (f64, f64) {
        let best = |odd| self.confirmed.iter().skip(odd).step_by(2).copied().fold(f64::INFINITY, f64::min);
        (best(0), best(1))
    }

    /// Whether another tile than the cost model's is faster.
    fn is_better(&self) -> bool {
        let (model, best) = self.confirmed();
        self.confirmed.len() == CONFIRMATIONS && best < GAIN * model
    }

    /// The tile to use; `None` where there was no time to decide.
    fn decided(&self) -> Option<Tile> {
        let all = self.screened.len() == self.tiles.len();
        let decided = self.confirmed.len() == CONFIRMATIONS || (all && self.fastest() == 0);
        decided.then(|| self.tiles[if self.is_better() { self.fastest() } else { 0 }])
    }
}

/// What a tuning session works on.
struct Tuner<'a> {
    funcs: &'a [(String, Func)],
    model: &'a Model,
    options: &'a CompileOptions,
    backends: &'a Backends,
    observer: &'a dyn Observer,
    candidates: BTreeMap<String, Candidates>,
    rounds: usize,
}

/// The fastest tiles for the contractions of `funcs`: those that the cache holds, and those that measuring for `limit`
/// adds. New ones are written to the cache.
///
/// # Errors
/// When the functions cannot be compiled or run.
pub fn tune(
    funcs: &[(String, Func)],
    model: &Model,
    options: &CompileOptions,
    backends: &Backends,
    limit: Duration,
    observer: &dyn Observer,
) -> Result<Schedules, Diagnostics> {
    let Some(until) = Instant::now().checked_add(limit) else {
        return Err(error(Code::INPUT, "the time for tuning is too long").into());
    };
    let path = schedule_file(options)?;
    let cached = path.as_deref().and_then(read).unwrap_or_default();
    let mut found = cached.clone();
    let mut tuner = Tuner { funcs, model, options, backends, observer, candidates: BTreeMap::new(), rounds: 0 };
    let mut next = Some(Round::Screen(0));
    while let Some(round) = next.filter(|_| Instant::now() < until) {
        tuner.round(round, &cached)?;
        next = tuner.next(round);
    }
    if tuner.rounds > 0 {
        tuner.note();
    }
    for (key, c) in tuner.candidates {
        if let Some(tile) = c.decided() {
            found.insert(key, tile);
        }
    }
    if let (Some(path), true) = (&path, found != cached) {
        write(path, &found)?;
    }
    Ok(found)
}

impl Tuner<'_> {
    /// The round after this one; `None` when everything is decided.
    fn next(&self, round: Round) -> Option<Round> {
        let most = self.candidates.values().map(|c| c.tiles.len()).max().unwrap_or(0);
        match round {
            Round::Screen(i) if i + 1 < most => Some(Round::Screen(i + 1)),
            Round::Screen(_) => self.candidates.values().any(|c| c.fastest() > 0).then_some(Round::Confirm(0)),
            Round::Confirm(i) => (i + 1 < CONFIRMATIONS).then_some(Round::Confirm(i + 1)),
        }
    }

    /// Compiles with the tiles of a round and measures; the first round finds the candidates, except those in `cached`.
    fn round(&mut self, round: Round, cached: &Schedules) -> Result<(), Diagnostics> {
        let mut schedules = cached.clone();
        for (key, c) in &self.candidates {
            schedules.insert(key.clone(), c.tile(round));
        }
        let Tuner { funcs, model, options, backends, observer, .. } = *self;
        let compiled = Generator { model, options, backends, schedules: &schedules, observer }.compile(funcs)?;
        let measure = if let Round::Screen(_) = round { SCREENING } else { CONFIRMATION };
        let times = self.times(&compiled, &measure)?;
        if self.rounds == 0 {
            let all = compiled.summary.tunable.iter().take(funcs.len()).flatten();
            for s in all.filter(|s| cached.get(&s.key).is_none() && times.contains_key(s.key.as_str())) {
                let (screened, confirmed) = Default::default();
                let untried = Candidates { tiles: s.tiles.clone(), screened, confirmed };
                self.candidates.entry(s.key.clone()).or_insert(untried);
            }
        }
        for (key, c) in &mut self.candidates {
            c.add(round, times.get(key.as_str()).copied().unwrap_or(f64::INFINITY));
        }
        self.rounds += 1;
        Ok(())
    }

    /// Seconds of each contraction, by its key, over all programs.
    fn times<'s>(&self, compiled: &'s Compiled, measure: &Measure) -> Result<BTreeMap<&'s str, f64>, Diagnostics> {
        let plan = Arc::new(compiled.open()?);
        let mut times = BTreeMap::new();
        for (program, tunable) in compiled.summary.tunable.iter().take(self.funcs.len()).enumerate() {
            self.measure(&plan, program, tunable, measure, &mut times)?;
        }
        Ok(times)
    }

    /// Adds the seconds of each contraction of a program.
    fn measure<'s>(
        &self,
        plan: &Arc<PlanFile>,
        program: usize,
        tunable: &'s [TunableContraction],
        measure: &Measure,
        times: &mut BTreeMap<&'s str, f64>,
    ) -> Result<(), Diagnostics> {
        let func = &self.funcs[program].1;
        let types = func.input_types().into_iter().map(Some);
        let inputs = random_inputs::values(func.inputs.iter().map(String::as_str).zip(types), self.options.memory)?;
        let mut inputs = tensor_files::to_runtime_all(inputs)?;
        let options = SessionOptions { threads: self.options.worker_threads(), profile: true, ..Default::default() };
        let mut session = program_session(Arc::clone(plan), program, &options, self.backends)?;
        let mut outputs = session.new_outputs();
        let mut run = || session.run_into(&mut inputs, &mut outputs).map_err(|e| run_error(&e));
        let _activity = self.observer.begin("measuring");
        run()?;
        let started = Instant::now();
        let mut runs = 0;
        while runs < measure.runs || started.elapsed().as_secs_f64() < measure.seconds {
            run()?;
            runs += 1;
        }
        for t in session.timings() {
            for s in tunable.iter().filter(|s| s.step == t.task) {
                *times.entry(&s.key).or_default() += t.min.as_secs_f64();
            }
        }
        Ok(())
    }

    /// Notes what was found.
    fn note(&self) {
        let measured: Vec<&Candidates> = self.candidates.values().filter(|c| c.tiles.len() > 1).collect();
        let (mut before, mut after) = (0.0, 0.0);
        for c in &measured {
            let (model, best) = c.confirmed();
            let model = if model.is_finite() { model } else { c.screened[0] };
            before += model;
            after += if c.is_better() { best } else { model };
        }
        let better = measured.iter().filter(|c| c.is_better()).count();
        let undecided = measured.iter().any(|c| c.decided().is_none());
        self.observer.note(&format!(
            "  tuned {} in {}: {better} with another tile, {:.3} ms instead of {:.3} ms{}",
            count(measured.len(), "contraction"),
            count(self.rounds, "round"),
            1e3 * after,
            1e3 * before,
            if undecided { "; the time limit left some undecided" } else { "" }
        ));
    }
}

/// The file of tuned schedules for this processor, the instruction set and the number of threads.
fn schedule_file(options: &CompileOptions) -> Result<Option<PathBuf>, Diagnostics> {
    let isa = isa(options.target.isa.as_deref())?;
    let name = format!("{}-{}-{}", process::processor(), isa.name, options.worker_threads());
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    Ok(options.cache.sibling(&format!("schedules-{plain}.txt")))
}

fn read(path: &Path) -> Option<Schedules> {
    Schedules::parse(std::str::from_utf8(&read_private(path)?).ok()?)
}

fn write(path: &Path, schedules: &Schedules) -> Result<(), Diagnostics> {
    write_private(path, schedules.text().as_bytes()).map_err(|e| io_error(path, "written", &e).into())
}
