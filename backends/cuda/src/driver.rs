//! What a driver of devices does: it loads a program once and runs it.

use std::any::Any;
use std::sync::Arc;

use of_codegen::library::Library;
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
        /// What the device is.
        device: String,
    },
    /// The device has too little memory.
    #[error("the program needs {needed} bytes of device memory and {free} are free")]
    Memory {
        /// What it needs.
        needed: u64,
        /// What there is.
        free: u64,
    },
    /// The program calls a library that the machine does not have.
    #[error(
        "{} was not found ({why}); install it beside CUDA's libraries, name its file in {}, or compile the model without +{}",
        .library.title(), .library.variable(), .library.name()
    )]
    NoLibrary {
        /// Which one.
        library: Library,
        /// What came of looking for it.
        why: String,
    },
    /// Ranks exchange with NCCL, which the machine does not have.
    #[error(
        "NCCL was not found ({0}); install it, name its file in OF_NCCL, or compile the model with --backend-for \
         of.transfer=native, which takes what passes between ranks through the memory of the host"
    )]
    NoNccl(String),
    /// NCCL takes one rank for each GPU.
    #[error(
        "ranks {0} and {1} would exchange on one GPU, which NCCL does not do; run it on a machine with more, or compile the \
         model with --backend-for of.transfer=native, which takes what passes between ranks through the memory of the host"
    )]
    SharedDevice(u32, u32),
    /// An input is kept by another driver, so that the program does not find it.
    #[error("a value is not kept on the device that the program runs on")]
    NotOnDevice,
    /// A rank's program without its rank context.
    #[error("the program takes part in transfers, and runs only beside other ranks")]
    NoRankContext,
    /// Another rank failed, so that this one stopped.
    #[error("another rank stopped")]
    Stopped,
    /// The driver refused something.
    #[error("{call} failed: {words}")]
    Call {
        /// What was asked for.
        call: &'static str,
        /// The driver's words.
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
    /// Takes the memory of a program, fills in its constants, loads its kernels and records its steps, on the device of this
    /// number. Where there are fewer devices, numbers count on from the first. A program that exchanges with other ranks
    /// needs its rank context, and meets them there. `kept` has the inputs that it finds on its device; its loader has looked at
    /// their sizes.
    ///
    /// # Errors
    /// When there is no device, it is of another architecture, or it has too little memory, or an input is kept by another
    /// driver: before anything runs.
    fn load(
        &self,
        program: &DeviceProgram<'_>,
        device: usize,
        rank_context: Option<&RankContext>,
        device_inputs: &[Option<Arc<dyn DeviceValue>>],
    ) -> Result<Box<dyn LoadedProgram>, DriverError>;
}

/// A value that a program keeps on its device for others: what its last run left there.
pub trait DeviceValue: Any + Send + Sync {
    /// Bytes of it.
    fn bytes(&self) -> u64;
}

/// Sees how far a device is.
pub trait Completion: Send + Sync {
    /// Whether what was put on it is through, well or not. A program whose steps wait for another's is not through before that.
    fn is_complete(&self) -> bool;
}

/// A program on a device.
pub trait LoadedProgram: Send {
    /// The host's end of uploads and downloads, [`DeviceProgram::staging`] bytes.
    fn staging(&mut self) -> &mut [u8];

    /// Puts all steps on the device, behind those that make what it takes of other programs. It may wait for them.
    ///
    /// # Errors
    /// When the device breaks; then nothing is on its way.
    fn enqueue(&mut self) -> Result<(), DriverError>;

    /// Waits for what was put.
    ///
    /// # Errors
    /// When the device breaks. What kernels say stands in the statuses.
    fn wait(&mut self) -> Result<(), DriverError>;

    /// What sees from any thread that what was put is through, where putting it needs no waiting.
    fn completion(&self) -> Option<Arc<dyn Completion>> {
        None
    }

    /// What it keeps for others, by the number of the output.
    fn device_value(&self, output: usize) -> Option<Arc<dyn DeviceValue>>;
}
