//! Memory, machine code and shared jobs: the only place of the runtime with `unsafe` code.
//!
//! Everything here that touches the memory of a register does so on behalf of an actor that acts: the register tokens
//! give it shared access to what it consumes and exclusive access to what it produces, and the verifier has proven that
//! no other live register overlaps. A session is only made from a plan that verifies.

mod aligned;
mod arena;
mod call;
mod code;
mod event_memory;
#[cfg(target_family = "wasm")]
mod host;
mod job;
#[cfg(not(target_family = "wasm"))]
mod mapped_code;
#[cfg(target_family = "wasm")]
mod modules;
mod published_blocks;
mod scratch;
mod subnormals;

pub use aligned::{AlignedBytes, ExternalBytes};
pub(crate) use arena::{Arena, Buffer};
pub(crate) use call::{DynamicKernel, KernelCall, Memory};
pub(crate) use code::{CodeError, KernelFn};
pub(crate) use event_memory::EventMemory;
#[cfg(target_arch = "x86_64")]
pub(crate) use event_memory::time_stamp;
#[cfg(target_family = "wasm")]
pub(crate) use host::milliseconds;
pub(crate) use job::JobSlot;
#[cfg(not(target_family = "wasm"))]
pub(crate) use mapped_code::CodeMap;
#[cfg(target_family = "wasm")]
pub(crate) use modules::CodeMap;
pub(crate) use published_blocks::PublishedBlocks;
pub(crate) use scratch::Scratch;
pub(crate) use subnormals::Subnormals;
