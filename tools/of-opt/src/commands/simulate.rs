//! `of-opt simulate`: how long a model would take on a mesh, who would wait for whom, and what memory it would take.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use of_codegen::kernel::schedule;
use of_diag::{Code, Diagnostics};
use of_driver::mesh::{self, RankSelection};
use of_driver::prepare::{main_func, verify};
use of_driver::session::{entry_point, mesh_session, run_error};
use of_driver::{
    Backends, CompileOptions, Generator, MeshOptions, Model, ModelOrPlan, Observer, SessionOptions, io_error, process,
    random_inputs, shapes, simulation, tensor_files,
};
use of_ir::Module;
use of_passes::specialize::Bindings;
use of_plan::{Exec, MeshPort, Plan, PlanFile};
use of_runtime::{RankClass, RanksOptions, RanksTimeline, TaskTiming};
use of_sharding::MeshSpec;
use serde_json::{Value, json};

use super::bench::Limits;
use crate::arguments::{Codegen, InputFiles, ModelFile, Shapes};
use crate::console::Console;
use crate::show::bytes;
use crate::signed_plan::Signed;
use crate::{exit, trace};
use of_driver::{count, error};
use of_page::{Event, Kind, Page, Track};

/// Flags.
#[derive(Args, Debug)]
pub struct Simulate {
    /// The model, or a plan that was compiled for a mesh of the same shape.
    #[command(flatten)]
    pub model: ModelFile,
    /// Numbers for open dimensions.
    #[command(flatten)]
    pub shapes: Shapes,
    /// Random slowdown of each task of each rank, at most this fraction of its time
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub jitter: f64,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Write the timeline for chrome://tracing or ui.perfetto.dev: a process for each kind of rank
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// Write a page for a browser: timeline, memory and tasks
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Run it too, on ranks of this machine with random inputs, and compare
    #[arg(long)]
    pub run: bool,
    /// How long to run it.
    #[command(flatten)]
    pub limits: Limits,
    /// Who must have signed the plan.
    #[command(flatten)]
    pub signed: Signed,
    /// Code generation, and the mesh.
    #[command(flatten)]
    pub codegen: Codegen,
}

/// A task that takes so many times as long is later than anybody waits for.
const MAX_JITTER: f64 = 1e6;

/// Executes the subcommand.
///
/// # Errors
/// When the model or the mesh cannot be read, nothing fits, or something is not supported.
pub fn simulate(c: &Simulate, console: &Console) -> Result<(), Diagnostics> {
    let Some(sharding) = c.codegen.mesh_options() else {
        return Err(exit::usage("--mesh is needed, e.g. cpu[2] or dgx-h100[4x8]").into());
    };
    if !(0.0..=MAX_JITTER).contains(&c.jitter) {
        return Err(exit::usage(format!("--jitter is a number from 0 to {MAX_JITTER}")).into());
    }
    c.limits.check()?;
    let spec = MeshSpec::named(&sharding.mesh)?;
    let options = RanksOptions { seed: c.seed, iterations: 1, cores: spec.cores, jitter: c.jitter };
    // What is resident before the plan is: its weights are part of what the ranks take.
    let before = process::restart_peak();
    match c.signed.open(&c.model, &InputFiles::default(), console)? {
        ModelOrPlan::Plan(plan) => {
            c.codegen.check_no_compile_flags(&["--mesh"])?;
            let plan: Arc<PlanFile> = Arc::from(plan);
            let predicted = predict(&options, plan.plan(), &spec)?;
            let real = if c.run { Some(Measured::run(c, Arc::clone(&plan), before, console)?) } else { None };
            print(c, &predicted, real, console)
        }
        ModelOrPlan::Model(mut source) => {
            verify(&source.module)?;
            let compile = c.codegen.options()?;
            of_driver::precision::lower(&mut source, &compile, console)?;
            let func = main_func(&source.module)?;
            let mut bindings = Bindings::default();
            shapes::bind(&c.shapes.shape, func, &mut bindings)?;
            let backends = Backends::new(&compile)?;
            let selection = if c.run { RankSelection::All } else { RankSelection::OnePerClass };
            let funcs = mesh::prepare(&source.module, &bindings, &sharding, &compile, selection, &backends, console)?;
            let generator = Generator {
                model: &source,
                options: &compile,
                backends: &backends,
                schedules: &schedule::NONE,
                observer: console,
            };
            let compiled = mesh::compile(&funcs, &generator)?;
            let predicted = predict(&options, compiled.plan(), &spec)?;
            let before = process::restart_peak();
            let real = if c.run { Some(Measured::run(c, Arc::new(compiled.open()?), before, console)?) } else { None };
            print(c, &predicted, real, console)
        }
    }
}

/// The timeline tracks of the classes of ranks that execute a module, for a page, and the seconds of a step.
///
/// # Errors
/// As [`simulate`].
pub fn predicted_tracks(
    module: &Module,
    source: &Model,
    spec: &MeshSpec,
    mesh: &str,
    console: &Console,
) -> Result<(Vec<Track>, f64), Diagnostics> {
    let sharding = MeshOptions { mesh: mesh.into(), ..MeshOptions::default() };
    let options = CompileOptions { threads: 1, ..CompileOptions::default() };
    let (backends, selection) = (Backends::builtin(), RankSelection::OnePerClass);
    let funcs = mesh::prepare(module, &Bindings::default(), &sharding, &options, selection, &backends, console)?;
    let generator = Generator {
        model: source,
        options: &options,
        backends: &backends,
        schedules: &schedule::NONE,
        observer: console,
    };
    let compiled = mesh::compile(&funcs, &generator)?;
    let options = RanksOptions { cores: spec.cores, ..RanksOptions::default() };
    let predicted = predict(&options, compiled.plan(), spec)?;
    Ok((predicted.tracks(), predicted.step()))
}

/// `rank 0 (and 7 others)`.
fn who(c: &RankClass) -> String {
    let (first, others) = (c.ranks.first().copied().unwrap_or(0), c.ranks.len() - 1);
    if others == 0 { format!("rank {first}") } else { format!("rank {first} (and {})", count(others, "other")) }
}

/// The predicted step of a plan.
struct Prediction<'p> {
    plan: &'p Plan,
    timeline: RanksTimeline,
}

impl Prediction<'_> {
    /// Seconds of a step.
    fn step(&self) -> f64 {
        self.timeline.makespan_ns as f64 * 1e-9
    }

    /// A track for each class of ranks.
    fn tracks(&self) -> Vec<Track> {
        self.timeline.classes.iter().map(|c| self.track(c)).collect()
    }

    fn track(&self, c: &RankClass) -> Track {
        let tasks = &self.plan.programs[c.program as usize].tasks;
        let event = |e: &of_runtime::simulator::SimEvent| Event {
            name: tasks[e.task].name.clone(),
            start: e.start_ns as f64 * 1e-9,
            end: e.end_ns as f64 * 1e-9,
            waited: e.waited_ns as f64 * 1e-9,
            transfer: matches!(tasks[e.task].exec, Some(Exec::Boxing(_))),
        };
        let memory = vec![
            ("registers", c.chunk_bytes),
            ("weights", c.weight_bytes),
            ("scratch", c.scratch_bytes),
            ("inputs and outputs", c.port_bytes),
        ];
        Track { name: who(c), events: c.timeline.events.iter().map(event).collect(), memory }
    }

    /// The page of `--html`.
    fn page(&self) -> Page {
        let mut page = Page::new(format!("{}, simulated", self.plan.info.model));
        page.fact("step", Kind::Seconds, self.step(), "as simulated");
        let ranks: usize = self.timeline.classes.iter().map(|c| c.ranks.len()).sum();
        page.fact("ranks", Kind::Number, ranks, &count(self.timeline.classes.len(), "kind"));
        let tracks = self.tracks();
        page.timeline("Timeline of a step", "One track for each kind of rank.", &tracks);
        page.memory("Memory of a rank", &tracks, None);
        let rows = tracks.iter().flat_map(|t| {
            t.events.iter().map(|e| json!([t.name, e.name, e.start, e.end - e.start - e.waited, e.waited]))
        });
        let columns = [
            ("ranks", Kind::Group),
            ("task", Kind::Text),
            ("start", Kind::Start),
            ("time", Kind::Seconds),
            ("waits", Kind::Seconds),
        ];
        page.table("Tasks", "Predicted times, without the time in which a task waits for other ranks.", &columns, rows);
        page
    }
}

fn predict<'p>(options: &RanksOptions, plan: &'p Plan, spec: &MeshSpec) -> Result<Prediction<'p>, Diagnostics> {
    if plan.meshes.iter().flat_map(|mesh| &mesh.inputs).any(MeshPort::is_open) {
        let what = "the time of a step depends on extents that are open";
        return Err(error(Code::INPUT, what).hint("give them numbers when the plan is compiled: --shape").into());
    }
    Ok(Prediction { plan, timeline: simulation::simulate(plan, spec, options)? })
}

/// What a run took.
struct Measured {
    /// Seconds of the fastest step, and of the one in the middle.
    best: f64,
    median: f64,
    /// Peak increase of the process's memory in bytes, for all ranks; `None` where the system does not report it.
    memory: Option<u64>,
    /// Tasks of rank 0.
    tasks: Vec<TaskTiming>,
}

impl Measured {
    /// Runs a plan; `before` are the bytes of the process without it.
    fn run(c: &Simulate, plan: Arc<PlanFile>, before: Option<u64>, console: &Console) -> Result<Measured, Diagnostics> {
        let _progress = console.progress("measuring");
        let program = entry_point(&plan)?;
        let types = program.inputs.iter().map(|p| (p.name.as_str(), tensor_files::port_type(p)));
        let inputs = tensor_files::to_runtime_all(random_inputs::values(types, c.codegen.memory)?)?;
        drop(program);
        let threads = c.codegen.options()?.worker_threads();
        let options = SessionOptions { threads, profile: true, memory: c.codegen.memory };
        let mut session = mesh_session(Arc::clone(&plan), 0, &options, &Backends::builtin())?;
        let mut run = || -> Result<Duration, Diagnostics> {
            session.run(&inputs).map_err(|e| run_error(&e))?;
            Ok(session.step())
        };
        c.limits.warm_up(&mut || run().map(drop))?;
        let mut times = c.limits.measure(&mut run)?;
        times.sort();
        let memory = before.zip(process::peak_bytes()).map(|(a, b)| b.saturating_sub(a));
        let (best, median) = (times[0].as_secs_f64(), times[times.len() / 2].as_secs_f64());
        Ok(Measured { best, median, memory, tasks: session.timings(0) })
    }
}

fn print(
    c: &Simulate,
    predicted: &Prediction<'_>,
    real: Option<Measured>,
    console: &Console,
) -> Result<(), Diagnostics> {
    let Prediction { plan, timeline } = predicted;
    if let Some(path) = &c.trace {
        let text = events(timeline, plan).to_string();
        of_files::write(path, text).map_err(|e| io_error(path, "written", &e))?;
        console.note(&format!("the timeline is in {}", path.display()));
    }
    if let Some(path) = &c.html {
        super::inspect::write_page(&predicted.page(), path)?;
        console.note(&format!("the page is {}", path.display()));
    }
    if c.json {
        let mut report = report(timeline, plan);
        if let Some(real) = &real {
            report["measured"] =
                json!({"best_ms": real.best * 1e3, "median_ms": real.median * 1e3, "memory_bytes": real.memory});
        }
        return console.print(&(report.to_string() + "\n"));
    }
    let mut out = text(timeline, plan);
    if let Some(real) = &real {
        let off = |predicted: f64, real: f64| format!("{:+.1} %", 100.0 * (predicted / real.max(1e-12) - 1.0));
        let step = timeline.makespan_ns as f64 * 1e-9;
        let _ = writeln!(
            out,
            "a step took {} at best, {} in the middle; the prediction is {} and {} off",
            ms(real.best),
            ms(real.median),
            off(step, real.best),
            off(step, real.median)
        );
        if console.verbose > 0 {
            tasks(&mut out, timeline, &real.tasks);
        }
        if let Some(memory) = real.memory {
            let own = |c: &RankClass| (c.chunk_bytes + c.scratch_bytes + c.port_bytes) * c.ranks.len() as u64;
            let all: u64 = timeline.classes.iter().map(own).sum::<u64>() + shared(plan);
            let _ = writeln!(
                out,
                "the ranks took {} of memory, {} was predicted: {} off",
                bytes(memory),
                bytes(all),
                off(all as f64, memory as f64)
            );
        }
    }
    console.print(&out)
}

/// Bytes that ranks of one process have in common: weights, each once, and whole inputs and outputs.
fn shared(plan: &Plan) -> u64 {
    let mut weights: Vec<(u64, u64)> = plan.weights.iter().map(|w| (w.offset, w.len)).collect();
    weights.sort_unstable();
    weights.dedup();
    let ports = plan.meshes.iter().flat_map(|m| m.inputs.iter().chain(&m.outputs));
    let ports: u64 = ports.filter_map(|p| p.dtype().byte_len(&p.dims)).sum();
    weights.into_iter().map(|(_, len)| len).sum::<u64>() + ports
}

/// The tasks of rank 0, as predicted and as they were; both without the time in which it waited where it is known.
fn tasks(out: &mut String, t: &RanksTimeline, real: &[TaskTiming]) {
    let Some(first) = t.classes.iter().find(|c| c.ranks.first() == Some(&0)) else { return };
    out.push_str("   predicted        mean        best  task of rank 0\n");
    let mut events = first.timeline.events.clone();
    of_ir::sort::by_key(&mut events, |e| e.task);
    for (e, r) in events.iter().filter_map(|e| Some((e, real.get(e.task)?))) {
        let predicted = ms((e.end_ns - e.start_ns - e.waited_ns) as f64 * 1e-9);
        let mean = ms(r.total.as_secs_f64() / r.calls.max(1) as f64);
        let _ = writeln!(out, "{predicted:>12}{mean:>12}{:>12}  {}", ms(r.min.as_secs_f64()), r.name);
    }
}

/// Seconds of a class in transfers, and of these waiting for other ranks, over all its tasks.
fn transfers(class: &RankClass, plan: &Plan) -> (f64, f64) {
    let program = &plan.programs[class.program as usize];
    let mut sums = (0, 0);
    for e in &class.timeline.events {
        if matches!(program.tasks[e.task].exec, Some(Exec::Boxing(_))) {
            sums.0 += e.end_ns - e.start_ns;
            sums.1 += e.waited_ns - e.core_wait_ns;
        }
    }
    (sums.0 as f64 * 1e-9, sums.1 as f64 * 1e-9)
}

fn text(t: &RanksTimeline, plan: &Plan) -> String {
    let ranks: usize = t.classes.iter().map(|c| c.ranks.len()).sum();
    let mut out = format!(
        "a step takes {} on {}, of {}\n",
        ms(t.makespan_ns as f64 * 1e-9),
        count(ranks, "rank"),
        if t.classes.len() == 1 { "one kind".into() } else { format!("{} kinds", t.classes.len()) }
    );
    out.push_str(
        "   ranks  from rank      ends  works  transfers   waiting  for cores     memory  registers       live    weights\n",
    );
    const SHOWN: usize = 32;
    for c in t.classes.iter().take(SHOWN) {
        let (moving, waiting) = transfers(c, plan);
        let _ = writeln!(
            out,
            "{:8} {:10} {:>9} {:5.1}% {:>10} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10}",
            c.ranks.len(),
            c.ranks.first().copied().unwrap_or(0),
            ms(c.timeline.makespan_ns as f64 * 1e-9),
            100.0 * c.utilisation(t.makespan_ns),
            ms(moving),
            ms(waiting),
            ms(c.core_wait_ns() as f64 * 1e-9),
            bytes(c.memory_bytes()),
            bytes(c.chunk_bytes),
            bytes(c.timeline.peak_live_bytes),
            bytes(c.weight_bytes),
        );
    }
    if t.classes.len() > SHOWN {
        let _ = writeln!(out, "  and {} kinds more", t.classes.len() - SHOWN);
    }
    out
}

fn report(t: &RanksTimeline, plan: &Plan) -> Value {
    let classes: Vec<Value> = t
        .classes
        .iter()
        .map(|c| {
            let (moving, waiting) = transfers(c, plan);
            json!({
                "ranks": c.ranks, "program": plan.programs[c.program as usize].name,
                "ends_ms": c.timeline.makespan_ns as f64 * 1e-6, "utilisation": c.utilisation(t.makespan_ns),
                "transfers_ms": moving * 1e3, "waiting_ms": waiting * 1e3,
                "core_wait_ms": c.core_wait_ns() as f64 * 1e-6, "memory_bytes": c.memory_bytes(),
                "register_bytes": c.chunk_bytes, "live_bytes": c.timeline.peak_live_bytes,
                "weight_bytes": c.weight_bytes, "scratch_bytes": c.scratch_bytes,
                "port_bytes": c.port_bytes,
            })
        })
        .collect();
    json!({"step_ms": t.makespan_ns as f64 * 1e-6, "classes": classes})
}

/// Every task of every kind of rank.
fn events(t: &RanksTimeline, plan: &Plan) -> Value {
    let mut out = Vec::new();
    for c in &t.classes {
        let program = &plan.programs[c.program as usize];
        let process = c.ranks.first().copied().unwrap_or(0);
        out.push(trace::name("process_name", process, 0, &who(c)));
        for e in &c.timeline.events {
            let task = &program.tasks[e.task];
            let kind = if matches!(task.exec, Some(Exec::Boxing(_))) { "transfer" } else { "compute" };
            let us = |ns: u64| ns as f64 / 1e3;
            let args = json!({
                "task": e.task, "waited_us": us(e.waited_ns), "core_wait_us": us(e.core_wait_ns), "from": task.locations,
            });
            let when = (us(e.start_ns), us(e.end_ns - e.start_ns));
            out.push(trace::event(&task.name, kind, (process, task.thread), when, args));
        }
    }
    trace::file(out)
}

fn ms(seconds: f64) -> String {
    of_sharding::decide::seconds(seconds)
}
