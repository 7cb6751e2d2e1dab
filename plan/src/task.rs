//! Tasks: what an actor does each time it acts.

use crate::{ElementType, Extent, LayoutKind, TaskId, Transfer};

/// How a task consumes and produces. All kinds share one actor loop. They differ in how many values of its registers an act works on
/// ([`Rates`](crate::Rates)), and an input-wise task need not wait for all of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum TaskKind {
    /// Computes: one iteration of every input gives one iteration of every output.
    Compute = 0,
    /// Moves data, iteration by iteration.
    Copy = 1,
    /// Moves data between layouts on a mesh, iteration by iteration.
    Boxing = 2,
    /// Copies one value of a run to a value of each microbatch. A task that only reads such a value needs no copy: a register of one copy
    /// keeps its value for all acts of its readers. So the compiler makes none of these; a register of several copies needs them.
    Repeat = 3,
    /// Combines the values of all microbatches into one.
    Acc = 4,
    /// Cuts a value into one for each microbatch.
    Unpack = 5,
    /// Passes tokens on and moves no data.
    Tick = 6,
    /// Acts once for each input, in the order in which they arrive, and releases it at once: see [`ConcatExec`].
    InputWise = 7,
    /// Puts the values of all microbatches one after another.
    Pack = 8,
}

impl TaskKind {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            TaskKind::Compute => "compute",
            TaskKind::Copy => "copy",
            TaskKind::Boxing => "boxing",
            TaskKind::Repeat => "repeat",
            TaskKind::Acc => "acc",
            TaskKind::Unpack => "unpack",
            TaskKind::Tick => "tick",
            TaskKind::InputWise => "input-wise",
            TaskKind::Pack => "pack",
        }
    }
}

/// One actor's work.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Task {
    /// Raw [`TaskId`].
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name, unique for people.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The ops it came from.
    #[prost(string, repeated, tag = "3")]
    pub locations: Vec<String>,
    /// Act rule.
    #[prost(enumeration = "TaskKind", tag = "4")]
    pub kind: i32,
    /// Thread that owns it, a `ThreadDesc::id`.
    #[prost(uint32, tag = "5")]
    pub thread: u32,
    /// Registers it waits for, each once, control edges included.
    #[prost(uint32, repeated, tag = "6")]
    pub consumes: Vec<u32>,
    /// Registers it fills, each once, control edges included.
    #[prost(uint32, repeated, tag = "7")]
    pub produces: Vec<u32>,
    /// What it runs; nothing for a pure join.
    #[prost(oneof = "Exec", tags = "8, 9, 10, 11, 12, 13, 14, 15")]
    pub exec: Option<Exec>,
}

impl Task {
    /// The id, taken apart; `None` when it is malformed.
    pub fn task_id(&self) -> Option<TaskId> {
        TaskId::from_raw(self.id)
    }

    /// How many times it acts in an iteration, or in a microbatch: once, or once for each input if it is input-wise.
    pub fn acts_per_iteration(&self) -> u32 {
        match &self.exec {
            Some(Exec::Concat(exec)) => (exec.parts.len() as u32).max(1),
            _ => 1,
        }
    }

    /// For an input-wise task, the index in [`ConcatExec::parts`] of the part that an input is; `None` for control edges and for all
    /// inputs of other tasks.
    pub fn part_of(&self, register: u32) -> Option<usize> {
        let Some(Exec::Concat(exec)) = &self.exec else { return None };
        exec.parts.iter().position(|part| part.src.register_id() == Some(register))
    }

    /// Whether it is a transfer that is under way while its rank goes on with other tasks.
    pub fn is_async_transfer(&self) -> bool {
        matches!(&self.exec, Some(Exec::Boxing(exec)) if exec.is_async)
    }

    /// Whether it is a transfer for which its rank waits for others.
    pub(crate) fn waits_for_others(&self) -> bool {
        matches!(&self.exec, Some(Exec::Boxing(exec)) if !exec.transfer.is_local())
    }
}

/// What a task runs.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Exec {
    /// A kernel of the plan's code section.
    #[prost(message, tag = "8")]
    Kernel(KernelExec),
    /// An executable that a backend loads.
    #[prost(message, tag = "9")]
    Backend(BackendExec),
    /// A copy between buffers or objects.
    #[prost(message, tag = "10")]
    Copy(CopyExec),
    /// Takes the caller's value of an input port into the register that the task produces.
    #[prost(message, tag = "11")]
    Feed(PortExec),
    /// Gives the register that the task consumes to the caller as an output port's value.
    #[prost(message, tag = "12")]
    Fetch(PortExec),
    /// Runs other programs of the plan: a branch or a loop.
    #[prost(message, tag = "13")]
    Control(ControlExec),
    /// Takes part in a transfer between ranks.
    #[prost(message, tag = "14")]
    Boxing(BoxingExec),
    /// Copies each input to its part of the output: the work of an input-wise task.
    #[prost(message, tag = "15")]
    Concat(ConcatExec),
}

/// Copies each input of an input-wise task to its part of one output, one input in an act. Parts do not overlap and are the whole
/// output, so its value does not depend on the order in which inputs arrive. A sum of floats would depend on it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ConcatExec {
    /// The parts: one for each register that the task consumes, control edges aside.
    #[prost(message, repeated, tag = "1")]
    pub parts: Vec<ConcatPart>,
    /// The register that they form.
    #[prost(uint32, tag = "2")]
    pub dst: u32,
}

/// A part of the output of an input-wise task.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ConcatPart {
    /// The input.
    #[prost(message, required, tag = "1")]
    pub src: Arg,
    /// Where it begins in the output: bytes.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// Number of bytes.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
}

/// A rank's part of a transfer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BoxingExec {
    /// What is transferred.
    #[prost(message, required, tag = "1")]
    pub transfer: Transfer,
    /// The rank's part before.
    #[prost(message, required, tag = "2")]
    pub src: Arg,
    /// The register that gets its part after, whose element type is that of both.
    #[prost(uint32, tag = "3")]
    pub dst: u32,
    /// Whether the rank goes on with other tasks while data is under way. Then the transfer ends when its readers need it.
    #[prost(bool, tag = "4")]
    pub is_async: bool,
    /// Further transfers of the same rendezvous, whose number is that of `transfer`: small ones, of which each would wait as long as all of
    /// them. They have the same axes, layouts and element type, and ascending numbers.
    #[prost(message, repeated, tag = "5")]
    pub fused: Vec<FusedTransfer>,
    /// The register of the bytes that are sent, where there are further transfers ([`FusedSends`](crate::FusedSends)).
    #[prost(uint32, optional, tag = "6")]
    pub staging: Option<u32>,
}

/// A further transfer of a rendezvous.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FusedTransfer {
    /// What is transferred.
    #[prost(message, required, tag = "1")]
    pub transfer: Transfer,
    /// The rank's part before.
    #[prost(message, required, tag = "2")]
    pub src: Arg,
    /// The register that gets its part after.
    #[prost(uint32, tag = "3")]
    pub dst: u32,
}

impl BoxingExec {
    /// The transfers of the rendezvous in the order of their numbers, each with the rank's part before and the register of that after.
    pub fn transfers(&self) -> impl Iterator<Item = (&Transfer, &Arg, u32)> {
        let further = self.fused.iter().map(|own| (&own.transfer, &own.src, own.dst));
        std::iter::once((&self.transfer, &self.src, self.dst)).chain(further)
    }
}

/// Kinds of control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ControlKind {
    /// The first program if the first operand is true, else the second.
    If = 0,
    /// The program as long as the condition holds. Operands: most iterations, first condition, carried values. The
    /// program's own inputs: number of the iteration, condition, carried values; its outputs: next condition, next
    /// carried values, one slice of each stack. The task's outputs: last carried values, stacks.
    Loop = 1,
}

/// A call of other programs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ControlExec {
    /// How they are run.
    #[prost(enumeration = "ControlKind", tag = "1")]
    pub kind: i32,
    /// The operands that are given, then what the programs capture.
    #[prost(message, repeated, tag = "2")]
    pub inputs: Vec<Arg>,
    /// For each operand, whether it is given.
    #[prost(bool, repeated, tag = "3")]
    pub given: Vec<bool>,
    /// The programs.
    #[prost(message, repeated, tag = "4")]
    pub bodies: Vec<BodyExec>,
    /// Registers it fills.
    #[prost(uint32, repeated, tag = "5")]
    pub outputs: Vec<u32>,
}

/// A program that a task runs.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct BodyExec {
    /// Index in `Plan::programs`, after the program of the task.
    #[prost(uint32, tag = "1")]
    pub program: u32,
    /// Which of the task's inputs are the program's last inputs.
    #[prost(uint32, repeated, tag = "2")]
    pub captures: Vec<u32>,
}

/// A kernel call: `fn(args: *const *mut u8, begin: i64, end: i64, scratch: *mut u8) -> i32`, which runs the iterations
/// `[begin, end)` of the kernel's outermost loop and returns 0, or the number of an error. Iterations may run in
/// any order and at the same time.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KernelExec {
    /// Index in `Plan::code`.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    /// Buffers, in the order that the kernel expects.
    #[prost(message, repeated, tag = "2")]
    pub args: Vec<Arg>,
    /// Iterations of the outermost loop.
    #[prost(int64, tag = "3")]
    pub iterations: i64,
    /// The fewest iterations worth handing to a worker; the parts are multiples of it. 0 counts as 1.
    #[prost(int64, tag = "4")]
    pub grain: i64,
    /// Scratch memory of each worker.
    #[prost(uint64, tag = "5")]
    pub scratch_bytes: u64,
    /// Floating-point operations, for people and for the simulator.
    #[prost(uint64, tag = "6")]
    pub flops: u64,
    /// Bytes moved, for people and for the simulator.
    #[prost(uint64, tag = "7")]
    pub bytes: u64,
    /// Iterations as a function of the program's symbols, where they or an argument are only known during the run. The
    /// kernel then gets the table of the symbols' values as a further argument, and objects as their bytes.
    #[prost(message, optional, tag = "8")]
    pub dynamic: Option<Extent>,
    /// How many of `flops` are operations on elements one by one, which take longer than those of a product.
    #[prost(uint64, tag = "9")]
    pub pointwise: u64,
    /// Operands that are read repeatedly and exceed the second-level cache.
    #[prost(message, optional, tag = "10")]
    pub reread: Option<Reread>,
}

/// Repeated reads of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Reread {
    /// Bytes read again, in addition to the first read of each.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// Reuse distance: bytes read before the same bytes are read again.
    #[prost(uint64, tag = "2")]
    pub distance: u64,
}

/// A call of an executable that a backend loads from payload bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BackendExec {
    /// Name of the backend.
    #[prost(string, tag = "1")]
    pub backend: String,
    /// Offset in the payload section.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// Bytes of the payload.
    #[prost(uint64, tag = "3")]
    pub len: u64,
    /// Inputs, in the order that the executable expects.
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<Arg>,
    /// Registers it fills, in the order that the executable expects.
    #[prost(uint32, repeated, tag = "5")]
    pub outputs: Vec<u32>,
    /// Floating-point operations, for people and for the simulator.
    #[prost(uint64, tag = "6")]
    pub flops: u64,
    /// Bytes moved, for people and for the simulator.
    #[prost(uint64, tag = "7")]
    pub bytes: u64,
    /// Transfers that the executable performs itself, in the order of their numbers.
    #[prost(message, repeated, tag = "8")]
    pub rendezvous: Vec<BackendTransfer>,
}

/// A rendezvous: a transfer that an executable performs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BackendTransfer {
    /// What is transferred.
    #[prost(message, required, tag = "1")]
    pub transfer: Transfer,
    /// The type of its elements.
    #[prost(enumeration = "ElementType", tag = "2")]
    pub dtype: i32,
}

/// A copy. Between two objects the value is cloned and `bytes` is 0.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CopyExec {
    /// The source.
    #[prost(message, required, tag = "1")]
    pub src: Arg,
    /// The destination.
    #[prost(message, required, tag = "2")]
    pub dst: Arg,
    /// Number of bytes.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// How far the source moves in each microbatch: bytes.
    #[prost(uint64, tag = "4")]
    pub src_step: u64,
    /// How far the destination moves in each microbatch: bytes.
    #[prost(uint64, tag = "5")]
    pub dst_step: u64,
    /// How the values of later microbatches combine with what is in the destination; `Broadcast` overwrites it.
    #[prost(enumeration = "LayoutKind", tag = "6")]
    pub combine: i32,
}

/// A feed or a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct PortExec {
    /// Index of the port in the program's inputs or outputs.
    #[prost(uint32, tag = "1")]
    pub port: u32,
}

/// A buffer that a task reads or writes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Arg {
    /// The register or weight that contains it.
    #[prost(oneof = "ArgSource", tags = "1, 2")]
    pub source: Option<ArgSource>,
    /// Offset from the start of the register or weight.
    #[prost(uint64, tag = "3")]
    pub byte_offset: u64,
    /// The type under which an executable sees it, where that is not the register's or weight's own.
    #[prost(message, optional, tag = "4")]
    pub view: Option<View>,
}

/// What contains a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Oneof)]
pub enum ArgSource {
    /// A register, by id.
    #[prost(uint32, tag = "1")]
    Register(u32),
    /// A weight, by index.
    #[prost(uint32, tag = "2")]
    Weight(u32),
}

/// A tensor type given to part of a register or weight: a reshape, a slice of the outermost extent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct View {
    /// Element type.
    #[prost(enumeration = "ElementType", tag = "1")]
    pub dtype: i32,
    /// Extents.
    #[prost(int64, repeated, tag = "2")]
    pub dims: Vec<i64>,
}

impl Arg {
    /// A buffer in a register.
    pub fn register(id: u32, byte_offset: u64) -> Self {
        Self { source: Some(ArgSource::Register(id)), byte_offset, view: None }
    }

    /// A buffer in a weight.
    pub fn weight(index: u32, byte_offset: u64) -> Self {
        Self { source: Some(ArgSource::Weight(index)), byte_offset, view: None }
    }

    /// The register that contains it, if one does.
    pub fn register_id(&self) -> Option<u32> {
        match self.source {
            Some(ArgSource::Register(id)) => Some(id),
            _ => None,
        }
    }

    /// The same buffer under another type.
    pub fn with_view(mut self, dtype: ElementType, dims: Vec<i64>) -> Self {
        self.view = Some(View { dtype: dtype as i32, dims });
        self
    }
}
