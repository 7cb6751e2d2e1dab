//! The runtime's side: a payload becomes a program on a device.

use std::sync::Arc;

use of_codegen::isa::SHIM;
use of_plan::{Arg, ElementType, PlanFile, Rendezvous};
use of_runtime::{
    AsyncExecutable, ExecError, Executable, Handle, LoadContext, LoadError, Loader, OnComplete, RankContext, Readers,
    Tensor, TensorMut, TensorRef, Value, ValueMut, ValueRef,
};

use crate::driver::{Driver, DriverError, Kept, Loaded, Watch};
use crate::ffi::{CudaDriver, EmulatedDriver};
use crate::open::Open;
use crate::poller::Poller;
use crate::{DeviceProgram, Ends, NAME};

/// The loader of programs for GPUs. Plans for the emulated GPU run on the CPU.
#[derive(Clone, Default)]
pub struct Device {
    driver: Option<Arc<dyn Driver>>,
}

impl Device {
    /// With a driver of one's own.
    pub fn with(driver: Arc<dyn Driver>) -> Device {
        Device { driver: Some(driver) }
    }
}

impl Loader for Device {
    fn backend(&self) -> &str {
        NAME
    }

    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        match Open::read(payload, context, self.driver.clone())? {
            Some(open) if context.exec.rendezvous.is_empty() => Ok(Box::new(open)),
            Some(_) => Err(LoadError::Payload("what is compiled during the run has no transfers".into())),
            None => {
                let readers = (0..context.exec.outputs.len()).map(|i| context.readers(i)).collect();
                let (device, rank_context, kept) = (context.device, context.rank_context, kept(&context)?);
                let loaded =
                    load(payload, &Site { driver: self.driver.as_ref(), device, rank_context, kept, readers })?;
                // What the plan says that it does is what was proven of it.
                if !loaded.rendezvous.iter().eq(&context.exec.rendezvous) {
                    return Err(LoadError::Payload("it has other transfers than the plan says".into()));
                }
                Ok(Box::new(loaded))
            }
        }
    }
}

/// An input that another program keeps on the device, and where in that value it begins.
pub(crate) type KeptInput = Option<(Arc<dyn Kept>, u64)>;

/// What [`Executable::handle`] gives to other programs.
struct OnItsDevice(Arc<dyn Kept>);

/// The inputs of a task that other programs keep on the device.
pub(crate) fn kept(context: &LoadContext<'_>) -> Result<Vec<KeptInput>, LoadError> {
    let one = |(handle, arg): (&Option<Handle>, &Arg)| {
        let Some(handle) = handle else { return Ok(None) };
        let own = handle.downcast_ref::<OnItsDevice>();
        let own = own.ok_or_else(|| LoadError::Failed("a value is kept by another loader".into()))?;
        Ok(Some((Arc::clone(&own.0), arg.byte_offset)))
    };
    context.handles.iter().zip(&context.exec.inputs).map(one).collect()
}

/// Where a program is brought to, and what is around it.
pub(crate) struct Site<'a> {
    /// The driver, if it is not that of the program's architecture.
    pub driver: Option<&'a Arc<dyn Driver>>,
    /// The number of the device.
    pub device: usize,
    /// What a program needs that exchanges with other ranks.
    pub rank_context: Option<&'a RankContext>,
    /// See [`kept`].
    pub kept: Vec<KeptInput>,
    /// Who reads its outputs; the host alone those that are not here.
    pub readers: Vec<Readers>,
}

/// Brings a program of fixed extents to a device.
pub(crate) fn load(payload: &[u8], site: &Site<'_>) -> Result<OnDevice, LoadError> {
    let plan = PlanFile::from_bytes(payload).map_err(|e| LoadError::Payload(e.to_string()))?;
    let places = site.kept.iter().map(|k| k.as_ref().map(|(_, from)| *from)).collect();
    let ends = Ends { kept: places, readers: site.readers.clone() };
    let program = DeviceProgram::of(&plan, &ends).map_err(LoadError::Payload)?;
    let kept: Vec<_> = site.kept.iter().map(|k| k.as_ref().map(|(value, _)| Arc::clone(value))).collect();
    for (input, from, bytes) in program.takes() {
        let all = kept[input].as_ref().map_or(0, |value| value.bytes());
        if from.checked_add(bytes).is_none_or(|end| end > all) {
            return Err(LoadError::Payload("it takes more than there is of a value on the device".into()));
        }
    }
    let (emulated, device) = (program.isa.starts_with(SHIM), site.device);
    let driver: &dyn Driver = match site.driver {
        Some(driver) => &**driver,
        None if emulated => &EmulatedDriver,
        None => &CudaDriver,
    };
    let failed = |e: DriverError| match e {
        DriverError::Stopped => LoadError::Stopped,
        DriverError::Memory { .. } | DriverError::Call { .. } => LoadError::Failed(e.to_string()),
        _ => LoadError::Unsupported(e.to_string()),
    };
    let loaded = driver.load(&program, device, site.rank_context, &kept).map_err(failed)?;
    let watch = loaded.watch().map(|watch| Ok((watch, Poller::get().map_err(failed)?))).transpose()?;
    tracing::debug!(memory = program.memory, steps = program.steps.len(), emulated, device, "a program is on a device");
    let ports = plan.plan().programs.first().map_or(&[][..], |p| &p.outputs);
    let results = ports.iter().map(|p| (p.dtype(), p.dims.clone())).collect();
    let rendezvous = program.exchanges().map(|e| e.meeting.clone()).collect();
    let given = |i: usize| ends.kept.get(i).is_none_or(Option::is_none);
    let fetched = |i: usize| ends.readers.get(i).is_none_or(|r| r.outside);
    let there = |of: &[(u64, u64)], host: &dyn Fn(usize) -> bool| {
        of.iter().enumerate().map(|(i, place)| host(i).then_some(*place)).collect()
    };
    let (inputs, outputs) = (there(&program.inputs, &given), there(&program.outputs, &fetched));
    let DeviceProgram { statuses, names, .. } = program;
    Ok(OnDevice { loaded, watch, inputs, outputs, results, statuses: statuses.1, names, rendezvous })
}

/// A program on a device, with the places of what goes in and out in staging memory; none of what stays on the device.
pub(crate) struct OnDevice {
    loaded: Box<dyn Loaded>,
    /// Where it goes on beside the host.
    watch: Option<(Arc<dyn Watch>, &'static Poller)>,
    inputs: Vec<Option<(u64, u64)>>,
    outputs: Vec<Option<(u64, u64)>>,
    results: Vec<(ElementType, Vec<i64>)>,
    statuses: u64,
    names: Vec<String>,
    rendezvous: Vec<Rendezvous>,
}

impl OnDevice {
    /// Brings the inputs to staging memory and puts the program on the device.
    fn put(&mut self, inputs: &[ValueRef<'_>]) -> Result<(), ExecError> {
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
        self.loaded.put().map_err(failed)
    }

    /// Waits for the program and takes the outputs from staging memory.
    fn take(&mut self, outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        self.loaded.wait().map_err(failed)?;
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

impl Executable for OnDevice {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        self.put(inputs)?;
        self.take(outputs)
    }

    fn handle(&self, output: usize) -> Option<Handle> {
        self.loaded.kept(output).map(|value| Arc::new(OnItsDevice(value)) as Handle)
    }

    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        self.watch.is_some().then_some(self)
    }
}

impl AsyncExecutable for OnDevice {
    fn begin(&mut self, inputs: &[ValueRef<'_>], over: &OnComplete) -> Result<(), ExecError> {
        self.put(inputs)?;
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

/// What the status of a kernel means, if it is not well.
fn kernel_error(status: i32, name: &str) -> Option<ExecError> {
    match status {
        0 => None,
        1 => Some(ExecError::Input(format!("an index is out of range in '{name}'"))),
        2 => Some(ExecError::Input(format!("extents do not fit one another in '{name}'"))),
        other => Some(ExecError::Failed(format!("the kernel '{name}' returned the status {other}"))),
    }
}
