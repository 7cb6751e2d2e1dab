//! Everything unsafe: CUDA's driver and cuBLASLt, loaded when they are needed, and machine code of the emulated GPU.

mod cublaslt;
mod cuda;
mod emulated;

use std::ffi::c_void;

pub use cuda::CudaDriver;
pub use emulated::EmulatedDriver;

/// An address on the device.
type Address = u64;
type Handle = *mut c_void;

macro_rules! api {
    ($($name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// The functions of a library that are used, by their names there; signatures are those of its header.
        struct Api { $($name: unsafe extern "C" fn($($arg),*) -> c_int,)* _library: Library }

        impl Api {
            fn bind(library: Library) -> Result<Api, libloading::Error> {
                // SAFETY: the signatures are those of the library's header, whose names keep theirs for good.
                unsafe { Ok(Api { $($name: *library.get(concat!($symbol, "\0").as_bytes())?,)* _library: library }) }
            }
        }
    };
}
use api;
