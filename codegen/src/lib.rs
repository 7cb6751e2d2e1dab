//! Code generation: compiles functions to a plan.
//!
//! [`analysis`] finds the role of each op, [`fuse`] groups ops into kernels, [`lower`] lowers groups to the kernel IR
//! ([`kernel`]) and steps, [`print`](mod@print) prints kernels, [`toolchain`] compiles them, and [`physical`] packs the
//! buffers and assembles the program. [`compile`] runs all of it.

pub mod analysis;
mod backend;
mod compile;
pub mod expand;
pub mod extract;
pub mod fuse;
pub mod isa;
pub mod kernel;
mod limits;
pub mod lower;
pub mod mesh;
pub mod physical;
pub mod place;
pub mod print;
pub mod rewrite;
pub mod specialize;
pub mod toolchain;
mod transfer;
pub mod vendor_libraries;

pub use backend::{Backend, Overhead};
pub use compile::{CompileOptions, Compiled, Progress, Summary, compile, compile_meshes};
pub use isa::{CpuCode, Isa, Language};
pub use limits::Limits;
pub use lower::{NotNative, Target};
pub use mesh::MeshFuncs;
pub use place::{Pin, Placement, Request, place};
pub use transfer::rendezvous;
