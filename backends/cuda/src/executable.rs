//! The runtime's side: a payload becomes a program on a device.

use std::sync::Arc;

use of_codegen::native::isa::SHIM;
use of_plan::{ElementType, Meeting, PlanFile};
use of_runtime::{
    ExecError, Executable, LoadContext, LoadError, Loader, Seat, Tensor, TensorMut, TensorRef, Value, ValueMut,
    ValueRef,
};

use crate::driver::{Driver, DriverError, Loaded};
use crate::ffi::{CudaDriver, EmulatedDriver};
use crate::open::Open;
use crate::{DeviceProgram, NAME};

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
            Some(open) if context.exec.meetings.is_empty() => Ok(Box::new(open)),
            Some(_) => Err(LoadError::Payload("what is compiled during the run has no transfers".into())),
            None => {
                let loaded = load(payload, self.driver.as_ref(), context.device, context.seat)?;
                // What the plan says that it does is what was proven of it.
                if !loaded.meetings.iter().eq(&context.exec.meetings) {
                    return Err(LoadError::Payload("it has other transfers than the plan says".into()));
                }
                Ok(Box::new(loaded))
            }
        }
    }
}

/// Brings a program of fixed extents to the device of this number. One that exchanges with other ranks needs a seat.
pub(crate) fn load(
    payload: &[u8],
    driver: Option<&Arc<dyn Driver>>,
    device: usize,
    seat: Option<&Seat>,
) -> Result<OnDevice, LoadError> {
    let plan = PlanFile::from_bytes(payload).map_err(|e| LoadError::Payload(e.to_string()))?;
    let program = DeviceProgram::of(&plan).map_err(LoadError::Payload)?;
    let emulated = program.isa.starts_with(SHIM);
    let loaded = match driver {
        Some(driver) => driver.load(&program, device, seat),
        None if emulated => EmulatedDriver.load(&program, device, seat),
        None => CudaDriver.load(&program, device, seat),
    };
    let loaded = loaded.map_err(|e| match e {
        DriverError::Stopped => LoadError::Stopped,
        DriverError::Memory { .. } | DriverError::Call { .. } => LoadError::Failed(e.to_string()),
        _ => LoadError::Unsupported(e.to_string()),
    })?;
    tracing::debug!(memory = program.memory, steps = program.steps.len(), emulated, device, "a program is on a device");
    let ports = plan.plan().programs.first().map_or(&[][..], |p| &p.outputs);
    let results = ports.iter().map(|p| (p.dtype(), p.dims.clone())).collect();
    let meetings = program.exchanges().map(|e| e.meeting.clone()).collect();
    let DeviceProgram { inputs, outputs, statuses, names, .. } = program;
    Ok(OnDevice { loaded, inputs, outputs, results, statuses: statuses.1, names, meetings })
}

/// A program on a device, with the places of what goes in and out in staging memory.
pub(crate) struct OnDevice {
    loaded: Box<dyn Loaded>,
    inputs: Vec<(u64, u64)>,
    outputs: Vec<(u64, u64)>,
    results: Vec<(ElementType, Vec<i64>)>,
    statuses: u64,
    names: Vec<String>,
    meetings: Vec<Meeting>,
}

impl Executable for OnDevice {
    fn run(&mut self, inputs: &[ValueRef<'_>], outputs: &mut [ValueMut<'_>]) -> Result<(), ExecError> {
        if inputs.len() != self.inputs.len() || outputs.len() != self.outputs.len() {
            return Err(ExecError::Failed("the program has other inputs or outputs".into()));
        }
        let staging = self.loaded.staging();
        for (value, place) in inputs.iter().zip(&self.inputs) {
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
        self.loaded.run().map_err(|e| match e {
            DriverError::Stopped => ExecError::Stopped,
            e => ExecError::Failed(e.to_string()),
        })?;
        let staging = self.loaded.staging();
        let words = part(staging, (self.statuses, 4 * self.names.len() as u64)).chunks_exact(4);
        for (word, name) in words.zip(&self.names) {
            if let Some(error) = kernel_error(i32::from_le_bytes([word[0], word[1], word[2], word[3]]), name) {
                return Err(error);
            }
        }
        for ((value, place), (dtype, dims)) in outputs.iter_mut().zip(&self.outputs).zip(&self.results) {
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
