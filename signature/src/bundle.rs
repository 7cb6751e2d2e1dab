//! Bundles: what is signed, and how it is stored.

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{PrivateKey, PublicKey, SignatureError, hex};

const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const PAYLOAD: &str = "application/vnd.in-toto+json";
const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const PREDICATE: &str = "https://model_signing/signature/v1.0";

/// A Sigstore bundle. Fields of other kinds of keys are ignored: the key is given by the caller.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    media_type: String,
    verification_material: Material,
    dsse_envelope: Envelope,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Material {
    public_key: Option<KeyId>,
    #[serde(default)]
    tlog_entries: Vec<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
struct KeyId {
    #[serde(default)]
    hint: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
struct Signature {
    sig: String,
    #[serde(default)]
    keyid: String,
}

/// An in-toto statement about a model.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    ty: String,
    subject: Vec<Subject>,
    predicate_type: String,
    predicate: Predicate,
}

#[derive(Deserialize)]
struct Subject {
    digest: Digests,
}

#[derive(Deserialize)]
struct Digests {
    sha256: String,
}

#[derive(Deserialize)]
struct Predicate {
    serialization: Serialization,
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Serialization {
    method: String,
}

/// A signed file.
#[derive(Deserialize)]
struct Resource {
    name: String,
    algorithm: String,
    digest: String,
}

/// Signs a file: its name, for people, and its bytes. Returns the text of the bundle.
///
/// # Errors
/// When the key has no text, which no key read from a file has.
pub fn sign(name: &str, bytes: &[u8], key: &PrivateKey) -> Result<String, SignatureError> {
    let digest = Sha256::digest(bytes);
    let statement = json!({
        "_type": STATEMENT,
        // The digest of a model is that of the digests of its files.
        "subject": [{"name": name, "digest": {"sha256": hex(Sha256::digest(digest))}}],
        "predicateType": PREDICATE,
        "predicate": {
            "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": false},
            "resources": [{"name": ".", "algorithm": "sha256", "digest": hex(digest)}],
        },
    });
    let payload = format!("{statement:#}");
    let bundle = Bundle {
        media_type: BUNDLE.into(),
        verification_material: Material {
            public_key: Some(KeyId { hint: key.public().fingerprint()? }),
            tlog_entries: Vec::new(),
        },
        dsse_envelope: Envelope {
            payload: Base64::encode_string(payload.as_bytes()),
            payload_type: PAYLOAD.into(),
            signatures: vec![Signature {
                sig: Base64::encode_string(&key.sign(&pae(payload.as_bytes()))),
                keyid: String::new(),
            }],
        },
    };
    // Strings and lists always serialise.
    Ok(serde_json::to_string(&bundle).unwrap_or_default() + "\n")
}

/// Verifies that the holder of a key signed a file with this name and these bytes. The name is that of a file of a signed folder; a signature of
/// the file alone holds under any name.
///
/// # Errors
/// Why the signature is refused.
pub fn verify(name: &str, bytes: &[u8], bundle: &str, key: &PublicKey) -> Result<(), SignatureError> {
    let malformed = |what: String| SignatureError::Malformed(what);
    let bundle: Bundle = serde_json::from_str(bundle).map_err(|e| malformed(e.to_string()))?;
    if bundle.media_type != BUNDLE {
        return Err(malformed(format!("its type is '{}', not '{BUNDLE}'", bundle.media_type)));
    }
    if let Some(named) = bundle.verification_material.public_key.map(|k| k.hint).filter(|hint| !hint.is_empty()) {
        let given = key.fingerprint()?;
        if named != given {
            return Err(SignatureError::OtherKey { named, given });
        }
    }
    let envelope = bundle.dsse_envelope;
    if envelope.payload_type != PAYLOAD {
        return Err(malformed(format!("its statement is of type '{}', not '{PAYLOAD}'", envelope.payload_type)));
    }
    let [signature] = &envelope.signatures[..] else {
        return Err(malformed(format!("it has {} signatures, not one", envelope.signatures.len())));
    };
    let decode = |text: &str| Base64::decode_vec(text).map_err(|_| malformed("a field is not base64".into()));
    let (payload, signature) = (decode(&envelope.payload)?, decode(&signature.sig)?);
    if !key.holds(&pae(&payload), &signature) {
        return Err(SignatureError::Forged);
    }
    let statement: Statement = serde_json::from_slice(&payload).map_err(|e| malformed(e.to_string()))?;
    check(name, bytes, &statement)
}

/// Compares a file with a statement whose signature holds.
fn check(name: &str, bytes: &[u8], statement: &Statement) -> Result<(), SignatureError> {
    let malformed = |what: String| SignatureError::Malformed(what);
    for (found, wanted) in [(&statement.ty, STATEMENT), (&statement.predicate_type, PREDICATE)] {
        if found != wanted {
            return Err(malformed(format!("it states '{found}', not '{wanted}'")));
        }
    }
    let Predicate { serialization, resources } = &statement.predicate;
    if serialization.method != "files" {
        return Err(malformed(format!("it signs '{}'; only whole files are supported", serialization.method)));
    }
    let [subject] = &statement.subject[..] else {
        return Err(malformed(format!("it has {} subjects, not one", statement.subject.len())));
    };
    let mut all = Sha256::new();
    for resource in resources {
        all.update(unhex(&resource.digest).ok_or_else(|| malformed("a digest is not hexadecimal".into()))?);
    }
    if hex(all.finalize()) != subject.digest.sha256 {
        return Err(malformed("the digest of the model is not that of its files".into()));
    }
    let own = resources.iter().find(|r| r.name == "." || r.name == name);
    let own = own.ok_or_else(|| SignatureError::OtherFile(format!("it does not list '{name}'")))?;
    let found = match own.algorithm.as_str() {
        "sha256" => hex(Sha256::digest(bytes)),
        "blake3" => blake3::hash(bytes).to_hex().to_string(),
        other => return Err(malformed(format!("the hash function '{other}' is not supported; sign with sha256"))),
    };
    if found == own.digest {
        return Ok(());
    }
    Err(SignatureError::Changed { algorithm: own.algorithm.clone(), found, signed: own.digest.clone() })
}

/// What is signed: the pre-authentication encoding of the DSSE protocol, version 1.
fn pae(payload: &[u8]) -> Vec<u8> {
    [format!("DSSEv1 {} {PAYLOAD} {} ", PAYLOAD.len(), payload.len()).as_bytes(), payload].concat()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[a, b]| Some(digit(*a)? << 4 | digit(*b)?)).collect();
    if rest.is_empty() { bytes } else { None }
}
