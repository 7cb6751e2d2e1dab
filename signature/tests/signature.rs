//! Signatures that are made and refused, and exchanged with the Python package model-signing. The keys in `data` are for tests
//! alone, made by openssl; `model_signing.sig` is what version 1.1.1 of the package wrote for a file of `hello\n`.

use std::path::Path;
use std::process::Command;

use base64ct::{Base64, Encoding};
use of_signature::{PrivateKey, PublicKey, SignatureError, sign, verify};
use of_test_support::component::{MODEL_SIGNING, python_with, require};

const FILE: &[u8] = b"hello\n";
const ED25519: (&str, &str) = (include_str!("data/ed25519.pem"), include_str!("data/ed25519.pub.pem"));
const P256: (&str, &str) = (include_str!("data/p256.pem"), include_str!("data/p256.pub.pem"));
const BY_PACKAGE: &str = include_str!("data/model_signing.sig");

fn private(pem: &str) -> PrivateKey {
    PrivateKey::from_pem(pem).unwrap()
}

fn public(pem: &str) -> PublicKey {
    PublicKey::from_pem(pem).unwrap()
}

#[test]
fn what_a_key_signs_its_public_key_verifies() {
    for (key, public_key) in [ED25519, P256, (include_str!("data/p256.pkcs8.pem"), P256.1)] {
        let (key, public_key) = (private(key), public(public_key));
        assert_eq!(key.public(), public_key);
        let bundle = sign("a.plan", FILE, &key).unwrap();
        assert_eq!(verify("a.plan", FILE, &bundle, &public_key), Ok(()));
        assert_eq!(verify("renamed", FILE, &bundle, &public_key), Ok(()));
        assert_eq!(sign("a.plan", FILE, &key).unwrap(), bundle, "equal inputs give equal bytes");
    }
}

#[test]
fn signatures_of_the_package_are_accepted() {
    assert_eq!(verify("any", FILE, BY_PACKAGE, &public(P256.1)), Ok(()));
    // Of a folder: its files by name.
    let folder = include_str!("data/model_signing_folder.sig");
    assert_eq!(verify("m.plan", FILE, folder, &public(P256.1)), Ok(()));
    let other = verify("other", FILE, folder, &public(P256.1)).unwrap_err();
    assert_eq!(other.to_string(), "the signature is not about this file: it does not list 'other'");
}

#[test]
fn every_flipped_bit_is_refused() {
    for (key, public_key) in [ED25519, P256] {
        let public_key = public(public_key);
        let bundle = sign("a", FILE, &private(key)).unwrap();
        for bit in 0..8 * FILE.len() {
            let mut file = FILE.to_vec();
            file[bit / 8] ^= 1 << (bit % 8);
            let error = verify("a", &file, &bundle, &public_key).unwrap_err();
            assert!(matches!(&error, SignatureError::Changed { algorithm, .. } if algorithm == "sha256"), "{error}");
        }
        // The statement and the signature, as bytes and as text.
        let json: serde_json::Value = serde_json::from_str(&bundle).unwrap();
        let fields =
            ["/dsseEnvelope/payload", "/dsseEnvelope/signatures/0/sig", "/verificationMaterial/publicKey/hint"];
        for (at, field) in fields.into_iter().enumerate() {
            let text = json.pointer(field).unwrap().as_str().unwrap();
            let bytes = if at == 2 { text.as_bytes().to_vec() } else { Base64::decode_vec(text).unwrap() };
            for bit in 0..8 * bytes.len() {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let mut changed = json.clone();
                let text =
                    if at == 2 { String::from_utf8_lossy(&bytes).into_owned() } else { Base64::encode_string(&bytes) };
                *changed.pointer_mut(field).unwrap() = text.into();
                assert!(verify("a", FILE, &changed.to_string(), &public_key).is_err(), "{field} bit {bit}");
            }
        }
    }
}

#[test]
fn other_keys_and_other_statements_are_refused() {
    let bundle = sign("a", FILE, &private(ED25519.0)).unwrap();
    let error = verify("a", FILE, &bundle, &public(P256.1)).unwrap_err();
    assert!(matches!(error, SignatureError::OtherKey { .. }) && error.to_string().contains("another key"), "{error}");
    // A bundle that names the right key and was signed by another, and a signature moved to another statement.
    let mut json: serde_json::Value = serde_json::from_str(BY_PACKAGE).unwrap();
    json["verificationMaterial"]["publicKey"]["hint"] = public(ED25519.1).fingerprint().unwrap().into();
    assert_eq!(verify("a", FILE, &json.to_string(), &public(ED25519.1)), Err(SignatureError::Forged));
    let other: serde_json::Value = serde_json::from_str(&sign("a", b"other", &private(P256.0)).unwrap()).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(BY_PACKAGE).unwrap();
    json["dsseEnvelope"]["payload"] = other["dsseEnvelope"]["payload"].clone();
    assert_eq!(verify("a", b"other", &json.to_string(), &public(P256.1)), Err(SignatureError::Forged));
    for (text, why) in [
        ("", "malformed"),
        ("{}", "malformed: missing field"),
        (&BY_PACKAGE.replace("v0.3", "v0.2"), "its type is"),
        (&BY_PACKAGE.replace("in-toto+json", "json"), "its statement is of type"),
    ] {
        let error = verify("a", FILE, text, &public(P256.1)).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn keys_of_other_kinds_are_refused_with_a_hint() {
    let private = |text: &str| PrivateKey::from_pem(text).map(drop).unwrap_err().to_string();
    assert!(private(include_str!("data/encrypted.pem")).contains("openssl pkey -in KEY.pem"));
    assert!(private(include_str!("data/p384.pem")).contains("not a key on the curve P-256 or of Ed25519"));
    assert!(private(P256.1).contains("holds no private key"));
    assert!(private("").contains("holds no private key"));
    assert!(PublicKey::from_pem(P256.0).unwrap_err().to_string().contains("-pubout"));
    assert!(PublicKey::from_pem("text").unwrap_err().to_string().contains("holds no public key"));
    assert!(PublicKey::from_pem(&P256.1.replace("MFkwEwYH", "MFkwEwYA")).unwrap_err().to_string().contains("damaged"));
}

/// Both ways: the package verifies ours, and we verify its. It has no keys of Ed25519.
#[test]
fn the_python_package_and_this_crate_accept_each_other() {
    let Some(python) = require(&MODEL_SIGNING, python_with(&["model_signing"])) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let key = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let package = |args: &[&str], key: (&str, &Path), signature: &Path| {
        let mut command = Command::new(&python);
        command.args(["-m", "model_signing"]).args(args).arg(key.0).arg(key.1).arg("--signature").arg(signature);
        let out = command.arg(path("file.plan")).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    std::fs::write(path("file.plan"), FILE).unwrap();
    std::fs::write(path("ours"), sign("file.plan", FILE, &private(P256.0)).unwrap()).unwrap();
    let (holds, said) = package(&["verify", "key"], ("--public_key", &key("p256.pub.pem")), &path("ours"));
    assert!(holds, "{said}");
    let (made, said) = package(&["sign", "key"], ("--private_key", &key("p256.pem")), &path("its"));
    assert!(made, "{said}");
    let its = std::fs::read_to_string(path("its")).unwrap();
    assert_eq!(verify("file.plan", FILE, &its, &public(P256.1)), Ok(()));
    std::fs::write(path("file.plan"), b"other\n").unwrap();
    assert!(!package(&["verify", "key"], ("--public_key", &key("p256.pub.pem")), &path("ours")).0);
    assert!(verify("file.plan", b"other\n", &its, &public(P256.1)).is_err());
}
