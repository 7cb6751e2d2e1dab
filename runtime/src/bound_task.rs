//! Bound tasks: what a task executes when its actor acts, with addresses and executables resolved.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use of_plan::{ElementType, Extent, Program};

use crate::boxing::BoxingCall;
use crate::control::ControlCall;
use crate::device::{Buffer, DynamicKernel, KernelCall, Memory, Scratch};
use crate::io::{Ports, lock};
use crate::objects::Objects;
use crate::pool::Pool;
use crate::symbols::Symbols;
use crate::{ExecError, Executable, OnComplete, RunError, Tensor, TensorMut, TensorRef, Value, ValueMut, ValueRef};

/// A task with everything resolved that can be resolved before the run.
pub(crate) enum BoundTask {
    /// Nothing: the task only joins control edges.
    Join,
    /// A kernel.
    Kernel(KernelCall),
    /// A kernel with dynamic shapes.
    Dynamic(DynamicCall),
    /// A backend's executable.
    Backend(BackendCall),
    /// Other programs.
    Control(Box<ControlCall>),
    /// A copy of bytes.
    Copy { src: Buffer, dst: Buffer, bytes: usize },
    /// A copy of a value.
    CopyObject { src: u32, dst: u32 },
    /// A rank's part of a transfer.
    Boxing(Box<BoxingCall>),
    /// Copies the caller's value into a register.
    Feed { port: usize, to: RegisterRef },
    /// Returns a register's value to the caller.
    Fetch { port: usize, from: RegisterRef },
}

/// A register as an operand: memory with its type, or an object register.
pub(crate) enum RegisterRef {
    Dense { buffer: Buffer, dtype: ElementType, dims: Vec<i64> },
    Object(u32),
}

impl RegisterRef {
    /// Removes the memory and keeps the type.
    pub fn without_bytes(&mut self) {
        if let RegisterRef::Dense { buffer, .. } = self {
            buffer.clear();
        }
    }
}

/// A kernel with its operands.
pub(crate) struct DynamicCall {
    pub kernel: DynamicKernel,
    pub args: Vec<DynamicArg>,
    pub loop_iterations: Extent,
}

/// An argument of a kernel.
pub(crate) enum DynamicArg {
    /// A place that the plan laid out.
    Buffer(Buffer),
    /// An object register that the kernel reads.
    Read(u32),
    /// An object register that the kernel fills.
    Write(u32),
}

/// An input of an executable.
pub(crate) enum Operand {
    Register(RegisterRef),
    /// A constant of text.
    Constant(Value),
}

/// An executable with its operands.
pub(crate) struct BackendCall {
    pub executable: Box<dyn Executable>,
    pub inputs: Vec<Operand>,
    pub outputs: Vec<RegisterRef>,
    /// Whether its work is asynchronous.
    pub is_async: bool,
    /// The completion callback; without one it runs synchronously.
    pub on_complete: Option<OnComplete>,
    /// Tasks whose completion its work waits for on the device.
    pub after: Vec<usize>,
}

/// The session state that a task uses.
pub(crate) struct Context<'a> {
    pub program: &'a Program,
    /// Index of the task.
    pub task: usize,
    pub iteration: u64,
    pub ports: &'a Ports,
    pub objects: &'a Objects,
    pub symbols: &'a Symbols,
    pub pool: &'a Pool,
    pub scratch: &'a Scratch,
}

impl BoundTask {
    /// Whether its work is asynchronous.
    pub fn is_async(&self) -> bool {
        matches!(self, BoundTask::Backend(call) if call.is_async)
    }

    /// Executes the task, or launches it if it is asynchronous. Returns whether it is in flight.
    #[inline]
    pub fn begin(&mut self, context: &Context<'_>) -> Result<bool, RunError> {
        match self {
            BoundTask::Backend(call) => call.begin(context),
            work => work.run(context).map(|()| false),
        }
    }

    /// Takes the results of asynchronous work.
    pub fn end(&mut self, context: &Context<'_>) -> Result<(), RunError> {
        match self {
            BoundTask::Backend(call) => call.end(context),
            _ => Ok(()),
        }
    }

    #[inline]
    fn run(&mut self, context: &Context<'_>) -> Result<(), RunError> {
        match self {
            BoundTask::Join => Ok(()),
            BoundTask::Kernel(call) => {
                let status = call.run(context.iteration, context.pool, context.scratch);
                status.map_err(|status| context.failed(kernel_error(status)))
            }
            BoundTask::Copy { src, dst, bytes } => match dst.copy_from(src, *bytes, context.iteration) {
                true => Ok(()),
                false => Err(context.internal("copies past a buffer")),
            },
            BoundTask::CopyObject { src, dst } => {
                let value = context.object(*src)?;
                context.store(*dst, Some(context.shaped(*dst, value)?))
            }
            BoundTask::Dynamic(call) => call.run(context),
            BoundTask::Backend(call) => call.run(context),
            BoundTask::Control(call) => call.run(context),
            BoundTask::Boxing(call) => call.run(context),
            BoundTask::Feed { port, to } => context.feed(*port, to),
            BoundTask::Fetch { port, from } => context.fetch(*port, from),
        }
    }
}

impl DynamicCall {
    fn run(&mut self, context: &Context<'_>) -> Result<(), RunError> {
        let iteration = context.iteration;
        let symbols = context.symbols.values();
        let guards = self.args.iter().map(|arg| match arg {
            DynamicArg::Read(regst) => context.objects.read(*regst, iteration),
            _ => None,
        });
        let guards: Vec<_> = guards.collect();
        let mut filled = Vec::new();
        for arg in &self.args {
            if let DynamicArg::Write(regst) = arg {
                filled.push((*regst, context.room(*regst)?));
            }
        }
        let mut to_fill = filled.iter_mut();
        let memory = self.args.iter().zip(&guards).map(|(arg, guard)| match arg {
            DynamicArg::Buffer(buffer) => Ok(Memory::Buffer(buffer)),
            DynamicArg::Read(regst) => {
                let value = guard.as_deref().and_then(Option::as_ref).ok_or_else(|| context.empty(*regst))?;
                let bytes = value.as_tensor().and_then(Tensor::bytes);
                bytes.map(Memory::Read).ok_or_else(|| context.internal("reads a value that has no bytes"))
            }
            DynamicArg::Write(_) => {
                let tensor = to_fill.next().and_then(|(_, tensor)| tensor.bytes_mut());
                tensor.map(Memory::Write).ok_or_else(|| context.internal("fills a value that has no bytes"))
            }
        });
        let mut memory = memory.collect::<Result<Vec<_>, _>>()?;
        let loop_iterations = self.loop_iterations.eval(&symbols).filter(|&n| n >= 0);
        let loop_iterations = loop_iterations.ok_or_else(|| context.internal("does not know its loop_iterations"))?;
        let status = self.kernel.run(&mut memory, &symbols, loop_iterations, iteration, context.pool, context.scratch);
        status.map_err(|status| context.failed(kernel_error(status)))?;
        drop(memory);
        drop(guards);
        filled.into_iter().for_each(|(regst, tensor)| context.objects.write(regst, iteration, tensor.into()));
        Ok(())
    }
}

impl BackendCall {
    fn run(&mut self, context: &Context<'_>) -> Result<(), RunError> {
        let Self { executable, inputs, outputs, .. } = self;
        reading(inputs, context, |inputs| writing(outputs, context, |outputs| executable.run(inputs, outputs)))
    }

    fn begin(&mut self, context: &Context<'_>) -> Result<bool, RunError> {
        let Some(on_complete) = &self.on_complete else { return self.run(context).map(|()| false) };
        let executable = &mut self.executable;
        reading(&self.inputs, context, |inputs| {
            called(context, || executable.as_async().ok_or_else(synchronous)?.begin(inputs, on_complete))
        })?;
        Ok(true)
    }

    fn end(&mut self, context: &Context<'_>) -> Result<(), RunError> {
        let Self { executable, outputs, .. } = self;
        writing(outputs, context, |outputs| executable.as_async().ok_or_else(synchronous)?.end(outputs))
    }
}

/// The error of an executable that was asynchronous when it was loaded.
fn synchronous() -> ExecError {
    ExecError::Failed("the executable has no asynchronous interface".into())
}

/// Calls an executable. One that panics may be left in any state; the session is poisoned, so it is never called again.
fn called(context: &Context<'_>, call: impl FnOnce() -> Result<(), ExecError>) -> Result<(), RunError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(ExecError::Stopped)) => Err(RunError::Stopped),
        Ok(Err(source)) => Err(context.failed(source)),
        Err(payload) => Err(RunError::Panic { task: context.name(), message: panic_text(&*payload) }),
    }
}

/// Does something with the values of inputs.
fn reading(
    inputs: &[Operand],
    context: &Context<'_>,
    f: impl FnOnce(&[ValueRef<'_>]) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let iteration = context.iteration;
    // Objects stay locked for reading while the executable sees them; dense inputs need no lock.
    let guards = inputs.iter().map(|input| match input {
        Operand::Register(RegisterRef::Object(regst)) => context.objects.read(*regst, iteration),
        _ => None,
    });
    let guards: Vec<_> = guards.collect();
    let inputs = inputs.iter().zip(&guards).map(|(input, guard)| match (input, guard) {
        (Operand::Constant(value), _) => Ok(ValueRef::Object(value)),
        (Operand::Register(RegisterRef::Dense { buffer, dtype, dims }), _) => {
            Ok(ValueRef::Dense(TensorRef { dtype: *dtype, dims, bytes: buffer.bytes(iteration) }))
        }
        (Operand::Register(RegisterRef::Object(regst)), guard) => {
            let value = guard.as_deref().and_then(Option::as_ref);
            value.map(ValueRef::Object).ok_or_else(|| context.empty(*regst))
        }
    });
    f(&inputs.collect::<Result<Vec<_>, _>>()?)
}

/// Has a call fill outputs.
fn writing(
    outputs: &[RegisterRef],
    context: &Context<'_>,
    call: impl FnOnce(&mut [ValueMut<'_>]) -> Result<(), ExecError>,
) -> Result<(), RunError> {
    let mut objects: Vec<Option<Value>> = outputs.iter().map(|_| None).collect();
    let places = outputs.iter().zip(&mut objects).map(|(output, object)| match output {
        RegisterRef::Object(_) => Ok(ValueMut::Object(object)),
        RegisterRef::Dense { buffer, dtype, dims } => match buffer.bytes_mut(context.iteration) {
            Some(bytes) => Ok(ValueMut::Dense(TensorMut { dtype: *dtype, dims, bytes })),
            None => Err(context.internal("writes to a constant")),
        },
    });
    let mut places = places.collect::<Result<Vec<_>, _>>()?;
    called(context, || call(&mut places))?;
    drop(places);
    for (output, object) in outputs.iter().zip(objects) {
        if let RegisterRef::Object(regst) = output {
            context.store(*regst, object)?;
        }
    }
    Ok(())
}

impl Context<'_> {
    /// A copy of an input.
    pub fn value(&self, input: &Operand) -> Result<Value, RunError> {
        match input {
            Operand::Constant(value) => Ok(value.clone()),
            Operand::Register(RegisterRef::Object(regst)) => self.object(*regst),
            Operand::Register(RegisterRef::Dense { buffer, dtype, dims }) => {
                let tensor = Tensor::from_bytes(*dtype, dims.as_slice(), buffer.bytes(self.iteration));
                Ok(tensor.map_err(|error| self.failed(error.into()))?.into())
            }
        }
    }

    /// Gives a register that the task produces its value.
    pub fn put(&self, place: &RegisterRef, value: Value) -> Result<(), RunError> {
        let (buffer, dtype, dims) = match place {
            RegisterRef::Object(regst) => return self.store(*regst, Some(value)),
            RegisterRef::Dense { buffer, dtype, dims } => (buffer, dtype, dims),
        };
        let tensor = value.as_tensor().filter(|t| t.dtype() == *dtype && t.dims() == dims);
        match (tensor.and_then(Tensor::bytes), buffer.bytes_mut(self.iteration)) {
            (Some(source), Some(target)) if source.len() == target.len() => target.copy_from_slice(source),
            _ => {
                let got = value.as_tensor().map_or("no tensor".into(), |t| format!("{}{:?}", t.dtype(), t.dims()));
                return Err(self.failed(ExecError::Input(format!("a result is {got}, it must be {dtype}{dims:?}"))));
            }
        }
        Ok(())
    }

    /// Element type and extents of a place, -1 where they are not known.
    pub fn declared(&self, place: &RegisterRef) -> (ElementType, Vec<i64>) {
        match place {
            RegisterRef::Dense { dtype, dims, .. } => (*dtype, dims.clone()),
            RegisterRef::Object(regst) => {
                let desc = &self.program.regsts[*regst as usize];
                let told = self.symbols.values();
                let open = desc.extents.iter().map(|extent| extent.eval(&told).unwrap_or(-1));
                (desc.dtype(), if desc.extents.is_empty() { desc.dims.clone() } else { open.collect() })
            }
        }
    }

    fn name(&self) -> String {
        self.program.tasks[self.task].name.clone()
    }

    pub fn failed(&self, source: ExecError) -> RunError {
        RunError::Task { task: self.name(), source }
    }

    pub fn internal(&self, what: &str) -> RunError {
        RunError::Internal(format!("task `{}` {what}", self.name()))
    }

    fn empty(&self, regst: u32) -> RunError {
        self.internal(&format!("finds register {regst} empty"))
    }

    fn object(&self, regst: u32) -> Result<Value, RunError> {
        let guard = self.objects.read(regst, self.iteration);
        guard.and_then(|guard| guard.clone()).ok_or_else(|| self.empty(regst))
    }

    /// Gives an object register what an executable set, if it fits.
    fn store(&self, regst: u32, value: Option<Value>) -> Result<(), RunError> {
        let desc = &self.program.regsts[regst as usize];
        let wrong = |problem: String| RunError::Output { task: self.name(), regst: desc.name.clone(), problem };
        let value = value.ok_or_else(|| wrong("no value".into()))?;
        if let Some(tensor) = value.as_tensor()
            && desc.dtype() != ElementType::Unknown
            && desc.dtype() != tensor.dtype()
        {
            return Err(wrong(format!("a tensor of {} where it holds {}", tensor.dtype(), desc.dtype())));
        }
        if let Some(tensor) = value.as_tensor() {
            self.symbols.bind(desc, tensor.dims()).map_err(|problem| wrong(format!("a value that {problem}")))?;
        }
        self.objects.write(regst, self.iteration, value);
        Ok(())
    }

    /// A tensor for an object register whose extents are known by now, to be filled.
    fn room(&self, regst: u32) -> Result<Tensor, RunError> {
        let desc = &self.program.regsts[regst as usize];
        let dims = self.symbols.dims(desc).map_err(|problem| self.internal(&problem))?;
        let bytes = desc.dtype().byte_len(&dims).and_then(|len| usize::try_from(len).ok());
        let bytes = bytes.filter(|&len| len <= isize::MAX as usize - 64);
        let too_large = || ExecError::Input(format!("makes a tensor of {dims:?}, which is too large"));
        let bytes = bytes.ok_or_else(too_large).and_then(|bytes| self.objects.allocate(bytes));
        let bytes = bytes.map_err(|error| self.failed(error))?;
        Tensor::new(desc.dtype(), dims, bytes).map_err(|error| self.failed(error.into()))
    }

    /// A value under the extents of a register, where these are known.
    fn shaped(&self, regst: u32, value: Value) -> Result<Value, RunError> {
        let desc = &self.program.regsts[regst as usize];
        match value {
            Value::Tensor(tensor) if !desc.extents.is_empty() => {
                let dims = self.symbols.dims(desc).map_err(|problem| self.internal(&problem))?;
                let tensor = tensor.reshaped(dims).map_err(|error| self.failed(error.into()))?;
                Ok(tensor.into())
            }
            value => Ok(value),
        }
    }

    fn feed(&self, port: usize, to: &RegisterRef) -> Result<(), RunError> {
        let slot = lock(&self.ports.inputs[port]);
        let value = slot.as_ref().ok_or_else(|| self.internal("finds no input"))?;
        match to {
            RegisterRef::Object(regst) => self.store(*regst, Some(value.clone()))?,
            RegisterRef::Dense { buffer, .. } => {
                let source = value.as_tensor().and_then(Tensor::bytes);
                let target = buffer.bytes_mut(self.iteration);
                match (source, target) {
                    (Some(source), Some(target)) if source.len() == target.len() => target.copy_from_slice(source),
                    _ => return Err(self.internal("is fed another type than its port has")),
                }
            }
        }
        Ok(())
    }

    fn fetch(&self, port: usize, from: &RegisterRef) -> Result<(), RunError> {
        let mut slot = lock(&self.ports.outputs[port]);
        match from {
            RegisterRef::Object(regst) => {
                let value = self.objects.fetch(*regst, self.iteration);
                *slot = Some(value.ok_or_else(|| self.empty(*regst))?);
            }
            RegisterRef::Dense { buffer, dtype, dims } => {
                let bytes = buffer.bytes(self.iteration);
                // The caller's own buffer is used again when it has the right type.
                if let Some(Value::Tensor(tensor)) = slot.as_mut()
                    && tensor.dtype() == *dtype
                    && tensor.dims() == dims
                    && let Some(target) = tensor.bytes_mut()
                {
                    target.copy_from_slice(bytes);
                } else {
                    let tensor = Tensor::from_bytes(*dtype, dims.as_slice(), bytes);
                    *slot = Some(tensor.map_err(|error| self.failed(error.into()))?.into());
                }
            }
        }
        Ok(())
    }
}

/// What the status of a kernel means.
#[cold]
fn kernel_error(status: i32) -> ExecError {
    match status {
        1 => ExecError::Input("an index is out of range".into()),
        2 => ExecError::Input(
            "extents do not fit one another as the plan was compiled for: compile with their numbers".into(),
        ),
        // The emulated GPU looks more closely than a GPU does.
        3 => ExecError::Failed(
            "threads of the emulated GPU wait for each other at places that not all of them reach".into(),
        ),
        4 => ExecError::Failed("an access lies outside of an argument or of shared memory".into()),
        5 => ExecError::Failed("a vector in memory is not aligned".into()),
        6 => ExecError::Failed("a thread of the emulated GPU overflows its stack".into()),
        other => ExecError::Failed(format!("the kernel returned the status {other}")),
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
