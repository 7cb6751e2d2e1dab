//! NVRTC, the compiler of kernels for GPUs. It is loaded when it is needed, and needs no GPU.
//!
//! `cargo xtask cuda-toolkit` installs it. It is looked for in `$OF_CUDA_TOOLKIT`, where that command puts it, in
//! `$CUDA_PATH` and `/usr/local/cuda`, and where the system looks for libraries.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::Library;

/// Names of the library, the newest first.
const NAMES: &[&str] = &["libnvrtc.so.13", "libnvrtc.so.12"];

/// Flags of every compilation. Numbers must be IEEE numbers, as on a CPU.
pub const FLAGS: &[&str] = &["--std=c++17", "--fmad=true", "--device-as-default-execution-space"];

/// Why a text was not compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvrtcError {
    /// There is no library.
    #[error("NVRTC was not found: {0}")]
    Missing(String),
    /// The compiler refused the text, or broke.
    #[error("NVRTC failed: {0}")]
    Failed(String),
}

/// The folder that `cargo xtask cuda-toolkit` installs to: `$OF_CUDA_TOOLKIT`, else beside the user's kernels.
pub fn toolkit() -> Option<PathBuf> {
    let var = |n: &str| std::env::var_os(n).filter(|v| !v.is_empty()).map(PathBuf::from);
    let own = || var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|d| d.join(".cache")));
    var("OF_CUDA_TOOLKIT").or_else(|| own().map(|d| d.join("of-opt/cuda-toolkit")))
}

/// Where a library of CUDA's toolkit may be that has one of these names, in the order to look.
pub fn files(names: &[&str]) -> Vec<PathBuf> {
    let folders = [
        toolkit().map(|d| d.join("lib")),
        std::env::var_os("CUDA_PATH").map(|d| PathBuf::from(d).join("lib64")),
        Some(PathBuf::from("/usr/local/cuda/lib64")),
    ];
    let there = folders.into_iter().flatten().flat_map(|d| names.iter().map(move |n| d.join(n)));
    there.filter(|f| f.exists()).chain(names.iter().map(PathBuf::from)).collect()
}

type Handle = *mut c_void;

/// The functions of the library that are used, by their names there.
struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    version: (c_int, c_int),
    _library: Library,
}

impl Nvrtc {
    /// Loads the library.
    fn load() -> Result<Nvrtc, String> {
        let mut why = String::from("no file of that name");
        for file in files(NAMES) {
            // SAFETY: the library is NVIDIA's, or what the user named; its constructors are its own affair.
            match unsafe { Library::new(&file) } {
                Ok(library) => return Self::bind(library).map_err(|e| format!("{}: {e}", file.display())),
                Err(e) => why = e.to_string(),
            }
        }
        Err(why)
    }

    fn bind(library: Library) -> Result<Nvrtc, libloading::Error> {
        // SAFETY: the signatures are those of nvrtc.h, which have not changed since CUDA 11.
        unsafe {
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = *library.get(b"nvrtcVersion")?;
            let (mut major, mut minor) = (0, 0);
            version(&mut major, &mut minor);
            Ok(Nvrtc {
                create: *library.get(b"nvrtcCreateProgram")?,
                compile: *library.get(b"nvrtcCompileProgram")?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize")?,
                cubin: *library.get(b"nvrtcGetCUBIN")?,
                log_size: *library.get(b"nvrtcGetProgramLogSize")?,
                log: *library.get(b"nvrtcGetProgramLog")?,
                destroy: *library.get(b"nvrtcDestroyProgram")?,
                error: *library.get(b"nvrtcGetErrorString")?,
                version: (major, minor),
                _library: library,
            })
        }
    }

    fn check(&self, status: c_int) -> Result<(), NvrtcError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a constant string for every number.
        let words = unsafe { CStr::from_ptr((self.error)(status)) };
        Err(NvrtcError::Failed(words.to_string_lossy().into_owned()))
    }

    fn cubin(&self, text: &CStr, flags: &[CString]) -> Result<Vec<u8>, NvrtcError> {
        let mut program = Program { nvrtc: self, handle: std::ptr::null_mut() };
        let none = std::ptr::null();
        // SAFETY: text and name end with 0 and live through the call; there are no headers.
        self.check(unsafe { (self.create)(&mut program.handle, text.as_ptr(), c"kernel.cu".as_ptr(), 0, none, none) })?;
        let list: Vec<*const c_char> = flags.iter().map(|f| f.as_ptr()).collect();
        // SAFETY: the program was made above; the flags end with 0 and live through the call.
        let status = unsafe { (self.compile)(program.handle, list.len() as c_int, list.as_ptr()) };
        if status != 0 {
            let log = self.bytes(program.handle, self.log_size, self.log)?;
            return Err(NvrtcError::Failed(String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string()));
        }
        self.bytes(program.handle, self.cubin_size, self.cubin)
    }

    /// What the library has for a program: asked for its size first, then for its bytes.
    fn bytes(
        &self,
        program: Handle,
        size: unsafe extern "C" fn(Handle, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, NvrtcError> {
        let mut n = 0usize;
        // SAFETY: the program is alive.
        self.check(unsafe { size(program, &mut n) })?;
        let mut out = vec![0u8; n];
        // SAFETY: the library writes as many bytes as it said.
        self.check(unsafe { get(program, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }
}

/// A program of the library, destroyed when it is dropped.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the library made the program, and nobody uses it any more.
            unsafe { (self.nvrtc.destroy)(&mut self.handle) };
        }
    }
}

fn library() -> Result<&'static Nvrtc, NvrtcError> {
    static LIBRARY: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    LIBRARY.get_or_init(Nvrtc::load).as_ref().map_err(|why| NvrtcError::Missing(why.clone()))
}

/// What the compiler says it is; part of the cache's keys.
///
/// # Errors
/// When there is none.
pub fn identity() -> Result<String, NvrtcError> {
    let (major, minor) = library()?.version;
    Ok(format!("NVRTC {major}.{minor}"))
}

/// Compiles a text to a cubin.
///
/// # Errors
/// When there is no compiler, or it refuses the text.
pub fn compile(text: &str, flags: &[&str]) -> Result<Vec<u8>, NvrtcError> {
    let broken = |e: std::ffi::NulError| NvrtcError::Failed(e.to_string());
    let text = CString::new(text).map_err(broken)?;
    let flags = FLAGS.iter().chain(flags).map(|f| CString::new(*f)).collect::<Result<Vec<_>, _>>().map_err(broken)?;
    library()?.cubin(&text, &flags)
}
