//! MPI for the ranks of mpirun and srun.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use of_diag::{Code, Diagnostics, Renderer};
use of_driver::error;
use of_transport::{Launcher, Mpi, Placement, host_name};

use super::{RankOptions, TlsChoice, TransportChoice, join_error, launch};
use crate::exit;

/// Whether this process is a rank of MPI.
static IS_RANK: AtomicBool = AtomicBool::new(false);

/// When a rank dies, mpirun ends the others with SIGTERM, and kills them a second later. Meanwhile they notice by themselves, and
/// say which one it was.
const GRACE: Duration = Duration::from_millis(600);

/// How long this process may end by itself before a signal ends it.
pub fn grace() -> Option<Duration> {
    IS_RANK.load(Ordering::Acquire).then_some(GRACE)
}

/// Set for a rank that another process of this program started under mpirun.
const SUPERVISED: &str = "OF_SUPERVISED";

/// How long the other ranks have to notice that this one is lost, and to say so, before mpirun kills them.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Whether the transport of ranks is MPI, or they find one another by it.
fn uses_mpi(options: &RankOptions, placement: &Placement) -> bool {
    let is_mpi = matches!(placement.launcher, Launcher::OpenMpi | Launcher::Hydra);
    options.transport == TransportChoice::Mpi || (is_mpi && placement.rendezvous.is_none())
}

/// Whether this process supervises a rank. Hydra kills all ranks when a process that it started dies, before the others can say why
/// they end. So the rank is another process, and this one ends a moment after it.
pub fn is_supervisor(options: &RankOptions, placement: &Placement) -> bool {
    placement.launcher == Launcher::Hydra && uses_mpi(options, placement) && !is_supervised()
}

/// Whether another process supervises this rank.
pub fn is_supervised() -> bool {
    std::env::var_os(SUPERVISED).is_some()
}

/// Starts a rank with this process' arguments, standard streams and connection to mpirun, and waits for its end.
///
/// # Errors
/// When it cannot be started. Where it fails, this process ends with its code.
pub fn supervise(rank: u32) -> Result<(), Diagnostics> {
    let failed = |e: std::io::Error| error(Code::RUN, format!("rank {rank} cannot be started: {e}"));
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    let mut child = command.args(std::env::args_os().skip(1)).env(SUPERVISED, "1").spawn().map_err(failed)?;
    launch::pass_on_to(&child);
    // Its number stays its own until it is reaped.
    let exited = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        // Where this fails, the wait below does, too, and says why.
        let wait = || rustix::process::waitid(rustix::process::WaitId::Pid(pid), exited);
        while wait().is_err_and(|e| e == rustix::io::Errno::INTR) {}
    }
    launch::pass_on_to_none();
    let status = child.wait().map_err(failed)?;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (_, Some(signal)) => {
            // At once: mpirun may end this process before the others have said it.
            let what = format!("rank {rank} (process {} on {}) was ended by signal {signal}", child.id(), host_name());
            let again = "start it again with --resume, where it is a training with --snapshot";
            let ended = error(Code::RUN, what).hint(format!("a job does not go on without one of its ranks; {again}"));
            // Where stderr is closed, there is no one to tell.
            let _ = std::io::stderr().write_all(Renderer::default().render(&ended).as_bytes());
            std::thread::sleep(LAST_WORDS);
            std::process::exit(128 + signal)
        }
        (code, None) => std::process::exit(code.unwrap_or(1)),
    }
}

/// MPI for a rank of a plan of so many ranks; `None` where the ranks do not use it.
///
/// # Errors
/// When MPI was asked for, or the launcher says no rendezvous, and there is no library that serves.
pub fn start(options: &RankOptions, placement: &Placement, ranks: u32) -> Result<Option<Arc<Mpi>>, Diagnostics> {
    let launcher = placement.launcher;
    let is_mpi = matches!(launcher, Launcher::OpenMpi | Launcher::Hydra);
    match options.transport {
        TransportChoice::Mpi if !is_mpi && launcher != Launcher::Slurm => {
            let what = format!("--transport mpi needs ranks that mpirun or srun starts, and {launcher} started these");
            return Err(error(Code::INPUT, what).hint("mpirun -n N of-opt run PLAN --transport mpi").into());
        }
        TransportChoice::Mpi if matches!(options.tls, TlsChoice::Token | TlsChoice::Certificates) => {
            return Err(exit::usage("--transport mpi does not encrypt: --tls goes with tcp").into());
        }
        _ if uses_mpi(options, placement) => {}
        _ => return Ok(None),
    }
    let mpi = Mpi::start(launcher).map_err(|e| {
        let hint = "install the library of mpirun, or let the ranks find one another over TCP: --rendezvous HOST:PORT, the \
                    same on all ranks, a host and a free port of rank 0";
        join_error(&e).hint(hint)
    })?;
    let place = mpi.place();
    if place != (placement.rank, ranks) {
        let (rank, count) = place;
        let what = format!(
            "this process is rank {} of {ranks} for {launcher}, and rank {rank} of {count} for {}",
            placement.rank,
            mpi.version()
        );
        return Err(error(Code::INPUT, what)
            .hint("mpirun and the library must be of one MPI; OF_MPI names a library")
            .into());
    }
    tracing::debug!(library = mpi.version(), "MPI");
    IS_RANK.store(true, Ordering::Release);
    Ok(Some(mpi))
}
