//! TensorRT as a backend: subgraphs become ONNX models, from which TensorRT's builder makes engines. Building needs no GPU.
//!
//! TensorRT is C++: a C API (`c_api.cpp`) wraps the part of it that is used in plain functions. `cargo xtask tensorrt` fetches NVIDIA's
//! libraries and headers and compiles the C API next to them, so that building this crate needs neither. All `unsafe` code
//! is in `ffi.rs`.

mod backend;
mod ffi;
mod payload;
mod range;
mod shapes;

pub use backend::{NAME, NAME_TF32, TensorRt};
pub use ffi::{CApi, Missing, c_api, folder};
pub use range::{Range, Ranges};
