//! NVIDIA's GPUs: functions as programs for one device.
//!
//! Functions of open extents stand in a plan as text, and are compiled for the extents of each run that has new ones, which
//! needs NVRTC there.
//!
//! [`Cuda`] compiles a function of fixed extents as the CPU's is, with the printers for GPUs, into a plan of its own, which
//! is the payload. Its loader, [`Device`], segments that plan into a [`DeviceProgram`]: one piece of device memory, and steps
//! that never change, so that a driver records them once (a CUDA graph) and each run replays them. A driver is thin
//! ([`Driver`]); there is one for CUDA and one that runs the very same program on the CPU, where a plan for the emulated
//! GPU runs. A program on a GPU goes on beside the host: one thread of the process looks whether it is through. All `unsafe` code lies in `ffi`.

mod backend;
mod driver;
mod executable;
mod ffi;
mod loader;
mod open;
mod payload;
mod poller;
mod program;
mod segments;

pub use backend::{Cuda, NAME};
pub use driver::{Completion, DeviceValue, Driver, DriverError, LoadedProgram};
pub use loader::Device;
pub use program::{DeviceProgram, Endpoints, Exchange, KernelCode, Operand, Step, WORKSPACE};
pub use segments::Segment;
