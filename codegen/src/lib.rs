//! Code generation: a function of fixed shapes becomes a plan.
//!
//! [`roles`] says what each op is, [`fuse`] groups ops into kernels, [`lower`] makes steps and C text, [`native`]
//! compiles the text, [`memory`] packs the buffers and [`physical`] writes the program. [`compile`] is all of it.

mod backend;
mod beside;
mod compile;
pub mod cuda;
pub mod expand;
pub mod extract;
pub mod fuse;
mod halves;
pub mod lower;
pub mod memory;
pub mod mesh;
pub mod native;
pub mod physical;
pub mod place;
pub mod roles;
pub mod specialize;
pub mod table;

pub use backend::{Backend, Overhead};
pub use compile::{CompileOptions, Compiled, Progress, Summary, compile, compile_mesh};
pub use lower::Target;
pub use lower::transfer::meeting;
pub use mesh::MeshFuncs;
pub use place::{Pin, Placement, Request, place};
