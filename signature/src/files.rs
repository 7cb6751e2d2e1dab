//! Keys and signatures in files, and what a signed file must be.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::{PrivateKey, PublicKey, SignatureError, verify};

/// Keys and signatures are small: a larger file is something else.
const MAX_BYTES: u64 = 1 << 20;

/// Why a key or signature cannot be had from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("'{}' cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no regular file, or too large.
    #[error("'{}' is not a file of a key or signature", .0.display())]
    NotAFile(PathBuf),
    /// It holds no such key.
    #[error("{}: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SignatureError,
    },
}

/// The file of a signature where none is named: `model.plan.sig` for `model.plan`.
pub fn signature_file(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".sig");
    name.into()
}

/// The name under which a file is signed.
pub fn signed_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Reads a private key.
///
/// # Errors
/// When the file cannot be read, or holds no such key.
pub fn private_key(path: &Path) -> Result<PrivateKey, FileError> {
    PrivateKey::from_pem(&text(path)?).map_err(|source| FileError::Key { path: path.to_owned(), source })
}

/// Reads a public key.
///
/// # Errors
/// As [`private_key`].
pub fn public_key(path: &Path) -> Result<PublicKey, FileError> {
    PublicKey::from_pem(&text(path)?).map_err(|source| FileError::Key { path: path.to_owned(), source })
}

/// The signature that a file must have before it is used.
#[derive(Debug, Clone)]
pub struct RequiredSignature {
    name: String,
    signature: PathBuf,
    bundle: String,
    key: PublicKey,
}

impl RequiredSignature {
    /// The signature of `file` by the holder of the key in `key`, a file in PEM. Without `signature` it is in [`signature_file`].
    ///
    /// # Errors
    /// When the key or the signature cannot be read.
    pub fn read(file: &Path, signature: Option<&Path>, key: &Path) -> Result<RequiredSignature, FileError> {
        let key = public_key(key)?;
        let signature = signature.map_or_else(|| signature_file(file), Path::to_owned);
        Ok(RequiredSignature { name: signed_name(file), bundle: text(&signature)?, signature, key })
    }

    /// The file of the signature.
    pub fn signature(&self) -> &Path {
        &self.signature
    }

    /// Checks the bytes of the file, which the caller then uses.
    ///
    /// # Errors
    /// When the signature is refused.
    pub fn check(&self, bytes: &[u8]) -> Result<(), SignatureError> {
        verify(&self.name, bytes, &self.bundle, &self.key)
    }
}

fn text(path: &Path) -> Result<String, FileError> {
    let failed = |source| FileError::Io { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(FileError::NotAFile(path.to_owned()));
    }
    std::fs::read_to_string(path).map_err(failed)
}
