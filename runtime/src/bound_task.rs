//! Bound tasks: what a task executes when its actor acts, with addresses and executables resolved.

use std::panic::{AssertUnwindSafe, catch_unwind};

use of_plan::Extent;
use smallvec::SmallVec;

use crate::boxing::{BoxingCall, OpenTransfer};
use crate::clock::Instant;
use crate::combine::Combine;
use crate::control::ControlCall;
use crate::device::{Buffer, DynamicKernel, KernelCall, Memory};
use crate::error::panic_text;
use crate::index_operands::{IndexOperand, describe};
use crate::task_context::{Context, Operand, RegisterRef};
use crate::transfer_thread::TransferCall;
use crate::value_layout::KernelArgs;
use crate::{ExecError, Executable, OnComplete, RunError, Tensor, TensorMut, TensorRef, Value, ValueMut, ValueRef};

/// A task with everything resolved that can be resolved before the run.
pub(crate) enum BoundTask {
    /// Nothing: the task only joins control edges.
    Join,
    /// A kernel.
    Kernel { call: KernelCall, operands: Vec<IndexOperand> },
    /// A kernel with dynamic shapes.
    Dynamic(DynamicCall),
    /// A backend's executable.
    Backend(BackendCall),
    /// Other programs.
    Control(Box<ControlCall>),
    /// A copy of bytes; in microbatches the source or the destination moves.
    Copy { places: Vec<(Buffer, Buffer)>, bytes: usize },
    /// The combination of the values of all microbatches, of which there are `count`.
    Accumulate { src: Buffer, dst: Buffer, count: u64, combine: Combine },
    /// A copy of one part of the output in each act: source and destination of each, the number of its bytes, and the part that is next.
    Concat { parts: Vec<(Buffer, Buffer, usize)>, next: usize },
    /// A copy of a value.
    CopyObject { src: u32, dst: u32 },
    /// A rank's part of a transfer.
    Boxing(Box<BoxingCall>),
    /// The same for values of open extents.
    OpenTransfer(Box<OpenTransfer>),
    /// A rank's part of a transfer, while the rank goes on with other tasks.
    Transfer(TransferCall),
    /// Copies the caller's value into a register.
    Feed { port: usize, to: RegisterRef },
    /// Returns a register's value to the caller.
    Fetch { port: usize, from: RegisterRef },
}

/// Calls of kernels with up to this many arguments allocate nothing but results.
const ARGS: usize = 8;

/// A kernel with its operands.
pub(crate) struct DynamicCall {
    pub kernel: DynamicKernel,
    pub args: Vec<DynamicArg>,
    pub loop_iterations: Extent,
    pub operands: Vec<IndexOperand>,
    /// For the symbols' values of the last run: most runs have the same.
    pub sizes: Option<Sizes>,
    /// The call on memory that is laid out, and the number of the layout.
    pub bound: Option<(u64, KernelCall)>,
}

/// What the values of the symbols say of a kernel call.
pub(crate) struct Sizes {
    /// The number of the layout that these belong to.
    layout: Option<u64>,
    symbols: Vec<i64>,
    loop_iterations: i64,
    args: Vec<ArgSize>,
}

/// An argument of a kernel, for some values of the symbols.
enum ArgSize {
    /// Memory that is laid out.
    Buffer(Buffer),
    /// A value that the kernel reads, and the bytes of it that it needs.
    Read(u32, usize),
    /// A value that the kernel fills, with its extents and bytes.
    Write(u32, Vec<i64>, usize),
}

/// An argument of a kernel.
pub(crate) enum DynamicArg {
    /// Memory that the plan laid out.
    Buffer(Buffer),
    /// An object register that the kernel reads.
    Read(u32),
    /// An object register that the kernel fills.
    Write(u32),
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

impl BoundTask {
    /// Whether its work is asynchronous.
    pub fn is_async(&self) -> bool {
        self.is_transfer() || matches!(self, BoundTask::Backend(call) if call.is_async)
    }

    /// Whether it is an asynchronous transfer.
    pub fn is_transfer(&self) -> bool {
        matches!(self, BoundTask::Transfer(_))
    }

    /// Says which part an input-wise task works on.
    #[inline]
    pub fn set_part(&mut self, part: Option<usize>) {
        if let (BoundTask::Concat { next, .. }, Some(part)) = (self, part) {
            *next = part;
        }
    }

    /// Executes the task, or launches it if it is asynchronous. Returns whether it is in flight.
    #[inline]
    pub fn begin(&mut self, context: &Context<'_>) -> Result<bool, RunError> {
        match self {
            BoundTask::Backend(call) => call.begin(context),
            BoundTask::Transfer(call) => call.begin(context),
            work => work.run(context).map(|()| false),
        }
    }

    /// Takes the results of asynchronous work. Returns when it began, where that was later than its launch.
    pub fn end(&mut self, context: &Context<'_>) -> Result<Option<Instant>, RunError> {
        match self {
            BoundTask::Backend(call) => call.end(context).map(|()| None),
            BoundTask::Transfer(call) => call.end(context).map(Some),
            _ => Ok(None),
        }
    }

    #[inline]
    fn run(&mut self, context: &Context<'_>) -> Result<(), RunError> {
        match self {
            BoundTask::Join => Ok(()),
            BoundTask::Kernel { call, operands } => {
                let status = call.run(context.iteration, context.pool, context.scratch);
                status.map_err(|status| context.failed(kernel_error(status, operands, context)))
            }
            BoundTask::Copy { places, bytes } => {
                let (src, dst) = &places[(context.iteration % places.len() as u64) as usize];
                match dst.copy_from(src, *bytes, context.iteration) {
                    true => Ok(()),
                    false => Err(context.internal("copies past a buffer")),
                }
            }
            BoundTask::Accumulate { src, dst, count, combine } => {
                let from = src.bytes(context.iteration);
                let to = dst.bytes_mut(context.iteration).filter(|to| to.len() == from.len());
                let to = to.ok_or_else(|| context.internal("accumulates into a shorter buffer"))?;
                if context.iteration.is_multiple_of(*count) {
                    to.copy_from_slice(from);
                } else {
                    (combine.into)(to, from);
                }
                Ok(())
            }
            BoundTask::Concat { parts, next } => {
                // An act is about one part of an iteration.
                let iteration = context.iteration / parts.len().max(1) as u64;
                match parts.get(*next).is_some_and(|(src, dst, bytes)| dst.copy_from(src, *bytes, iteration)) {
                    true => Ok(()),
                    false => Err(context.internal("copies past a buffer")),
                }
            }
            BoundTask::CopyObject { src, dst } => {
                let value = context.object(*src)?;
                context.store(*dst, Some(context.shaped(*dst, value)?))
            }
            BoundTask::Dynamic(call) => call.run(context),
            BoundTask::Backend(call) => call.run(context),
            BoundTask::Control(call) => call.run(context),
            BoundTask::Boxing(call) => call.run(context.iteration).map_err(|error| match error {
                RunError::Internal(what) => context.internal(&what),
                other => other,
            }),
            BoundTask::OpenTransfer(call) => call.run(context),
            BoundTask::Transfer(call) => call.begin(context).map(|_| ()),
            BoundTask::Feed { port, to } => context.feed(*port, to),
            BoundTask::Fetch { port, from } => context.fetch(*port, from),
        }
    }
}

impl KernelArgs for Vec<BoundTask> {
    fn fills(&self, task: u32, register: u32) -> bool {
        let is_it = |arg: &DynamicArg| matches!(arg, DynamicArg::Write(id) if *id == register);
        matches!(&self[task as usize], BoundTask::Dynamic(call) if call.args.iter().any(is_it))
    }

    fn reads(&self, task: u32, register: u32) -> bool {
        let is_it = |arg: &DynamicArg| matches!(arg, DynamicArg::Read(id) if *id == register);
        matches!(&self[task as usize], BoundTask::Dynamic(call) if call.args.iter().any(is_it))
    }
}

impl DynamicCall {
    #[inline]
    fn run(&mut self, context: &Context<'_>) -> Result<(), RunError> {
        let layout = context.layout.number();
        if let Some((number, call)) = &mut self.bound
            && Some(*number) == layout
        {
            let status = call.run(context.iteration, context.pool, context.scratch);
            return status.map_err(|status| context.failed(kernel_error(status, &self.operands, context)));
        }
        let known = |sizes: &Sizes| sizes.layout == layout && context.symbols.are(&sizes.symbols);
        let sizes = match self.sizes.take().filter(known) {
            Some(sizes) => sizes,
            None => {
                let sizes = self.sizes(context, layout)?;
                self.bound = layout.filter(|_| context.layout.is_complete()).zip(self.bind(&sizes));
                sizes
            }
        };
        let done = self.run_with(&sizes, context);
        self.sizes = Some(sizes);
        done
    }

    fn sizes(&self, context: &Context<'_>, layout: Option<u64>) -> Result<Sizes, RunError> {
        let symbols = context.symbols.values();
        let laid_out = |register: u32| layout.and_then(|_| context.layout.buffer(register)).map(ArgSize::Buffer);
        let args = self.args.iter().map(|arg| match arg {
            DynamicArg::Buffer(buffer) => Ok(ArgSize::Buffer(buffer.clone())),
            DynamicArg::Read(register) => match laid_out(*register) {
                Some(size) => Ok(size),
                None => Ok(ArgSize::Read(*register, context.bytes_read(*register, &symbols)?)),
            },
            DynamicArg::Write(register) => match laid_out(*register) {
                Some(size) => Ok(size),
                None => context.extents(*register).map(|(dims, bytes)| ArgSize::Write(*register, dims, bytes)),
            },
        });
        let args = args.collect::<Result<_, RunError>>()?;
        let loop_iterations = self.loop_iterations.eval(&symbols).filter(|&n| n >= 0);
        let loop_iterations =
            loop_iterations.ok_or_else(|| context.internal("does not know its number of iterations"))?;
        Ok(Sizes { layout, symbols, loop_iterations, args })
    }

    /// The call, if all that it touches is laid out. The inputs must determine all symbols.
    fn bind(&self, sizes: &Sizes) -> Option<KernelCall> {
        let buffer = |arg: &ArgSize| match arg {
            ArgSize::Buffer(buffer) => Some(buffer.clone()),
            ArgSize::Read(..) | ArgSize::Write(..) => None,
        };
        let buffers = sizes.args.iter().map(buffer).collect::<Option<Vec<_>>>()?;
        (sizes.loop_iterations > 0).then(|| self.kernel.bind(buffers, sizes.symbols.clone(), sizes.loop_iterations))
    }

    fn run_with(&self, sizes: &Sizes, context: &Context<'_>) -> Result<(), RunError> {
        let iteration = context.iteration;
        let (mut guards, mut filled) = (SmallVec::<[_; ARGS]>::new(), SmallVec::<[_; 2]>::new());
        for arg in &sizes.args {
            match arg {
                ArgSize::Buffer(_) => {}
                ArgSize::Read(register, _) => guards.push(context.objects.read(*register, iteration)),
                ArgSize::Write(register, dims, bytes) => {
                    filled.push((*register, context.room(*register, dims, *bytes)?));
                }
            }
        }
        let (mut read, mut to_fill) = (guards.iter(), filled.iter_mut());
        let mut memory = SmallVec::<[_; ARGS]>::new();
        for arg in &sizes.args {
            memory.push(match arg {
                ArgSize::Buffer(buffer) => Memory::Buffer(buffer),
                ArgSize::Read(register, needed) => {
                    let value = read.next().and_then(Option::as_deref).and_then(Option::as_ref);
                    let bytes = value.ok_or_else(|| context.empty(*register))?.as_tensor().and_then(Tensor::bytes);
                    let bytes = bytes.ok_or_else(|| context.internal("reads a value that has no bytes"))?;
                    if bytes.len() < *needed {
                        return Err(context.short(*register, bytes.len()));
                    }
                    Memory::Read(bytes)
                }
                ArgSize::Write(..) => {
                    let bytes = to_fill.next().and_then(|(_, tensor): &mut (u32, Tensor)| tensor.bytes_mut());
                    Memory::Write(bytes.ok_or_else(|| context.internal("fills a value that has no bytes"))?)
                }
            });
        }
        let Sizes { symbols, loop_iterations, .. } = sizes;
        let status = self.kernel.run(&mut memory, symbols, *loop_iterations, iteration, context.pool, context.scratch);
        drop(memory);
        drop(guards);
        status.map_err(|status| context.failed(kernel_error(status, &self.operands, context)))?;
        for (register, tensor) in filled {
            context.objects.write(register, iteration, tensor.into());
        }
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

/// Calls `f` with the values of inputs.
fn reading(
    inputs: &[Operand],
    context: &Context<'_>,
    f: impl FnOnce(&[ValueRef<'_>]) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let iteration = context.iteration;
    // Objects stay locked for reading while the executable sees them; dense inputs need no lock.
    let guards = inputs.iter().map(|input| match input {
        Operand::Register(RegisterRef::Object(register)) => context.objects.read(*register, iteration),
        _ => None,
    });
    let guards: Vec<_> = guards.collect();
    let inputs = inputs.iter().zip(&guards).map(|(input, guard)| match (input, guard) {
        (Operand::Constant(value), _) => Ok(ValueRef::Object(value)),
        (Operand::Register(RegisterRef::Dense { buffer, dtype, dims }), _) => {
            Ok(ValueRef::Dense(TensorRef { dtype: *dtype, dims, bytes: buffer.bytes(iteration) }))
        }
        (Operand::Register(RegisterRef::Object(register)), guard) => {
            let value = guard.as_deref().and_then(Option::as_ref);
            value.map(ValueRef::Object).ok_or_else(|| context.empty(*register))
        }
    });
    f(&inputs.collect::<Result<Vec<_>, _>>()?)
}

/// Calls `call` with the outputs, and stores what it sets.
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
        if let RegisterRef::Object(register) = output {
            context.store(*register, object)?;
        }
    }
    Ok(())
}

/// The error for the status of a kernel.
#[cold]
fn kernel_error(status: i32, operands: &[IndexOperand], context: &Context<'_>) -> ExecError {
    match status {
        1 => ExecError::Input(format!("an index is out of range{}", describe(operands, context))),
        2 => ExecError::Input(
            "extents violate an equality that the plan was compiled for: compile with fixed extents".into(),
        ),
        // The emulated GPU looks more closely than a GPU does.
        3 => ExecError::Failed(
            "divergent barrier: not all threads of a block or warp of the emulated GPU reach it".into(),
        ),
        4 => ExecError::Failed("an access is outside of an argument or of shared memory".into()),
        5 => ExecError::Failed("a vector in memory is not aligned".into()),
        6 => ExecError::Failed("a thread of the emulated GPU overflows its stack".into()),
        7 => ExecError::Input(format!("an integer is divided by zero{}", describe(operands, context))),
        other => ExecError::Failed(format!("the kernel returned the status {other}")),
    }
}
