//! Bindings of the C API, and where it is installed.

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::payload::Port;
use crate::range::Range;

/// Version of the C API's functions.
const INTERFACE: u32 = 2;
/// The C API.
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
        /// The C API.
        path: String,
        /// The problem.
        why: String,
    },
}

/// Where the libraries and the C API lie: `OF_TENSORRT`, else `$XDG_DATA_HOME/of-opt/tensorrt`, else
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

/// As `Port` of the C API.
#[repr(C)]
struct RawPort {
    name: *const c_char,
    rank: i32,
    element: u32,
}

/// As `Profile` of the C API.
#[repr(C)]
struct RawProfile {
    name: *const c_char,
    rank: i32,
    dims: [*const i64; 3],
}

/// As `Request` of the C API.
#[repr(C)]
struct RawRequest {
    model: *const u8,
    model_len: usize,
    archs: *const i32,
    arch_count: usize,
    profiles: *const RawProfile,
    profile_count: usize,
    tf32: u32,
    keeps_times: u32,
    times: *const u8,
    times_len: usize,
}

type Parse = unsafe extern "C" fn(*const u8, usize, Sink) -> i32;
type Build = unsafe extern "C" fn(*const RawRequest, Sink, Sink, Sink) -> i32;
type Load = unsafe extern "C" fn(*const u8, usize, u32, *const RawPort, usize, usize, *mut *mut c_void, Sink) -> i32;
type Reshape = unsafe extern "C" fn(*mut c_void, *const i64, *mut i64, Sink) -> i32;
type Run = unsafe extern "C" fn(*mut c_void, *const *const u8, usize, *const *mut u8, usize, Sink) -> i32;

/// The functions of the C API, which stays loaded.
pub struct CApi {
    /// The version of TensorRT.
    pub version: String,
    parse: Parse,
    build: Build,
    load: Load,
    reshape: Reshape,
    run: Run,
    unload: unsafe extern "C" fn(*mut c_void),
}

/// The C API of this process.
///
/// # Errors
/// When it is not installed or cannot be used.
pub fn c_api() -> Result<&'static CApi, Missing> {
    static C_API: OnceLock<Result<CApi, Missing>> = OnceLock::new();
    C_API.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<CApi, Missing> {
    let path = folder().map(|d| d.join(FILE)).filter(|p| p.is_file()).ok_or(Missing::Absent)?;
    let broken = |why: String| Missing::Broken { path: path.display().to_string(), why };
    let says = |e: libloading::Error| {
        broken(std::error::Error::source(&e).map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}")))
    };
    // SAFETY: loading it runs the initialisers of NVIDIA's libraries, which the user installed.
    let library: &'static _ = Box::leak(Box::new(unsafe { libloading::Library::new(&path) }.map_err(says)?));
    // SAFETY: the functions have these types in the C API of this version.
    unsafe {
        let interface = library.get::<unsafe extern "C" fn() -> u32>(b"of_tensorrt_interface\0").map_err(says)?;
        if interface() != INTERFACE {
            return Err(broken("it is the C API of another version of this program".into()));
        }
        let version = library.get::<unsafe extern "C" fn(Sink)>(b"of_tensorrt_version\0").map_err(says)?;
        let mut text = Vec::new();
        version(sink(&mut text));
        Ok(CApi {
            version: String::from_utf8_lossy(&text).into_owned(),
            parse: *library.get::<Parse>(b"of_tensorrt_parse\0").map_err(says)?,
            build: *library.get::<Build>(b"of_tensorrt_build\0").map_err(says)?,
            load: *library.get::<Load>(b"of_tensorrt_load\0").map_err(says)?,
            reshape: *library.get::<Reshape>(b"of_tensorrt_reshape\0").map_err(says)?,
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

/// Returns the sink's text as an error if `f` does not return 0.
fn checked(f: impl FnOnce(Sink) -> i32) -> Result<(), String> {
    let mut why = Vec::new();
    if f(sink(&mut why)) == 0 { Ok(()) } else { Err(String::from_utf8_lossy(&why).into_owned()) }
}

impl CApi {
    /// Whether the parser takes an ONNX model.
    ///
    /// # Errors
    /// Why not.
    pub fn parse(&self, model: &[u8]) -> Result<(), String> {
        // SAFETY: model and sink live for the call.
        checked(|why| unsafe { (self.parse)(model.as_ptr(), model.len(), why) })
    }

    /// An engine of an ONNX model.
    ///
    /// # Errors
    /// The error of the parser or the builder.
    pub fn build(&self, request: &Request<'_>) -> Result<Built, String> {
        let (mut engine, mut times) = (Vec::new(), Vec::new());
        let open: Vec<&Port> = request.inputs.iter().filter(|p| p.is_open()).collect();
        let names = names(&open)?;
        let ends: [fn(&Range) -> i64; 3] = [|r| r.min, |r| r.opt, |r| r.max];
        let dims: Vec<[Vec<i64>; 3]> = open.iter().map(|p| ends.map(|end| p.dims.iter().map(end).collect())).collect();
        let profiles: Vec<RawProfile> = (names.iter().zip(&dims))
            .map(|(name, dims)| RawProfile {
                name: name.as_ptr(),
                rank: dims[0].len() as i32,
                dims: [dims[0].as_ptr(), dims[1].as_ptr(), dims[2].as_ptr()],
            })
            .collect();
        let before = request.times.unwrap_or_default();
        let raw = RawRequest {
            model: request.model.as_ptr(),
            model_len: request.model.len(),
            archs: request.archs.as_ptr(),
            arch_count: request.archs.len(),
            profiles: profiles.as_ptr(),
            profile_count: profiles.len(),
            tf32: u32::from(request.tf32),
            keeps_times: u32::from(request.times.is_some()),
            times: before.as_ptr(),
            times_len: before.len(),
        };
        let (to_times, to_engine) = (sink(&mut times), sink(&mut engine));
        // SAFETY: what the request points to lives for the call, with as many of each as it says.
        checked(|why| unsafe { (self.build)(&raw, to_times, to_engine, why) })?;
        Ok(Built { engine, times })
    }

    /// Loads an engine on the GPU with this number, modulo the number of GPUs.
    ///
    /// # Errors
    /// When there is no GPU, or it does not take the engine.
    pub fn load(
        &'static self,
        engine: &[u8],
        device: usize,
        inputs: Vec<Port>,
        outputs: Vec<Port>,
    ) -> Result<Engine, String> {
        let ports: Vec<&Port> = inputs.iter().chain(&outputs).collect();
        let names = names(&ports)?;
        let raw_port = |(name, p): (&CString, &&Port)| {
            let element = p.dtype.byte_len(1).and_then(|n| u32::try_from(n).ok());
            let element = element.ok_or_else(|| format!("it holds no {}", p.dtype))?;
            Ok(RawPort { name: name.as_ptr(), rank: p.dims.len() as i32, element })
        };
        let raw_ports = names.iter().zip(&ports).map(raw_port).collect::<Result<Vec<_>, String>>()?;
        let (device, mut raw) = (u32::try_from(device).unwrap_or(0), std::ptr::null_mut());
        // SAFETY: all of it lives for the call; the number of ports is right.
        checked(|why| unsafe {
            let (ports, count) = (raw_ports.as_ptr(), raw_ports.len());
            (self.load)(engine.as_ptr(), engine.len(), device, ports, inputs.len(), count, &mut raw, why)
        })?;
        Ok(Engine { api: self, raw, inputs, outputs, bytes: Vec::new() })
    }
}

/// The inputs of an engine build.
pub struct Request<'a> {
    /// An ONNX model.
    pub model: &'a [u8],
    /// Its inputs; those with symbolic extents have ranges.
    pub inputs: &'a [Port],
    /// Architectures of GPUs, 90 for sm_90.
    pub archs: &'a [i32],
    /// Whether products of f32 may use a mantissa of ten bits (TF32).
    pub tf32: bool,
    /// Cached kernel timings, if they are kept.
    pub times: Option<&'a [u8]>,
}

/// The result of a [`Request`].
pub struct Built {
    /// The engine.
    pub engine: Vec<u8>,
    /// Kernel timings, including the cached ones; empty if TensorRT measures none.
    pub times: Vec<u8>,
}

fn names(ports: &[&Port]) -> Result<Vec<CString>, String> {
    ports.iter().map(|p| CString::new(p.name.as_str()).map_err(|e| e.to_string())).collect()
}

/// An engine that was loaded.
pub struct Engine {
    api: &'static CApi,
    raw: *mut c_void,
    /// Its inputs.
    pub inputs: Vec<Port>,
    /// Its outputs.
    pub outputs: Vec<Port>,
    /// Bytes of each of them, for the bound extents.
    bytes: Vec<usize>,
}

// SAFETY: it makes the GPU's context current in every call, and is called by one thread at a time.
unsafe impl Send for Engine {}

impl Engine {
    /// Binds the inputs to these extents; returns the extents of the outputs.
    ///
    /// # Errors
    /// When they do not fit, or the GPU has no memory for them.
    pub fn reshape(&mut self, dims: &[&[i64]]) -> Result<Vec<Vec<i64>>, String> {
        self.bytes.clear();
        let fits =
            dims.len() == self.inputs.len() && dims.iter().zip(&self.inputs).all(|(d, p)| d.len() == p.dims.len());
        if !fits {
            return Err("the engine has other inputs".into());
        }
        let given = dims.concat();
        let mut got = vec![0; self.outputs.iter().map(|p| p.dims.len()).sum()];
        // SAFETY: there are as many extents as the ports have that it was loaded with.
        checked(|why| unsafe { (self.api.reshape)(self.raw, given.as_ptr(), got.as_mut_ptr(), why) })?;
        let mut rest = got.as_slice();
        let of = |p: &Port| rest.split_off(..p.dims.len()).unwrap_or_default().to_vec();
        let outputs: Vec<Vec<i64>> = self.outputs.iter().map(of).collect();
        let sized = self.inputs.iter().zip(dims).map(|(p, d)| p.bytes(d));
        let sized = sized.chain(self.outputs.iter().zip(&outputs).map(|(p, d)| p.bytes(d)));
        self.bytes = sized.collect::<Option<_>>().ok_or("a tensor is too large")?;
        Ok(outputs)
    }

    /// Runs it.
    ///
    /// # Errors
    /// When a tensor has other bytes than its extents say, or the GPU fails.
    pub fn run(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), String> {
        let given = inputs.iter().map(|i| i.len()).chain(outputs.iter().map(|o| o.len()));
        if inputs.len() != self.inputs.len() || !given.eq(self.bytes.iter().copied()) {
            return Err("its inputs and outputs have other sizes".into());
        }
        let from: Vec<*const u8> = inputs.iter().map(|i| i.as_ptr()).collect();
        let to: Vec<*mut u8> = outputs.iter_mut().map(|o| o.as_mut_ptr()).collect();
        // SAFETY: sizes are those of the bindings, as was just checked; all of it lives for the call.
        checked(|why| unsafe { (self.api.run)(self.raw, from.as_ptr(), from.len(), to.as_ptr(), to.len(), why) })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: it was made by `load` and is used no more.
        unsafe { (self.api.unload)(self.raw) };
    }
}
