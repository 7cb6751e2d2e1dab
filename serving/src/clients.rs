//! Limits of each client: how many requests it may send in a second, and have at the same time.
//!
//! A client is who has a bearer token, or, without tokens, who has an address. Its bucket holds a second's requests.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::error::{ErrorKind, ServeError};
use crate::sync::lock;

/// What each client may do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClientLimits {
    /// Requests a second.
    pub rate: Option<f64>,
    /// Requests at the same time.
    pub concurrency: Option<usize>,
}

/// Who sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// Who has the token of this number.
    Token(usize),
    /// Who has this address.
    Address(IpAddr),
}

/// The clients that were seen lately.
#[derive(Debug, Default)]
pub struct Clients {
    limits: ClientLimits,
    table: Mutex<HashMap<Client, State>>,
    /// Requests that were refused, because of the rate and of the number at the same time.
    refused: [AtomicU64; 2],
}

#[derive(Debug)]
struct State {
    /// Requests that it may send at once.
    bucket: f64,
    filled: Instant,
    running: usize,
}

/// A request of a client, as long as it runs.
#[derive(Debug)]
pub struct Running {
    clients: Arc<Clients>,
    client: Client,
}

impl Client {
    /// The client at an address. A network of IPv6 that one customer gets is one client.
    pub fn at(address: Option<IpAddr>) -> Client {
        Client::Address(match address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
            v4 => v4,
        })
    }
}

impl Clients {
    /// Clients with these limits.
    pub fn new(limits: ClientLimits) -> Clients {
        Clients { limits, ..Clients::default() }
    }

    /// Takes a request of a client. `None` where there are no limits.
    ///
    /// # Errors
    /// When the client has sent too many, or has too many that run; the error says when to try again.
    pub fn admit(self: &Arc<Self>, client: Client) -> Result<Option<Running>, ServeError> {
        let ClientLimits { rate, concurrency } = self.limits;
        if rate.is_none() && concurrency.is_none() {
            return Ok(None);
        }
        let now = Instant::now();
        let mut table = lock(&self.table);
        let full = rate.map_or(1.0, |rate| rate.max(1.0));
        let state = table.entry(client).or_insert(State { bucket: full, filled: now, running: 0 });
        if let Some(most) = concurrency.filter(|most| state.running >= *most) {
            self.refused[1].fetch_add(1, Relaxed);
            let what = format!("the client has {most} requests that run, as many as it may have");
            return Err(refused(what, Duration::from_secs(1)));
        }
        if let Some(rate) = rate {
            state.fill(rate, now);
            if state.bucket < 1.0 {
                self.refused[0].fetch_add(1, Relaxed);
                let wait = Duration::try_from_secs_f64((1.0 - state.bucket) / rate).unwrap_or(Duration::MAX);
                return Err(refused(format!("the client has sent more than {rate} requests a second"), wait));
            }
            state.bucket -= 1.0;
        }
        state.running += 1;
        Ok(Some(Running { clients: Arc::clone(self), client }))
    }

    /// Forgets clients that could send as much if they were new.
    pub fn forget_quiet(&self) {
        let now = Instant::now();
        lock(&self.table).retain(|_, state| {
            if let Some(rate) = self.limits.rate {
                state.fill(rate, now);
            }
            state.running > 0 || self.limits.rate.is_some_and(|rate| state.bucket < rate.max(1.0))
        });
    }

    /// Requests that were refused, by the reason.
    pub fn refused(&self) -> [(&'static str, u64); 2] {
        [("rate", self.refused[0].load(Relaxed)), ("concurrency", self.refused[1].load(Relaxed))]
    }
}

impl State {
    fn fill(&mut self, rate: f64, now: Instant) {
        let time = now.saturating_duration_since(self.filled).as_secs_f64();
        self.bucket = (self.bucket + time * rate).min(rate.max(1.0));
        self.filled = now;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(state) = lock(&self.clients.table).get_mut(&self.client) {
            state.running = state.running.saturating_sub(1);
        }
    }
}

fn refused(what: String, wait: Duration) -> ServeError {
    let mut error = ServeError::new(ErrorKind::Exhausted, format!("{what}; try again later"));
    error.retry_after = Some(wait);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_buckets_of_their_own() {
        let clients = Arc::new(Clients::new(ClientLimits { rate: Some(0.001), concurrency: None }));
        let (a, b) = (Client::Token(0), Client::Token(1));
        assert!(clients.admit(a).unwrap().is_some());
        let error = clients.admit(a).unwrap_err();
        assert!(error.retry_after.unwrap() > Duration::from_secs(900) && error.kind == ErrorKind::Exhausted);
        assert!(clients.admit(b).is_ok());
        assert_eq!(clients.refused(), [("rate", 1), ("concurrency", 0)]);
        clients.forget_quiet();
        assert!(clients.admit(a).is_err(), "a client with an empty bucket is not forgotten");
    }

    #[test]
    fn requests_that_end_make_room() {
        let clients = Arc::new(Clients::new(ClientLimits { rate: None, concurrency: Some(2) }));
        let a = Client::at(Some("2001:db8::1".parse().unwrap()));
        assert_eq!(a, Client::at(Some("2001:db8::2:1".parse().unwrap())), "they are in one network");
        assert_eq!(Client::at(Some("::ffff:10.0.0.1".parse().unwrap())), Client::at(Some("10.0.0.1".parse().unwrap())));
        let (one, _two) = (clients.admit(a).unwrap(), clients.admit(a).unwrap());
        assert!(clients.admit(a).is_err());
        drop(one);
        assert!(clients.admit(a).is_ok());
        clients.forget_quiet();
        assert_eq!(lock(&clients.table).len(), 1);
    }

    #[test]
    fn without_limits_there_is_no_table() {
        let clients = Arc::new(Clients::default());
        assert!(clients.admit(Client::Token(0)).unwrap().is_none() && lock(&clients.table).is_empty());
    }
}
