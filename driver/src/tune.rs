//! Autotuning: which register tile of each contraction is the fastest, measured in the model itself.
//!
//! Each round compiles the model with an untried tile for every contraction that has one, runs it with profiling, and keeps
//! the faster tile. So kernels are measured between their neighbours, with the caches as they are in the model, and all of
//! them at once.

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
/// The least number of runs in a round.
const RUNS: usize = 5;
/// The least duration of a round, in seconds.
const ROUND: f64 = 1.0;

/// The tiles of a contraction and their times.
struct Candidates {
    /// Tiles to try, the cost model's choice first.
    tiles: Vec<Tile>,
    /// Seconds of all tasks that execute the contraction, for each tile that was tried.
    seconds: Vec<f64>,
}

impl Candidates {
    /// The index of the best tile so far.
    fn best(&self) -> usize {
        let mut best = 0;
        for (i, s) in self.seconds.iter().enumerate() {
            if *s < self.seconds[best] && *s < GAIN * self.seconds[0] {
                best = i;
            }
        }
        best
    }

    /// Whether all tiles were tried, or enough of them to choose one.
    fn is_decided(&self) -> bool {
        self.seconds.len() > 1 || self.tiles.len() == 1
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
    while Instant::now() < until {
        let Some(schedules) = tuner.next_schedules(&found) else { break };
        tuner.round(&schedules, &cached)?;
    }
    if tuner.rounds > 0 {
        tuner.note();
    }
    for (key, c) in tuner.candidates.into_iter().filter(|(_, c)| c.is_decided()) {
        let tile = c.tiles[c.best()];
        found.insert(key, tile);
    }
    if let (Some(path), true) = (&path, found != cached) {
        write(path, &found)?;
    }
    Ok(found)
}

impl Tuner<'_> {
    /// The schedules of the next round; `None` when every tile was tried.
    fn next_schedules(&self, found: &Schedules) -> Option<Schedules> {
        let mut schedules = found.clone();
        let mut untried = self.rounds == 0;
        for (key, c) in &self.candidates {
            if let Some(tile) = c.tiles.get(self.rounds) {
                schedules.insert(key.clone(), *tile);
                untried = true;
            } else {
                schedules.insert(key.clone(), c.tiles[c.best()]);
            }
        }
        untried.then_some(schedules)
    }

    /// Compiles with these schedules and measures; the first round finds the candidates, except those in `cached`.
    fn round(&mut self, schedules: &Schedules, cached: &Schedules) -> Result<(), Diagnostics> {
        let Tuner { funcs, model, options, backends, observer, .. } = *self;
        let compiled = Generator { model, options, backends, schedules, observer }.compile(funcs)?;
        let times = self.times(&compiled)?;
        if self.rounds == 0 {
            let all = compiled.summary.tunable.iter().take(funcs.len()).flatten();
            for s in all.filter(|s| cached.get(&s.key).is_none() && times.contains_key(s.key.as_str())) {
                let untried = Candidates { tiles: s.tiles.clone(), seconds: Vec::new() };
                self.candidates.entry(s.key.clone()).or_insert(untried);
            }
        }
        for (key, c) in &mut self.candidates {
            if c.seconds.len() == self.rounds && self.rounds < c.tiles.len() {
                c.seconds.push(times.get(key.as_str()).copied().unwrap_or(f64::INFINITY));
            }
        }
        self.rounds += 1;
        Ok(())
    }

    /// Seconds of each contraction, by its key, over all programs.
    fn times<'s>(&self, compiled: &'s Compiled) -> Result<BTreeMap<&'s str, f64>, Diagnostics> {
        let plan = Arc::new(compiled.open()?);
        let mut times = BTreeMap::new();
        for (program, tunable) in compiled.summary.tunable.iter().take(self.funcs.len()).enumerate() {
            self.measure(&plan, program, tunable, &mut times)?;
        }
        Ok(times)
    }

    /// Adds the seconds of each contraction of a program.
    fn measure<'s>(
        &self,
        plan: &Arc<PlanFile>,
        program: usize,
        tunable: &'s [TunableContraction],
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
        while runs < RUNS || started.elapsed().as_secs_f64() < ROUND {
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
        let measured: Vec<&Candidates> = self.candidates.values().filter(|c| c.seconds.len() > 1).collect();
        let (before, after) =
            measured.iter().fold((0.0, 0.0), |(before, after), c| (before + c.seconds[0], after + c.seconds[c.best()]));
        let better = measured.iter().filter(|c| c.best() > 0).count();
        let untried = self.candidates.values().any(|c| c.seconds.len() < c.tiles.len());
        self.observer.note(&format!(
            "  tuned {} in {}: {better} with another tile, {:.3} ms instead of {:.3} ms{}",
            count(measured.len(), "contraction"),
            count(self.rounds, "round"),
            1e3 * after,
            1e3 * before,
            if untried { "; the time limit left tiles untried" } else { "" }
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
