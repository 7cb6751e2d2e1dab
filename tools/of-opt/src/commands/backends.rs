//! `of-opt backends`: what can execute ops on this machine.

use std::fmt::Write;

use of_codegen::cuda::nvrtc;
use of_codegen::native::{Isa, Language, isa::ISAS, toolchain};
use of_diag::Diagnostics;

use crate::console::Console;
use crate::driver::BACKENDS;

/// Runs it.
///
/// # Errors
/// When stdout cannot be written.
pub fn backends(console: &mut Console) -> Result<(), Diagnostics> {
    let mut out = String::new();
    let host = Isa::host();
    let compiler = match &*toolchain::identity(Isa::host()) {
        "" => format!(
            "'{}' does not run: plans that are compiled already can run, models cannot be compiled",
            toolchain::program()
        ),
        id => id.to_string(),
    };
    let sets: Vec<&str> = ISAS.iter().filter(|i| i.language == Language::C).map(|i| i.name).collect();
    let _ = writeln!(out, "native      generated kernels for the CPU: fused, vectorised, on all threads");
    let _ = writeln!(out, "            instruction set {} (--isa knows {})", host.name, sets.join(", "));
    let _ = writeln!(out, "            C compiler: {compiler}");
    let gpus: Vec<&str> =
        ISAS.iter().filter(|i| i.language == Language::Cuda && i.features.is_empty()).map(|i| i.name).collect();
    let nvrtc = nvrtc::identity().unwrap_or_else(|e| e.to_string());
    let _ = writeln!(
        out,
        "cuda        whole functions of fixed extents on one GPU (--target cuda:{})",
        gpus.join(", cuda:")
    );
    let _ = writeln!(out, "            compiler: {nvrtc}");
    for b in BACKENDS {
        let _ = writeln!(out, "{:10}  takes what native code does not; 'of-opt compile -v' lists those ops", b.name());
    }
    console.print(&out)
}
