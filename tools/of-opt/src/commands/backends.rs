//! `of-opt backends`: what can execute ops on this machine.

use std::fmt::Write;

use clap::Args;
use of_codegen::isa::{ISAS, Isa, Language};
use of_codegen::toolchain;
use of_codegen::toolchain::machine;
use of_codegen::toolchain::nvrtc;
use of_diag::Diagnostics;
use of_driver::Backends;
use serde_json::json;

use crate::console::Console;

/// Flags.
#[derive(Args, Debug)]
pub struct BackendsCommand {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// When stdout cannot be written.
pub fn backends(c: &BackendsCommand, console: &Console) -> Result<(), Diagnostics> {
    if c.json {
        return console.print(&as_json());
    }
    let mut out = String::new();
    let host = Isa::host();
    let compiler = toolchain::version(host).unwrap_or_else(|| {
        let without = "kernels that are neither cached nor compiled in process cannot be compiled";
        format!("'{}' does not run: {without}", toolchain::spelled(Language::C))
    });
    let in_process: Vec<&str> = ISAS.iter().filter(|i| machine::covers(i)).map(|i| i.name).collect();
    let sets = sets_of_cpus();
    let _ = writeln!(out, "native      generated kernels for the CPU: fused, vectorised, on all threads");
    let _ = writeln!(out, "            instruction set {} (--isa knows {})", host.name, sets.join(", "));
    let _ = writeln!(out, "            compiled in process for {}; else by the C compiler", in_process.join(", "));
    let _ = writeln!(out, "            C compiler: {compiler}");
    let clang = toolchain::spelled(Language::WebAssembly);
    let _ = writeln!(out, "            WebAssembly (wasm32): compiled by '{clang}'");
    let gpus: Vec<&str> =
        ISAS.iter().filter(|i| i.language == Language::Cuda && i.features.is_empty()).map(|i| i.name).collect();
    let nvrtc = nvrtc::identity().unwrap_or_else(|e| e.to_string());
    let _ = writeln!(
        out,
        "cuda        ops of fixed extents on one GPU (--backend cuda:ARCH, or --target cuda:ARCH for all of a model: {})",
        gpus.join(", ")
    );
    let _ = writeln!(out, "            compiler: {nvrtc}");
    for b in Backends::builtin().compilers() {
        let _ = writeln!(out, "{:10}  {}", b.name(), about(b.name()));
    }
    console.print(&out)
}

/// The instruction sets that --isa knows, but for the emulated GPU.
fn sets_of_cpus() -> Vec<&'static str> {
    ISAS.iter().filter(|i| i.language.is_for_cpus()).map(|i| i.name).collect()
}

fn as_json() -> String {
    let names = |language| ISAS.iter().filter(move |i| i.language == language).map(|i| i.name).collect::<Vec<_>>();
    let backends = Backends::builtin();
    let others: Vec<_> =
        backends.compilers().iter().map(|b| json!({"name": b.name(), "summary": about(b.name())})).collect();
    let host = Isa::host();
    let report = json!({
        "native": {"isa": host.name, "isas": sets_of_cpus(), "compiler": toolchain::version(host)},
        "cuda": {"archs": names(Language::Cuda), "compiler": nvrtc::identity().ok().map(|i| i.to_string())},
        "backends": others,
    });
    format!("{report:#}\n")
}

/// One line about a backend.
fn about(name: &str) -> String {
    match name {
        of_reference::NAME => "takes what native code does not; 'of-opt compile -v' lists those ops".into(),
        of_xla::NAME => match of_xla::plugin::path() {
            None => format!("--backend xla takes what it can; no plugin: {}", of_xla::plugin::HINT),
            Some(path) => match of_xla::plugin::client() {
                Ok(client) => format!(
                    "--backend xla takes what it can; platform {}, PJRT plugin {}",
                    client.platform,
                    path.display()
                ),
                Err(e) => format!("--backend xla compiles, but does not run here: {e}"),
            },
        },
        of_xla::NAME_SERIALIZED => {
            "the same; plans hold programs for this plugin and this machine's instruction set".into()
        }
        of_mlir::NAME if of_mlir::COMPILES => "--backend mlir takes what it can: linalg, as machine code".into(),
        of_mlir::NAME => format!("runs what others compiled; to compile with --backend mlir, {}", of_mlir::HINT),
        of_tensorrt::NAME => match of_tensorrt::c_api() {
            Ok(api) => format!("--backend tensorrt builds engines of what it can; {}", api.version),
            Err(e) => e.to_string(),
        },
        of_tensorrt::NAME_TF32 => "the same, products of f32 with ten bits of mantissa".into(),
        _ => format!("--backend {name} takes what it can"),
    }
}
