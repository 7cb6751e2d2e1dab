//! The C interface of PJRT plugins: the structs that we use, and owned handles that are safe to use.
//!
//! Layouts are those of `pjrt_c_api.h`, versions 0.81 to 0.114 of it; a newer one appends fields, which it may not read
//! of us. Every function takes a pointer to a struct of arguments that begins with its size, and gives an error or null.

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

use prost::Message;

use crate::options::CompileOptions;

/// Oldest minor version of the interface that has the layouts below.
pub const OLDEST: i32 = 81;

/// What only the plugin looks into.
type Handle = *mut c_void;

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
    DeviceDescriptionId = 23,
    DeviceGetDescription = 29,
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
    extension: Handle,
    version_size: usize,
    version_extension: Handle,
    major: c_int,
    minor: c_int,
    functions: [*const c_void; FUNCTIONS],
}

/// Declares structs of arguments: their size and the pointer to extensions come first. The number of words is that of
/// the header, so that a field that is forgotten does not compile.
macro_rules! arguments {
    ($($name:ident [$words:literal] { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        #[repr(C)]
        struct $name { size: usize, extension: Handle, $($field: $ty),* }

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
    ErrorDestroy [3] { error: Handle }
    ErrorMessage [5] { error: *const c_void, message: *const c_char, len: usize }
    PluginInitialize [2] {}
    Event [3] { event: Handle }
    ClientCreate [11] {
        options: *const c_void, num_options: usize, get: *const c_void, get_arg: Handle, put: *const c_void,
        put_arg: Handle, client: Handle, try_get: *const c_void, try_get_arg: Handle,
    }
    OfHandle [3] { handle: Handle }
    ClientText [5] { client: Handle, text: *const c_char, len: usize }
    NamedNumber [7] { name: *const c_char, name_len: usize, ty: usize, value: i64, values: usize }
    ClientDevices [5] { client: Handle, devices: *const Handle, len: usize }
    GetDescription [4] { device: Handle, description: Handle }
    DescriptionId [4] { description: Handle, id: usize }
    ProgramText [6] { code: *const c_char, len: usize, format: *const c_char, format_len: usize }
    ClientCompile [7] {
        client: Handle, program: *const ProgramText, options: *const u8, options_len: usize,
        executable: Handle,
    }
    BufferFromHost [15] {
        client: Handle, data: *const c_void, ty: usize, dims: *const i64, num_dims: usize,
        strides: *const i64, num_strides: usize, semantics: usize, device: Handle, memory: Handle,
        layout: Handle, done: Handle, buffer: Handle,
    }
    GetExecutable [4] { loaded: Handle, executable: Handle }
    NumOutputs [4] { executable: Handle, outputs: usize }
    Serialize [7] {
        executable: *const c_void, bytes: *const u8, len: usize, serialized: Handle,
        free: Option<unsafe extern "C" fn(Handle)>,
    }
    Deserialize [9] {
        client: Handle, bytes: *const u8, len: usize, loaded: Handle, options: *const c_char,
        options_len: usize, load_options: *const c_void,
    }
    ExecuteOptions [18] {
        send: Handle, receive: Handle, num_send: usize, num_receive: usize, launch: usize,
        kept: *const i64, num_kept: usize, context: Handle, location: *const c_char, num_tasks: usize,
        tasks: *mut c_int, incarnations: *mut i64, slices: Handle, layout_for_callbacks: usize,
        hlo: Handle, num_hlo: usize,
    }
    Execute [10] {
        loaded: Handle, options: *mut ExecuteOptions, arguments: *const *const Handle, num_devices: usize,
        num_arguments: usize, outputs: *const *mut Handle, done: *mut Handle, device: Handle,
    }
    ToHost [7] { src: Handle, layout: Handle, dst: Handle, len: usize, event: Handle }
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
            std::mem::transmute::<*const c_void, unsafe extern "C" fn(*mut T) -> Handle>(f)(args)
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
    fn free(&self, function: Function, handle: Handle) {
        let mut args = OfHandle::new();
        args.handle = handle;
        let _ = self.call(function, &mut args);
    }

    /// Waits for an event and frees it.
    fn finish(&self, event: Handle) -> Result<(), PluginError> {
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
    raw: Handle,
    devices: Vec<Handle>,
    /// The platform and its version, for cache keys and people.
    pub platform: String,
}

// SAFETY: PJRT clients may be used from any thread.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Loads the plugin at `path` and makes a client of it: with so many devices where a number is given, which plugins for CPUs
    /// take.
    ///
    /// # Errors
    /// When it is no plugin of a version that we know, or has no device.
    pub fn open(path: &Path, devices: Option<usize>) -> Result<Client, PluginError> {
        const DEVICES: &str = "cpu_device_count";
        let api = Api::open(path)?;
        let (mut args, mut option) = (ClientCreate::new(), NamedNumber::new());
        if let Some(count) = devices {
            (option.name, option.name_len) = (DEVICES.as_ptr().cast(), DEVICES.len());
            // 1 says that it is an i64, and it is one of them.
            (option.ty, option.value, option.values) = (1, count as i64, 1);
            (args.options, args.num_options) = ((&raw const option).cast(), 1);
        }
        api.call(Function::ClientCreate, &mut args)?;
        let mut client = Client { api, raw: args.client, devices: Vec::new(), platform: String::new() };
        let mut all = ClientDevices::new();
        all.client = client.raw;
        client.api.call(Function::ClientAddressableDevices, &mut all)?;
        if all.len == 0 || all.devices.is_null() {
            return Err(PluginError::NoDevice);
        }
        // SAFETY: there are `len` devices, at least one.
        client.devices = unsafe { std::slice::from_raw_parts(all.devices, all.len) }.to_vec();
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
    fn device(&self, number: usize) -> Handle {
        self.devices[number % self.devices.len()]
    }

    /// Whether its devices are threads of the CPU.
    pub fn is_cpu(&self) -> bool {
        self.platform.starts_with("cpu,")
    }

    /// How many devices there are.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// The number that programs know a device by.
    fn id(&self, device: usize) -> Result<i64, PluginError> {
        let mut of = GetDescription::new();
        of.device = self.device(device);
        self.api.call(Function::DeviceGetDescription, &mut of)?;
        let mut args = DescriptionId::new();
        args.description = of.description;
        self.api.call(Function::DeviceDescriptionId, &mut args)?;
        // A C int, which is the lower half of the word.
        Ok((args.id & 0xffff_ffff) as i64)
    }

    /// Compiles MLIR text for one device, whichever that is, or for as many replicas as `devices` are named.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn compile(self: &Arc<Self>, text: &str, devices: &[usize]) -> Result<Loaded, PluginError> {
        let ids = devices.iter().map(|d| self.id(*d)).collect::<Result<Vec<_>, _>>()?;
        let options = CompileOptions::of(ids, self.is_cpu()).encode_to_vec();
        const FORMAT: &str = "mlir";
        let mut program = ProgramText::new();
        (program.code, program.len) = (text.as_ptr().cast(), text.len());
        (program.format, program.format_len) = (FORMAT.as_ptr().cast(), FORMAT.len());
        let mut args = ClientCompile::new();
        (args.client, args.program) = (self.raw, &program);
        (args.options, args.options_len) = (options.as_ptr(), options.len());
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
    raw: Handle,
}

// SAFETY: PJRT buffers may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

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
    raw: Handle,
    executable: Handle,
    outputs: usize,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Loaded {}

impl Loaded {
    fn new(client: Arc<Client>, raw: Handle) -> Result<Loaded, PluginError> {
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
        self.call(&[args.to_vec()], kept, self.client.device(device)).map(|mut results| results.remove(0))
    }

    /// Runs it on all devices that it was compiled for, whose arguments are given one after the other, as [`Loaded::execute`]
    /// does on one.
    ///
    /// # Errors
    /// When the arguments do not fit.
    pub fn execute_together(&self, args: &[Vec<&Buffer>], kept: &[i64]) -> Result<Vec<Vec<Buffer>>, PluginError> {
        self.call(args, kept, null_mut())
    }

    fn call(&self, args: &[Vec<&Buffer>], kept: &[i64], device: Handle) -> Result<Vec<Vec<Buffer>>, PluginError> {
        let num = args.first().map_or(0, Vec::len);
        if args.iter().any(|own| own.len() != num) {
            return Err(PluginError::Call("devices of one program have several numbers of arguments".into()));
        }
        let raw: Vec<Vec<Handle>> = args.iter().map(|own| own.iter().map(|b| b.raw).collect()).collect();
        let lists: Vec<*const Handle> = raw.iter().map(Vec::as_ptr).collect();
        let mut results: Vec<Vec<Handle>> = args.iter().map(|_| vec![null_mut(); self.outputs]).collect();
        let outputs: Vec<*mut Handle> = results.iter_mut().map(Vec::as_mut_ptr).collect();
        let mut options = ExecuteOptions::new();
        (options.kept, options.num_kept) = (kept.as_ptr(), kept.len());
        let mut call = Execute::new();
        (call.loaded, call.options) = (self.raw, &mut options);
        (call.arguments, call.num_devices, call.num_arguments) = (lists.as_ptr(), args.len(), num);
        (call.outputs, call.device) = (outputs.as_ptr(), device);
        self.client.api.call(Function::LoadedExecutableExecute, &mut call)?;
        let buffer = |raw| Buffer { client: self.client.clone(), raw };
        Ok(results.into_iter().map(|own| own.into_iter().map(buffer).collect()).collect())
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
