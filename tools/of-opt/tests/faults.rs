//! Ranks that are killed, stopped or cut off: every rank ends, with one error that says why; and what `why-stuck` says of it.
//!
//! `OF_FAULTS=50` repeats each fault 50 times, with the times that ranks take to notice it by default, and prints them
//! (`cargo xtask faults`): within 0.1 s of a kill and within 1 s otherwise, or the test fails. Without it each is done once, with the
//! patience of a busy machine.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use of_runtime::flight_recorder::{Event, FlightLog, Phase, RecordingOf};
use of_runtime::{FlightRecorder, Transport};
use of_test_support::component;
use of_transport::{Identity, JoinOptions, LinkChoice, ProcessTransport, RendezvousServer, host_name};
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often each fault is repeated.
fn rounds() -> usize {
    std::env::var("OF_FAULTS").map_or(1, |n| n.parse().unwrap())
}

/// After how long a silent rank is lost.
fn peer_timeout() -> &'static str {
    if rounds() > 1 { "1s" } else { "6s" }
}

fn of_opt() -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_of-opt"));
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"]
    {
        c.env_remove(name);
    }
    c
}

/// A folder with a plan of two ranks, whose steps have a transfer.
fn compiled() -> TempDir {
    compiled_of("tests/lit/cli/ranks.of", &["--mesh", "cpu[2]"])
}

fn compiled_of(model: &str, args: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(model);
    let plan = dir.path().join("ranks.plan");
    let out = of_opt().arg("compile").arg(model).args(args).args(["-q", "-o"]).arg(plan).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    dir
}

/// Ranks that run until something happens, as a launcher of a cluster starts them.
struct Ranks {
    dir: PathBuf,
    ranks: Vec<Child>,
}

impl Ranks {
    /// Starts two; rank N in a network namespace, where one is given.
    fn start(plan: &Path, transport: &str, namespaces: Option<[&str; 2]>) -> Ranks {
        Ranks::start_on(plan, (2, "x=6x8"), transport, namespaces)
    }

    /// Starts as many, on inputs of a shape.
    fn start_on(plan: &Path, (count, shape): (usize, &str), transport: &str, namespaces: Option<[&str; 2]>) -> Ranks {
        let dir = plan.with_file_name("recordings");
        // A folder of an earlier round.
        let _ = fs::remove_dir_all(&dir);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let address = if namespaces.is_some() { "10.77.0.1" } else { "127.0.0.1" };
        let start = |rank: usize| {
            let program = env!("CARGO_BIN_EXE_of-opt");
            let mut c = match namespaces {
                Some(names) => {
                    let mut c = Command::new("ip");
                    c.args(["netns", "exec", names[rank], program]);
                    c
                }
                None => of_opt(),
            };
            c.arg("run").arg(plan).args(["--shape", shape, "--iterations", "1000000000", "--threads", "1"]);
            // TLS is that of TCP.
            let (transport, tls) = if transport == "tls" { ("tcp", "token") } else { (transport, "off") };
            c.args(["--transport", transport, "--tls", tls]);
            c.args(["--peer-timeout", peer_timeout(), "--flight-recorder"]).arg(&dir);
            c.envs([("RANK", rank.to_string()), ("WORLD_SIZE", count.to_string())]);
            c.envs([("MASTER_ADDR", address), ("MASTER_PORT", &port), ("OF_JOB_TOKEN", "faults")]);
            c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let ranks = (0..count).map(start).collect();
        let mut ranks = Ranks { dir, ranks };
        ranks.wait_for_steps();
        ranks
    }

    fn log(&self, rank: usize) -> Option<FlightLog> {
        FlightLog::read(&self.dir.join(format!("rank-{rank}.flight"))).ok()
    }

    /// Waits until all have done some steps.
    fn wait_for_steps(&mut self) {
        let started = Instant::now();
        let runs = |rank| self.log(rank).is_some_and(|log| log.phase == Phase::Runs && log.steps.1 > 20);
        while !(0..self.ranks.len()).all(runs) {
            assert!(started.elapsed() < PATIENCE, "the ranks did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, rank: usize, signal: &str) {
        // Where a namespace is given, this is still the rank: `ip` replaces itself by the program.
        let pid = self.ranks[rank].id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits until a rank has ended. Returns what it wrote, and how long that took since `since`.
    fn end(&mut self, rank: usize, since: Instant) -> (String, Duration) {
        loop {
            if self.ranks[rank].try_wait().unwrap().is_some() {
                break;
            }
            assert!(since.elapsed() < PATIENCE, "rank {rank} hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = since.elapsed();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.ranks[rank].stderr.take().unwrap(), &mut text).unwrap();
        (text, took)
    }

    fn why_stuck(&self) -> Value {
        let out = of_opt().arg("why-stuck").arg(&self.dir).arg("--json").output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

/// One error that names ranks, hosts, and what this rank did.
fn check(errors: &str, own: usize, lost: usize) {
    let host = String::from_utf8(Command::new("uname").arg("-n").output().unwrap().stdout).unwrap();
    let host = host.trim();
    assert_eq!(errors.matches("error[").count(), 1, "{errors}");
    assert!(errors.contains(&format!("rank {lost} (process ")) && errors.contains(&format!(" on {host})")), "{errors}");
    assert!(errors.contains(&format!("rank {own} on {host} ")), "{errors}");
    // It waited in a transfer or for outputs, or was between tasks.
    let in_transfer = errors.contains(&format!("waited for rank {lost} (process")) && errors.contains(" in transfer ");
    let for_outputs = errors.contains("waited for output `");
    let computed = errors.contains(" ended before task `") || errors.trim_end().ends_with(" ended");
    assert!(in_transfer || for_outputs || computed, "{errors}");
    if in_transfer {
        assert!(errors.contains(", task `"), "{errors}");
    }
}

/// Prints how long the ranks took to end, and returns what to say where that was too long. The test fails by it in the end, so that
/// every fault is measured.
fn report(fault: &str, mut times: Vec<Duration>, limit: f64) -> Option<String> {
    times.sort();
    let ms = |d: &Duration| d.as_secs_f64() * 1e3;
    let (count, middle) = (times.len(), times.len() / 2);
    println!(
        "{fault}: {count} of {} ended with the right error, after {:.0} to {:.0} ms, median {:.0} ms",
        rounds(),
        ms(&times[0]),
        ms(&times[count - 1]),
        ms(&times[middle])
    );
    let late = times.iter().filter(|t| t.as_secs_f64() > limit).count();
    (rounds() > 1 && late > 0).then(|| format!("{fault}: {late} of {count} took longer than {limit} s"))
}

#[test]
fn a_killed_rank() {
    let dir = compiled();
    let mut late = Vec::new();
    for transport in ["shared-memory", "tcp", "tls"] {
        let mut times = Vec::new();
        for _ in 0..rounds() {
            let mut ranks = Ranks::start(&dir.path().join("ranks.plan"), transport, None);
            let sent = Instant::now();
            ranks.signal(1, "-KILL");
            let (errors, took) = ranks.end(0, sent);
            check(&errors, 0, 1);
            ranks.end(1, sent);
            let why = ranks.why_stuck();
            assert_eq!(
                (&why["roots"][0]["kind"], &why["roots"][0]["ranks"]),
                (&"gone".into(), &vec![1].into()),
                "{why:#}"
            );
            assert_eq!(why["ranks"][0]["phase"], "ended_by_another", "{why:#}");
            times.push(took);
        }
        late.extend(report(&format!("SIGKILL, {transport}"), times, 0.1));
    }
    assert!(late.is_empty(), "{late:?}");
}

#[test]
fn a_stopped_rank() {
    let dir = compiled();
    let mut late = Vec::new();
    for transport in ["shared-memory", "tcp", "tls"] {
        let mut times = Vec::new();
        for _ in 0..rounds() {
            let mut ranks = Ranks::start(&dir.path().join("ranks.plan"), transport, None);
            let sent = Instant::now();
            ranks.signal(1, "-STOP");
            // While rank 0 still waits.
            std::thread::sleep(Duration::from_millis(100));
            let why = ranks.why_stuck();
            assert_eq!(
                (&why["roots"][0]["kind"], &why["roots"][0]["ranks"]),
                (&"stopped".into(), &vec![1].into()),
                "{why:#}"
            );
            assert_eq!(why["ranks"][0]["waits_for"], Value::from(vec![1]), "{why:#}");
            let (errors, took) = ranks.end(0, sent);
            check(&errors, 0, 1);
            assert!(errors.contains("has not answered for"), "{errors}");
            times.push(took);
            // It ends as well once it goes on.
            let since = Instant::now();
            ranks.signal(1, "-CONT");
            ranks.end(1, since);
        }
        late.extend(report(&format!("SIGSTOP, {transport}"), times, 1.0));
    }
    assert!(late.is_empty(), "{late:?}");
}

/// What a rank waits for by `why-stuck`, where that is a rank in a transfer of a task from an ONNX node.
fn waits_in_node(rank: &Value, lost: usize) -> bool {
    let waits_for = rank["waits_for"].as_array().unwrap().contains(&lost.into());
    let mut ops = rank["task"]["ops"].as_array().into_iter().flatten();
    waits_for && rank["of_outputs"] == false && ops.any(|op| op.as_str().unwrap().contains("node '"))
}

/// A rank of four is lost while the others wait for it in a transfer: each of them says for which node of the ONNX model.
#[test]
fn errors_of_all_ranks_name_the_node() {
    const LOST: usize = 2;
    let dir =
        compiled_of("examples/digits/digits.onnx", &["--shape", "N=8", "--mesh", "cpu[4]", "--layout", "image=S(3)"]);
    for transport in ["shared-memory", "tcp"] {
        let mut ranks = Ranks::start_on(&dir.path().join("ranks.plan"), (4, "image=8x1x8x8"), transport, None);
        let others = [0, 1, 3];
        let since = Instant::now();
        // Between steps the ranks exchange outputs, which come from no single node: the rank is stopped until it is not there.
        loop {
            assert!(since.elapsed() < PATIENCE, "the ranks are never in a transfer");
            ranks.signal(LOST, "-STOP");
            std::thread::sleep(Duration::from_millis(100));
            let why = ranks.why_stuck();
            if others.iter().all(|rank| waits_in_node(&why["ranks"][*rank], LOST)) {
                break;
            }
            ranks.signal(LOST, "-CONT");
            std::thread::sleep(Duration::from_millis(20));
        }
        let sent = Instant::now();
        ranks.signal(LOST, "-KILL");
        for rank in others {
            let (errors, _) = ranks.end(rank, sent);
            check(&errors, rank, LOST);
            assert!(errors.contains(", task `") && errors.contains(" at node '"), "{errors}");
        }
        ranks.end(LOST, sent);
    }
}

/// Two network namespaces with a cable between them; they are removed in the end.
struct Network {
    names: [String; 2],
}

fn ip(args: &str) -> Output {
    Command::new("ip").args(args.split(' ')).output().unwrap()
}

impl Network {
    /// `None`, and why, where there are no network namespaces.
    fn new() -> Result<Network, String> {
        let names = ["a", "b"].map(|end| format!("of-{}-{end}", std::process::id()));
        let tools = ["ip", "nft"].map(|tool| Command::new(tool).arg("--version").output().is_ok());
        if tools != [true; 2] {
            return Err("ip or nft is not installed".into());
        }
        let network = Network { names };
        let [a, b] = &network.names;
        let commands = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add of0 type veth peer name of1 netns {b}"),
            format!("-n {a} addr add 10.77.0.1/24 dev of0"),
            format!("-n {b} addr add 10.77.0.2/24 dev of1"),
            format!("-n {a} link set of0 up"),
            format!("-n {b} link set of1 up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ];
        for command in commands {
            let out = ip(&command);
            if !out.status.success() {
                return Err(format!("ip {command}: {}", String::from_utf8_lossy(&out.stderr).trim()));
            }
        }
        Ok(network)
    }

    fn run(&self, command: &str) {
        let mut words = command.split(' ');
        let out = match words.next() {
            Some("nft") => Command::new("ip").args(["netns", "exec", &self.names[1], "nft"]).args(words).output(),
            _ => Command::new("ip").args(["-n", &self.names[1]]).args(command.split(' ').skip(1)).output(),
        };
        let out = out.unwrap();
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| _ = ip(&format!("netns del {name}")));
    }
}

/// How the network between the ranks is cut, and how that is undone. In the second namespace.
const CUTS: [(&str, &[&str], &[&str]); 3] = [
    (
        "packets dropped by nft",
        &["nft add table inet cut ; add chain inet cut in { type filter hook input priority 0 ; policy drop ; } ; \
             add chain inet cut out { type filter hook output priority 0 ; policy drop ; }"],
        &["nft delete table inet cut"],
    ),
    ("link down", &["ip link set of1 down"], &["ip link set of1 up"]),
    ("black-hole route", &["ip route add blackhole 10.77.0.1/32"], &["ip route del blackhole 10.77.0.1/32"]),
];

#[test]
fn a_rank_that_is_cut_off() {
    let Some(network) = component::require(&component::NETNS, Network::new()) else { return };
    let dir = compiled();
    let plan = dir.path().join("ranks.plan");
    let names = [network.names[0].as_str(), network.names[1].as_str()];
    // Processes of one host share memory for data; the network then has the monitor's connections alone.
    let mut late = Vec::new();
    for transport in ["tcp", "tls", "shared-memory"] {
        for (fault, cut, restore) in CUTS {
            let mut times = Vec::new();
            for _ in 0..rounds() {
                let mut ranks = Ranks::start(&plan, transport, Some(names));
                let sent = Instant::now();
                cut.iter().for_each(|command| network.run(command));
                let (first, took) = ranks.end(0, sent);
                let (second, also) = ranks.end(1, sent);
                check(&first, 0, 1);
                check(&second, 1, 0);
                restore.iter().for_each(|command| network.run(command));
                times.push(took.max(also));
            }
            late.extend(report(&format!("{fault}, {transport}"), times, 1.0));
        }
    }
    assert!(late.is_empty(), "{late:?}");
}

/// The dump of actors by a signal, and the metrics and the timeline of ranks that run.
#[test]
fn ranks_are_seen_from_outside() {
    let dir = compiled();
    let mut ranks = Ranks::start(&dir.path().join("ranks.plan"), "auto", None);
    ranks.signal(0, "-USR1");
    let trace = dir.path().join("trace.json");
    let why = |args: &[&str]| {
        let out = of_opt().arg("why-stuck").arg(&ranks.dir).args(args).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let metrics = why(&["--metrics"]);
    for line in
        ["# TYPE of_rank_steps_total counter", "of_rank_up{rank=\"1\",host=", "of_rank_sent_bytes_total{rank=\"0\""]
    {
        assert!(metrics.contains(line), "{metrics}");
    }
    let text = why(&["--actors", "--trace", trace.to_str().unwrap()]);
    assert!(text.contains("rank 1 on ") && text.contains("`transfer 4`") && text.contains(" credits; "), "{text}");
    // The names of a real run are those of the simulator.
    let names = |path: &Path| -> Vec<String> {
        let trace: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
        let mut names: Vec<String> = events.map(|e| e["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names.dedup();
        names
    };
    let simulated = dir.path().join("simulated.json");
    let mut simulate = of_opt();
    simulate.arg("simulate").arg(dir.path().join("ranks.plan")).args(["--mesh", "cpu[2]", "--trace"]).arg(&simulated);
    assert!(simulate.output().unwrap().status.success());
    assert_eq!(names(&trace), names(&simulated));
    let end = Instant::now();
    ranks.signal(0, "-TERM");
    let (dump, _) = ranks.end(0, end);
    assert!(dump.contains("rank 0, program `") && dump.contains("has acted") && dump.contains("copies"), "{dump}");
    ranks.end(1, end);
}

/// Three ranks over the real transport, each in another transfer than the one that waits for it: a deadlock, which no verified plan
/// has. A fourth rank waits for one of them.
#[test]
fn a_deadlock_is_a_cycle() {
    let dir = tempfile::tempdir().unwrap();
    let server = RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), 4, "token").unwrap();
    let address = server.address().unwrap().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(PATIENCE).unwrap());
        let (waiting, transports) = std::sync::mpsc::channel();
        for rank in 0..4u32 {
            let (dir, address, waiting) = (dir.path(), &address, waiting.clone());
            scope.spawn(move || {
                let of = RecordingOf { rank, ranks: 4, host: host_name(), ..RecordingOf::default() };
                let path = dir.join(format!("rank-{rank}.flight"));
                let recorder = Arc::new(FlightRecorder::create(&path, &of, 0).unwrap());
                let options = JoinOptions {
                    mpi: None,
                    ports: None,
                    rendezvous: address.clone(),
                    serve: false,
                    token: Some("token".into()),
                    join_timeout: PATIENCE,
                    peer_timeout: PATIENCE,
                    link: LinkChoice::Auto,
                    recorder: Some(Arc::clone(&recorder)),
                };
                let transport = ProcessTransport::join(&Identity::new(rank, 4, [0; 32], "token"), &options).unwrap();
                let transport = Arc::new(transport);
                recorder.phase(Phase::Runs);
                waiting.send(Arc::clone(&transport)).unwrap();
                // Rank 3 waits for rank 0, and the others for one another.
                let peer = [1, 2, 0, 0][rank as usize];
                let stopped = transport.rendezvous(rank, rank, &[], &[peer], &mut |_, _| ());
                assert!(stopped.is_err());
            });
        }
        let all: Vec<_> = (0..4).map(|_| transports.recv().unwrap()).collect();
        let waits = |rank: usize| {
            let log = FlightLog::read(&dir.path().join(format!("rank-{rank}.flight"))).unwrap();
            log.records.iter().any(|record| matches!(record.event, Event::WaitsForBlock { .. }))
        };
        let started = Instant::now();
        while !(0..4).all(waits) {
            assert!(started.elapsed() < PATIENCE, "the ranks do not wait");
            std::thread::sleep(Duration::from_millis(5));
        }
        let out = of_opt().arg("why-stuck").arg(dir.path()).arg("--json").output().unwrap();
        let text = of_opt().arg("why-stuck").arg(dir.path()).output().unwrap();
        all[0].fail("the test ends");
        let why: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(why["roots"][0]["kind"], "cycle", "{why:#}");
        let mut cycle: Vec<u64> =
            why["roots"][0]["ranks"].as_array().unwrap().iter().map(|rank| rank.as_u64().unwrap()).collect();
        cycle.sort_unstable();
        assert_eq!(cycle, [0, 1, 2], "{why:#}");
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(text.contains("root: deadlock: rank 0, transfer 0 waits for rank 1"), "{text}");
    });
}

#[test]
fn folders_without_recordings_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let out = of_opt().arg("why-stuck").arg(dir.path()).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("has no recordings"), "{out:?}");
    fs::write(dir.path().join("rank-0.flight"), "something else").unwrap();
    let out = of_opt().arg("why-stuck").arg(dir.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("is not a recording of a rank"), "{out:?}");
}
