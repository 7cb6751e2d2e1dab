//! `of-opt bench`: how long a run takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use of_diag::Diagnostics;
use serde_json::json;

use crate::backends::Backends;
use crate::cli::{Codegen, ModelFile, Shapes};
use crate::console::Console;
use crate::engine::Engine;
use crate::inputs::InputFiles;
use crate::ready::Request;
use crate::show::count;
use crate::{driver, exit, machine};

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
    /// How long to measure.
    #[command(flatten)]
    pub limits: Limits,
    /// Code generation, for models that are not compiled yet.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// How long to measure.
#[derive(Args, Debug, Clone, Copy)]
pub struct Limits {
    /// At most so many runs
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub iters: usize,
    /// At most so long, after at least five runs
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub max_seconds: f64,
}

/// Runs it.
///
/// # Errors
/// When the inputs do not fit, something is not supported, or a run fails.
pub fn bench(c: &Bench, console: &mut Console) -> Result<(), Diagnostics> {
    let started = Instant::now();
    c.limits.check()?;
    let summary = super::compile::summary;
    let backends = Backends::of(&c.codegen)?;
    let request = Request {
        model: &c.model,
        inputs: &c.inputs,
        shapes: &c.shapes,
        codegen: &c.codegen,
        backends: &backends,
        makes_up: true,
        summary,
    };
    let (plan, mut values) = request.ready(console)?;
    let threads = driver::threads(c.codegen.threads);
    let mut engine = Engine::open(Arc::new(plan), &values, threads, &backends)?;
    let load = started.elapsed();
    let mut outputs = engine.new_outputs();
    let mut run = || -> Result<(Duration, Duration), Diagnostics> {
        let cpu = machine::cpu_time();
        let wall = engine.timed(&mut values, &mut outputs)?;
        Ok((wall, machine::cpu_time().saturating_sub(cpu)))
    };
    let (first, _) = run()?;
    let progress = console.progress("measuring");
    c.limits.warm_up(&mut || run().map(drop))?;
    let runs = c.limits.measure(&mut run)?;
    drop(progress);
    let result = report(&runs, load, first, threads);
    let line = result.to_string();
    let (runs, threads) = (count(runs.len(), "run"), count(threads, "thread"));
    console.note(&format!("median {} ms of {runs} on {threads}", result["median_ms"]));
    console.print(&(line + "\n"))
}

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
        let started = Instant::now();
        for _ in 1..3.min(self.iters) {
            if started.elapsed().as_secs_f64() > 0.5 + self.max_seconds {
                break;
            }
            run()?;
        }
        Ok(())
    }

    /// Runs until either limit; at least five times unless that takes twelve times the limit.
    ///
    /// # Errors
    /// Those of the run.
    pub fn measure<T>(&self, run: &mut dyn FnMut() -> Result<T, Diagnostics>) -> Result<Vec<T>, Diagnostics> {
        let started = Instant::now();
        let mut runs = Vec::with_capacity(self.iters.min(1 << 16));
        loop {
            let seconds = started.elapsed().as_secs_f64();
            let enough = runs.len() >= 5 && seconds >= self.max_seconds;
            let hopeless = runs.len() >= 3 && seconds >= 12.0 * self.max_seconds;
            if runs.len() >= self.iters || enough || hopeless {
                return Ok(runs);
            }
            runs.push(run()?);
        }
    }
}

fn report(runs: &[(Duration, Duration)], load: Duration, first: Duration, threads: usize) -> serde_json::Value {
    let ms = |d: Duration| (d.as_secs_f64() * 1e7).round() / 1e4;
    let sorted = |f: fn(&(Duration, Duration)) -> Duration| {
        let mut v: Vec<Duration> = runs.iter().map(f).collect();
        v.sort();
        v
    };
    let (wall, cpu) = (sorted(|r| r.0), sorted(|r| r.1));
    let quantile = |v: &[Duration], p: f64| v[(v.len() - 1).min((v.len() as f64 * p) as usize)];
    let (all_wall, all_cpu): (Duration, Duration) = (wall.iter().sum(), cpu.iter().sum());
    let share = all_cpu.as_secs_f64() / (all_wall.as_secs_f64() * threads as f64).max(1e-12);
    json!({
        "median_ms": ms(quantile(&wall, 0.5)), "p90_ms": ms(quantile(&wall, 0.9)), "min_ms": ms(wall[0]),
        "cpu_ms": ms(quantile(&cpu, 0.5)), "share": (share * 1e3).round() / 1e3,
        "load_ms": ms(load), "first_ms": ms(first), "iters": runs.len(),
        "peak_rss_mb": machine::peak_rss_mb(), "threads": threads, "version": env!("CARGO_PKG_VERSION"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_every_number() {
        let run = |ms: u64| (Duration::from_millis(ms), Duration::from_millis(2 * ms));
        let runs: Vec<_> = (1..=10).map(run).collect();
        let r = report(&runs, Duration::from_millis(7), Duration::from_millis(3), 2);
        assert_eq!((&r["median_ms"], &r["p90_ms"], &r["min_ms"]), (&json!(6.0), &json!(10.0), &json!(1.0)));
        assert_eq!((&r["cpu_ms"], &r["share"], &r["iters"]), (&json!(12.0), &json!(1.0), &json!(10)));
        assert_eq!((&r["load_ms"], &r["first_ms"]), (&json!(7.0), &json!(3.0)));
    }
}
