//! The loader: a payload becomes an executable.

use std::sync::Arc;

use of_runtime::{DeviceVariable, Executable, LoadContext, LoadError, Loader};

use crate::backend::NAME;
use crate::driver::Driver;
use crate::executable::{LoadTarget, device_inputs, device_outputs, load, variables};
use crate::open::DynamicShapes;
use crate::payload;
use crate::program::Timing;

/// The loader of programs for GPUs. Plans for the emulated GPU run on the CPU.
#[derive(Clone, Default)]
pub struct Device {
    driver: Option<Arc<dyn Driver>>,
    timing: Timing,
}

impl Device {
    /// Uses the given driver.
    pub fn with(driver: Arc<dyn Driver>) -> Device {
        Device { driver: Some(driver), ..Device::default() }
    }

    /// Measures this of each run.
    #[must_use]
    pub fn timed(self, timing: Timing) -> Device {
        Device { timing, ..self }
    }
}

impl Loader for Device {
    fn backend(&self) -> &str {
        NAME
    }

    fn variables(
        &self,
        payload: &[u8],
        device: usize,
        bytes: &[u64],
    ) -> Result<Option<Vec<Arc<dyn DeviceVariable>>>, LoadError> {
        let arch = payload::arch(payload)?;
        variables(&arch, self.driver.as_ref(), device, bytes).map(Some)
    }

    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        match DynamicShapes::read(payload, context, self.driver.clone(), self.timing)? {
            Some(open) if context.exec.rendezvous.is_empty() => Ok(Box::new(open)),
            Some(_) => {
                Err(LoadError::Payload("a function that is compiled during the run cannot have transfers".into()))
            }
            None => {
                let readers = (0..context.exec.outputs.len()).map(|i| context.readers(i)).collect();
                let (device, rank_context, device_inputs) =
                    (context.device, context.rank_context, device_inputs(&context)?);
                let (driver, timing, device_outputs) = (self.driver.as_ref(), self.timing, device_outputs(&context)?);
                let target =
                    LoadTarget { driver, device, rank_context, device_inputs, device_outputs, readers, timing };
                let loaded = load(payload, &target)?;
                // The plan's description was verified against its steps.
                if !loaded.rendezvous.iter().eq(&context.exec.rendezvous) {
                    return Err(LoadError::Payload("it has other transfers than the plan says".into()));
                }
                Ok(Box::new(loaded))
            }
        }
    }
}
