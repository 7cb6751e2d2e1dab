//! Signatures of files, in the format of the OpenSSF model-signing project.
//!
//! A signature is a file of JSON, a Sigstore bundle (version 0.3). It holds an envelope (DSSE) with an in-toto statement, which
//! lists the SHA-256 of the signed files, and the signature of that statement by a key. The Python package
//! [model-signing](https://github.com/sigstore/model-transparency) writes and checks the same format with keys on the curve P-256.
//! Keys of Ed25519 are an extension: Sigstore has them and that package does not.
//!
//! [`sign()`], [`verify()`] and [`RequiredSignature::check`] take bytes and not a path, so that what was verified is what is used.

#![forbid(unsafe_code)]

mod bundle;
mod files;
mod key;

pub use bundle::{sign, verify};
pub use files::{FileError, RequiredSignature, private_key, public_key, signature_file, signed_name};
pub use key::{PrivateKey, PublicKey};

/// Why there is no signature, or why one is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The key cannot be read.
    #[error("{0}")]
    Key(String),
    /// The signature is not a bundle of the format.
    #[error("the signature is malformed: {0}")]
    Malformed(String),
    /// The bundle names another key.
    #[error("it was signed with another key: the signature names the key {named}, and the given key is {given}")]
    OtherKey {
        /// The key of the bundle: the SHA-256 of its PEM text.
        named: String,
        /// The given key.
        given: String,
    },
    /// The statement does not fit its signature.
    #[error("the signature does not hold: its statement was changed, or it was signed with another key")]
    Forged,
    /// The statement is not about this file.
    #[error("the signature is not about this file: {0}")]
    OtherFile(String),
    /// The content of the file differs.
    #[error("the file is not the signed one: its {algorithm} is {found}, and the signed one is {signed}")]
    Changed {
        /// The hash function.
        algorithm: String,
        /// The hash of the file.
        found: String,
        /// The hash in the statement.
        signed: String,
    },
}

/// Lower-case hexadecimal digits.
fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
