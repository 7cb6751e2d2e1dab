//! What both protocols share: the models, shared memory, limits, and whether the server drains.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::clients::{Client, ClientLimits, Clients};
use crate::error::{ErrorKind, ServeError};
use crate::repository::Repository;
use crate::shared_memory::Regions;
use crate::traces::Traces;

/// Limits on what clients may do.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of a request, and of what it decompresses to.
    pub body: usize,
    /// How long receiving and answering a request may take.
    pub time: Duration,
    /// Connections of all clients.
    pub connections: usize,
    /// Whether clients may name shared memory of this machine.
    pub shared_memory: bool,
    /// How long accepted requests may take after a signal to end.
    pub drain: Duration,
    /// What each client may do.
    pub client: ClientLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 256 << 20,
            time: Duration::from_secs(60),
            connections: 1024,
            shared_memory: true,
            drain: Duration::from_secs(30),
            client: ClientLimits::default(),
        }
    }
}

/// What both protocols share.
pub struct Core {
    /// The models.
    pub repository: Repository,
    /// Shared memory.
    pub regions: Regions,
    /// Limits.
    pub limits: Limits,
    /// The tokens of which requests must have one; without any, requests need none.
    pub tokens: Vec<String>,
    /// Which requests are traced.
    pub traces: Traces,
    /// Whether clients connect by TLS.
    pub tls: bool,
    /// Limits of each client.
    pub clients: Arc<Clients>,
    /// Whether the server ends: it takes no new connections.
    pub draining: AtomicBool,
    /// Open connections.
    pub connections: AtomicU64,
}

impl Core {
    /// Whether every model is loaded and the server takes requests.
    pub fn is_ready(&self) -> bool {
        !self.draining.load(Relaxed) && self.repository.is_ready()
    }

    /// The client of a request, by its header `authorization` and its address.
    ///
    /// # Errors
    /// When a token is needed, and this is another one.
    pub fn authorize(&self, header: Option<&[u8]>, address: Option<IpAddr>) -> Result<Client, ServeError> {
        if self.tokens.is_empty() {
            return Ok(Client::at(address));
        }
        let (scheme, given) = header.and_then(|h| h.split_at_checked(7)).unwrap_or_default();
        // All are compared, whichever is the right one.
        let same = |found, (number, token): (usize, &String)| match same_secret(given, token.as_bytes()) {
            true => Some(number),
            false => found,
        };
        let number = self.tokens.iter().enumerate().fold(None, same);
        if let Some(number) = number.filter(|_| scheme.eq_ignore_ascii_case(b"bearer ")) {
            return Ok(Client::Token(number));
        }
        Err(ServeError::new(ErrorKind::Unauthenticated, "the request has no valid bearer token"))
    }
}

/// Compares secrets in a time that does not depend on where they differ.
fn same_secret(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y)) == 0
}
