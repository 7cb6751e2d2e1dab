//! Compilers as child processes that end with this process, however it ends.
//!
//! Each compiler leads a process group, so that its own children (`cc1`, `as`) can be killed with it. While compilers run, so does
//! one supervisor: a shell that reads the groups from a pipe. When this process dies, even by SIGKILL, the pipe closes, and the
//! shell kills the groups that are left. `PR_SET_PDEATHSIG` would reach the compiler but not its children, and would fire when the
//! thread that started it ends.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::scratch;

/// The supervisor: `+ GROUP` and `- GROUP` add and remove a process group.
const SUPERVISOR: &str = r#"
groups=
while read -r event group; do
  case $event in
    +) groups="$groups $group " ;;
    -) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done
"#;

/// Starts a compiler when the supervisor knows its group. It does not start if this process dies before.
const STARTER: &str = r#"read -r go && exec "$@" </dev/null"#;

/// How long [`stop`] waits for killed compilers.
const GRACE: Duration = Duration::from_secs(2);

struct Supervisor {
    child: Child,
    pipe: Option<ChildStdin>,
}

/// The process groups of running compilers.
#[derive(Default)]
struct Running {
    groups: BTreeSet<i32>,
    /// No compiler starts any more.
    stopped: bool,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { groups: BTreeSet::new(), stopped: false });

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No value is left half changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the supervisor running. It is shared by all compilers of the process, and ends with the last handle.
#[derive(Clone)]
pub struct Handle(Arc<Mutex<Supervisor>>);

impl Handle {
    /// The running supervisor, or a new one.
    ///
    /// # Errors
    /// When there is no shell.
    pub fn new() -> io::Result<Handle> {
        static CURRENT: Mutex<Weak<Mutex<Supervisor>>> = Mutex::new(Weak::new());
        let mut current = lock(&CURRENT);
        if let Some(running) = current.upgrade() {
            return Ok(Handle(running));
        }
        let mut shell = Command::new("/bin/sh");
        // Its own group: an interrupt from the terminal does not reach it.
        shell.args(["-c", SUPERVISOR]).process_group(0);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let pipe = child.stdin.take();
        let new = Arc::new(Mutex::new(Supervisor { child, pipe }));
        *current = Arc::downgrade(&new);
        Ok(Handle(new))
    }

    fn tell(&self, event: char, group: i32) {
        let mut supervisor = lock(&self.0);
        let sent = supervisor.pipe.as_mut().map(|p| p.write_all(format!("{event} {group}\n").as_bytes()));
        if let Some(Err(e)) = sent {
            // Compilers run without it, but survive if this process is killed.
            tracing::debug!(error = %e, "the supervisor of compilers is gone");
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.pipe = None;
        // It ends when the pipe closes.
        let _ = self.child.wait();
    }
}

/// A compiler that ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended; `None` if it was killed at the deadline.
    pub status: Option<ExitStatus>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// Runs a compiler in `folder` until `deadline`. Its output goes through files in the folder.
///
/// # Errors
/// When it cannot be started.
pub fn run(words: &[String], folder: &Path, deadline: Instant, handle: &Handle) -> io::Result<Finished> {
    let (out, err) = (folder.join("stdout"), folder.join("stderr"));
    let mut starter = Command::new("/bin/sh");
    starter.args(["-c", STARTER, "sh"]).args(words).process_group(0).current_dir(folder);
    starter.stdin(Stdio::piped()).stdout(std::fs::File::create(&out)?).stderr(std::fs::File::create(&err)?);
    let mut child = starter.spawn()?;
    let group = i32::try_from(child.id()).unwrap_or(i32::MAX);
    add(group);
    handle.tell('+', group);
    if let Some(mut pipe) = child.stdin.take() {
        // Where this fails, the starter has ended, and `wait` says how.
        let _ = pipe.write_all(b"\n");
    }
    let status = wait(child, group, deadline);
    handle.tell('-', group);
    remove(group);
    let text = |path| std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_string());
    Ok(Finished { status: status?, stdout: text(&out)?, stderr: text(&err)? })
}

/// How the process ends; at the deadline its group is killed.
fn wait(mut child: Child, group: i32, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    let (ended, end) = mpsc::channel();
    let waiter = std::thread::Builder::new().name("compiler".into()).spawn(move || {
        // Without a receiver nothing reads it.
        let _ = ended.send(child.wait());
    })?;
    let status = match end.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(status) => status.map(Some),
        Err(_) => {
            kill(group);
            Ok(None)
        }
    };
    // It ends with the process, and does not panic.
    let _ = waiter.join();
    status
}

fn kill(group: i32) {
    if let Some(group) = Pid::from_raw(group) {
        // Where it fails, the group has ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn add(group: i32) {
    let mut running = lock(&RUNNING);
    if running.stopped {
        drop(running);
        kill(group);
        never();
    }
    running.groups.insert(group);
}

fn remove(group: i32) {
    let mut running = lock(&RUNNING);
    running.groups.remove(&group);
    if running.stopped {
        drop(running);
        never();
    }
}

/// Holds a thread whose compilation was stopped until the process exits: its result would be reported as a failure.
fn never() -> ! {
    loop {
        std::thread::park();
    }
}

/// Kills all compilers and removes their folders, for a program that is about to exit because of a signal. Compilations in
/// progress never return.
pub fn stop() {
    let mut running = lock(&RUNNING);
    running.stopped = true;
    running.groups.iter().copied().for_each(kill);
    drop(running);
    let until = Instant::now() + GRACE;
    while !lock(&RUNNING).groups.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    scratch::remove_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, seconds: u64) -> Finished {
        let folder = tempfile::tempdir().unwrap();
        let words = ["/bin/sh", "-c", script].map(String::from);
        let deadline = Instant::now() + Duration::from_secs(seconds);
        run(&words, folder.path(), deadline, &Handle::new().unwrap()).unwrap()
    }

    #[test]
    fn output_and_status_come_back() {
        let done = sh("echo out; echo err >&2; read -r line || exit 3", 60);
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out", "err"));
        assert_eq!(done.status.unwrap().code(), Some(3));
    }

    #[test]
    fn the_deadline_kills_children_of_the_compiler() {
        let done = sh("sleep 1000 & echo $!; wait", 2);
        assert!(done.status.is_none());
        let child: i32 = done.stdout.parse().unwrap();
        let ended = || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, state)| state.trim_start().starts_with('Z'))
        };
        let until = Instant::now() + Duration::from_secs(60);
        while !ended() {
            assert!(Instant::now() < until, "the child of the compiler runs on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The supervisor as a process of its own, whose pipe closes as if this process had died.
    #[test]
    fn the_supervisor_kills_the_groups_that_are_left() {
        let group = || {
            let mut sleep = Command::new("sleep");
            sleep.arg("1000").process_group(0).spawn().unwrap()
        };
        let (mut left, mut removed, mut last) = (group(), group(), group());
        let mut shell = Command::new("/bin/sh").args(["-c", SUPERVISOR]).stdin(Stdio::piped()).spawn().unwrap();
        let mut pipe = shell.stdin.take().unwrap();
        for group in [&left, &removed, &last] {
            writeln!(pipe, "+ {}", group.id()).unwrap();
        }
        writeln!(pipe, "- {}", removed.id()).unwrap();
        drop(pipe);
        assert!(shell.wait().unwrap().success());
        assert!(left.wait().unwrap().code().is_none() && last.wait().unwrap().code().is_none());
        assert!(removed.try_wait().unwrap().is_none());
        removed.kill().unwrap();
        removed.wait().unwrap();
    }
}
