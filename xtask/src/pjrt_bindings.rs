//! `cargo xtask pjrt-bindings HEADER`: writes the declarations of PJRT's C interface that the XLA backend uses, from
//! `pjrt_c_api.h`, by `bindgen` (`cargo install bindgen-cli`; it needs libclang).
//!
//! The header is `xla/pjrt/c/pjrt_c_api.h` of openxla/xla. TensorFlow's wheels have it in
//! `tensorflow/include/xla/pjrt/c/`. bindgen writes assertions on each size and offset as clang computes them, so a layout that
//! differs from the header's does not compile.

use std::path::Path;
use std::process::Command;

use crate::workspace::{read, root, target, write};

/// The generated file.
const TO: &str = "backends/xla/src/ffi/bindings.rs";

/// The functions of the interface that the backend calls. Those that it does not call are addresses without a type.
const USED: &[&str] = &[
    "PJRT_Error_Destroy",
    "PJRT_Error_Message",
    "PJRT_Plugin_Initialize",
    "PJRT_Event_Destroy",
    "PJRT_Event_Await",
    "PJRT_Client_Create",
    "PJRT_Client_Destroy",
    "PJRT_Client_PlatformName",
    "PJRT_Client_PlatformVersion",
    "PJRT_Client_AddressableDevices",
    "PJRT_Client_Compile",
    "PJRT_Client_BufferFromHostBuffer",
    "PJRT_DeviceDescription_Id",
    "PJRT_Device_GetDescription",
    "PJRT_Executable_Destroy",
    "PJRT_Executable_NumOutputs",
    "PJRT_Executable_Serialize",
    "PJRT_LoadedExecutable_Destroy",
    "PJRT_LoadedExecutable_GetExecutable",
    "PJRT_LoadedExecutable_Execute",
    "PJRT_Executable_DeserializeAndLoad",
    "PJRT_Buffer_Destroy",
    "PJRT_Buffer_ToHostBuffer",
];

/// Structs that the backend passes no pointers to, or only null ones: their fields are left out.
const OPAQUE: &str = "PJRT_(Send|Recv|HloOutput)CallbackInfo|PJRT_MultiSlice_Config|PJRT_(Error|Memory)|\
    PJRT_Buffer_MemoryLayout|PJRT_LoadOptions|PJRT_KeyValue.*_Args|PJRT_Extension_Base";

/// Generates the file.
///
/// # Errors
/// When the header cannot be read, or bindgen is not installed or fails.
pub fn generate(header: &str) -> Result<(), String> {
    let text = read(Path::new(header))?;
    if let Some(missing) = USED.iter().find(|name| !text.contains(&format!("{name});"))) {
        return Err(format!("{header} has no function '{missing}'"));
    }
    let reduced = target().join("pjrt_c_api.h");
    write(&reduced, &reduce(&text))?;
    let mut command = Command::new("bindgen");
    command.arg(&reduced);
    command.args(["--generate", "types,vars", "--use-core", "--no-doc-comments", "--no-derive-debug"]);
    command.args(["--allowlist-type", &format!("PJRT_Api|PJRT_Buffer_Type|{OPAQUE}")]);
    command.args(["--allowlist-var", "PJRT_API_M.*"]);
    command.args(["--opaque-type", OPAQUE]);
    let output = command.output().map_err(|e| format!("bindgen: {e}; 'cargo install bindgen-cli' installs it"))?;
    if !output.status.success() {
        return Err(format!("bindgen failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    write(&root().join(TO), &String::from_utf8_lossy(&output.stdout))
}

/// The header with fields without a type in place of the functions that are not used. Their structs of arguments are then
/// left out of the generated file.
fn reduce(header: &str) -> String {
    const FIELD: &str = "_PJRT_API_STRUCT_FIELD(";
    let mut fields = header.split(FIELD);
    let mut out = fields.next().unwrap_or_default().to_owned();
    for field in fields {
        let (name, rest) = field.split_once(')').unwrap_or((field, ""));
        let name = name.trim();
        if USED.contains(&name) || !name.starts_with("PJRT_") {
            out.extend([FIELD, name, ")", rest]);
        } else {
            out.truncate(out.trim_end_matches("PJRT_NO_DISCARD ").len());
            out.extend(["const void* ", name, rest]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_functions_become_fields_without_a_type() {
        let header = "\
#define _PJRT_API_STRUCT_FIELD(fn_type) fn_type* fn_type
struct PJRT_Api {
  _PJRT_API_STRUCT_FIELD(PJRT_Error_Destroy);
  PJRT_NO_DISCARD _PJRT_API_STRUCT_FIELD(
      PJRT_Error_GetCode);
};
";
        let reduced = "\
#define _PJRT_API_STRUCT_FIELD(fn_type) fn_type* fn_type
struct PJRT_Api {
  _PJRT_API_STRUCT_FIELD(PJRT_Error_Destroy);
  const void* PJRT_Error_GetCode;
};
";
        assert_eq!(reduce(header), reduced);
    }
}
