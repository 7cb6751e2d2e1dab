//! Ranks as processes: results, launchers, and ranks that fail.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// `of-opt` without the variables of launchers, which may have started the tests.
fn of_opt() -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]
    {
        c.env_remove(name);
    }
    c
}

/// A folder with a plan for a mesh.
fn compiled(mesh: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut c = of_opt();
    c.arg("compile").arg(examples().join("digits/digits.onnx")).args(["--shape", "N=8", "--mesh", mesh, "-q", "-o"]);
    let out = c.arg(dir.path().join("ranks.plan")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    dir
}

fn run(dir: &TempDir) -> Command {
    let mut c = of_opt();
    let image = format!("image={}", examples().join("digits/images.npy").display());
    c.arg("run").arg(dir.path().join("ranks.plan")).args(["--inputs", &image]);
    c
}

fn text(out: &Output) -> (String, String) {
    (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn processes_give_what_threads_give() {
    for (mesh, ranks) in [("cpu[2]", "2"), ("cpu[2x2]", "4")] {
        let dir = compiled(mesh);
        let want = text(&run(&dir).output().unwrap());
        assert!(want.0.contains("tensor<8x10xf32>"), "{want:?}");
        let got =
            text(&run(&dir).args(["--ranks", ranks, "--iterations", "20", "--peer-timeout", "30s"]).output().unwrap());
        assert_eq!(got, want, "{mesh}");
    }
}

#[test]
fn open_extents_are_split_by_processes() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("open.plan");
    let mut c = of_opt();
    c.arg("compile").arg(examples().join("digits/digits.onnx")).args(["--mesh", "cpu[2]", "-o"]);
    let (_, notes) = text(&c.arg(&plan).output().unwrap());
    assert!(notes.contains("open extents that may be split are multiples: 2*N"), "{notes}");
    let run = |args: &[&str]| text(&of_opt().arg("run").arg(&plan).args(args).output().unwrap());
    for rows in ["2", "6"] {
        let shape = format!("image={rows}x1x8x8");
        let want = run(&["--shape", &shape]);
        assert!(want.0.contains(&format!("tensor<{rows}x10xf32>")), "{want:?}");
        for transport in ["shared-memory", "tcp"] {
            let ranks = ["--ranks", "2", "--iterations", "3", "--transport", transport, "--peer-timeout", "30s"];
            assert_eq!(run(&[&["--shape", &shape][..], &ranks[..]].concat()), want, "{transport}");
        }
    }
    let (_, odd) = run(&["--shape", "image=5x1x8x8"]);
    assert!(odd.contains("must be a multiple of 2: the mesh [2] splits it into 2 equal parts"), "{odd}");
    // Ranks of a launcher read their own files: their inputs may differ.
    let port = free_ports(1).start.to_string();
    let start = |rank: u32| {
        let mut c = of_opt();
        c.arg("run").arg(&plan).args(["--shape", &format!("image={}x1x8x8", 2 + 2 * rank), "--peer-timeout", "30s"]);
        c.env("RANK", rank.to_string()).envs([
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
        ]);
        c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for rank in [start(0), start(1)] {
        let out = rank.wait_with_output().unwrap();
        let (_, errors) = text(&out);
        assert_eq!(out.status.code(), Some(2), "{errors}");
        let words = "input `image` (number 0) differs between ranks: dimension 0 is 2 on rank 0 and 4 on rank 1";
        assert!(errors.contains(words), "{errors}");
    }
    let simulated = of_opt().arg("simulate").arg(&plan).args(["--mesh", "cpu[2]"]).output().unwrap();
    assert!(text(&simulated).1.contains("depends on extents that are open"), "{simulated:?}");
}

/// A step with transfers of every kind that a data-parallel model has: a sum over both ranks, and slices of a whole.
#[test]
fn transfers_between_processes_give_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lit/cli/ranks.of");
    let run = |args: &[&str], out: &str| {
        let mut c = of_opt();
        c.arg("run").arg(path("ranks.plan")).args(["--shape", "x=6x8", "--peer-timeout", "30s", "--outputs"]);
        let ran = c.arg(path(out)).args(args).output().unwrap();
        assert!(ran.status.success(), "{}", text(&ran).1);
        fs::read(path(out).join("output_0.pb")).unwrap()
    };
    let compiled = of_opt()
        .arg("compile")
        .arg(&model)
        .args(["--mesh", "cpu[2]", "-q", "-o"])
        .arg(path("ranks.plan"))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", text(&compiled).1);
    let inspected = of_opt().arg("inspect").arg(path("ranks.plan")).output().unwrap();
    assert!(text(&inspected).0.contains("boxing: transfer"), "{inspected:?}");
    let want = run(&[], "threads");
    for transport in ["shared-memory", "tcp"] {
        let got = run(&["--ranks", "2", "--transport", transport, "--iterations", "20"], transport);
        assert!(got == want, "{transport}");
    }
}

/// Variables of ranks that are processes are set, kept and written as those of threads, whatever parts of them the ranks have.
/// A sum of 32 KiB over 16 ranks, in rounds of halving and doubling. Its values are integers, so it is the same in any order.
#[test]
fn many_ranks_sum_in_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let body = |layout: &str, whole: &str, result: &str| {
        format!(
            "func @main(%x: tensor<32x8192xf32{layout}>) -> (tensor<1x8192xi32{whole}>) {{
  %thousand = of.constant {{value = dense<1000.0> : tensor<f32>}}
  %large = of.mul %x, %thousand
  %i = of.cast %large {{to = #of.dtype<i32>}}
  %axes = of.constant {{value = dense<[0]> : tensor<1xi64>}}
  %y = of.reduce_sum %i, %axes {{keepdims = true}}
  {result}
}}
"
        )
    };
    fs::write(path("whole.of"), body("", "", "%z = of.optimization_barrier %y\n  of.return %z")).unwrap();
    let split = body(
        ", #of.sbp<@m, [S(0)]>",
        ", #of.sbp<@m, [B]>",
        "%z = of.sharding_constraint %y {sharding = #of.sbp<@m, [B]>}\n  of.return %z",
    );
    fs::write(path("ranks.of"), format!("of.mesh @m {{devices = \"cpu\", shape = [16]}}\n{split}")).unwrap();
    let ok = |c: &mut Command| {
        let out = c.output().unwrap();
        assert!(out.status.success(), "{}", text(&out).1);
        text(&out).0
    };
    ok(of_opt().arg("compile").arg(path("ranks.of")).args(["--mesh", "cpu[16]", "-q", "-o"]).arg(path("ranks.plan")));
    let inspected = ok(of_opt().arg("inspect").arg(path("ranks.plan")));
    let rounds: Vec<&str> = inspected.lines().filter(|line| line.contains(" by factors [2, 2, 2, 2]")).collect();
    assert_eq!(rounds.len(), 8, "{inspected}");
    assert!(rounds[0].contains("[P(sum), P(sum), P(sum), P(sum)] -> [S(0), P(sum), P(sum), P(sum)]"), "{rounds:#?}");
    ok(of_opt().arg("verify").arg(path("ranks.plan")));
    let run = |model: &str, args: &[&str]| {
        ok(of_opt()
            .arg("run")
            .arg(path(model))
            .args(["--shape", "x=32x8192", "--outputs"])
            .arg(path("out"))
            .args(args));
        fs::read(path("out/output_0.pb")).unwrap()
    };
    let want = run("whole.of", &[]);
    assert!(want.len() > 32768 && run("ranks.plan", &[]) == want);
    for transport in ["shared-memory", "tcp"] {
        let ranks = ["--ranks", "16", "--transport", transport, "--iterations", "3", "--peer-timeout", "30s"];
        assert!(run("ranks.plan", &ranks) == want, "{transport}");
    }
}

#[test]
fn variables_of_processes_are_those_of_threads() {
    let source = |layout: &str| {
        let ty = format!("tensor<4x6xf32, #of.sbp<@m, [{layout}]>>");
        format!(
            r#"of.mesh @m {{devices = "cpu", shape = [2]}}
func @main(%x: {ty} {{of.name = "x"}}, %s: {ty} {{of.name = "state"}}) -> ({ty} {{of.name = "y"}}, {ty} {{of.name = "next"}}) {{
  %n = of.add %s, %x : ({ty}, {ty}) -> {ty}
  %y = of.neg %n : ({ty}) -> {ty}
  of.return %y, %n : ({ty}, {ty}) -> ()
}}"#
        )
    };
    for layout in ["S(0)", "S(1)", "B"] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("m.of"), source(layout)).unwrap();
        for (name, first) in [("x", 0.5f32), ("s", 10.0)] {
            let values: Vec<f32> = (0..24u8).map(|i| first + f32::from(i)).collect();
            let tensor = of_ops::Value::Tensor(of_ir::Tensor::from_slice(&[4, 6], &values).unwrap());
            of_driver::tensor_files::write_npy(&path(&format!("{name}.npy")), name, &tensor).unwrap();
        }
        let of = |args: &str| {
            let out = of_opt().args(args.split(' ')).current_dir(dir.path()).output().unwrap();
            (out.status.success(), text(&out))
        };
        let compiled = of("compile m.of -o m.plan --variable next=state --mesh cpu[2]");
        assert!(compiled.0, "{layout}: {compiled:?}");
        let threads = of("run m.plan --inputs x=x.npy --set state=s.npy --iterations 3 --save state=threads.npy");
        assert!(threads.0, "{layout}: {threads:?}");
        for transport in ["shared-memory", "tcp"] {
            let ranks = format!("--ranks 2 --peer-timeout 30s --transport {transport}");
            let run = format!("run m.plan --inputs x=x.npy --iterations 3 --save state=processes.npy {ranks}");
            let (done, (stdout, stderr)) = of(&format!("{run} --set state=s.npy"));
            assert!(done && stdout == threads.1.0, "{layout}, {transport}: {stdout}{stderr}");
            assert_eq!(fs::read(path("processes.npy")).unwrap(), fs::read(path("threads.npy")).unwrap(), "{layout}");
            let (done, (_, stderr)) = of(&run);
            assert!(!done && stderr.contains("variable `state` has no value: set it before the run"), "{stderr}");
        }
        let (done, (_, stderr)) = of("run m.plan --inputs x=x.npy --ranks 2 --peer-timeout 30s --set no=s.npy");
        assert!(!done && stderr.contains("its variables are state"), "{stderr}");
    }
}

#[test]
fn ranks_of_a_launcher_join_where_it_says() {
    let dir = compiled("cpu[2]");
    let want = text(&run(&dir).output().unwrap());
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let rank = |rank: &str| {
        let mut c = run(&dir);
        c.args(["--peer-timeout", "30s"]);
        c.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
        c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (second, first) = (rank("1"), rank("0"));
    assert_eq!(text(&first.wait_with_output().unwrap()), want);
    assert_eq!(text(&second.wait_with_output().unwrap()), (String::new(), String::new()));
}

/// A file with two hosts that are this machine, and the command that starts one of them.
fn hosts(dir: &TempDir, name: &str) -> Command {
    patient_hosts(dir, name, "30s")
}

/// As [`hosts`], with the time after which a silent rank is lost.
fn patient_hosts(dir: &TempDir, name: &str, peer_timeout: &str) -> Command {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = dir.path().join("hosts.toml");
    if !file.exists() {
        let host = |name: &str, last: u8| {
            format!("[[host]]\nname = \"{name}\"\naddress = \"127.0.0.{last}\"\nranks = 1\nthreads = 1\n")
        };
        fs::write(&file, format!("port = {port}\n{}{}", host("first", 1), host("second", 2))).unwrap();
    }
    let mut c = run(dir);
    c.arg("--hosts").arg(&file).args(["--host", name, "--peer-timeout", peer_timeout]);
    c.stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

#[test]
fn a_file_names_the_hosts_of_ranks() {
    let dir = compiled("cpu[2]");
    let want = text(&run(&dir).output().unwrap());
    let (second, first) = (hosts(&dir, "second").spawn().unwrap(), hosts(&dir, "first").spawn().unwrap());
    assert_eq!(text(&first.wait_with_output().unwrap()), want);
    assert_eq!(text(&second.wait_with_output().unwrap()), (String::new(), String::new()));
    // A host that is not started is named, with what the plan needs its rank for.
    let alone = hosts(&dir, "first").args(["--join-timeout", "500ms"]).output().unwrap();
    let (_, errors) = text(&alone);
    assert!(errors.contains("rank 1 did not join within"), "{errors}");
    assert!(errors.contains("note: rank 1 on host second is at [1] of the mesh [2]; "), "{errors}");
    let (_, errors) = text(&hosts(&dir, "third").output().unwrap());
    assert!(errors.contains("there is no host 'third'; there are first, second"), "{errors}");
    let far = dir.path().join("far.toml");
    fs::write(&far, "[[host]]\naddress = \"192.0.2.1\"\nranks = 2").unwrap();
    let (_, errors) = text(&run(&dir).arg("--hosts").arg(&far).output().unwrap());
    assert!(errors.contains("none of the hosts is this machine: 192.0.2.1"), "{errors}");
    let (_, errors) = text(&run(&dir).arg("--hosts").arg(&far).args(["--host", "192.0.2.1"]).output().unwrap());
    assert!(errors.contains("set OF_JOB_TOKEN"), "{errors}");
}

/// The other ranks name rank 0, its host, and what the plan needs it for, whoever starts them.
#[test]
fn a_missing_first_rank_is_explained() {
    let dir = compiled("cpu[2]");
    let check = |what: &str, errors: &str, address: &str, host: &str| {
        assert!(errors.contains("rank 0 did not come within "), "{what}: {errors}");
        assert!(errors.contains(&format!("cannot connect to the rendezvous at {address}")), "{what}: {errors}");
        let note = format!("note: rank 0 on host {host} is at [0] of the mesh [2]; ");
        assert!(errors.contains(&note), "{what}: {errors}");
        assert!(errors.contains("hint: start all ranks; --join-timeout gives them more time"), "{what}: {errors}");
    };
    let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "9")];
    // srun was called elsewhere.
    let srun = [
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LAUNCH_NODE_IPADDR", "192.0.2.1"),
        ("SLURM_JOB_NODELIST", "login,localhost"),
        ("SLURM_STEP_NODELIST", "localhost,node[01-04]"),
        ("MASTER_PORT", "9"),
    ];
    let indexed = [("JOB_COMPLETION_INDEX", "1"), ("OF_JOB_TOKEN", "token")];
    // A pod that has not started has no name.
    let of_job = ["--ranks", "2", "--rendezvous", "of-opt-train-0.invalid:29400"];
    for (launcher, variables, args, address, host) in [
        ("torchrun", &torchrun[..], &[][..], "127.0.0.1:9", "127.0.0.1"),
        ("srun", &srun[..], &[][..], "127.0.0.1:9", "localhost"),
        ("Indexed Job", &indexed[..], &of_job[..], "of-opt-train-0.invalid:29400", "of-opt-train-0.invalid"),
    ] {
        let mut c = run(&dir);
        let out = c.args(["--join-timeout", "300ms"]).args(args).envs(variables.iter().copied()).output().unwrap();
        check(launcher, &text(&out).1.replace("[::1]:9", "127.0.0.1:9"), address, host);
    }
    let out = hosts(&dir, "second").args(["--join-timeout", "300ms"]).output().unwrap();
    check("--hosts", &text(&out).1, "127.0.0.1:", "first");
}

/// Ports that follow one another, all of them free a moment ago.
fn free_ports(count: u16) -> std::ops::Range<u16> {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let Some(end) = first.checked_add(count) else { continue };
        if (first..end).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first..end;
        }
    }
}

/// Firewalls have few ports open, and hosts have less memory than others.
#[test]
fn a_file_of_hosts_gives_ports_and_memory() {
    let dir = compiled("cpu[2]");
    let want = text(&run(&dir).output().unwrap());
    let ports = free_ports(3);
    let (port, first, last) = (ports.start, ports.start + 1, ports.end - 1);
    let file = dir.path().join("hosts.toml");
    let write = |more: &str| {
        let host = format!("[[host]]\naddress = \"127.0.0.1\"\nranks = 2\nthreads = 1\n{more}");
        fs::write(&file, format!("port = {port}\nports = \"{first}-{last}\"\n{host}")).unwrap();
    };
    let ran = |args: &[&str]| {
        let mut c = run(&dir);
        text(&c.arg("--hosts").arg(&file).args(["--peer-timeout", "30s"]).args(args).output().unwrap())
    };
    write("memory = \"1GiB\"");
    assert_eq!(ran(&["--transport", "tcp"]), want);
    let taken = TcpListener::bind(("127.0.0.1", last)).unwrap();
    let (_, errors) = ran(&["--join-timeout", "2s"]);
    let none = format!("cannot listen for other ranks: no port of {first}-{last} is free on this host");
    assert!(errors.contains(&none) && errors.contains("hint: give more `ports` in the file of hosts"), "{errors}");
    drop(taken);
    write("memory = \"1KiB\"");
    let (_, errors) = ran(&[]);
    assert!(errors.contains("[rank 0] error") && errors.contains("memory"), "{errors}");
    // The command line counts more than the file.
    assert_eq!(ran(&["--memory", "1GiB"]), want);
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `/metrics` and `/debug/actors` of each rank, at ports that follow one another.
#[test]
fn ranks_serve_metrics() {
    let dir = compiled("cpu[2]");
    let ports = free_ports(2);
    let mut c = run(&dir);
    c.args(["--ranks", "2", "--iterations", "1000000000", "--peer-timeout", "60s"]);
    c.args(["--metrics-port", &ports.start.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut launcher = Running(c.spawn().unwrap());
    let get = |port: u16, target: &str| -> Option<(String, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        write!(stream, "GET {target} HTTP/1.1\r\nHost: here\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.into(), body.into()))
    };
    let started = Instant::now();
    for (rank, port) in ports.enumerate() {
        let runs = format!("of_rank_up{{rank=\"{rank}\",host=\"{}\"}} 1", of_transport::host_name());
        let (head, metrics) = loop {
            assert!(
                started.elapsed() < PATIENCE && launcher.0.try_wait().unwrap().is_none(),
                "rank {rank} does not run"
            );
            match get(port, "/metrics") {
                Some(answer) if answer.1.contains(&runs) => break answer,
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
        assert!(metrics.contains(&format!("of_rank_sent_bytes_total{{rank=\"{rank}\"")), "{metrics}");
        let (head, actors) = get(port, "/debug/actors").unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && actors.contains(&format!("rank {rank}, program `")), "{actors}");
        assert!(get(port, "/other").unwrap().0.starts_with("HTTP/1.1 404"));
    }
    drop(launcher);
    // Ranks that are threads share a port, and one that is taken is an error.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (_, errors) = text(&run(&dir).args(["--metrics-port", &port]).output().unwrap());
    assert!(errors.contains(&format!("metrics cannot be served at 127.0.0.1:{port}")), "{errors}");
    let (help, _) = text(&of_opt().args(["run", "--help"]).output().unwrap());
    assert!(help.contains("--metrics-port") && help.contains("SIGUSR1"), "{help}");
}

/// How far the iterations are, on the first rank alone.
#[test]
fn the_first_rank_reports_progress() {
    let dir = compiled("cpu[2]");
    let mut c = run(&dir);
    c.args(["-v", "--ranks", "2", "--iterations", "1000000000", "--peer-timeout", "60s"]);
    let mut launcher = Running(c.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(launcher.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains("running") && line.contains("/1000000000")).unwrap();
    assert!(line.starts_with("[rank 0] "), "{line}");
    drop(launcher);
    let (_, once) = text(&run(&dir).args(["-v", "--iterations", "1"]).output().unwrap());
    assert!(!once.contains("running\n"), "{once}");
}

#[test]
fn bench_measures_processes() {
    let dir = compiled("cpu[2]");
    for limits in [["--iters", "7"], ["--max-seconds", "0.2"]] {
        let mut c = of_opt();
        c.arg("bench").arg(dir.path().join("ranks.plan")).args(["--ranks", "2", "--json", "--peer-timeout", "30s"]);
        let out = c.args(limits).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        assert!(report["median_ms"].as_f64().unwrap() > 0.0, "{report}");
        assert!(limits[0] != "--iters" || report["iters"] == 7, "{report}");
    }
    let mut c = of_opt();
    c.arg("bench").arg(dir.path().join("ranks.plan")).args(["--ranks", "2", "--concurrency", "2"]);
    assert!(text(&c.output().unwrap()).1.contains("go with neither --concurrency nor --device-time"));
}

/// Products of 16 bits are those of one rank.
#[test]
fn precision_goes_with_a_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut c = of_opt();
        let image = format!("image={}", examples().join("digits/images.npy").display());
        c.arg("run").arg(examples().join("digits/digits.onnx")).args(["--inputs", &image, "--precision", "bf16"]);
        text(&c.args(args).current_dir(dir.path()).output().unwrap())
    };
    let one = run(&["--outputs", "one"]);
    assert!(one.1.contains("bf16: 4 products and convolutions"), "{one:?}");
    let ranks = run(&["--mesh", "cpu[2]", "--expect", "one", "--rtol", "1e-2", "--atol", "1e-3"]);
    assert!(ranks.0.contains("1 output matches") && ranks.1.contains("bf16: 4 products"), "{ranks:?}");
}

#[test]
fn wrong_numbers_of_ranks_are_errors() {
    let dir = compiled("cpu[2]");
    let out = run(&dir).args(["--ranks", "3"]).output().unwrap();
    let (_, errors) = text(&out);
    // That of the ranks: the input is wrong.
    assert_eq!(out.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("[rank 0] error") && errors.contains("the plan's mesh has 2 ranks, and there are 3"),
        "{errors}"
    );

    let mut c = run(&dir);
    let out = c.envs([("RANK", "0"), ("WORLD_SIZE", "2")]).output().unwrap();
    assert!(text(&out).1.contains("--rendezvous HOST:PORT"), "{out:?}");

    let mut c = run(&dir);
    let out = c.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1")]).output().unwrap();
    assert!(text(&out).1.contains("set OF_JOB_TOKEN"), "{out:?}");

    let mut c = run(&dir);
    c.args(["--ranks", "2", "--rendezvous", "127.0.0.1:1"]).env("JOB_COMPLETION_INDEX", "2");
    let out = c.output().unwrap();
    assert!(text(&out).1.contains("JOB_COMPLETION_INDEX=2, and --ranks 2: ranks are numbered from 0 to 1"), "{out:?}");

    // Without a mesh every process runs the plan whole, as in a job of independent tasks.
    let mut c = of_opt();
    let image = format!("image={}", examples().join("digits/images.npy").display());
    c.arg("run").arg(examples().join("digits/digits.onnx")).args(["--inputs", &image]);
    let out = c.envs([("RANK", "1"), ("WORLD_SIZE", "2")]).output().unwrap();
    assert!(text(&out).0.contains("tensor<8x10xf32>"), "{out:?}");
}

/// The processes that a process started.
fn children(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The value of a rank's environment, which says which rank it is.
fn is_rank(pid: &str, rank: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let want = format!("OF_RANK={rank}");
    environment.split(|byte| *byte == 0).any(|variable| variable == want.as_bytes())
}

/// The ranks of a launcher, once so many of them run.
fn running(launcher: u32, count: usize) -> Vec<String> {
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "the ranks did not start");
        let ranks = children(launcher);
        // The threads of the monitor come after the handshakes.
        let runs = |pid: &&String| {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let mut names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
            names.any(|name| name.trim() == "of-monitor")
        };
        if ranks.iter().filter(runs).count() == count {
            std::thread::sleep(Duration::from_millis(300));
            return ranks;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends `signal` to rank 1 of 2 that run for ever. Returns what was printed, and how long it took until the end. The time after
/// which a silent rank is lost is long enough for a busy machine. The exit code is `code`.
fn failing(signal: &str, peer_timeout: &str, code: i32) -> (String, Duration) {
    let dir = compiled("cpu[2]");
    let mut c = run(&dir);
    let launcher = c.args(["--ranks", "2", "--iterations", "1000000000", "--peer-timeout", peer_timeout]);
    let launcher = launcher.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let victim = running(launcher.id(), 2).into_iter().find(|pid| is_rank(pid, 1)).unwrap();
    let sent = Instant::now();
    assert!(Command::new("kill").args([signal, &victim]).status().unwrap().success());
    let out = launcher.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(code), "{}", text(&out).1);
    (text(&out).1, sent.elapsed())
}

/// As one process does: the code of a program that SIGPIPE ended, and nothing on stderr, by no rank.
#[test]
fn ranks_whose_results_nothing_reads_end_quietly() {
    let dir = compiled("cpu[2]");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let recordings = dir.path().join("temporary");
    fs::create_dir(&recordings).unwrap();
    let mut c = run(&dir);
    c.args(["--ranks", "2", "--peer-timeout", "30s"]).env("TMPDIR", &recordings);
    let out = c.stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((out.status.code(), text(&out).1.as_str()), (Some(141), ""));
    assert_eq!(fs::read_dir(&recordings).unwrap().count(), 0, "temporary files are left");
}

#[test]
fn each_rank_has_a_log_file() {
    let dir = compiled("cpu[2]");
    let logs = dir.path().join("all/logs");
    let log = |rank: u32| fs::read_to_string(logs.join(format!("rank{rank}.log"))).unwrap();
    let want = text(&run(&dir).output().unwrap()).0;
    let logged = |args: &[&str]| {
        let out = run(&dir).args(["--peer-timeout", "30s", "--rank-logs"]).arg(&logs).args(args).output().unwrap();
        (out.status.success(), text(&out))
    };
    let (succeeded, (results, console)) = logged(&["--ranks", "2", "-vv"]);
    assert!(succeeded && results == want, "{results} {console}");
    for rank in [0, 1] {
        assert!(log(rank).contains(&format!("joined rank={rank} ranks=2")), "{}", log(rank));
    }
    assert!(console.contains("[rank 0]") && console.contains("joined rank=0"), "{console}");
    assert!(!console.contains("[rank 1]") && !console.contains("joined rank=1"), "{console}");
    // Errors are there as well, those of the last run alone, and the launcher says where.
    let (succeeded, (_, console)) = logged(&["--ranks", "3"]);
    assert!(!succeeded && console.contains(&logs.join("rank*.log").display().to_string()), "{console}");
    for rank in [0, 1, 2] {
        assert!(log(rank).contains("the plan's mesh has 2 ranks") && !log(rank).contains("joined"), "{}", log(rank));
    }
    assert!(!console.contains("[rank 2]"), "{console}");
    let (succeeded, (_, console)) = logged(&[]);
    assert!(!succeeded && console.contains("--rank-logs is for ranks that are processes"), "{console}");
    let of_launcher =
        of_opt().env("RANK", "0").env("WORLD_SIZE", "2").args(["run", "ranks.plan", "--rank-logs", "logs"]).output();
    let console = text(&of_launcher.unwrap()).1;
    assert!(console.contains("torchrun starts these") && console.contains("--log-dir"), "{console}");
    let is_file = run(&dir).args(["--ranks", "2", "--rank-logs"]).arg(dir.path().join("ranks.plan")).output().unwrap();
    assert!(text(&is_file).1.contains("ranks.plan' cannot be created"), "{is_file:?}");
}

#[test]
fn a_killed_rank_ends_the_others() {
    let (errors, took) = failing("-KILL", "30s", 128 + 9);
    assert!(errors.contains("[rank 0] error") && errors.contains("rank 1 (process "), "{errors}");
    assert!(errors.contains("rank 1 was ended by signal 9"), "{errors}");
    assert!(took < PATIENCE, "{took:?}");
}

#[test]
fn a_stopped_rank_is_noticed() {
    let (errors, took) = failing("-STOP", "5s", 128 + 9);
    assert!(errors.contains("[rank 0] error") && errors.contains("has not answered for"), "{errors}");
    assert!(errors.contains("rank 1 was stopped, and was killed; rank 0 ended"), "{errors}");
    assert!(took < PATIENCE, "{took:?}");
}

/// What the first look at a file of hosts finds is said with its line and a hint.
#[test]
fn wrong_hosts_are_named_by_their_line() {
    let dir = compiled("cpu[2]");
    for (file, what, hint) in [
        ("port = 0\n[[host]]\naddress = \"a\"\nranks = 2\n", "line 1: port 0 is none", "hint: give a free port"),
        ("[[host]]\naddress = \"\"\nranks = 2\n", "line 2: the address is empty", "hint: give a name or an IP address"),
    ] {
        let path = dir.path().join("wrong.toml");
        fs::write(&path, file).unwrap();
        let out = run(&dir).arg("--hosts").arg(&path).output().unwrap();
        let (_, errors) = text(&out);
        assert!(errors.contains(what) && errors.contains(hint), "{errors}");
        assert_eq!(out.status.code(), Some(2), "{errors}");
    }
}

/// The launcher of a stopped rank ends it once the others have declared it lost, also where they are on other hosts.
#[test]
fn a_stopped_rank_ends_with_its_host() {
    let dir = compiled("cpu[2]");
    let endless = ["--iterations", "1000000000"];
    let second = patient_hosts(&dir, "second", "2s").args(endless).spawn().unwrap();
    let first = patient_hosts(&dir, "first", "2s").args(endless).spawn().unwrap();
    let victim = running(second.id(), 1).into_iter().find(|pid| is_rank(pid, 1)).unwrap();
    let sent = Instant::now();
    assert!(Command::new("kill").args(["-STOP", &victim]).status().unwrap().success());
    let errors = text(&first.wait_with_output().unwrap()).1;
    assert!(errors.contains("rank 1 (process ") && errors.contains("has not answered for"), "{errors}");
    let errors = text(&second.wait_with_output().unwrap()).1;
    assert!(errors.contains("rank 1 was stopped, and was killed"), "{errors}");
    assert!(sent.elapsed() < PATIENCE, "{:?}", sent.elapsed());
}

/// A rank that catches the signal and ends by itself counts as ended by the signal.
#[test]
fn a_terminated_rank_is_named() {
    let (errors, _) = failing("-TERM", "30s", 128 + 15);
    assert!(errors.contains("rank 1 was ended by signal 15"), "{errors}");
}

#[test]
fn a_launcher_serves_the_rendezvous_that_it_is_given() {
    let dir = compiled("cpu[2]");
    let want = text(&run(&dir).output().unwrap());
    let address = format!("127.0.0.1:{}", free_ports(1).start);
    let args = ["--ranks", "2", "--rendezvous", &address, "--join-timeout", "30s", "--peer-timeout", "30s"];
    assert_eq!(text(&run(&dir).args(args).output().unwrap()), want);
}

/// Ranks that run wait for one another all the time, and recordings are read one after another.
#[test]
fn ranks_that_run_are_in_no_deadlock() {
    let dir = compiled("cpu[2]");
    let recordings = dir.path().join("recordings");
    let mut c = run(&dir);
    c.args(["--ranks", "2", "--iterations", "1000000000", "--peer-timeout", "30s"]).arg("--flight-recorder");
    let launcher = c.arg(&recordings).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    running(launcher.id(), 2);
    for _ in 0..5 {
        let (report, _) = text(&of_opt().arg("why-stuck").arg(&recordings).output().unwrap());
        assert!(report.contains("rank 1 on ") && !report.contains("deadlock"), "{report}");
    }
    // A recording that is damaged does not hide the others.
    fs::write(recordings.join("rank-7.flight"), "something else").unwrap();
    let (report, notes) = text(&of_opt().arg("why-stuck").arg(&recordings).output().unwrap());
    assert!(report.contains("rank 1 on ") && notes.contains("is not a recording of a rank"), "{report} {notes}");
    assert!(Command::new("kill").arg(launcher.id().to_string()).status().unwrap().success());
    let (_, errors) = text(&launcher.wait_with_output().unwrap());
    assert!(errors.contains("of-opt why-stuck"), "{errors}");
}

/// The certificates of the tests of of-transport.
fn certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../transport/tests/data").canonicalize().unwrap()
}

#[test]
fn encrypted_processes_give_what_threads_give() {
    for (mesh, ranks) in [("cpu[2]", "2"), ("cpu[2x2]", "4")] {
        let dir = compiled(mesh);
        let want = text(&run(&dir).output().unwrap());
        let args =
            ["--ranks", ranks, "--transport", "tcp", "--tls", "token", "--iterations", "5", "--peer-timeout", "30s"];
        assert_eq!(text(&run(&dir).args(args).output().unwrap()), want, "{mesh}");
    }
}

/// The file of two hosts that are this machine, with the certificate of this name for both.
fn with_certificates(dir: &TempDir, name: &str) -> PathBuf {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for file in ["ca.pem".to_owned(), format!("{name}.pem"), format!("{name}.key.pem")] {
        fs::copy(certificates().join(&file), dir.path().join(&file)).unwrap();
    }
    let host = |name: &str, last: u8| format!("[[host]]\nname = \"{name}\"\naddress = \"127.0.0.{last}\"\nranks = 1\n");
    let tls = format!("[tls]\nca = \"ca.pem\"\ncertificate = \"{name}.pem\"\nkey = \"{name}.key.pem\"\n");
    let file = dir.path().join(format!("{name}.toml"));
    fs::write(&file, format!("port = {port}\n{tls}{}{}", host("first", 1), host("second", 2))).unwrap();
    file
}

#[test]
fn hosts_encrypt_with_certificates() {
    let dir = compiled("cpu[2]");
    let want = text(&run(&dir).output().unwrap());
    let start = |file: &Path, host: &str, args: &[&str]| {
        let mut c = run(&dir);
        c.arg("--hosts").arg(file).args(["--host", host, "--peer-timeout", "30s", "--threads", "1"]).args(args);
        c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let file = with_certificates(&dir, "host");
    let args = ["--tls", "certificates", "--transport", "tcp"];
    let (second, first) = (start(&file, "second", &args), start(&file, "first", &args));
    assert_eq!(text(&first.wait_with_output().unwrap()), want);
    assert_eq!(text(&second.wait_with_output().unwrap()), (String::new(), String::new()));
    // A rank whose certificate another authority signed does not come in, and one without TLS neither.
    let stranger = with_certificates(&dir, "stranger");
    let port = |file: &Path| fs::read_to_string(file).unwrap().lines().next().unwrap().to_owned();
    let text_of_stranger = fs::read_to_string(&stranger).unwrap().replace(&port(&stranger), &port(&file));
    fs::write(&stranger, text_of_stranger).unwrap();
    for (file, second_args, words) in [
        (&stranger, &args[..], "it refuses this rank's certificate"),
        (&file, &["--tls", "off"][..], "it needs TLS, and this rank was started without"),
    ] {
        let first = start(&dir.path().join("host.toml"), "first", &[&args[..], &["--join-timeout", "4s"]].concat());
        let second = start(file, "second", second_args);
        let (_, errors) = text(&second.wait_with_output().unwrap());
        assert!(errors.contains(words), "{errors}");
        let (_, errors) = text(&first.wait_with_output().unwrap());
        assert!(errors.contains("rank 1 did not join"), "{errors}");
    }
}

#[test]
fn wrong_identities_for_tls_are_errors() {
    let dir = compiled("cpu[2]");
    let errors = |args: &[&str]| text(&run(&dir).args(args).output().unwrap()).1;
    let hosts = dir.path().join("hosts.toml");
    fs::write(&hosts, "[[host]]\naddress = \"127.0.0.1\"\nranks = 2\n").unwrap();
    let hosts = hosts.to_str().unwrap().to_owned();
    let got = errors(&["--hosts", &hosts, "--tls", "certificates"]);
    assert!(got.contains("--tls certificates needs a file of --hosts with [tls]"), "{got}");
    // A job of one host makes its token.
    assert_eq!(errors(&["--hosts", &hosts, "--tls", "token"]), "");
    let two = dir.path().join("two.toml");
    let host = |last: u8| format!("[[host]]\naddress = \"127.0.0.{last}\"\nranks = 1\n");
    fs::write(&two, host(1) + &host(2)).unwrap();
    let got = errors(&["--hosts", two.to_str().unwrap(), "--host", "127.0.0.1", "--tls", "token"]);
    assert!(got.contains("--tls token needs a job token") && got.contains("set OF_JOB_TOKEN"), "{got}");
    let file = with_certificates(&dir, "host");
    fs::write(dir.path().join("host.pem"), "nothing").unwrap();
    let got = errors(&["--hosts", file.to_str().unwrap(), "--host", "first", "--tls", "certificates"]);
    assert!(got.contains("host.pem' holds no certificates"), "{got}");
}
