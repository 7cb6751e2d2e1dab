//! A loaded plugin: its function table, and the call of a function.

use std::ffi::c_char;
use std::path::Path;

use super::bindings::*;

/// The oldest minor version of the interface whose functions are called as they are declared here.
const OLDEST_MINOR: i32 = 81;

/// Why a plugin cannot be used, or its error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// The file is not a library, or not a plugin.
    #[error("'{path}' cannot be loaded: {why}")]
    Load {
        /// The file.
        path: String,
        /// The message of the dynamic loader.
        why: String,
    },
    /// The plugin implements a version of the interface that is too old.
    #[error(
        "'{path}' implements version {major}.{minor} of the PJRT interface; version 0.{OLDEST_MINOR} or newer is needed"
    )]
    Version {
        /// The file.
        path: String,
        /// Its major version.
        major: i32,
        /// Its minor version.
        minor: i32,
    },
    /// The table of functions has another size than its version says.
    #[error("'{path}' has a table of {found} bytes; version 0.{minor} of the PJRT interface has {expected}")]
    Layout {
        /// The file.
        path: String,
        /// Its minor version.
        minor: i32,
        /// Bytes of its table.
        found: usize,
        /// Bytes of the table that the header of that version declares.
        expected: usize,
    },
    /// An error of the plugin's function.
    #[error("{0}")]
    Call(String),
    /// The plugin has no device.
    #[error("the plugin has no device")]
    NoDevice,
}

/// The message of the dynamic loader, with its cause.
fn why(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}"))
}

/// A struct of arguments.
pub(super) trait Args: Sized {
    /// Zero in every field but the size.
    fn new() -> Self;
}

macro_rules! args {
    ($($name:ident),* $(,)?) => {$(
        impl Args for $name {
            fn new() -> Self {
                // SAFETY: the fields are numbers, raw pointers and optional functions, for which zero is a value.
                let mut args: Self = unsafe { std::mem::zeroed() };
                args.struct_size = size_of::<Self>();
                args
            }
        }
    )*};
}

args! {
    PJRT_Error_Destroy_Args, PJRT_Error_Message_Args, PJRT_Plugin_Initialize_Args, PJRT_Event_Destroy_Args,
    PJRT_Event_Await_Args, PJRT_Client_Create_Args, PJRT_Client_Destroy_Args, PJRT_Client_PlatformName_Args,
    PJRT_Client_PlatformVersion_Args, PJRT_Client_AddressableDevices_Args, PJRT_Client_Compile_Args,
    PJRT_Client_BufferFromHostBuffer_Args, PJRT_DeviceDescription_Id_Args, PJRT_Device_GetDescription_Args,
    PJRT_Executable_Destroy_Args, PJRT_Executable_NumOutputs_Args, PJRT_Executable_Serialize_Args,
    PJRT_LoadedExecutable_Destroy_Args, PJRT_LoadedExecutable_GetExecutable_Args, PJRT_LoadedExecutable_Execute_Args,
    PJRT_Executable_DeserializeAndLoad_Args, PJRT_Buffer_Destroy_Args, PJRT_Buffer_ToHostBuffer_Args, PJRT_NamedValue,
    PJRT_Program, PJRT_ExecuteOptions,
}

/// The function of this name in a plugin's table, or `None` if the plugin is older or omits it.
macro_rules! function {
    ($api:expr, $name:ident) => {{
        let end = std::mem::offset_of!(PJRT_Api, $name) + size_of::<usize>();
        // SAFETY: the table is as large as it says, and constant.
        if end <= $api.size { unsafe { (*$api.raw).$name } } else { None }
    }};
}

/// Calls a function that may fail, by its name: `call!(api, PJRT_Client_Create, &mut args)`. The compiler checks that the struct
/// of arguments is that of the function.
macro_rules! call {
    ($api:expr, $name:ident, $args:expr) => {{
        let api: &$crate::ffi::api::Api = &$api;
        match $crate::ffi::api::function!(api, $name) {
            // SAFETY: the struct contains its size, and its pointers are to values that outlive the call.
            Some(function) => api.check(unsafe { function($args) }),
            None => Err($crate::ffi::PluginError::Call(concat!("the plugin has no ", stringify!($name)).into())),
        }
    }};
}
pub(super) use {call, function};

/// A loaded plugin, which stays loaded.
pub(super) struct Api {
    pub raw: *const PJRT_Api,
    pub size: usize,
    _library: libloading::Library,
}

// SAFETY: the table of functions is constant, and PJRT functions may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    pub fn open(path: &Path) -> Result<Api, PluginError> {
        let shown = path.display().to_string();
        let load = |why: String| PluginError::Load { path: shown.clone(), why };
        // SAFETY: loading a plugin runs its initialisers; the user chose the plugin.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| load(why(&e)))?;
        // SAFETY: every PJRT plugin exports this function, of this type.
        let raw = unsafe {
            let get = library.get::<unsafe extern "C" fn() -> *const PJRT_Api>(b"GetPjrtApi\0");
            get.map_err(|e| load(why(&e)))?()
        };
        if raw.is_null() {
            return Err(load("GetPjrtApi returns null".into()));
        }
        // SAFETY: the size and the version come first in every version of the table.
        let (size, version) = unsafe { ((*raw).struct_size, (*raw).pjrt_api_version) };
        check_version(&shown, size, version.major_version, version.minor_version)?;
        let api = Api { raw, size, _library: library };
        call!(api, PJRT_Plugin_Initialize, &mut PJRT_Plugin_Initialize_Args::new())?;
        Ok(api)
    }

    /// Takes the message out of an error, and frees it.
    pub fn check(&self, error: *mut PJRT_Error) -> Result<(), PluginError> {
        if error.is_null() {
            return Ok(());
        }
        let mut text = PJRT_Error_Message_Args::new();
        text.error = error;
        if let Some(message) = function!(self, PJRT_Error_Message) {
            // SAFETY: the error is alive.
            unsafe { message(&mut text) };
        }
        let message = string(text.message, text.message_size);
        let mut destroy = PJRT_Error_Destroy_Args::new();
        destroy.error = error;
        if let Some(free) = function!(self, PJRT_Error_Destroy) {
            // SAFETY: the error is alive and used for the last time.
            unsafe { free(&mut destroy) };
        }
        Err(PluginError::Call(message))
    }

    /// Waits for an event and frees it.
    pub fn finish(&self, event: *mut PJRT_Event) -> Result<(), PluginError> {
        if event.is_null() {
            return Ok(());
        }
        let mut args = PJRT_Event_Await_Args::new();
        args.event = event;
        let result = call!(self, PJRT_Event_Await, &mut args);
        let mut args = PJRT_Event_Destroy_Args::new();
        args.event = event;
        // An error of freeing the event is ignored: the event has completed.
        let _ = call!(self, PJRT_Event_Destroy, &mut args);
        result
    }
}

/// Checks a plugin's version and size against the header that the declarations are generated from.
fn check_version(path: &str, size: usize, major: i32, minor: i32) -> Result<(), PluginError> {
    if major != PJRT_API_MAJOR as i32 || minor < OLDEST_MINOR {
        return Err(PluginError::Version { path: path.into(), major, minor });
    }
    let expected = size_of::<PJRT_Api>();
    let fits = match minor.cmp(&(PJRT_API_MINOR as i32)) {
        std::cmp::Ordering::Less => size <= expected,
        std::cmp::Ordering::Equal => size == expected,
        std::cmp::Ordering::Greater => size >= expected,
    };
    if fits { Ok(()) } else { Err(PluginError::Layout { path: path.into(), minor, found: size, expected }) }
}

/// Text of a plugin.
pub(super) fn string(text: *const c_char, len: usize) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the plugin gives `len` bytes that live as long as what they belong to.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_size_that_its_version_says() {
        let (size, minor) = (size_of::<PJRT_Api>(), PJRT_API_MINOR as i32);
        assert!(check_version("x", size, 0, minor).is_ok());
        assert!(
            check_version("x", size + 8, 0, minor + 1).is_ok() && check_version("x", size - 8, 0, minor - 1).is_ok()
        );
        assert!(matches!(check_version("x", size - 8, 0, minor), Err(PluginError::Layout { .. })));
        assert!(matches!(check_version("x", size + 8, 0, minor - 1), Err(PluginError::Layout { .. })));
        assert!(matches!(check_version("x", size, 1, minor), Err(PluginError::Version { .. })));
        assert!(matches!(check_version("x", size, 0, OLDEST_MINOR - 1), Err(PluginError::Version { .. })));
    }
}
