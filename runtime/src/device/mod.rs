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
mod job;
mod published_blocks;
mod scratch;
mod subnormals;

pub use aligned::{AlignedBytes, ExternalBytes};
pub(crate) use arena::{Arena, Buffer};
pub(crate) use call::{DynamicKernel, KernelCall, Memory};
pub(crate) use code::{CodeError, CodeMap};
pub(crate) use event_memory::EventMemory;
#[cfg(target_arch = "x86_64")]
pub(crate) use event_memory::time_stamp;
pub(crate) use job::JobSlot;
pub(crate) use published_blocks::PublishedBlocks;
pub(crate) use scratch::Scratch;
pub(crate) use subnormals::Subnormals;
