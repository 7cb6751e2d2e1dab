//! Assembles the program of a physical graph: lifetimes, memory, tasks, registers and control edges.

use of_ir::{Dim, DimFn, Factor};
use of_plan::{
    Arg, BackendExec, Block, BodyExec, BoxingExec, Chunk, ControlExec, CopyExec, ElementType, Exec, FusedTransfer,
    KernelExec, MemoryKind, ObjectStorage, Port, PortExec, Program, Register, Storage, Task, TaskId, TaskKind,
    ThreadDesc,
};

use crate::physical::memory::Buffer;
use crate::physical::phases::Lifetimes;
use crate::physical::variables::VariableLayout;
use crate::physical::{ALIGN, FusedStep, Operand, PortSpec, Step, StepGraph, StepKind, TimeCopy, element_type, memory};

impl StepGraph {
    /// The program of a graph without variables, or of one whose variables no other program has.
    pub fn assemble(&self, name: &str, inner: bool) -> Program {
        self.assemble_with(name, inner, &VariableLayout::default())
    }

    /// The program: one CPU thread that runs every task, memory packed by lifetime, and control edges where memory is reused.
    /// Its variables are where `layout` has those of all programs of the plan.
    pub(crate) fn assemble_with(&self, name: &str, inner: bool, layout: &VariableLayout) -> Program {
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
            // Merged collectives must not reuse each other's memory. Steps that run concurrently with them, up to the next
            // collective or reader of a result, must not either.
            let is_rendezvous = |i: &usize| matches!(self.steps[*i].kind, StepKind::Boxing { .. });
            let run = || {
                (0..=i)
                    .rev()
                    .take_while(is_rendezvous)
                    .last()
                    .zip((i..self.steps.len()).take_while(is_rendezvous).last())
            };
            if let Some((from, to)) = run() {
                step.writes().iter().for_each(|s| first[*s] = first[*s].min(from as u32));
                let makes = step.writes();
                let ends = |k: &usize| is_rendezvous(k) || self.steps[*k].reads().iter().any(|s| makes.contains(s));
                let until = (to + 1..self.steps.len()).find(ends).unwrap_or(self.steps.len()) - 1;
                step.reads().iter().for_each(|s| last[*s] = last[*s].max(until as u32));
            }
        }
        for (transfer, until) in self.ends_of_transfers() {
            let step = &self.steps[transfer];
            step.reads().into_iter().chain(step.writes()).for_each(|s| last[s] = last[s].max(until as u32));
        }
        let mut lifetimes = Lifetimes { first, last, copies: vec![1; n] };
        self.extend_lifetimes(&mut lifetimes);
        let Lifetimes { first, mut last, mut copies } = lifetimes;
        let slices_of = self.slices_of();
        for (slot, whole) in slices_of.iter().enumerate() {
            let Some(whole) = *whole else { continue };
            last[whole] = last[whole].max(last[slot]);
            let bytes = |s: usize| self.slots[s].bytes.unwrap_or(1).max(1);
            copies[slot] = (bytes(whole) / bytes(slot)) as u32;
        }
        let own =
            |s: &usize| self.slots[*s].bytes.is_some() && self.slots[*s].variable.is_none() && slices_of[*s].is_none();
        let blocks: Vec<usize> = (0..n).filter(own).collect();
        let buffers: Vec<Buffer> = blocks
            .iter()
            .map(|s| {
                let (bytes, first, last) = (self.slots[*s].bytes.unwrap_or(0).max(1), first[*s], last[*s]);
                let block = Block { bytes, ..Block::default() };
                Buffer { bytes: block.extent(copies[*s]), first, last }
            })
            .collect();
        let packing = memory::pack(&buffers, ALIGN);
        let mut offset_of = vec![0u64; n];
        blocks.iter().zip(&packing.offsets).for_each(|(s, o)| offset_of[*s] = *o);
        slices_of.iter().enumerate().for_each(|(s, whole)| offset_of[s] = whole.map_or(offset_of[s], |w| offset_of[w]));
        let mut chunks = Vec::new();
        if packing.peak > 0 {
            chunks.push(Chunk { id: 0, memory: MemoryKind::Host as i32, bytes: packing.peak, align: 4096 });
        }
        let variable_chunk = chunks.len() as u32;
        if layout.bytes() > 0 {
            chunks.push(layout.chunk(variable_chunk));
        }

        let registers = (0..n)
            .map(|s| {
                let slot = &self.slots[s];
                let storage = match slot.bytes {
                    Some(bytes) => {
                        let (chunk, offset) = match slot.variable {
                            Some(k) => (variable_chunk, layout.offset(&self.variables[k].name)),
                            None => (0, offset_of[s]),
                        };
                        Storage::Block(Block { chunk, offset, bytes: bytes.max(1), first: first[s], last: last[s] })
                    }
                    None => Storage::Object(ObjectStorage {}),
                };
                Register {
                    id: s as u32,
                    name: slot.name.clone(),
                    producer: producer[s],
                    consumers: consumers[s].clone(),
                    copies: copies[s],
                    dtype: slot.dtype.map_or(ElementType::Unknown, element_type) as i32,
                    dims: slot.dims.clone(),
                    inplace_of: slices_of[s].map_or_else(|| self.in_place_of(s), |whole| vec![whole as u32]),
                    storage: Some(storage),
                    extents: slot.extents.iter().map(|d| self.extent(d)).collect(),
                }
            })
            .collect();
        let tasks = self.steps.iter().zip(&ids).map(|(step, id)| match step.kind {
            // The slices are where the whole is.
            StepKind::Time { dst, .. } if slices_of[dst].is_some() => {
                Task { kind: TaskKind::Unpack as i32, ..self.bare_task(step, *id) }
            }
            _ => self.task(step, *id),
        });
        let tasks = tasks.collect();
        let mut program = Program {
            name: name.to_string(),
            inputs: self.ports(&self.inputs, true),
            outputs: self.ports(&self.outputs, false),
            threads: vec![ThreadDesc { id: 0, device: "cpu".into(), stream: 0, rank: 0 }],
            peak_bytes: packing.peak + layout.bytes(),
            lower_bound_bytes: packing.lower_bound + layout.bytes(),
            variables: layout.variables().to_vec(),
            chunks,
            registers,
            tasks,
            pipelined: false,
            phases: Vec::new(),
            schedule: Vec::new(),
            rewrites: Vec::new(),
            symbols: self.symbols.iter().map(|s| s.to_string()).collect(),
            inner: inner || self.steps.iter().any(|s| matches!(s.kind, StepKind::Boxing { .. })),
        };
        match self.time.phases.is_empty() {
            true if self.has_async_transfers() => of_plan::chain_around_transfers(&mut program),
            true => of_plan::chain_threads(&mut program),
            // The schedule orders the tasks.
            false => self.write_schedule(&mut program),
        }
        program
    }

    /// The variable in whose place a slot is computed, if the step that does so reads it.
    fn in_place_of(&self, slot: usize) -> Vec<u32> {
        let Some(from) = self.slots[slot].variable.map(|k| self.variables[k].slot).filter(|from| *from != slot) else {
            return Vec::new();
        };
        let both = |step: &Step| step.in_place.contains(&(from, slot)) && step.writes().contains(&slot);
        if self.steps.iter().any(both) { vec![from as u32] } else { Vec::new() }
    }

    fn ports(&self, specs: &[PortSpec], feeds: bool) -> Vec<Port> {
        let mut registers: Vec<Option<usize>> = vec![None; specs.len()];
        for step in &self.steps {
            let (port, slot) = match step.kind {
                StepKind::Feed { port, dst } if feeds => (port, dst),
                StepKind::Fetch { port, src } if !feeds => (port, src),
                _ => continue,
            };
            if let Some(register) = registers.get_mut(port as usize) {
                register.get_or_insert(slot);
            }
        }
        let port = |(spec, register): (&PortSpec, Option<usize>)| Port {
            name: spec.name.clone(),
            dtype: spec.dtype.map_or(ElementType::Unknown, element_type) as i32,
            dims: spec.dims.clone(),
            object: spec.object,
            register: register.unwrap_or(0) as u32,
        };
        specs.iter().zip(registers).map(port).collect()
    }

    fn task(&self, step: &Step, id: u64) -> Task {
        let args = |list: &[Operand]| list.iter().map(Operand::arg).collect::<Vec<_>>();
        let (kind, exec) = match &step.kind {
            StepKind::Kernel { code, args: list, symbols, iterations, grain, scratch_bytes, .. } => (
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
                    reread: step.reread,
                    bytes: step.bytes,
                }),
            ),
            StepKind::Backend { backend, payload, inputs, outputs, rendezvous, .. } => (
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
            StepKind::Control { kind, inputs, is_present, region_calls, outputs } => (
                TaskKind::Compute,
                Exec::Control(ControlExec {
                    kind: *kind as i32,
                    inputs: args(inputs),
                    given: is_present.clone(),
                    bodies: region_calls
                        .iter()
                        .map(|b| BodyExec { program: b.program as u32, captures: b.captures.clone() })
                        .collect(),
                    outputs: outputs.iter().map(|s| *s as u32).collect(),
                }),
            ),
            StepKind::Copy { src, dst } => {
                let bytes = self.slots[*dst].bytes.unwrap_or(0);
                let (src, dst) = (src.arg(), Arg::register(*dst as u32, 0));
                (TaskKind::Copy, Exec::Copy(CopyExec { src, dst, bytes, ..CopyExec::default() }))
            }
            StepKind::Time { copy, src, dst } => {
                let whole = CopyExec { src: src.arg(), dst: Arg::register(*dst as u32, 0), ..CopyExec::default() };
                let (kind, exec) = match *copy {
                    TimeCopy::Unpack { bytes } => (TaskKind::Unpack, CopyExec { bytes, src_step: bytes, ..whole }),
                    TimeCopy::Pack { bytes } => (TaskKind::Pack, CopyExec { bytes, dst_step: bytes, ..whole }),
                    TimeCopy::Accumulate { bytes, kind } => {
                        (TaskKind::Acc, CopyExec { bytes, combine: kind as i32, ..whole })
                    }
                };
                (kind, Exec::Copy(exec))
            }
            StepKind::Boxing { transfer, src, dst, is_async, fused, staging } => {
                let further = |own: &FusedStep| {
                    let (transfer, src, dst) = (own.transfer.clone(), own.src.arg(), own.dst as u32);
                    FusedTransfer { transfer, src, dst }
                };
                let (transfer, src, dst, is_async) = (transfer.clone(), src.arg(), *dst as u32, *is_async);
                let (fused, staging) = (fused.iter().map(further).collect(), staging.map(|slot| slot as u32));
                (TaskKind::Boxing, Exec::Boxing(BoxingExec { transfer, src, dst, is_async, fused, staging }))
            }
            StepKind::Variable { .. } => return self.bare_task(step, id),
            StepKind::Feed { port, .. } => (TaskKind::Copy, Exec::Feed(PortExec { port: *port })),
            StepKind::Fetch { port, .. } => (TaskKind::Copy, Exec::Fetch(PortExec { port: *port })),
        };
        Task { kind: kind as i32, exec: Some(exec), ..self.bare_task(step, id) }
    }

    /// The task of a step without its work.
    fn bare_task(&self, step: &Step, id: u64) -> Task {
        let ids = |v: Vec<usize>| v.into_iter().map(|s| s as u32).collect::<Vec<_>>();
        Task {
            id,
            name: step.name.clone(),
            locations: step.locations.clone(),
            kind: TaskKind::Tick as i32,
            thread: 0,
            consumes: ids(step.reads()),
            produces: ids(step.writes()),
            exec: None,
        }
    }

    /// Kernels need only bytes, so views of objects and views under symbolic extents are ignored.
    fn kernel_arg(&self, o: &Operand) -> Arg {
        let object = o.slot().is_some_and(|s| self.slots[s].bytes.is_none());
        let open = o.view.as_ref().is_some_and(|(_, dims)| dims.contains(&-1));
        if object || open { Operand { view: None, ..o.clone() }.arg() } else { o.arg() }
    }

    fn has_objects(&self, args: &[Operand]) -> bool {
        args.iter().filter_map(Operand::slot).any(|s| self.slots[s].bytes.is_none())
    }

    /// A dimension in the plan's format.
    fn extent(&self, dim: &Dim) -> of_plan::Extent {
        let index = |s: &str| self.symbols.iter().position(|o| &**o == s).unwrap_or(usize::MAX) as u32;
        let factor = |f: Factor<'_>| match f {
            Factor::Symbol(s) => of_plan::Factor::of_symbol(index(s)),
            Factor::Call(f, a, b) => of_plan::Factor::of_call(function(f), self.extent(a), self.extent(b)),
        };
        let terms =
            dim.terms().map(|(c, factors)| of_plan::Term { coefficient: c, factors: factors.map(factor).collect() });
        of_plan::Extent { constant: dim.constant(), terms: terms.collect() }
    }
}

/// The plan's equivalent of a dimension function.
fn function(f: DimFn) -> of_plan::ExtentFn {
    match f {
        DimFn::FloorDiv => of_plan::ExtentFn::FloorDiv,
        DimFn::CeilDiv => of_plan::ExtentFn::CeilDiv,
        DimFn::Mod => of_plan::ExtentFn::Mod,
        DimFn::Max => of_plan::ExtentFn::Max,
        DimFn::Min => of_plan::ExtentFn::Min,
    }
}
