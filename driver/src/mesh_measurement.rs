//! Measurement of this machine, as the description of a mesh of its cores.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use of_diag::Diagnostics;
use of_plan::{Exec, LayoutKind, Task};
use of_runtime::{TaskTiming, Value};
use of_sharding::{CacheLevel, MeshAxis, MeshSpec};

use crate::backends::Backends;
use crate::error::error;
use crate::microbenchmark::{ROUNDS, compile_text, lower_quartile};
use crate::observer::Observer;
use crate::options::{CompileOptions, MeshOptions, SessionOptions};
use crate::session::{mesh_session, program_session, run_error};
use crate::sustained_rates::SustainedRates;

/// Length of the chain of tasks that shows the overhead of a task.
const CHAIN: usize = 64;
/// Elements of 4 bytes that the ranks all-gather: the first size shows the latency, the others the bandwidth.
const GATHERED: [usize; 5] = [1 << 8, 1 << 16, 1 << 18, 1 << 20, 1 << 22];
/// All-gathers in a run.
const GATHERS: usize = 8;
/// The duration over which means are taken.
const SUSTAINED: Duration = Duration::from_millis(100);

/// Measures this machine as a mesh of its cores. `name` gives the axes, such as `cpu[4]` or `cpu[2x2]`.
///
/// # Errors
/// When the mesh is unknown, or kernels cannot be compiled or executed.
pub fn measure(name: &str, observer: &dyn Observer) -> Result<MeshSpec, Diagnostics> {
    let mut mesh = MeshSpec::named(name)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = CompileOptions { threads: 1, ..CompileOptions::default() };
    let rates = SustainedRates::measure(&options, mesh.devices().min(cores), observer)?;
    mesh.flops.insert("f32".into(), rates.flops);
    mesh.pointwise = Some(rates.pointwise);
    mesh.bandwidth = rates.memory;
    mesh.caches = rates.caches;
    mesh.cores = (mesh.devices() > cores).then_some(cores);
    mesh.overhead = task_overhead(&options, observer)?;
    if mesh.devices() > 1 {
        let link = link(mesh.devices(), observer)?;
        mesh.axes.iter_mut().for_each(|axis| *axis = MeshAxis { devices: axis.devices, ..link.clone() });
    }
    Ok(mesh)
}

/// Seconds of overhead for each task, from a chain of tasks with little work.
fn task_overhead(options: &CompileOptions, observer: &dyn Observer) -> Result<f64, Diagnostics> {
    let mut text = String::from("func @main(%v0: tensor<4x6xf32>) -> (tensor<4x6xf32>) {\n");
    for i in 0..CHAIN {
        let _ = writeln!(text, "  %s{i} = of.softmax %v{i} {{axis = {}}}", i % 2);
        let _ = writeln!(text, "  %v{} = of.tanh %s{i}", i + 1);
    }
    let _ = writeln!(text, "  of.return %v{CHAIN}\n}}");
    let (plan, mut inputs) = compile_text(&text, options, observer)?;
    let tasks = plan.plan().programs.first().map_or(1, |p| p.tasks.len());
    let mut session = program_session(
        plan,
        0,
        &SessionOptions { threads: 1, profile: false, ..Default::default() },
        &Backends::builtin(),
    )?;
    let mut outputs = session.new_outputs();
    let mut best = Duration::MAX;
    for _ in 0..200 {
        let start = std::time::Instant::now();
        session.run_into(&mut inputs, &mut outputs).map_err(|e| run_error(&e))?;
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64() / tasks as f64)
}

/// The link between so many ranks: latency of the shortest message, and bandwidth by message size.
fn link(ranks: usize, observer: &dyn Observer) -> Result<MeshAxis, Diagnostics> {
    let latency = gather(GATHERED[0], ranks, observer)?;
    let mut short = Vec::new();
    for elements in &GATHERED[1..] {
        let bytes = 4.0 * (elements / ranks * (ranks - 1)) as f64;
        let time = gather(*elements, ranks, observer)?;
        short.push(CacheLevel { bytes, bandwidth: bytes / (time - latency).max(1e-9) });
    }
    let bandwidth = short.pop().map_or(0.0, |long| long.bandwidth);
    // Rounds of doubling.
    let latency = latency / (ranks as f64).log2().ceil();
    Ok(MeshAxis { devices: ranks, bandwidth, latency, cache: short })
}

/// Seconds of an all-gather of so many elements by so many ranks. Early ranks wait; the mean over ranks includes the waiting,
/// as a step does.
fn gather(elements: usize, ranks: usize, observer: &dyn Observer) -> Result<f64, Diagnostics> {
    let n = elements / ranks * ranks;
    let part = format!("tensor<{n}xf32, #of.sbp<@m, [S(0)]>>");
    let whole = format!("tensor<{n}xf32, #of.sbp<@m, [B]>>");
    let mut text =
        format!("of.mesh @m {{devices = \"cpu\", shape = [{ranks}]}}\nfunc @main(%v0: {part}) -> ({part}) {{\n");
    for i in 0..GATHERS {
        let _ = writeln!(
            text,
            "  %w{i} = of.sharding_constraint %v{i} {{sharding = #of.sbp<@m, [B]>}} : ({part}) -> {whole}"
        );
        let _ = writeln!(text, "  %n{i} = of.neg %w{i} : ({whole}) -> {whole}");
        let _ = writeln!(
            text,
            "  %v{} = of.sharding_constraint %n{i} {{sharding = #of.sbp<@m, [S(0)]>}} : ({whole}) -> {part}",
            i + 1
        );
    }
    let _ = writeln!(text, "  of.return %v{GATHERS} : ({part}) -> ()\n}}");
    let mesh = MeshOptions { mesh: format!("cpu[{ranks}]"), ..MeshOptions::default() };
    let options = CompileOptions { threads: 1, mesh: Some(mesh), ..CompileOptions::default() };
    let (plan, inputs): (_, Vec<Value>) = compile_text(&text, &options, observer)?;
    let mut session = mesh_session(
        Arc::clone(&plan),
        0,
        &SessionOptions { threads: ranks, profile: true, ..Default::default() },
        &Backends::builtin(),
    )?;
    let gathers = |t: &&Task| matches!(&t.exec, Some(Exec::Boxing(e)) if e.transfer.from.iter().any(|l| l.kind() == LayoutKind::Split));
    let program = session.template(0).ok_or_else(|| error(of_diag::Code::RUN, "the plan has no program"))?;
    let gathers: Vec<usize> = program.tasks.iter().enumerate().filter(|(_, t)| gathers(t)).map(|(i, _)| i).collect();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (started, mut calls) = (Instant::now(), 0);
        while calls < 8 || started.elapsed() < SUSTAINED {
            session.run(&inputs).map_err(|e| run_error(&e))?;
            calls += 1;
            if calls == 2 {
                session.reset_timings();
            }
        }
        let timings: Vec<Vec<TaskTiming>> = (0..ranks).map(|rank| session.timings(rank)).collect();
        let gathers = || timings.iter().flat_map(|rank| gathers.iter().filter_map(|task| rank.get(*task)));
        let total: Duration = gathers().map(|t| t.total).sum();
        rounds.push(total.div_f64(gathers().map(|t| t.calls as f64).sum::<f64>().max(1.0)));
    }
    Ok(lower_quartile(&mut rounds).as_secs_f64())
}
