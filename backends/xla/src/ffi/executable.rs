//! Compiled programs.

use std::ptr::null_mut;
use std::sync::Arc;

use prost::Message;

use super::api::{Args, PluginError, call};
use super::bindings::*;
use super::buffer::Buffer;
use super::client::Client;
use crate::options::CompileOptions;

/// A compiled program on its devices, freed when it is dropped.
pub struct LoadedExecutable {
    client: Arc<Client>,
    raw: *mut PJRT_LoadedExecutable,
    executable: *mut PJRT_Executable,
    outputs: usize,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for LoadedExecutable {}

impl LoadedExecutable {
    /// Compiles MLIR text: for any single device if `devices` is empty, else for a replica on each of them.
    ///
    /// # Errors
    /// The compiler's error.
    pub fn compile(client: &Arc<Client>, text: &str, devices: &[usize]) -> Result<LoadedExecutable, PluginError> {
        const FORMAT: &str = "mlir";
        let ids = devices.iter().map(|d| client.id(*d)).collect::<Result<Vec<_>, _>>()?;
        let options = CompileOptions::of(ids, client.is_cpu()).encode_to_vec();
        let mut program = PJRT_Program::new();
        (program.code, program.code_size) = (text.as_ptr().cast_mut().cast(), text.len());
        (program.format, program.format_size) = (FORMAT.as_ptr().cast(), FORMAT.len());
        let mut args = PJRT_Client_Compile_Args::new();
        (args.client, args.program) = (client.raw, &program);
        (args.compile_options, args.compile_options_size) = (options.as_ptr().cast(), options.len());
        call!(client.api, PJRT_Client_Compile, &mut args)?;
        LoadedExecutable::new(client.clone(), args.executable)
    }

    /// Loads a program that [`LoadedExecutable::serialize`] wrote.
    ///
    /// # Errors
    /// When it is from another version, or damaged.
    pub fn deserialize(client: &Arc<Client>, bytes: &[u8]) -> Result<LoadedExecutable, PluginError> {
        let mut args = PJRT_Executable_DeserializeAndLoad_Args::new();
        args.client = client.raw;
        (args.serialized_executable, args.serialized_executable_size) = (bytes.as_ptr().cast(), bytes.len());
        call!(client.api, PJRT_Executable_DeserializeAndLoad, &mut args)?;
        LoadedExecutable::new(client.clone(), args.loaded_executable)
    }

    fn new(client: Arc<Client>, raw: *mut PJRT_LoadedExecutable) -> Result<LoadedExecutable, PluginError> {
        let mut loaded = LoadedExecutable { client, raw, executable: null_mut(), outputs: 0 };
        let mut args = PJRT_LoadedExecutable_GetExecutable_Args::new();
        args.loaded_executable = raw;
        call!(loaded.client.api, PJRT_LoadedExecutable_GetExecutable, &mut args)?;
        loaded.executable = args.executable;
        let mut args = PJRT_Executable_NumOutputs_Args::new();
        args.executable = loaded.executable;
        call!(loaded.client.api, PJRT_Executable_NumOutputs, &mut args)?;
        loaded.outputs = args.num_outputs;
        Ok(loaded)
    }

    /// Runs the program on the device with this number, where the arguments are. Results are computed asynchronously. They
    /// may reuse the memory of donated arguments, whose buffers are invalid then; those at positions `not_donated` are kept.
    ///
    /// # Errors
    /// When the arguments do not fit.
    pub fn execute(&self, device: usize, args: &[&Buffer], not_donated: &[i64]) -> Result<Vec<Buffer>, PluginError> {
        self.call(&[args.to_vec()], not_donated, self.client.device(device)).map(|mut results| results.remove(0))
    }

    /// Runs the program on all devices that it was compiled for, with the arguments of each, as [`LoadedExecutable::execute`]
    /// does on one.
    ///
    /// # Errors
    /// When the arguments do not fit.
    pub fn execute_replicas(
        &self,
        args: &[Vec<&Buffer>],
        not_donated: &[i64],
    ) -> Result<Vec<Vec<Buffer>>, PluginError> {
        self.call(args, not_donated, null_mut())
    }

    fn call(
        &self,
        args: &[Vec<&Buffer>],
        not_donated: &[i64],
        device: *mut PJRT_Device,
    ) -> Result<Vec<Vec<Buffer>>, PluginError> {
        let num_args = args.first().map_or(0, Vec::len);
        if args.iter().any(|own| own.len() != num_args) {
            return Err(PluginError::Call("devices of one program have different numbers of arguments".into()));
        }
        let raw: Vec<Vec<_>> = args.iter().map(|own| own.iter().map(|b| b.raw).collect()).collect();
        let argument_lists: Vec<_> = raw.iter().map(Vec::as_ptr).collect();
        let mut results: Vec<Vec<*mut PJRT_Buffer>> = args.iter().map(|_| vec![null_mut(); self.outputs]).collect();
        let output_lists: Vec<_> = results.iter_mut().map(Vec::as_mut_ptr).collect();
        let mut options = PJRT_ExecuteOptions::new();
        options.non_donatable_input_indices = not_donated.as_ptr();
        options.num_non_donatable_input_indices = not_donated.len();
        let mut call = PJRT_LoadedExecutable_Execute_Args::new();
        (call.executable, call.options, call.execute_device) = (self.raw, &mut options, device);
        (call.argument_lists, call.num_devices, call.num_args) = (argument_lists.as_ptr(), args.len(), num_args);
        call.output_lists = output_lists.as_ptr();
        call!(self.client.api, PJRT_LoadedExecutable_Execute, &mut call)?;
        let buffer = |raw| Buffer { client: self.client.clone(), raw };
        Ok(results.into_iter().map(|own| own.into_iter().map(buffer).collect()).collect())
    }

    /// The program as bytes that the same version of the plugin loads.
    ///
    /// # Errors
    /// When the plugin cannot write programs.
    pub fn serialize(&self) -> Result<Vec<u8>, PluginError> {
        let mut args = PJRT_Executable_Serialize_Args::new();
        args.executable = self.executable;
        call!(self.client.api, PJRT_Executable_Serialize, &mut args)?;
        let bytes = if args.serialized_bytes.is_null() {
            Vec::new()
        } else {
            // SAFETY: the bytes live until the serialized program is freed.
            unsafe { std::slice::from_raw_parts(args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size) }
                .to_vec()
        };
        if let Some(free) = args.serialized_executable_deleter {
            // SAFETY: the function and its argument come from the same call.
            unsafe { free(args.serialized_executable) };
        }
        Ok(bytes)
    }
}

impl Drop for LoadedExecutable {
    fn drop(&mut self) {
        // An error cannot be reported here.
        if !self.executable.is_null() {
            let mut args = PJRT_Executable_Destroy_Args::new();
            args.executable = self.executable;
            let _ = call!(self.client.api, PJRT_Executable_Destroy, &mut args);
        }
        let mut args = PJRT_LoadedExecutable_Destroy_Args::new();
        args.executable = self.raw;
        let _ = call!(self.client.api, PJRT_LoadedExecutable_Destroy, &mut args);
    }
}
