//! The program of a physical graph: lifetimes, memory, tasks, registers and control edges.

use of_ir::{Dim, DimFn, Factor};
use of_plan::{
<<<<<<< HEAD:codegen/src/physical.rs
    Arg, BackendExec, Block, BodyExec, BoxingExec, Chunk, ControlExec, ControlKind, CopyExec, ElementType, Exec,
    KernelExec, MemoryKind, ObjectStorage, Port, PortExec, Program, Regst, Rendezvous, Reread, Storage, Task, TaskId,
    TaskKind, ThreadDesc, Transfer,
};

use crate::memory::{self, Buffer};
use crate::native::Extent;

/// Buffers start at multiples of this many bytes.
pub const ALIGN: u64 = 64;

/// A buffer or a runtime-owned object.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Logical name, `op/tensor`.
    pub name: String,
    /// Element type; `None` for sequences and optionals.
    pub dtype: Option<DType>,
    /// Extents; -1 where an object's are not known.
    pub dims: Vec<i64>,
    /// Bytes of a buffer; `None` for an object.
    pub bytes: Option<u64>,
    /// Extents of an object as functions of the symbols; none where they are not known.
    pub extents: Vec<Dim>,
}

/// Where an operand lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a slot, by index.
    Slot(usize),
    /// In a weight of the plan, by index.
    Weight(u32),
}

/// An operand: a place, an offset, and the type under which it is seen where that is not the slot's own.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    /// What it lies in.
    pub place: Place,
    /// Bytes from the start of the place.
    pub offset: u64,
    /// Another type for the same bytes.
    pub view: Option<(DType, Vec<i64>)>,
}

impl Operand {
    /// All of `place`.
    pub fn whole(place: Place) -> Self {
        Operand { place, offset: 0, view: None }
    }

    fn slot(&self) -> Option<usize> {
        match self.place {
            Place::Slot(s) => Some(s),
            Place::Weight(_) => None,
        }
    }

    fn arg(&self) -> Arg {
        let arg = match self.place {
            Place::Slot(s) => Arg::regst(s as u32, self.offset),
            Place::Weight(w) => Arg::weight(w, self.offset),
        };
        match &self.view {
            Some((dtype, dims)) => arg.with_view(element_type(*dtype), dims.clone()),
            None => arg,
        }
    }
}

/// A region that a step runs.
#[derive(Clone, Debug)]
pub struct Body {
    /// Index among the inner programs; in the plan once they are there.
    pub program: usize,
    /// Which inputs of the step the region captures, in the order of its program's inputs after its own arguments.
    pub captures: Vec<u32>,
}

/// What a step runs.
#[derive(Clone, Debug)]
pub enum Work {
    /// A kernel of the plan.
    Kernel {
        /// Index in the plan's code.
        code: u32,
        /// Buffers in the kernel's order, reads and writes.
        args: Vec<Operand>,
        /// Slots that it writes.
        writes: Vec<usize>,
        /// Whether it computes with the values of symbols.
        symbols: bool,
        /// Iterations of the outer loop, the fewest worth a worker, and each worker's scratch bytes.
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
        /// Transfers that it does the rank's share in.
        rendezvous: Vec<Rendezvous>,
        /// Whether it goes on beside the host.
        beside: bool,
    },
    /// Regions.
    Control {
        /// How they are run.
        kind: ControlKind,
        /// The operands that are there, then what the regions capture.
        inputs: Vec<Operand>,
        /// Which operands are there.
        given: Vec<bool>,
        /// The regions.
        bodies: Vec<Body>,
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
    /// The share of a rank in a transfer between ranks.
    Boxing {
        /// What is transferred.
        transfer: Transfer,
        /// The rank's part before.
        src: Operand,
        /// Its part after.
        dst: usize,
    },
    /// The caller's input into a slot.
    Feed {
        /// Index of the input.
        port: u32,
        /// To.
        dst: usize,
    },
    /// A slot to the caller.
    Fetch {
        /// Index of the output.
        port: u32,
        /// From.
        src: usize,
    },
}

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Name for people.
    pub name: String,
    /// The ops it came from.
    pub locations: Vec<String>,
    /// What it runs.
    pub work: Work,
    /// Floating-point operations.
    pub flops: Flops,
    /// Bytes moved.
    pub bytes: u64,
    /// What a kernel reads again and again, where it is too large for the second cache.
    pub again: Option<Reread>,
}

/// Floating-point operations of a step, by the rate at which a machine does them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flops {
    /// Multiplications and additions of sums of products.
    pub products: u64,
    /// Operations on elements one by one, and sums of them.
    pub pointwise: u64,
}

impl Flops {
    /// Those of a product.
    pub fn products(products: u64) -> Self {
        Self { products, pointwise: 0 }
    }

    /// Those on elements.
    pub fn pointwise(pointwise: u64) -> Self {
        Self { products: 0, pointwise }
    }

    /// All of them.
    pub fn all(self) -> u64 {
        self.products + self.pointwise
    }
}

/// Name, element type and extents of an input or output.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// As the model calls it.
    pub name: String,
    /// Element type; `None` for sequences and optionals.
    pub dtype: Option<DType>,
    /// Extents; -1 where not known.
    pub dims: Vec<i64>,
    /// Whether it is a runtime-owned object.
    pub object: bool,
}

/// A lowered function.
#[derive(Clone, Debug, Default)]
pub struct Physical {
    /// Slots; the index is the register's id.
    pub slots: Vec<Slot>,
    /// Steps in execution order.
    pub steps: Vec<Step>,
    /// Inputs.
    pub inputs: Vec<PortSpec>,
    /// Outputs.
    pub outputs: Vec<PortSpec>,
    /// Symbols whose values are found during the run.
    pub symbols: Vec<Arc<str>>,
    /// Whether transfers that follow one another may be made together.
    pub together: bool,
}

impl Step {
    /// Slots that it reads.
    pub(crate) fn reads(&self) -> Vec<usize> {
        let mut out: Vec<usize> = match &self.work {
            Work::Kernel { args, writes, .. } => {
                args.iter().filter_map(Operand::slot).filter(|s| !writes.contains(s)).collect()
            }
            Work::Backend { inputs, .. } | Work::Control { inputs, .. } => {
                inputs.iter().filter_map(Operand::slot).collect()
            }
            Work::Copy { src, .. } | Work::Boxing { src, .. } => src.slot().into_iter().collect(),
            Work::Fetch { src, .. } => vec![*src],
            Work::Feed { .. } => Vec::new(),
        };
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Slots that it writes.
    pub(crate) fn writes(&self) -> Vec<usize> {
        match &self.work {
            Work::Kernel { writes, .. } => writes.clone(),
            Work::Backend { outputs, .. } | Work::Control { outputs, .. } => outputs.clone(),
            Work::Copy { dst, .. } | Work::Boxing { dst, .. } | Work::Feed { dst, .. } => vec![*dst],
            Work::Fetch { .. } => Vec::new(),
        }
    }
}
=======
    Arg, BackendExec, Block, BodyExec, BoxingExec, Chunk, ControlExec, CopyExec, ElementType, Exec, KernelExec,
    MemoryKind, ObjectStorage, Port, PortExec, Program, Regst, Storage, Task, TaskId, TaskKind, ThreadDesc,
};

use crate::physical::memory::Buffer;
use crate::physical::{ALIGN, Operand, Physical, PortSpec, Step, Work, element_type, memory};
>>>>>>> 653bb60313307ee3743ecc75d37ca8c350054554:codegen/src/physical/assemble.rs

impl Physical {
    /// The program: one CPU thread that owns every task, memory packed by lifetime, control edges where memory is
    /// used again.
    pub fn assemble(&self, name: &str, inner: bool) -> Program {
        let n = self.slots.len();
        let (mut first, mut last) = (vec![u32::MAX; n], vec![0u32; n]);
        let mut consumers: Vec<Vec<u64>> = vec![Vec::new(); n];
        let mut producer = vec![0u64; n];
        let ids: Vec<u64> =
            (0..self.steps.len()).map(|i| TaskId::new(0, 0, 0, i as u32).map_or(0, |t| t.raw())).collect();
        for (i, step) in self.steps.iter().enumerate() {
            for s in step.writes() {
                first[s] = first[s].min(i as u32);
                last[s] = last[s].max(i as u32);
                producer[s] = ids[i];
            }
            for s in step.reads() {
                last[s] = last[s].max(i as u32);
                consumers[s].push(ids[i]);
            }
        }
        for (i, step) in self.steps.iter().enumerate().filter(|_| self.merges_collectives) {
            // Then none may use memory that another is done with. What is computed beside them, up to the next one or to what reads
            // what they make, may not either.
            let meets = |i: &usize| matches!(self.steps[*i].work, Work::Boxing { .. });
            let run = || (0..=i).rev().take_while(meets).last().zip((i..self.steps.len()).take_while(meets).last());
            if let Some((from, to)) = run() {
                step.writes().iter().for_each(|s| first[*s] = first[*s].min(from as u32));
                let makes = step.writes();
                let ends = |k: &usize| meets(k) || self.steps[*k].reads().iter().any(|s| makes.contains(s));
                let until = (to + 1..self.steps.len()).find(ends).unwrap_or(self.steps.len()) - 1;
                step.reads().iter().for_each(|s| last[*s] = last[*s].max(until as u32));
            }
        }
        let blocks: Vec<usize> = (0..n).filter(|s| self.slots[*s].bytes.is_some()).collect();
        let buffers: Vec<Buffer> = blocks
            .iter()
            .map(|s| Buffer { bytes: self.slots[*s].bytes.unwrap_or(0).max(1), first: first[*s], last: last[*s] })
            .collect();
        let packing = memory::pack(&buffers, ALIGN);
        let mut offset_of = vec![0u64; n];
        blocks.iter().zip(&packing.offsets).for_each(|(s, o)| offset_of[*s] = *o);

        let regsts = (0..n)
            .map(|s| {
                let slot = &self.slots[s];
                let storage = match slot.bytes {
                    Some(bytes) => Storage::Block(Block {
                        chunk: 0,
                        offset: offset_of[s],
                        bytes: bytes.max(1),
                        first: first[s],
                        last: last[s],
                    }),
                    None => Storage::Object(ObjectStorage {}),
                };
                Regst {
                    id: s as u32,
                    name: slot.name.clone(),
                    producer: producer[s],
                    consumers: consumers[s].clone(),
                    num: 1,
                    dtype: slot.dtype.map_or(ElementType::Unknown, element_type) as i32,
                    dims: slot.dims.clone(),
                    inplace_of: Vec::new(),
                    storage: Some(storage),
                    extents: slot.extents.iter().map(|d| self.extent(d)).collect(),
                }
            })
            .collect();
        let tasks = self.steps.iter().zip(&ids).map(|(step, id)| self.task(step, *id)).collect();
        let chunks = if packing.peak > 0 {
            vec![Chunk { id: 0, memory: MemoryKind::Host as i32, bytes: packing.peak, align: 4096 }]
        } else {
            Vec::new()
        };
        let mut program = Program {
            name: name.to_string(),
            inputs: self.ports(&self.inputs, true),
            outputs: self.ports(&self.outputs, false),
            threads: vec![ThreadDesc { id: 0, device: "cpu".into(), stream: 0, machine: 0 }],
            peak_bytes: packing.peak,
            lower_bound_bytes: packing.lower_bound,
            chunks,
            regsts,
            tasks,
            pipelined: false,
            symbols: self.symbols.iter().map(|s| s.to_string()).collect(),
            inner: inner || self.steps.iter().any(|s| matches!(s.work, Work::Boxing { .. })),
        };
        of_plan::chain_threads(&mut program);
        program
    }

    fn ports(&self, specs: &[PortSpec], feeds: bool) -> Vec<Port> {
        let mut regsts: Vec<Option<usize>> = vec![None; specs.len()];
        for step in &self.steps {
            let (port, slot) = match step.work {
                Work::Feed { port, dst } if feeds => (port, dst),
                Work::Fetch { port, src } if !feeds => (port, src),
                _ => continue,
            };
            if let Some(regst) = regsts.get_mut(port as usize) {
                regst.get_or_insert(slot);
            }
        }
        let port = |(spec, regst): (&PortSpec, Option<usize>)| Port {
            name: spec.name.clone(),
            dtype: spec.dtype.map_or(ElementType::Unknown, element_type) as i32,
            dims: spec.dims.clone(),
            object: spec.object,
            regst: regst.unwrap_or(0) as u32,
        };
        specs.iter().zip(regsts).map(port).collect()
    }

    fn task(&self, step: &Step, id: u64) -> Task {
        let args = |list: &[Operand]| list.iter().map(Operand::arg).collect::<Vec<_>>();
        let (kind, exec) = match &step.work {
            Work::Kernel { code, args: list, symbols, iterations, grain, scratch_bytes, .. } => (
                TaskKind::Compute,
                Exec::Kernel(KernelExec {
                    code: *code,
                    args: list.iter().map(|o| self.kernel_arg(o)).collect(),
                    iterations: iterations.dim().as_const().unwrap_or(0),
                    dynamic: (*symbols || self.has_objects(list)).then(|| self.extent(iterations.dim())),
                    grain: *grain,
                    scratch_bytes: *scratch_bytes,
                    flops: step.flops.all(),
                    pointwise: step.flops.pointwise,
                    reread: step.again,
                    bytes: step.bytes,
                }),
            ),
            Work::Backend { backend, payload, inputs, outputs, rendezvous, .. } => (
                TaskKind::Compute,
                Exec::Backend(BackendExec {
                    backend: (*backend).to_string(),
                    offset: payload.0,
                    len: payload.1,
                    inputs: args(inputs),
                    outputs: outputs.iter().map(|s| *s as u32).collect(),
                    flops: step.flops.all(),
                    bytes: step.bytes,
                    rendezvous: rendezvous.clone(),
                }),
            ),
            Work::Control { kind, inputs, given, bodies, outputs } => (
                TaskKind::Compute,
                Exec::Control(ControlExec {
                    kind: *kind as i32,
                    inputs: args(inputs),
                    given: given.clone(),
                    bodies: bodies
                        .iter()
                        .map(|b| BodyExec { program: b.program as u32, captures: b.captures.clone() })
                        .collect(),
                    outputs: outputs.iter().map(|s| *s as u32).collect(),
                }),
            ),
            Work::Copy { src, dst } => {
                let bytes = self.slots[*dst].bytes.unwrap_or(0);
                (TaskKind::Copy, Exec::Copy(CopyExec { src: src.arg(), dst: Arg::regst(*dst as u32, 0), bytes }))
            }
            Work::Boxing { transfer, src, dst } => {
                let (transfer, src, dst) = (transfer.clone(), src.arg(), *dst as u32);
                (TaskKind::Boxing, Exec::Boxing(BoxingExec { transfer, src, dst }))
            }
            Work::Feed { port, .. } => (TaskKind::Copy, Exec::Feed(PortExec { port: *port })),
            Work::Fetch { port, .. } => (TaskKind::Copy, Exec::Fetch(PortExec { port: *port })),
        };
        let ids = |v: Vec<usize>| v.into_iter().map(|s| s as u32).collect::<Vec<_>>();
        Task {
            id,
            name: step.name.clone(),
            locations: step.locations.clone(),
            kind: kind as i32,
            thread: 0,
            consumes: ids(step.reads()),
            produces: ids(step.writes()),
            exec: Some(exec),
        }
    }

    /// Kernels look at bytes alone; a view of an object, or under extents that the run gives, says nothing to them.
    fn kernel_arg(&self, o: &Operand) -> Arg {
        let object = o.slot().is_some_and(|s| self.slots[s].bytes.is_none());
        let open = o.view.as_ref().is_some_and(|(_, dims)| dims.contains(&-1));
        if object || open { Operand { view: None, ..o.clone() }.arg() } else { o.arg() }
    }

    fn has_objects(&self, args: &[Operand]) -> bool {
        args.iter().filter_map(Operand::slot).any(|s| self.slots[s].bytes.is_none())
    }

    /// A dimension as the plan writes it.
    fn extent(&self, dim: &Dim) -> of_plan::Extent {
        let place = |s: &str| self.symbols.iter().position(|o| &**o == s).unwrap_or(usize::MAX) as u32;
        let factor = |f: Factor<'_>| match f {
            Factor::Symbol(s) => of_plan::Factor::of_symbol(place(s)),
            Factor::Call(f, a, b) => of_plan::Factor::of_call(function(f), self.extent(a), self.extent(b)),
        };
        let terms =
            dim.terms().map(|(c, factors)| of_plan::Term { coefficient: c, factors: factors.map(factor).collect() });
        of_plan::Extent { constant: dim.constant(), terms: terms.collect() }
    }
}

/// The plan's name of a function of dimensions.
fn function(f: DimFn) -> of_plan::ExtentFn {
    match f {
        DimFn::FloorDiv => of_plan::ExtentFn::FloorDiv,
        DimFn::CeilDiv => of_plan::ExtentFn::CeilDiv,
        DimFn::Mod => of_plan::ExtentFn::Mod,
        DimFn::Max => of_plan::ExtentFn::Max,
        DimFn::Min => of_plan::ExtentFn::Min,
    }
}
