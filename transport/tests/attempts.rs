//! Ranks that join again after one was lost.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use of_plan::Runs;
use of_runtime::{TransferBlock, Transport};
use of_transport::{Attempts, Identity, JoinError, JoinOptions, LinkChoice, ProcessTransport, RendezvousServer};

const TIMEOUT: Duration = Duration::from_secs(20);

/// The server of a job, in a thread that ends with the test's process.
fn serve(ranks: u32, timeout: Duration) -> (String, Arc<Attempts>) {
    let server = RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), ranks, "token").unwrap();
    let address = server.address().unwrap().to_string();
    let attempts = Arc::<Attempts>::default();
    let shared = Arc::clone(&attempts);
    std::thread::spawn(move || server.serve_attempts(timeout, &shared));
    (address, attempts)
}

fn join(address: &str, rank: u32, ranks: u32, link: LinkChoice) -> Result<ProcessTransport, JoinError> {
    let options = JoinOptions {
        rendezvous: address.to_owned(),
        serve: false,
        token: Some("token".into()),
        join_timeout: TIMEOUT,
        peer_timeout: Duration::from_secs(10),
        link,
        mpi: None,
        ports: None,
        recorder: None,
    };
    ProcessTransport::join(&Identity::new(rank, ranks, [7; 32], "token"), &options)
}

/// Sends the number of the attempt to the other rank. Returns what came.
fn exchange(transport: &ProcessTransport) -> u8 {
    let (me, bytes) = (transport.rank(), [transport.attempt() as u8]);
    let block = Runs::of(&[(0, 1)], &[(0, 1)]);
    let blocks = [TransferBlock { to: 1 - me, bytes: &bytes, block: &block, element: 1 }];
    let mut got = u8::MAX;
    transport.rendezvous(me, 0, &blocks, &[1 - me], &mut |_, block| got = block.bytes[0]).unwrap();
    got
}

#[test]
fn ranks_join_as_often_as_they_come() {
    for link in [LinkChoice::SharedMemory, LinkChoice::Tcp] {
        let (address, attempts) = serve(2, TIMEOUT);
        for attempt in 0..3 {
            std::thread::scope(|scope| {
                for rank in 0..2 {
                    let address = &address;
                    scope.spawn(move || {
                        let transport = join(address, rank, 2, link).unwrap();
                        assert_eq!((transport.attempt(), exchange(&transport)), (attempt, attempt as u8));
                    });
                }
            });
        }
        assert!(attempts.waits().is_none());
        attempts.over();
        assert!(matches!(join(&address, 1, 2, link), Err(JoinError::Over)));
    }
}

#[test]
fn ranks_that_wait_are_refused() {
    let (address, attempts) = serve(2, TIMEOUT);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| join(&address, 1, 2, LinkChoice::Auto));
        while attempts.waits().is_none_or(|waits| waits.missing != [0]) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!attempts.waits().unwrap().again);
        attempts.refuse("all restarts are used");
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(&error, JoinError::Refused(why) if why == "all restarts are used"), "{error}");
        assert!(!error.may_pass());
    });
}

#[test]
fn ranks_that_do_not_come_are_named_and_may_come_later() {
    let (address, _) = serve(2, Duration::from_millis(200));
    let error = join(&address, 0, 2, LinkChoice::Auto).unwrap_err();
    assert!(matches!(&error, JoinError::Missing { missing, .. } if *missing == [1]), "{error}");
    // Those of the first attempt were waited for in vain; the ranks join in the next one.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| join(&address, 0, 2, LinkChoice::Auto).unwrap().attempt());
        assert_eq!(join(&address, 1, 2, LinkChoice::Auto).unwrap().attempt(), 1);
        assert_eq!(other.join().unwrap(), 1);
    });
}
