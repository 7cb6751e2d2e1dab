//! The emulated GPU: what its header needs of the machine, and what its statuses mean.

use std::sync::LazyLock;

use crate::native::isa::SHIM;
use crate::native::{Isa, toolchain};

/// The header that stands before a kernel's text.
pub const HEADER: &str = include_str!("shim.h");

/// Scratch memory of a worker: the stacks of a block's threads and room to align them, shared memory, the block.
pub const SCRATCH: u64 = (256 + 1) * (16 << 10) + (48 << 10) + (32 << 10);

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
