//! Everything unsafe: CUDA's driver, cuBLASLt, cuDNN and NCCL, loaded when they are needed, and machine code of the emulated GPU.

mod calls;
mod cublaslt;
mod cuda;
mod cudnn;
mod emulated;
pub mod nccl;

use std::ffi::{OsString, c_void};
use std::path::PathBuf;

use libloading::Library;
use of_codegen::toolchain::nvrtc;

pub use cuda::CudaDriver;
pub use emulated::EmulatedDriver;

/// An address on the device.
type Address = u64;
type Handle = *mut c_void;

/// What a variable of the environment names, if anything.
fn named(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|name| !name.is_empty())
}

/// The library of the file that a variable names, else the first of these names where NVIDIA's libraries are looked for.
fn library(variable: &str, names: &[&str]) -> Result<Library, String> {
    let files = named(variable).map_or_else(|| nvrtc::files(names), |file| vec![PathBuf::from(file)]);
    let mut why = String::from("no file of that name");
    for file in files {
        // SAFETY: the library is NVIDIA's, or what the user named; its constructors are its own affair.
        match unsafe { Library::new(&file) } {
            Ok(library) => return Ok(library),
            Err(e) => why = e.to_string(),
        }
    }
    Err(why)
}

macro_rules! api {
    (@returns) => { c_int };
    (@returns $type:ty) => { $type };
    ($($name:ident = $symbol:literal ($($arg:ty),*) $(-> $type:ty)?;)*) => {
        /// The functions of a library that are used, by their names there; signatures are those of its header.
        struct Api { $($name: unsafe extern "C" fn($($arg),*) -> api!(@returns $($type)?),)* _library: libloading::Library }

        impl Api {
            fn bind(library: libloading::Library) -> Result<Api, libloading::Error> {
                // SAFETY: the signatures are those of the library's header, whose names keep theirs for good.
                unsafe { Ok(Api { $($name: *library.get(concat!($symbol, "\0").as_bytes())?,)* _library: library }) }
            }
        }
    };
}
use api;
