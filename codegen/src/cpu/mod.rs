//! Machine code for kernels: C text through the machine's C compiler to a flat blob, cached on disk.

mod cache;
mod compile;
mod exec;
mod flatten;
mod target;
mod toolchain;

pub use cache::Cache;
pub use compile::{Compiler, CpuError};
pub use exec::{ExecError, Loaded};
pub use flatten::{Blob, FlattenError, flatten};
pub use target::Isa;
pub use toolchain::{Toolchain, ToolchainError};
