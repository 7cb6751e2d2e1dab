//! `of-opt sign` and `of-opt verify-signature`: who made a plan.

use std::path::PathBuf;

use clap::Args;
use of_diag::{Code, Diagnostics};
use of_driver::signed_plan::{self, file_error};
use of_driver::{Observer, error, io_error};
use of_signature::{private_key, public_key, signature_file, signed_name};

use crate::console::Console;

/// Flags of `sign`.
#[derive(Args, Debug)]
pub struct Sign {
    /// The plan
    #[arg(value_name = "PLAN")]
    pub plan: PathBuf,
    /// The private key, in PEM: Ed25519, or the curve P-256, whose signatures 'model_signing verify key' accepts
    #[arg(long, value_name = "KEY.pem")]
    pub key: PathBuf,
    /// The signature [default: PLAN.sig]
    #[arg(short, long, value_name = "FILE.sig")]
    pub output: Option<PathBuf>,
}

/// Flags of `verify-signature`.
#[derive(Args, Debug)]
pub struct VerifySignature {
    /// The plan
    #[arg(value_name = "PLAN")]
    pub plan: PathBuf,
    /// The public key of the signer, in PEM
    #[arg(long, value_name = "PUB.pem")]
    pub key: PathBuf,
    /// The signature [default: PLAN.sig]
    #[arg(long, value_name = "FILE.sig")]
    pub signature: Option<PathBuf>,
}

/// Executes `sign`. A plan that does not verify is not signed.
///
/// # Errors
/// When a file cannot be read or written, the key is of another kind, or the plan does not verify.
pub fn sign(c: &Sign, console: &Console) -> Result<(), Diagnostics> {
    let key = private_key(&c.key).map_err(|e| file_error(&e))?;
    let plan = of_driver::model::open_plan(&c.plan)?;
    super::verify::prove(&plan)?;
    let output = c.output.clone().unwrap_or_else(|| signature_file(&c.plan));
    let bundle = of_signature::sign(&signed_name(&c.plan), &plan.bytes(), &key);
    let bundle = bundle.map_err(|e| error(Code::INPUT, e.to_string()))?;
    of_files::write(&output, bundle.as_bytes()).map_err(|e| io_error(&output, "written", &e))?;
    console.note(&format!("{}: signed, {}", c.plan.display(), output.display()));
    Ok(())
}

/// Executes `verify-signature`.
///
/// # Errors
/// When a file cannot be read, or the signature is refused.
pub fn verify_signature(c: &VerifySignature, console: &Console) -> Result<(), Diagnostics> {
    signed_plan::open(&c.plan, c.signature.as_deref(), &c.key)?;
    let fingerprint = public_key(&c.key).map_err(|e| file_error(&e))?.fingerprint();
    let fingerprint = fingerprint.map_err(|e| error(Code::INPUT, e.to_string()))?;
    console.print(&format!("{}: signed with the key {fingerprint}\n", c.plan.display()))
}
