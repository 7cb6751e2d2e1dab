//! Buffers on devices.

use std::sync::Arc;

use super::api::{Args, PluginError, call};
use super::bindings::*;
use super::client::Client;

/// A buffer on a device, freed when it is dropped.
pub struct Buffer {
    pub(super) client: Arc<Client>,
    pub(super) raw: *mut PJRT_Buffer,
}

// SAFETY: PJRT buffers may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Copies bytes to the device of this number, as a tensor of this type and these extents.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn from_host(
        client: &Arc<Client>,
        device: usize,
        bytes: &[u8],
        ty: PJRT_Buffer_Type,
        dims: &[i64],
    ) -> Result<Buffer, PluginError> {
        let mut args = PJRT_Client_BufferFromHostBuffer_Args::new();
        (args.client, args.device) = (client.raw, client.device(device));
        (args.data, args.type_) = (bytes.as_ptr().cast(), ty);
        (args.dims, args.num_dims) = (dims.as_ptr(), dims.len());
        // The plugin reads the bytes only during the call.
        args.host_buffer_semantics = PJRT_HostBufferSemantics_PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
        call!(client.api, PJRT_Client_BufferFromHostBuffer, &mut args)?;
        let buffer = Buffer { client: client.clone(), raw: args.buffer };
        client.api.finish(args.done_with_host_buffer)?;
        Ok(buffer)
    }

    /// Copies the elements to `out`, row-major, once they are computed.
    ///
    /// # Errors
    /// When the program that computes them failed, or `out` is of another size.
    pub fn read(&self, out: &mut [u8]) -> Result<(), PluginError> {
        let mut size = PJRT_Buffer_ToHostBuffer_Args::new();
        size.src = self.raw;
        call!(self.client.api, PJRT_Buffer_ToHostBuffer, &mut size)?;
        if size.dst_size != out.len() {
            return Err(PluginError::Call(format!("a result has {} bytes, not {}", size.dst_size, out.len())));
        }
        let mut args = PJRT_Buffer_ToHostBuffer_Args::new();
        (args.src, args.dst, args.dst_size) = (self.raw, out.as_mut_ptr().cast(), out.len());
        call!(self.client.api, PJRT_Buffer_ToHostBuffer, &mut args)?;
        self.client.api.finish(args.event)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut args = PJRT_Buffer_Destroy_Args::new();
        args.buffer = self.raw;
        // An error cannot be reported here.
        let _ = call!(self.client.api, PJRT_Buffer_Destroy, &mut args);
    }
}
