//! Compilations that a signal or a limit ends: no process and no folder is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use of_test_support::signals::with_default_signals;
use tempfile::TempDir;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder for temporary files, the cache, and a C compiler that never ends.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::create_dir(place.temporary()).unwrap();
        // Its child stands for cc1, which gcc starts.
        let script = "#!/bin/sh\ncase $* in *--version*) echo slow 1; exit;; esac\nsleep 1000 &\necho $! >> \"$STARTED\"\nwait\n";
        fs::write(place.path("slow"), script).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn temporary(&self) -> PathBuf {
        self.path("temporary")
    }

    /// Compiles the model of digits.
    fn compile(&self) -> Command {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.onnx");
        let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        c.arg("compile").arg(model).args(["--cpu-code", "c", "-o"]).arg(self.path("out.plan")).stderr(Stdio::piped());
        c.env("OF_CACHE_DIR", self.path("cache")).env("TMPDIR", self.temporary()).env("STARTED", self.path("started"));
        c
    }

    fn compile_slowly(&self) -> Command {
        let mut c = self.compile();
        c.env("CC", format!("sh '{}'", self.path("slow").display()));
        c
    }

    /// Starts a compilation, and waits until its compiler runs.
    fn started(&self) -> Child {
        let child = with_default_signals(&self.compile_slowly()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the compiler starts", || fs::read_to_string(self.path("started")).is_ok_and(|s| s.contains('\n')));
        assert!(self.folders() > 0);
        child
    }

    /// Processes that were started with the folder for temporary files of this place.
    fn processes(&self) -> Vec<String> {
        let variable = format!("TMPDIR={}", self.temporary().display());
        let ours = |process: &PathBuf| {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|v| v == variable.as_bytes())
        };
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|p| p.path()).filter(ours);
        processes.map(|p| fs::read_to_string(p.join("stat")).unwrap_or_default()).filter(|s| !s.is_empty()).collect()
    }

    fn folders(&self) -> usize {
        fs::read_dir(self.temporary()).unwrap().count()
    }

    fn no_process_is_left(&self) {
        wait_until("all processes end", || self.processes().is_empty());
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "in {PATIENCE:?} not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn send(signal: &str, process: &Child) {
    assert!(Command::new("kill").args(["-s", signal, &process.id().to_string()]).status().unwrap().success());
}

fn stderr(child: Child) -> (Option<i32>, String) {
    let out = child.wait_with_output().unwrap();
    (out.status.code(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn signals_end_compilers_and_remove_folders() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let place = Place::new();
        let child = place.started();
        send(signal, &child);
        let (status, said) = stderr(child);
        assert_eq!((status, said.as_str()), (Some(code), ""), "SIG{signal}");
        assert_eq!(place.folders(), 0, "SIG{signal}");
        place.no_process_is_left();
        assert!(!place.path("out.plan").exists());
    }
}

/// `nohup` ignores SIGHUP for the program that it starts.
#[test]
fn an_ignored_signal_stays_ignored() {
    let place = Place::new();
    let slow = place.compile_slowly();
    let mut c = Command::new("sh");
    c.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(slow.get_program()).args(slow.get_args());
    c.envs(slow.get_envs().filter_map(|(k, v)| Some((k, v?)))).stderr(Stdio::piped());
    let child = c.spawn().unwrap();
    wait_until("the compiler starts", || place.path("started").exists());
    send("HUP", &child);
    send("TERM", &child);
    assert_eq!(stderr(child).0, Some(143));
    place.no_process_is_left();
}

#[test]
fn compilers_end_with_a_killed_program_and_the_next_start_removes_its_folders() {
    let place = Place::new();
    let mut child = place.started();
    child.kill().unwrap();
    child.wait().unwrap();
    place.no_process_is_left();
    assert!(place.folders() > 0, "a killed program cannot remove its folders");
    let (code, said) = stderr(place.compile().spawn().unwrap());
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(place.folders(), 0);
}

#[test]
fn the_time_limit_ends_compilers_and_names_the_kernel() {
    let place = Place::new();
    let begun = Instant::now();
    let (code, said) = stderr(place.compile_slowly().args(["--time-limit", "10s"]).spawn().unwrap());
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("error[E0502]: the time limit of 10s is over: kernel '"), "{said}");
    assert!(said.contains(" from node '"), "the origin of its ops is missing: {said}");
    assert_eq!(place.folders(), 0);
    place.no_process_is_left();
}

#[test]
fn limits_end_a_compilation_between_passes() {
    let place = Place::new();
    for (flags, wanted) in [
        (["--time-limit", "1ms"], "the time limit of 1ms is over: the work before the passes"),
        (["--memory-limit", "1B"], "the memory limit of 0.0 MiB is exceeded"),
    ] {
        let (code, said) = stderr(place.compile().args(flags).spawn().unwrap());
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains(wanted), "{said}");
    }
    let generous = ["--time-limit", "1h", "--memory-limit", "16GiB"];
    let (code, said) = stderr(place.compile().args(generous).spawn().unwrap());
    assert_eq!(code, Some(0), "{said}");
    for wrong in [["--time-limit", "soon"], ["--memory-limit", "4 apples"]] {
        let (code, said) = stderr(place.compile().args(wrong).spawn().unwrap());
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("with a unit"), "{said}");
    }
    let mut run = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    run.arg("run").arg(place.path("out.plan")).args(["--shape", "N=1", "--time-limit", "1h"]).stderr(Stdio::piped());
    let (code, said) = stderr(run.stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(code, Some(0), "{said}");
}

/// A model whose run is as long as its input says.
const LOOP: &str = "func @main(%n: tensor<i64>, %x: tensor<1024xf32>) -> (tensor<1024xf32>) {
  %none = of.none
  %last = of.loop %n, %none, %x : (tensor<i64>, none, tensor<1024xf32>) -> tensor<1024xf32> {
  ^(%i: tensor<i64>, %c: tensor<i1>, %s: tensor<1024xf32>):
    %m = of.sin %s : (tensor<1024xf32>) -> tensor<1024xf32>
    of.yield %c, %m : (tensor<i1>, tensor<1024xf32>) -> ()
  }
  of.return %last : (tensor<1024xf32>) -> ()
}
";

#[test]
fn limits_end_every_command() {
    let place = Place::new();
    std::fs::write(place.path("loop.of"), LOOP).unwrap();
    let count = of_ops::Value::Tensor(of_ir::Tensor::from_slice(&[], &[1i64 << 39]).unwrap());
    let state = of_ops::Value::Tensor(of_ir::Tensor::from_slice(&[1024], &[0.5f32; 1024]).unwrap());
    of_driver::tensor_files::write_npy(&place.path("input_0.npy"), "n", &count).unwrap();
    of_driver::tensor_files::write_npy(&place.path("input_1.npy"), "x", &state).unwrap();
    let inputs = [place.path("input_0.npy"), place.path("input_1.npy")];
    let limited = |command: &str, file: &str, flags: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        program.arg(command).arg(place.path(file)).args(flags).current_dir(place.path("."));
        if ["run", "bench"].contains(&command) {
            program.arg("--inputs").args(&inputs);
        }
        stderr(program.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let (code, said) = limited("compile", "loop.of", &["-o", "loop.plan"]);
    assert_eq!(code, Some(0), "{said}");
    for command in ["run", "bench"] {
        for file in ["loop.of", "loop.plan"] {
            let begun = Instant::now();
            let (code, said) = limited(command, file, &["--time-limit", "1s"]);
            assert_eq!(code, Some(4), "{command} {file}: {said}");
            assert!(said.contains("error[E0502]: the time limit of 1s is over: the command was ended after"), "{said}");
            assert!(begun.elapsed() < PATIENCE);
        }
    }
    // A model of many ops, which takes memory to read.
    let ops: String =
        (0..100_000).map(|i| format!("  %v{} = of.sin %v{i} : (tensor<64xf32>) -> tensor<64xf32>\n", i + 1)).collect();
    let text = format!(
        "func @main(%v0: tensor<64xf32>) -> (tensor<64xf32>) {{\n{ops}  of.return %v100000 : (tensor<64xf32>) -> ()\n}}\n"
    );
    std::fs::write(place.path("large.of"), text).unwrap();
    for command in ["inspect", "verify", "export"] {
        let output: &[&str] = if command == "export" { &["-o", "large.onnx"] } else { &[] };
        let (code, said) = limited(command, "large.of", &[output, &["--memory-limit", "1MB"]].concat());
        assert_eq!(code, Some(4), "{command}: {said}");
        assert!(said.contains("error[E0502]: the memory limit of 1.0 MiB is exceeded"), "{said}");
    }
    assert!(!place.path("large.onnx").exists());
}
