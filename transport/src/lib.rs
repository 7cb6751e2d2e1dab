//! Transports between ranks that are processes.
//!
//! [`ProcessTransport::join`] connects a rank to all others: a rendezvous server ([`RendezvousServer`]) tells each rank where the
//! others listen, and is not needed afterwards. Every connection begins with a handshake (`handshake.rs`), in which both ends
//! prove that they know the job's token and say which plan they run. Then they agree on a link for data: processes of one host
//! share memory (`shared.rs`), in which the receiver reads blocks in place; others send frames with checksums (`stream_link.rs`),
//! over TCP or as messages of MPI (`mpi`).
//! A second connection to each rank carries heartbeats and the reason when a rank fails (`monitor.rs`): a rank that died, stopped
//! or was cut off is named by all others, and nothing waits for ever.
//!
//! [`Placement::of_environment`] reads rank and address from what mpirun, srun, torchrun and Kubernetes set.
//!
//! Connections are authenticated, and encrypted where the ranks have an identity for TLS (`tls.rs`). Messages of MPI are not.

mod attempts;
mod blocks;
mod channel;
mod environment;
mod error;
mod exchange;
pub mod fuzzing;
mod group;
mod handshake;
mod local_process;
mod monitor;
mod mpi;
mod peer;
mod process;
mod rendezvous;
mod ring;
mod segment;
mod send_queue;
mod shared;
#[cfg(test)]
mod simulation;
#[cfg(test)]
#[path = "../../plan/tests/common/mod.rs"]
mod simulation_graph;
mod stream;
mod stream_link;
mod tls;
mod wire;

pub use attempts::{Attempts, Waits};
pub use environment::{Launcher, Placement};
pub use error::JoinError;
pub use group::{GroupCanceller, GroupError, GroupOptions, RankGroup, is_worker, serve_rank};
pub use handshake::Identity;
pub use mpi::{Invitation, Mpi};
pub use peer::PeerInfo;
pub use process::{JoinOptions, LinkChoice, ProcessTransport};
pub use rendezvous::RendezvousServer;
pub use tls::{Tls, TlsFiles};

/// What tells a plan from another: a hash of the checksums of its sections.
pub fn plan_hash(plan: &of_plan::PlanFile) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for kind in of_plan::SectionKind::ALL {
        hasher.update(&plan.section_checksum(kind).unwrap_or_default());
    }
    *hasher.finalize().as_bytes()
}

/// A name for the job of ranks that have a rendezvous and a token in common, which does not say the token.
pub fn job_name(rendezvous: &str, token: &str) -> String {
    let hash = blake3::Hasher::new_derive_key("of-transport 2026 job name")
        .update(rendezvous.as_bytes())
        .update(token.as_bytes())
        .finalize();
    hash.to_hex()[..16].to_owned()
}

/// The name of this host.
pub fn host_name() -> String {
    peer::host_name()
}

/// A new token for a job: 32 random bytes in hexadecimal.
///
/// # Errors
/// When the system has no random bytes.
pub fn new_token() -> std::io::Result<String> {
    let mut bytes = [0u8; 32];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    if got != bytes.len() {
        return Err(std::io::Error::other("the system gave too few random bytes"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
