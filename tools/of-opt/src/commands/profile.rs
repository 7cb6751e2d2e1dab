//! `of-opt profile`: the time of each task, and how close each kernel is to the roofline.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use of_diag::Diagnostics;
use of_driver::backends::DeviceTiming;
use of_driver::roofline::Roofline;
use of_driver::session::{find_program, program_session, run_error};
use of_driver::{Backends, Observer, SessionOptions, io_error};
use of_plan::{ArgSource, ElementType, Exec, Plan, Program, Task};
use of_runtime::{StepTiming, TaskTiming};
use serde_json::{Value, json};

use super::bench::Limits;
use crate::arguments::{Codegen, InputFiles, ModelFile, Shapes};
use crate::console::Console;
use crate::show::{self};
use crate::signed_plan::Signed;
use crate::trace;
use crate::workload::workload_of;
use of_driver::count;
use of_page::{Event, Kind, Page, Track};

/// Flags.
#[derive(Args, Debug)]
pub struct Profile {
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
    /// List tasks in execution order instead of slowest first
    #[arg(long)]
    pub in_order: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write the last run as a timeline for chrome://tracing or ui.perfetto.dev
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Write a page for a browser: the last run as a timeline, and the time of each task
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
    /// Who must have signed the plan.
    #[command(flatten)]
    pub signed: Signed,
    /// Code generation, for models that are not compiled yet.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// A task: its times and its work.
struct Row {
    timing: TaskTiming,
    thread: u32,
    kind: &'static str,
    /// The element type of its first operand.
    of: ElementType,
    flops: u64,
    bytes: u64,
    locations: Vec<String>,
}

impl Row {
    fn new(timing: TaskTiming, program: &Program, plan: &Plan) -> Row {
        let task = &program.tasks[timing.task];
        let (kind, (flops, bytes)) = (of_page::plan::kind(task), of_page::plan::work(task));
        let of = first_operand(task, program, plan);
        Row { timing, thread: task.thread, kind, of, flops, bytes, locations: task.locations.clone() }
    }

    fn mean(&self) -> f64 {
        self.timing.total.as_secs_f64() / self.timing.calls.max(1) as f64
    }

    fn best(&self) -> f64 {
        self.timing.min.as_secs_f64().max(1e-9)
    }

    /// The roofline's time over the time of the best call; `None` where the plan does not state the work of the task.
    fn of_limit(&self, limits: &Roofline) -> Option<f64> {
        (self.flops + self.bytes > 0).then(|| limits.seconds(self.of, self.flops, self.bytes) / self.best())
    }
}

/// Executes the subcommand.
///
/// # Errors
/// When the inputs do not fit, something is not supported, or a run fails.
pub fn profile(c: &Profile, console: &Console) -> Result<(), Diagnostics> {
    c.limits.check()?;
    let options = c.codegen.options()?;
    let threads = options.worker_threads();
    let mut backends = Backends::new(&options)?;
    backends.time_devices(DeviceTiming::Steps);
    let opened = c.signed.open(&c.model, &c.inputs, console)?;
    let workload = workload_of(opened, &c.inputs, &c.shapes, true, &c.codegen, &backends, console)?;
    if let Some(summary) = &workload.summary {
        super::compile::note_not_emitted(summary, console);
        super::compile::note_not_native(summary, console);
    }
    let (plan, mut values) = (workload.plan, workload.inputs);
    let number = find_program(&plan, &values)?;
    let plan = Arc::new(plan);
    let program = &plan.plan().programs[number];
    let types: Vec<ElementType> = program.tasks.iter().map(|t| first_operand(t, program, plan.plan())).collect();
    let limits = Roofline::measure(&options, threads, &types, console)?;
    let mut session = program_session(
        Arc::clone(&plan),
        number,
        &SessionOptions { threads, profile: true, memory: c.codegen.memory },
        &backends,
    )?;
    let mut outputs = session.new_outputs();
    let mut run = || session.run_into(&mut values, &mut outputs).map_err(|e| run_error(&e));
    let progress = console.progress("measuring");
    run()?;
    c.limits.warm_up(&mut run)?;
    session.reset_timings();
    let mut run = || session.run_into(&mut values, &mut outputs).map_err(|e| run_error(&e));
    let runs = c.limits.measure(&mut run)?.len();
    drop(progress);
    let mut rows: Vec<Row> =
        session.timings().into_iter().filter(|t| t.calls > 0).map(|t| Row::new(t, program, plan.plan())).collect();
    if let Some(path) = &c.trace {
        let text = timeline(&rows, &plan.plan().info.model).to_string();
        of_files::write(path, text).map_err(|e| io_error(path, "written", &e))?;
        console.note(&format!("the last run is in {}", path.display()));
    }
    if let Some(path) = &c.html {
        super::inspect::write_page(&html(&rows, &limits, &plan.plan().info.model), path)?;
        console.note(&format!("the page is {}", path.display()));
    }
    if c.in_order {
        of_ir::sort::by_key(&mut rows, |r| r.timing.start);
    } else {
        of_ir::sort::by_key(&mut rows, |r| std::cmp::Reverse(r.timing.total));
    }
    if c.json {
        return console.print(&(report(&rows, &limits, runs, threads).to_string() + "\n"));
    }
    console.note(&format!("{} on {}", count(runs, "run"), count(threads, "thread")));
    console.print(&table(&rows, &limits))
}

/// The element type of the first operand of a kernel: what products multiply.
fn first_operand(task: &Task, program: &Program, plan: &Plan) -> ElementType {
    let Some(Exec::Kernel(kernel)) = &task.exec else { return ElementType::Unknown };
    let source = kernel.args.first().and_then(|a| a.source);
    let dtype = match source {
        Some(ArgSource::Register(r)) => program.registers.get(r as usize).map(of_plan::Register::dtype),
        Some(ArgSource::Weight(w)) => plan.weights.get(w as usize).map(of_plan::Weight::dtype),
        None => None,
    };
    dtype.unwrap_or(ElementType::Unknown)
}

/// One line a task, and the sum of all.
fn table(rows: &[Row], limits: &Roofline) -> String {
    let total: f64 = rows.iter().map(Row::mean).sum();
    let mut out = String::from(
        " us per run  share    best us  GFLOP/s   GB/s  of limit  task                             from\n",
    );
    let rate = |x: u64, seconds: f64| if x == 0 { "-".into() } else { format!("{:.1}", x as f64 / seconds / 1e9) };
    for r in rows {
        let (mean, best) = (r.mean(), r.best());
        let share = 100.0 * mean / total.max(1e-12);
        let of_limit = r.of_limit(limits).map_or_else(|| "-".into(), |x| format!("{:.0}%", 100.0 * x));
        let from = match r.locations.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        };
        let _ = writeln!(
            out,
            "{:11.1} {share:5.1}% {:10.1} {:>8} {:>6} {of_limit:>9}  {:32} {from}",
            mean * 1e6,
            best * 1e6,
            rate(r.flops, best),
            rate(r.bytes, best),
            format!("#{} {}", r.timing.task, r.timing.name),
        );
        for s in &r.timing.steps {
            let (mean, name) = (s.total.as_secs_f64() / s.calls.max(1) as f64, format!("  on the device: {}", s.name));
            let best = s.min.as_secs_f64() * 1e6;
            let _ = writeln!(out, "{:11.1} {:>6} {best:10.1} {:>8} {:>6} {:>9}  {name}", mean * 1e6, "", "", "", "");
        }
    }
    let best: f64 = rows.iter().map(Row::best).sum();
    let other = |(t, peak): &(ElementType, f64)| format!(" ({:.0} of {})", peak / 1e9, t.name());
    let others: String = limits.others.iter().map(other).collect();
    let _ = writeln!(
        out,
        "{:11.1} 100.0% {:10.1} in all. The machine: {:.0} GFLOP/s in a large product{others}, {:.1} GB/s from and to memory, {:.1} GB/s in the cache",
        total * 1e6,
        best * 1e6,
        limits.flops / 1e9,
        limits.memory / 1e9,
        limits.cache / 1e9
    );
    let (seconds, unknown) = at_the_limits(rows, limits);
    if let Some(seconds) = seconds {
        let _ = writeln!(out, "{:11} at these rates the kernels take {:.1} us", "", seconds * 1e6);
    }
    if unknown > 0 {
        let why = "their work depends on symbolic extents, which 'compile --shape' fixes";
        let _ = writeln!(out, "{:11} no limit is known of {}: {why}", "", count(unknown, "kernel"));
    }
    out
}

/// The time of all kernels at the limits of the machine, `None` where the plan states no kernel's work; and the number of
/// kernels whose work it does not state.
fn at_the_limits(rows: &[Row], limits: &Roofline) -> (Option<f64>, usize) {
    let kernels = || rows.iter().filter(|r| r.kind == "kernel");
    let stated = |r: &&Row| r.flops > 0 || r.bytes > 0;
    let seconds = kernels().filter(stated).map(|r| limits.seconds(r.of, r.flops, r.bytes)).reduce(|a, b| a + b);
    (seconds, kernels().count() - kernels().filter(stated).count())
}

fn report(rows: &[Row], limits: &Roofline, runs: usize, threads: usize) -> Value {
    let us = |s: f64| (s * 1e9).round() / 1e3;
    let step = |s: &StepTiming| {
        let mean = s.total.as_secs_f64() / s.calls.max(1) as f64;
        json!({"name": s.name, "mean_us": us(mean), "min_us": us(s.min.as_secs_f64())})
    };
    let tasks: Vec<Value> = rows
        .iter()
        .map(|r| {
            json!({
                "task": r.timing.task, "name": r.timing.name, "kind": r.kind, "mean_us": us(r.mean()),
                "min_us": us(r.best()), "flops": r.flops, "bytes": r.bytes, "of_limit": r.of_limit(limits),
                "from": r.locations, "steps": r.timing.steps.iter().map(step).collect::<Vec<_>>(),
            })
        })
        .collect();
    let others: serde_json::Map<_, _> =
        limits.others.iter().map(|(t, peak)| (t.name().to_string(), json!(peak / 1e9))).collect();
    json!({
        "runs": runs, "threads": threads, "peak_gflops": limits.flops / 1e9, "peak_gflops_of": others, "memory_gb_s": limits.memory / 1e9,
        "cache_gb_s": limits.cache / 1e9, "total_us": us(rows.iter().map(Row::mean).sum()), "tasks": tasks,
    })
}

/// The page of `--html`.
fn html(rows: &[Row], limits: &Roofline, model: &str) -> Page {
    let mut page = Page::new(format!("{model}, measured"));
    let total: f64 = rows.iter().map(Row::mean).sum();
    page.fact("all tasks", Kind::Seconds, total, "the sum of their mean times");
    page.fact("at the best", Kind::Seconds, rows.iter().map(Row::best).sum::<f64>(), "the sum of their best calls");
    let (seconds, unknown) = at_the_limits(rows, limits);
    let note = match unknown {
        0 => "kernels at the rates of this machine".into(),
        n => format!("at the rates of this machine, without {} of symbolic extents", count(n, "kernel")),
    };
    page.fact("roofline", Kind::Seconds, seconds, &note);
    page.fact("tasks", Kind::Number, rows.len(), "");
    let begin = rows.iter().map(|r| r.timing.start).min().unwrap_or_default();
    let mut threads: BTreeMap<u32, Vec<&Row>> = BTreeMap::new();
    rows.iter().for_each(|r| threads.entry(r.thread).or_default().push(r));
    let tracks: Vec<Track> = threads
        .into_iter()
        .map(|(thread, mut own)| {
            of_ir::sort::by_key(&mut own, |r| r.timing.start);
            let event = |r: &&Row| {
                let start = (r.timing.start - begin).as_secs_f64();
                let end = start + r.timing.last.as_secs_f64();
                Event { name: r.timing.name.clone(), start, end, waited: 0.0, transfer: r.kind == "boxing" }
            };
            Track { name: format!("actors {thread}"), events: own.iter().map(event).collect(), memory: Vec::new() }
        })
        .collect();
    page.timeline("Timeline of the last run", "", &tracks);
    let columns = [
        ("#", Kind::Number),
        ("task", Kind::Text),
        ("kind", Kind::Group),
        ("mean", Kind::Seconds),
        ("share", Kind::Percent),
        ("best", Kind::Seconds),
        ("of limit", Kind::Percent),
        ("GFLOP/s", Kind::Number),
        ("GB/s", Kind::Number),
        ("from", Kind::Text),
    ];
    let rate = |x: u64, r: &Row| (x > 0).then(|| x as f64 / r.best() / 1e9);
    let row = |r: &Row| {
        let (flops, bytes) = (rate(r.flops, r), rate(r.bytes, r));
        let from = of_page::shortened(&r.locations.join(", "));
        let (share, limit) = (r.mean() / total.max(1e-12), r.of_limit(limits));
        json!([r.timing.task, r.timing.name, r.kind, r.mean(), share, r.best(), limit, flops, bytes, from])
    };
    let note = "The limit is the roofline: what the machine computes and moves at best.";
    page.table("Tasks", note, &columns, rows.iter().map(row));
    page
}

/// The last call of every task.
fn timeline(rows: &[Row], model: &str) -> Value {
    let us = |d: Duration| d.as_nanos() as f64 / 1e3;
    let begin = rows.iter().map(|r| r.timing.start).min().unwrap_or_default();
    let mut threads: Vec<u32> = rows.iter().map(|r| r.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    let next = threads.last().map_or(0, |last| last + 1);
    let mut events = vec![trace::name("process_name", 0, 0, &format!("of-opt {model}"))];
    events.extend(threads.into_iter().map(|t| trace::name("thread_name", 0, t, &format!("actors {t}"))));
    let event = |r: &Row, track: u32| {
        let args = json!({
            "task": r.timing.task, "flops": r.flops, "bytes": show::bytes(r.bytes), "from": r.locations,
        });
        let when = (us(r.timing.start - begin), us(r.timing.last));
        trace::event(&r.timing.name, r.kind, (0, track), when, args)
    };
    events.extend(rows.iter().filter(|r| !r.timing.is_async).map(|r| event(r, r.thread)));
    // Asynchronous tasks get timeline rows of their own, so that no two events of a row overlap.
    let mut is_async: Vec<&Row> = rows.iter().filter(|r| r.timing.is_async).collect();
    of_ir::sort::by_key(&mut is_async, |r| r.timing.start);
    let mut ends: Vec<Duration> = Vec::new();
    for r in is_async {
        let free = ends.iter().position(|end| *end <= r.timing.start);
        let row = free.unwrap_or(ends.len());
        ends.resize(ends.len().max(row + 1), Duration::ZERO);
        ends[row] = r.timing.start + r.timing.last;
        events.push(event(r, next + row as u32));
    }
    events.extend((next..).zip(&ends).map(|(row, _)| trace::name("thread_name", 0, row, "asynchronous")));
    trace::file(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, us: u64, flops: u64) -> Row {
        let time = Duration::from_micros(us);
        let (start, min, last) = (Duration::from_micros(10), time, time);
        let (total, name, is_async, steps) = (2 * time, name.into(), false, Vec::new());
        let timing = TaskTiming { task: 3, name, calls: 2, total, min, start, last, is_async, steps };
        Row {
            timing,
            thread: 1,
            kind: "kernel",
            of: ElementType::F32,
            flops,
            bytes: 8_000,
            locations: vec!["node 'a'".into()],
        }
    }

    #[test]
    fn tasks_are_compared_with_the_roofline() {
        let limits = Roofline { flops: 1e11, others: vec![(ElementType::Bf16, 2e11)], memory: 1e9, cache: 1e10 };
        let mut rows = [row("matmul", 20, 1_000_000), row("neg", 2, 0)];
        let half = Duration::from_micros(5);
        rows[1].timing.steps =
            vec![StepTiming { name: "tanh".into(), calls: 2, total: 2 * half, min: half, last: half }];
        assert_eq!(rows[0].of_limit(&limits), Some(0.5));
        assert_eq!(Row { of: ElementType::Bf16, ..row("matmul", 20, 1_000_000) }.of_limit(&limits), Some(0.25));
        assert_eq!(rows[1].of_limit(&limits), Some(0.4));
        let text = table(&rows, &limits);
        assert!(text.contains("50.0") && text.contains("50%") && text.contains("#3 matmul"), "{text}");
        let report = report(&rows, &limits, 2, 1);
        assert!(text.contains("  on the device: tanh"), "{text}");
        assert_eq!(report["tasks"][1]["steps"], json!([{"name": "tanh", "mean_us": 5.0, "min_us": 5.0}]));
        assert_eq!((&report["total_us"], &report["tasks"][0]["min_us"]), (&json!(22.0), &json!(20.0)));
    }

    #[test]
    fn kernels_of_symbolic_extents_have_no_limit() {
        let limits = Roofline { flops: 1e11, others: Vec::new(), memory: 1e9, cache: 1e10 };
        let open = || Row { bytes: 0, ..row("open", 5, 0) };
        assert_eq!(at_the_limits(&[open()], &limits), (None, 1));
        assert_eq!(at_the_limits(&[open(), row("neg", 2, 0)], &limits), (Some(8e-7), 1));
        let text = table(&[open()], &limits);
        assert!(text.contains("no limit is known of 1 kernel") && !text.contains("at these rates"), "{text}");
    }

    #[test]
    fn trace_begins_at_zero() {
        let t = timeline(&[row("neg", 2, 0)], "m");
        let last = &t["traceEvents"][2];
        assert_eq!((&last["ph"], &last["ts"], &last["dur"]), (&json!("X"), &json!(0.0), &json!(2.0)));
    }

    #[test]
    fn asynchronous_tasks_have_separate_timeline_rows() {
        let at = |name: &str, start: u64, us: u64, is_async: bool| {
            let mut row = row(name, us, 0);
            (row.timing.start, row.timing.is_async) = (Duration::from_micros(start), is_async);
            row
        };
        // In any order; the third begins when the first is over.
        let rows = [at("c", 30, 10, true), at("host", 12, 5, false), at("b", 15, 20, true), at("a", 10, 20, true)];
        let t = timeline(&rows, "m");
        let lines = t["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
        let lines: Vec<_> = lines.map(|e| (e["name"].as_str().unwrap(), e["tid"].as_u64().unwrap())).collect();
        assert_eq!(lines, [("host", 1), ("a", 2), ("b", 3), ("c", 2)]);
    }
}
