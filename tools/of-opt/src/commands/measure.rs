//! `of-opt measure`: this machine, as the description of a mesh of its cores.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use of_diag::Diagnostics;
use of_driver::io_error;
use of_driver::mesh_measurement;
use of_sharding::{CacheLevel, MeshSpec};

use crate::console::Console;

/// Flags.
#[derive(Args, Debug)]
pub struct Measure {
    /// Ranks along each axis of the mesh, such as cpu[4] or cpu[2x2]
    #[arg(long, value_name = "MESH", default_value = "cpu[2]")]
    pub mesh: String,
    /// Output file of the description [default: stdout]
    #[arg(short, long, value_name = "FILE.toml")]
    pub output: Option<PathBuf>,
}

/// Executes the subcommand.
///
/// # Errors
/// When kernels cannot be compiled or executed, or the file cannot be written.
pub fn measure(c: &Measure, console: &Console) -> Result<(), Diagnostics> {
    let text = describe(&mesh_measurement::measure(&c.mesh, console)?);
    match &c.output {
        Some(path) => of_files::write(path, text).map_err(|e| io_error(path, "written", &e).into()),
        None => console.print(&text),
    }
}

/// The description as text of a mesh file.
fn describe(mesh: &MeshSpec) -> String {
    let mut out = String::from("# Measured by of-opt measure.\n");
    let _ = writeln!(out, "device = \"{}\"", mesh.device);
    let _ = writeln!(out, "memory = {:e}", mesh.memory);
    let _ = writeln!(out, "bandwidth = {:.3e}", mesh.bandwidth);
    let _ = writeln!(out, "cache = [{}]", bandwidths(&mesh.caches));
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
        let _ = writeln!(out, "cache = [{}]", bandwidths(&axis.cache));
    }
    out
}

/// A list of bandwidths by number of bytes.
fn bandwidths(list: &[CacheLevel]) -> String {
    let near = |n: &CacheLevel| format!("\n  {{ bytes = {:e}, bandwidth = {:.3e} }}", n.bytes, n.bandwidth);
    list.iter().map(near).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_parses_back() {
        let mut mesh = MeshSpec::named("cpu[2x4]").unwrap();
        mesh.overhead = 2.5e-7;
        mesh.caches = vec![CacheLevel { bytes: 1e6, bandwidth: 4e10 }, CacheLevel { bytes: 4e6, bandwidth: 2e10 }];
        mesh.pointwise = Some(3e10);
        mesh.axes[1].cache = vec![CacheLevel { bytes: 65536.0, bandwidth: 1e10 }];
        mesh.cores = Some(2);
        assert_eq!(MeshSpec::parse(&describe(&mesh), "measured").unwrap(), mesh);
    }
}
