//! The binder: resolves the tasks of a plan to memory, kernels and executables before the run.

use std::collections::HashMap;
use std::sync::Arc;

use of_plan::{
    Arg, ArgSource, BackendExec, BoxingExec, ConcatExec, ConcatPart, ControlExec, CopyExec, ElementType, Exec,
    KernelExec, LayoutKind, PlanBuilder, PlanFile, Program, Register, Task,
};

use crate::bound_task::{BackendCall, BoundTask, DynamicArg, DynamicCall};
use crate::boxing::{BoxingCall, OpenTransfer};
use crate::combine::combine;
use crate::control::{Body, ControlCall, InnerProgram};
use crate::device::{Arena, Buffer, CodeMap, DynamicKernel, KernelCall};
use crate::index_operands::index_operands;
use crate::task_context::{Operand, RegisterRef};
use crate::transfer_thread::TransferThread;
use crate::{Handle, LoadContext, LoadError, Loader, RankContext, SessionError, Tensor, Variables};

/// A handle of each input or output, where there is one.
type Handles = Vec<Option<Handle>>;

/// What binding needs.
pub(crate) struct Binder<'a> {
    pub plan: &'a Arc<PlanFile>,
    pub program: &'a Program,
    pub arena: Arc<Arena>,
    pub code: Arc<CodeMap>,
    pub loaders: &'a [Arc<dyn Loader>],
    /// Workers that share a task's loop.
    pub threads: usize,
    /// Makes a program, given by its index, that a branch or loop runs.
    pub inner: &'a dyn Fn(usize) -> Result<Box<dyn InnerProgram>, SessionError>,
    /// Where the program is one of several ranks.
    pub rank_context: Option<&'a RankContext>,
    /// The thread of asynchronous transfers, where there are some.
    pub transfers: Option<&'a TransferThread>,
    /// See [`LoadContext::device`].
    pub device: usize,
    /// What executables that are loaded gave for others of their backend, by register.
    pub handles: HashMap<u32, (&'a str, Handle)>,
    /// The program's variables.
    pub variables: Option<&'a Variables>,
}

impl<'a> Binder<'a> {
    /// The work of a task.
    pub fn work(&mut self, task: &'a Task) -> Result<BoundTask, SessionError> {
        match &task.exec {
            None => Ok(BoundTask::Join),
            Some(Exec::Kernel(exec)) => self.kernel(task, exec),
            Some(Exec::Backend(exec)) => self.backend(task, exec),
            Some(Exec::Control(exec)) => self.control(task, exec),
            Some(Exec::Copy(exec)) => self.copy(task, exec),
            Some(Exec::Boxing(exec)) => self.boxing(task, exec),
            Some(Exec::Concat(exec)) => self.concat(task, exec),
            Some(Exec::Feed(exec)) => {
                let port = exec.port as usize;
                let to = self.program.inputs.get(port).and_then(|port| self.register_place(port.register));
                Ok(BoundTask::Feed { port, to: to.ok_or_else(|| broken(task))? })
            }
            Some(Exec::Fetch(exec)) => {
                let port = exec.port as usize;
                let from = self.program.outputs.get(port).and_then(|port| self.register_place(port.register));
                Ok(BoundTask::Fetch { port, from: from.ok_or_else(|| broken(task))? })
            }
        }
    }

    fn kernel(&self, task: &Task, exec: &KernelExec) -> Result<BoundTask, SessionError> {
        let code = self.plan.plan().code.get(exec.code as usize);
        let entry = code.and_then(|code| self.code.entry(code)).ok_or_else(|| broken(task))?;
        let operands = index_operands((self.plan.plan(), self.program), task, exec, |arg| self.buffer(arg));
        if let Some(iterations) = &exec.dynamic {
            let args = exec.args.iter().map(|arg| self.dynamic_arg(task, arg)).collect::<Option<_>>();
            let kernel = DynamicKernel::new(Arc::clone(&self.code), entry, exec.grain);
            let args = args.ok_or_else(|| broken(task))?;
            return Ok(BoundTask::Dynamic(DynamicCall {
                kernel,
                args,
                loop_iterations: iterations.clone(),
                operands,
                sizes: None,
                bound: None,
            }));
        }
        let buffers = exec.args.iter().map(|arg| self.buffer(arg)).collect::<Option<_>>();
        let buffers = buffers.ok_or_else(|| broken(task))?;
        let call = KernelCall::new(Arc::clone(&self.code), entry, buffers, exec.iterations, exec.grain);
        Ok(BoundTask::Kernel { call, operands })
    }

    fn dynamic_arg(&self, task: &Task, arg: &Arg) -> Option<DynamicArg> {
        match self.object(arg) {
            Some(register) if task.produces.contains(&register) => Some(DynamicArg::Write(register)),
            Some(register) => Some(DynamicArg::Read(register)),
            None => self.buffer(arg).map(DynamicArg::Buffer),
        }
    }

    fn backend(&mut self, task: &'a Task, exec: &'a BackendExec) -> Result<BoundTask, SessionError> {
        if !exec.rendezvous.is_empty() && self.rank_context.is_none() {
            return Err(SessionError::Alone);
        }
        let loader = self.loaders.iter().find(|loader| loader.backend() == exec.backend);
        let loader = loader.ok_or_else(|| self.missing(task, &exec.backend))?;
        let payload = self.plan.payload(exec).ok_or_else(|| broken(task))?;
        let mut inputs = exec.inputs.iter().map(|arg| self.operand(task, arg)).collect::<Result<Vec<_>, _>>()?;
        let outputs = exec.outputs.iter().map(|&register| self.register_place(register)).collect::<Option<Vec<_>>>();
        let mut outputs = outputs.ok_or_else(|| broken(task))?;
        let (threads, device, rank_context) = (self.threads, self.device, self.rank_context);
        let failed = |source| SessionError::Load { task: task.name.clone(), backend: exec.backend.clone(), source };
        let (kept, output_handles) = self.variable_handles(exec, &**loader, payload).map_err(failed)?;
        // It has no use for the host's memory of these, and one may be input and output.
        for (input, _) in inputs.iter_mut().zip(&kept).filter(|(_, handle)| handle.is_some()) {
            if let Operand::Register(place) = input {
                place.without_bytes();
            }
        }
        let taken = outputs.iter_mut().zip(&output_handles).filter(|(_, handle)| handle.is_some());
        taken.for_each(|(place, _)| place.without_bytes());
        let handles = exec.inputs.iter().zip(kept).map(|(arg, kept)| kept.or_else(|| self.handle(arg, &exec.backend)));
        let handles: Vec<_> = handles.collect();
        let context = LoadContext {
            program: self.program,
            task,
            exec,
            threads,
            device,
            rank_context,
            handles: &handles,
            output_handles: &output_handles,
        };
        let mut executable = loader.load(payload, context).map_err(failed)?;
        let given = exec.outputs.iter().zip(0..).filter_map(|(register, i)| Some((*register, executable.handle(i)?)));
        self.handles.extend(given.map(|(register, handle)| (register, (&exec.backend[..], handle))));
        let is_async = executable.as_async().is_some();
        Ok(BoundTask::Backend(BackendCall {
            executable,
            inputs,
            outputs,
            is_async,
            on_complete: None,
            after: Vec::new(),
        }))
    }

    /// The handles of inputs and outputs that are values of variables which the backend keeps.
    fn variable_handles(
        &self,
        exec: &BackendExec,
        loader: &dyn Loader,
        payload: &[u8],
    ) -> Result<(Handles, Handles), LoadError> {
        let program = self.program;
        let variable = |id: u32| {
            let register = program.registers.get(id as usize)?;
            Some((program.variable_of(register)?, register))
        };
        // A task without work produces the value before the run; a next value that a task computes is on the host.
        let current = |arg: &Arg| {
            let (index, register) = variable(arg.register_id()?)?;
            program.tasks.iter().any(|task| task.id == register.producer && task.exec.is_none()).then_some(index)
        };
        let inputs: Vec<_> = exec.inputs.iter().map(current).collect();
        let outputs: Vec<_> = exec.outputs.iter().map(|id| variable(*id).map(|(index, _)| index)).collect();
        let mut indexes: Vec<usize> = inputs.iter().chain(&outputs).flatten().copied().collect();
        indexes.sort_unstable();
        indexes.dedup();
        let handles = match self.variables {
            Some(variables) if !indexes.is_empty() => variables
                .device_handles(&exec.backend, &indexes, |bytes| loader.variables(payload, self.device, bytes))?,
            _ => None,
        };
        if handles.is_none() && outputs.iter().any(Option::is_some) {
            let why = "its results are variables, which this backend does not keep";
            return Err(LoadError::Payload(why.into()));
        }
        let handle = |index: Option<usize>| {
            let at = indexes.binary_search(&index?).ok()?;
            handles.as_ref().and_then(|handles| handles.get(at).cloned())
        };
        Ok((inputs.into_iter().map(handle).collect(), outputs.into_iter().map(handle).collect()))
    }

    /// The handle of an argument that an executable of this backend gave.
    fn handle(&self, arg: &Arg, backend: &str) -> Option<Handle> {
        let Some(ArgSource::Register(id)) = arg.source else { return None };
        self.handles.get(&id).filter(|(by, _)| *by == backend).map(|(_, handle)| Arc::clone(handle))
    }

    fn control(&self, task: &Task, exec: &ControlExec) -> Result<BoundTask, SessionError> {
        let inputs = exec.inputs.iter().map(|arg| self.operand(task, arg)).collect::<Result<_, _>>()?;
        let outputs = exec.outputs.iter().map(|&register| self.register_place(register)).collect::<Option<_>>();
        let bodies = exec.bodies.iter().map(|body| {
            let program = (self.inner)(body.program as usize)?;
            Ok(Body { program, captures: body.captures.iter().map(|&c| c as usize).collect() })
        });
        let bodies = bodies.collect::<Result<_, SessionError>>()?;
        let outputs = outputs.ok_or_else(|| broken(task))?;
        Ok(BoundTask::Control(Box::new(ControlCall {
            kind: exec.kind(),
            inputs,
            given: exec.given.clone(),
            bodies,
            outputs,
        })))
    }

    fn missing(&self, task: &Task, backend: &str) -> SessionError {
        let names: Vec<_> = self.loaders.iter().map(|loader| format!("`{}`", loader.backend())).collect();
        let available = if names.is_empty() { "no backend".into() } else { names.join(", ") };
        let from = if task.locations.is_empty() { String::new() } else { format!(" ({})", task.locations.join(", ")) };
        SessionError::Backend { task: format!("{}{from}", task.name), backend: backend.into(), available }
    }

    fn copy(&self, task: &Task, exec: &CopyExec) -> Result<BoundTask, SessionError> {
        if let (Some(src), Some(dst)) = (self.object(&exec.src), self.object(&exec.dst)) {
            return Ok(BoundTask::CopyObject { src, dst });
        }
        let buffers = self.buffer(&exec.src).zip(self.buffer(&exec.dst)).zip(usize::try_from(exec.bytes).ok());
        let ((src, dst), bytes) = buffers.ok_or_else(|| broken(task))?;
        let count = self.program.times_of(task);
        if exec.combine() != LayoutKind::Broadcast {
            let dtype = self.program.registers.get(exec.dst.register_id().unwrap_or(0) as usize).map(Register::dtype);
            let combine = dtype.and_then(|dtype| combine(dtype, exec.combine()));
            let combine = combine.ok_or_else(|| SessionError::Combine {
                task: task.name.clone(),
                dtype: dtype.unwrap_or(ElementType::Unknown).name(),
            })?;
            let (src, dst) = src.truncate(exec.bytes).zip(dst.truncate(exec.bytes)).ok_or_else(|| broken(task))?;
            return Ok(BoundTask::Accumulate { src, dst, count: u64::from(count), combine });
        }
        let moves = exec.src_step > 0 || exec.dst_step > 0;
        let place = |t: u64| Some((src.clone().skip(t * exec.src_step)?, dst.clone().skip(t * exec.dst_step)?));
        let places = (0..if moves { u64::from(count) } else { 1 }).map(place).collect::<Option<Vec<_>>>();
        Ok(BoundTask::Copy { places: places.ok_or_else(|| broken(task))?, bytes })
    }

    fn concat(&self, task: &Task, exec: &ConcatExec) -> Result<BoundTask, SessionError> {
        let part = |part: &ConcatPart| {
            let (src, dst) = self.buffer(&part.src).zip(self.buffer(&Arg::register(exec.dst, part.offset)))?;
            Some((src, dst, usize::try_from(part.bytes).ok()?))
        };
        let parts = exec.parts.iter().map(part).collect::<Option<Vec<_>>>();
        Ok(BoundTask::Concat { parts: parts.ok_or_else(|| broken(task))?, next: 0 })
    }

    fn boxing(&self, task: &Task, exec: &BoxingExec) -> Result<BoundTask, SessionError> {
        let rank_context = self.rank_context.ok_or(SessionError::Alone)?;
        let dtype = self.program.registers.get(exec.dst as usize).map(|register| register.dtype());
        let dtype = dtype.ok_or_else(|| broken(task))?;
        let odd = || SessionError::Combine { task: task.name.clone(), dtype: dtype.name() };
        if let Some(src) = self.object(&exec.src) {
            let call = OpenTransfer::new(&exec.transfer, rank_context, dtype, src, exec.dst).ok_or_else(odd)?;
            return Ok(BoundTask::OpenTransfer(Box::new(call)));
        }
        let ends = |(_, src, dst)| self.buffer(src).zip(self.buffer(&Arg::register(dst, 0)));
        let buffers = exec.transfers().map(ends).collect::<Option<Vec<_>>>().ok_or_else(|| broken(task))?;
        let staging = exec.staging.map(|id| self.buffer(&Arg::register(id, 0)).ok_or_else(|| broken(task)));
        let call = BoxingCall::new(exec, rank_context, dtype, buffers, staging.transpose()?).ok_or_else(odd)?;
        if let Some(thread) = self.transfers
            && thread.executes(task)
        {
            return thread.bind(call).map(BoundTask::Transfer).ok_or_else(|| broken(task));
        }
        Ok(BoundTask::Boxing(Box::new(call)))
    }

    /// The weight that an argument names, where ranks have their own.
    fn weight(&self, index: u32) -> u32 {
        self.rank_context.map_or(index, |rank_context| rank_context.weight(index))
    }

    fn object(&self, arg: &Arg) -> Option<u32> {
        let Some(ArgSource::Register(id)) = arg.source else {
            return None;
        };
        self.program.registers.get(id as usize).filter(|register| register.is_object()).map(|register| register.id)
    }

    /// The bytes that an argument names, to the end of its register or weight.
    fn buffer(&self, arg: &Arg) -> Option<Buffer> {
        match arg.source? {
            ArgSource::Weight(index) => self.arena.weight(self.weight(index), arg.byte_offset),
            ArgSource::Register(id) => {
                let register = self.program.registers.get(id as usize)?;
                let block = register.block()?;
                let all = self.arena.block(block.chunk, block.offset, block.bytes, block.stride(), register.copies)?;
                all.skip(arg.byte_offset)
            }
        }
    }

    fn operand(&self, task: &Task, arg: &Arg) -> Result<Operand, SessionError> {
        if let Some(ArgSource::Weight(index)) = arg.source
            && let Some(weight) = self.plan.plan().weights.get(index as usize)
            && weight.dtype() == ElementType::String
            && arg.view.is_none()
        {
            let strings = self.plan.weight(self.weight(index)).and_then(PlanBuilder::decode_strings);
            let tensor = strings.and_then(|strings| Tensor::from_strings(weight.dims.as_slice(), strings).ok());
            let tensor = tensor.ok_or_else(|| SessionError::Strings { weight: weight.name.clone() })?;
            return Ok(Operand::Constant(tensor.into()));
        }
        self.arg_place(arg).map(Operand::Register).ok_or_else(|| broken(task))
    }

    fn arg_place(&self, arg: &Arg) -> Option<RegisterRef> {
        if let Some(register) = self.object(arg) {
            return Some(RegisterRef::Object(register));
        }
        let (dtype, dims) = match (&arg.view, arg.source?) {
            (Some(view), _) => (view.dtype(), &view.dims),
            (None, ArgSource::Register(id)) => {
                let register = self.program.registers.get(id as usize)?;
                (register.dtype(), &register.dims)
            }
            (None, ArgSource::Weight(index)) => {
                let weight = self.plan.plan().weights.get(index as usize)?;
                (weight.dtype(), &weight.dims)
            }
        };
        let buffer = self.buffer(arg)?.truncate(dtype.byte_len(dims)?)?;
        Some(RegisterRef::Dense { buffer, dtype, dims: dims.clone() })
    }

    fn register_place(&self, id: u32) -> Option<RegisterRef> {
        self.arg_place(&Arg::register(id, 0))
    }
}

/// A plan that was verified never comes here.
fn broken(task: &Task) -> SessionError {
    let finding = of_plan::Finding {
        kind: of_plan::FindingKind::Range,
        place: format!("task `{}`", task.name),
        message: "it does not fit into its memory".into(),
    };
    SessionError::Invalid(vec![finding])
}
