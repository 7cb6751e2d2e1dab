//! The time of messages between two ranks over TCP on this machine: `cargo run --release -p of-transport --example ping_pong`.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use of_plan::Runs;
use of_runtime::{TransferBlock, Transport};
use of_transport::{Identity, JoinError, JoinOptions, RendezvousServer, TcpTransport};

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    for (len, times) in [(8, 20_000), (4096, 20_000), (1 << 20, 200), (64 << 20, 5)] {
        let server = RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), 2, "token")?;
        let address = server.address()?.to_string();
        let seconds = std::thread::scope(|scope| {
            let other = scope.spawn(|| rank(1, &address, len, times));
            let first = scope.spawn(|| rank(0, &address, len, times));
            server.serve(TIMEOUT)?;
            other.join().map_err(|_| "rank 1 panicked")??;
            first.join().map_err(|_| "rank 0 panicked")?.map_err(Box::<dyn std::error::Error + Send + Sync>::from)
        })?;
        println!("{len} B: {:.2} us one way", seconds / f64::from(times) / 2.0 * 1e6);
    }
    Ok(())
}

/// Sends a message back and forth. Returns the seconds that it took.
fn rank(me: u32, rendezvous: &str, len: usize, times: u32) -> Result<f64, JoinError> {
    let (rendezvous, token) = (rendezvous.to_owned(), Some("token".to_owned()));
    let options = JoinOptions { rendezvous, serve: false, token, join_timeout: TIMEOUT, peer_timeout: TIMEOUT };
    let transport = TcpTransport::join(&Identity::new(me, 2, [0; 32], "token"), &options)?;
    let (bytes, block) = (vec![1u8; len], Runs::of(&[(0, len)], &[(0, len)]));
    let blocks = [TransferBlock { to: 1 - me, bytes: &bytes, block: &block, element: 1 }];
    let start = Instant::now();
    for id in 0..times {
        for sender in 0..2 {
            let (blocks, from) = if me == sender { (&blocks[..], &[][..]) } else { (&[][..], &[sender][..]) };
            if transport.rendezvous(me, id, blocks, from, &mut |_, _| ()).is_err() {
                eprintln!("{:?}", transport.reason());
                std::process::exit(1);
            }
        }
    }
    Ok(start.elapsed().as_secs_f64())
}
