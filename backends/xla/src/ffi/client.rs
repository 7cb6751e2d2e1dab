//! The client of a plugin, and its devices.

use std::path::Path;

use super::api::{Api, Args, PluginError, call, string};
use super::bindings::*;

/// A client of a plugin, and its devices.
pub struct Client {
    pub(super) api: Api,
    pub(super) raw: *mut PJRT_Client,
    devices: Vec<*mut PJRT_Device>,
    /// The platform and its version, for cache keys and messages.
    pub platform: String,
}

// SAFETY: PJRT clients may be used from any thread.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Loads the plugin at `path` and creates a client. `devices` is the number of devices to create, which CPU plugins
    /// support.
    ///
    /// # Errors
    /// When the file is no plugin of a known version, or it has no device.
    pub fn open(path: &Path, devices: Option<usize>) -> Result<Client, PluginError> {
        const DEVICES: &str = "cpu_device_count";
        let api = Api::open(path)?;
        let (mut args, mut option) = (PJRT_Client_Create_Args::new(), PJRT_NamedValue::new());
        if let Some(count) = devices {
            (option.name, option.name_size) = (DEVICES.as_ptr().cast(), DEVICES.len());
            (option.type_, option.value_size) = (PJRT_NamedValue_Type_PJRT_NamedValue_kInt64, 1);
            option.__bindgen_anon_1.int64_value = count as i64;
            (args.create_options, args.num_options) = (&raw const option, 1);
        }
        call!(api, PJRT_Client_Create, &mut args)?;
        let mut client = Client { api, raw: args.client, devices: Vec::new(), platform: String::new() };
        let mut all = PJRT_Client_AddressableDevices_Args::new();
        all.client = client.raw;
        call!(client.api, PJRT_Client_AddressableDevices, &mut all)?;
        if all.num_addressable_devices == 0 || all.addressable_devices.is_null() {
            return Err(PluginError::NoDevice);
        }
        // SAFETY: the plugin reports this number of devices.
        let devices = unsafe { std::slice::from_raw_parts(all.addressable_devices, all.num_addressable_devices) };
        client.devices = devices.to_vec();
        client.platform = client.read_platform()?;
        Ok(client)
    }

    fn read_platform(&self) -> Result<String, PluginError> {
        let (mut name, mut version) = (PJRT_Client_PlatformName_Args::new(), PJRT_Client_PlatformVersion_Args::new());
        (name.client, version.client) = (self.raw, self.raw);
        call!(self.api, PJRT_Client_PlatformName, &mut name)?;
        call!(self.api, PJRT_Client_PlatformVersion, &mut version)?;
        let name = string(name.platform_name, name.platform_name_size);
        let version = string(version.platform_version, version.platform_version_size);
        Ok(format!("{name}, {}", version.replace('\n', " ")))
    }

    /// The device of this number, modulo the number of devices.
    pub(super) fn device(&self, number: usize) -> *mut PJRT_Device {
        self.devices[number % self.devices.len()]
    }

    /// Whether its devices are threads of the CPU.
    pub fn is_cpu(&self) -> bool {
        self.platform.starts_with("cpu,")
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// The id of a device in programs.
    pub(super) fn id(&self, device: usize) -> Result<i64, PluginError> {
        let mut of = PJRT_Device_GetDescription_Args::new();
        of.device = self.device(device);
        call!(self.api, PJRT_Device_GetDescription, &mut of)?;
        let mut args = PJRT_DeviceDescription_Id_Args::new();
        args.device_description = of.device_description;
        call!(self.api, PJRT_DeviceDescription_Id, &mut args)?;
        Ok(args.id.into())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut args = PJRT_Client_Destroy_Args::new();
        args.client = self.raw;
        // An error cannot be reported here.
        let _ = call!(self.api, PJRT_Client_Destroy, &mut args);
    }
}
