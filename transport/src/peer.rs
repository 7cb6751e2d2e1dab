//! Where another rank is.

use std::fmt;
use std::net::SocketAddr;

/// A rank's process, as the rendezvous knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The rank.
    pub rank: u32,
    /// Where it listens.
    pub address: SocketAddr,
    /// The name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (process {} on {})", self.rank, self.pid, self.host)
    }
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
