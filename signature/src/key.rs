//! Keys in PEM files.

use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePublicKey};
use p256::ecdsa::signature::{Signer, Verifier};
use sha2::{Digest, Sha256};

use crate::{SignatureError, hex};

/// A key that signs.
pub struct PrivateKey(Private);

enum Private {
    Ed25519(Box<ed25519_dalek::SigningKey>),
    P256(Box<p256::ecdsa::SigningKey>),
}

/// A key that verifies.
#[derive(Clone, Debug, PartialEq)]
pub struct PublicKey(Public);

#[derive(Clone, Debug, PartialEq)]
enum Public {
    Ed25519(Box<ed25519_dalek::VerifyingKey>),
    P256(Box<p256::ecdsa::VerifyingKey>),
}

/// What a key must be.
const KEYS: &str = "a key on the curve P-256 or of Ed25519";

impl PrivateKey {
    /// Reads the text of a PEM file: `PRIVATE KEY` (PKCS#8), or `EC PRIVATE KEY` (SEC1) on the curve P-256.
    ///
    /// # Errors
    /// When it holds no private key of the two kinds, or an encrypted one.
    pub fn from_pem(text: &str) -> Result<PrivateKey, SignatureError> {
        if text.contains("ENCRYPTED") {
            let what = "the private key is encrypted; decrypt it with 'openssl pkey -in KEY.pem -out PLAIN.pem'";
            return Err(SignatureError::Key(what.into()));
        }
        // `openssl ecparam -genkey` writes the curve's parameters before the key.
        let text = block(text, "EC PRIVATE KEY").or_else(|| block(text, "PRIVATE KEY"));
        let text =
            text.ok_or_else(|| SignatureError::Key(format!("the file holds no private key; {KEYS} is needed")))?;
        if let Ok(key) = ed25519_dalek::SigningKey::from_pkcs8_pem(text) {
            return Ok(PrivateKey(Private::Ed25519(Box::new(key))));
        }
        let key = p256::SecretKey::from_pkcs8_pem(text).ok().or_else(|| p256::SecretKey::from_sec1_pem(text).ok());
        let key = key.ok_or_else(|| SignatureError::Key(format!("the private key is damaged or not {KEYS}")))?;
        Ok(PrivateKey(Private::P256(Box::new(key.into()))))
    }

    /// The key that verifies what this one signs.
    pub fn public(&self) -> PublicKey {
        PublicKey(match &self.0 {
            Private::Ed25519(key) => Public::Ed25519(Box::new(key.verifying_key())),
            Private::P256(key) => Public::P256(Box::new(*key.verifying_key())),
        })
    }

    /// The signature of a message: 64 bytes of Ed25519, or ECDSA with SHA-256 in DER. Equal messages give equal signatures.
    pub(crate) fn sign(&self, message: &[u8]) -> Vec<u8> {
        match &self.0 {
            Private::Ed25519(key) => key.sign(message).to_bytes().to_vec(),
            Private::P256(key) => {
                let signature: p256::ecdsa::DerSignature = key.sign(message);
                signature.as_bytes().to_vec()
            }
        }
    }
}

impl PublicKey {
    /// Reads the text of a PEM file: `PUBLIC KEY`.
    ///
    /// # Errors
    /// When it holds no public key of the two kinds.
    pub fn from_pem(text: &str) -> Result<PublicKey, SignatureError> {
        let Some(text) = block(text, "PUBLIC KEY") else {
            let hint = if text.contains("PRIVATE KEY") {
                "it holds a private key; 'openssl pkey -in KEY.pem -pubout -out PUB.pem' writes the public one".into()
            } else {
                format!("{KEYS} is needed")
            };
            return Err(SignatureError::Key(format!("the file holds no public key: {hint}")));
        };
        if let Ok(key) = ed25519_dalek::VerifyingKey::from_public_key_pem(text) {
            return Ok(PublicKey(Public::Ed25519(Box::new(key))));
        }
        let key = p256::ecdsa::VerifyingKey::from_public_key_pem(text);
        let key = key.map_err(|_| SignatureError::Key(format!("the public key is damaged or not {KEYS}")))?;
        Ok(PublicKey(Public::P256(Box::new(key))))
    }

    /// The name by which bundles refer to it: the SHA-256 of its PEM text.
    ///
    /// # Errors
    /// When the key has no such text, which no key read from one has.
    pub fn fingerprint(&self) -> Result<String, SignatureError> {
        let text = match &self.0 {
            Public::Ed25519(key) => key.to_public_key_pem(LineEnding::LF),
            Public::P256(key) => key.to_public_key_pem(LineEnding::LF),
        };
        let text = text.map_err(|e| SignatureError::Key(e.to_string()))?;
        Ok(hex(Sha256::digest(text.as_bytes())))
    }

    /// Whether the signature of a message is one by this key.
    pub(crate) fn holds(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.0 {
            Public::Ed25519(key) => {
                let signature = ed25519_dalek::Signature::from_slice(signature);
                signature.is_ok_and(|s| key.verify_strict(message, &s).is_ok())
            }
            Public::P256(key) => {
                let signature = p256::ecdsa::Signature::from_der(signature);
                signature.is_ok_and(|s| key.verify(message, &s).is_ok())
            }
        }
    }
}

/// The block of a PEM file with this label.
fn block<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let start = text.find(&begin)?;
    let stop = start + text[start..].find(&end)? + end.len();
    Some(&text[start..stop])
}
