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
    /// Rank 0, which serves the rendezvous or runs next to the launcher that does, is not there.
    #[error(
        "rank 0 did not come within {seconds:.0} s: cannot connect to the rendezvous at {address}, where it is expected: {problem}"
    )]
    NoServer {
        /// Where the rendezvous is expected.
        address: String,
        /// How long it was tried.
        seconds: f64,
        /// What the system says.
        problem: String,
    },
    /// No port is free among those that the ranks may listen at.
    #[error("rank {rank} cannot listen for other ranks: no port of {first}-{last} is free on this host ({problem})")]
    NoPort {
        /// The rank.
        rank: u32,
        /// The first port of the range.
        first: u16,
        /// The last one.
        last: u16,
        /// What the system says of the last port that was tried.
        problem: String,
    },
    /// Ranks on several hosts need a token.
    #[error("the rendezvous {0} is not on this host, and there is no job token")]
    NoToken(SocketAddr),
    /// Not all ranks came in time.
    #[error("{} did not join within {seconds:.0} s; the plan's mesh has {ranks} ranks", list(missing))]
    Missing {
        /// The ranks.
        missing: Vec<u32>,
        /// How long they were waited for.
        seconds: f64,
        /// All ranks.
        ranks: u32,
    },
    /// A rank that joined does not connect.
    #[error("{peer} joined, and did not connect within {seconds:.0} s")]
    Unconnected {
        /// The rank, its process and host.
        peer: String,
        /// How long it was waited for.
        seconds: f64,
    },
    /// The rendezvous server ended the job.
    #[error("the rendezvous refused this rank: {0}")]
    Refused(String),
    /// The other ranks have ended the job in order.
    #[error("the job has ended")]
    Over,
    /// A rank was lost while the ranks connected; they join again.
    #[error("a rank was lost while the ranks connected")]
    Interrupted,
    /// The other end is not one of this job's ranks.
    #[error("{peer} is not a rank of this job: {problem}")]
    Stranger {
        /// Its address.
        peer: SocketAddr,
        /// How that is known.
        problem: &'static str,
    },
    /// What listens at the address of the rendezvous is another program.
    #[error("what listens at {address} is no rendezvous of of-opt: {problem}")]
    NoRendezvous {
        /// The address.
        address: SocketAddr,
        /// How that is known.
        problem: &'static str,
    },
    /// The other end of an encrypted connection is not one of this job's ranks, or refuses this one.
    #[error("{peer} is not a rank of this job: {problem}")]
    Tls {
        /// Its address.
        peer: SocketAddr,
        /// How that is known.
        problem: String,
    },
    /// MPI does not serve.
    #[error("MPI cannot be used: {0}")]
    Mpi(String),
    /// The other end uses MPI for data, and this one does not, or the reverse.
    #[error("this rank and {peer} disagree on MPI: give all ranks the same --transport")]
    MpiOfOne {
        /// The other rank.
        peer: String,
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
    /// Whether the ranks of a job that restarts lost ranks may join when they try again.
    pub fn may_pass(&self) -> bool {
        use JoinError::{Interrupted, Io, NoRendezvous, NoServer, Stranger, Unconnected};
        matches!(
            self,
            Interrupted | Io { .. } | NoServer { .. } | NoRendezvous { .. } | Stranger { .. } | Unconnected { .. }
        )
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> JoinError {
        let what = what.into();
        move |source| JoinError::Io { what, source }
    }
}

/// `rank 3`, or `ranks 1, 2 and 5`.
fn list(ranks: &[u32]) -> String {
    /// As many are named.
    const NAMED: usize = 8;
    let named: Vec<String> = ranks.iter().take(NAMED).map(u32::to_string).collect();
    match (&named[..], ranks.len() - named.len()) {
        ([one], _) => format!("rank {one}"),
        ([first @ .., last], 0) => format!("ranks {} and {last}", first.join(", ")),
        (_, more) => format!("ranks {} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_listed() {
        assert_eq!(list(&[3]), "rank 3");
        assert_eq!(list(&[1, 2, 5]), "ranks 1, 2 and 5");
        assert_eq!(list(&(0..20).collect::<Vec<_>>()), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
    }
}
