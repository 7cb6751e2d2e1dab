//! What tests need that not every machine has; where it is missing, what was not tested is said.

use std::io::Write;

use of_codegen::Isa;

/// The GPU that the CPU emulates, where it can.
pub fn emulated_gpu() -> Option<&'static Isa> {
    of_codegen::toolchain::shim::isa().inspect_err(|why| say(why)).ok()
}

/// Whether kernels can be compiled for GPUs.
#[allow(dead_code, reason = "not every test file compiles for GPUs")]
pub fn nvrtc() -> bool {
    let what = "no kernel was compiled for a GPU, 'cargo xtask cuda-toolkit' installs NVRTC";
    of_codegen::toolchain::nvrtc::identity().inspect_err(|why| say(&format!("{what} ({why})"))).is_ok()
}

/// Past the capture of the test runner.
fn say(why: &str) {
    std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
}
