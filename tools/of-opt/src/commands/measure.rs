//! `of-opt measure`: what this machine does, as the description of a mesh of its cores.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use of_diag::Diagnostics;
use of_plan::{Exec, LayoutKind, Task};
use of_runtime::{TaskTiming, Value};
use of_sharding::{CacheLevel, MeshAxis, MeshSpec};

use crate::backends::Backends;
use crate::cli::Codegen;
use crate::console::Console;
use crate::roofline::{ROUNDS, Sustained, prepared, usual};
use crate::{driver, exit};

/// Flags.
#[derive(Args, Debug)]
pub struct Measure {
    /// Ranks along each axis of the mesh, such as cpu[4] or cpu[2x2]
    #[arg(long, value_name = "MESH", default_value = "cpu[2]")]
    pub mesh: String,
    /// The file that describes the mesh; without it the description is printed
    #[arg(short, long, value_name = "FILE.toml")]
    pub output: Option<PathBuf>,
}

/// Tasks of the chain that shows what a task takes besides its work.
const CHAIN: usize = 64;
/// Elements that the ranks gather, of 4 bytes: for what a message takes, and for what its bytes do.
const GATHERED: [usize; 5] = [1 << 8, 1 << 16, 1 << 18, 1 << 20, 1 << 22];
/// How often they do in a run.
const GATHERS: usize = 8;
/// How long means are taken over.
const SUSTAINED: Duration = Duration::from_millis(100);

/// Runs it.
///
/// # Errors
/// When kernels cannot be compiled or run, or the file cannot be written.
pub fn measure(c: &Measure, console: &mut Console) -> Result<(), Diagnostics> {
    let mut mesh = MeshSpec::named(&c.mesh)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = mesh.devices().min(cores);
    let codegen = Codegen { threads: Some(1), ..Codegen::default() };
    let limits = Sustained::measure(&codegen, at_once, console)?;
    mesh.flops.insert("f32".into(), limits.flops);
    mesh.pointwise = Some(limits.pointwise);
    mesh.bandwidth = limits.memory;
    mesh.caches = limits.caches;
    mesh.cores = (mesh.devices() > cores).then_some(cores);
    mesh.overhead = overhead(&codegen, console)?;
    if mesh.devices() > 1 {
        let link = link(mesh.devices(), console)?;
        mesh.axes.iter_mut().for_each(|axis| *axis = MeshAxis { devices: axis.devices, ..link.clone() });
    }
    let text = describe(&mesh);
    match &c.output {
        Some(path) => of_files::write(path, text).map_err(|e| exit::io(path, "write", &e).into()),
        None => console.print(&text),
    }
}

/// Seconds of a run of a chain of tasks that do next to nothing, for each task.
fn overhead(codegen: &Codegen, console: &mut Console) -> Result<f64, Diagnostics> {
    let mut text = String::from("func @main(%v0: tensor<4x6xf32>) -> (tensor<4x6xf32>) {\n");
    for i in 0..CHAIN {
        let _ = writeln!(text, "  %s{i} = of.softmax %v{i} {{axis = {}}}", i % 2);
        let _ = writeln!(text, "  %v{} = of.tanh %s{i}", i + 1);
    }
    let _ = writeln!(text, "  of.return %v{CHAIN}\n}}");
    let (plan, mut inputs) = prepared(&text, codegen, console)?;
    let tasks = plan.plan().programs.first().map_or(1, |p| p.tasks.len());
    let mut session = driver::session(plan, 0, Some(1), false, &Backends::all())?;
    let mut outputs = session.new_outputs();
    let mut best = Duration::MAX;
    for _ in 0..200 {
        let start = std::time::Instant::now();
        session.run_into(&mut inputs, &mut outputs).map_err(|e| driver::run_error(&e))?;
        best = best.min(start.elapsed());
    }
    Ok(best.as_secs_f64() / tasks as f64)
}

/// What lies between so many ranks: how long the shortest message takes, and what more bytes add.
fn link(ranks: usize, console: &mut Console) -> Result<MeshAxis, Diagnostics> {
    let latency = gather(GATHERED[0], ranks, console)?;
    let mut short = Vec::new();
    for elements in &GATHERED[1..] {
        let bytes = 4.0 * (elements / ranks * (ranks - 1)) as f64;
        let time = gather(*elements, ranks, console)?;
        short.push(CacheLevel { bytes, bandwidth: bytes / (time - latency).max(1e-9) });
    }
    let bandwidth = short.pop().map_or(0.0, |long| long.bandwidth);
    // Rounds of doubling.
    let latency = latency / (ranks as f64).log2().ceil();
    Ok(MeshAxis { devices: ranks, bandwidth, latency, cache: short })
}

/// Seconds in which so many ranks gather so many elements. Ranks that come early wait; the mean of all is what their being
/// late adds to a step.
fn gather(elements: usize, ranks: usize, console: &mut Console) -> Result<f64, Diagnostics> {
    let n = elements / ranks * ranks;
    let part = format!("tensor<{n}xf32, #of.sbp<@m, [S(0)]>>");
    let whole = format!("tensor<{n}xf32, #of.sbp<@m, [B]>>");
    let mut text =
        format!("of.mesh @m {{devices = \"cpu\", shape = [{ranks}]}}\nfunc @main(%v0: {part}) -> ({part}) {{\n");
    for i in 0..GATHERS {
        let _ = writeln!(text, "  %w{i} = of.place %v{i} {{to = #of.sbp<@m, [B]>}} : ({part}) -> {whole}");
        let _ = writeln!(text, "  %n{i} = of.neg %w{i} : ({whole}) -> {whole}");
        let _ = writeln!(text, "  %v{} = of.place %n{i} {{to = #of.sbp<@m, [S(0)]>}} : ({whole}) -> {part}", i + 1);
    }
    let _ = writeln!(text, "  of.return %v{GATHERS} : ({part}) -> ()\n}}");
    let codegen = Codegen { threads: Some(1), mesh: Some(format!("cpu[{ranks}]")), ..Codegen::default() };
    let (plan, inputs): (_, Vec<Value>) = prepared(&text, &codegen, console)?;
    let mut session = driver::mesh_session(Arc::clone(&plan), 0, Some(ranks), true, &Backends::all())?;
    let gathers = |t: &&Task| matches!(&t.exec, Some(Exec::Boxing(e)) if e.transfer.from.iter().any(|l| l.kind() == LayoutKind::Split));
    let program = session.template(0).ok_or_else(|| exit::error(of_diag::Code::RUN, "the plan has no program"))?;
    let gathers: Vec<usize> = program.tasks.iter().enumerate().filter(|(_, t)| gathers(t)).map(|(i, _)| i).collect();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (started, mut calls) = (Instant::now(), 0);
        while calls < 8 || started.elapsed() < SUSTAINED {
            session.run(&inputs).map_err(|e| driver::run_error(&e))?;
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
    Ok(usual(&mut rounds).as_secs_f64())
}

/// The file.
fn describe(mesh: &MeshSpec) -> String {
    let mut out = String::from("# Measured by of-opt measure.\n");
    let _ = writeln!(out, "device = \"{}\"", mesh.device);
    let _ = writeln!(out, "memory = {:e}", mesh.memory);
    let _ = writeln!(out, "bandwidth = {:.3e}", mesh.bandwidth);
    let _ = writeln!(out, "cache = [{}]", nears(&mesh.caches));
    let _ = writeln!(out, "overhead = {:.3e}", mesh.overhead);
    if let Some(cores) = mesh.cores {
        let _ = writeln!(out, "cores = {cores}");
    }
    let flops: Vec<String> = mesh.flops.iter().map(|(name, x)| format!("{name} = {x:.3e}")).collect();
    let _ = writeln!(out, "flops = {{ {} }}", flops.join(", "));
    if let Some(rate) = mesh.pointwise {
        let _ = writeln!(out, "pointwise = {rate:.3e}");
    }
    for axis in &mesh.axes {
        let (n, bandwidth, latency) = (axis.devices, axis.bandwidth, axis.latency);
        let _ = writeln!(out, "[[axis]]\ndevices = {n}\nbandwidth = {bandwidth:.3e}\nlatency = {latency:.3e}");
        let _ = writeln!(out, "cache = [{}]", nears(&axis.cache));
    }
    out
}

fn nears(list: &[CacheLevel]) -> String {
    let near = |n: &CacheLevel| format!("\n  {{ bytes = {:e}, bandwidth = {:.3e} }}", n.bytes, n.bandwidth);
    list.iter().map(near).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_described_is_a_mesh() {
        let mut mesh = MeshSpec::named("cpu[2x4]").unwrap();
        mesh.overhead = 2.5e-7;
        mesh.caches = vec![CacheLevel { bytes: 1e6, bandwidth: 4e10 }, CacheLevel { bytes: 4e6, bandwidth: 2e10 }];
        mesh.pointwise = Some(3e10);
        mesh.axes[1].cache = vec![CacheLevel { bytes: 65536.0, bandwidth: 1e10 }];
        mesh.cores = Some(2);
        assert_eq!(MeshSpec::parse(&describe(&mesh), "measured").unwrap(), mesh);
    }
}
