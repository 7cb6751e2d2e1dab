//! Plans that are opened only if their signature holds.

use std::path::Path;

use of_diag::{Code, Diagnostics};
use of_plan::{OpenError, PlanFile};
use of_signature::{FileError, RequiredSignature};

use crate::error::{error, io_error};

/// Opens a plan if the holder of a key signed it. The signature is checked before anything of the plan is decoded, and on the bytes in memory
/// that are then used. `key` is a file with a public key in PEM; without `signature` the signature is in `PLAN.sig`.
///
/// # Errors
/// When a file cannot be read, the signature is refused, or the plan is damaged.
pub fn open(plan: &Path, signature: Option<&Path>, key: &Path) -> Result<PlanFile, Diagnostics> {
    let required = RequiredSignature::read(plan, signature, key).map_err(|e| file_error(&e))?;
    let opened = PlanFile::open_checked(plan, |bytes| required.check(bytes)).map_err(|e| {
        let code = if matches!(e, OpenError::Io { .. }) { Code::IO } else { Code::PLAN };
        Diagnostics::from(error(code, format!("{}: {e}", plan.display())))
    })?;
    opened.map_err(|e| {
        let file = required.signature().display();
        let what = format!("the signature '{file}' of '{}' is refused: {e}", plan.display());
        error(Code::PLAN, what).hint("a plan is machine code: run it only if you know who made it").into()
    })
}

/// The diagnostic for a key or signature that cannot be had.
pub fn file_error(e: &FileError) -> Diagnostics {
    match e {
        FileError::Io { path, source } => io_error(path, "read", source).into(),
        other => error(Code::INPUT, other.to_string()).into(),
    }
}
