//! Opening a library and typing its symbols.

use std::ffi::c_void;
use std::path::Path;

use libloading::Library;

/// The address of a function in an open library, without a type.
#[derive(Clone, Copy, Debug)]
pub struct Symbol(*const c_void);

// SAFETY: the address is that of code, which is never written.
unsafe impl Send for Symbol {}
// SAFETY: as above.
unsafe impl Sync for Symbol {}

impl Symbol {
    /// Looks a symbol up.
    ///
    /// # Errors
    /// When the library does not export it.
    pub fn find(library: &Library, name: &str) -> Result<Symbol, libloading::Error> {
        // SAFETY: the symbol is only stored as an address here; whoever calls it gives it a type.
        let found = unsafe { library.get::<*const c_void>(name.as_bytes())? };
        Ok(Symbol(*found))
    }

    /// The function at the address, with the signature that `declared` has.
    ///
    /// # Safety
    /// The library that the symbol comes from is open, and the symbol is the function that `declared` declares.
    pub unsafe fn typed<S: Signature>(self, _declared: S) -> S::Extern {
        // SAFETY: the caller says so of the symbol.
        unsafe { S::of(self.0) }
    }
}

/// How a type of a declaration is passed. It is the type itself, but for the enums that a library returns: a newer library may
/// return a number that the enum lacks, which would be undefined behaviour, so statuses stay numbers.
pub trait Abi {
    /// The type that is passed instead.
    type Passed;
}

macro_rules! passed {
    ($($type:ty => $passed:ty),* $(,)?) => { $(impl Abi for $type { type Passed = $passed; })* };
    ($($type:ty),* $(,)?) => { $(impl Abi for $type { type Passed = $type; })* };
}

impl<T> Abi for *const T {
    type Passed = *const T;
}

impl<T> Abi for *mut T {
    type Passed = *mut T;
}

passed!(i8, u8, i16, u16, i32, u32, i64, u64, usize, f32);

/// The signature of a declared function.
pub trait Signature {
    /// The type of the function as the library exports it.
    type Extern;

    /// The function at an address.
    ///
    /// # Safety
    /// A function of this type is at the address.
    unsafe fn of(address: *const c_void) -> Self::Extern;
}

macro_rules! signatures {
    () => {};
    ($first:ident $($rest:ident)*) => {
        signatures!($($rest)*);
        signatures!(@one $first $($rest)*);
    };
    (@one $($arg:ident)*) => {
        impl<R: Abi, $($arg: Abi),*> Signature for unsafe fn($($arg),*) -> R {
            type Extern = unsafe extern "C" fn($($arg::Passed),*) -> R::Passed;

            unsafe fn of(address: *const c_void) -> Self::Extern {
                // SAFETY: the caller says so; an address and a function pointer have one size.
                unsafe { std::mem::transmute::<*const c_void, Self::Extern>(address) }
            }
        }
    };
}

signatures!(@one);
signatures!(A B C D E F G H I J K L M N O P);

use crate::{cublaslt, cudnn, driver, nccl, nvrtc};

passed! {
    driver::CUresult => u32, cublaslt::cublasStatus_t => u32, cudnn::cudnnStatus_t => u32, nccl::ncclResult_t => u32,
    nvrtc::nvrtcResult => u32,
}
passed! {
    driver::CUdevice_attribute, driver::CUstreamCaptureMode, cublaslt::cublasComputeType_t, cublaslt::cudaDataType_t,
    cublaslt::cublasLtMatmulDescAttributes_t, cublaslt::cublasLtMatmulPreferenceAttributes_t,
    cublaslt::cublasLtMatrixLayoutAttribute_t, cudnn::cudnnBackendDescriptorType_t, cudnn::cudnnBackendAttributeName_t,
    cudnn::cudnnBackendAttributeType_t, nccl::ncclUniqueId, nccl::ncclDataType_t, nccl::ncclRedOp_t,
}

/// Opens a library file.
///
/// # Errors
/// What the system's loader says.
pub fn open(file: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: the library is NVIDIA's, or the user named it: its initialisers run by the user's wish.
    unsafe { Library::new(file) }
}

/// Opens the file that the environment variable names, else the first of [`crate::candidates`] that can be opened.
///
/// # Errors
/// What the system's loader says of the last file.
pub fn open_first(variable: &str, names: &[&str]) -> Result<Library, String> {
    let files = crate::from_variable(variable).map_or_else(|| crate::candidates(names), |file| vec![file]);
    let mut why = String::from("no file of that name");
    for file in files {
        match open(&file) {
            Ok(library) => return Ok(library),
            Err(e) => why = e.to_string(),
        }
    }
    Err(why)
}

/// Declares a struct with the functions of one library that are used, by their names there. `bind` looks all of them up.
#[macro_export]
macro_rules! functions {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($function:ident),* $(,)? }) => {
        $(#[$meta])*
        #[allow(non_snake_case, reason = "the functions keep the names that they have in the library")]
        $vis struct $name { $($function: $crate::Symbol,)* _library: $crate::Library }

        impl $name {
            /// Looks up every function.
            fn bind(library: $crate::Library) -> Result<$name, $crate::Error> {
                Ok($name { $($function: $crate::Symbol::find(&library, stringify!($function))?,)* _library: library })
            }
        }
    };
}

/// Calls a function of a struct that [`functions!`] declared: `call!(api, cuInit(0))`. The module that the signature comes from
/// must be in scope as `sys`. The call is unsafe.
#[macro_export]
macro_rules! call {
    (@any $arg:expr) => { _ };
    ($api:expr, $function:ident($($arg:expr),* $(,)?)) => {{
        let declared: unsafe fn($($crate::call!(@any $arg)),*) -> _ = sys::$function;
        let function = $api.$function.typed(declared);
        function($($arg),*)
    }};
}
