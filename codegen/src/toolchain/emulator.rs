//! The C++ compiler for the emulated GPU.

use std::sync::LazyLock;

use crate::isa::{CUDA_EMULATED, Isa, Language};
use crate::toolchain;

/// Additional flags of the C++ compiler.
pub const FLAGS: &[&str] = &["-std=gnu++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-x", "c++"];

/// The emulated GPU, if this machine can compile for it and run it; tests report the reason otherwise.
///
/// # Errors
/// The reason why it is unavailable.
pub fn isa() -> Result<&'static Isa, String> {
    let isa = Isa::by_name(CUDA_EMULATED).filter(|i| i.arch == std::env::consts::ARCH);
    let isa = isa.ok_or("the emulated GPU needs an x86-64 machine")?;
    static COMPILES: LazyLock<bool> = LazyLock::new(|| toolchain::Program::find(Language::CudaEmulated).is_ok());
    if !*COMPILES {
        let program = toolchain::spelled(Language::CudaEmulated);
        return Err(format!("there is no C++ compiler '{program}' for the emulated GPU"));
    }
    Ok(isa)
}
