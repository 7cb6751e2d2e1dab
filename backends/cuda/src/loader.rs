//! The loader: a payload becomes an executable.

use std::sync::Arc;

use of_runtime::{Executable, LoadContext, LoadError, Loader};

use crate::backend::NAME;
use crate::driver::Driver;
use crate::executable::{LoadTarget, device_inputs, load};
use crate::open::DynamicShapes;

/// The loader of programs for GPUs. Plans for the emulated GPU run on the CPU.
#[derive(Clone, Default)]
pub struct Device {
    driver: Option<Arc<dyn Driver>>,
}

impl Device {
    /// Uses the given driver.
    pub fn with(driver: Arc<dyn Driver>) -> Device {
        Device { driver: Some(driver) }
    }
}

impl Loader for Device {
    fn backend(&self) -> &str {
        NAME
    }

    fn load(&self, payload: &[u8], context: LoadContext<'_>) -> Result<Box<dyn Executable>, LoadError> {
        match DynamicShapes::read(payload, context, self.driver.clone())? {
            Some(open) if context.exec.rendezvous.is_empty() => Ok(Box::new(open)),
            Some(_) => {
                Err(LoadError::Payload("a function that is compiled during the run cannot have transfers".into()))
            }
            None => {
                let readers = (0..context.exec.outputs.len()).map(|i| context.readers(i)).collect();
                let (device, rank_context, device_inputs) =
                    (context.device, context.rank_context, device_inputs(&context)?);
                let loaded = load(
                    payload,
                    &LoadTarget { driver: self.driver.as_ref(), device, rank_context, device_inputs, readers },
                )?;
                // The plan's description was verified against its steps.
                if !loaded.rendezvous.iter().eq(&context.exec.rendezvous) {
                    return Err(LoadError::Payload("it has other transfers than the plan says".into()));
                }
                Ok(Box::new(loaded))
            }
        }
    }
}
