//! `of-fuzz`: random graphs in child processes, so that a crash or a hang costs one graph.

use std::io::{BufRead, BufReader, Write};
use std::iter::Sum;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use of_codegen::CpuCode;
use of_fuzz::check::{Checked, Compiler, Failure, Ran};
use of_fuzz::{Case, check, emit, generate, shrink};

const HELP: &str = "\
of-fuzz [--graphs N] [--seed S] [--jobs J] [--native K] [--cpu-code machine|c]
of-fuzz [--graphs N] [--seed S] --onnx DIR

Checks the graphs of the seeds S to S + N - 1 (1 to 1000): text, passes, and for every K-th graph (1) native code.
Kernels are compiled in process (machine), or by the C compiler (c).
OF_FUZZ_ISA names another instruction set than this machine's best: cuda-emulated is the emulated GPU.
Failures are made small and printed. --seed S --graphs 1 repeats one, --seed S --show prints it.

With --onnx the graphs become models in DIR/SEED, with their inputs and outputs as ONNX's test data has them, and
noise_I.pb for how far rounding errors move output I. What ONNX has no word for is left out, with its reason.
";

/// Seconds that one graph may take.
const PATIENCE: u64 = 180;
/// Graphs that share a plan.
const BATCH: u64 = 8;

#[derive(Clone, Copy)]
struct Work {
    first: u64,
    count: u64,
    native: u64,
    cpu_code: CpuCode,
}

/// The outcome of a run.
#[derive(Default)]
struct Tally {
    failures: usize,
    ran: Ran,
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Tally>>(iter: I) -> Tally {
        iter.fold(Tally::default(), |mut all, one| {
            all.failures += one.failures;
            all.add(one.ran);
            all
        })
    }
}

impl Tally {
    fn add(&mut self, ran: Ran) {
        self.ran.closed += ran.closed;
        self.ran.open += ran.open;
        self.ran.refused += ran.refused;
    }
}

/// A worker's report on a batch.
fn ran_line(ran: Ran) -> String {
    format!("ran {} {} {}", ran.closed, ran.open, ran.refused)
}

fn read_ran(line: &str) -> Option<Ran> {
    let numbers: Option<Vec<usize>> = line.strip_prefix("ran ")?.split(' ').map(|n| n.parse().ok()).collect();
    let [closed, open, refused] = numbers?[..] else { return None };
    Some(Ran { closed, open, refused })
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}\n\n{HELP}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<usize, String> {
    let mut work = Work { first: 1, count: 1000, native: 1, cpu_code: CpuCode::Machine };
    let (mut jobs, mut worker) = (std::thread::available_parallelism().map_or(1, |n| n.get() as u64), false);
    let (mut show, mut onnx) = (false, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--onnx" {
            onnx = Some(PathBuf::from(args.next().ok_or("--onnx needs a folder")?));
            continue;
        }
        if arg == "--cpu-code" {
            work.cpu_code = match args.next().as_deref() {
                Some("machine") => CpuCode::Machine,
                Some("c") => CpuCode::C,
                _ => return Err("--cpu-code needs machine or c".into()),
            };
            continue;
        }
        let mut number = || args.next().and_then(|v| v.parse::<u64>().ok()).ok_or(format!("{arg} needs a number"));
        match arg.as_str() {
            "--graphs" => work.count = number()?,
            "--seed" => work.first = number()?,
            "--native" => work.native = number()?.max(1),
            "--jobs" => jobs = number()?.max(1),
            "--worker" => worker = true,
            "--show" => show = true,
            _ => return Err(format!("of-fuzz does not know {arg}")),
        }
    }
    if worker {
        work_through(work);
        return Ok(0);
    }
    if let Some(folder) = onnx {
        return emit_all(work, &folder);
    }
    if show {
        let case = generate::case(work.first).map_err(|e| e.to_string())?;
        println!("{}", shrink::show(&case));
        return Ok(0);
    }
    let started = Instant::now();
    let tally = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|j| {
                // Adjacent graphs, so that every job has its share of compiled graphs.
                let at = |j: u64| work.count * j / jobs;
                let own = Work { first: work.first + at(j), count: at(j + 1) - at(j), ..work };
                scope.spawn(move || supervise(own))
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().map_err(|_| "a supervisor panicked".to_string())?)
            .sum::<Result<Tally, String>>()
    })?;
    let Tally { failures, ran: Ran { closed, open, refused } } = tally;
    let seconds = started.elapsed().as_secs_f64();
    println!("native code: {closed} runs, {open} with open dimensions; {refused} more refuse the extents, with reason");
    println!("{} graphs, {failures} failures, {seconds:.0} s", work.count);
    Ok(failures)
}

/// Writes the graphs as models. Returns the number of those that cannot be computed.
fn emit_all(work: Work, folder: &Path) -> Result<usize, String> {
    let (mut written, mut failures) = (0, 0);
    for seed in work.first..work.first + work.count {
        let case = generate::case(seed).map_err(|e| e.to_string())?;
        let is_random = |op| {
            let graph = &case.func.graph;
            of_ops::get(graph, op).is_some_and(|o| o.is_random(&graph.view(op)))
        };
        if case.func.graph.walk().into_iter().any(is_random) {
            println!("seed {seed}: left out: every runtime draws its own random numbers");
            continue;
        }
        let folder = folder.join(seed.to_string());
        let Err(errors) = emit::emit(&case, &folder) else {
            written += 1;
            continue;
        };
        let known = errors.0.iter().all(|d| d.code == of_diag::Code::UNSUPPORTED);
        failures += usize::from(!known);
        println!("seed {seed}: {}: {}", if known { "left out" } else { "failure" }, errors.0[0].message);
        std::fs::remove_dir_all(&folder).map_err(|e| e.to_string())?;
    }
    println!("{written} models");
    Ok(failures)
}

/// Runs workers until all graphs are done; a crash or a hang is a failure of the current graph.
fn supervise(mut work: Work) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    while work.count > 0 {
        let numbers = [("--seed", work.first), ("--graphs", work.count), ("--native", work.native)];
        let mut child = Command::new(&program)
            .arg("--worker")
            .args(numbers.iter().flat_map(|(n, v)| [(*n).to_string(), v.to_string()]))
            .args(["--cpu-code", if work.cpu_code == CpuCode::C { "c" } else { "machine" }])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        let out = child.stdout.take().ok_or("a worker has no output")?;
        let (send, lines) = channel();
        std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|l| send.send(l)));
        let mut at = work.first;
        let why = loop {
            match lines.recv_timeout(Duration::from_secs(PATIENCE)) {
                Ok(line) => match line.strip_prefix('@').and_then(|n| n.parse().ok()) {
                    Some(seed) => at = seed,
                    None => match read_ran(&line) {
                        Some(ran) => tally.add(ran),
                        None => {
                            tally.failures += usize::from(line.starts_with("seed "));
                            println!("{line}");
                        }
                    },
                },
                Err(RecvTimeoutError::Timeout) => {
                    child.kill().map_err(|e| e.to_string())?;
                    break Some("hangs".to_string());
                }
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        let status = child.wait().map_err(|e| e.to_string())?;
        if status.success() && why.is_none() {
            return Ok(tally);
        }
        println!("seed {at}: {}", why.unwrap_or_else(|| format!("the process ends with {status}")));
        tally.failures += 1;
        let done = at - work.first + 1;
        (work.first, work.count) = (at + 1, work.count.saturating_sub(done));
    }
    Ok(tally)
}

/// Checks every graph in this process. Prints progress and failures.
fn work_through(work: Work) {
    check::keep_panics();
    let compiler = Compiler::new(work.cpu_code);
    let mut batch: Vec<(u64, Case, Checked)> = Vec::new();
    for i in 0..work.count {
        let seed = work.first + i;
        say(&format!("@{seed}"));
        let made = check::guarded("generate", || {
            generate::case(seed).map_err(|e| Failure { stage: "generate", what: e.to_string() })
        });
        match made {
            Err(f) => say(&format!("seed {seed}: {}: {}", f.stage, f.what)),
            Ok(case) => match check::passes(&case) {
                Err(f) => report(seed, &case, &f, &compiler),
                Ok(checked) if seed.is_multiple_of(work.native) => batch.push((seed, case, checked)),
                Ok(_) => {}
            },
        }
        if batch.len() as u64 == BATCH || i + 1 == work.count {
            run_batch(&batch, &compiler);
            batch.clear();
        }
    }
}

fn run_batch(batch: &[(u64, Case, Checked)], compiler: &Compiler) {
    let mut rest = batch;
    while !rest.is_empty() {
        let cases: Vec<(&Case, &Checked)> = rest.iter().map(|(_, case, checked)| (case, checked)).collect();
        let result = check::native(&cases, compiler, &mut |i| say(&format!("@{}", rest[i].0)));
        let (i, failure) = match result {
            Ok(ran) => return say(&ran_line(ran)),
            Err(failed) => failed,
        };
        report(rest[i].0, &rest[i].1, &failure, compiler);
        rest = &rest[i + 1..];
    }
}

fn report(seed: u64, case: &Case, failure: &Failure, compiler: &Compiler) {
    say(&format!("seed {seed}: {}: {}", failure.stage, failure.what));
    let deadline = Instant::now() + Duration::from_secs(PATIENCE / 3);
    let mut last = failure.clone();
    let small = shrink::shrink(case, &mut |c| {
        if Instant::now() > deadline {
            return false;
        }
        match check::all(c, compiler) {
            Err(f) if f.stage == failure.stage => {
                last = f;
                true
            }
            _ => false,
        }
    });
    say(&format!("small: {}: {}\n{}", last.stage, last.what, shrink::show(&small)));
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nothing reads the output after the supervisor exits.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
