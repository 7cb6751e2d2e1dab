//! `of-opt bench`: latency and throughput of a model or plan.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use clap::Args;
use of_diag::Diagnostics;
use of_driver::backends::DeviceTiming;
use of_driver::session::{find_program, run_error, session_pool};
use of_driver::{Backends, Observer, SessionOptions, process};
use of_runtime::{RunError, SessionPool, Value};
use serde_json::json;

use crate::arguments::{Codegen, InputFiles, ModelFile, Shapes};
use crate::console::Console;
use crate::exit;
use crate::ranks::{self, Joined, RankOptions, Role};
use crate::signed_plan::Signed;
use crate::workload::workload_of;
use of_driver::count;

/// Flags.
#[derive(Args, Debug)]
pub struct Bench {
    /// The model.
    #[command(flatten)]
    pub model: ModelFile,
    /// Inputs; random ones without it.
    #[command(flatten)]
    pub inputs: InputFiles,
    /// Shapes, where no inputs are given.
    #[command(flatten)]
    pub shapes: Shapes,
    /// Measurement limits.
    #[command(flatten)]
    pub limits: Limits,
    /// Concurrent requests, each on its share of the threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub concurrency: usize,
    /// Print only the JSON line
    #[arg(long)]
    pub json: bool,
    /// Report how long GPUs computed, by their own clocks, without transfers from and to the host
    #[arg(long)]
    pub device_time: bool,
    /// Who must have signed the plan.
    #[command(flatten)]
    pub signed: Signed,
    /// Ranks as processes.
    #[command(flatten)]
    pub ranks: RankOptions,
    /// Code generation, for models that are not compiled yet.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// Limits of a measurement.
#[derive(Args, Debug, Clone, Copy)]
pub struct Limits {
    /// The largest number of runs
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub iters: usize,
    /// The time limit in seconds; at least five runs are measured
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub max_seconds: f64,
}

/// Executes the subcommand.
///
/// # Errors
/// When the inputs do not fit, something is not supported, or a run fails.
pub fn bench(c: &Bench, console: &Console) -> Result<(), Diagnostics> {
    let started = Instant::now();
    c.limits.check()?;
    if c.concurrency == 0 || (c.concurrency > 1 && c.codegen.mesh.is_some()) {
        return Err(exit::usage("--concurrency is 1 or more, and 1 with --mesh").into());
    }
    if c.device_time && (c.concurrency > 1 || c.codegen.mesh.is_some()) {
        return Err(exit::usage("--device-time goes with neither --concurrency nor --mesh").into());
    }
    let role = ranks::role(&c.ranks)?;
    if !matches!(role, Role::All) && (c.concurrency > 1 || c.device_time) {
        return Err(exit::usage("ranks that are processes go with neither --concurrency nor --device-time").into());
    }
    if let Role::Launcher(job) = &role {
        return ranks::launch(job, &c.ranks, 0).map(drop);
    }
    ranks::serve_metrics(&c.ranks, &role)?;
    let options = c.codegen.options()?;
    let mut backends = Backends::new(&options)?;
    if c.device_time {
        backends.time_devices(DeviceTiming::Whole);
    }
    let opened = ranks::open(&role, &c.signed, &c.model, &c.inputs, console)?;
    let workload = workload_of(opened, &c.inputs, &c.shapes, true, &c.codegen, &backends, console)?;
    if let Some(summary) = workload.summary.as_ref().filter(|_| !c.json) {
        super::compile::note_summary(summary, workload.plan.plan(), console);
    }
    let (plan, mut values) = (workload.plan, workload.inputs);
    let threads = ranks::threads(&c.ranks, &role, &options)?;
    let session_options =
        SessionOptions { threads, profile: c.device_time, memory: ranks::memory(&c.ranks, &role, options.memory)? };
    if c.concurrency > 1 {
        let plan = Arc::new(plan);
        let program = find_program(&plan, &values)?;
        let pool = session_pool(&plan, program, c.concurrency, &session_options, &backends)?;
        let load = started.elapsed();
        let progress = console.progress("measuring");
        let measured = c.limits.measure_pool(&pool, c.concurrency, &values)?;
        drop(progress);
        return print(c.json, console, &report(&measured, load, threads, c.concurrency));
    }
    let (mut session, joined) =
        ranks::session(&c.ranks, &role, (Arc::new(plan), &c.model.model), &values, &session_options, &backends)?;
    let reports = session.reports();
    let agree = |ends: bool| match &joined {
        Some(joined) => ranks::first_says(&joined.transport, ends),
        None => Ok(ends),
    };
    let load = started.elapsed();
    let mut outputs = session.new_outputs();
    let mut run = || -> Result<Run, Diagnostics> {
        let before = process::cpu_time();
        let wall = session.run_timed(&mut values, &mut outputs)?;
        let cpu = process::cpu_time().saturating_sub(before);
        Ok(Run { wall, cpu, device: if c.device_time { session.device_time() } else { None } })
    };
    let first = run()?;
    if c.device_time && first.device.is_none() {
        return Err(exit::usage("--device-time: no part of the plan runs on a GPU").into());
    }
    let first = first.wall;
    let progress = console.progress("measuring");
    c.limits.warm_up_together(&mut || run().map(drop), &agree)?;
    let runs = c.limits.measure_together(&mut run, &agree)?;
    drop(progress);
    drop(session);
    joined.map_or(Ok(()), Joined::done)?;
    if !reports {
        return Ok(());
    }
    let elapsed = runs.iter().map(|r| r.wall).sum();
    print(c.json, console, &report(&Measured { first, runs, elapsed }, load, threads, 1))
}

/// The times of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    wall: Duration,
    cpu: Duration,
    /// What devices computed, where that was measured.
    device: Option<Duration>,
}

/// The times of a measurement.
struct Measured {
    /// The first run.
    first: Duration,
    /// The runs that count.
    runs: Vec<Run>,
    /// How long all of them took.
    elapsed: Duration,
}

fn print(json: bool, console: &Console, result: &serde_json::Value) -> Result<(), Diagnostics> {
    let number = |key: &str| result[key].as_u64().unwrap_or(0) as usize;
    let (runs, threads) = (count(number("iters"), "run"), count(number("threads"), "thread"));
    let (median, rate, concurrency) = (&result["median_ms"], &result["requests_per_s"], number("concurrency"));
    let note = match concurrency {
        1 => format!("median {median} ms of {runs} on {threads}"),
        _ => format!("{rate} requests/s with {concurrency} concurrent, median {median} ms of {runs} on {threads}"),
    };
    if !json {
        console.note(&note);
    }
    console.print(&format!("{result}\n"))
}

/// What all ranks do where each of them would end or go on.
type Agree<'a> = &'a dyn Fn(bool) -> Result<bool, Diagnostics>;

impl Limits {
    /// # Errors
    /// When they make no sense.
    pub fn check(&self) -> Result<(), Diagnostics> {
        if !self.max_seconds.is_finite() || self.max_seconds < 0.0 || self.iters == 0 {
            return Err(exit::usage("--iters and --max-seconds must be positive").into());
        }
        Ok(())
    }

    /// Three runs, the one before it included, or half a second.
    ///
    /// # Errors
    /// Those of the run.
    pub fn warm_up(&self, run: &mut dyn FnMut() -> Result<(), Diagnostics>) -> Result<(), Diagnostics> {
        self.warm_up_together(run, &Ok)
    }

    /// The same on several ranks, which end at the same time: `agree` gives all of them one answer.
    fn warm_up_together(
        &self,
        run: &mut dyn FnMut() -> Result<(), Diagnostics>,
        agree: Agree<'_>,
    ) -> Result<(), Diagnostics> {
        let started = Instant::now();
        for _ in 1..3.min(self.iters) {
            if agree(started.elapsed().as_secs_f64() > 0.5 + self.max_seconds)? {
                break;
            }
            run()?;
        }
        Ok(())
    }

    /// Keeps so many requests in flight until either limit.
    fn measure_pool(&self, pool: &SessionPool, concurrency: usize, inputs: &[Value]) -> Result<Measured, Diagnostics> {
        let failed = |e: RunError| run_error(&e);
        let ready = Barrier::new(concurrency);
        let begun = AtomicUsize::new(0);
        let caller = || -> Result<_, Diagnostics> {
            let (mut inputs, mut outputs) = (inputs.to_vec(), pool.new_outputs().map_err(failed)?);
            let mut once = || {
                let start = Instant::now();
                pool.run_into(&mut inputs, &mut outputs).map_err(failed).map(|()| start.elapsed())
            };
            let first = once().and_then(|first| once().map(|_| first));
            // Failed callers reach the barrier, too.
            ready.wait();
            let (first, start, cpu) = (first?, Instant::now(), process::cpu_time());
            let mut walls = Vec::new();
            while begun.fetch_add(1, Ordering::Relaxed) < self.iters {
                walls.push(once()?);
                if start.elapsed().as_secs_f64() >= self.max_seconds {
                    break;
                }
            }
            Ok((first, walls, start.elapsed(), process::cpu_time().saturating_sub(cpu)))
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..concurrency).map(|_| scope.spawn(caller)).collect();
            callers.into_iter().map(|c| c.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let (mut all, mut cpu) =
            (Measured { first: Duration::ZERO, runs: Vec::new(), elapsed: Duration::ZERO }, Duration::ZERO);
        for result in results {
            let (first, walls, elapsed, spent) = result?;
            (all.first, all.elapsed, cpu) = (all.first.max(first), all.elapsed.max(elapsed), cpu.max(spent));
            all.runs.extend(walls.into_iter().map(|wall| Run { wall, cpu: Duration::ZERO, device: None }));
        }
        // The processor's time is that of the process: each run has its share.
        let share = cpu / all.runs.len().max(1) as u32;
        all.runs.iter_mut().for_each(|run| run.cpu = share);
        Ok(all)
    }

    /// Runs until either limit; at least five times unless that takes twelve times the limit.
    ///
    /// # Errors
    /// Those of the run.
    pub fn measure<T>(&self, run: &mut dyn FnMut() -> Result<T, Diagnostics>) -> Result<Vec<T>, Diagnostics> {
        self.measure_together(run, &Ok)
    }

    /// The same on several ranks, which end at the same time: `agree` gives all of them one answer.
    fn measure_together<T>(
        &self,
        run: &mut dyn FnMut() -> Result<T, Diagnostics>,
        agree: Agree<'_>,
    ) -> Result<Vec<T>, Diagnostics> {
        let started = Instant::now();
        let mut runs = Vec::with_capacity(self.iters.min(1 << 16));
        loop {
            let seconds = started.elapsed().as_secs_f64();
            let enough = runs.len() >= 5 && seconds >= self.max_seconds;
            let hopeless = runs.len() >= 3 && seconds >= 12.0 * self.max_seconds;
            if agree(runs.len() >= self.iters || enough || hopeless)? {
                return Ok(runs);
            }
            runs.push(run()?);
        }
    }
}

fn report(measured: &Measured, load: Duration, threads: usize, concurrency: usize) -> serde_json::Value {
    let runs = &measured.runs;
    let ms = |d: Duration| (d.as_secs_f64() * 1e7).round() / 1e4;
    let sorted = |f: fn(&Run) -> Option<Duration>| {
        let mut v: Vec<Duration> = runs.iter().filter_map(f).collect();
        v.sort();
        v
    };
    let (wall, cpu, device) = (sorted(|r| Some(r.wall)), sorted(|r| Some(r.cpu)), sorted(|r| r.device));
    let quantile = |v: &[Duration], p: f64| v[(v.len() - 1).min((v.len() as f64 * p) as usize)];
    let all_cpu: Duration = cpu.iter().sum();
    let elapsed = measured.elapsed.as_secs_f64().max(1e-12);
    let share = all_cpu.as_secs_f64() / (elapsed * threads as f64);
    let rate = runs.len() as f64 / elapsed;
    let mut report = json!({
        "median_ms": ms(quantile(&wall, 0.5)), "p90_ms": ms(quantile(&wall, 0.9)), "min_ms": ms(wall[0]),
        "cpu_ms": ms(quantile(&cpu, 0.5)), "share": (share * 1e3).round() / 1e3,
        "load_ms": ms(load), "first_ms": ms(measured.first), "iters": runs.len(),
        "requests_per_s": (rate * 1e3).round() / 1e3, "concurrency": concurrency,
        "peak_rss_mb": process::peak_rss_mb(), "threads": threads, "version": env!("CARGO_PKG_VERSION"),
    });
    if let Some(least) = device.first() {
        report["device_ms"] = json!(ms(quantile(&device, 0.5)));
        report["device_min_ms"] = json!(ms(*least));
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_every_number() {
        let run = |ms: u64| {
            let (wall, cpu) = (Duration::from_millis(ms), Duration::from_millis(2 * ms));
            Run { wall, cpu, device: Some(wall / 2) }
        };
        let runs: Vec<_> = (1..=10).map(run).collect();
        let elapsed = runs.iter().map(|r| r.wall).sum();
        let measured = Measured { first: Duration::from_millis(3), runs, elapsed };
        let r = report(&measured, Duration::from_millis(7), 2, 1);
        assert_eq!((&r["requests_per_s"], &r["concurrency"]), (&json!(181.818), &json!(1)));
        assert_eq!((&r["median_ms"], &r["p90_ms"], &r["min_ms"]), (&json!(6.0), &json!(10.0), &json!(1.0)));
        assert_eq!((&r["cpu_ms"], &r["share"], &r["iters"]), (&json!(12.0), &json!(1.0), &json!(10)));
        assert_eq!((&r["load_ms"], &r["first_ms"]), (&json!(7.0), &json!(3.0)));
        assert_eq!((&r["device_ms"], &r["device_min_ms"]), (&json!(3.0), &json!(0.5)));
    }
}
