//! The C interface of PJRT plugins: the structs that we use, and owned handles that are safe to use.
//!
//! Layouts are those of `pjrt_c_api.h`, versions 0.81 to 0.114 of it; a newer one appends fields, which it may not read
//! of us. Every function takes a pointer to a struct of arguments that begins with its size, and gives an error or null.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

/// Oldest minor version of the interface that has the layouts below.
pub const OLDEST: i32 = 81;

/// Places in the table of functions.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Function {
    ErrorDestroy = 0,
    ErrorMessage = 1,
    PluginInitialize = 3,
    EventDestroy = 5,
    EventAwait = 8,
    ClientCreate = 10,
    ClientDestroy = 11,
    ClientPlatformName = 12,
    ClientPlatformVersion = 14,
    ClientAddressableDevices = 16,
    ClientCompile = 20,
    ClientBufferFromHostBuffer = 22,
    ExecutableDestroy = 40,
    ExecutableNumOutputs = 44,
    ExecutableSerialize = 49,
    LoadedExecutableDestroy = 50,
    LoadedExecutableGetExecutable = 51,
    LoadedExecutableExecute = 55,
    ExecutableDeserializeAndLoad = 56,
    BufferDestroy = 58,
    BufferToHostBuffer = 70,
}

/// One more than the last place that we use.
const FUNCTIONS: usize = Function::BufferToHostBuffer as usize + 1;

#[repr(C)]
struct RawApi {
    size: usize,
    extension: *mut c_void,
    version_size: usize,
    version_extension: *mut c_void,
    major: c_int,
    minor: c_int,
    functions: [*const c_void; FUNCTIONS],
}

/// Declares structs of arguments: their size and the pointer to extensions come first. The number of words is that of
/// the header, so that a field that is forgotten does not compile.
macro_rules! arguments {
    ($($name:ident [$words:literal] { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        #[repr(C)]
        struct $name { size: usize, extension: *mut c_void, $($field: $ty),* }

        impl $name {
            /// Everything zero but the size.
            fn new() -> Self {
                const { assert!(size_of::<$name>() == 8 * $words) };
                // SAFETY: the fields are integers and raw pointers, for which zero is a value.
                let mut args: Self = unsafe { std::mem::zeroed() };
                args.size = size_of::<Self>();
                args
            }
        }
    )*};
}

arguments! {
    ErrorDestroy [3] { error: *mut c_void }
    ErrorMessage [5] { error: *const c_void, message: *const c_char, len: usize }
    PluginInitialize [2] {}
    Event [3] { event: *mut c_void }
    ClientCreate [11] {
        options: *const c_void, num_options: usize, get: *const c_void, get_arg: *mut c_void, put: *const c_void,
        put_arg: *mut c_void, client: *mut c_void, try_get: *const c_void, try_get_arg: *mut c_void,
    }
    Handle [3] { handle: *mut c_void }
    ClientText [5] { client: *mut c_void, text: *const c_char, len: usize }
    ClientDevices [5] { client: *mut c_void, devices: *const *mut c_void, len: usize }
    ProgramText [6] { code: *const c_char, len: usize, format: *const c_char, format_len: usize }
    ClientCompile [7] {
        client: *mut c_void, program: *const ProgramText, options: *const u8, options_len: usize,
        executable: *mut c_void,
    }
    BufferFromHost [15] {
        client: *mut c_void, data: *const c_void, ty: usize, dims: *const i64, num_dims: usize,
        strides: *const i64, num_strides: usize, semantics: usize, device: *mut c_void, memory: *mut c_void,
        layout: *mut c_void, done: *mut c_void, buffer: *mut c_void,
    }
    GetExecutable [4] { loaded: *mut c_void, executable: *mut c_void }
    NumOutputs [4] { executable: *mut c_void, outputs: usize }
    Serialize [7] {
        executable: *const c_void, bytes: *const u8, len: usize, serialized: *mut c_void,
        free: Option<unsafe extern "C" fn(*mut c_void)>,
    }
    Deserialize [9] {
        client: *mut c_void, bytes: *const u8, len: usize, loaded: *mut c_void, options: *const c_char,
        options_len: usize, load_options: *const c_void,
    }
    ExecuteOptions [18] {
        send: *mut c_void, receive: *mut c_void, num_send: usize, num_receive: usize, launch: usize,
        kept: *const i64, num_kept: usize, context: *mut c_void, location: *const c_char, num_tasks: usize,
        tasks: *mut c_int, incarnations: *mut i64, slices: *mut c_void, layout_for_callbacks: usize,
        hlo: *mut c_void, num_hlo: usize,
    }
    Execute [10] {
        loaded: *mut c_void, options: *mut ExecuteOptions, arguments: *const *const *mut c_void, num_devices: usize,
        num_arguments: usize, outputs: *const *mut *mut c_void, done: *mut *mut c_void, device: *mut c_void,
    }
    ToHost [7] { src: *mut c_void, layout: *mut c_void, dst: *mut c_void, len: usize, event: *mut c_void }
}

/// Why a plugin cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// No library, or not a plugin.
    #[error("'{path}' cannot be loaded: {why}")]
    Load {
        /// The file.
        path: String,
        /// What the loader says.
        why: String,
    },
    /// Another version of the interface.
    #[error("'{path}' speaks version {major}.{minor} of the PJRT interface; 0.{OLDEST} and later are understood")]
    Version {
        /// The file.
        path: String,
        /// Its major version.
        major: i32,
        /// Its minor version.
        minor: i32,
    },
    /// What a function of the plugin says.
    #[error("{0}")]
    Call(String),
    /// It has no device.
    #[error("the plugin has no device")]
    NoDevice,
}

/// What the loader says, down to the cause.
fn why(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}"))
}

/// A loaded plugin, which stays loaded.
struct Api {
    raw: *const RawApi,
    _library: libloading::Library,
}

// SAFETY: the table of functions is constant, and PJRT functions may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    fn open(path: &Path) -> Result<Api, PluginError> {
        let shown = path.display().to_string();
        let load = |why: String| PluginError::Load { path: shown.clone(), why };
        // SAFETY: running the initialisers of a library is what loading a plugin means; the user names it.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| load(why(&e)))?;
        // SAFETY: every PJRT plugin exports this function, of this type.
        let raw = unsafe {
            let get = library.get::<unsafe extern "C" fn() -> *const RawApi>(b"GetPjrtApi\0");
            get.map_err(|e| load(why(&e)))?()
        };
        if raw.is_null() {
            return Err(load("GetPjrtApi gives nothing".into()));
        }
        // SAFETY: the size and the version come first in every version of the struct.
        let (size, major, minor) = unsafe { ((*raw).size, (*raw).major, (*raw).minor) };
        if major != 0 || minor < OLDEST || size < size_of::<RawApi>() {
            return Err(PluginError::Version { path: shown, major, minor });
        }
        let api = Api { raw, _library: library };
        api.call(Function::PluginInitialize, &mut PluginInitialize::new())?;
        Ok(api)
    }

    /// Calls a function with its struct of arguments: the caller pairs them.
    fn call<T>(&self, function: Function, args: &mut T) -> Result<(), PluginError> {
        // SAFETY: the table has a function of this type at the place; `args` is its struct, whose size it checks.
        let error = unsafe {
            let f = (*self.raw).functions[function as usize];
            if f.is_null() {
                return Err(PluginError::Call("the plugin lacks a function".into()));
            }
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut T) -> *mut c_void>(f)(args)
        };
        if error.is_null() {
            return Ok(());
        }
        let mut text = ErrorMessage::new();
        text.error = error;
        self.void(Function::ErrorMessage, &mut text);
        let message = string(text.message, text.len);
        let mut destroy = ErrorDestroy::new();
        destroy.error = error;
        self.void(Function::ErrorDestroy, &mut destroy);
        Err(PluginError::Call(message))
    }

    /// Calls one of the functions that give nothing.
    fn void<T>(&self, function: Function, args: &mut T) {
        // SAFETY: as in `call`; these two functions give no error.
        unsafe {
            let f = (*self.raw).functions[function as usize];
            if !f.is_null() {
                std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut T)>(f)(args);
            }
        }
    }

    /// Frees what a handle names. An error at this point is of no use to anyone.
    fn free(&self, function: Function, handle: *mut c_void) {
        let mut args = Handle::new();
        args.handle = handle;
        let _ = self.call(function, &mut args);
    }

    /// Waits for an event and frees it.
    fn finish(&self, event: *mut c_void) -> Result<(), PluginError> {
        if event.is_null() {
            return Ok(());
        }
        let mut args = Event::new();
        args.event = event;
        let result = self.call(Function::EventAwait, &mut args);
        let mut args = Event::new();
        args.event = event;
        let _ = self.call(Function::EventDestroy, &mut args);
        result
    }
}

fn string(text: *const c_char, len: usize) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the plugin gives `len` bytes that live as long as what they belong to.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// A client of a plugin, and its devices.
pub struct Client {
    api: Api,
    raw: *mut c_void,
    devices: Vec<*mut c_void>,
    /// The platform and its version, for cache keys and people.
    pub platform: String,
}

// SAFETY: PJRT clients may be used from any thread.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Loads the plugin at `path` and makes a client of it.
    ///
    /// # Errors
    /// When it is no plugin of a version that we know, or has no device.
    pub fn open(path: &Path) -> Result<Client, PluginError> {
        let api = Api::open(path)?;
        let mut args = ClientCreate::new();
        api.call(Function::ClientCreate, &mut args)?;
        let mut client = Client { api, raw: args.client, devices: Vec::new(), platform: String::new() };
        let mut devices = ClientDevices::new();
        devices.client = client.raw;
        client.api.call(Function::ClientAddressableDevices, &mut devices)?;
        if devices.len == 0 || devices.devices.is_null() {
            return Err(PluginError::NoDevice);
        }
        // SAFETY: there are `len` devices, at least one.
        client.devices = unsafe { std::slice::from_raw_parts(devices.devices, devices.len) }.to_vec();
        let name = client.text(Function::ClientPlatformName)?;
        let version = client.text(Function::ClientPlatformVersion)?;
        client.platform = format!("{name}, {}", version.replace('\n', " "));
        Ok(client)
    }

    fn text(&self, function: Function) -> Result<String, PluginError> {
        let mut args = ClientText::new();
        args.client = self.raw;
        self.api.call(function, &mut args)?;
        Ok(string(args.text, args.len))
    }

    /// The device of this number, counted on from the first where there are fewer.
    fn device(&self, number: usize) -> *mut c_void {
        self.devices[number % self.devices.len()]
    }

    /// Compiles MLIR text for one device, whichever that is.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn compile(self: &Arc<Self>, text: &str) -> Result<Loaded, PluginError> {
        // CompileOptionsProto { executable_build_options (3): { num_replicas (4): 1, num_partitions (5): 1 },
        // compile_portable_executable (4): true }
        const OPTIONS: [u8; 8] = [0x1a, 4, 0x20, 1, 0x28, 1, 0x20, 1];
        const FORMAT: &str = "mlir";
        let mut program = ProgramText::new();
        (program.code, program.len) = (text.as_ptr().cast(), text.len());
        (program.format, program.format_len) = (FORMAT.as_ptr().cast(), FORMAT.len());
        let mut args = ClientCompile::new();
        (args.client, args.program) = (self.raw, &program);
        (args.options, args.options_len) = (OPTIONS.as_ptr(), OPTIONS.len());
        self.api.call(Function::ClientCompile, &mut args)?;
        Loaded::new(self.clone(), args.executable)
    }

    /// Loads what [`Loaded::serialize`] gave.
    ///
    /// # Errors
    /// When it is from another version, or damaged.
    pub fn load(self: &Arc<Self>, bytes: &[u8]) -> Result<Loaded, PluginError> {
        let mut args = Deserialize::new();
        (args.client, args.bytes, args.len) = (self.raw, bytes.as_ptr(), bytes.len());
        self.api.call(Function::ExecutableDeserializeAndLoad, &mut args)?;
        Loaded::new(self.clone(), args.loaded)
    }

    /// A copy of bytes on the device of this number; `ty` is a `PJRT_Buffer_Type`.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn buffer(self: &Arc<Self>, device: usize, bytes: &[u8], ty: u32, dims: &[i64]) -> Result<Buffer, PluginError> {
        let mut args = BufferFromHost::new();
        (args.client, args.device) = (self.raw, self.device(device));
        (args.data, args.ty) = (bytes.as_ptr().cast(), ty as usize);
        (args.dims, args.num_dims) = (dims.as_ptr(), dims.len());
        // Semantics 0: the plugin reads the bytes during the call alone.
        self.api.call(Function::ClientBufferFromHostBuffer, &mut args)?;
        let buffer = Buffer { client: self.clone(), raw: args.buffer };
        self.api.finish(args.done)?;
        Ok(buffer)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.api.free(Function::ClientDestroy, self.raw);
    }
}

/// A buffer on a device.
pub struct Buffer {
    client: Arc<Client>,
    raw: *mut c_void,
}

// SAFETY: PJRT buffers may be used from any thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Copies the elements, row-major, once they are computed.
    ///
    /// # Errors
    /// When what computes them failed, or `out` is of another size.
    pub fn read(&self, out: &mut [u8]) -> Result<(), PluginError> {
        let mut size = ToHost::new();
        size.src = self.raw;
        self.client.api.call(Function::BufferToHostBuffer, &mut size)?;
        if size.len != out.len() {
            return Err(PluginError::Call(format!("a result has {} bytes, not {}", size.len, out.len())));
        }
        let mut args = ToHost::new();
        (args.src, args.dst, args.len) = (self.raw, out.as_mut_ptr().cast(), out.len());
        self.client.api.call(Function::BufferToHostBuffer, &mut args)?;
        self.client.api.finish(args.event)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.client.api.free(Function::BufferDestroy, self.raw);
    }
}

/// A compiled program.
pub struct Loaded {
    client: Arc<Client>,
    raw: *mut c_void,
    executable: *mut c_void,
    outputs: usize,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Loaded {}

impl Loaded {
    fn new(client: Arc<Client>, raw: *mut c_void) -> Result<Loaded, PluginError> {
        let mut loaded = Loaded { client, raw, executable: null_mut(), outputs: 0 };
        let mut args = GetExecutable::new();
        args.loaded = raw;
        loaded.client.api.call(Function::LoadedExecutableGetExecutable, &mut args)?;
        loaded.executable = args.executable;
        let mut args = NumOutputs::new();
        args.executable = loaded.executable;
        loaded.client.api.call(Function::ExecutableNumOutputs, &mut args)?;
        loaded.outputs = args.outputs;
        Ok(loaded)
    }

    /// Runs it on the device of this number, where the arguments are; the results are computed when they are read. They may
    /// take over the memory of arguments, whose buffers are of no use then, but not of those at the places `kept`.
    ///
    /// # Errors
    /// When the arguments do not fit.
    pub fn execute(&self, device: usize, args: &[&Buffer], kept: &[i64]) -> Result<Vec<Buffer>, PluginError> {
        let raw: Vec<*mut c_void> = args.iter().map(|b| b.raw).collect();
        let mut results: Vec<*mut c_void> = vec![null_mut(); self.outputs];
        let (lists, outputs) = ([raw.as_ptr()], [results.as_mut_ptr()]);
        let mut options = ExecuteOptions::new();
        (options.kept, options.num_kept) = (kept.as_ptr(), kept.len());
        let mut call = Execute::new();
        (call.loaded, call.options) = (self.raw, &mut options);
        (call.arguments, call.num_devices, call.num_arguments) = (lists.as_ptr(), 1, raw.len());
        (call.outputs, call.device) = (outputs.as_ptr(), self.client.device(device));
        self.client.api.call(Function::LoadedExecutableExecute, &mut call)?;
        Ok(results.into_iter().map(|raw| Buffer { client: self.client.clone(), raw }).collect())
    }

    /// The program as bytes that the same version of the plugin loads.
    ///
    /// # Errors
    /// When the plugin cannot do that.
    pub fn serialize(&self) -> Result<Vec<u8>, PluginError> {
        let mut args = Serialize::new();
        args.executable = self.executable;
        self.client.api.call(Function::ExecutableSerialize, &mut args)?;
        let bytes = if args.bytes.is_null() {
            Vec::new()
        } else {
            // SAFETY: the bytes live until `free` is called.
            unsafe { std::slice::from_raw_parts(args.bytes, args.len) }.to_vec()
        };
        if let Some(free) = args.free {
            // SAFETY: the function and its argument come from the same call.
            unsafe { free(args.serialized) };
        }
        Ok(bytes)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if !self.executable.is_null() {
            self.client.api.free(Function::ExecutableDestroy, self.executable);
        }
        self.client.api.free(Function::LoadedExecutableDestroy, self.raw);
    }
}
