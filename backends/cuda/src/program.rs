//! A plan for a device as memory and steps.

use of_codegen::library::{Call, Library};
use of_plan::{Arg, ArgSource, Exec, PlanFile, Port, Program, Regst, Rendezvous, Task};
use of_runtime::{RankContext, Readers};

/// Buffers on a device start at multiples of this many bytes.
const ALIGN: u64 = 256;

/// Bytes that libraries may write to while they compute: what NVIDIA advises for cuBLASLt on its largest GPUs.
pub const WORKSPACE: u64 = 32 << 20;

/// A kernel of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCode<'a> {
    /// A cubin, or code for the CPU that emulates a GPU.
    pub bytes: &'a [u8],
    /// Offset of the entry point in code for a CPU.
    pub entry: u64,
}

/// A step; places are offsets in the device's memory or in the staging memory of the host.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// From the host.
    Upload {
        /// In staging memory.
        from: u64,
        /// On the device.
        to: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// To the host.
    Download {
        /// On the device.
        from: u64,
        /// In staging memory.
        to: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// From a value that another program keeps on the device.
    CopyIn {
        /// Which input of the program it is.
        input: usize,
        /// In the value.
        from: u64,
        /// On the device.
        to: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// To a value that is kept on the device for other programs.
    CopyOut {
        /// Which output of the program it is.
        output: usize,
        /// On the device.
        from: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// On the device.
    Copy {
        /// From.
        from: u64,
        /// To.
        to: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// A kernel.
    Launch {
        /// Which.
        kernel: usize,
        /// Its arguments.
        args: Vec<Operand>,
        /// Blocks.
        blocks: i64,
        /// Its status word, on the device.
        status: u64,
    },
    /// A call of a library.
    Call {
        /// Its number among the program's calls.
        number: usize,
        /// What is computed.
        call: Call,
        /// Its arguments.
        args: Vec<Operand>,
    },
    /// Shares in transfers between ranks, none of which needs another.
    Exchange(Vec<Exchange>),
}

/// An argument of what computes, on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Where it begins.
    pub at: u64,
    /// Place and bytes of the whole value in which it lies.
    pub value: (u64, u64),
    /// Whether the value is written.
    pub written: bool,
}

/// Where inputs of a program come from, and where its outputs go.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// For each input that another program keeps on the device, where in that value it begins; what is not here comes from the
    /// host.
    pub device_inputs: Vec<Option<u64>>,
    /// Who reads each output; what is not here goes to the host.
    pub readers: Vec<Readers>,
}

/// Whether two pieces of memory have a byte in common.
pub(crate) fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.1 > 0 && b.1 > 0 && a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

/// The share of a rank in a transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// What is transferred.
    pub meeting: Rendezvous,
    /// Place and bytes of the rank's part before, on the device.
    pub from: (u64, u64),
    /// Place and bytes of its part after.
    pub to: (u64, u64),
}

impl Exchange {
    /// Why it is not the share of the rank at a rank context, if it is not.
    pub(crate) fn check(&self, rank_context: &RankContext) -> Result<(), String> {
        let transfer = &self.meeting.transfer;
        transfer.check(&rank_context.mesh)?;
        let (group, element) =
            (transfer.group(&rank_context.mesh, rank_context.rank), u64::from(self.meeting.dtype().bits() / 8));
        let bytes = |after| (transfer.elements(&group, group.me, after) as u64).saturating_mul(element);
        let fits = element > 0 && bytes(false) <= self.from.1 && bytes(true) <= self.to.1;
        if fits { Ok(()) } else { Err(format!("transfer {} does not fit into its memory", transfer.id)) }
    }

    /// Whether it may go together with others: it neither reads nor writes what they write, nor writes what they read.
    fn is_apart(&self, others: &[Exchange]) -> bool {
        let touch = |o: &Exchange| overlap(self.from, o.to) || overlap(self.to, o.to) || overlap(self.to, o.from);
        !others.iter().any(touch)
    }
}

/// A program for one device. Nothing of it changes between runs but what lies in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProgram<'a> {
    /// What its kernels were compiled for.
    pub isa: &'a str,
    /// Bytes of device memory.
    pub memory: u64,
    /// Bytes of staging memory on the host.
    pub staging: u64,
    /// What lies on the device before the first run, and where.
    pub constants: Vec<(u64, &'a [u8])>,
    /// Kernels.
    pub kernels: Vec<KernelCode<'a>>,
    /// Steps in their order.
    pub steps: Vec<Step>,
    /// Place and bytes of each input in staging memory.
    pub inputs: Vec<(u64, u64)>,
    /// Place and bytes of each output in staging memory.
    pub outputs: Vec<(u64, u64)>,
    /// Where the status words lie on the device and in staging memory, and the names of their kernels.
    pub statuses: (u64, u64),
    /// See `statuses`.
    pub names: Vec<String>,
    /// Where [`WORKSPACE`] bytes for libraries lie on the device, if anything calls it.
    pub workspace: u64,
}

impl<'a> DeviceProgram<'a> {
    /// The program of a plan that [`crate::Cuda`] made, between these ends.
    ///
    /// # Errors
    /// What in the plan no device can do.
    pub fn of(plan: &'a PlanFile, ends: &Endpoints) -> Result<DeviceProgram<'a>, String> {
        let program = plan.plan().programs.first().ok_or("the plan has no program")?;
        plan.verify_program(0).map_err(|f| f.first().map_or_else(String::new, ToString::to_string))?;
        let mut out = DeviceProgram {
            isa: plan.plan().info.flags.first().ok_or("the plan does not say what it is for")?,
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
        };
        let mut weights = Vec::new();
        for index in 0..plan.plan().weights.len() {
            let bytes = plan.weight(index as u32).ok_or("a weight lies outside of the plan")?;
            weights.push((out.memory, bytes.len() as u64));
            out.constants.push((out.memory, bytes));
            out.memory += (bytes.len() as u64).next_multiple_of(ALIGN);
        }
        for (index, code) in plan.plan().code.iter().enumerate() {
            let bytes = plan.kernel(index as u32).ok_or("a kernel lies outside of the plan")?;
            if code.isa != out.isa {
                return Err(format!("a kernel is for {} in a program for {}", code.isa, out.isa));
            }
            out.kernels.push(KernelCode { bytes, entry: code.entry });
        }
        let place = Places { program, weights };
        let launches = program.tasks.iter().filter(|t| matches!(t.exec, Some(Exec::Kernel(_)))).count() as u64;
        let calls = |t: &Task| matches!(&t.exec, Some(Exec::Backend(e)) if Library::by_name(&e.backend).is_some());
        if program.tasks.iter().any(calls) {
            out.workspace = out.memory;
            out.memory += WORKSPACE;
        }
        out.statuses.0 = out.memory;
        out.memory += (4 * launches).next_multiple_of(ALIGN);
        let on_device = |i: usize| ends.device_inputs.get(i).copied().flatten();
        let readers = |i: usize| ends.readers.get(i).copied().unwrap_or(Readers { inside: false, outside: true });
        // What stays on the device needs no memory of the host.
        let size = |p: &Port, host: bool| place.regst(p.regst).map(|(_, n)| if host { n } else { 0 });
        out.inputs = out.room(program.inputs.iter().enumerate().map(|(i, p)| size(p, on_device(i).is_none())))?;
        out.outputs = out.room(program.outputs.iter().enumerate().map(|(i, p)| size(p, readers(i).outside)))?;
        out.statuses.1 = out.room(std::iter::once(Some(4 * launches)))?[0].0;
        for task in &program.tasks {
            let refuse = |what: &str| format!("task '{}' {what}, which no device does", task.name);
            match &task.exec {
                None => {}
                Some(Exec::Kernel(k)) if k.dynamic.is_some() => return Err(refuse("has extents known during the run")),
                Some(Exec::Kernel(k)) => {
                    let args = k.args.iter().map(|a| place.operand(task, a)).collect::<Option<_>>();
                    let args = args.ok_or_else(|| refuse("computes with a value that the runtime allocates"))?;
                    let status = out.statuses.0 + 4 * out.names.len() as u64;
                    out.steps.push(Step::Launch { kernel: k.code as usize, args, blocks: k.iterations, status });
                    out.names.push(task.name.clone());
                }
                Some(Exec::Copy(c)) => {
                    let ends = place.address(&c.src).zip(place.address(&c.dst));
                    let (from, to) = ends.ok_or_else(|| refuse("copies a value that the runtime allocates"))?;
                    out.steps.push(Step::Copy { from, to, bytes: c.bytes });
                }
                Some(Exec::Feed(p)) => {
                    let port = program.inputs.get(p.port as usize).ok_or_else(|| refuse("has no port"))?;
                    let (to, bytes) = place.regst(port.regst).ok_or_else(|| refuse("feeds no buffer"))?;
                    let input = p.port as usize;
                    match on_device(input) {
                        Some(from) => out.steps.push(Step::CopyIn { input, from, to, bytes }),
                        None if bytes > 0 => out.steps.push(Step::Upload { from: out.inputs[input].0, to, bytes }),
                        None => {}
                    }
                }
                Some(Exec::Fetch(p)) => {
                    let port = program.outputs.get(p.port as usize).ok_or_else(|| refuse("has no port"))?;
                    let (from, bytes) = place.regst(port.regst).ok_or_else(|| refuse("fetches no buffer"))?;
                    let output = p.port as usize;
                    if readers(output).inside {
                        out.steps.push(Step::CopyOut { output, from, bytes });
                    }
                    if readers(output).outside && bytes > 0 {
                        out.steps.push(Step::Download { from, to: out.outputs[output].0, bytes });
                    }
                }
                Some(Exec::Backend(e)) => {
                    let library = Library::by_name(&e.backend).ok_or_else(|| refuse("runs on the host"))?;
                    let payload = plan.payload(e).ok_or_else(|| refuse("has no call"))?;
                    let call = Call::read(library, payload).map_err(|why| format!("task '{}': {why}", task.name))?;
                    let outputs: Vec<Arg> = e.outputs.iter().map(|r| Arg::regst(*r, 0)).collect();
                    let args = e.inputs.iter().chain(&outputs).map(|a| place.operand(task, a)).collect::<Option<_>>();
                    let args = args.ok_or_else(|| refuse("calls with a value that the runtime allocates"))?;
                    out.steps.push(Step::Call { number: out.calls().count(), call, args });
                }
                Some(Exec::Boxing(e)) => {
                    let ends = place.arg(&e.src).zip(place.regst(e.dst));
                    let (from, to) = ends.ok_or_else(|| refuse("exchanges a value that the runtime allocates"))?;
                    let dtype = program.regsts.get(e.dst as usize).map_or(0, |r| r.dtype);
                    let own = Exchange { meeting: Rendezvous { transfer: e.transfer.clone(), dtype }, from, to };
                    match out.steps.last_mut() {
                        Some(Step::Exchange(together)) if own.is_apart(together) => together.push(own),
                        _ => out.steps.push(Step::Exchange(vec![own])),
                    }
                }
                Some(Exec::Control(_)) => return Err(refuse("runs on the host")),
            }
        }
        if launches > 0 {
            out.steps.push(Step::Download { from: out.statuses.0, to: out.statuses.1, bytes: 4 * launches });
        }
        out.check()?;
        Ok(out)
    }

    /// The transfers in which it does the rank's share, in order.
    pub fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        self.steps.iter().flat_map(|step| match step {
            Step::Exchange(together) => &together[..],
            _ => &[],
        })
    }

    /// Its calls of libraries, in order.
    pub fn calls(&self) -> impl Iterator<Item = (&Call, &[Operand])> {
        self.steps.iter().filter_map(|step| match step {
            Step::Call { call, args, .. } => Some((call, &args[..])),
            _ => None,
        })
    }

    /// What it takes of values that other programs keep: number of the input, place in the value, bytes.
    pub fn copies_in(&self) -> impl Iterator<Item = (usize, u64, u64)> + '_ {
        self.steps.iter().filter_map(|step| match *step {
            Step::CopyIn { input, from, bytes, .. } => Some((input, from, bytes)),
            _ => None,
        })
    }

    /// What it keeps for other programs: number of the output, bytes.
    pub fn copies_out(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.steps.iter().filter_map(|step| match *step {
            Step::CopyOut { output, bytes, .. } => Some((output, bytes)),
            _ => None,
        })
    }

    /// Takes staging memory for buffers of these sizes.
    fn room(&mut self, sizes: impl Iterator<Item = Option<u64>>) -> Result<Vec<(u64, u64)>, String> {
        sizes
            .map(|bytes| {
                let bytes = bytes.ok_or("an input or output is allocated by the runtime, which no device does")?;
                let at = self.staging;
                self.staging += bytes.next_multiple_of(ALIGN);
                Ok((at, bytes))
            })
            .collect()
    }

    /// That all places lie in their memory, which drivers rely on.
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
        if constants && self.steps.iter().all(fits) { Ok(()) } else { Err("a step reaches out of its memory".into()) }
    }
}

/// Where values lie on the device.
struct Places<'a> {
    program: &'a Program,
    weights: Vec<(u64, u64)>,
}

impl Places<'_> {
    /// Place and bytes of a register. What has no elements may be anywhere.
    fn regst(&self, id: u32) -> Option<(u64, u64)> {
        let r: &Regst = self.program.regsts.get(id as usize)?;
        let bytes = r.dtype().byte_len(&r.dims)?;
        if bytes == 0 {
            return Some((0, 0));
        }
        r.block().filter(|b| b.chunk == 0 && b.bytes >= bytes).map(|b| (b.offset, bytes))
    }

    /// Place and bytes of the value in which an argument lies.
    fn value(&self, arg: &Arg) -> Option<(u64, u64)> {
        match arg.source? {
            ArgSource::Regst(id) => self.regst(id),
            ArgSource::Weight(index) => self.weights.get(index as usize).copied(),
        }
        .filter(|(_, bytes)| arg.byte_offset < *bytes)
    }

    /// Place and bytes of an argument.
    fn arg(&self, arg: &Arg) -> Option<(u64, u64)> {
        self.value(arg).map(|(at, bytes)| (at + arg.byte_offset, bytes - arg.byte_offset))
    }

    /// An argument of a task.
    fn operand(&self, task: &Task, arg: &Arg) -> Option<Operand> {
        let value = self.value(arg)?;
        let written = matches!(arg.source, Some(ArgSource::Regst(id)) if task.produces.contains(&id));
        Some(Operand { at: value.0 + arg.byte_offset, value, written })
    }

    fn address(&self, arg: &Arg) -> Option<u64> {
        self.arg(arg).map(|(at, _)| at)
    }
}
