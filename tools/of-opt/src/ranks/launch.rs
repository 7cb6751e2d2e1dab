//! The launcher of `--ranks N` and `--hosts FILE`: processes of this program on this machine, with this command line.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use of_diag::{Code, Diagnostics, escaped_lines};
use of_driver::training::RankPlans;
use of_driver::{error, why_stuck};
use of_runtime::flight_recorder::{FlightLog, Phase};
use of_transport::{Attempts, JoinError, Launcher, RendezvousServer, Tls, job_name, new_token};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use super::logs::{RankLog, RankLogs};
use super::restart::{self, Restarts};
use super::{Hosts, Job, RankOptions, Role, join_error, mpi, recording};
use crate::{deferral, exit, progress};

/// How long the other ranks have to end after one failed. They notice by themselves, and say what they were doing.
const GRACE: Duration = Duration::from_secs(3);

/// The time between two looks at the processes.
const PAUSE: Duration = Duration::from_millis(5);

/// The processes of ranks, for signals that are passed on to them.
static PIDS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// The folder of plans, which a signal removes as well.
static FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The folder of the ranks' recordings.
static RECORDINGS: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Says where the recordings of the ranks are that this process started.
pub fn name_recordings() {
    let folder = RECORDINGS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    if let Some(folder) = folder.filter(|folder| folder.exists()) {
        // Where stderr is closed, there is no one to tell.
        let _ =
            std::io::Write::write_all(&mut std::io::stderr(), of_diag::escaped_lines(&last_acts(&folder)).as_bytes());
    }
}

fn last_acts(folder: &Path) -> String {
    format!("what each rank did last: of-opt why-stuck {}\n", folder.display())
}

/// From now on, signals are passed on to this process as well.
pub fn pass_on_to(child: &Child) {
    PIDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(child.id());
}

/// A process is about to be reaped: its number may then be that of another.
pub fn pass_on_to_none() {
    PIDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
}

/// The exit code of a process that ends itself because of a signal, less the number of the signal.
const SIGNAL_CODES: i32 = 128;

/// The signal that ended a process, also where it did what remained to be done before.
pub(super) fn signal_of(status: ExitStatus) -> Option<i32> {
    let by_code = || status.code().map(|code| code - SIGNAL_CODES);
    status.signal().or_else(|| by_code().filter(|signal| [SIGHUP, SIGTERM].contains(signal)))
}

/// Passes a signal on to the ranks that this process started.
pub fn pass_on(signal: rustix::process::Signal) {
    for pid in PIDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter() {
        if let Some(pid) = rustix::process::Pid::from_raw(*pid as i32) {
            // It may have ended.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// A rank's process.
pub(super) struct Rank {
    pub number: u32,
    pub child: Child,
    /// When it was started.
    pub since: Instant,
    pub ended: Option<ExitStatus>,
    /// When that was noticed.
    pub ended_at: Option<Instant>,
    /// Whether it did not end by itself.
    pub killed: bool,
    /// Since when its process is stopped.
    pub stopped: Option<Instant>,
    /// Whether the job was done when it was lost.
    pub is_excused: bool,
}

/// Starts the ranks of this machine and waits for their end. Rank 0 has this process' stdout; what ranks write to stderr is printed
/// with their numbers. With `--rank-logs` it goes to a file of each rank, and that of rank 0 is printed as well.
///
/// Ranks that a signal ended are started again, `restarts` of them at most. Returns the signal that interrupted the job, where all ranks ended
/// because of it.
///
/// # Errors
/// When a rank cannot be started, or fails.
pub fn launch(job: &Job, options: &RankOptions, restarts: u32) -> Result<Option<i32>, Diagnostics> {
    if job.supervises {
        return mpi::supervise(job.own.start).map(|()| None);
    }
    let failed = |what: &str, e: &std::io::Error| Diagnostics::from(error(Code::RUN, format!("{what}: {e}")));
    // Hosts share the token of the environment, which the ranks have as well.
    let (token, given) = match job.own.len() == job.ranks as usize {
        true => (new_token().map_err(|e| failed("no job token can be made", &e))?, false),
        false => (std::env::var("OF_JOB_TOKEN").unwrap_or_default(), true),
    };
    let attempts = (restarts > 0).then(Arc::<Attempts>::default);
    let address = match &job.rendezvous {
        Some(address) if !job.own.contains(&0) => address.clone(),
        address => {
            let hosts = options.hosts.as_deref().map(Hosts::read).transpose()?;
            let tls = super::tls(options, hosts.as_ref(), Some(&token))?;
            serve(job.ranks, address.as_deref(), &token, tls, options.join_timeout, attempts.clone())?
        }
    };
    let recordings = recording::folder(options, &address, &token);
    RECORDINGS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone_from(&recordings);
    let plans = PlanFolder::new(&address, &token).map_err(|e| failed("there is no folder for plans", &e))?;
    let program = std::env::current_exe().map_err(|e| failed("this program does not find itself", &e))?;
    let begun = restart::now();
    let logs = options.rank_logs.as_deref().map(|folder| RankLogs::create(folder, job.own.clone())).transpose()?;
    let mut readers = Vec::new();
    let mut start = |rank: u32| -> std::io::Result<Child> {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1));
        command.env("OF_RANK", rank.to_string()).env("OF_RANKS", job.ranks.to_string());
        command.env("OF_LOCAL_RANK", (rank - job.own.start).to_string()).env("OF_RENDEZVOUS", &address);
        command.env(PLANS, &plans.0).env(COMPILER, job.own.start.to_string());
        command.env(restart::STARTED, &begun);
        crate::telemetry::pass_on(&mut command);
        if !given {
            command.env("OF_JOB_TOKEN", &token);
        }
        if let Some(device) = job.devices.get((rank - job.own.start) as usize) {
            command.env("CUDA_VISIBLE_DEVICES", device.to_string());
        }
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command.stdout(if rank == 0 { Stdio::inherit() } else { Stdio::null() });
        let log = logs.as_ref().map_or(Ok(None), |logs| logs.of_rank(rank))?;
        let mut child = command.spawn()?;
        PIDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(child.id());
        let stderr = child.stderr.take();
        readers.extend(stderr.map(|stderr| std::thread::spawn(move || forward(rank, BufReader::new(stderr), log))));
        Ok(child)
    };
    let mut started = Ranks(Vec::with_capacity(job.own.len()));
    for number in job.own.clone() {
        let child = start(number).map_err(|e| failed(&format!("rank {number} cannot be started"), &e))?;
        let since = Instant::now();
        started.0.push(Rank {
            number,
            child,
            since,
            ended: None,
            ended_at: None,
            killed: false,
            stopped: None,
            is_excused: false,
        });
    }
    if deferral::deferred().is_some() {
        // It came before there were all of them; a rank that knows it takes note once more.
        pass_on(rustix::process::Signal::USR2);
    }
    let mut restarts = Restarts::new(attempts, restarts, options.peer_timeout, &mut start);
    started.wait(&mut restarts).map_err(|e| failed("a rank cannot be started or waited for", &e))?;
    for reader in readers {
        // A panic of the thread has been printed where it happened.
        let _ = reader.join();
    }
    if let Some(signal) = started.interruption() {
        if interrupted().is_none() {
            restart::note("the ranks had not begun to train: there is no new snapshot");
        }
        return Ok(Some(signal));
    }
    if nothing_reads() {
        if let Some(folder) = recordings.filter(|_| options.flight_recorder.is_none()) {
            // No rank may have come so far as to make it.
            let _ = std::fs::remove_dir_all(folder);
        }
        exit::nothing_reads();
    }
    match started.failure(recordings.as_deref()) {
        Some((what, code)) => {
            exit::as_rank(code);
            let mut failure = error(Code::RUN, what);
            if let Some(folder) = &options.rank_logs {
                failure = failure.note(format!("what each rank wrote: {}", folder.join("rank*.log").display()));
            }
            Err(match recordings.filter(|dir| dir.exists()) {
                Some(dir) => failure.hint(last_acts(&dir).trim_end()),
                None => failure,
            }
            .into())
        }
        None => Ok(None),
    }
}

/// A folder for plans that one rank of this machine compiles for the others. It is removed with the job.
struct PlanFolder(PathBuf);

/// The variables by which ranks know the folder, and the rank that compiles.
const PLANS: &str = "OF_JOB_PLANS";
const COMPILER: &str = "OF_JOB_COMPILER";

impl PlanFolder {
    /// A new folder, which only this user can read.
    fn new(rendezvous: &str, token: &str) -> std::io::Result<PlanFolder> {
        let name = format!("of-plans-{}-{}", job_name(rendezvous, token), std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        *FOLDER.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(folder.clone());
        Ok(PlanFolder(folder))
    }
}

/// Removes the folder of plans, where this process has made one.
pub fn remove_plans() {
    if let Some(folder) = FOLDER.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
        // What is left of it is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&folder);
    }
}

/// The file in the folder of plans by which rank 0 says that nothing reads its results any more (`| head`): all ranks end quietly.
const NOTHING_READS: &str = "nothing-reads";

/// Says so, where a process of this program started this one.
pub fn say_that_nothing_reads() {
    if let Some(folder) = std::env::var_os(PLANS) {
        // Where it cannot be written, the others say that this rank ended.
        let _ = std::fs::write(PathBuf::from(folder).join(NOTHING_READS), []);
    }
}

/// Whether rank 0 said so.
fn nothing_reads() -> bool {
    said(NOTHING_READS).is_some()
}

/// The file in the folder of plans by which ranks say that they were interrupted, have saved what they had, and end: the number of the signal.
const INTERRUPTED: &str = "interrupted";

/// Says so, where a process of this program started this one.
pub fn say_that_the_job_is_interrupted(signal: u8) {
    if let Some(folder) = std::env::var_os(PLANS) {
        // Where it cannot be written, the launcher says that this rank ended because of the signal.
        let _ = std::fs::write(PathBuf::from(folder).join(INTERRUPTED), [signal]);
    }
}

/// The signal that interrupted the ranks, where they said so.
fn interrupted() -> Option<u8> {
    // Each rank writes the same byte: between the truncation by one and its byte, there is none.
    said(INTERRUPTED).map(|bytes| bytes.first().copied().unwrap_or(SIGTERM as u8))
}

/// What ranks wrote to a file in the folder of plans.
fn said(name: &str) -> Option<Vec<u8>> {
    let folder = FOLDER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    folder.as_ref().and_then(|folder| std::fs::read(folder.join(name)).ok())
}

/// Whether a process ended because the job was interrupted: by itself with the code of the signal, or by the signal where it came early.
pub(super) fn ended_by_interruption(status: ExitStatus) -> bool {
    let signals = [SIGINT, SIGTERM];
    let by_code = status.code().is_some_and(|code| signals.contains(&(code - SIGNAL_CODES)));
    by_code || status.signal().is_some_and(|signal| signal == SIGUSR2 || signals.contains(&signal))
}

impl Drop for PlanFolder {
    fn drop(&mut self) {
        remove_plans();
    }
}

/// Where a rank finds the plans of a training; `None` where each rank compiles them, because no process of this program started it.
pub fn plans(role: &Role) -> Option<RankPlans> {
    let Role::Rank(placement) = role else { return None };
    let folder = std::env::var_os(PLANS).filter(|_| placement.launcher == Launcher::OfOpt)?;
    let compiler = std::env::var(COMPILER).ok()?.parse().ok()?;
    Some(RankPlans { folder: folder.into(), rank: placement.rank as usize, compiler })
}

/// Serves the rendezvous in a thread, at an address or at a free port of loopback. Returns the address.
fn serve(
    ranks: u32,
    address: Option<&str>,
    token: &str,
    tls: Option<Tls>,
    timeout: Duration,
    attempts: Option<Arc<Attempts>>,
) -> Result<String, Diagnostics> {
    let joining = |e: JoinError| Diagnostics::from(join_error(&e));
    let server = match address {
        Some(address) => RendezvousServer::bind_named(address, ranks, token),
        None => RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), ranks, token),
    };
    let server = server.map_err(joining)?.with_tls(tls);
    let address = server.address().map_err(joining)?.to_string();
    // It tells the ranks what is wrong, and they say it. It ends with this process at the latest.
    let serve = move || {
        let served = match &attempts {
            Some(attempts) => server.serve_attempts(timeout, attempts),
            None => server.serve_started(timeout),
        };
        if let Err(error) = served {
            tracing::debug!(%error, "the rendezvous failed");
        }
    };
    let thread = std::thread::Builder::new().name("rendezvous".into()).spawn(serve);
    thread.map_err(|e| error(Code::RUN, format!("a thread cannot be started: {e}")))?;
    Ok(address)
}

/// Prints what a rank writes, line by line, or writes it to its log file.
fn forward(rank: u32, from: impl BufRead, mut log: Option<RankLog>) {
    for line in from.split(b'\n') {
        let Ok(line) = line else { return };
        let line = format!("{}\n", escaped_lines(&String::from_utf8_lossy(&line)));
        let (is_printed, failed) = log.as_mut().map_or((true, None), |log| log.write(&line));
        let failed =
            failed.map(|e| format!("[rank {rank}] the log file cannot be written, so all lines are here: {e}\n"));
        if is_printed && nothing_reads() {
            // It would say that rank 0 ended.
            continue;
        }
        let printed =
            failed.unwrap_or_default() + &if is_printed { format!("[rank {rank}] {line}") } else { String::new() };
        progress::suspend(|| {
            // Where stderr is closed, there is no one to tell.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), printed.as_bytes());
        });
    }
}

pub(super) struct Ranks(pub Vec<Rank>);

impl Ranks {
    /// Waits until all have ended. After a failure the others have a moment, and are killed then.
    fn wait(&mut self, restarts: &mut Restarts<'_>) -> std::io::Result<()> {
        let mut deadline: Option<Instant> = None;
        // Once the job ends because of one rank, no other is started again.
        let mut ends = false;
        while self.0.iter().any(|rank| rank.ended.is_none()) {
            restarts.kill_missing(&mut self.0)?;
            restarts.kill_stopped(&mut self.0)?;
            let is_done = self.0.iter().any(|rank| rank.ended.is_some_and(|status| status.success()));
            for rank in self.0.iter_mut().filter(|rank| rank.ended.is_none()) {
                // Once it is reaped, its number may be that of another process.
                let mut pids = PIDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                rank.ended = rank.child.try_wait()?;
                if rank.ended.is_some() {
                    rank.ended_at = Some(Instant::now());
                    pids.retain(|pid| *pid != rank.child.id());
                }
                drop(pids);
                let Some(status) = rank.ended else { continue };
                if status.success() {
                    restarts.done();
                } else if is_done && signal_of(status).is_some() && restarts.are_allowed() {
                    rank.is_excused = true;
                } else if interrupted().is_some() && ended_by_interruption(status) {
                    // The others end as well, once the snapshot is whole.
                } else if !ends && !restarts.restart(rank, status)? {
                    ends = true;
                    deadline = Some(Instant::now() + GRACE);
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                for rank in self.0.iter_mut().filter(|rank| rank.ended.is_none()) {
                    rank.child.kill()?;
                    rank.killed = true;
                }
                deadline = None;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// The signal that interrupted the ranks, where no rank failed: they saved what they had, or had nothing yet.
    fn interruption(&self) -> Option<i32> {
        let of_launcher = deferral::deferred();
        let signal = of_launcher.or(interrupted().map(i32::from))?;
        let mut failed = self.0.iter().filter_map(|rank| Some((rank, rank.ended.filter(|status| !status.success())?)));
        let is_in_order = |(rank, status): (&Rank, ExitStatus)| rank.killed || ended_by_interruption(status);
        let is_any = failed.clone().next().is_some();
        (is_any && failed.all(is_in_order)).then_some(signal)
    }

    /// How the ranks failed, and the exit code of the first: its own, or 128 and the number of the signal that ended it. Those that a
    /// signal ended, or that were stopped, come first, because the others failed after them; then those that did not end because of
    /// another, as their recordings say.
    fn failure(&self, recordings: Option<&Path>) -> Option<(String, u8)> {
        let of_another = |rank: u32| {
            let log = recordings.and_then(|dir| FlightLog::read(&why_stuck::recording(dir, rank)).ok());
            log.is_some_and(|log| log.phase == Phase::EndedByAnother)
        };
        let mut failed: Vec<(u8, Option<Instant>, String, u8)> = Vec::new();
        for rank in &self.0 {
            let n = rank.number;
            let Some(status) = rank.ended.filter(|status| !status.success() && !rank.is_excused) else {
                continue;
            };
            let code = status.code().unwrap_or(1);
            let (order, what) = match signal_of(status) {
                _ if rank.killed && rank.stopped.is_some() => (0, format!("rank {n} was stopped, and was killed")),
                _ if rank.killed => (3, format!("rank {n} did not end, and was killed")),
                Some(signal) => (0, format!("rank {n} was ended by signal {signal}")),
                None => (1 + u8::from(of_another(n)), format!("rank {n} ended with exit code {code}")),
            };
            let code = status.signal().map_or(code, |signal| SIGNAL_CODES + signal);
            failed.push((order, rank.ended_at, what, u8::try_from(code).unwrap_or(1)));
        }
        failed.sort_by_key(|(order, at, ..)| (*order, *at));
        let code = failed.first()?.3;
        let more = failed.len().saturating_sub(2);
        let named: Vec<String> = failed.into_iter().take(2).map(|(_, _, what, _)| what).collect();
        let more = if more > 0 { format!("; {more} more failed") } else { String::new() };
        Some((named.join("; ") + &more, code))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in self.0.iter_mut().filter(|rank| rank.ended.is_none()) {
            // It may have ended meanwhile.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}
