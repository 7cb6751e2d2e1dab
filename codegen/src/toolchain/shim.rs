//! The C++ compiler for the emulated GPU.

use std::sync::{LazyLock, OnceLock};

use crate::isa::{Isa, SHIM};
use crate::toolchain::version;

/// Additional flags of the C++ compiler.
pub const FLAGS: &[&str] = &["-std=gnu++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-x", "c++"];

/// The emulated GPU, if this machine can compile for it and run it; tests report the reason otherwise.
///
/// # Errors
/// The reason why it is unavailable.
pub fn isa() -> Result<&'static Isa, String> {
    let isa = Isa::by_name(SHIM).filter(|i| i.arch == std::env::consts::ARCH);
    let isa = isa.ok_or("the emulated GPU needs an x86-64 machine")?;
    if identity().is_empty() {
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

/// The version of that compiler; empty if there is none.
pub fn identity() -> String {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| version::of(program())).clone()
}
