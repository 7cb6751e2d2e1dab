//! Ranks over shared memory and TCP. Each is a thread here; `of-opt`'s tests run processes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use of_plan::{AllReduce, AxisLayout, ElementType, LayoutKind, Runs, Transfer};
use of_runtime::{Chunk, RankContext, RankTransfer, SharedMemory, Stopped, TransferBlock, Transport};
use of_transport::{Identity, JoinError, JoinOptions, LinkChoice, ProcessTransport, RendezvousServer};

const TIMEOUT: Duration = Duration::from_secs(20);

/// The links of two ranks, in every test.
const LINKS: [LinkChoice; 2] = [LinkChoice::SharedMemory, LinkChoice::Tcp];

fn options(server: &RendezvousServer, token: &str) -> JoinOptions {
    JoinOptions {
        rendezvous: server.address().unwrap().to_string(),
        serve: false,
        token: Some(token.into()),
        join_timeout: TIMEOUT,
        peer_timeout: Duration::from_secs(10),
        link: LinkChoice::Auto,
        mpi: None,
        ports: None,
        recorder: None,
    }
}

fn server(ranks: u32, token: &str) -> RendezvousServer {
    RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), ranks, token).unwrap()
}

/// Runs `work` as each rank, with these choices of links.
fn ranks<T: Send>(links: &[LinkChoice], work: impl Fn(u32, ProcessTransport) -> T + Sync) -> Vec<T> {
    let count = links.len() as u32;
    let server = server(count, "token");
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(TIMEOUT).unwrap());
        let rank = |rank: u32| {
            let (server, work) = (&server, &work);
            scope.spawn(move || {
                let identity = Identity::new(rank, count, [7; 32], "token");
                let options = JoinOptions { link: links[rank as usize], ..options(server, "token") };
                work(rank, ProcessTransport::join(&identity, &options).unwrap())
            })
        };
        let threads: Vec<_> = (0..count).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What `from` sends to `to` in a rendezvous.
fn message(id: u32, from: u32, to: u32, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(u64::from(id) << 32 | u64::from(from) << 16 | u64::from(to));
    (0..len).map(|_| rng.u8(..)).collect()
}

#[test]
fn every_rank_gets_what_was_sent_in_order() {
    const RANKS: u32 = 4;
    let plan: Vec<Vec<(u32, u32, usize)>> = {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut pairs = |_| {
            let all = (0..RANKS).flat_map(|from| (0..RANKS).map(move |to| (from, to)));
            let chosen = all.filter(|(from, to)| from != to).filter(|_| rng.bool()).collect::<Vec<_>>();
            let len = |rng: &mut fastrand::Rng| match rng.u32(0..20) {
                0 => 0,
                1 => 3 << 20,
                2..8 => rng.usize(1..100_000),
                _ => rng.usize(1..100),
            };
            chosen.into_iter().map(|(from, to)| (from, to, len(&mut rng))).collect()
        };
        (0..200).map(&mut pairs).collect()
    };
    use LinkChoice::{Auto, SharedMemory, Tcp};
    // With shared memory, over TCP, and one rank that the others reach over TCP alone.
    for links in [[SharedMemory; 4], [Tcp; 4], [Auto, Auto, Tcp, Auto]] {
        exchange_all(&links, &plan);
    }
}

/// Exchanges what the plan says, for each rendezvous: from, to and length of each message.
fn exchange_all(links: &[LinkChoice], plan: &[Vec<(u32, u32, usize)>]) {
    ranks(links, |me, transport| {
        let shared = links.iter().filter(|link| **link != LinkChoice::Tcp).count();
        let sharing = if links[me as usize] == LinkChoice::Tcp { 0 } else { shared - 1 };
        assert_eq!(transport.sharing().len(), sharing);
        for (id, pairs) in plan.iter().enumerate() {
            let id = id as u32;
            let sent: Vec<(u32, Vec<u8>)> = pairs
                .iter()
                .filter(|(from, ..)| *from == me)
                .map(|(from, to, len)| (*to, message(id, *from, *to, *len)))
                .collect();
            let runs: Vec<Runs> =
                sent.iter().map(|(_, bytes)| Runs::of(&[(0, bytes.len())], &[(0, bytes.len())])).collect();
            let blocks: Vec<TransferBlock<'_>> = sent
                .iter()
                .zip(&runs)
                .map(|((to, bytes), block)| TransferBlock { to: *to, bytes, block, element: 1 })
                .collect();
            let from: Vec<(u32, usize)> =
                pairs.iter().filter(|(_, to, _)| *to == me).map(|(from, _, len)| (*from, *len)).collect();
            let senders: Vec<u32> = from.iter().map(|(from, _)| *from).collect();
            let mut got = Vec::new();
            let taken = transport.rendezvous(me, id, &blocks, &senders, &mut |index, block| {
                got.push((index, block.bytes.to_vec()));
            });
            taken.unwrap_or_else(|Stopped| panic!("{:?}", transport.reason()));
            let want: Vec<(usize, Vec<u8>)> =
                from.iter().enumerate().map(|(i, (from, len))| (i, message(id, *from, me, *len))).collect();
            assert!(got == want, "rank {me}, rendezvous {id}");
        }
    });
}

#[test]
fn blocks_that_are_not_contiguous_are_packed() {
    // Small blocks, and blocks that are too large for a ring: columns of a matrix of `n` rows of 4 elements of two bytes.
    for (link, n) in LINKS.into_iter().flat_map(|link| [(link, 4), (link, 10_000)]) {
        let bytes: Vec<u8> = (0..8 * n).map(|i| i as u8).collect();
        let got = ranks(&[link; 2], |me, transport| {
            let block = Runs::of(&[(0, n), (1, 2)], &[(0, n), (0, 4)]);
            let blocks = [TransferBlock { to: 1, bytes: &bytes, block: &block, element: 2 }];
            let mut got = Vec::new();
            let (blocks, from) = if me == 0 { (&blocks[..], &[][..]) } else { (&[][..], &[0][..]) };
            transport.rendezvous(me, 5, blocks, from, &mut |_, block| got = block.bytes.to_vec()).unwrap();
            got
        });
        let want: Vec<u8> = bytes.chunks(8).flat_map(|row| row[2..6].to_vec()).collect();
        assert!(got[1] == want, "{link:?} {n}");
    }
}

#[test]
fn chunks_come_in_order_with_their_places() {
    let lengths = [0, 1, 100, 70_001, 3 << 20, (5 << 20) + 3];
    for link in LINKS {
        ranks(&[link; 3], |me, transport| {
            let others: Vec<u32> = (0..3).filter(|other| *other != me).collect();
            for (id, len) in (0..).zip(lengths) {
                let sent: Vec<Vec<u8>> = others.iter().map(|to| message(id, me, *to, len)).collect();
                let block = Runs::of(&[(0, len)], &[(0, len)]);
                let send = |(to, bytes): (&u32, _)| TransferBlock { to: *to, bytes, block: &block, element: 1 };
                let blocks: Vec<TransferBlock<'_>> =
                    others.iter().zip(sent.iter().map(Vec::as_slice)).map(send).collect();
                let (mut got, mut chunks) = (vec![Vec::<u8>::new(); 2], 0);
                let mut take = |chunk: Chunk<'_>| {
                    assert_eq!((chunk.at, chunk.of), (got[chunk.sender].len(), len));
                    assert_eq!(chunk.at % Chunk::ALIGN, 0);
                    assert!(chunk.sender == 0 || got[0].len() == len);
                    got[chunk.sender].extend(chunk.block.bytes);
                    assert_eq!(chunk.is_last(), got[chunk.sender].len() == len);
                    chunks += 1;
                };
                let taken = transport.rendezvous_in_chunks(me, id, &blocks, &others, id % 2 == 1, &mut take);
                taken.unwrap_or_else(|Stopped| panic!("{:?}", transport.reason()));
                assert!(chunks == 2 || link == LinkChoice::Tcp && len > 100 && chunks > 2, "{link:?} {len}: {chunks}");
                let want: Vec<Vec<u8>> = others.iter().map(|from| message(id, *from, me, len)).collect();
                assert!(got == want, "{link:?} {len}");
            }
        });
    }
}

/// Every transfer between layouts of a matrix on a mesh of 2 x 2, as each rank's part after it.
fn all_transfers(me: u32, transport: &Arc<dyn Transport>) -> Vec<Vec<f32>> {
    let kinds = [AxisLayout::of(LayoutKind::Broadcast), AxisLayout::of(LayoutKind::Sum)];
    let all: Vec<AxisLayout> = kinds.into_iter().chain([AxisLayout::split(0), AxisLayout::split(1)]).collect();
    let both = || all.iter().flat_map(|a| all.iter().map(|b| vec![*a, *b]));
    let context = RankContext::new(me, vec![2, 2], Arc::clone(transport));
    let mut parts = Vec::new();
    for (from, to) in both().flat_map(|from| both().map(move |to| (from.clone(), to))) {
        // Parts of different sizes; the larger ones do not fit into a ring, and come in several chunks.
        let dims = [[7, 5], [140, 101], [600, 301]][parts.len() % 3].to_vec();
        let transfer = Transfer { id: parts.len() as u32, axes: vec![0, 1], dims, from, to, ..Transfer::default() };
        let transfer = RankTransfer::new(&transfer, &context, ElementType::F32).unwrap();
        let (before, after) = transfer.bytes();
        let source: Vec<u8> = (0..before / 4).flat_map(|i| ((i + 10_000 * me as usize) as f32).to_ne_bytes()).collect();
        let mut target = vec![255; after];
        transfer.run(&source, &mut target).unwrap_or_else(|Stopped| panic!("{:?}", transport.reason()));
        parts.push(target.as_chunks::<4>().0.iter().map(|x| f32::from_ne_bytes(*x)).collect());
    }
    parts
}

#[test]
fn transfers_give_what_they_give_between_threads() {
    let threads: Arc<dyn Transport> = Arc::new(SharedMemory::new(4));
    let want: Vec<Vec<Vec<f32>>> = std::thread::scope(|scope| {
        let rank = |me: u32| {
            let threads = &threads;
            scope.spawn(move || all_transfers(me, threads))
        };
        let ranks: Vec<_> = (0..4).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for link in LINKS {
        let got = ranks(&[link; 4], |me, transport| {
            let transport: Arc<dyn Transport> = Arc::new(transport);
            all_transfers(me, &transport)
        });
        assert!(got == want, "{link:?}");
    }
}

/// The sums of vectors of random lengths over so many ranks, by each algorithm.
fn all_sums(me: u32, ranks: u32, transport: &Arc<dyn Transport>) -> Vec<Vec<f64>> {
    // All ranks have the same lengths, shorter and longer than the number of ranks, and values of their own.
    let mut lengths = fastrand::Rng::with_seed(u64::from(ranks));
    let context = RankContext::new(me, vec![ranks as usize], Arc::clone(transport));
    let mut sums = Vec::new();
    for n in [1, ranks as usize - 1, lengths.usize(10..100), lengths.usize(1000..40_000)] {
        for how in [AllReduce::Exchange, AllReduce::ReduceScatter, AllReduce::HalvingDoubling] {
            let (from, to) = (vec![AxisLayout::of(LayoutKind::Sum)], vec![AxisLayout::of(LayoutKind::Broadcast)]);
            let (id, dims) = (100 * sums.len() as u32, vec![n as i64]);
            let whole = Transfer { id, axes: vec![0], dims, from, to, ..Transfer::default() };
            let mut part: Vec<u8> = values(me, n).iter().flat_map(|x| x.to_ne_bytes()).collect();
            for round in how.transfers(&whole, ranks) {
                let round = RankTransfer::new(&round, &context, ElementType::F64).unwrap();
                let mut next = vec![255; round.bytes().1];
                round
                    .run(&part[..round.bytes().0], &mut next)
                    .unwrap_or_else(|Stopped| panic!("{:?}", transport.reason()));
                part = next;
            }
            sums.push(part.as_chunks::<8>().0.iter().map(|x| f64::from_ne_bytes(*x)).collect());
        }
    }
    sums
}

/// The values of a rank: of different sizes, so that another order of sums has other bits.
fn values(rank: u32, n: usize) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(1000 + u64::from(rank));
    (0..n).map(|_| (rng.f64() - 0.5) * f64::from(1u32 << rng.u32(0..20))).collect()
}

#[test]
fn every_algorithm_gives_all_ranks_the_same_sums() {
    for count in 2..=9u32 {
        let threads: Arc<dyn Transport> = Arc::new(SharedMemory::new(count as usize));
        let of_threads: Vec<Vec<Vec<f64>>> = std::thread::scope(|scope| {
            let threads = &threads;
            let ranks: Vec<_> = (0..count).map(|me| scope.spawn(move || all_sums(me, count, threads))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (case, first) in of_threads[0].iter().enumerate() {
            assert!(of_threads.iter().all(|of_rank| of_rank[case] == *first), "case {case} of {count} ranks");
            let all: Vec<Vec<f64>> = (0..count).map(|rank| values(rank, first.len())).collect();
            for (i, got) in first.iter().enumerate() {
                let (sum, most) = all.iter().fold((0.0, 0.0), |(sum, most), x| (sum + x[i], most + x[i].abs()));
                assert!((got - sum).abs() <= most * 1e-14, "element {i} of case {case} of {count} ranks: {got} {sum}");
                // The first two add in the order of the ranks.
                assert!(case % 3 == 2 || *got == sum, "element {i} of case {case} of {count} ranks: {got} {sum}");
                // The third adds neighbours first.
                if let [a, b, c, d] = &all[..] {
                    assert!(
                        case % 3 != 2 || *got == (a[i] + b[i]) + (c[i] + d[i]),
                        "element {i} of case {case}: {got}"
                    );
                }
            }
        }
        for link in LINKS {
            let got = ranks(&vec![link; count as usize], |me, transport| {
                let transport: Arc<dyn Transport> = Arc::new(transport);
                all_sums(me, count, &transport)
            });
            assert!(got == of_threads, "{link:?} {count}");
        }
    }
}

#[test]
fn a_rank_that_fails_tells_the_others_why() {
    let reasons = LINKS.map(|link| {
        ranks(&[link; 3], |me, transport| {
            if me == 2 {
                transport.fail("no memory");
                return transport.reason().unwrap().text;
            }
            let waited = transport.rendezvous(me, 9, &[], &[2], &mut |_, _| ());
            assert_eq!(waited, Err(Stopped));
            let reason = transport.reason().unwrap();
            assert_eq!(reason.transfer, Some(9));
            reason.text
        })
    });
    for reason in reasons.into_iter().flatten() {
        assert!(reason.starts_with("rank 2 (process ") && reason.ends_with("failed: no memory"), "{reason}");
    }
}

#[test]
fn a_rank_that_left_is_named_by_who_waits_for_it() {
    for link in LINKS {
        let reasons = ranks(&[link; 2], |me, transport| {
            if me == 1 {
                drop(transport);
                return String::new();
            }
            let waited = transport.rendezvous(me, 1, &[], &[1], &mut |_, _| ());
            assert_eq!(waited, Err(Stopped));
            transport.reason().unwrap().text
        });
        assert!(reasons[0].starts_with("rank 1 (process ") && reasons[0].contains("has left"), "{reasons:?}");
    }
}

#[test]
fn what_a_rank_sent_before_it_left_is_taken() {
    for link in LINKS {
        for _ in 0..20 {
            let got = ranks(&[link; 2], |me, transport| {
                let block = Runs::of(&[(0, 8)], &[(0, 8)]);
                let blocks = [TransferBlock { to: 0, bytes: &[5; 8], block: &block, element: 1 }];
                if me == 1 {
                    return transport.rendezvous(me, 1, &blocks, &[], &mut |_, _| ());
                }
                transport.rendezvous(me, 1, &[], &[1], &mut |_, block| assert_eq!(block.bytes, [5; 8]))
            });
            assert_eq!(got, [Ok(()), Ok(())]);
        }
    }
}

#[test]
fn a_rank_that_left_is_named_by_who_sends_it_more_than_fits() {
    let reasons = ranks(&[LinkChoice::SharedMemory; 2], |me, transport| {
        let (bytes, block) = (vec![0u8; 1 << 20], Runs::of(&[(0, 1 << 20)], &[(0, 1 << 20)]));
        let blocks = [TransferBlock { to: 1, bytes: &bytes, block: &block, element: 1 }];
        let sent = if me == 0 { transport.rendezvous(me, 1, &blocks, &[], &mut |_, _| ()) } else { Ok(()) };
        (sent, transport.reason().map(|reason| reason.text))
    });
    assert!(matches!(&reasons[0], (Err(Stopped), Some(text)) if text.contains("has left")), "{reasons:?}");
}

#[test]
fn ranks_of_other_transfers_are_an_error() {
    for link in LINKS {
        let reasons = ranks(&[link; 2], |me, transport| {
            let block = Runs::of(&[(0, 1)], &[(0, 1)]);
            let other = 1 - me;
            let blocks = [TransferBlock { to: other, bytes: &[1], block: &block, element: 1 }];
            // Each is in a rendezvous of its own.
            let met = transport.rendezvous(me, me, &blocks, &[other], &mut |_, _| ());
            (met, transport.reason().map(|reason| reason.text))
        });
        assert!(reasons.iter().any(|(met, text)| {
            *met == Err(Stopped) && text.as_ref().is_some_and(|text| text.contains("is in transfer"))
        }));
    }
}

/// What each of two ranks says with this identity of rank 1.
fn joined(second: impl Fn(&RendezvousServer) -> Result<ProcessTransport, JoinError> + Sync) -> [String; 3] {
    let server = server(2, "token");
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server.serve(Duration::from_secs(4)));
        let first = scope.spawn(|| {
            let identity = Identity::new(0, 2, [7; 32], "token");
            ProcessTransport::join(&identity, &options(&server, "token")).map(drop)
        });
        let other = scope.spawn(|| second(&server).map(drop));
        let text = |result: Result<(), JoinError>| result.err().map_or_else(String::new, |e| e.to_string());
        [text(serving.join().unwrap()), text(first.join().unwrap()), text(other.join().unwrap())]
    })
}

#[test]
fn strangers_and_other_plans_are_refused() {
    let with = |rank, ranks, plan, token: &'static str| {
        move |server: &RendezvousServer| {
            ProcessTransport::join(&Identity::new(rank, ranks, [plan; 32], token), &options(server, token))
        }
    };
    let [served, first, other] = joined(with(1, 2, 7, "another token"));
    assert!(other.contains("its job token is another"), "{other}");
    assert!(served.contains("rank 1 did not join within 4 s"), "{served}");
    assert!(first.contains("rank 1 did not join"), "{first}");
    let [served, first, _] = joined(with(1, 2, 8, "token"));
    assert!(served.contains("runs another plan") && first.contains("runs another plan"), "{served} {first}");
    let [served, ..] = joined(with(0, 2, 7, "token"));
    assert!(served.contains("two processes say that they are rank 0"), "{served}");
    let [served, ..] = joined(with(1, 3, 7, "token"));
    assert!(served.contains("belongs to a job of 3 ranks"), "{served}");
}

#[test]
fn ranks_that_a_launcher_started_may_compile_for_longer_than_they_wait_for_one_another() {
    let server = server(2, "token");
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server.serve_started(Duration::from_secs(2)));
        std::thread::sleep(Duration::from_millis(2500));
        let first = scope.spawn(|| {
            ProcessTransport::join(&Identity::new(0, 2, [7; 32], "token"), &options(&server, "token")).map(drop)
        });
        // It is the first to come from which on the others are waited for.
        let text = first.join().unwrap().unwrap_err().to_string();
        assert!(text.contains("rank 1 did not join within 2 s"), "{text}");
        assert!(serving.join().unwrap().is_err());
    });
}

#[test]
fn noise_at_the_rendezvous_does_not_stop_the_ranks() {
    let server = server(2, "token");
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve(TIMEOUT).unwrap());
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..20 {
            let mut stream = TcpStream::connect(server.address().unwrap()).unwrap();
            let bytes: Vec<u8> = (0..rng.usize(84..200)).map(|_| rng.u8(..)).collect();
            // The server may have closed the connection already.
            let _ = std::io::Write::write_all(&mut stream, &bytes);
        }
        for rank in 0..2 {
            let server = &server;
            scope.spawn(move || {
                let identity = Identity::new(rank, 2, [7; 32], "token");
                ProcessTransport::join(&identity, &options(server, "token")).unwrap()
            });
        }
    });
}

#[test]
fn other_hosts_need_a_token() {
    let identity = Identity::new(0, 2, [7; 32], "");
    let options = JoinOptions {
        rendezvous: "192.0.2.1:9".into(),
        serve: false,
        token: None,
        join_timeout: TIMEOUT,
        peer_timeout: TIMEOUT,
        link: LinkChoice::Auto,
        mpi: None,
        ports: None,
        recorder: None,
    };
    assert!(matches!(ProcessTransport::join(&identity, &options), Err(JoinError::NoToken(_))));
    let options = JoinOptions { rendezvous: "no port".into(), ..options };
    assert!(matches!(ProcessTransport::join(&identity, &options), Err(JoinError::Address { .. })));
}

/// Ports that follow one another, all of them free a moment ago.
fn free_ports(count: u16) -> RangeInclusive<u16> {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let Some(last) = first.checked_add(count - 1) else { continue };
        if (first..=last).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first..=last;
        }
    }
}

#[test]
fn ranks_listen_at_given_ports() {
    let ports = free_ports(2);
    let server = server(2, "token");
    let join = |rank: u32| {
        let options = JoinOptions { ports: Some(ports.clone()), link: LinkChoice::Tcp, ..options(&server, "token") };
        ProcessTransport::join(&Identity::new(rank, 2, [7; 32], "token"), &options)
    };
    let join = &join;
    let transports = std::thread::scope(|scope| {
        scope.spawn(|| server.serve(TIMEOUT).unwrap());
        [0, 1].map(|rank| scope.spawn(move || join(rank).unwrap())).map(|rank| rank.join().unwrap())
    });
    let at = |of: usize| transports[of].peers()[0].address.port();
    assert!(at(0) != at(1) && ports.contains(&at(0)) && ports.contains(&at(1)), "{} and {}", at(0), at(1));
    drop(transports);
    let taken: Vec<TcpListener> = ports.clone().map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap()).collect();
    let error = join(0).unwrap_err();
    let words = format!("no port of {}-{} is free on this host", ports.start(), ports.end());
    assert!(matches!(error, JoinError::NoPort { .. }) && error.to_string().contains(&words), "{error}");
    drop(taken);
}

/// A rendezvous whose port is closed, and one whose host is not known yet.
#[test]
fn port_0_is_no_rendezvous() {
    let options = JoinOptions { rendezvous: "127.0.0.1:0".into(), ..options(&server(2, "token"), "token") };
    let error = ProcessTransport::join(&Identity::new(1, 2, [0; 32], "token"), &options).unwrap_err().to_string();
    assert!(error.contains("'127.0.0.1:0' is no address of a rendezvous: port 0 is none"), "{error}");
}

#[test]
fn a_missing_server_is_a_missing_first_rank() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for address in [closed, "of-rank-0.invalid:29400".into()] {
        let server = server(2, "token");
        let short = Duration::from_millis(200);
        let options = JoinOptions { rendezvous: address.clone(), join_timeout: short, ..options(&server, "token") };
        let error = ProcessTransport::join(&Identity::new(1, 2, [0; 32], "token"), &options).unwrap_err();
        let words = format!("rank 0 did not come within 0 s: cannot connect to the rendezvous at {address}");
        assert!(matches!(error, JoinError::NoServer { .. }) && error.to_string().contains(&words), "{error}");
    }
}

/// Programs that are no rendezvous are named by what they answer. None of them ends the connection for long.
#[test]
fn other_servers_are_no_rendezvous() {
    let answers: [(&[u8], bool, &str); 6] = [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", true, "an HTTP server answers"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", false, "an SSH server answers"),
        (b"220 mail.example ESMTP\r\n", false, "a server for mail or files answers"),
        (b"of-rank\x01", false, "another version of of-opt answers"),
        (b"?", false, "it answers in another protocol"),
        (b"", true, "it ends the connection without an answer"),
    ];
    for (answer, ends, words) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut hello = [0; 88];
                stream.read_exact(&mut hello).unwrap();
                stream.write_all(answer).unwrap();
                if !ends {
                    // Until the rank has gone.
                    let _ = stream.read(&mut hello);
                }
            });
            let options = JoinOptions { rendezvous: address.to_string(), ..options(&server(2, "token"), "token") };
            ProcessTransport::join(&Identity::new(1, 2, [0; 32], "token"), &options).unwrap_err().to_string()
        });
        assert!(
            error.starts_with(&format!("what listens at {address} is no rendezvous of of-opt: {words}")),
            "{error}"
        );
    }
}

/// Some servers say nothing at all, and others wait for a line of text.
#[test]
fn a_server_that_says_nothing_is_no_rendezvous() {
    for (waits_for_line, words) in
        [(false, "it accepts the connection and says nothing"), (true, "an HTTP server answers")]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let error = std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut got = Vec::new();
                let mut bytes = [0; 64];
                while let Ok(n) = stream.read(&mut bytes)
                    && n > 0
                {
                    got.extend_from_slice(&bytes[..n]);
                    if waits_for_line && got.ends_with(b"\r\n\r\n") {
                        stream.write_all(b"HTTP/1.0 400 Bad request syntax\r\n\r\n").unwrap();
                    }
                }
            });
            let options = JoinOptions { rendezvous: address, ..options(&server(2, "token"), "token") };
            ProcessTransport::join(&Identity::new(1, 2, [0; 32], "token"), &options).unwrap_err().to_string()
        });
        assert!(error.ends_with(&format!("is no rendezvous of of-opt: {words}")), "{error}");
    }
}
