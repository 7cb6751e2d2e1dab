//! NVIDIA GPUs: functions as programs for one device.
//!
//! A plan stores functions with symbolic extents as text. They are compiled for the extents of each run that has new ones,
//! which needs NVRTC on that machine.
//!
//! [`Cuda`] compiles a function with fixed extents as the CPU backend does, with the printers for GPUs, into a nested plan,
//! which is the payload. Its loader, [`Device`], splits that plan into a [`DeviceProgram`]: one block of device memory, and
//! fixed steps, which a driver records once (a CUDA graph) and each run replays. A driver is thin ([`Driver`]). One is for
//! CUDA; another runs the same program on the CPU, for plans of the emulated GPU. A program on a GPU runs asynchronously to
//! the host: one polling thread of the process detects completion. All `unsafe` code is in `ffi`.

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
pub use program::{DeviceProgram, Endpoints, Exchange, KernelCode, Operand, Span, Step, Timing, WORKSPACE};
pub use segments::Segment;
