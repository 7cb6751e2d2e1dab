//! The Plan: the serialized program that the runtime executes, with all decisions already made.
//!
//! A plan is plain data. The compiler fills a [`PlanBuilder`] and writes a file; the runtime opens it as a
//! [`PlanFile`], which maps the file, verifies every checksum and bounds-checks every range before it hands out
//! anything. Weights are read from the mapped file, or from the builder of a plan in memory, and not copied. Plans of a process
//! can share those that are equal. The same data always gives the same bytes:
//! a plan has no timestamps, and every list keeps the order in which it was filled.
//!
//! A plan holds one or more [`Program`]s (one for each shape variant of a model), which share weights and kernel code.
//! A program is a graph of [`Task`]s (actors) joined by [`Register`]s (registers: buffers or values with one producer and
//! any number of consumers). [`verify()`] proves before the run that the register tokens cannot deadlock and that two
//! registers that share memory are never live at the same time.
//!
//! A program may have [`Phase`]s, some of which run once in each microbatch of a step, in the order of its [`ScheduleLoop`]s.
//!
//! A program may have [`Variable`]s: values that a session keeps between runs. They are updated in place.
//!
//! A [`MeshProgram`] is an entry point that several ranks run together: each runs a program on its own parts of the
//! tensors and exchanges data with other ranks at a [`Transfer`], which is a rendezvous. Ranks with equal programs
//! share one, their template.

#![deny(unsafe_code)]

mod all_reduce;
mod blobs;
mod builder;
mod checksum;
mod collective;
mod control_edges;
#[allow(unsafe_code, reason = "a system call that the standard library does not have")]
pub mod cpu;
mod declared_call;
#[cfg(feature = "describe")]
mod describe;
mod dtype;
mod error;
mod exit_condition;
mod extent;
mod file;
mod find;
mod format;
mod fused_sends;
mod kernel_calls;
mod largest_values;
mod layout;
mod leaves;
#[allow(unsafe_code, reason = "mapping a file is unsafe: another process can change the file")]
mod mapped_bytes;
mod mesh;
pub mod packing;
#[cfg_attr(target_family = "wasm", allow(unsafe_code, reason = "memory of the allocator by its address"))]
pub mod pages;
mod parts;
mod phases;
mod ranges;
mod rank_part;
mod rates;
mod structure;
mod task;
mod task_graph;
mod task_id;
mod transfer;
mod variable;
mod verify;
mod write;

pub use all_reduce::AllReduce;
pub use builder::PlanBuilder;
pub use collective::{BufferOffset, Collective, CollectiveCall, StridedCopy};
pub use control_edges::{chain_around_transfers, chain_threads, order_reuse};
pub use declared_call::{DeclaredArg, DeclaredCall};
#[cfg(feature = "describe")]
pub use describe::{Description, describe, json, layout_text, text, transfer_text};
pub use dtype::ElementType;
pub use error::{BuildError, OpenError, WriteError};
pub use exit_condition::ExitCondition;
pub use extent::{Call, Extent, ExtentFn, Factor, Solution, Term};
pub use file::PlanFile;
pub use find::{FindError, InputDims};
pub use format::{FORMAT_VERSION, MAGIC, SECTION_ALIGN, SectionKind, VALUE_ALIGN};
pub use fused_sends::{FusedSends, PackedBlock};
pub use largest_values::{LargeValue, binary_size, largest_values};
pub use layout::{AxisLayout, LayoutKind, OPEN, block, coords, holds, partial_kind, slices};
pub use mapped_bytes::zeroed_pages;
pub use mesh::{MeshPort, MeshProgram, Microbatches, Rank, WeightOverride, parts};
pub use of_files::release;
pub use phases::{Phase, ScheduleLoop};
pub use rank_part::weights_of;
pub use rates::Rates;
pub use structure::{
    Block, Chunk, ControlStorage, Environment, InputHash, KernelCode, MemoryKind, ObjectStorage, Plan, PlanInfo, Port,
    Program, Register, Rewrite, Storage, ThreadDesc, Weight,
};
pub use task::{
    Arg, ArgSource, BackendExec, BackendTransfer, BodyExec, BoxingExec, ConcatExec, ConcatPart, ControlExec,
    ControlKind, CopyExec, Exec, FusedTransfer, KernelExec, PortExec, Reread, Task, TaskKind, View,
};
pub use task_graph::TaskGraph;
pub use task_id::TaskId;
pub use transfer::{BlockTransfer, Group, Runs, Transfer};
pub use variable::{Initial, Variable, Zeros, have_same_places};
pub use verify::{Finding, FindingKind, overlapping_blocks, verify};
#[doc(hidden)]
pub use write::with_structure;
