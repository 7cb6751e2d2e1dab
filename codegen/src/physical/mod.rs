//! The physical graph: steps in execution order over buffers, and its translation to a program of the plan.
//!
//! Lowering produces a [`StepGraph`]; [`StepGraph::assemble`] finds lifetimes, packs the memory, and writes tasks, registers and
//! control edges. This module is independent of ops.

mod assemble;
pub mod async_order;
mod fused_transfers;
pub mod memory;
mod overlap;
mod phases;
mod variables;

use std::sync::Arc;

use of_ir::{DType, Dim};
use of_plan::{Arg, BackendTransfer, ControlKind, ElementType, Initial, LayoutKind, Reread, Transfer};

use crate::kernel::extent::Extent;
pub use fused_transfers::FusedStep;
pub(crate) use fused_transfers::fuse_transfers;
pub use phases::{PhaseRange, PhaseSteps};
pub(crate) use variables::VariableLayout;

/// Buffers start at multiples of this many bytes.
pub const ALIGN: u64 = 64;

/// A buffer or a runtime-owned object.
#[derive(Clone, Debug)]
pub struct BufferSlot {
    /// Logical name, `op/tensor`.
    pub name: String,
    /// Element type; `None` for sequences and optionals.
    pub dtype: Option<DType>,
    /// Extents; -1 where unknown.
    pub dims: Vec<i64>,
    /// Bytes of a buffer; `None` for an object.
    pub bytes: Option<u64>,
    /// Extents of an object as functions of the symbols; empty where unknown.
    pub extents: Vec<Dim>,
    /// The variable whose memory it is in, by index.
    pub variable: Option<usize>,
}

/// The buffer of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BufferRef {
    /// In a slot, by index.
    Slot(usize),
    /// In a weight of the plan, by index.
    Weight(u32),
}

/// An operand: a buffer, an offset, and the type of a view if it differs from the slot's.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    /// Its buffer.
    pub buffer: BufferRef,
    /// Offset in bytes.
    pub offset: u64,
    /// The type of the view.
    pub view: Option<(DType, Vec<i64>)>,
}

impl Operand {
    /// An operand that covers all of `buffer`.
    pub fn whole(buffer: BufferRef) -> Self {
        Operand { buffer, offset: 0, view: None }
    }

    fn slot(&self) -> Option<usize> {
        match self.buffer {
            BufferRef::Slot(s) => Some(s),
            BufferRef::Weight(_) => None,
        }
    }

    fn arg(&self) -> Arg {
        let arg = match self.buffer {
            BufferRef::Slot(s) => Arg::register(s as u32, self.offset),
            BufferRef::Weight(w) => Arg::weight(w, self.offset),
        };
        match &self.view {
            Some((dtype, dims)) => arg.with_view(element_type(*dtype), dims.clone()),
            None => arg,
        }
    }
}

/// A region that a step runs.
#[derive(Clone, Debug)]
pub struct RegionCall {
    /// Index among the inner programs; in the plan once they are added.
    pub program: usize,
    /// The inputs of the step that the region captures, in the order of its program's inputs after its arguments.
    pub captures: Vec<u32>,
}

/// The work of a step.
#[derive(Clone, Debug)]
pub enum StepKind {
    /// A kernel of the plan.
    Kernel {
        /// Index in the plan's code.
        code: u32,
        /// Buffers in the kernel's order, reads and writes.
        args: Vec<Operand>,
        /// Slots that it writes.
        writes: Vec<usize>,
        /// Whether it reads the values of symbols.
        symbols: bool,
        /// Iterations of the outer loop, the minimum for a worker, and each worker's scratch bytes.
        iterations: Extent,
        /// See `iterations`.
        grain: i64,
        /// See `iterations`.
        scratch_bytes: u64,
    },
    /// An executable of a backend.
    Backend {
        /// Name of the backend.
        backend: &'static str,
        /// Offset and length in the payload section.
        payload: (u64, u64),
        /// Operands in order.
        inputs: Vec<Operand>,
        /// Slots in order of the results.
        outputs: Vec<usize>,
        /// Transfers whose share of the rank it executes.
        rendezvous: Vec<BackendTransfer>,
        /// Whether it is asynchronous to the host.
        is_async: bool,
        /// Whether it leaves the next values of variables in the backend's memory.
        keeps_variables: bool,
    },
    /// Control flow.
    Control {
        /// Its kind.
        kind: ControlKind,
        /// The operands that are present, then the captures of the regions.
        inputs: Vec<Operand>,
        /// Which operands are present.
        is_present: Vec<bool>,
        /// The regions.
        region_calls: Vec<RegionCall>,
        /// Slots in order of the results.
        outputs: Vec<usize>,
    },
    /// A copy into a slot.
    Copy {
        /// From.
        src: Operand,
        /// To.
        dst: usize,
    },
    /// A copy in each microbatch.
    Time {
        /// What it copies.
        copy: TimeCopy,
        /// From.
        src: Operand,
        /// To.
        dst: usize,
    },
    /// The share of a rank in a transfer between ranks.
    Boxing {
        /// What is transferred.
        transfer: Transfer,
        /// The rank's part before the transfer.
        src: Operand,
        /// Its part after the transfer.
        dst: usize,
        /// Whether the rank goes on meanwhile.
        is_async: bool,
        /// Further transfers of the same rendezvous.
        fused: Vec<FusedStep>,
        /// The slot of what is sent, where there are further transfers.
        staging: Option<usize>,
    },
    /// Copies the caller's input to a slot.
    Feed {
        /// Index of the input.
        port: u32,
        /// To.
        dst: usize,
    },
    /// Makes the value of a variable available; moves no data.
    Variable {
        /// The slot, which is the variable.
        dst: usize,
    },
    /// Copies a slot to the caller's output.
    Fetch {
        /// Index of the output.
        port: u32,
        /// From.
        src: usize,
    },
}

/// A copy in each microbatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeCopy {
    /// The next so many bytes of the source.
    Unpack {
        /// Bytes of a microbatch.
        bytes: u64,
    },
    /// To the next so many bytes of the destination.
    Pack {
        /// Bytes of a microbatch.
        bytes: u64,
    },
    /// Combines with what is there, after the first.
    Accumulate {
        /// Bytes of a value.
        bytes: u64,
        /// How elements combine.
        kind: LayoutKind,
    },
}

impl TimeCopy {
    /// Whether its destination has one value for all microbatches.
    pub fn collects(&self) -> bool {
        !matches!(self, TimeCopy::Unpack { .. })
    }
}

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// A readable name.
    pub name: String,
    /// The locations of its ops.
    pub locations: Vec<String>,
    /// Its work.
    pub kind: StepKind,
    /// Floating-point operations.
    pub flops: Flops,
    /// Bytes moved.
    pub bytes: u64,
    /// Bytes that a kernel rereads, if they exceed the L2 cache.
    pub reread: Option<Reread>,
    /// Pairs of slots that it reads and writes and that may share memory: it reads an element of the first only to compute the
    /// same element of the second.
    pub in_place: Vec<(usize, usize)>,
}

/// Floating-point operations of a step, by the rate at which a machine runs them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flops {
    /// Multiplications and additions of contractions.
    pub products: u64,
    /// Elementwise operations, and sums of elements.
    pub pointwise: u64,
}

impl Flops {
    /// Operations of a contraction.
    pub fn products(products: u64) -> Self {
        Self { products, pointwise: 0 }
    }

    /// Elementwise operations.
    pub fn pointwise(pointwise: u64) -> Self {
        Self { products: 0, pointwise }
    }

    /// The total.
    pub fn all(self) -> u64 {
        self.products + self.pointwise
    }
}

/// Name, element type and extents of an input or output.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Its name in the model.
    pub name: String,
    /// Element type; `None` for sequences and optionals.
    pub dtype: Option<DType>,
    /// Extents; -1 where unknown.
    pub dims: Vec<i64>,
    /// Whether it is a runtime-owned object.
    pub object: bool,
}

/// A value that a session keeps between runs.
#[derive(Clone, Debug)]
pub struct VariableSpec {
    /// Its name in the model.
    pub name: String,
    /// The slot of its value before the run, which has its type.
    pub slot: usize,
    /// Its next value, which has the same type; `None` where it is only read.
    pub next: Option<Operand>,
    /// Its value in a new session.
    pub initial: Option<Initial>,
}

/// A lowered function.
#[derive(Clone, Debug, Default)]
pub struct StepGraph {
    /// Slots; the index is the register's id.
    pub slots: Vec<BufferSlot>,
    /// Steps in execution order.
    pub steps: Vec<Step>,
    /// Inputs.
    pub inputs: Vec<PortSpec>,
    /// Outputs.
    pub outputs: Vec<PortSpec>,
    /// Variables.
    pub variables: Vec<VariableSpec>,
    /// Symbols that are bound during the run.
    pub symbols: Vec<Arc<str>>,
    /// Whether consecutive transfers may be merged.
    pub merges_collectives: bool,
    /// Phases and their schedule, where some steps run in microbatches.
    pub time: PhaseSteps,
}

impl StepKind {
    /// An executable of a backend that the host waits for, and whose values are in host memory.
    pub(crate) fn host_call(
        backend: &'static str,
        payload: (u64, u64),
        inputs: Vec<Operand>,
        outputs: Vec<usize>,
    ) -> StepKind {
        let (is_async, keeps_variables) = (false, false);
        StepKind::Backend { backend, payload, inputs, outputs, rendezvous: Vec::new(), is_async, keeps_variables }
    }
}

impl Step {
    /// Slots that it reads.
    pub(crate) fn reads(&self) -> Vec<usize> {
        let mut out: Vec<usize> = match &self.kind {
            StepKind::Kernel { args, writes, .. } => {
                args.iter().filter_map(Operand::slot).filter(|s| !writes.contains(s)).collect()
            }
            StepKind::Backend { inputs, .. } | StepKind::Control { inputs, .. } => {
                inputs.iter().filter_map(Operand::slot).collect()
            }
            StepKind::Copy { src, .. } | StepKind::Time { src, .. } => src.slot().into_iter().collect(),
            StepKind::Boxing { .. } => self.boxings().filter_map(|(_, src, _)| src.slot()).collect(),
            StepKind::Fetch { src, .. } => vec![*src],
            StepKind::Feed { .. } | StepKind::Variable { .. } => Vec::new(),
        };
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Slots that it writes.
    pub(crate) fn writes(&self) -> Vec<usize> {
        match &self.kind {
            StepKind::Kernel { writes, .. } => writes.clone(),
            StepKind::Backend { outputs, .. } | StepKind::Control { outputs, .. } => outputs.clone(),
            StepKind::Copy { dst, .. }
            | StepKind::Time { dst, .. }
            | StepKind::Feed { dst, .. }
            | StepKind::Variable { dst } => vec![*dst],
            StepKind::Boxing { staging, .. } => self.boxings().map(|(.., dst)| dst).chain(*staging).collect(),
            StepKind::Fetch { .. } => Vec::new(),
        }
    }
}

/// The plan's element type.
pub fn element_type(dtype: DType) -> ElementType {
    match dtype {
        DType::F64 => ElementType::F64,
        DType::F32 => ElementType::F32,
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::Bf16,
        DType::F8E4M3FN => ElementType::F8E4M3FN,
        DType::F8E4M3FNUZ => ElementType::F8E4M3FNUZ,
        DType::F8E5M2 => ElementType::F8E5M2,
        DType::F8E5M2FNUZ => ElementType::F8E5M2FNUZ,
        DType::F8E8M0FNU => ElementType::F8E8M0FNU,
        DType::F4E2M1FN => ElementType::F4E2M1FN,
        DType::I2 => ElementType::I2,
        DType::I4 => ElementType::I4,
        DType::I8 => ElementType::I8,
        DType::I16 => ElementType::I16,
        DType::I32 => ElementType::I32,
        DType::I64 => ElementType::I64,
        DType::U2 => ElementType::Ui2,
        DType::U4 => ElementType::Ui4,
        DType::U8 => ElementType::Ui8,
        DType::U16 => ElementType::Ui16,
        DType::U32 => ElementType::Ui32,
        DType::U64 => ElementType::Ui64,
        DType::Bool => ElementType::I1,
        DType::String => ElementType::String,
    }
}

/// The inverse of [`element_type`]; `None` for `Unknown`.
pub fn dtype_of(e: ElementType) -> Option<DType> {
    DType::ALL.into_iter().find(|d| element_type(*d) == e)
}
