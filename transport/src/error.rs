//! Errors of ranks that join.

use std::net::SocketAddr;

/// Why a rank could not join the others.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The address of the rendezvous has no host or port, or the host is not known.
    #[error("'{address}' is no address of a rendezvous: {problem}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Ranks on several hosts need a token.
    #[error("the rendezvous {0} is not on this host, and there is no job token")]
    NoToken(SocketAddr),
    /// Not all ranks came in time.
    #[error("{missing} did not join within {seconds:.0} s; the plan's mesh has {ranks} ranks")]
    Missing {
        /// The ranks, as text.
        missing: String,
        /// How long they were waited for.
        seconds: f64,
        /// All ranks.
        ranks: u32,
    },
    /// The rendezvous server ended the job.
    #[error("the rendezvous refused this rank: {0}")]
    Refused(String),
    /// The other end is not one of this job's ranks.
    #[error("{peer} is not a rank of this job: {problem}")]
    Stranger {
        /// Its address.
        peer: SocketAddr,
        /// How that is known.
        problem: &'static str,
    },
    /// The other end runs another plan.
    #[error("rank {rank} at {peer} runs another plan than this rank; give all ranks the same file")]
    Plan {
        /// The other rank.
        rank: u32,
        /// Its address.
        peer: SocketAddr,
    },
    /// The other end has another number of ranks.
    #[error("rank {rank} at {peer} belongs to a job of {theirs} ranks, and this one has {ours}")]
    Ranks {
        /// The other rank.
        rank: u32,
        /// Its address.
        peer: SocketAddr,
        /// Ranks of its job.
        theirs: u32,
        /// Ranks of this job.
        ours: u32,
    },
    /// Two processes are the same rank.
    #[error("two processes say that they are rank {rank}: {first} and {second}")]
    Twice {
        /// The rank.
        rank: u32,
        /// The first one's address.
        first: SocketAddr,
        /// The second one's address.
        second: SocketAddr,
    },
    /// Two ranks cannot share memory, which was asked for.
    #[error("this rank shares no memory with {peer}: {problem}")]
    NoSharedMemory {
        /// The other rank.
        peer: String,
        /// Why.
        problem: String,
    },
    /// The network failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl JoinError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> JoinError {
        let what = what.into();
        move |source| JoinError::Io { what, source }
    }
}
