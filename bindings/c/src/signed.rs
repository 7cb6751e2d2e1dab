//! Plans that are opened only if their signature holds.

use std::ffi::c_char;
use std::path::Path;

use of_plan::PlanFile;

use crate::abi::Status;
use crate::error::{Error, error, guarded, null};
use crate::plan::{Plan, give, path_of};

/// `of_plan_open_signed`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_open_signed(
    path: *const c_char,
    signature: *const c_char,
    key: *const c_char,
    plan: *mut *mut Plan,
) -> Status {
    guarded(|| {
        if plan.is_null() {
            return Err(null("plan"));
        }
        if key.is_null() {
            return Err(null("key"));
        }
        // SAFETY: the caller passes text, or null for the signature.
        let (path, key) = unsafe { (path_of(path)?, path_of(key)?) };
        let signature = match signature.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { path_of(signature) }?),
        };
        let file = open(path, signature, key)?;
        // SAFETY: the caller passes memory for a pointer.
        unsafe { give(plan, file) }
    })
}

#[cfg(feature = "signature")]
fn open(path: &Path, signature: Option<&Path>, key: &Path) -> Result<PlanFile, Error> {
    use of_signature::{FileError, RequiredSignature};

    let required = RequiredSignature::read(path, signature, key).map_err(|e| {
        let status = if matches!(e, FileError::Io { .. }) { Status::Io } else { Status::InvalidArgument };
        error(status, e.to_string())
    })?;
    let opened = PlanFile::open_checked(path, |bytes| required.check(bytes))?;
    opened.map_err(|e| {
        let (signature, path) = (required.signature().display(), path.display());
        error(Status::Signature, format!("the signature '{signature}' of '{path}' is refused: {e}"))
    })
}

#[cfg(not(feature = "signature"))]
fn open(_: &Path, _: Option<&Path>, _: &Path) -> Result<PlanFile, Error> {
    Err(error(Status::Unsupported, "this library was built without signatures"))
}
