//! `of-opt train` on meshes: the losses of one rank, on threads and processes; and trainings that are killed and go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use of_test_support::signals::with_default_signals;
use serde_json::Value;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").canonicalize().unwrap()
}

/// Trains the digits network with further arguments.
fn command(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]
    {
        c.env_remove(name);
    }
    c.arg("train").arg(digits().join("untrained.onnx")).arg("--data").arg(digits().join("train.npz"));
    c.args(["--threads", "1", "--json", "--validation", "0.1", "--batch", "96", "--learning-rate", "0.005"]);
    c.args(args).current_dir(dir);
    c
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The losses of all epochs, those of training and validation.
fn losses(out: &Output) -> Vec<f64> {
    assert!(out.status.success(), "{}", text(&out.stderr));
    printed(&out.stdout)
}

/// The losses in the lines that a training printed, of which a kill may have left a part.
fn printed(stdout: &[u8]) -> Vec<f64> {
    let lines: Vec<Value> = text(stdout).lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    lines.iter().flat_map(|line| [&line["loss"], &line["validation_loss"]]).map(|loss| loss.as_f64().unwrap()).collect()
}

fn assert_near(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= tolerance * want.abs(), "{what}: {got}, not {want}");
    }
}

/// One rank compiles, and the others open their parts of its plan, in a folder that is gone afterwards.
#[test]
fn one_rank_compiles_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let temporary = dir.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let args = ["--epochs", "1", "--mesh", "cpu[2]", "--ranks", "2", "--peer-timeout", "60s", "-o", "m.safetensors"];
    let mut c = command(dir.path(), &[&args[..], &["--plan", "step.plan", "-vv"]].concat());
    let out = c.env("TMPDIR", &temporary).output().unwrap();
    let errors = text(&out.stderr);
    assert!(out.status.success(), "{errors}");
    let compiles =
        |rank: u32| errors.lines().any(|l| l.starts_with(&format!("[rank {rank}]")) && l.contains("rank compiles"));
    assert!(compiles(0) && !compiles(1), "{errors}");
    let part = errors.lines().find(|l| l.starts_with("[rank 1]") && l.contains("part of the plan")).unwrap_or_default();
    let number = |name: &str| -> u64 {
        let text =
            part.split(&format!("{name}=")).nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        text.unwrap_or_default().parse().unwrap_or_else(|_| panic!("no {name}: {errors}"))
    };
    assert!(number("read") > 0 && number("read") <= number("whole"), "{part}");
    assert_eq!(fs::metadata(dir.path().join("step.plan")).unwrap().len(), number("whole"));
    let left: Vec<_> = fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The plan of a training on more devices than there are here, which the simulator executes.
#[test]
fn a_step_is_compiled_without_training() {
    let dir = tempfile::tempdir().unwrap();
    let out = command(dir.path(), &["--mesh", "cpu[8]", "--plan", "step.plan", "--compile-only"]).output().unwrap();
    assert!(out.status.success() && out.stdout.is_empty(), "{}{}", text(&out.stdout), text(&out.stderr));
    let mut simulate = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    simulate.args(["simulate", "step.plan", "--mesh", "cpu[8]", "--json"]).current_dir(dir.path());
    let report: Value = serde_json::from_slice(&simulate.output().unwrap().stdout).unwrap();
    assert!(report["step_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    let out = command(dir.path(), &["--compile-only"]).output().unwrap();
    assert!(!out.status.success() && text(&out.stderr).contains("--plan"), "{}", text(&out.stderr));
}

/// The IR of a step is a model like others: passes transform it, and the search chooses its layouts.
#[test]
fn the_ir_of_a_step_is_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let out = command(dir.path(), &["--compile-only", "--step-ir", "step.of"]).output().unwrap();
    assert!(out.status.success() && out.stdout.is_empty(), "{}{}", text(&out.stdout), text(&out.stderr));
    let of_opt = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_of-opt")).args(args).current_dir(dir.path()).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        text(&out.stdout)
    };
    let step = fs::read_to_string(dir.path().join("step.of")).unwrap();
    assert!(step.contains("of.gradient") && !step.contains('?'), "{step}");
    let differentiated = of_opt(&["step.of", "--passes", "differentiate"]);
    assert!(!differentiated.contains("of.gradient"), "{differentiated}");
    assert!(of_opt(&["explain", "step.of", "--mesh", "cpu[2]"]).contains("image"));
}

#[test]
fn meshes_train_as_one_rank_does() {
    let dir = tempfile::tempdir().unwrap();
    let common = ["--epochs", "2", "--optimizer", "sgd", "--momentum", "0.9", "-o", "m.safetensors"];
    let run = |args: &[&str]| losses(&command(dir.path(), &[&common[..], args].concat()).output().unwrap());
    let want = run(&[]);
    for args in [
        &["--mesh", "cpu[2]"][..],
        &["--mesh", "cpu[4]"],
        &["--mesh", "cpu[2x2]"],
        &["--mesh", "cpu[2]", "--layout", "image=S(0)", "--layout", "digits.*=B"],
        &["--mesh", "cpu[2]", "--layout", "image=S(0)", "--layout", "*.momentum=S(0)"],
        &["--mesh", "cpu[2]", "--layout", "digits.classify.weight=S(1)"],
        &["--mesh", "cpu[2]", "--ranks", "2", "--peer-timeout", "60s"],
        &["--mesh", "cpu[2x2]", "--ranks", "4", "--transport", "tcp", "--peer-timeout", "60s"],
    ] {
        assert_near(&run(args), &want, 2e-3, &format!("{args:?}"));
    }
    // Rounding in the steps is that of one rank, too.
    let want = run(&["--precision", "bf16"]);
    assert_near(&run(&["--mesh", "cpu[2]", "--precision", "bf16"]), &want, 2e-2, "bf16");
}

#[test]
fn processes_write_what_threads_write() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| losses(&command(dir.path(), args).output().unwrap());
    let path = |name: &str| dir.path().join(name);
    let common = ["--epochs", "1", "--mesh", "cpu[2]", "--layout", "image=S(0)", "--layout", "*.weight=S(0)"];
    let with = |args: &[&str]| run(&[&common[..], args].concat());
    let threads = with(&["-o", "a.onnx", "-o", "a.safetensors", "--snapshot", "sa.safetensors"]);
    let processes = [
        "--ranks",
        "2",
        "--peer-timeout",
        "60s",
        "-o",
        "b.onnx",
        "-o",
        "b.safetensors",
        "--snapshot",
        "sb.safetensors",
    ];
    assert_eq!(with(&processes), threads);
    assert!(fs::read(path("a.onnx")).unwrap() == fs::read(path("b.onnx")).unwrap(), "the models differ");
    let trained = data(&path("a.safetensors"));
    let whole = |name: &str| fs::read(path(name)).unwrap();
    assert!(whole("a.safetensors") == whole("b.safetensors"), "the parameters differ");
    // Each rank wrote its part. One rank goes on from them, and from the parts of threads.
    assert!(!path("sb.safetensors").exists() && path("sb.safetensors.index.json").exists());
    for snapshot in ["sa.safetensors", "sb.safetensors"] {
        run(&["--epochs", "1", "--snapshot", snapshot, "--resume", "-o", "c.safetensors"]);
        assert!(data(&path("c.safetensors")) == trained, "{snapshot}");
    }
    // A snapshot of one file replaces one of several.
    run(&["--epochs", "2", "--snapshot", "sb.safetensors", "--resume", "-o", "c.safetensors"]);
    let left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = left.filter(|name| name.starts_with("sb.")).collect();
    assert_eq!(left, ["sb.safetensors"]);
}

/// Ranks that see different folders, as on two hosts, cannot write one snapshot.
#[test]
fn ranks_that_share_no_folder_are_refused() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let dir = tempfile::tempdir().unwrap();
        let mesh = ["--epochs", "1", "--mesh", "cpu[2]", "--snapshot", "s.safetensors", "-o", "m.safetensors"];
        let mut c = command(dir.path(), &mesh);
        c.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("LOCAL_RANK", rank.to_string());
        c.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        (c.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap(), dir)
    };
    for (rank, job) in [start(0), start(1)].into_iter().enumerate() {
        let out = job.0.wait_with_output().unwrap();
        let errors = text(&out.stderr);
        assert!(!out.status.success() && errors.contains("on several hosts, name a folder that all see"), "{errors}");
        assert!(errors.contains(&format!("sees no file that rank {} wrote", 1 - rank)), "{errors}");
        assert!(fs::read_dir(job.1.path()).unwrap().next().is_none(), "rank {rank} leaves files behind");
    }
}

#[test]
fn ranks_without_a_mesh_and_other_data_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = command(dir.path(), &["--ranks", "2", "-o", "m.onnx"]).output().unwrap();
    assert!(text(&out.stderr).contains("several processes train on a mesh: give --mesh"), "{}", text(&out.stderr));
    let with = |args: &[&str]| {
        let common = ["--epochs", "1", "--snapshot", "s.safetensors", "-o", "m.onnx"];
        command(dir.path(), &[&common[..], args].concat()).output().unwrap()
    };
    losses(&with(&[]));
    let out = with(&["--resume", "--seed", "3"]);
    assert!(text(&out.stderr).contains("is of a training with --seed 0 and --batch 96 on"), "{}", text(&out.stderr));
}

/// The number of steps that the snapshot in a folder is after; 0 where there is none.
fn step(dir: &Path) -> usize {
    let single = fs::read(dir.join("s.safetensors")).ok().map(|bytes| {
        let (header, _) = split(&bytes);
        serde_json::from_slice::<Value>(header).unwrap()["__metadata__"].clone()
    });
    let index = fs::read(dir.join("s.safetensors.index.json")).ok();
    let index = index.map(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap()["metadata"].clone());
    let step = |metadata: Value| metadata["step"].as_str().unwrap().parse().unwrap();
    single.into_iter().chain(index).map(step).max().unwrap_or(0)
}

/// The header of a file of safetensors, and the values.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8..].split_at(len)
}

/// The values of a file.
fn data(path: &Path) -> Vec<u8> {
    split(&fs::read(path).unwrap()).1.to_vec()
}

/// Trains with snapshots after every step. Each run is killed when it has done a random number of steps, and the next one goes on; the
/// last one ends the training. `meshes` are those of the runs, one after the other. Returns the losses of the last epoch.
fn killed(dir: &Path, meshes: &[&[&str]], kills: usize, args: &[&str]) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(kills as u64);
    let total = 4 * (1293 / 96);
    let mut targets: Vec<usize> = (0..kills).map(|_| rng.usize(1..total - 1)).collect();
    targets.sort_unstable();
    let mut last = Vec::new();
    for (run, target) in targets.into_iter().map(Some).chain([None]).enumerate() {
        let more = ["--snapshot", "s.safetensors", "--snapshot-every", "1", "--resume"];
        let mut c = command(dir, &[args, &more[..], meshes[run % meshes.len()]].concat());
        let Some(target) = target else {
            last.extend(losses(&c.output().unwrap()));
            return last[last.len() - 2..].to_vec();
        };
        let stdout = dir.join("losses");
        let mut child = c.stdout(fs::File::create(&stdout).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        while step(dir) < target && child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < PATIENCE, "step {target} was not done");
            std::thread::sleep(Duration::from_micros(200));
        }
        // It may have ended by itself, where the machine is busy: the next one then has nothing left to do.
        child.kill().unwrap();
        child.wait().unwrap();
        last.extend(printed(&fs::read(stdout).unwrap()));
    }
    unreachable!("the last run returns")
}

/// How often a training is killed: `OF_RESTARTS` says it (`cargo xtask restarts`).
fn kills() -> usize {
    std::env::var("OF_RESTARTS").map_or(10, |n| n.parse().unwrap())
}

#[test]
fn killed_trainings_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--epochs", "4", "--seed", "7", "--optimizer", "sgd", "--momentum", "0.9", "-o", "m.safetensors"];
    let layout = &["--mesh", "cpu[2]", "--layout", "image=S(0)", "--layout", "*.weight=S(0)"][..];
    let whole = |layout: &[&str]| {
        let all = losses(&command(dir.path(), &[&args[..], layout].concat()).output().unwrap());
        (all[all.len() - 1], data(&dir.path().join("m.safetensors")))
    };
    let (_, uninterrupted) = whole(layout);
    // An equal layout has the same bits.
    killed(dir.path(), &[layout], kills(), &args);
    let model = data(&dir.path().join("m.safetensors"));
    assert!(model == uninterrupted, "the training that was killed has another result");
    // Other numbers of ranks see the same samples in the same order: another order has another result.
    let meshes = [&[][..], &["--mesh", "cpu[2]"], &["--mesh", "cpu[3]"], &["--mesh", "cpu[4]"]];
    let (want, _) = whole(&[]);
    let dir = tempfile::tempdir().unwrap();
    let got = killed(dir.path(), &meshes, kills(), &args);
    assert_near(&got[1..], &[want], 2e-3, "ranks from 1 to 4");
}

/// A training that signals interrupt, in a session of processes of its own. It ends with the test.
struct Interrupted {
    dir: tempfile::TempDir,
    launcher: std::process::Child,
}

impl Interrupted {
    /// Starts a training with snapshots, which has done some steps when this returns.
    fn start(dir: tempfile::TempDir, args: &[&str]) -> Interrupted {
        let before = step(dir.path());
        let mut job = Interrupted::spawn(dir, args);
        let since = Instant::now();
        while step(job.dir.path()) <= before {
            assert!(since.elapsed() < PATIENCE, "there is no snapshot");
            assert!(job.launcher.try_wait().unwrap().is_none(), "the training ended before it was interrupted");
            std::thread::sleep(Duration::from_millis(1));
        }
        job
    }

    fn spawn(dir: tempfile::TempDir, args: &[&str]) -> Interrupted {
        let mut c = with_default_signals(&command(dir.path(), args));
        c.env("TMPDIR", dir.path().join("temporary")).current_dir(dir.path());
        std::os::unix::process::CommandExt::process_group(&mut c, 0);
        let launcher = c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Interrupted { dir, launcher }
    }

    /// The processes that the launcher started.
    fn ranks(&self) -> Vec<String> {
        let launcher = self.launcher.id();
        let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap_or_default();
        children.split_whitespace().map(str::to_owned).collect()
    }

    /// The process of a rank.
    fn rank(&self, rank: usize) -> String {
        let is = |pid: &String| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|v| v == format!("OF_RANK={rank}").as_bytes())
        };
        self.ranks().into_iter().find(is).unwrap_or_else(|| panic!("there is no rank {rank}"))
    }

    fn send(signal: &str, to: &str) {
        assert!(Command::new("kill").args(["-s", signal, "--", to]).status().unwrap().success());
    }

    /// Waits for the end of the training and of all of its ranks. Gives its folder, its exit code, and what it said.
    fn end(mut self) -> (tempfile::TempDir, Option<i32>, String) {
        let since = Instant::now();
        // Its pipes have room for what it writes.
        while self.launcher.try_wait().unwrap().is_none() {
            assert!(since.elapsed() < PATIENCE, "the training does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let group = format!("-{}", self.launcher.id());
        while Command::new("kill").args(["-s", "0", "--", &group]).stderr(Stdio::null()).status().unwrap().success() {
            assert!(since.elapsed() < PATIENCE, "a rank goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut said = Vec::new();
        std::io::Read::read_to_end(&mut self.launcher.stderr.take().unwrap(), &mut said).unwrap();
        let code = self.launcher.wait().unwrap().code();
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        (dir, code, text(&said))
    }
}

impl Drop for Interrupted {
    fn drop(&mut self) {
        // Its ranks end with it.
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// A folder for a training, and one for its temporary files.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("temporary")).unwrap();
    dir
}

const RANKS: &[&str] = &["--mesh", "cpu[2]", "--ranks", "2", "--peer-timeout", "60s", "--epochs", "120"];
const SNAPSHOTS: &[&str] = &["--snapshot", "s.safetensors", "--snapshot-every", "3", "--resume", "-o", "m.safetensors"];

/// The step after which an interrupted training says that it ended.
fn interrupted_after(said: &str) -> usize {
    let (_, rest) = said.split_once("interrupted after step ").unwrap_or_else(|| panic!("{said}"));
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// Signals that any of the processes gets interrupt all ranks after the same step. What goes on has the bits of a training that was not
/// interrupted.
#[test]
fn signals_interrupt_all_ranks_after_one_step() {
    let undisturbed = folder();
    let want = losses(&command(undisturbed.path(), &[RANKS, &["-o", "m.safetensors"]].concat()).output().unwrap());
    let mut dir = folder();
    for (signal, code, more, to) in [
        ("TERM", 143, &[][..], "launcher"),
        ("TERM", 143, &[], "rank 1"),
        // As a terminal does.
        ("INT", 130, &[], "all"),
        ("INT", 130, &["--max-restarts", "2", "--transport", "tcp"], "rank 0"),
    ] {
        let job = Interrupted::start(dir, &[RANKS, SNAPSHOTS, more].concat());
        let launcher = job.launcher.id();
        let to = match to {
            "launcher" => launcher.to_string(),
            "all" => format!("-{launcher}"),
            rank => job.rank(usize::from(rank.ends_with('1'))),
        };
        Interrupted::send(signal, &to);
        let (own, ended, said) = job.end();
        assert_eq!(ended, Some(code), "SIG{signal}: {said}");
        assert_eq!(interrupted_after(&said), step(own.path()), "{said}");
        assert!(said.contains("s.safetensors is written; the same command with --resume goes on from there"), "{said}");
        assert!(said.matches("interrupted after step").count() == 1 && !said.contains("error"), "{said}");
        assert!(!said.contains("restart 1") && !own.path().join("m.safetensors").exists(), "{said}");
        let left: Vec<_> = fs::read_dir(own.path().join("temporary")).unwrap().map(Result::unwrap).collect();
        assert!(left.is_empty(), "{left:?}");
        dir = own;
    }
    let out = command(dir.path(), &[RANKS, SNAPSHOTS].concat()).output().unwrap();
    let got = losses(&out);
    // The first epoch after the interruption has the mean of the steps that were left of it.
    assert!(got.len() > 4 && want.ends_with(&got[2..]), "{got:?}");
    let whole = |dir: &tempfile::TempDir| fs::read(dir.path().join("m.safetensors")).unwrap();
    assert!(whole(&dir) == whole(&undisturbed), "the training that was interrupted has another result");
}

/// A rank that does not answer holds the others up until the second signal.
#[test]
fn a_second_signal_ends_all_ranks_at_once() {
    let job = Interrupted::start(folder(), &[RANKS, SNAPSHOTS].concat());
    let (launcher, victim) = (job.launcher.id().to_string(), job.rank(1));
    Interrupted::send("STOP", &victim);
    Interrupted::send("TERM", &launcher);
    std::thread::sleep(Duration::from_millis(300));
    let before = Instant::now();
    Interrupted::send("TERM", &launcher);
    let (_, ended, said) = job.end();
    assert!(before.elapsed() < Duration::from_secs(30), "{said}");
    assert_eq!(ended, Some(143), "{said}");
    assert!(said.contains("a second signal ends at once") && !said.contains("interrupted after step"), "{said}");
}

/// There is nothing to save yet.
#[test]
fn ranks_that_compile_are_interrupted_at_once() {
    let job = Interrupted::spawn(folder(), &[RANKS, SNAPSHOTS].concat());
    let since = Instant::now();
    while job.ranks().len() < 2 {
        assert!(since.elapsed() < PATIENCE, "there are no ranks");
        std::thread::sleep(Duration::from_millis(1));
    }
    Interrupted::send("TERM", &job.launcher.id().to_string());
    let (_, ended, said) = job.end();
    assert_eq!(ended, Some(143), "{said}");
    // On a busy machine they may have begun by then.
    let has_begun = said.contains("interrupted after step");
    assert!(has_begun || said.contains("the ranks had not begun to train: there is no new snapshot"), "{said}");
}

/// Each host has a launcher of its own, and one of them is interrupted.
#[test]
fn an_interrupted_host_ends_the_others() {
    let dir = folder();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let host = |n: usize| format!("[[host]]\nname = \"h{n}\"\naddress = \"127.0.0.{n}\"\nranks = 1\nthreads = 1\n");
    fs::write(dir.path().join("hosts.toml"), format!("port = {port}\n{}{}", host(1), host(2))).unwrap();
    let on = |name| {
        ["--mesh", "cpu[2]", "--hosts", "hosts.toml", "--host", name, "--peer-timeout", "60s", "--epochs", "9999"]
    };
    let mut first = command(dir.path(), &[&on("h1")[..], SNAPSHOTS].concat());
    let mut first = first.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let second = Interrupted::start(dir, &[&on("h2")[..], SNAPSHOTS].concat());
    Interrupted::send("TERM", &second.launcher.id().to_string());
    let (dir, ended, said) = second.end();
    assert_eq!(ended, Some(143), "{said}");
    let since = Instant::now();
    while first.try_wait().unwrap().is_none() {
        assert!(since.elapsed() < PATIENCE, "the other host does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = first.wait_with_output().unwrap();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(143), "{said}");
    assert_eq!(interrupted_after(&said), step(dir.path()), "{said}");
    assert!(!said.contains("error"), "{said}");
}
