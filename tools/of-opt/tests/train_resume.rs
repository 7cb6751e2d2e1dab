//! Trainings on texts and on columns that are read as needed, killed within an epoch: what goes on from a snapshot takes the same samples in
//! the same order, and has the bits of a training that was not interrupted, on the same number of ranks and on another one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Gradients are means of products of small whole numbers, exact however they are summed, so any number of ranks has the same bits.
/// Momentum makes the result depend on the order of all samples.
const TOKENS: &str = r#"func @main(%ids: tensor<?(N)x32xi64> {of.name = "ids"}, %labels: tensor<?(N)x32xi64> {of.name = "labels"}) -> (tensor<f32> {of.name = "loss"}) {
  %w = of.constant {value = dense<0.0> : tensor<192xf32>}
  %rows = of.gather %w, %ids {axis = 0}
  %next = of.cast %labels {to = #of.dtype<f32>} : (tensor<?(N)x32xi64>) -> tensor<?(N)x32xf32>
  %products = of.mul %rows, %next
  %none = of.none
  %loss = of.reduce_mean %products, %none {keepdims = false} : (tensor<?(N)x32xf32>, none) -> tensor<f32>
  of.return %loss : (tensor<f32>) -> ()
}"#;

const COLUMNS: &str = r#"func @main(%x: tensor<?(N)x2xf32> {of.name = "x"}) -> (tensor<f32> {of.name = "loss"}) {
  %w = of.constant {value = dense<0.0> : tensor<2xf32>}
  %products = of.mul %x, %w
  %none = of.none
  %loss = of.reduce_mean %products, %none {keepdims = false} : (tensor<?(N)x2xf32>, none) -> tensor<f32>
  of.return %loss : (tensor<f32>) -> ()
}"#;

const TWO_THREADS: &[&str] = &["--mesh", "cpu[2]"];
const TWO_PROCESSES: &[&str] = &["--mesh", "cpu[2]", "--ranks", "2", "--peer-timeout", "60s"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A training in a folder of its own.
struct Training {
    dir: tempfile::TempDir,
    args: Vec<String>,
    /// Steps of an epoch, and of all epochs.
    steps: usize,
    total: usize,
}

impl Training {
    fn new(model: &str, data: &[String], batch: usize, (samples, epochs): (usize, usize)) -> Training {
        let dir = tempfile::tempdir().unwrap();
        let mut args = vec!["train".to_owned(), model.to_owned(), "--data".into()];
        args.extend_from_slice(data);
        let numbers = [("--batch", batch), ("--epochs", epochs), ("--threads", 1)];
        args.extend(numbers.into_iter().flat_map(|(flag, n)| [flag.to_owned(), n.to_string()]));
        args.extend(["-o", "m.safetensors", "--schedule", "constant", "--json"].map(String::from));
        let steps = samples / batch;
        Training { dir, args, steps, total: steps * epochs }
    }

    /// Adds arguments.
    fn with(mut self, args: &[&str]) -> Training {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        for name in
            ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]
        {
            c.env_remove(name);
        }
        c.args(&self.args).args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        c
    }

    /// Trains to the end, and returns the trained values.
    fn run(&self, args: &[&str]) -> Vec<u8> {
        let out = self.command(args).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        split(&fs::read(self.dir.path().join("m.safetensors")).unwrap()).1.to_vec()
    }

    /// The number of steps that the snapshot is after; 0 where there is none.
    fn step(&self) -> usize {
        let read = |name: &str| fs::read(self.dir.path().join(name)).ok();
        let single = read("s.safetensors")
            .map(|bytes| serde_json::from_slice::<Value>(split(&bytes).0).unwrap()["__metadata__"].clone());
        let index = read("s.safetensors.index.json")
            .map(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap()["metadata"].clone());
        let step = |metadata: Value| metadata["step"].as_str().unwrap().parse().unwrap();
        single.into_iter().chain(index).map(step).max().unwrap_or(0)
    }

    /// Trains until a snapshot is within an epoch, a third of the way or later if possible, and kills the training.
    fn kill(&self, ranks: &[&str]) {
        // Snapshots that are due while one is being written are left out. Where the disk is slow, the first one, of step 1, and those at
        // the ends of epochs may be all there are; where the machine is busy, the training may end before it is killed. So each attempt
        // asks for less.
        let begun = Instant::now();
        let mut least = self.total / 3;
        while begun.elapsed() < PATIENCE {
            let is_within = |step: usize| step >= least.max(1) && step < self.total && !step.is_multiple_of(self.steps);
            for entry in fs::read_dir(self.dir.path()).unwrap().map(Result::unwrap) {
                if entry.file_name().to_string_lossy().starts_with("s.") {
                    fs::remove_file(entry.path()).unwrap();
                }
            }
            let mut c = self.command(&[ranks, &["--snapshot", "s.safetensors", "--snapshot-every", "1"]].concat());
            let mut child = c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let started = Instant::now();
            while !is_within(self.step()) && child.try_wait().unwrap().is_none() {
                assert!(started.elapsed() < PATIENCE, "there is no snapshot within an epoch");
                std::thread::sleep(Duration::from_micros(200));
            }
            let id = child.id();
            let others = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            child.kill().unwrap();
            child.wait().unwrap();
            // Ranks end with the process that started them.
            while others.split_whitespace().any(|pid| Path::new("/proc").join(pid).exists()) {
                assert!(started.elapsed() < PATIENCE, "a rank goes on");
                std::thread::sleep(Duration::from_millis(1));
            }
            if is_within(self.step()) {
                return;
            }
            least /= 4;
        }
        panic!("no training could be interrupted within an epoch");
    }

    /// Goes on from the snapshot.
    fn resume(&self, ranks: &[&str]) -> Vec<u8> {
        self.run(&[ranks, &["--snapshot", "s.safetensors", "--resume"]].concat())
    }
}

/// The header of a file of safetensors, and the values.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8..].split_at(len)
}

/// Copies of the fables as tokens: 30 samples of 32 each.
fn texts(model: &str, copies: usize, batch: usize, epochs: usize) -> Training {
    let texts = root().join("examples/text");
    let tokenizer = texts.join("tokenizer.json").display().to_string();
    let files = vec![texts.join("fables.txt").display().to_string(); copies];
    Training::new(model, &files, batch, (30 * copies, epochs)).with(&[
        "--tokenizer",
        &tokenizer,
        "--sequence-length",
        "32",
    ])
}

/// Copies of 24 rows in record batches of 4.
fn columns(model: &str, copies: usize, batch: usize, epochs: usize) -> Training {
    let folder = root().join("driver/src/training/arrow_file/files");
    let files = ["plain.arrow", "lz4.feather", "zstd.feather"].map(|name| folder.join(name).display().to_string());
    let files: Vec<String> = std::iter::repeat_n(files, copies).flatten().collect();
    Training::new(model, &files, batch, (24 * copies, epochs))
}

#[test]
fn a_language_model_goes_on_within_an_epoch() {
    let training = texts("zoo:gpt2:small,vocabulary=192,hidden=64", 1, 2, 4).with(&[
        "--loss",
        "cross-entropy",
        "--class-axis",
        "-1",
        "--learning-rate",
        "0.003",
    ]);
    let whole = training.run(&[]);
    training.kill(&[]);
    assert!(training.resume(&[]) == whole, "the training that was killed has another result");
    assert!(training.run(&["--seed", "3"]) != whole, "the order of samples has no effect");
    // Ranks of one layout have the bits of each other.
    let whole = training.run(TWO_THREADS);
    training.kill(TWO_THREADS);
    assert!(training.resume(TWO_THREADS) == whole, "the training on two ranks has another result");
}

/// Kills a training on one rank and on two, and goes on with one: all have the bits of one rank that goes through. `layout` is that of an
/// input of which each rank has, and as a process reads, some rows.
fn any_number_of_ranks(training: &Training, model: &str, layout: &str) {
    fs::write(training.dir.path().join("m.of"), model).unwrap();
    let whole = training.run(&[]);
    assert!(training.run(&["--seed", "3"]) != whole, "the order of samples has no effect");
    let [threads, processes] = [TWO_THREADS, TWO_PROCESSES].map(|ranks| [ranks, &["--layout", layout]].concat());
    assert!(training.run(&threads) == whole, "the sums are not exact");
    for ranks in [&[][..], &threads, &processes] {
        training.kill(ranks);
        let step = training.step();
        assert!(training.resume(&[]) == whole, "killed after step {step}, {ranks:?}: another result");
    }
    for more in [&["--accumulate", "2", "--layout", layout][..], &["--stages", "1", "--microbatches", "2"]] {
        let of = |ranks: &[&str]| training.run(&[ranks, more].concat());
        assert!(of(TWO_PROCESSES) == of(TWO_THREADS), "{more:?}: processes have another result than threads");
    }
}

const EXACT: &[&str] = &["--loss", "output", "--optimizer", "sgd", "--momentum", "0.9", "--learning-rate", "0.125"];

#[test]
fn texts_have_one_order_on_any_number_of_ranks() {
    any_number_of_ranks(&texts("m.of", 50, 4, 4).with(EXACT), TOKENS, "ids=S(0)");
}

#[test]
fn columns_have_one_order_on_any_number_of_ranks() {
    any_number_of_ranks(&columns("m.of", 100, 4, 4).with(EXACT), COLUMNS, "x=S(0)");
}
