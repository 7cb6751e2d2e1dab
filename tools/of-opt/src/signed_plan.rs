//! Signed plans: keys and signatures in files, and plans that are opened only if their signature holds.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use of_diag::{Code, Diagnostics};
use of_driver::{error, io_error};
use of_plan::{OpenError, PlanFile};
use of_signature::{PrivateKey, PublicKey, SignatureError};

use crate::console::is_dash;
use crate::exit;

/// Keys and signatures are small: a larger file is something else.
const MAX_BYTES: u64 = 1 << 20;

/// The file of a plan's signature where none is named: `model.plan.sig` for `model.plan`.
pub fn signature_file(plan: &Path) -> PathBuf {
    let mut name = OsString::from(plan);
    name.push(".sig");
    name.into()
}

/// Reads a private key.
///
/// # Errors
/// When the file cannot be read, or holds no such key.
pub fn private_key(path: &Path) -> Result<PrivateKey, Diagnostics> {
    PrivateKey::from_pem(&text(path)?).map_err(|e| refused(path, &e))
}

/// Reads a public key.
///
/// # Errors
/// As [`private_key`].
pub fn public_key(path: &Path) -> Result<PublicKey, Diagnostics> {
    PublicKey::from_pem(&text(path)?).map_err(|e| refused(path, &e))
}

/// Opens a plan if the holder of a key signed it. The signature is checked before anything of the plan is decoded, and on the bytes in memory
/// that are then used.
///
/// # Errors
/// When a file cannot be read, the signature is refused, or the plan is damaged.
pub fn open(plan: &Path, signature: Option<&Path>, key: &Path) -> Result<PlanFile, Diagnostics> {
    if is_dash(plan) {
        return Err(exit::usage("a signed plan is read from a file, not from stdin").into());
    }
    let key = public_key(key)?;
    let path = signature.map_or_else(|| signature_file(plan), Path::to_owned);
    let bundle = text(&path)?;
    let name = name(plan);
    let opened = PlanFile::open_checked(plan, |bytes| of_signature::verify(&name, bytes, &bundle, &key));
    let opened = opened.map_err(|e| {
        let code = if matches!(e, OpenError::Io { .. }) { Code::IO } else { Code::PLAN };
        Diagnostics::from(error(code, format!("{}: {e}", plan.display())))
    })?;
    opened.map_err(|e| {
        let what = format!("the signature '{}' of '{}' is refused: {e}", path.display(), plan.display());
        error(Code::PLAN, what).hint("a plan is machine code: run it only if you know who made it").into()
    })
}

/// The name under which a file is signed.
pub fn name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn text(path: &Path) -> Result<String, Diagnostics> {
    let metadata = std::fs::metadata(path).map_err(|e| io_error(path, "read", &e))?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        let what = format!("'{}' is not a file of a key or signature", path.display());
        return Err(error(Code::INPUT, what).into());
    }
    std::fs::read_to_string(path).map_err(|e| io_error(path, "read", &e).into())
}

fn refused(path: &Path, e: &SignatureError) -> Diagnostics {
    error(Code::INPUT, format!("{}: {e}", path.display())).into()
}
