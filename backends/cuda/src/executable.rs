//! A program with fixed extents on a device, as an executable of the runtime.

use std::sync::Arc;
use std::time::Duration;

use of_codegen::isa::CUDA_EMULATED;
use of_plan::{Arg, BackendTransfer, ElementType, PlanFile};
use of_runtime::{
    AsyncExecutable, DeviceVariable, ExecError, Executable, Handle, LoadContext, LoadError, OnComplete, RankContext,
    Readers, StepTime, Tensor, TensorMut, TensorRef, Value, ValueMut, ValueRef,
};

use crate::driver::{Completion, DeviceValue, Driver, DriverError, LoadedProgram};
use crate::ffi::{CudaDriver, EmulatedDriver};
use crate::poller::Poller;
use crate::program::{DeviceProgram, Endpoints, Timing};

/// An input that is on the device, in a value of another program, and its offset in that value.
pub(crate) type DeviceInput = Option<(Arc<dyn DeviceValue>, u64)>;

/// The type of [`Executable::handle`] that other programs receive.
struct ValueHandle(Arc<dyn DeviceValue>);

/// The inputs of a task that are on the device: variables, and values that other programs keep there.
pub(crate) fn device_inputs(context: &LoadContext<'_>) -> Result<Vec<DeviceInput>, LoadError> {
    let one = |(handle, arg): (&Option<Handle>, &Arg)| Ok(value_of(handle)?.map(|value| (value, arg.byte_offset)));
    context.handles.iter().zip(&context.exec.inputs).map(one).collect()
}

/// The variables on the device that outputs of a task are the next values of.
pub(crate) fn device_outputs(context: &LoadContext<'_>) -> Result<Vec<Option<Arc<dyn DeviceValue>>>, LoadError> {
    context.output_handles.iter().map(value_of).collect()
}

fn value_of(handle: &Option<Handle>) -> Result<Option<Arc<dyn DeviceValue>>, LoadError> {
    let Some(handle) = handle else { return Ok(None) };
    let own = handle.downcast_ref::<ValueHandle>();
    let own = own.ok_or_else(|| LoadError::Failed("a value is on a device of another loader".into()))?;
    Ok(Some(Arc::clone(&own.0)))
}

/// A variable of the runtime on a device.
struct Variable(Arc<dyn DeviceValue>);

impl DeviceVariable for Variable {
    fn handle(&self) -> Handle {
        Arc::new(ValueHandle(Arc::clone(&self.0)))
    }

    fn upload(&self, bytes: &[u8]) -> Result<(), ExecError> {
        self.0.write(bytes).map_err(failed)
    }

    fn download(&self, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.0.read(bytes).map_err(failed)
    }
}

/// Memory for variables of so many bytes each on the device of a program for this architecture.
pub(crate) fn variables(
    arch: &str,
    driver: Option<&Arc<dyn Driver>>,
    device: usize,
    bytes: &[u64],
) -> Result<Vec<Arc<dyn DeviceVariable>>, LoadError> {
    let values = driver_of(arch, driver).allocate(device, bytes).map_err(not_loaded)?;
    Ok(values.into_iter().map(|value| Arc::new(Variable(value)) as Arc<dyn DeviceVariable>).collect())
}

/// The given driver, or the one that runs programs for this architecture.
fn driver_of<'a>(arch: &str, driver: Option<&'a Arc<dyn Driver>>) -> &'a dyn Driver {
    match driver {
        Some(driver) => &**driver,
        None if arch.starts_with(CUDA_EMULATED) => &EmulatedDriver,
        None => &CudaDriver,
    }
}

fn not_loaded(error: DriverError) -> LoadError {
    match error {
        DriverError::Stopped => LoadError::Stopped,
        DriverError::Memory { .. } | DriverError::Call { .. } => LoadError::Failed(error.to_string()),
        _ => LoadError::Unsupported(error.to_string()),
    }
}

/// Where a program is loaded, and its environment.
pub(crate) struct LoadTarget<'a> {
    /// The driver, if it differs from the default of the program's architecture.
    pub driver: Option<&'a Arc<dyn Driver>>,
    /// The number of the device.
    pub device: usize,
    /// The rank context of a program that communicates with other ranks.
    pub rank_context: Option<&'a RankContext>,
    /// See [`device_inputs`].
    pub device_inputs: Vec<DeviceInput>,
    /// See [`device_outputs`].
    pub device_outputs: Vec<Option<Arc<dyn DeviceValue>>>,
    /// The readers of its outputs, but for those that are variables on the device. An output without an entry is read by the
    /// host alone.
    pub readers: Vec<Readers>,
    /// What is measured of each run.
    pub timing: Timing,
}

/// Loads a program with fixed extents onto a device.
pub(crate) fn load(payload: &[u8], target: &LoadTarget<'_>) -> Result<DeviceExecutable, LoadError> {
    let plan = PlanFile::from_bytes(payload).map_err(|e| LoadError::Payload(e.to_string()))?;
    let offsets = target.device_inputs.iter().map(|k| k.as_ref().map(|(_, from)| *from)).collect();
    let mut readers = target.readers.clone();
    for (output, _) in target.device_outputs.iter().enumerate().filter(|(_, value)| value.is_some()) {
        readers.resize(readers.len().max(output + 1), Readers { inside: false, outside: true });
        readers[output] = Readers { inside: true, outside: false };
    }
    let ends = Endpoints { device_inputs: offsets, readers };
    let mut program = DeviceProgram::of(&plan, &ends).map_err(LoadError::Payload)?;
    program.measure(target.timing);
    let values: Vec<_> = target.device_inputs.iter().map(|k| k.as_ref().map(|(value, _)| Arc::clone(value))).collect();
    for (input, from, bytes) in program.copies_in() {
        let all = values[input].as_ref().map_or(0, |value| value.bytes());
        if from.checked_add(bytes).is_none_or(|end| end > all) {
            return Err(LoadError::Payload("it reads past the end of a value on the device".into()));
        }
    }
    for (output, bytes) in program.copies_out() {
        let room = target.device_outputs.get(output).and_then(Option::as_ref).map_or(bytes, |value| value.bytes());
        if room != bytes {
            return Err(LoadError::Payload("a result has another size than its variable".into()));
        }
    }
    let (driver, device) = (driver_of(program.isa, target.driver), target.device);
    let loaded = driver.load(&program, device, target.rank_context, &values, &target.device_outputs);
    let loaded = loaded.map_err(not_loaded)?;
    let watch = loaded.completion().map(|watch| Ok((watch, Poller::get().map_err(not_loaded)?))).transpose()?;
    let (memory, steps, arch) = (program.memory, program.steps.len(), program.isa);
    tracing::debug!(memory, steps, arch, device, "a program is on a device");
    let ports = plan.plan().programs.first().map_or(&[][..], |p| &p.outputs);
    let results = ports.iter().map(|p| (p.dtype(), p.dims.clone())).collect();
    let rendezvous = program.exchanges().map(|e| e.rendezvous.clone()).collect();
    let given = |i: usize| ends.device_inputs.get(i).is_none_or(Option::is_none);
    let fetched = |i: usize| ends.readers.get(i).is_none_or(|r| r.outside);
    let there = |of: &[(u64, u64)], host: &dyn Fn(usize) -> bool| {
        of.iter().enumerate().map(|(i, place)| host(i).then_some(*place)).collect()
    };
    let (inputs, outputs) = (there(&program.inputs, &given), there(&program.outputs, &fetched));
    let DeviceProgram { statuses, names, spans, .. } = program;
    let times = spans.into_iter().map(|s| StepTime { name: s.name, time: Duration::ZERO }).collect();
    Ok(DeviceExecutable { loaded, watch, inputs, outputs, results, statuses: statuses.1, names, times, rendezvous })
}

/// A program on a device, with the offsets of its inputs and outputs in staging memory. Values that stay on the device have
/// none.
pub(crate) struct DeviceExecutable {
    loaded: Box<dyn LoadedProgram>,
    /// The handle for asynchronous execution.
    watch: Option<(Arc<dyn Completion>, &'static Poller)>,
    inputs: Vec<Option<(u64, u64)>>,
    outputs: Vec<Option<(u64, u64)>>,
    results: Vec<(ElementType, Vec<i64>)>,
    statuses: u64,
    names: Vec<String>,
    /// The spans of the program, with the times of the last run.
    times: Vec<StepTime>,
    /// The transfers in which it takes part, in order.
    pub rendezvous: Vec<BackendTransfer>,
}

impl DeviceExecutable {
    /// Copies the inputs to staging memory and enqueues the program on the device.
    fn enqueue(&mut self, inputs: &[ValueRef<'_>]) -> Result<(), ExecError> {
        if inputs.len() != self.inputs.len() {
            return Err(ExecError::Failed("the program has other inputs".into()));
        }
        let staging = self.loaded.staging();
        for (value, place) in inputs.iter().zip(&self.inputs) {
            let Some(place) = place else { continue };
            let bytes = match value {
                ValueRef::Dense(TensorRef { bytes, .. }) => Some(*bytes),
                ValueRef::Object(Value::Tensor(t)) => t.bytes(),
                ValueRef::Object(_) => None,
            };
            let to = part(staging, *place);
            match bytes.filter(|b| b.len() == to.len()) {
                Some(bytes) => to.copy_from_slice(bytes),
                None => {
                    return Err(ExecError::Input("an input has another size than the program was compiled for".into()));
                }
            }
        }
        self.loaded.enqueue().map_err(failed)
    }

    /// Waits for the program and copies the outputs from staging memory.
    fn take(&mut self, outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        self.loaded.wait().map_err(failed)?;
        if !self.times.is_empty() {
            let times = self.loaded.times().map_err(failed)?;
            self.times.iter_mut().zip(times).for_each(|(own, time)| own.time = time);
        }
        if outputs.len() != self.outputs.len() {
            return Err(ExecError::Failed("the program has other outputs".into()));
        }
        let staging = self.loaded.staging();
        let words = part(staging, (self.statuses, 4 * self.names.len() as u64)).chunks_exact(4);
        for (word, name) in words.zip(&self.names) {
            if let Some(error) = kernel_error(i32::from_le_bytes([word[0], word[1], word[2], word[3]]), name) {
                return Err(error);
            }
        }
        for ((value, place), (dtype, dims)) in outputs.iter_mut().zip(&self.outputs).zip(&self.results) {
            let Some(place) = place else { continue };
            let from = part(staging, *place);
            match value {
                ValueMut::Object(slot) => {
                    let tensor = Tensor::from_bytes(*dtype, dims.clone(), from);
                    **slot = Some(Value::Tensor(tensor.map_err(|e| ExecError::Failed(e.to_string()))?));
                }
                ValueMut::Dense(TensorMut { bytes, .. }) if bytes.len() == from.len() => bytes.copy_from_slice(from),
                _ => {
                    return Err(ExecError::Failed(
                        "an output has another size than the program was compiled for".into(),
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Executable for DeviceExecutable {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        self.enqueue(inputs)?;
        self.take(outputs)
    }

    fn handle(&self, output: usize) -> Option<Handle> {
        self.loaded.device_value(output).map(|value| Arc::new(ValueHandle(value)) as Handle)
    }

    fn step_times(&self) -> &[StepTime] {
        &self.times
    }

    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        self.watch.is_some().then_some(self)
    }
}

impl AsyncExecutable for DeviceExecutable {
    fn begin(&mut self, inputs: &[ValueRef<'_>], over: &OnComplete) -> Result<(), ExecError> {
        self.enqueue(inputs)?;
        match &self.watch {
            Some((watch, poller)) => poller.watch(Arc::clone(watch), Arc::clone(over)),
            None => over(),
        }
        Ok(())
    }

    fn end(&mut self, outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        self.take(outputs)
    }
}

fn failed(error: DriverError) -> ExecError {
    match error {
        DriverError::Stopped => ExecError::Stopped,
        e => ExecError::Failed(e.to_string()),
    }
}

fn part(staging: &mut [u8], (at, bytes): (u64, u64)) -> &mut [u8] {
    &mut staging[at as usize..(at + bytes) as usize]
}

/// The error that the status of a kernel means, if it is not 0.
fn kernel_error(status: i32, name: &str) -> Option<ExecError> {
    match status {
        0 => None,
        1 => Some(ExecError::Input(format!("an index is out of range in '{name}'"))),
        2 => Some(ExecError::Input(format!("extents do not fit one another in '{name}'"))),
        7 => Some(ExecError::Input(format!("an integer is divided by zero in '{name}'"))),
        other => Some(ExecError::Failed(format!("the kernel '{name}' returned the status {other}"))),
    }
}
