//! Payloads of functions with symbolic extents: the architecture, then the function as text. Payloads with fixed extents are
//! plans.

use of_codegen::specialize;
use of_ir::Func;
use of_plan::PlanFile;
use of_runtime::LoadError;

/// The first words of a payload; the architecture follows, as [`crate::Cuda::new`] takes it.
const MAGIC: &str = "of-cuda open ";

/// The payload of a function.
pub fn write(func: &Func, arch: &str) -> Vec<u8> {
    format!("{MAGIC}{arch}\n{}", specialize::write(func)).into_bytes()
}

/// The architecture and the function of a payload, or `None` if it is a plan.
///
/// # Errors
/// When it is damaged.
pub fn read(payload: &[u8]) -> Result<Option<(&str, Func)>, LoadError> {
    let Some(rest) = payload.strip_prefix(MAGIC.as_bytes()) else { return Ok(None) };
    let wrong = |why: &str| LoadError::Payload(why.into());
    let end = rest.iter().position(|b| *b == b'\n').ok_or_else(|| wrong("there is no text"))?;
    let arch = std::str::from_utf8(&rest[..end]).map_err(|_| wrong("the architecture is not UTF-8"))?;
    let func = specialize::read(&rest[end + 1..]).map_err(LoadError::Payload)?;
    Ok(Some((arch, func)))
}

/// The architecture that a payload of either kind is for.
///
/// # Errors
/// When it is damaged.
pub fn arch(payload: &[u8]) -> Result<String, LoadError> {
    if let Some((arch, _)) = read(payload)? {
        return Ok(arch.into());
    }
    let plan = PlanFile::from_bytes(payload).map_err(|e| LoadError::Payload(e.to_string()))?;
    let arch = plan.plan().info.flags.first();
    arch.cloned().ok_or_else(|| LoadError::Payload("the plan names no architecture".into()))
}
