//! `of-opt compile --tune`: which register tile is the fastest, measured in the model itself.
//!
//! Each round compiles the model with another tile for every contraction that has one left to try, runs it with a clock
//! at every task, and keeps what was faster. So kernels are measured beside their neighbours, with the caches as they
//! are in the model, and all of them at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use of_codegen::kernel::contraction::Tile;
use of_codegen::kernel::schedule::{Scheduled, Schedules};
use of_diag::Diagnostics;
use of_ir::Func;
use of_plan::PlanFile;

use crate::backends::Backends;
use crate::cli::Codegen;
use crate::console::Console;
use crate::model::Source;
use crate::show::count;
use crate::{driver, exit, machine, random, values};

/// How much faster than the cost model's choice another tile must be: less is noise.
const GAIN: f64 = 0.98;
/// Runs of a round at least, and seconds after which it ends.
const RUNS: usize = 5;
const ROUND: f64 = 1.0;

/// What was measured of a contraction.
struct Contender {
    /// Tiles to try, the cost model's choice first.
    tiles: Vec<Tile>,
    /// Seconds of all tasks that run it, with each tile that was tried.
    seconds: Vec<f64>,
}

impl Contender {
    /// The number of the best tile so far.
    fn best(&self) -> usize {
        let mut best = 0;
        for (i, s) in self.seconds.iter().enumerate() {
            if *s < self.seconds[best] && *s < GAIN * self.seconds[0] {
                best = i;
            }
        }
        best
    }
}

/// The fastest tiles for the contractions of `funcs`: those that were kept, and what `seconds` of measuring add.
///
/// # Errors
/// When the functions cannot be compiled or run.
pub fn tune(
    funcs: &[(String, Func)],
    source: &Source,
    codegen: &Codegen,
    backends: &Backends,
    seconds: f64,
    console: &Console,
) -> Result<Schedules, Diagnostics> {
    let until = Duration::try_from_secs_f64(seconds).ok().and_then(|d| Instant::now().checked_add(d));
    let Some(until) = until else {
        return Err(exit::usage("--tune takes a number of seconds, 0 or more").into());
    };
    let kept = kept(codegen)?;
    let mut found = kept.as_deref().and_then(read).unwrap_or_default();
    let known = found.clone();
    let mut contenders: BTreeMap<String, Contender> = BTreeMap::new();
    let mut rounds = 0;
    while Instant::now() < until {
        let mut tried = found.clone();
        let mut open = rounds == 0;
        for (key, c) in &contenders {
            if let Some(tile) = c.tiles.get(rounds) {
                tried.insert(key.clone(), *tile);
                open = true;
            } else {
                tried.insert(key.clone(), c.tiles[c.best()]);
            }
        }
        if !open {
            break;
        }
        let compiled = driver::compile(funcs, source, codegen, backends, Vec::new(), &tried, console)?;
        let plan = Arc::new(compiled.open()?);
        let mut times: BTreeMap<&str, f64> = BTreeMap::new();
        for (number, scheduled) in compiled.summary.scheduled.iter().take(funcs.len()).enumerate() {
            measure(&plan, number, &funcs[number].1, scheduled, (codegen, backends), console, &mut times)?;
        }
        if rounds == 0 {
            let all = compiled.summary.scheduled.iter().take(funcs.len()).flatten();
            for s in all.filter(|s| known.get(&s.key).is_none() && times.contains_key(s.key.as_str())) {
                let none = Contender { tiles: s.tiles.clone(), seconds: Vec::new() };
                contenders.entry(s.key.clone()).or_insert(none);
            }
        }
        for (key, c) in &mut contenders {
            if c.seconds.len() == rounds && rounds < c.tiles.len() {
                c.seconds.push(times.get(key.as_str()).copied().unwrap_or(f64::INFINITY));
            }
        }
        rounds += 1;
    }
    if rounds > 0 {
        report(&contenders, rounds, console);
    }
    // What was tried with one of several tiles only is not known yet.
    for (key, c) in contenders.into_iter().filter(|(_, c)| c.seconds.len() > 1 || c.tiles.len() == 1) {
        let tile = c.tiles[c.best()];
        found.insert(key, tile);
    }
    if let (Some(path), true) = (&kept, found != known) {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| exit::io(folder, "made", &e))?;
        }
        of_files::write(path, found.text()).map_err(|e| exit::io(path, "written", &e))?;
    }
    Ok(found)
}

/// Adds the seconds of each contraction of a program.
fn measure<'s>(
    plan: &Arc<PlanFile>,
    number: usize,
    func: &Func,
    scheduled: &'s [Scheduled],
    (codegen, backends): (&Codegen, &Backends),
    console: &Console,
    times: &mut BTreeMap<&'s str, f64>,
) -> Result<(), Diagnostics> {
    let types = func.input_types().into_iter().map(Some);
    let inputs = random::values(func.inputs.iter().map(String::as_str).zip(types))?;
    let mut inputs = values::to_runtime_all(inputs)?;
    let threads = driver::threads(codegen.threads);
    let mut session = driver::session(Arc::clone(plan), number, Some(threads), true, backends)?;
    let mut outputs = session.new_outputs();
    let mut run = || session.run_into(&mut inputs, &mut outputs).map_err(|e| driver::run_error(&e));
    let _progress = console.progress("measuring");
    run()?;
    let started = Instant::now();
    let mut runs = 0;
    while runs < RUNS || started.elapsed().as_secs_f64() < ROUND {
        run()?;
        runs += 1;
    }
    for t in session.timings() {
        for s in scheduled.iter().filter(|s| s.step == t.task) {
            *times.entry(&s.key).or_default() += t.min.as_secs_f64();
        }
    }
    Ok(())
}

fn report(contenders: &BTreeMap<String, Contender>, rounds: usize, console: &Console) {
    let measured: Vec<&Contender> = contenders.values().filter(|c| c.seconds.len() > 1).collect();
    let (before, after) =
        measured.iter().fold((0.0, 0.0), |(before, after), c| (before + c.seconds[0], after + c.seconds[c.best()]));
    let better = measured.iter().filter(|c| c.best() > 0).count();
    let left = contenders.values().any(|c| c.seconds.len() < c.tiles.len());
    console.note(&format!(
        "  tuned {} in {}: {better} with another tile, {:.3} ms instead of {:.3}{}",
        count(measured.len(), "contraction"),
        count(rounds, "round"),
        1e3 * after,
        1e3 * before,
        if left { "; there was no time to try every tile" } else { "" }
    ));
}

/// The file of what is known for this processor, its instruction set and the number of threads.
fn kept(codegen: &Codegen) -> Result<Option<PathBuf>, Diagnostics> {
    let isa = driver::isa(codegen.isa.as_deref())?;
    let threads = driver::threads(codegen.threads);
    let name = format!("{}-{}-{threads}", machine::processor(), isa.name);
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    Ok(driver::cache(codegen).beside(&format!("schedules-{plain}.txt")))
}

fn read(path: &std::path::Path) -> Option<Schedules> {
    Schedules::parse(&std::fs::read_to_string(path).ok()?)
}
