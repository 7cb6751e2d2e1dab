//! Signed plans on the command line, and what `verify` says that it does not know.

use std::path::{Path, PathBuf};
use std::process::Command;

use of_plan::{Exec, PlanFile};
use of_test_support::component::{MODEL_SIGNING, python_with, require};
use prost::Message;
use tempfile::TempDir;

/// A folder with the plan `m.plan` and another one.
fn dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
    for (name, shape) in [("m.plan", "N=1"), ("other.plan", "N=2")] {
        let model = model.to_str().unwrap();
        let (code, _, said) = of_opt(&dir, &["compile", model, "-o", name, "--shape", shape]);
        assert_eq!(code, 0, "{said}");
    }
    dir
}

fn of_opt(dir: &TempDir, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    let out =
        command.args(args).current_dir(dir.path()).env("OF_CACHE_DIR", dir.path().join("cache")).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code().expect("no signal"), text(out.stdout), text(out.stderr))
}

fn key(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../signature/tests/data");
    folder.join(name).display().to_string()
}

fn path(dir: &TempDir, name: &str) -> PathBuf {
    dir.path().join(name)
}

/// What `verify-signature` and the commands with `--require-signature` say, which agree.
fn check(dir: &TempDir, public: &str, more: &[&str]) -> (i32, String) {
    let public = key(public);
    let (code, _, said) = of_opt(dir, &[&["verify-signature", "m.plan", "--key", &public], more].concat());
    let run = ["run", "m.plan", "--shape", "image=1x1x8x8", "--require-signature", &public];
    let (ran, out, said_too) = of_opt(dir, &[&run[..], more].concat());
    assert_eq!((code, &said), (ran, &said_too));
    assert_eq!(out.is_empty(), code != 0, "{out}");
    for command in ["bench", "profile"] {
        let command = [command, "m.plan", "--max-seconds", "0.01", "--json", "--require-signature", &public];
        let (ran, out, said_too) = of_opt(dir, &[&command[..], more].concat());
        assert_eq!((code, out.is_empty()), (ran, code != 0), "{said_too}");
        assert!(code == 0 || said == said_too, "{said_too}");
    }
    (code, said)
}

#[test]
fn plans_run_only_with_the_signature_that_is_required() {
    let dir = dir();
    for (private, public, foreign) in
        [("ed25519.pem", "ed25519.pub.pem", "p256.pub.pem"), ("p256.pem", "p256.pub.pem", "ed25519.pub.pem")]
    {
        let (code, _, said) = of_opt(&dir, &["sign", "m.plan", "--key", &key(private)]);
        assert_eq!(code, 0, "{said}");
        assert_eq!(check(&dir, public, &[]), (0, String::new()));
        let (code, said) = check(&dir, foreign, &[]);
        assert!(code == 2 && said.contains("signed with another key"), "{said}");
        // Another plan's signature.
        let (code, _, said) = of_opt(&dir, &["sign", "other.plan", "--key", &key(private), "-o", "other.sig"]);
        assert_eq!(code, 0, "{said}");
        let (code, said) = check(&dir, public, &["--signature", "other.sig"]);
        assert!(code == 2 && said.contains("the file is not the signed one: its sha256 is"), "{said}");
    }
    let (code, said) = check(&dir, "p256.pub.pem", &["--signature", "none.sig"]);
    assert!(code == 2 && said.contains("none.sig"), "{said}");
    let (code, said) = check(&dir, "p256.pem", &[]);
    assert!(code == 2 && said.contains("it holds a private key"), "{said}");
}

/// Plans whose checksums hold: someone who changes a plan writes them anew.
#[test]
fn changed_plans_are_refused_with_the_reason() {
    let dir = dir();
    let good = std::fs::read(path(&dir, "m.plan")).unwrap();
    assert_eq!(of_opt(&dir, &["sign", "m.plan", "--key", &key("ed25519.pem")]).0, 0);
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..20 {
        let mut bytes = good.clone();
        bytes[random.usize(0..good.len())] ^= 1 << random.u8(0..8);
        std::fs::write(path(&dir, "m.plan"), &bytes).unwrap();
        let (code, said) = check(&dir, "ed25519.pub.pem", &[]);
        assert!(code == 2 && said.contains("the file is not the signed one"), "{said}");
    }
    let mut plan = PlanFile::from_bytes(&good).unwrap().plan().clone();
    plan.info.model = "other".into();
    std::fs::write(path(&dir, "m.plan"), of_plan::with_structure(&good, plan.encode_to_vec())).unwrap();
    assert_eq!(of_opt(&dir, &["verify", "m.plan"]).0, 0);
    let (code, said) = check(&dir, "ed25519.pub.pem", &[]);
    assert!(code == 2 && said.contains("the file is not the signed one"), "{said}");
    // A plan that does not verify is neither signed nor run.
    let exec = plan.programs[0].tasks.iter_mut().find_map(|task| match &mut task.exec {
        Some(Exec::Kernel(exec)) => Some(exec),
        _ => None,
    });
    exec.unwrap().iterations += 1000;
    std::fs::write(path(&dir, "m.plan"), of_plan::with_structure(&good, plan.encode_to_vec())).unwrap();
    for command in [&["sign", "m.plan", "--key", &key("ed25519.pem")][..], &["verify", "m.plan"], &["run", "m.plan"]] {
        let (code, _, said) = of_opt(&dir, command);
        assert!(code == 2 && said.contains("iterations and its kernel was compiled for"), "{command:?}: {said}");
    }
}

#[test]
fn verify_names_what_it_cannot_check() {
    let dir = dir();
    let (code, text, said) = of_opt(&dir, &["verify", "m.plan"]);
    assert_eq!(code, 0, "{said}");
    for part in
        ["kernels not checked: the machine code of", "hashes of kernels", "no deadlock", "can do what this user can"]
    {
        assert!(text.contains(part), "{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&of_opt(&dir, &["verify", "m.plan", "--json"]).1).unwrap();
    assert!(json["kernels_not_checked"].as_u64().unwrap() > 0 && json["checked"].is_array(), "{json}");
}

#[test]
fn the_python_package_accepts_signatures_of_plans() {
    let Some(python) = require(&MODEL_SIGNING, python_with(&["model_signing"])) else { return };
    let dir = dir();
    assert_eq!(of_opt(&dir, &["sign", "m.plan", "--key", &key("p256.pem")]).0, 0);
    let package = |args: &[&str]| {
        let mut command = Command::new(&python);
        let out =
            command.args(["-m", "model_signing"]).args(args).arg("m.plan").current_dir(dir.path()).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (holds, said) = package(&["verify", "key", "--public_key", &key("p256.pub.pem"), "--signature", "m.plan.sig"]);
    assert!(holds, "{said}");
    let (made, said) = package(&["sign", "key", "--private_key", &key("p256.pem"), "--signature", "its.sig"]);
    assert!(made, "{said}");
    assert_eq!(check(&dir, "p256.pub.pem", &["--signature", "its.sig"]), (0, String::new()));
}
