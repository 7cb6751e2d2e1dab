//! The shim as Rust sees it, and where it lies.

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Version of the shim's functions.
const INTERFACE: u32 = 1;
/// The shim.
const FILE: &str = "libof_tensorrt.so";

/// Why there is no TensorRT.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Nothing is installed.
    #[error("TensorRT is not installed; 'cargo xtask tensorrt' fetches TensorRT-RTX")]
    Absent,
    /// What is there cannot be used.
    #[error("'{path}' cannot be used: {why}")]
    Broken {
        /// The shim.
        path: String,
        /// What is wrong.
        why: String,
    },
}

/// Where the libraries and the shim lie: `OF_TENSORRT`, else `$XDG_DATA_HOME/of-opt/tensorrt`, else
/// `~/.local/share/of-opt/tensorrt`.
pub fn folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let data = || var("XDG_DATA_HOME").or_else(|| var("HOME").map(|d| d.join(".local").join("share")));
    var("OF_TENSORRT").or_else(|| data().map(|d| d.join("of-opt").join("tensorrt")))
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Sink {
    context: *mut c_void,
    write: unsafe extern "C" fn(*mut c_void, *const u8, usize),
}

type Parse = unsafe extern "C" fn(*const u8, usize, Sink) -> i32;
type Build = unsafe extern "C" fn(*const u8, usize, *const i32, usize, u32, Sink, Sink) -> i32;
type Load =
    unsafe extern "C" fn(*const u8, usize, *const *const c_char, *const usize, usize, *mut *mut c_void, Sink) -> i32;
type Run = unsafe extern "C" fn(*mut c_void, *const *const u8, usize, *const *mut u8, usize, Sink) -> i32;

/// The functions of the shim, which stays loaded.
pub struct Shim {
    /// The version of TensorRT.
    pub version: String,
    parse: Parse,
    build: Build,
    load: Load,
    run: Run,
    unload: unsafe extern "C" fn(*mut c_void),
}

/// The shim of this process.
///
/// # Errors
/// When it is not installed or cannot be used.
pub fn shim() -> Result<&'static Shim, Missing> {
    static SHIM: OnceLock<Result<Shim, Missing>> = OnceLock::new();
    SHIM.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Shim, Missing> {
    let path = folder().map(|d| d.join(FILE)).filter(|p| p.is_file()).ok_or(Missing::Absent)?;
    let broken = |why: String| Missing::Broken { path: path.display().to_string(), why };
    let says = |e: libloading::Error| {
        broken(std::error::Error::source(&e).map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}")))
    };
    // SAFETY: loading it runs the initialisers of NVIDIA's libraries, which the user installed.
    let library: &'static _ = Box::leak(Box::new(unsafe { libloading::Library::new(&path) }.map_err(says)?));
    // SAFETY: the functions have these types in the shim of this version.
    unsafe {
        let interface = library.get::<unsafe extern "C" fn() -> u32>(b"of_tensorrt_interface\0").map_err(says)?;
        if interface() != INTERFACE {
            return Err(broken("it is the shim of another version of this program".into()));
        }
        let version = library.get::<unsafe extern "C" fn(Sink)>(b"of_tensorrt_version\0").map_err(says)?;
        let mut text = Vec::new();
        version(sink(&mut text));
        Ok(Shim {
            version: String::from_utf8_lossy(&text).into_owned(),
            parse: *library.get::<Parse>(b"of_tensorrt_parse\0").map_err(says)?,
            build: *library.get::<Build>(b"of_tensorrt_build\0").map_err(says)?,
            load: *library.get::<Load>(b"of_tensorrt_load\0").map_err(says)?,
            run: *library.get::<Run>(b"of_tensorrt_run\0").map_err(says)?,
            unload: *library.get::<unsafe extern "C" fn(*mut c_void)>(b"of_tensorrt_unload\0").map_err(says)?,
        })
    }
}

unsafe extern "C" fn append(context: *mut c_void, data: *const u8, len: usize) {
    if len > 0 {
        // SAFETY: the context is the vector of `sink`, the data lives for this call.
        unsafe { (*context.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(data, len)) };
    }
}

fn sink(to: &mut Vec<u8>) -> Sink {
    Sink { context: std::ptr::from_mut(to).cast(), write: append }
}

/// Gives what was written to the sink where `f` does not give 0.
fn checked(f: impl FnOnce(Sink) -> i32) -> Result<(), String> {
    let mut why = Vec::new();
    if f(sink(&mut why)) == 0 { Ok(()) } else { Err(String::from_utf8_lossy(&why).into_owned()) }
}

impl Shim {
    /// Whether the parser takes an ONNX model.
    ///
    /// # Errors
    /// Why not.
    pub fn parse(&self, model: &[u8]) -> Result<(), String> {
        // SAFETY: model and sink live for the call.
        checked(|why| unsafe { (self.parse)(model.as_ptr(), model.len(), why) })
    }

    /// An engine of an ONNX model for GPUs of these architectures, 90 for sm_90.
    ///
    /// # Errors
    /// What the parser or the builder says.
    pub fn build(&self, model: &[u8], archs: &[i32], tf32: bool) -> Result<Vec<u8>, String> {
        let mut engine = Vec::new();
        let out = sink(&mut engine);
        // SAFETY: as above.
        checked(|why| unsafe {
            (self.build)(model.as_ptr(), model.len(), archs.as_ptr(), archs.len(), u32::from(tf32), out, why)
        })?;
        Ok(engine)
    }

    /// An engine on the first GPU. Inputs, then outputs, have these names and bytes.
    ///
    /// # Errors
    /// When there is no GPU, or it does not take the engine.
    pub fn load(&'static self, engine: &[u8], bindings: &[(String, usize)]) -> Result<Engine, String> {
        let names: Vec<CString> = bindings.iter().map(|b| CString::new(b.0.as_str()).unwrap_or_default()).collect();
        let names: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
        let bytes: Vec<usize> = bindings.iter().map(|b| b.1).collect();
        let mut raw = std::ptr::null_mut();
        // SAFETY: all of it lives for the call; there are as many names as sizes.
        checked(|why| unsafe {
            (self.load)(engine.as_ptr(), engine.len(), names.as_ptr(), bytes.as_ptr(), names.len(), &mut raw, why)
        })?;
        Ok(Engine { shim: self, raw, bytes })
    }
}

/// An engine that was loaded.
pub struct Engine {
    shim: &'static Shim,
    raw: *mut c_void,
    bytes: Vec<usize>,
}

// SAFETY: it makes the GPU's context current in every call, and is called by one thread at a time.
unsafe impl Send for Engine {}

impl Engine {
    /// Runs it.
    ///
    /// # Errors
    /// When a tensor has other bytes than the engine was loaded for, or the GPU fails.
    pub fn run(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), String> {
        let given = inputs.iter().map(|i| i.len()).chain(outputs.iter().map(|o| o.len()));
        if !given.eq(self.bytes.iter().copied()) {
            return Err("its inputs and outputs have other sizes".into());
        }
        let from: Vec<*const u8> = inputs.iter().map(|i| i.as_ptr()).collect();
        let to: Vec<*mut u8> = outputs.iter_mut().map(|o| o.as_mut_ptr()).collect();
        // SAFETY: sizes are those of the bindings, as was just checked; all of it lives for the call.
        checked(|why| unsafe { (self.shim.run)(self.raw, from.as_ptr(), from.len(), to.as_ptr(), to.len(), why) })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: it was made by `load` and is used no more.
        unsafe { (self.shim.unload)(self.raw) };
    }
}
