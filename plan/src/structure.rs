//! The structure of a plan: plain data, encoded as protocol buffers. Tags are stable: a field is added with a new tag
//! and none is ever reused.

use crate::{
    BoxingExec, DeclaredCall, ElementType, Exec, Extent, MeshProgram, Phase, ScheduleLoop, Task, Transfer, Variable,
};

/// A whole plan, without the bytes of its weights, kernels and payloads, which have separate sections.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Plan {
    /// The compiler and its inputs.
    #[prost(message, required, tag = "1")]
    pub info: PlanInfo,
    /// Requirements on the machine.
    #[prost(message, required, tag = "2")]
    pub environment: Environment,
    /// Constants, shared by all programs.
    #[prost(message, repeated, tag = "3")]
    pub weights: Vec<Weight>,
    /// Kernels, shared by all programs.
    #[prost(message, repeated, tag = "4")]
    pub code: Vec<KernelCode>,
    /// Entry points, one for each shape variant of the model.
    #[prost(message, repeated, tag = "5")]
    pub programs: Vec<Program>,
    /// Entry points that several ranks run together.
    #[prost(message, repeated, tag = "6")]
    pub meshes: Vec<MeshProgram>,
}

/// The compiler and its inputs. Two builds of the same input give equal values.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PlanInfo {
    /// Version of the compiler.
    #[prost(string, tag = "1")]
    pub compiler_version: String,
    /// Name of the model.
    #[prost(string, tag = "2")]
    pub model: String,
    /// Flags of the compilation that shape the result.
    #[prost(string, repeated, tag = "3")]
    pub flags: Vec<String>,
    /// The files it was compiled from.
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<InputHash>,
    /// The pipeline of passes that the graph went through, as text.
    #[prost(string, tag = "5")]
    pub passes: String,
}

/// The name and content hash of a file that went into the plan.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InputHash {
    /// Name for people, without its folder.
    #[prost(string, tag = "1")]
    pub name: String,
    /// blake3 of its bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub blake3: Vec<u8>,
}

/// Requirements on the machine that runs the plan.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Environment {
    /// Instruction set family: `x86_64`.
    #[prost(string, tag = "1")]
    pub arch: String,
    /// CPU features that the kernels use, by rustc's names: `avx512f`, `fma`.
    #[prost(string, repeated, tag = "2")]
    pub cpu_features: Vec<String>,
    /// Worker threads the plan was tuned for; 0 leaves the choice to the runtime.
    #[prost(uint32, tag = "3")]
    pub threads: u32,
    /// Ranks that take part.
    #[prost(uint32, tag = "4")]
    pub ranks: u32,
    /// CUDA architecture, such as `sm_90`.
    #[prost(string, optional, tag = "5")]
    pub cuda_arch: Option<String>,
    /// Whether kernels for the CPU compute with subnormal numbers, which takes a processor up to a hundred times as long. Without
    /// it they read them and write them as zeros.
    #[prost(bool, tag = "6")]
    pub keep_subnormals: bool,
}

/// A constant. Several weights may name the same bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Weight {
    /// Name for people.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Element type.
    #[prost(enumeration = "ElementType", tag = "2")]
    pub dtype: i32,
    /// Extents.
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
    /// Offset in the weights section.
    #[prost(uint64, tag = "4")]
    pub offset: u64,
    /// Bytes.
    #[prost(uint64, tag = "5")]
    pub len: u64,
}

/// A kernel: position-independent machine code with its constants in one blob.
#[derive(Clone, PartialEq, prost::Message)]
pub struct KernelCode {
    /// Symbol, for people.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Instruction set it was compiled for: `avx512`, `avx2`, `x86-64`.
    #[prost(string, tag = "2")]
    pub isa: String,
    /// Offset in the code section.
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    /// Bytes.
    #[prost(uint64, tag = "4")]
    pub len: u64,
    /// Offset of the entry point inside the blob.
    #[prost(uint64, tag = "5")]
    pub entry: u64,
    /// blake3 of the blob.
    #[prost(bytes = "vec", tag = "6")]
    pub blake3: Vec<u8>,
    /// The calls that it was compiled for. Any other call may access memory outside of its arguments.
    #[prost(message, repeated, tag = "7")]
    pub calls: Vec<DeclaredCall>,
    /// blake3 of the entry, the instruction set and the calls.
    #[prost(bytes = "vec", tag = "8")]
    pub declaration_blake3: Vec<u8>,
}

/// An entry point: a graph of tasks and registers with its memory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Program {
    /// Name: `main`, or the shape variant it serves.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The inputs, in order.
    #[prost(message, repeated, tag = "2")]
    pub inputs: Vec<Port>,
    /// The outputs, in order.
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<Port>,
    /// Threads that own the tasks; the first is the caller's.
    #[prost(message, repeated, tag = "4")]
    pub threads: Vec<ThreadDesc>,
    /// Memory, allocated once at the start.
    #[prost(message, repeated, tag = "5")]
    pub chunks: Vec<Chunk>,
    /// Registers; `registers[i].id == i`.
    #[prost(message, repeated, tag = "6")]
    pub registers: Vec<Register>,
    /// Tasks. The order is topological, and a thread's tasks stand in that thread's preferred order.
    #[prost(message, repeated, tag = "7")]
    pub tasks: Vec<Task>,
    /// Bytes of all chunks together.
    #[prost(uint64, tag = "8")]
    pub peak_bytes: u64,
    /// A proven lower bound for `peak_bytes`: the most bytes that are live at one time, or more where that cannot be reached.
    #[prost(uint64, tag = "9")]
    pub lower_bound_bytes: u64,
    /// Whether a task may start on the next iteration before all tasks have ended the last one. The verifier then proves
    /// memory safety across iterations too.
    #[prost(bool, tag = "10")]
    pub pipelined: bool,
    /// Names of the symbols that extents of objects depend on. The first value of a run whose extents determine a
    /// symbol binds it.
    #[prost(string, repeated, tag = "11")]
    pub symbols: Vec<String>,
    /// Whether it is not an entry point: a task of an earlier program runs it, or the ranks of a mesh do.
    #[prost(bool, tag = "12")]
    pub inner: bool,
    /// Variables, in the order of their offsets. Programs of a plan that have equal variables can share their values.
    #[prost(message, repeated, tag = "13")]
    pub variables: Vec<Variable>,
    /// The phases of a program with microbatches, in the order of their tasks.
    #[prost(message, repeated, tag = "14")]
    pub phases: Vec<Phase>,
    /// The order in which its thread runs the phases.
    #[prost(message, repeated, tag = "15")]
    pub schedule: Vec<ScheduleLoop>,
    /// What passes replaced by what, in order, where the compilation recorded it. It does not change what the program does.
    #[prost(message, repeated, tag = "16")]
    pub rewrites: Vec<Rewrite>,
}

/// An op that a pass replaced or removed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Rewrite {
    /// The pass.
    #[prost(string, tag = "1")]
    pub pass: String,
    /// Its rule or pattern; empty where the pass has only one.
    #[prost(string, tag = "2")]
    pub rule: String,
    /// The op before.
    #[prost(string, tag = "3")]
    pub before: String,
    /// Where that op came from.
    #[prost(string, tag = "4")]
    pub location: String,
    /// The ops in its place; none where it was removed.
    #[prost(string, repeated, tag = "5")]
    pub after: Vec<String>,
}

/// An input or output of a program.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Port {
    /// Name, as the model calls it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Element type; `Unknown` for sequences and optionals.
    #[prost(enumeration = "ElementType", tag = "2")]
    pub dtype: i32,
    /// Extents. An object port may have -1 for an extent that is not known, and none at all for any rank.
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
    /// Whether the value is a runtime-owned object rather than a dense tensor of these very extents.
    #[prost(bool, tag = "4")]
    pub object: bool,
    /// The register that the port's `Feed` task fills or its `Fetch` task reads.
    #[prost(uint32, tag = "5")]
    pub register: u32,
}

/// A thread that owns tasks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ThreadDesc {
    /// Id, the thread part of its tasks' ids.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Kind of device: `cpu`.
    #[prost(string, tag = "2")]
    pub device: String,
    /// Stream of the device.
    #[prost(uint32, tag = "3")]
    pub stream: u32,
    /// Machine (rank) that the thread belongs to.
    #[prost(uint32, tag = "4")]
    pub rank: u32,
}

/// The kind of memory of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum MemoryKind {
    /// Host memory.
    Host = 0,
    /// Pinned host memory, which a device can access directly.
    Pinned = 1,
    /// Device memory.
    Device = 2,
    /// Host memory of the session's variables, which other programs may share.
    Variables = 3,
}

/// A range of memory that is allocated once, at the start.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Chunk {
    /// Id; `chunks[i].id == i`.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// The kind of memory.
    #[prost(enumeration = "MemoryKind", tag = "2")]
    pub memory: i32,
    /// Bytes.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Alignment in bytes, a power of two up to 4096.
    #[prost(uint64, tag = "4")]
    pub align: u64,
}

/// A register: what one task produces and others consume. It has `copies` copies (registers proper), so that its
/// producer can run ahead of its consumers by that many iterations.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Register {
    /// Id, its index in `Program::registers`.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// Logical name: `op/tensor`.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Raw id of the task that produces it.
    #[prost(uint64, tag = "3")]
    pub producer: u64,
    /// Raw ids of the tasks that consume it, each once.
    #[prost(uint64, repeated, tag = "4")]
    pub consumers: Vec<u64>,
    /// How many registers there are (`copies`), at least 1.
    #[prost(uint32, tag = "5")]
    pub copies: u32,
    /// Element type.
    #[prost(enumeration = "ElementType", tag = "6")]
    pub dtype: i32,
    /// Extents. An object's may be -1 where they are not known.
    #[prost(int64, repeated, tag = "7")]
    pub dims: Vec<i64>,
    /// Registers whose memory this one takes over. Its producer must be the last to consume them.
    #[prost(uint32, repeated, tag = "8")]
    pub inplace_of: Vec<u32>,
    /// The storage of the value.
    #[prost(oneof = "Storage", tags = "9, 10, 11")]
    pub storage: Option<Storage>,
    /// Extents of an object as functions of the program's symbols; none where they are not known.
    #[prost(message, repeated, tag = "12")]
    pub extents: Vec<Extent>,
}

/// The storage of a register's value.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Storage {
    /// At a fixed offset in a chunk.
    #[prost(message, tag = "9")]
    Block(Block),
    /// In a value that the runtime owns: a tensor of dynamic shape, strings, a sequence, an optional.
    #[prost(message, tag = "10")]
    Object(ObjectStorage),
    /// Nowhere: the register is a control edge.
    #[prost(message, tag = "11")]
    Control(ControlStorage),
}

/// A fixed location in a chunk. Copy `k` of `copies` starts at `offset + k * stride`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Block {
    /// Chunk.
    #[prost(uint32, tag = "1")]
    pub chunk: u32,
    /// Offset of the first register in the chunk.
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// Bytes of one register; at least what its dtype and dims need.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// First position in `Program::tasks` at which the block is live.
    #[prost(uint32, tag = "4")]
    pub first: u32,
    /// Last position in `Program::tasks` at which the block is live.
    #[prost(uint32, tag = "5")]
    pub last: u32,
}

/// A runtime-owned value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct ObjectStorage {}

/// A control edge.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct ControlStorage {}

impl Program {
    /// The chunk of the variables, where there are any.
    pub fn variable_chunk(&self) -> Option<&Chunk> {
        self.chunks.iter().find(|chunk| chunk.is_of_variables())
    }

    /// The index of the variable that a register is the value of.
    pub fn variable_of(&self, register: &Register) -> Option<usize> {
        let block = register.block().filter(|block| self.is_of_variables(block))?;
        self.variables.binary_search_by_key(&block.offset, |variable| variable.offset).ok()
    }

    /// The indexes of the variables that a task gives their next values.
    pub fn variables_written<'a>(&'a self, task: &'a Task) -> impl Iterator<Item = usize> + 'a {
        let produced = task.produces.iter().filter(|_| task.exec.is_some());
        produced.filter_map(|&id| self.variable_of(self.registers.get(id as usize)?))
    }

    fn is_of_variables(&self, block: &Block) -> bool {
        self.chunks.get(block.chunk as usize).is_some_and(Chunk::is_of_variables)
    }

    /// The transfers in which a task takes part, in the order of their numbers, each with its element type.
    pub fn transfers<'a>(&'a self, task: &'a Task) -> impl Iterator<Item = (&'a Transfer, ElementType)> + 'a {
        let (own, of_backend) = match &task.exec {
            Some(Exec::Boxing(exec)) => (Some(exec), &[][..]),
            Some(Exec::Backend(exec)) => (None, &exec.rendezvous[..]),
            _ => (None, &[][..]),
        };
        let dtype = |dst: u32| self.registers.get(dst as usize).map_or(ElementType::Unknown, Register::dtype);
        let own = own.into_iter().flat_map(BoxingExec::transfers).map(move |(transfer, _, dst)| (transfer, dtype(dst)));
        own.chain(of_backend.iter().map(|m| (&m.transfer, m.dtype())))
    }
}

impl Block {
    /// Distance between two registers of the same block.
    pub fn stride(&self) -> u64 {
        self.bytes.saturating_add(crate::VALUE_ALIGN - 1) & !(crate::VALUE_ALIGN - 1)
    }

    /// Bytes from the first register's first byte to the last one's last.
    pub fn extent(&self, num: u32) -> u64 {
        self.stride().saturating_mul(u64::from(num.saturating_sub(1))).saturating_add(self.bytes)
    }
}

impl Register {
    /// The block, for registers that have one.
    pub fn block(&self) -> Option<&Block> {
        match &self.storage {
            Some(Storage::Block(block)) => Some(block),
            _ => None,
        }
    }

    /// Whether the value is a runtime-owned object.
    pub fn is_object(&self) -> bool {
        matches!(self.storage, Some(Storage::Object(_)))
    }

    /// Whether the register is a control edge.
    pub fn is_control(&self) -> bool {
        matches!(self.storage, Some(Storage::Control(_)))
    }
}

impl Chunk {
    /// Whether it is the chunk of the variables.
    pub fn is_of_variables(&self) -> bool {
        self.memory == MemoryKind::Variables as i32
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// A program as readers of before there were rewrites know it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Earlier {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(bool, tag = "12")]
        inner: bool,
    }

    #[test]
    fn rewrites_change_nothing_for_other_readers() {
        let rewrite = Rewrite { pass: "cse".into(), before: "of.add".into(), ..Rewrite::default() };
        let program = Program { name: "main".into(), inner: true, rewrites: vec![rewrite], ..Program::default() };
        let earlier = Earlier::decode(&*program.encode_to_vec()).unwrap();
        assert_eq!(earlier, Earlier { name: "main".into(), inner: true });
        let read = Program::decode(&*earlier.encode_to_vec()).unwrap();
        assert_eq!(read, Program { rewrites: Vec::new(), ..program });
    }
}
