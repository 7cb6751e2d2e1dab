//! MPI as a transport: the library that a launcher's ranks have, opened at run time.
//!
//! MPI tells the ranks where their rendezvous is, and carries the bytes of transfers. Heartbeats and reasons go over TCP as in
//! every job (`monitor.rs`), because MPI says nothing of a rank that stopped, and most libraries end the job without a reason
//! when one dies. All calls are made by one thread at a time.

mod library;
mod stream;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use crate::environment::Launcher;
use crate::error::JoinError;
use crate::peer::host_name;
use crate::rendezvous::RendezvousServer;
use crate::tls::Tls;
use library::Calls;
pub(crate) use stream::MpiStream;

/// Bytes that say where the rendezvous is: `HOST:PORT` and the token.
const INVITATION: usize = 512;

/// Bytes by which ranks know whether they are on one host.
const HOST: usize = 32;

/// The library of this process.
static MPI: OnceLock<Result<Arc<Mpi>, String>> = OnceLock::new();

/// Where the ranks of an MPI job come together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// `HOST:PORT` of the rendezvous, which the first rank serves.
    pub rendezvous: String,
    /// The job's token.
    pub token: String,
}

/// MPI in this process.
pub struct Mpi {
    calls: Box<dyn Calls>,
    rank: u32,
    ranks: u32,
    /// Whether this process called `MPI_Init`, so that it calls `MPI_Finalize`.
    is_own: bool,
    /// Set once the job failed: whatever is under way stays so, because its other end may be gone.
    abandoned: AtomicBool,
    finalized: AtomicBool,
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mpi { rank, ranks, .. } = self;
        f.debug_struct("Mpi").field("rank", rank).field("ranks", ranks).finish_non_exhaustive()
    }
}

impl Mpi {
    /// Opens the library of a launcher and initialises it, once in a process. `OF_MPI` names another file.
    ///
    /// # Errors
    /// When there is no library, or it does not serve.
    pub fn start(launcher: Launcher) -> Result<Arc<Mpi>, JoinError> {
        let start = || {
            let calls = library::open(launcher)?;
            let is_own = calls.init()?;
            let (rank, ranks) = calls.place()?;
            let (abandoned, finalized) = (AtomicBool::new(false), AtomicBool::new(false));
            Ok(Arc::new(Mpi { calls, rank, ranks, is_own, abandoned, finalized }))
        };
        MPI.get_or_init(start).clone().map_err(JoinError::Mpi)
    }

    /// Ends the use of the library when the process ends in order. A program that embeds the runtime may make any number of
    /// sessions before.
    pub(crate) fn finalize_at_exit(&self) {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| library::at_exit(finalize));
    }

    /// This process among the ranks of the library, and their number.
    pub fn place(&self) -> (u32, u32) {
        (self.rank, self.ranks)
    }

    /// What library it is.
    pub fn version(&self) -> String {
        self.calls.version()
    }

    /// Where the ranks come together. The first rank makes a token and serves the rendezvous in a thread: at loopback where all
    /// ranks are on its host, else at a free port under the host's name. `tls` gives the identity of the job with this token for
    /// encrypted connections. All ranks call this at the same time.
    ///
    /// # Errors
    /// When the library fails, or the first rank cannot serve.
    pub fn invite(
        &self,
        timeout: Duration,
        tls: impl FnOnce(&str) -> Result<Option<Tls>, String>,
    ) -> Result<Invitation, JoinError> {
        let failed = JoinError::Mpi;
        let hosts = self.calls.gather(own_host().as_bytes()).map_err(failed)?;
        let is_local = hosts.chunks_exact(HOST).all(|host| host == own_host().as_bytes());
        let mut bytes = vec![0; INVITATION];
        let mut served = Ok(());
        if self.rank == 0 {
            match self.serve(is_local, timeout, tls) {
                Ok(Invitation { rendezvous, token }) => {
                    let text = format!("{rendezvous} {token}");
                    let len = text.len().min(INVITATION);
                    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
                }
                // An empty invitation says so to the others.
                Err(error) => served = Err(error),
            }
        }
        self.calls.broadcast(&mut bytes).map_err(JoinError::Mpi)?;
        served?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches('\0').split_once(' ');
        let (rendezvous, token) =
            text.ok_or_else(|| JoinError::Mpi("the first rank could not serve the rendezvous".into()))?;
        Ok(Invitation { rendezvous: rendezvous.into(), token: token.into() })
    }

    fn serve(
        &self,
        is_local: bool,
        timeout: Duration,
        tls: impl FnOnce(&str) -> Result<Option<Tls>, String>,
    ) -> Result<Invitation, JoinError> {
        let token = crate::new_token().map_err(JoinError::io("make a token"))?;
        let tls = tls(&token).map_err(JoinError::Mpi)?;
        let ip = if is_local { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
        let server = RendezvousServer::bind(SocketAddr::from((ip, 0)), self.ranks, &token)?.with_tls(tls);
        let port = server.address()?.port();
        // It tells the ranks what is wrong, and they say it.
        let serve = move || {
            if let Err(error) = server.serve(timeout) {
                tracing::debug!(%error, "the rendezvous failed");
            }
        };
        let thread = std::thread::Builder::new().name("rendezvous".into()).spawn(serve);
        thread.map_err(JoinError::io("start a thread"))?;
        let host = if is_local { Ipv4Addr::LOCALHOST.to_string() } else { host_name() };
        Ok(Invitation { rendezvous: format!("{host}:{port}"), token })
    }

    /// The job failed: no call is made from now on.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// The job ended in order: all ranks call this, and wait for one another. A process that does not is one that failed, for
    /// the launcher.
    ///
    /// # Errors
    /// When the library fails.
    pub fn finalize(&self) -> Result<(), JoinError> {
        if !self.is_own || self.is_abandoned() || self.finalized.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.calls.finalize().map_err(JoinError::Mpi)
    }
}

/// The function for [`Mpi::finalize_at_exit`].
extern "C" fn finalize() {
    if let Some(Ok(mpi)) = MPI.get()
        && let Err(error) = mpi.finalize()
    {
        tracing::warn!(%error, "MPI does not end in order");
    }
}

/// A hash of the boot and the name of this host.
fn own_host() -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(host_name().as_bytes());
    // Without it, the name alone says which host this is.
    hasher.update(&std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default());
    hasher.finalize()
}
