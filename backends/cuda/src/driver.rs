//! What a driver of devices does: it loads a program once and runs it.

use crate::DeviceProgram;

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
    /// The program multiplies with cuBLASLt, which the machine does not have.
    #[error(
        "cuBLASLt was not found ({0}); install CUDA's libraries, name its file in OF_CUBLASLT, or compile the model without \
         +cublaslt"
    )]
    NoCublasLt(String),
    /// The driver refused something.
    #[error("{call} failed: {words}")]
    Call {
        /// What was asked for.
        call: &'static str,
        /// The driver's words.
        words: String,
    },
}

/// A driver of devices.
pub trait Driver: Send + Sync {
    /// Takes the memory of a program, fills in its constants, loads its kernels and records its steps, on the device of this
    /// number. Where there are fewer devices, numbers count on from the first.
    ///
    /// # Errors
    /// When there is no device, it is of another architecture, or it has too little memory: before anything runs.
    fn load(&self, program: &DeviceProgram<'_>, device: usize) -> Result<Box<dyn Loaded>, DriverError>;
}

/// A program on a device.
pub trait Loaded: Send {
    /// The host's end of uploads and downloads, [`DeviceProgram::staging`] bytes.
    fn staging(&mut self) -> &mut [u8];

    /// Runs all steps and waits for them.
    ///
    /// # Errors
    /// When the device breaks. What kernels say stands in the statuses.
    fn run(&mut self) -> Result<(), DriverError>;
}
