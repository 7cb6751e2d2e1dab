//! The interface of a device driver: it loads a program once and runs it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use of_codegen::vendor_libraries::VendorLibrary;
use of_runtime::{RankContext, Stopped};

use crate::program::DeviceProgram;

/// Why a program cannot be loaded or run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The machine has no driver.
    #[error("this machine has no CUDA driver ({0}); compile the model for the CPU, or run it where there is a GPU")]
    NoDriver(String),
    /// The driver has no device.
    #[error("the CUDA driver finds no GPU")]
    NoDevice,
    /// The device has another architecture than the kernels.
    #[error("the kernels are for {kernels} and the GPU is an {device}; compile the model with --target cuda:{device}")]
    Arch {
        /// What the kernels were compiled for.
        kernels: String,
        /// The architecture of the device.
        device: String,
    },
    /// The device has too little memory.
    #[error("the program needs {needed} bytes of device memory and {free} are free")]
    Memory {
        /// Bytes that the program needs.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The program calls a library that the machine does not have.
    #[error(
        "{} was not found ({why}); install it next to CUDA's libraries, name its file in {}, or compile the model without +{}",
        .library.display_name(), .library.env_var(), .library.name()
    )]
    NoLibrary {
        /// Name of the library.
        library: VendorLibrary,
        /// Why it could not be loaded.
        why: String,
    },
    /// Ranks communicate through NCCL, which the machine does not have.
    #[error(
        "NCCL was not found ({0}); install it, name its file in OF_NCCL, or compile the model with --pin \
         of.transfer=native, which takes what passes between ranks through the memory of the host"
    )]
    NoNccl(String),
    /// NCCL needs one GPU for each rank.
    #[error(
        "ranks {0} and {1} would exchange on one GPU, which NCCL does not do; run it on a machine with more, or compile the \
         model with --pin of.transfer=native, which takes what passes between ranks through the memory of the host"
    )]
    SharedDevice(u32, u32),
    /// An input is kept by another driver, so the program cannot access it.
    #[error("a value is on another device than the program")]
    NotOnDevice,
    /// A rank's program without its rank context.
    #[error("the program takes part in transfers, and runs only together with other ranks")]
    NoRankContext,
    /// Another rank failed, so this one stopped.
    #[error("another rank stopped")]
    Stopped,
    /// The driver reported an error.
    #[error("{call} failed: {words}")]
    Call {
        /// The requested operation.
        call: &'static str,
        /// The driver's message.
        words: String,
    },
}

impl From<Stopped> for DriverError {
    fn from(_: Stopped) -> Self {
        DriverError::Stopped
    }
}

/// A driver of devices.
pub trait Driver: Send + Sync {
    /// Allocates the memory of a program, fills in its constants, loads its kernels and records its steps, on the device
    /// with this number. Numbers wrap around where there are fewer devices. A program that communicates with other ranks
    /// needs its rank context for the rendezvous. `device_inputs` holds the inputs that are already on its device, and
    /// `device_outputs` values of it that outputs are copied to; the loader has checked their sizes.
    ///
    /// # Errors
    /// When there is no device, it has another architecture or too little memory, or an input is kept by another driver. All
    /// are reported before anything runs.
    fn load(
        &self,
        program: &DeviceProgram<'_>,
        device: usize,
        rank_context: Option<&RankContext>,
        device_inputs: &[Option<Arc<dyn DeviceValue>>],
        device_outputs: &[Option<Arc<dyn DeviceValue>>],
    ) -> Result<Box<dyn LoadedProgram>, DriverError>;

    /// Allocates values of so many bytes each on the device with this number.
    ///
    /// # Errors
    /// When there is no device, or it has too little memory.
    fn allocate(&self, device: usize, bytes: &[u64]) -> Result<Vec<Arc<dyn DeviceValue>>, DriverError>;
}

/// A value on a device that outlives the run of a program: the result of its last run, or a variable.
pub trait DeviceValue: Any + Send + Sync {
    /// Size in bytes.
    fn bytes(&self) -> u64;

    /// Sets the first bytes of the value. No program that uses it is in flight.
    ///
    /// # Errors
    /// When the device fails.
    fn write(&self, bytes: &[u8]) -> Result<(), DriverError>;

    /// Reads the first bytes of the value. No program that changes it is in flight.
    ///
    /// # Errors
    /// When the device fails.
    fn read(&self, bytes: &mut [u8]) -> Result<(), DriverError>;
}

/// Queries the progress of a device.
pub trait Completion: Send + Sync {
    /// Whether the enqueued work has completed, successfully or not. A program that waits for another program completes
    /// after it.
    fn is_complete(&self) -> bool;
}

/// A program on a device.
pub trait LoadedProgram: Send {
    /// The host side of uploads and downloads, [`DeviceProgram::staging`] bytes.
    fn staging(&mut self) -> &mut [u8];

    /// Enqueues all steps on the device, after those of the programs that produce its inputs. The call may block until these
    /// finish.
    ///
    /// # Errors
    /// When the device fails; then nothing is in flight.
    fn enqueue(&mut self) -> Result<(), DriverError>;

    /// Waits for the enqueued work.
    ///
    /// # Errors
    /// When the device fails. Errors of kernels are in the status words.
    fn wait(&mut self) -> Result<(), DriverError>;

    /// The times of the program's spans ([`DeviceProgram::spans`]) in the last run, by the device's clock, once it was waited
    /// for.
    ///
    /// # Errors
    /// When the device fails.
    fn times(&self) -> Result<Vec<Duration>, DriverError>;

    /// A handle that reports from any thread when the enqueued work has completed, if enqueuing does not block.
    fn completion(&self) -> Option<Arc<dyn Completion>> {
        None
    }

    /// The values that it keeps for other programs, by output number.
    fn device_value(&self, output: usize) -> Option<Arc<dyn DeviceValue>>;
}
