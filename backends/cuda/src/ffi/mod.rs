//! All unsafe code: bindings of CUDA's driver, cuBLASLt, cuDNN and NCCL, loaded on demand, and machine code of the emulated
//! GPU.

mod calls;
mod cublaslt;
mod cuda;
mod cudnn;
mod emulated;
pub mod nccl;

use std::ffi::c_void;

pub use cuda::CudaDriver;
pub use emulated::EmulatedDriver;

/// An address on the device.
type Address = u64;
/// An opaque handle of a library.
type Handle = *mut c_void;
/// A stream of the driver.
type Stream = of_cuda_sys::driver::CUstream;
