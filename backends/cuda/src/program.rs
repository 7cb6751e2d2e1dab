//! The program of a device: memory and steps, lowered from a plan.

use std::ops::Range;

use of_codegen::vendor_libraries::{Call, VendorLibrary};
use of_plan::{Arg, ArgSource, BackendTransfer, Exec, PlanFile, Port, Program, Register, Task};
use of_runtime::{RankContext, Readers};

/// Buffers on a device start at multiples of this many bytes.
const ALIGN: u64 = 256;

/// Workspace bytes for libraries: NVIDIA's recommendation for cuBLASLt on its largest GPUs.
pub const WORKSPACE: u64 = 32 << 20;

/// A kernel of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCode<'a> {
    /// A cubin, or code for the CPU that emulates a GPU.
    pub bytes: &'a [u8],
    /// Offset of the entry point in code for a CPU.
    pub entry: u64,
}

/// A step. Positions are offsets in device memory or in the host's staging memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Upload from the host.
    Upload {
        /// Offset in staging memory.
        from: u64,
        /// Offset in device memory.
        to: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Download to the host.
    Download {
        /// Offset in device memory.
        from: u64,
        /// Offset in staging memory.
        to: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Copy from a value that another program keeps on the device.
    CopyIn {
        /// The program's input number.
        input: usize,
        /// Offset in the value.
        from: u64,
        /// Offset in device memory.
        to: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Copy to a value that is kept on the device for other programs.
    CopyOut {
        /// The program's output number.
        output: usize,
        /// Offset in device memory.
        from: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Copy on the device.
    Copy {
        /// Source offset.
        from: u64,
        /// Destination offset.
        to: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// A kernel launch.
    Launch {
        /// The kernel's number.
        kernel: usize,
        /// Its arguments.
        args: Vec<Operand>,
        /// Blocks.
        blocks: i64,
        /// Offset of its status word on the device.
        status: u64,
    },
    /// A library call.
    Call {
        /// Its number among the program's calls.
        number: usize,
        /// The operation.
        call: Call,
        /// Its arguments.
        args: Vec<Operand>,
    },
    /// Shares in transfers between ranks that do not depend on each other.
    Exchange(Vec<Exchange>),
}

/// An argument of a kernel or library call, on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Offset of its first byte.
    pub at: u64,
    /// Offset and bytes of the whole value that contains it.
    pub value: (u64, u64),
    /// Whether the value is written.
    pub written: bool,
}

/// The sources of a program's inputs and the readers of its outputs.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// For each input that another program keeps on the device, its offset in that value. Inputs without an entry come from
    /// the host.
    pub device_inputs: Vec<Option<u64>>,
    /// The readers of each output. Outputs without an entry go to the host.
    pub readers: Vec<Readers>,
}

impl Endpoints {
    /// The offset of an input in a value that is on the device; `None` where it comes from the host.
    fn device_input(&self, input: usize) -> Option<u64> {
        self.device_inputs.get(input).copied().flatten()
    }

    fn readers(&self, output: usize) -> Readers {
        self.readers.get(output).copied().unwrap_or(Readers { inside: false, outside: true })
    }
}

/// Whether two ranges of memory overlap.
pub(crate) fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.1 > 0 && b.1 > 0 && a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

/// The share of a rank in a transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// The transfer.
    pub rendezvous: BackendTransfer,
    /// Offset and bytes of the rank's part before, on the device.
    pub from: (u64, u64),
    /// Offset and bytes of its part after.
    pub to: (u64, u64),
}

impl Exchange {
    /// The reason why it does not match the rank context, if it does not.
    pub(crate) fn check(&self, rank_context: &RankContext) -> Result<(), String> {
        let transfer = &self.rendezvous.transfer;
        transfer.check(&rank_context.mesh)?;
        let (group, element) =
            (transfer.group(&rank_context.mesh, rank_context.rank), u64::from(self.rendezvous.dtype().bits() / 8));
        let bytes = |after| (transfer.elements(&group, group.me, after) as u64).saturating_mul(element);
        let fits = element > 0 && bytes(false) <= self.from.1 && bytes(true) <= self.to.1;
        if fits { Ok(()) } else { Err(format!("transfer {} does not fit into its memory", transfer.id)) }
    }

    /// Whether it may be grouped with others: there is no read-after-write, write-after-read or write-after-write conflict.
    fn is_independent(&self, others: &[Exchange]) -> bool {
        let touch = |o: &Exchange| overlap(self.from, o.to) || overlap(self.to, o.to) || overlap(self.to, o.from);
        !others.iter().any(touch)
    }
}

/// What a device measures of each run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// Nothing.
    #[default]
    Off,
    /// Its steps together, without transfers from and to the host and between ranks.
    Whole,
    /// Each of these steps. Taking the times delays them by about a microsecond each.
    Steps,
}

/// Steps that are measured together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Their indices.
    pub steps: Range<usize>,
    /// What they do.
    pub name: String,
}

/// A program for one device. Only the contents of memory change between runs.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProgram<'a> {
    /// The architecture that its kernels were compiled for.
    pub isa: &'a str,
    /// Bytes of device memory.
    pub memory: u64,
    /// Bytes of staging memory on the host.
    pub staging: u64,
    /// Data on the device before the first run, and its offset.
    pub constants: Vec<(u64, &'a [u8])>,
    /// Kernels.
    pub kernels: Vec<KernelCode<'a>>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Offset and bytes of each input in staging memory.
    pub inputs: Vec<(u64, u64)>,
    /// Offset and bytes of each output in staging memory.
    pub outputs: Vec<(u64, u64)>,
    /// Offsets of the status words on the device and in staging memory, and the names of their kernels.
    pub statuses: (u64, u64),
    /// See `statuses`.
    pub names: Vec<String>,
    /// Offset of [`WORKSPACE`] bytes for libraries on the device, if the program calls any.
    pub workspace: u64,
    /// What is measured in each run, in the order of steps; the spans are disjoint.
    pub spans: Vec<Span>,
}

impl<'a> DeviceProgram<'a> {
    /// The program of a plan that [`crate::Cuda`] made, with these sources of inputs and readers of outputs.
    ///
    /// # Errors
    /// The part of the plan that no device supports.
    pub fn of(plan: &'a PlanFile, ends: &Endpoints) -> Result<DeviceProgram<'a>, String> {
        let program = plan.plan().programs.first().ok_or("the plan has no program")?;
        plan.verify_program(0).map_err(|f| f.first().map_or_else(String::new, ToString::to_string))?;
        let mut out = DeviceProgram {
            isa: plan.plan().info.flags.first().ok_or("the plan names no architecture")?,
            memory: program.chunks.first().map_or(0, |c| c.bytes).next_multiple_of(ALIGN),
            staging: 0,
            constants: Vec::new(),
            kernels: Vec::new(),
            steps: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            statuses: (0, 0),
            names: Vec::new(),
            workspace: 0,
            spans: Vec::new(),
        };
        let weights = out.allocate_weights(plan)?;
        out.read_kernels(plan)?;
        let source = Source { plan, program, ends, weights };
        let launches = program.tasks.iter().filter(|t| matches!(t.exec, Some(Exec::Kernel(_)))).count() as u64;
        out.reserve(&source, launches)?;
        for task in &program.tasks {
            out.push(&source, task).map_err(|why| format!("task '{}' {why}", task.name))?;
        }
        if launches > 0 {
            out.steps.push(Step::Download { from: out.statuses.0, to: out.statuses.1, bytes: 4 * launches });
        }
        out.check()?;
        Ok(out)
    }

    /// Gives each weight device memory. Returns offset and bytes of each.
    fn allocate_weights(&mut self, plan: &'a PlanFile) -> Result<Vec<(u64, u64)>, String> {
        let mut weights = Vec::new();
        for index in 0..plan.plan().weights.len() {
            let bytes = plan.weight(index as u32).ok_or("a weight is outside of the plan")?;
            weights.push((self.memory, bytes.len() as u64));
            self.constants.push((self.memory, bytes));
            self.memory += (bytes.len() as u64).next_multiple_of(ALIGN);
        }
        Ok(weights)
    }

    fn read_kernels(&mut self, plan: &'a PlanFile) -> Result<(), String> {
        for (index, code) in plan.plan().code.iter().enumerate() {
            let bytes = plan.kernel(index as u32).ok_or("a kernel is outside of the plan")?;
            if code.isa != self.isa {
                return Err(format!("a kernel is for {} in a program for {}", code.isa, self.isa));
            }
            if !code.is_hash_of(bytes) {
                return Err(format!("the machine code of kernel `{}` does not match its hash", code.name));
            }
            self.kernels.push(KernelCode { bytes, entry: code.entry });
        }
        Ok(())
    }

    /// Reserves memory for the libraries' workspace, the status words of kernels, and staged inputs and outputs.
    fn reserve(&mut self, source: &Source<'_>, launches: u64) -> Result<(), String> {
        let program = source.program;
        let calls =
            |t: &Task| matches!(&t.exec, Some(Exec::Backend(e)) if VendorLibrary::by_name(&e.backend).is_some());
        if program.tasks.iter().any(calls) {
            self.workspace = self.memory;
            self.memory += WORKSPACE;
        }
        self.statuses.0 = self.memory;
        self.memory += (4 * launches).next_multiple_of(ALIGN);
        // Values that stay on the device need no staging memory.
        let size = |p: &Port, host: bool| source.register(p.register).map(|(_, n)| if host { n } else { 0 });
        let from_host = |i: usize| source.ends.device_input(i).is_none();
        let to_host = |i: usize| source.ends.readers(i).outside;
        self.inputs = self.room(program.inputs.iter().enumerate().map(|(i, p)| size(p, from_host(i))))?;
        self.outputs = self.room(program.outputs.iter().enumerate().map(|(i, p)| size(p, to_host(i))))?;
        self.statuses.1 = self.room(std::iter::once(Some(4 * launches)))?[0].0;
        Ok(())
    }

    /// Adds the steps of a task.
    ///
    /// # Errors
    /// The reason why no device runs it, to follow the task's name.
    fn push(&mut self, source: &Source<'_>, task: &Task) -> Result<(), String> {
        let dynamic = |what: &str| format!("{what} a value that the runtime allocates; a device needs fixed memory");
        match &task.exec {
            None => {}
            Some(Exec::Kernel(k)) if k.dynamic.is_some() => {
                return Err("has extents that are known only during the run; a device needs fixed extents".into());
            }
            Some(Exec::Kernel(k)) => {
                let args = k.args.iter().map(|a| source.operand(task, a)).collect::<Option<_>>();
                let args = args.ok_or_else(|| dynamic("computes with"))?;
                let status = self.statuses.0 + 4 * self.names.len() as u64;
                self.steps.push(Step::Launch { kernel: k.code as usize, args, blocks: k.iterations, status });
                self.names.push(task.name.clone());
            }
            Some(Exec::Copy(c)) => {
                let ends = source.address(&c.src).zip(source.address(&c.dst));
                let (from, to) = ends.ok_or_else(|| dynamic("copies"))?;
                self.steps.push(Step::Copy { from, to, bytes: c.bytes });
            }
            Some(Exec::Feed(p)) => self.push_feed(source, p.port as usize)?,
            Some(Exec::Fetch(p)) => self.push_fetch(source, p.port as usize)?,
            Some(Exec::Backend(e)) => {
                let library = VendorLibrary::by_name(&e.backend).ok_or("runs on the host")?;
                let payload = source.plan.payload(e).ok_or("has no payload")?;
                let call = Call::read(library, payload).map_err(|why| format!("has no library call: {why}"))?;
                let outputs: Vec<Arg> = e.outputs.iter().map(|r| Arg::register(*r, 0)).collect();
                let args = e.inputs.iter().chain(&outputs).map(|a| source.operand(task, a)).collect::<Option<_>>();
                let args = args.ok_or_else(|| dynamic("calls a library with"))?;
                self.steps.push(Step::Call { number: self.calls().count(), call, args });
            }
            Some(Exec::Boxing(e)) if !e.fused.is_empty() => {
                return Err("fuses transfers, which NCCL does itself".into());
            }
            Some(Exec::Boxing(e)) => {
                let ends = source.arg(&e.src).zip(source.register(e.dst));
                let (from, to) = ends.ok_or_else(|| dynamic("transfers"))?;
                let dtype = source.program.registers.get(e.dst as usize).map_or(0, |r| r.dtype);
                let own = Exchange { rendezvous: BackendTransfer { transfer: e.transfer.clone(), dtype }, from, to };
                match self.steps.last_mut() {
                    Some(Step::Exchange(group)) if own.is_independent(group) => group.push(own),
                    _ => self.steps.push(Step::Exchange(vec![own])),
                }
            }
            Some(Exec::Control(_) | Exec::Concat(_)) => return Err("runs on the host".into()),
        }
        Ok(())
    }

    fn push_feed(&mut self, source: &Source<'_>, input: usize) -> Result<(), String> {
        let port = source.program.inputs.get(input).ok_or("has no port")?;
        let (to, bytes) = source.register(port.register).ok_or("feeds no buffer")?;
        match source.ends.device_input(input) {
            Some(from) => self.steps.push(Step::CopyIn { input, from, to, bytes }),
            None if bytes > 0 => self.steps.push(Step::Upload { from: self.inputs[input].0, to, bytes }),
            None => {}
        }
        Ok(())
    }

    fn push_fetch(&mut self, source: &Source<'_>, output: usize) -> Result<(), String> {
        let port = source.program.outputs.get(output).ok_or("has no port")?;
        let (from, bytes) = source.register(port.register).ok_or("fetches no buffer")?;
        let readers = source.ends.readers(output);
        if readers.inside {
            self.steps.push(Step::CopyOut { output, from, bytes });
        }
        if readers.outside && bytes > 0 {
            self.steps.push(Step::Download { from, to: self.outputs[output].0, bytes });
        }
        Ok(())
    }

    /// Chooses the spans.
    pub fn measure(&mut self, timing: Timing) {
        let moves = |s: &Step| matches!(s, Step::Upload { .. } | Step::Download { .. } | Step::Exchange(_));
        let mut spans: Vec<Span> = Vec::new();
        for (i, step) in self.steps.iter().enumerate().filter(|(_, step)| !moves(step)) {
            match (timing, spans.last_mut()) {
                (Timing::Off, _) => return,
                (Timing::Whole, Some(last)) if last.steps.end == i => last.steps.end = i + 1,
                (Timing::Whole, _) => spans.push(Span { steps: i..i + 1, name: "steps".into() }),
                (Timing::Steps, _) => spans.push(Span { steps: i..i + 1, name: self.title(step) }),
            }
        }
        self.spans = spans;
    }

    /// What a step does.
    fn title(&self, step: &Step) -> String {
        match step {
            Step::Launch { status, .. } => self.names[((status - self.statuses.0) / 4) as usize].clone(),
            Step::Call { call, .. } => format!("call of {}", call.library().display_name()),
            Step::Upload { .. } => "upload".into(),
            Step::Download { .. } => "download".into(),
            Step::Exchange(_) => "exchange".into(),
            Step::CopyIn { .. } | Step::CopyOut { .. } | Step::Copy { .. } => "copy".into(),
        }
    }

    /// Whether the time is taken right before a step, which begins a span that does not follow another.
    pub fn stamps_before(&self, step: usize) -> bool {
        self.spans.iter().any(|s| s.steps.start == step) && !self.spans.iter().any(|s| s.steps.end == step)
    }

    /// Whether the time is taken right after a step, which ends a span.
    pub fn stamps_after(&self, step: usize) -> bool {
        self.spans.iter().any(|s| s.steps.end == step + 1)
    }

    /// The rank's shares of transfers, in order.
    pub fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.steps.iter().flat_map(|step| match step {
            Step::Exchange(together) => &together[..],
            _ => &[],
        })
    }

    /// Its library calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = (&Call, &[Operand])> {
        self.steps.iter().filter_map(|step| match step {
            Step::Call { call, args, .. } => Some((call, &args[..])),
            _ => None,
        })
    }

    /// The inputs that other programs keep: input number, offset in the value, bytes.
    pub fn copies_in(&self) -> impl Iterator<Item = (usize, u64, u64)> + '_ {
        self.steps.iter().filter_map(|step| match *step {
            Step::CopyIn { input, from, bytes, .. } => Some((input, from, bytes)),
            _ => None,
        })
    }

    /// The outputs that it keeps for other programs: output number, bytes.
    pub fn copies_out(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.steps.iter().filter_map(|step| match *step {
            Step::CopyOut { output, bytes, .. } => Some((output, bytes)),
            _ => None,
        })
    }

    /// Allocates staging memory for buffers of these sizes.
    fn room(&mut self, sizes: impl Iterator<Item = Option<u64>>) -> Result<Vec<(u64, u64)>, String> {
        sizes
            .map(|bytes| {
                let bytes = bytes.ok_or("the runtime allocates an input or output; a device needs fixed memory")?;
                let at = self.staging;
                self.staging += bytes.next_multiple_of(ALIGN);
                Ok((at, bytes))
            })
            .collect()
    }

    /// Checks that all ranges are inside their memory; drivers rely on it.
    fn check(&self) -> Result<(), String> {
        let inside = |at: u64, bytes: u64, all: u64| at.checked_add(bytes).is_some_and(|end| end <= all);
        let fits = |s: &Step| match s {
            Step::Upload { from, to, bytes } => inside(*from, *bytes, self.staging) && inside(*to, *bytes, self.memory),
            Step::Download { from, to, bytes } => {
                inside(*from, *bytes, self.memory) && inside(*to, *bytes, self.staging)
            }
            Step::CopyIn { to: at, bytes, .. } | Step::CopyOut { from: at, bytes, .. } => {
                inside(*at, *bytes, self.memory)
            }
            Step::Copy { from, to, bytes } => inside(*from, *bytes, self.memory) && inside(*to, *bytes, self.memory),
            Step::Call { call, args, .. } => {
                let each = call.dtype().bits().map_or(0, |b| b as u64 / 8);
                let spans = call.spans().unwrap_or_default();
                let fits =
                    |(arg, n): (&Operand, &u64)| n.checked_mul(each).is_some_and(|n| inside(arg.at, n, self.memory));
                spans.len() == args.len() && args.iter().zip(&spans).all(fits)
            }
            Step::Exchange(together) => {
                together.iter().all(|e| inside(e.from.0, e.from.1, self.memory) && inside(e.to.0, e.to.1, self.memory))
            }
            Step::Launch { kernel, args, blocks, status } => {
                let code = self.kernels.get(*kernel).is_some_and(|k| k.entry < k.bytes.len() as u64);
                code && *blocks >= 0 && inside(*status, 4, self.memory) && args.iter().all(|a| a.at < self.memory)
            }
        };
        let constants = self.constants.iter().all(|(at, b)| inside(*at, b.len() as u64, self.memory));
        let mut outputs: Vec<usize> = self.copies_out().map(|(output, _)| output).collect();
        outputs.sort_unstable();
        if outputs.windows(2).any(|w| w[0] == w[1]) {
            return Err("an output is copied to the device value twice".into());
        }
        if constants && self.steps.iter().all(fits) {
            Ok(())
        } else {
            Err("a step accesses bytes outside of its memory".into())
        }
    }
}

/// A plan's program with the device memory of its values.
struct Source<'a> {
    plan: &'a PlanFile,
    program: &'a Program,
    ends: &'a Endpoints,
    /// Offset and bytes of each weight on the device.
    weights: Vec<(u64, u64)>,
}

impl Source<'_> {
    /// Offset and bytes of a register. A register without elements may have any offset.
    fn register(&self, id: u32) -> Option<(u64, u64)> {
        let r: &Register = self.program.registers.get(id as usize)?;
        let bytes = r.dtype().byte_len(&r.dims)?;
        if bytes == 0 {
            return Some((0, 0));
        }
        r.block().filter(|b| b.chunk == 0 && b.bytes >= bytes).map(|b| (b.offset, bytes))
    }

    /// Offset and bytes of the value that contains an argument.
    fn value(&self, arg: &Arg) -> Option<(u64, u64)> {
        match arg.source? {
            ArgSource::Register(id) => self.register(id),
            ArgSource::Weight(index) => self.weights.get(index as usize).copied(),
        }
        .filter(|(_, bytes)| arg.byte_offset < *bytes)
    }

    /// Offset and bytes of an argument.
    fn arg(&self, arg: &Arg) -> Option<(u64, u64)> {
        self.value(arg).map(|(at, bytes)| (at + arg.byte_offset, bytes - arg.byte_offset))
    }

    /// An argument of a task.
    fn operand(&self, task: &Task, arg: &Arg) -> Option<Operand> {
        let value = self.value(arg)?;
        let written = matches!(arg.source, Some(ArgSource::Register(id)) if task.produces.contains(&id));
        Some(Operand { at: value.0 + arg.byte_offset, value, written })
    }

    fn address(&self, arg: &Arg) -> Option<u64> {
        self.arg(arg).map(|(at, _)| at)
    }
}
