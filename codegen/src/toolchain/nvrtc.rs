//! NVRTC, the compiler of GPU kernels. It is loaded on first use, and needs no GPU.
//!
//! `cargo xtask cuda-toolkit` installs it. The search path is `$OF_CUDA_TOOLKIT`, the directory of that command, `$CUDA_PATH`,
//! `/usr/local/cuda`, and the system's library path.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;

use of_cuda_sys::nvrtc as sys;
use of_cuda_sys::{call, functions};

/// Names of the library, newest first.
const NAMES: &[&str] = &["libnvrtc.so.13", "libnvrtc.so.12"];

/// Flags of every compilation. Arithmetic follows IEEE, as on a CPU.
pub const FLAGS: &[&str] = &["--std=c++17", "--fmad=true", "--device-as-default-execution-space"];

/// Why a text failed to compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvrtcError {
    /// The library was not found.
    #[error("NVRTC was not found: {0}")]
    Missing(String),
    /// The compiler rejected the text, or failed.
    #[error("NVRTC failed: {0}")]
    Failed(String),
}

functions! {
    /// The NVRTC functions in use.
    struct Api {
        nvrtcVersion, nvrtcCreateProgram, nvrtcCompileProgram, nvrtcGetCUBINSize, nvrtcGetCUBIN, nvrtcGetProgramLogSize,
        nvrtcGetProgramLog, nvrtcDestroyProgram, nvrtcGetErrorString
    }
}

/// A loaded NVRTC.
struct Nvrtc {
    api: Api,
    version: (c_int, c_int),
}

impl Nvrtc {
    /// Loads the first library file that opens.
    fn load() -> Result<Nvrtc, String> {
        let mut why = String::from("no file of that name");
        for file in of_cuda_sys::candidates(NAMES) {
            match of_cuda_sys::open(&file) {
                Ok(library) => return Self::bind(library).map_err(|e| format!("{}: {e}", file.display())),
                Err(e) => why = e.to_string(),
            }
        }
        Err(why)
    }

    fn bind(library: of_cuda_sys::Library) -> Result<Nvrtc, of_cuda_sys::Error> {
        let (api, mut major, mut minor) = (Api::bind(library)?, 0, 0);
        // SAFETY: both pointers point to local variables.
        unsafe { call!(api, nvrtcVersion(&mut major, &mut minor)) };
        Ok(Nvrtc { api, version: (major, minor) })
    }

    fn check(&self, status: u32) -> Result<(), NvrtcError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a constant string for every number.
        let words = unsafe { CStr::from_ptr(call!(self.api, nvrtcGetErrorString(status))) };
        Err(NvrtcError::Failed(words.to_string_lossy().into_owned()))
    }

    fn cubin(&self, text: &CStr, flags: &[CString]) -> Result<Vec<u8>, NvrtcError> {
        let mut program = Program { nvrtc: self, handle: std::ptr::null_mut() };
        let none = std::ptr::null();
        // SAFETY: text and name end with 0 and live through the call; there are no headers.
        self.check(unsafe {
            call!(
                self.api,
                nvrtcCreateProgram(&mut program.handle, text.as_ptr(), c"kernel.cu".as_ptr(), 0, none, none)
            )
        })?;
        let list: Vec<*const c_char> = flags.iter().map(|f| f.as_ptr()).collect();
        // SAFETY: the program was made above; the flags end with 0 and live through the call.
        let status =
            unsafe { call!(self.api, nvrtcCompileProgram(program.handle, list.len() as c_int, list.as_ptr())) };
        if status != 0 {
            let log = self.log(program.handle)?;
            return Err(NvrtcError::Failed(String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string()));
        }
        let mut bytes = 0;
        // SAFETY: the program was compiled above.
        self.check(unsafe { call!(self.api, nvrtcGetCUBINSize(program.handle, &mut bytes)) })?;
        let mut cubin = vec![0u8; bytes];
        // SAFETY: the library writes as many bytes as it said.
        self.check(unsafe { call!(self.api, nvrtcGetCUBIN(program.handle, cubin.as_mut_ptr().cast())) })?;
        Ok(cubin)
    }

    /// The compiler's messages about a program.
    fn log(&self, program: sys::nvrtcProgram) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program is alive.
        self.check(unsafe { call!(self.api, nvrtcGetProgramLogSize(program, &mut bytes)) })?;
        let mut log = vec![0u8; bytes];
        // SAFETY: the library writes as many bytes as it said.
        self.check(unsafe { call!(self.api, nvrtcGetProgramLog(program, log.as_mut_ptr().cast())) })?;
        Ok(log)
    }
}

/// A program of the library, destroyed on drop.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: sys::nvrtcProgram,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the library made the program, and this is its last use.
            unsafe { call!(self.nvrtc.api, nvrtcDestroyProgram(&mut self.handle)) };
        }
    }
}

fn library() -> Result<&'static Nvrtc, NvrtcError> {
    static LIBRARY: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    LIBRARY.get_or_init(Nvrtc::load).as_ref().map_err(|why| NvrtcError::Missing(why.clone()))
}

/// The version of the compiler; part of the cache's keys.
///
/// # Errors
/// When NVRTC was not found.
pub fn identity() -> Result<String, NvrtcError> {
    let (major, minor) = library()?.version;
    Ok(format!("NVRTC {major}.{minor}"))
}

/// Compiles a text to a cubin.
///
/// # Errors
/// When NVRTC was not found, or rejects the text.
pub fn compile(text: &str, flags: &[&str]) -> Result<Vec<u8>, NvrtcError> {
    let broken = |e: std::ffi::NulError| NvrtcError::Failed(e.to_string());
    let text = CString::new(text).map_err(broken)?;
    let flags = FLAGS.iter().chain(flags).map(|f| CString::new(*f)).collect::<Result<Vec<_>, _>>().map_err(broken)?;
    library()?.cubin(&text, &flags)
}
