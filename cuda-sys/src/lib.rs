//! CUDA's libraries, opened at run time: the signatures, enums and structs that cudarc generates from their headers, and a
//! loader of our own.
//!
//! cudarc's own loader searches the system's library path only, and panics when it finds no library or no symbol. Here the
//! caller names the library file, and a missing file or symbol is an error. [`functions!`] declares which functions of a library
//! are used, [`call!`] calls one of them with the signature that cudarc declares for it.

mod ffi;
mod search;

pub use cudarc::cublaslt::sys as cublaslt;
pub use cudarc::cudnn::sys as cudnn;
pub use cudarc::driver::sys as driver;
pub use cudarc::nccl::sys as nccl;
pub use cudarc::nvrtc::sys as nvrtc;
pub use ffi::{Abi, Signature, Symbol, open, open_first};
pub use libloading::{Error, Library};
pub use search::{candidates, from_variable, toolkit};
