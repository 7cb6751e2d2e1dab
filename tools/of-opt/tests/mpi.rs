//! Ranks that mpirun starts: results over MPI are those of one rank, and a rank that dies ends the job with an error that says so.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use of_frontend::gpt::{Gpt, training};
use of_ir::DType;
use of_ir::text::{Constants, PrintOptions, write_module};
use of_test_support::component::{self, Component};
use of_test_support::signals::with_default_signals;
use tempfile::TempDir;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A component, and the names that its launcher may have. Debian has both side by side.
const IMPLEMENTATIONS: [(&Component, &[&str], &str); 2] = [
    (&component::OPENMPI, &["mpirun.openmpi", "mpirun"], "Open MPI"),
    (&component::MPICH, &["mpirun.mpich", "mpiexec.hydra", "mpirun"], "HYDRA"),
];

/// The launchers of MPI that there are.
fn launchers() -> Vec<&'static str> {
    let found = |(component, names, says): &(&'static Component, &[&'static str], &str)| {
        let is_it = |name: &&&str| {
            let out = Command::new(name).arg("--version").output();
            out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains(says))
        };
        let found = names.iter().find(is_it).copied();
        component::require(component, found.ok_or_else(|| format!("none of {} runs", names.join(", "))))
    };
    IMPLEMENTATIONS.iter().filter_map(found).collect()
}

/// `mpirun -n RANKS of-opt`, on fewer cores than ranks as well.
fn mpirun(launcher: &str, ranks: u32) -> Command {
    let mut c = Command::new(launcher);
    // Root needs these two in a container.
    c.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    c.envs([("OMPI_MCA_rmaps_base_oversubscribe", "1"), ("OMPI_MCA_hwloc_base_binding_policy", "none")]);
    // What a launcher of the tests themselves may have set.
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OF_RANK", "OF_JOB_TOKEN"] {
        c.env_remove(name);
    }
    c.args(["-n", &ranks.to_string(), env!("CARGO_BIN_EXE_of-opt")]);
    c
}

fn of_opt() -> Command {
    Command::new(env!("CARGO_BIN_EXE_of-opt"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(mut c: Command) -> Output {
    let out = c.output().unwrap();
    assert!(out.status.success(), "{c:?}: {}{}", text(&out.stdout), text(&out.stderr));
    out
}

/// A block of residual convolutions with normalisation over channels, a pool and classes: a step of training.
const RESIDUAL: &str = r#"
func @main(%x: tensor<8x3x16x16xf32>, %t: tensor<8x10xf32>, %w0: tensor<8x3x3x3xf32>, %w1: tensor<8x8x3x3xf32>, %w2: tensor<8x8x3x3xf32>, %head: tensor<8x10xf32>) -> (tensor<f32>, tensor<8x10xf32>, tensor<8x3x3x3xf32>, tensor<8x8x3x3xf32>) {
  %c0 = of.conv %x, %w0 {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %r0 = of.relu %c0
  %c1 = of.conv %r0, %w1 {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %r1 = of.relu %c1
  %c2 = of.conv %r1, %w2 {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], group = 1, auto_pad = "NOTSET", channels_last = false}
  %sum = of.add %c2, %r0
  %r2 = of.relu %sum
  %space = of.constant {value = dense<[2, 3]> : tensor<2xi64>}
  %p = of.reduce_mean %r2, %space {keepdims = false}
  %logits = of.matmul %p, %head
  %shares = of.log_softmax %logits {axis = -1}
  %weighted = of.mul %shares, %t
  %all = of.constant {value = dense<[0, 1]> : tensor<2xi64>}
  %loss = of.reduce_sum %weighted, %all {keepdims = false}
  %g0, %g1 = of.gradient %loss, %w0, %w1
  of.return %loss, %logits, %g0, %g1
}
"#;

/// A layer of attention as BERT has it: four heads, their sum with the input, and two products.
const ATTENTION: &str = r#"
func @main(%x: tensor<4x16x32xf32>, %q: tensor<32x32xf32>, %k: tensor<32x32xf32>, %v: tensor<32x32xf32>, %o: tensor<32x32xf32>, %up: tensor<32x128xf32>, %down: tensor<128x32xf32>) -> (tensor<4x16x32xf32>) {
  %heads = of.constant {value = dense<[4, 16, 4, 8]> : tensor<4xi64>}
  %whole = of.constant {value = dense<[4, 16, 32]> : tensor<3xi64>}
  %q0 = of.matmul %x, %q
  %q1 = of.reshape %q0, %heads {allowzero = false}
  %q2 = of.transpose %q1 {perm = [0, 2, 1, 3]}
  %k0 = of.matmul %x, %k
  %k1 = of.reshape %k0, %heads {allowzero = false}
  %k2 = of.transpose %k1 {perm = [0, 2, 3, 1]}
  %v0 = of.matmul %x, %v
  %v1 = of.reshape %v0, %heads {allowzero = false}
  %v2 = of.transpose %v1 {perm = [0, 2, 1, 3]}
  %scores = of.matmul %q2, %k2
  %shares = of.softmax %scores {axis = -1}
  %mixed = of.matmul %shares, %v2
  %m1 = of.transpose %mixed {perm = [0, 2, 1, 3]}
  %m2 = of.reshape %m1, %whole {allowzero = false}
  %a = of.matmul %m2, %o
  %y = of.add %a, %x
  %u = of.matmul %y, %up
  %g = of.gelu %u {tanh = true}
  %d = of.matmul %g, %down
  %z = of.add %d, %y
  of.return %z
}
"#;

/// A step of a small GPT.
fn gpt(path: &Path) {
    let c = Gpt { layers: 2, batch: 4, sequence: 8, hidden: 32, heads: 4, vocabulary: 48, dtype: DType::F32 };
    let options = PrintOptions { generic: false, locations: false, constants: Constants::Inline };
    write_module(path, &training(&c).unwrap(), &options).unwrap();
}

/// Files of the models in a folder, each with one of its inputs.
fn models() -> (TempDir, Vec<(PathBuf, &'static str)>) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("residual.of"), RESIDUAL).unwrap();
    fs::write(path("attention.of"), ATTENTION).unwrap();
    gpt(&path("gpt.of"));
    let all = [("residual.of", "x=8x3x16x16"), ("attention.of", "x=4x16x32"), ("gpt.of", "tokens=4x8")];
    let all = all.map(|(name, input)| (path(name), input)).to_vec();
    (dir, all)
}

/// Runs a model or plan on random inputs, which are the same in every process.
fn run(mut c: Command, model: &Path, input: &str, args: &[&str]) -> Output {
    c.arg("run").arg(model).args(["--shape", input, "--threads", "1"]).args(args);
    succeeds(c)
}

#[test]
fn results_over_mpi_are_those_of_one_rank() {
    let launchers = launchers();
    if launchers.is_empty() {
        return;
    }
    let (dir, models) = models();
    for (model, input) in models {
        let name = model.file_stem().unwrap().to_string_lossy().into_owned();
        let path = |what: &str| dir.path().join(format!("{name}-{what}"));
        let want = path("one");
        run(of_opt(), &model, input, &["--outputs", want.to_str().unwrap()]);
        for (mesh, ranks) in [("cpu[2]", 2), ("cpu[4]", 4)] {
            let plan = path(&format!("{ranks}.plan"));
            let mut compile = of_opt();
            compile.arg("compile").arg(&model).args(["--mesh", mesh, "-q", "-o"]).arg(&plan);
            succeeds(compile);
            let threads = path(&format!("threads-{ranks}"));
            run(of_opt(), &plan, input, &["--outputs", threads.to_str().unwrap()]);
            for launcher in &launchers {
                for transport in ["mpi", "auto"] {
                    let got = path(&format!("{launcher}-{ranks}-{transport}"));
                    let args = ["--transport", transport, "--peer-timeout", "60s", "--outputs", got.to_str().unwrap()];
                    run(mpirun(launcher, ranks), &plan, input, &[&args[..], &["--iterations", "3"]].concat());
                    let (got, threads) = (files(&got), files(&threads));
                    assert!(!got.is_empty() && got == threads, "{launcher} {name} {ranks} {transport}");
                }
            }
            // Sums have another order, and Adam divides by roots of small numbers.
            let expected = ["--expect", want.to_str().unwrap(), "--rtol", "5e-3", "--atol", "1e-4"];
            run(of_opt(), &plan, input, &expected);
        }
    }
}

/// The names and bytes of a folder's files.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let file =
        |entry: fs::DirEntry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap());
    let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| file(entry.unwrap())).collect();
    all.sort();
    all
}

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits").canonicalize().unwrap()
}

/// Steps of an epoch of [`training_of`]: of 1,437 samples.
const STEPS_OF_EPOCH: usize = 1437 / 96;

/// A training of two ranks over MPI, with a snapshot after each few steps.
fn training_of(launcher: &str, dir: &Path, args: &[&str]) -> Command {
    let mut c = mpirun(launcher, 2);
    c.arg("train").arg(digits().join("untrained.onnx")).arg("--data").arg(digits().join("train.npz"));
    c.args(["--threads", "1", "--batch", "96", "--mesh", "cpu[2]", "--transport", "mpi", "--peer-timeout", "20s"]);
    c.args(["--snapshot", "s.safetensors", "--snapshot-every", "5", "-o", "m.safetensors"]);
    c.args(args).current_dir(dir);
    c
}

/// Processes whose parents are under `pid`, that are ranks of `of-opt`.
fn ranks_under(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![pid];
    while let Some(pid) = open.pop() {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<u32> =
            lists.flat_map(|l| l.split(' ').filter_map(|n| n.parse().ok()).collect::<Vec<_>>()).collect();
        found.extend(
            children.iter().copied().filter(|pid| {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "of-opt")
            }),
        );
        open.extend(children);
    }
    found
}

/// A training that mpirun starts, which has written a snapshot.
fn running_training(launcher: &str, dir: &Path) -> Child {
    let mut c = with_default_signals(&training_of(launcher, dir, &["--epochs", "100000"]));
    // Open MPI kills ranks a second after it interrupts them, which is too early for a busy machine.
    c.env("OMPI_MCA_odls_base_sigkill_timeout", "5");
    let mut job = c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while !dir.join("s.safetensors.index.json").exists() {
        assert!(started.elapsed() < PATIENCE, "{launcher}: there is no snapshot");
        assert!(job.try_wait().unwrap().is_none(), "{launcher}: the job ended early");
        std::thread::sleep(Duration::from_millis(20));
    }
    job
}

#[test]
fn an_interrupted_job_writes_a_snapshot() {
    for launcher in launchers() {
        for signal in ["-INT", "-TERM"] {
            let dir = tempfile::tempdir().unwrap();
            let mut job = running_training(launcher, dir.path());
            assert!(Command::new("kill").args([signal, &job.id().to_string()]).status().unwrap().success());
            let mut errors = String::new();
            job.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            job.wait().unwrap();
            let (_, rest) =
                errors.split_once("interrupted after step ").unwrap_or_else(|| panic!("{launcher}: {errors}"));
            let step = rest.split(' ').next().unwrap();
            let index = fs::read_to_string(dir.path().join("s.safetensors.index.json")).unwrap();
            assert!(index.contains(&format!("-{step}.2-of-2.safetensors")), "{launcher}: {step}, {index}");
        }
    }
}

#[test]
fn a_rank_that_dies_ends_the_job_and_the_snapshot_goes_on() {
    for launcher in launchers() {
        let dir = tempfile::tempdir().unwrap();
        let mut job = running_training(launcher, dir.path());
        let victim = ranks_under(job.id()).into_iter().max().unwrap();
        assert!(Command::new("kill").args(["-KILL", &victim.to_string()]).status().unwrap().success());
        let mut errors = String::new();
        job.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(!job.wait().unwrap().success(), "{launcher}");
        assert!(errors.contains(&format!("(process {victim} on ")), "{launcher}: {errors}");
        let hint = "a job does not go on without one of its ranks; start it again with --resume";
        assert!(errors.contains(hint), "{launcher}: {errors}");
        // The job went on after its first snapshot until the rank was killed, on a fast machine beyond an epoch.
        let index = fs::read(dir.path().join("s.safetensors.index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        let step: usize = index["metadata"]["step"].as_str().unwrap().parse().unwrap();
        let epochs = (step / STEPS_OF_EPOCH + 2).to_string();
        let resumed = succeeds(training_of(launcher, dir.path(), &["--epochs", &epochs, "--resume"]));
        assert!(text(&resumed.stderr).contains("resumed from s.safetensors at step "), "{}", text(&resumed.stderr));
    }
}

#[test]
fn wrong_uses_of_mpi_are_errors() {
    let launchers = launchers();
    let Some(launcher) = launchers.first() else { return };
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("ranks.plan");
    let mut compile = of_opt();
    compile.arg("compile").arg(digits().join("digits.onnx")).args(["--shape", "N=8", "--mesh", "cpu[2]", "-q", "-o"]);
    compile.arg(&plan);
    succeeds(compile);
    let images = format!("image={}", digits().join("images.npy").display());
    let fails = |mut c: Command, args: &[&str]| {
        let out = c.arg("run").arg(&plan).args(["--inputs", &images]).args(args).output().unwrap();
        assert!(!out.status.success());
        text(&out.stderr)
    };
    let mut torchrun = of_opt();
    torchrun.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "9")]);
    let errors = fails(torchrun, &["--transport", "mpi"]);
    assert!(
        errors.contains("--transport mpi needs ranks that mpirun or srun starts, and torchrun started these"),
        "{errors}"
    );
    // MPI tells the ranks where the others are, and TLS encrypts what they send.
    let mut encrypted = mpirun(launcher, 2);
    // The token of the job is another one.
    encrypted.env("OF_JOB_TOKEN", "of the environment");
    encrypted.arg("run").arg(&plan).args(["--inputs", &images, "--tls", "token", "--transport", "tcp", "-vv"]);
    let printed = succeeds(encrypted);
    assert!(text(&printed.stdout).contains("tensor<8x10xf32>") && !text(&printed.stderr).contains("mpi=true"));
    let errors = fails(mpirun(launcher, 2), &["--transport", "mpi", "--tls", "token"]);
    assert!(errors.contains("--transport mpi does not encrypt"), "{errors}");
    let mut missing = mpirun(launcher, 2);
    missing.env("OF_MPI", "/nowhere/libmpi.so");
    let errors = fails(missing, &[]);
    assert!(errors.contains("there is no MPI library") && errors.contains("--rendezvous HOST:PORT"), "{errors}");
    let mut other = mpirun(launcher, 2);
    other.env("OF_MPI", "libm.so.6");
    let errors = fails(other, &[]);
    assert!(errors.contains("'libm.so.6' is no MPI library"), "{errors}");
}
