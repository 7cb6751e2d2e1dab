//! Encrypted connections between ranks: equal results, and ends that are refused.
//!
//! The certificates of `data/` are valid for a hundred years; the keys that signed them were not kept. `host.pem` is for
//! 127.0.0.1 and 127.0.0.2, `elsewhere.pem` for another address, and `stranger.pem` is signed by another authority.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use of_plan::Runs;
use of_runtime::{Stopped, TransferBlock, Transport};
use of_transport::{Identity, JoinError, JoinOptions, LinkChoice, ProcessTransport, RendezvousServer, Tls, TlsFiles};

const TIMEOUT: Duration = Duration::from_secs(20);

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// The identity of a host with this certificate, in a job of four ranks whose authority is `ca`.
fn certified(ca: &str, host: &str) -> Tls {
    let files = TlsFiles {
        ca: data(&format!("{ca}.pem")),
        certificate: data(&format!("{host}.pem")),
        key: data(&format!("{host}.key.pem")),
    };
    Tls::of_certificates(&files, vec!["127.0.0.1".into(); 4]).unwrap()
}

fn of_token(token: &str) -> Tls {
    Tls::of_token(token).unwrap()
}

fn server(ranks: u32, tls: Option<Tls>) -> RendezvousServer {
    RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), ranks, "token").unwrap().with_tls(tls)
}

fn options(server: &RendezvousServer) -> JoinOptions {
    JoinOptions {
        rendezvous: server.address().unwrap().to_string(),
        serve: false,
        token: Some("token".into()),
        join_timeout: TIMEOUT,
        peer_timeout: Duration::from_secs(10),
        link: LinkChoice::Tcp,
        mpi: None,
        ports: None,
        recorder: None,
    }
}

/// What `from` sends to `to` in a rendezvous.
fn message(id: u32, from: u32, to: u32) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(u64::from(id) << 32 | u64::from(from) << 16 | u64::from(to));
    let len = match id % 5 {
        0 => 5 << 20,
        1 | 2 => rng.usize(1..200_000),
        3 => 0,
        _ => rng.usize(1..100),
    };
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Every rank sends to every other, in each of some rendezvous.
fn exchange(me: u32, ranks: u32, transport: &ProcessTransport) {
    let others: Vec<u32> = (0..ranks).filter(|other| *other != me).collect();
    for id in 0..25 {
        let sent: Vec<Vec<u8>> = others.iter().map(|to| message(id, me, *to)).collect();
        let runs: Vec<Runs> = sent.iter().map(|bytes| Runs::of(&[(0, bytes.len())], &[(0, bytes.len())])).collect();
        let block = |i: usize| TransferBlock { to: others[i], bytes: &sent[i], block: &runs[i], element: 1 };
        let blocks: Vec<TransferBlock<'_>> = (0..others.len()).map(block).collect();
        let mut got = vec![Vec::new(); others.len()];
        let taken = match id % 2 {
            0 => transport.rendezvous(me, id, &blocks, &others, &mut |from, block| got[from] = block.bytes.to_vec()),
            _ => transport.rendezvous_in_chunks(me, id, &blocks, &others, false, &mut |chunk| {
                assert_eq!(chunk.at, got[chunk.sender].len());
                got[chunk.sender].extend(chunk.block.bytes);
            }),
        };
        taken.unwrap_or_else(|Stopped| panic!("{:?}", transport.reason()));
        let want: Vec<Vec<u8>> = others.iter().map(|from| message(id, *from, me)).collect();
        assert!(got == want, "rank {me}, rendezvous {id}");
    }
}

#[test]
fn encrypted_ranks_get_what_was_sent() {
    for ranks in [2, 4] {
        for tls in [of_token("token"), certified("ca", "host")] {
            let server = server(ranks, Some(tls.clone()));
            std::thread::scope(|scope| {
                scope.spawn(|| server.serve(TIMEOUT).unwrap());
                for rank in 0..ranks {
                    let (server, tls) = (&server, tls.clone());
                    scope.spawn(move || {
                        let identity = Identity::new(rank, ranks, [7; 32], "token").with_tls(Some(tls));
                        exchange(rank, ranks, &ProcessTransport::join(&identity, &options(server)).unwrap());
                    });
                }
            });
        }
    }
}

#[test]
fn an_encrypted_rank_that_fails_tells_the_others_why() {
    let tls = of_token("token");
    let server = server(2, Some(tls.clone()));
    let join = |rank| {
        let identity = Identity::new(rank, 2, [7; 32], "token").with_tls(Some(tls.clone()));
        ProcessTransport::join(&identity, &options(&server)).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(TIMEOUT).unwrap());
        scope.spawn(|| join(1).fail("no memory"));
        let first = join(0);
        assert_eq!(first.rendezvous(0, 9, &[], &[1], &mut |_, _| ()), Err(Stopped));
        let reason = first.reason().unwrap().text;
        assert!(reason.starts_with("rank 1 (process ") && reason.ends_with("failed: no memory"), "{reason}");
    });
}

/// What rank 1 says that joins a job of two ranks with these identities, of which rank 0 does not come.
fn refused(job: Option<Tls>, own: Option<Tls>) -> String {
    let server = server(2, job);
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(Duration::from_secs(2)).unwrap_err());
        let identity = Identity::new(1, 2, [7; 32], "token").with_tls(own);
        let error: JoinError = ProcessTransport::join(&identity, &options(&server)).unwrap_err();
        error.to_string()
    })
}

#[test]
fn other_identities_are_refused() {
    let certified = || Some(certified("ca", "host"));
    for (job, own, words) in [
        (Some(of_token("token")), Some(of_token("another")), "its job token is another"),
        (Some(of_token("token")), None, "it needs TLS, and this rank was started without"),
        (certified(), None, "it needs TLS, and this rank was started without"),
        (None, Some(of_token("token")), "it does not speak TLS"),
        // The server's certificate, which the other end refuses.
        (certified(), Some(self::certified("other-ca", "stranger")), "its certificate is refused"),
        (Some(self::certified("ca", "elsewhere")), certified(), "its certificate is refused"),
        // The rank's own certificate, which the server refuses.
        (certified(), Some(self::certified("ca", "stranger")), "it refuses this rank's certificate"),
        (certified(), Some(of_token("token")), "it refuses this rank's certificate or job token"),
        (Some(of_token("token")), certified(), "it refuses this rank's certificate or job token"),
    ] {
        let text = refused(job.clone(), own.clone());
        assert!(text.contains(words), "{job:?} {own:?}: {text}");
    }
}

/// The proof of the token is made inside of the encrypted connection as well.
#[test]
fn a_certificate_alone_is_not_enough() {
    let server = server(2, Some(certified("ca", "host")));
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(Duration::from_secs(2)).unwrap_err());
        let identity = Identity::new(1, 2, [7; 32], "another").with_tls(Some(certified("ca", "host")));
        let text = ProcessTransport::join(&identity, &options(&server)).unwrap_err().to_string();
        assert!(text.contains("its job token is another"), "{text}");
    });
}

#[test]
fn files_without_certificates_are_errors() {
    let files = |ca: &str, certificate: &str, key: &str| {
        let files = TlsFiles { ca: data(ca), certificate: data(certificate), key: data(key) };
        Tls::of_certificates(&files, Vec::new()).unwrap_err()
    };
    assert!(files("none.pem", "host.pem", "host.key.pem").contains("none.pem' holds no certificates"));
    assert!(files("ca.pem", "host.key.pem", "host.key.pem").contains("host.key.pem' holds no certificates"));
    assert!(files("ca.pem", "host.pem", "host.pem").contains("host.pem' holds no private key"));
    let unfit = files("ca.pem", "host.pem", "stranger.key.pem");
    assert!(unfit.contains("and its key cannot be used"), "{unfit}");
}
