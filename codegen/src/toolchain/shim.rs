//! The C++ compiler for the emulated GPU.

use std::sync::LazyLock;

use crate::isa::{Isa, SHIM};
use crate::toolchain;

/// Flags of the C++ compiler beside those of every kernel.
pub const FLAGS: &[&str] = &["-std=gnu++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-x", "c++"];

/// The emulated GPU, where this machine can compile for it and run it; else why not, for tests to say.
///
/// # Errors
/// Why there is none.
pub fn isa() -> Result<&'static Isa, String> {
    let isa = Isa::by_name(SHIM).filter(|i| i.arch == std::env::consts::ARCH);
    let isa = isa.ok_or("the emulated GPU needs an x86-64 machine")?;
    if toolchain::identity(isa).is_empty() {
        return Err(format!("there is no C++ compiler '{}' for the emulated GPU", program()));
    }
    Ok(isa)
}

/// The C++ compiler: `$CXX`, else `c++`.
pub fn program() -> &'static str {
    static PROGRAM: LazyLock<String> =
        LazyLock::new(|| std::env::var("CXX").ok().filter(|s| !s.trim().is_empty()).unwrap_or_else(|| "c++".into()));
    &PROGRAM
}
