//! `of-opt measure`: what this machine does, as the description of a mesh of its cores.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use of_diag::Diagnostics;
use of_plan::Exec;
use of_runtime::Value;
use of_sharding::MeshSpec;

use crate::backends::Backends;
use crate::cli::Codegen;
use crate::console::Console;
use crate::roofline::{CACHED, Roofline, prepared};
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
const SHORT: usize = 1 << 8;
const LONG: usize = 1 << 20;

/// Runs it.
///
/// # Errors
/// When kernels cannot be compiled or run, or the file cannot be written.
pub fn measure(c: &Measure, console: &mut Console) -> Result<(), Diagnostics> {
    let mut mesh = MeshSpec::named(&c.mesh)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = mesh.devices().min(cores);
    let codegen = Codegen { threads: Some(1), ..Codegen::default() };
    let limits = Roofline::sustained(&codegen, at_once, console)?;
    mesh.flops.insert("f32".into(), limits.flops);
    mesh.bandwidth = limits.memory;
    mesh.cache_bandwidth = Some(limits.cache);
    mesh.cache = CACHED as f64;
    mesh.cores = (mesh.devices() > cores).then_some(cores);
    mesh.overhead = overhead(&codegen, console)?;
    if at_once > 1 {
        let rounds = (at_once as f64).log2().ceil();
        let (short, long) = (gather(SHORT, at_once, console)?, gather(LONG, at_once, console)?);
        let received = 4.0 * (LONG - SHORT) as f64 * (at_once - 1) as f64 / at_once as f64;
        for axis in &mut mesh.axes {
            axis.latency = (short - mesh.overhead).max(0.0) / rounds;
            axis.bandwidth = received / (long - short).max(1e-9);
        }
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

/// Seconds in which so many ranks gather so many elements: the best of several runs, as other work on the machine only
/// ever takes time.
fn gather(elements: usize, ranks: usize, console: &mut Console) -> Result<f64, Diagnostics> {
    let n = elements / ranks * ranks;
    let text = format!(
        "of.mesh @m {{devices = \"cpu\", shape = [{ranks}]}}
func @main(%x: tensor<{n}xf32, #of.sbp<@m, [S(0)]>>) -> (tensor<{n}xf32, #of.sbp<@m, [B]>>) {{
  %y = of.place %x {{to = #of.sbp<@m, [B]>}} : (tensor<{n}xf32, #of.sbp<@m, [S(0)]>>) -> tensor<{n}xf32, #of.sbp<@m, [B]>>
  of.return %y : (tensor<{n}xf32, #of.sbp<@m, [B]>>) -> ()
}}"
    );
    let codegen = Codegen { threads: Some(1), mesh: Some(format!("cpu[{ranks}]")), ..Codegen::default() };
    let (plan, inputs): (_, Vec<Value>) = prepared(&text, &codegen, console)?;
    let mut session = driver::mesh_session(Arc::clone(&plan), 0, Some(ranks), true, &Backends::all())?;
    let transfer = session
        .template(0)
        .and_then(|p| p.tasks.iter().position(|t| matches!(t.exec, Some(Exec::Boxing(_)))))
        .ok_or_else(|| exit::error(of_diag::Code::RUN, "the ranks gather nothing"))?;
    let mut best = Duration::MAX;
    for _ in 0..30 {
        session.reset_timings();
        session.run(&inputs).map_err(|e| driver::run_error(&e))?;
        // Who comes first waits: the last one to come takes what the transfer takes.
        let took = (0..ranks).filter_map(|r| session.timings(r).get(transfer).map(|t| t.last));
        best = best.min(took.min().unwrap_or_default());
    }
    Ok(best.as_secs_f64())
}

/// The file.
fn describe(mesh: &MeshSpec) -> String {
    let mut out = String::from("# Measured by of-opt measure.\n");
    let _ = writeln!(out, "device = \"{}\"", mesh.device);
    let _ = writeln!(out, "memory = {:e}", mesh.memory);
    let _ = writeln!(out, "bandwidth = {:.3e}", mesh.bandwidth);
    let _ = writeln!(out, "cache_bandwidth = {:.3e}", mesh.cache_bandwidth.unwrap_or(mesh.bandwidth));
    let _ = writeln!(out, "cache = {:e}", mesh.cache);
    let _ = writeln!(out, "overhead = {:.3e}", mesh.overhead);
    if let Some(cores) = mesh.cores {
        let _ = writeln!(out, "cores = {cores}");
    }
    let flops: Vec<String> = mesh.flops.iter().map(|(name, x)| format!("{name} = {x:.3e}")).collect();
    let _ = writeln!(out, "flops = {{ {} }}", flops.join(", "));
    for axis in &mesh.axes {
        let (n, bandwidth, latency) = (axis.devices, axis.bandwidth, axis.latency);
        let _ = writeln!(out, "[[axis]]\ndevices = {n}\nbandwidth = {bandwidth:.3e}\nlatency = {latency:.3e}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_described_is_a_mesh() {
        let mut mesh = MeshSpec::named("cpu[2x4]").unwrap();
        mesh.overhead = 2.5e-7;
        mesh.cache = 1e6;
        mesh.cache_bandwidth = Some(4e10);
        mesh.cores = Some(2);
        assert_eq!(MeshSpec::parse(&describe(&mesh), "measured").unwrap(), mesh);
    }
}
