//! Trainings of which ranks are killed: they are started again, the others wait for them with their state, and the result has the same
//! bits as without a loss.
//!
//! `OF_RESTARTS=20` repeats each kill 20 times, prints how long it took until the next step was done, and fails where that was more than
//! 3 s (`cargo xtask restarts`).

use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use of_runtime::flight_recorder::FlightLog;
use of_test_support::signals::with_default_signals;
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Seconds within which a training goes on after a kill, where kills are repeated and the machine does nothing else.
const LIMIT: f64 = 3.0;

/// Steps of a training: 4 epochs of 13.
const STEPS: u64 = 52;

/// State of the optimizer is split over the ranks, as in ZeRO 1.
const ZERO: &[&str] = &["--layout", "image=S(0)", "--layout", "digits.*=B", "--layout", "*.momentum=S(0)"];

/// All ranks have the whole state.
const REPLICATED: &[&str] = &["--layout", "image=S(0)", "--layout", "digits.*=B", "--layout", "*.momentum=B"];

fn rounds() -> usize {
    std::env::var("OF_RESTARTS").map_or(1, |n| n.parse().unwrap())
}

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").canonicalize().unwrap()
}

fn command(dir: &Path, ranks: usize, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]
    {
        c.env_remove(name);
    }
    c.arg("train").arg(digits().join("untrained.onnx")).arg("--data").arg(digits().join("train.npz"));
    c.args(["--threads", "1", "--json", "--batch", "96", "--epochs", "4", "--seed", "7"]);
    if !args.contains(&"--validation") {
        c.args(["--validation", "0.1"]);
    }
    c.args(["--optimizer", "sgd", "--momentum", "0.9", "--learning-rate", "0.005", "-o", "m.safetensors"]);
    c.args(["--mesh", &format!("cpu[{ranks}]"), "--ranks", &ranks.to_string(), "--flight-recorder", "recordings"]);
    c.args(args).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A hash of the parameters that a training wrote.
fn result(dir: &Path) -> u64 {
    let bytes = fs::read(dir.join("m.safetensors")).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut hasher = std::hash::DefaultHasher::new();
    bytes[8 + len..].hash(&mut hasher);
    hasher.finish()
}

/// The losses of each epoch; that of an epoch which was reported twice, because the first rank was lost then, must be the same.
fn losses(out: &Output) -> Vec<(f64, f64)> {
    assert!(out.status.success(), "{}", text(&out.stderr));
    let mut epochs: Vec<(f64, f64)> = Vec::new();
    for line in text(&out.stdout).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let number = |key: &str| line[key].as_f64().unwrap();
        let (epoch, got) = (number("epoch") as usize, (number("loss"), number("validation_loss")));
        if epoch == epochs.len() + 1 {
            epochs.push(got);
        }
        assert_eq!(epochs[epoch - 1], got, "epoch {epoch}: {}", text(&out.stderr));
    }
    epochs
}

/// A training without a loss: its result and losses.
fn undisturbed(ranks: usize, args: &[&str]) -> (u64, Vec<(f64, f64)>) {
    let dir = tempfile::tempdir().unwrap();
    let out = command(dir.path(), ranks, &[args, &["--peer-timeout", "60s"]].concat()).output().unwrap();
    let losses = losses(&out);
    assert_eq!(losses.len(), 4);
    (result(dir.path()), losses)
}

/// A training of which ranks are killed.
struct Job {
    dir: TempDir,
    launcher: Option<Child>,
}

impl Job {
    fn start(ranks: usize, args: &[&str]) -> Job {
        let dir = tempfile::tempdir().unwrap();
        let mut launcher = with_default_signals(&command(dir.path(), ranks, args));
        let launcher = launcher.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Job { dir, launcher: Some(launcher) }
    }

    fn recording(&self, rank: usize) -> PathBuf {
        self.dir.path().join(format!("recordings/rank-{rank}.flight"))
    }

    /// Steps that the present process of a rank has done since it joined the others.
    fn steps(&self, rank: usize) -> u64 {
        FlightLog::read(&self.recording(rank)).map_or(0, |log| log.steps.1)
    }

    fn is_over(&mut self) -> bool {
        self.launcher.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits until a rank has done so many steps. `false` where the job ended before.
    fn wait_for(&mut self, rank: usize, steps: u64) -> bool {
        self.wait_until(|job| job.steps(rank) >= steps)
    }

    /// Waits until something is so. `false` where the job ended before.
    fn wait_until(&mut self, is_so: impl Fn(&Job) -> bool) -> bool {
        let since = Instant::now();
        while !is_so(self) {
            if self.is_over() {
                return false;
            }
            assert!(since.elapsed() < PATIENCE, "the job does not come so far");
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// The process of a rank, if there is one.
    fn process(&self, rank: usize) -> Option<String> {
        let launcher = self.launcher.as_ref().unwrap().id();
        let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).unwrap_or_default();
        let is = |pid: &&str| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|v| v == format!("OF_RANK={rank}").as_bytes())
        };
        children.split_whitespace().find(is).map(str::to_owned)
    }

    /// Sends a signal to a rank, whose recording begins anew. `false` where it has ended.
    fn signal(&self, rank: usize, signal: &str) -> bool {
        let Some(pid) = self.process(rank) else { return false };
        let sent = Command::new("kill").args([signal, &pid]).stderr(Stdio::null()).status().unwrap().success();
        let _ = fs::remove_file(self.recording(rank));
        sent
    }

    fn end(mut self) -> (TempDir, Output) {
        let since = Instant::now();
        while !self.is_over() {
            // Its pipes have room for what it writes.
            assert!(since.elapsed() < PATIENCE, "the job hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
        let out = self.launcher.take().unwrap().wait_with_output().unwrap();
        (std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap()), out)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(launcher) = &mut self.launcher {
            // Its ranks end with it.
            let _ = launcher.kill();
            let _ = launcher.wait();
        }
    }
}

/// Kills a random rank at a random step, so many times, each in a training of its own. The training goes on, with the bits of one
/// without a loss.
fn kill(ranks: usize, layout: &[&str], transport: &str) {
    let args = [layout, &["--transport", transport]].concat();
    let (want, want_losses) = undisturbed(ranks, &args);
    let mut rng = fastrand::Rng::with_seed(ranks as u64);
    let (mut kills, mut times) = (0, Vec::new());
    for _ in 0..4 * rounds() {
        let (rank, step) = (rng.usize(..ranks), rng.u64(1..STEPS - 8));
        let timeout = if rounds() > 1 { "1s" } else { "6s" };
        let mut job = Job::start(ranks, &[&args[..], &["--max-restarts", "2", "--peer-timeout", timeout]].concat());
        let killed = job.wait_for(rank, step) && job.signal(rank, "-KILL");
        let since = Instant::now();
        let goes_on = killed && job.wait_for(rank, 1);
        times.push(since.elapsed());
        let (dir, out) = job.end();
        let errors = text(&out.stderr);
        assert_eq!(losses(&out), want_losses, "rank {rank} at step {step}: {errors}");
        assert_eq!(result(dir.path()), want, "rank {rank} at step {step}: {errors}");
        if !goes_on {
            // The machine was busy, and the training ended before the kill.
            times.pop();
            continue;
        }
        assert!(errors.contains(&format!("rank {rank} was ended by signal 9: restart 1 of 2")), "{errors}");
        assert!(errors.contains("all ranks are there: going on after step "), "{errors}");
        kills += 1;
        if kills == rounds() {
            break;
        }
    }
    assert_eq!(kills, rounds(), "the trainings ended before they could be disturbed");
    if rounds() > 1 {
        times.sort_unstable();
        let (median, worst) = (times[times.len() / 2].as_secs_f64(), times[times.len() - 1].as_secs_f64());
        println!(
            "{ranks} ranks, {transport}, {}: {kills} kills, next step after {median:.2} s (median), {worst:.2} s (most)",
            if layout == ZERO { "ZeRO" } else { "replicated" }
        );
        assert!(worst <= LIMIT, "the next step was done after {worst:.2} s, and at most {LIMIT} s are allowed");
    }
}

#[test]
fn two_ranks_that_share_memory() {
    kill(2, ZERO, "shared-memory");
}

#[test]
fn two_ranks_over_tcp() {
    kill(2, REPLICATED, "tcp");
}

#[test]
fn four_ranks_that_share_memory() {
    kill(4, REPLICATED, "shared-memory");
}

#[test]
fn four_ranks_over_tcp() {
    kill(4, ZERO, "tcp");
}

/// Kills rank 0 where something is so, and returns what the training says.
fn killed_where(args: &[&str], is_so: impl Fn(&Job) -> bool) -> (TempDir, Output) {
    let mut job = Job::start(2, &[args, &["--max-restarts", "1", "--peer-timeout", "6s"]].concat());
    assert!(job.wait_until(is_so), "the job ended");
    job.signal(0, "-KILL");
    job.end()
}

/// Evaluations have a session of their own, in which the loss of a rank must be noticed for that of the steps as well.
#[test]
fn a_rank_is_killed_during_an_evaluation() {
    let args = [REPLICATED, &["--validation", "0.8"]].concat();
    let (want, want_losses) = undisturbed(2, &args);
    for _ in 0..rounds() {
        let evaluates = |job: &Job| {
            let log = FlightLog::read(&job.recording(1));
            log.is_ok_and(|log| log.program.is_some_and(|(mesh, _)| mesh > 0))
        };
        let (dir, out) = killed_where(&args, evaluates);
        let errors = text(&out.stderr);
        assert_eq!(losses(&out), want_losses, "{errors}");
        assert_eq!(result(dir.path()), want, "{errors}");
    }
}

/// Before the first step no rank has a copy, and the training begins anew.
#[test]
fn a_rank_is_killed_while_the_ranks_join() {
    let (want, want_losses) = undisturbed(2, ZERO);
    for _ in 0..3 * rounds() {
        let (dir, out) = killed_where(ZERO, |job| job.recording(0).exists());
        let errors = text(&out.stderr);
        assert_eq!(losses(&out), want_losses, "{errors}");
        assert_eq!(result(dir.path()), want, "{errors}");
    }
}

/// A rank that a signal interrupts before the training begins ends the job, wherever the others are. At once, it is started again like one that
/// is killed.
#[test]
fn a_rank_is_interrupted_before_the_training() {
    for delay in [0, 50, 100, 200] {
        let mut job = Job::start(4, &[ZERO, &["--max-restarts", "3", "--peer-timeout", "6s"]].concat());
        assert!(job.wait_until(|job| job.process(0).is_some()), "the job ended");
        std::thread::sleep(Duration::from_millis(delay));
        job.signal(0, "-INT");
        let (_, out) = job.end();
        let errors = text(&out.stderr);
        assert!(matches!(out.status.code(), Some(0 | 130)), "after {delay} ms: {}: {errors}", out.status);
        assert!(!errors.contains("was ended by signal 9"), "after {delay} ms: {errors}");
    }
}

#[test]
fn a_rank_and_the_one_with_its_copy() {
    let args = [ZERO, &["--max-restarts", "4", "--peer-timeout", "6s"]].concat();
    let both = |args: &[&str]| {
        let mut job = Job::start(4, args);
        assert!(job.wait_for(1, 5), "the job ended");
        assert!(job.signal(1, "-KILL") && job.signal(2, "-KILL"), "the job ended");
        job.end()
    };
    let (_, out) = both(&args);
    let errors = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{errors}");
    assert!(errors.contains("the state of rank 1 is gone") && errors.contains("--snapshot FILE"), "{errors}");
    // With snapshots it goes on from the last one.
    let (want, _) = undisturbed(4, ZERO);
    let (dir, out) = both(&[&args[..], &["--snapshot", "s.safetensors", "--snapshot-every", "1"]].concat());
    let errors = text(&out.stderr);
    assert!(out.status.success(), "{errors}");
    assert!(errors.contains("resumed from s.safetensors at step "), "{errors}");
    assert_eq!(result(dir.path()), want, "{errors}");
}

/// An older snapshot of another training is none of this job.
#[test]
fn a_snapshot_of_an_earlier_job_is_not_taken() {
    let args = [ZERO, &["--max-restarts", "4", "--peer-timeout", "6s", "--snapshot", "s.safetensors"]].concat();
    let mut job = Job::start(2, &args);
    let old = fs::File::create(job.dir.path().join("s.safetensors")).unwrap();
    old.set_modified(std::time::SystemTime::now() - Duration::from_secs(60)).unwrap();
    assert!(job.wait_for(1, 3), "the job ended");
    assert!(job.signal(1, "-KILL") && job.signal(0, "-KILL"), "the job ended");
    let (_, out) = job.end();
    let errors = text(&out.stderr);
    assert!(errors.contains("the state of ranks 0, 1 is gone"), "{errors}");
}

/// The plan of a training is removed with the job. Its recordings have the names of tasks and of ONNX nodes nevertheless.
#[test]
fn recordings_of_a_failed_training_have_names() {
    let mut job = Job::start(2, &[ZERO, &["--peer-timeout", "6s"]].concat());
    assert!(job.wait_for(1, 5) && job.signal(1, "-KILL"), "the job ended");
    let (dir, out) = job.end();
    assert_eq!(out.status.code(), Some(128 + 9), "{}", text(&out.stderr));
    let mut why = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    let why = why.args(["why-stuck", "recordings", "--actors"]).current_dir(dir.path()).output().unwrap();
    let (said, notes) = (text(&why.stdout), text(&why.stderr));
    assert!(why.status.success() && !notes.contains("is not there any more"), "{notes}");
    assert!(said.contains("rank 0, program `") && said.contains(" at node '"), "{said}");
}

#[test]
fn restarts_end() {
    let mut job = Job::start(2, &[ZERO, &["--max-restarts", "1", "--peer-timeout", "6s"]].concat());
    for steps in [5, 2] {
        assert!(job.wait_for(1, steps) && job.signal(1, "-KILL"), "the job ended");
    }
    let (_, out) = job.end();
    let errors = text(&out.stderr);
    assert_eq!(out.status.code(), Some(128 + 9), "{errors}");
    let last = errors.lines().rfind(|line| line.starts_with("error[")).unwrap_or_default();
    assert!(last.contains("rank 1 was ended by signal 9"), "{errors}");
    // The other rank says what it waited for, as it does without restarts.
    assert!(errors.lines().any(|line| line.starts_with("[rank 0]") && line.contains("error[")), "{errors}");
}

#[test]
fn a_stopped_rank_is_replaced() {
    let (want, _) = undisturbed(2, ZERO);
    let mut job = Job::start(2, &[ZERO, &["--max-restarts", "1", "--peer-timeout", "2s"]].concat());
    assert!(job.wait_for(1, 5) && job.signal(1, "-STOP"), "the job ended");
    let (dir, out) = job.end();
    let errors = text(&out.stderr);
    assert!(out.status.success(), "{errors}");
    assert!(errors.contains("rank 1 ") && errors.contains(" s, and is killed"), "{errors}");
    assert!(errors.contains("restart 1 of 1"), "{errors}");
    assert_eq!(result(dir.path()), want, "{errors}");
}

#[test]
fn copies_after_some_steps() {
    let (want, want_losses) = undisturbed(2, ZERO);
    let more = ["--max-restarts", "1", "--peer-timeout", "6s", "--peer-copy-every", "5"];
    let mut job = Job::start(2, &[ZERO, &more].concat());
    assert!(job.wait_for(0, 18) && job.signal(0, "-KILL"), "the job ended");
    let (dir, out) = job.end();
    let errors = text(&out.stderr);
    assert_eq!(losses(&out), want_losses, "{errors}");
    let step = errors.split("going on after step ").nth(1).and_then(|rest| rest.split(' ').next());
    let step: u64 = step.unwrap_or_else(|| panic!("{errors}")).parse().unwrap();
    assert!(step >= 15 && step.is_multiple_of(5), "{errors}");
    assert_eq!(result(dir.path()), want, "{errors}");
}

#[test]
fn restarts_are_refused_where_another_program_starts_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let with = |c: &mut Command| text(&c.output().unwrap().stderr);
    let mut threads = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    threads.arg("train").arg(digits().join("untrained.onnx")).arg("--data").arg(digits().join("train.npz"));
    threads.args(["-o", "m.onnx", "--mesh", "cpu[2]", "--max-restarts", "1"]).current_dir(dir.path());
    let errors = with(&mut threads);
    assert!(errors.contains("give --ranks or --hosts"), "{errors}");
    threads.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
    let errors = with(&mut threads);
    assert!(errors.contains("torchrun started these: after a loss the job goes on from a snapshot"), "{errors}");
    let errors = with(&mut command(dir.path(), 2, &["--transport", "mpi", "--max-restarts", "1"]));
    assert!(errors.contains("MPI ends all ranks with the one that is lost"), "{errors}");
}
