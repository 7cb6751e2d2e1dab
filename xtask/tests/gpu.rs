//! The pack of `cargo xtask gpu`, end to end on the emulated GPU, with a suite that needs no torch (`gpu_suite.py`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use of_test_support::component::{PYTHON, available};
use serde_json::Value;

/// A pack in a folder, and the folders of its runs.
struct Pack {
    dir: tempfile::TempDir,
}

impl Pack {
    fn new() -> Pack {
        let dir = tempfile::tempdir().unwrap();
        let out = xtask(&["gpu", "--out", dir.path().join("pack").to_str().unwrap()]);
        assert!(out.0, "{}", out.1);
        Pack { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command that runs the pack on the emulated GPU.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("bash");
        command.arg(self.path("pack/run.sh")).args(["--arch", "emulated", "--jobs", "2", "--measure-seconds", "0.01"]);
        command.arg("--suite").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu_suite.py"));
        command.arg("--work").arg(self.path("work")).args(args);
        command.env("OUT", self.path("out")).env("SUITE_NOTES", self.path("notes")).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn run(&self, args: &[&str]) -> String {
        let out = self.command(args).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{text}");
        text
    }

    /// The lines of the results by phase, case and part.
    fn results(&self) -> BTreeMap<String, Value> {
        let text = fs::read_to_string(self.path("out/results.jsonl")).unwrap_or_default();
        let key = |l: &Value| ["phase", "case", "part"].map(|n| l[n].as_str().unwrap().to_string()).join(" ");
        text.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()).map(|l| (key(&l), l)).collect()
    }

    /// How often the peer of a case was run.
    fn peers_of(&self, case: &str) -> usize {
        fs::read_to_string(self.path("notes")).unwrap_or_default().lines().filter(|l| *l == case).count()
    }
}

fn xtask(args: &[&str]) -> (bool, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).env("CARGO", env!("CARGO")).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    (out.status.success(), text)
}

#[track_caller]
fn python() -> bool {
    let found = Command::new("python3").arg("--version").stdout(Stdio::null()).status();
    available(&PYTHON, found.map_err(|e| e.to_string()).map(drop))
}

#[test]
fn results_are_written_one_by_one_and_continue() {
    if !python() {
        return;
    }
    let pack = Pack::new();
    // A process that a case leaves behind ends with its case, which is killed after three seconds.
    let all = ["--phase", "facts,check,sanitize,kernels,models,ncu", "--case-seconds", "3"];
    let text = pack.run(&all);
    let results = pack.results();
    let line = |key: &str| results.get(key).unwrap_or_else(|| panic!("{key}: {text}"));
    let why = |key: &str| line(key)["why"].as_str().unwrap_or("").to_string();
    assert_eq!(line("facts machine ")["torch"], "none");
    assert_eq!(line("check tanh ours")["ok"], true, "{text}");
    assert_eq!((&line("check wrong ours")["ok"], why("check wrong ours").as_str()), (&false.into(), "the error is 2"));
    for key in ["kernels tanh ours", "models neg ours"] {
        let ms = |name: &str| line(key)[name].as_f64().unwrap();
        assert!(ms("device_ms") > 0.0 && ms("device_ms") <= ms("median_ms"), "{text}");
    }
    assert_eq!(why("kernels hangs torch"), "killed after 3 s");
    assert!(why("kernels wrong torch").contains("signal 9"), "{}", why("kernels wrong torch"));
    assert!(why("prepare refused ").contains("'emulated+nothing' is unknown"), "{}", why("prepare refused "));
    assert_eq!(line("check refused ours")["ok"], true);
    assert!(why("check refused ours+tf32").contains("was not compiled"));

    // The next run has nothing to do, even if the folder of results is empty: work and pack keep them.
    fs::rename(pack.path("out"), pack.path("before")).unwrap();
    pack.run(&all);
    assert_eq!(pack.results(), results);
    assert_eq!((pack.peers_of("tanh"), pack.peers_of("hangs"), pack.peers_of("outlived")), (1, 1, 0));
    fs::remove_dir_all(pack.path("work")).unwrap();
    fs::remove_dir_all(pack.path("out")).unwrap();
    fs::copy(pack.path("before/results.jsonl"), pack.path("pack/results.jsonl")).unwrap();
    pack.run(&all);
    assert_eq!(pack.results(), results);
    fs::remove_file(pack.path("pack/results.jsonl")).unwrap();

    // Failed cases run again on demand, finished ones if all is to be new.
    pack.run(&["--phase", "kernels", "--filter", "wrong,tanh", "--retry"]);
    assert_eq!((pack.peers_of("tanh"), pack.peers_of("wrong")), (1, 2));
    pack.run(&["--phase", "kernels", "--filter", "tanh", "--fresh"]);
    assert_eq!(pack.peers_of("tanh"), 2);
    assert!(!pack.results().contains_key("check tanh ours"));

    let (ok, text) = xtask(&["gpu", "report", pack.path("before/results.jsonl").to_str().unwrap()]);
    assert!(ok && text.contains("| tanh | f32 | ") && text.contains("| neg | f32 | "), "{text}");
    assert!(text.contains("- kernels hangs torch: killed after 3 s"), "{text}");

    let (ok, text) = xtask(&["gpu", "--out", pack.path("pack").to_str().unwrap(), "--mib", "1"]);
    assert!(!ok && text.contains("and may have 1"), "{text}");
}

#[test]
fn killed_runs_keep_finished_cases() {
    if !python() {
        return;
    }
    let pack = Pack::new();
    let args = ["--phase", "kernels", "--case-seconds", "60"];
    let mut run = pack.command(&args).stdout(Stdio::null()).spawn().unwrap();
    // The case that hangs runs after others.
    let begun = Instant::now();
    while pack.peers_of("hangs") == 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "the case was not reached");
        std::thread::sleep(Duration::from_millis(50));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let results = pack.results();
    assert_eq!(results["kernels tanh torch"]["ok"], true);
    assert!(!results.contains_key("kernels hangs torch"));
    // A line that was cut off is left out.
    let file = pack.path("out/results.jsonl");
    fs::write(&file, fs::read_to_string(&file).unwrap() + "{\"phase\": \"ker").unwrap();

    // The end of the call's time is no result of the case that was running then.
    let text = pack.run(&[&args[..], &["--seconds", "9"]].concat());
    assert!(text.contains("a line is damaged") && text.contains("run it again to continue"), "{text}");
    assert_eq!((pack.peers_of("tanh"), pack.peers_of("hangs")), (1, 2));
    assert!(!pack.results().contains_key("kernels hangs torch"));
    let text = pack.run(&["--phase", "kernels", "--case-seconds", "2"]);
    assert!(text.contains("all phases are done"), "{text}");
    assert_eq!(pack.results()["kernels hangs torch"]["why"], "killed after 2 s");
}

/// The environment that the pack makes, for a folder of Python's packages and a toolkit that are written here.
#[test]
fn libraries_are_found_in_packages_of_python() {
    if !python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("site-packages");
    let kit = dir.path().join("cuda");
    for file in [
        "site-packages/nvidia/cu13/lib/libnvrtc.so.13",
        "site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
        "site-packages/nvidia/cudnn/lib/libcudnn.so.9",
        "site-packages/torch/lib/libtorch.so",
        "cuda/lib64/libcublasLt.so.13",
        "cuda/lib64/libnvrtc.so.12",
    ] {
        let path = dir.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let script = "import json, pathlib, sys\nsys.path.insert(0, sys.argv[1])\nimport libraries\n\
                  folders = libraries.library_folders([sys.argv[2]], [sys.argv[3]])\n\
                  found = libraries.find(folders)\n\
                  print(json.dumps(libraries.environment(pathlib.Path(sys.argv[4]), found, folders)))\n";
    let mut python = Command::new("python3");
    python.args(["-B", "-c", script]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu/pack"));
    python.arg(&site).arg(&kit).arg(dir.path().join("work"));
    for name in ["OF_CUDNN", "OF_CUBLASLT", "OF_NCCL", "OF_CUDA_TOOLKIT", "LD_LIBRARY_PATH"] {
        python.env_remove(name);
    }
    let out = python.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let path = |name: &str| PathBuf::from(found[name].as_str().unwrap_or_else(|| panic!("{name}")));
    assert_eq!(path("OF_CUDNN"), site.join("nvidia/cudnn/lib/libcudnn.so.9"));
    assert_eq!(path("OF_CUBLASLT"), kit.join("lib64/libcublasLt.so.13"));
    assert!(found.get("OF_NCCL").is_none());
    let toolkit = path("OF_CUDA_TOOLKIT").join("lib");
    for name in ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0"] {
        assert_eq!(fs::read_link(toolkit.join(name)).unwrap(), site.join("nvidia/cu13/lib").join(name));
    }
    let folders = found["LD_LIBRARY_PATH"].as_str().unwrap();
    assert!(folders.contains("torch/lib") && folders.ends_with("lib64"), "{folders}");
}
