//! The time of messages and reductions between ranks on this machine: `cargo run --release -p of-transport --example speed`,
//! with the names of links to measure some, and a number of ranks for other than two. More than two measure each algorithm of an all-reduce.
//! Ranks are processes, as in a job. `mpirun -n 2 target/release/examples/speed` measures MPI.

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use of_plan::{AllReduce, AxisLayout, ElementType, LayoutKind, Runs, Transfer};
use of_runtime::{RankContext, RankTransfer, TransferBlock, Transport};
use of_transport::{Identity, JoinOptions, LinkChoice, Mpi, Placement, ProcessTransport, RendezvousServer, Tls};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The algorithms of an all-reduce.
const ALGORITHMS: [AllReduce; 3] = [AllReduce::Exchange, AllReduce::ReduceScatter, AllReduce::HalvingDoubling];

/// Bytes of a reduction among more than two ranks, and how often it is made.
const REDUCED: [(usize, u32); 6] =
    [(64, 2000), (4096, 2000), (1 << 14, 1000), (1 << 16, 500), (1 << 20, 100), (16 << 20, 10)];

/// Bytes of a message, and how often it is sent.
const SIZES: [(usize, u32); 5] = [(8, 20_000), (4096, 20_000), (1 << 16, 5000), (1 << 20, 500), (64 << 20, 10)];

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().collect();
    if let [_, link, address, rank, count] = &args[..] {
        return Ranks::join(link, address, (rank.parse()?, count.parse()?), None)?.measure();
    }
    if let Some(placement) = Placement::of_environment(&|name| std::env::var(name).ok())? {
        return measure_mpi(&placement);
    }
    let count: u32 = args[1..].iter().find_map(|arg| arg.parse().ok()).unwrap_or(2);
    let links: Vec<&String> = args[1..].iter().filter(|arg| arg.parse::<u32>().is_err()).collect();
    let named = |link: &&str| links.is_empty() || links.iter().any(|name| name == link);
    for link in ["shared-memory", "tcp", "tls"].iter().filter(|link| named(link)).copied() {
        println!("{link}, microseconds:");
        let server = RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), count, "token")?.with_tls(tls(link)?);
        let address = server.address()?.to_string();
        let start = |rank: u32| {
            let out = if rank == 0 { Stdio::inherit() } else { Stdio::null() };
            Command::new(&args[0]).args([link, &address, &rank.to_string(), &count.to_string()]).stdout(out).spawn()
        };
        let ranks = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
        server.serve(TIMEOUT)?;
        for mut rank in ranks {
            rank.wait()?;
        }
    }
    Ok(())
}

/// The identity of ranks that encrypt.
fn tls(link: &str) -> Result<Option<Tls>, String> {
    (link == "tls").then(|| Tls::of_token("token")).transpose()
}

/// The ranks of mpirun.
fn measure_mpi(placement: &Placement) -> Outcome {
    let mpi = Mpi::start(placement.launcher)?;
    let invitation = mpi.invite(TIMEOUT, |_| Ok(None))?;
    if placement.rank == 0 {
        println!("{}, microseconds:", mpi.version());
    }
    let place = (placement.rank, placement.ranks.unwrap_or(2));
    Ranks::join("mpi", &invitation.rendezvous, place, Some((&mpi, &invitation.token)))?.measure()?;
    Ok(mpi.finalize()?)
}

/// This rank's view of both.
struct Ranks {
    me: u32,
    count: u32,
    transport: Arc<ProcessTransport>,
}

impl Ranks {
    fn join(
        link: &str,
        address: &str,
        (me, count): (u32, u32),
        mpi: Option<(&Arc<Mpi>, &str)>,
    ) -> Result<Ranks, Box<dyn Error>> {
        let token = mpi.map_or("token", |(_, token)| token);
        let identity = Identity::new(me, count, [0; 32], token).with_tls(tls(link)?);
        let options = JoinOptions {
            rendezvous: address.to_owned(),
            serve: false,
            token: Some(token.to_owned()),
            join_timeout: TIMEOUT,
            peer_timeout: TIMEOUT,
            link: match link {
                "shared-memory" => LinkChoice::SharedMemory,
                "mpi" => LinkChoice::Mpi,
                _ => LinkChoice::Tcp,
            },
            mpi: mpi.map(|(mpi, _)| Arc::clone(mpi)),
            ports: None,
            recorder: None,
        };
        let transport = ProcessTransport::join(&identity, &options)?;
        Ok(Ranks { me, count, transport: Arc::new(transport) })
    }

    fn measure(&self) -> Outcome {
        let report = |text: String| {
            if self.me == 0 {
                println!("{text}")
            }
        };
        if self.count > 2 {
            let names = ALGORITHMS.map(|how| format!("{:>20}", format!("{how:?}"))).concat();
            report(format!("{:>12}{names}", "bytes"));
            for (len, times) in REDUCED {
                let mut best = [f64::INFINITY; 3];
                for _ in 0..5 {
                    for (best, how) in best.iter_mut().zip(ALGORITHMS) {
                        *best = best.min(self.all_reduce(len, times / 5, how)?);
                    }
                }
                report(format!("{len:>12}{}", best.map(|us| format!("{us:>20.2}")).concat()));
            }
            return Ok(());
        }
        report(format!("{:>12}{:>16}{:>16}", "bytes", "one way", "all-reduce"));
        for (len, times) in SIZES {
            let (mut one_way, mut sum) = (f64::INFINITY, f64::INFINITY);
            for _ in 0..5 {
                one_way = one_way.min(self.ping_pong(len, times / 5)?);
                sum = sum.min(self.all_reduce(len, times / 5, AllReduce::Exchange)?);
            }
            report(format!("{len:>12}{one_way:>16.2}{sum:>16.2}"));
        }
        Ok(())
    }

    /// Half the microseconds of a message back and forth.
    fn ping_pong(&self, len: usize, times: u32) -> Result<f64, Box<dyn Error>> {
        let memory = self.transport.memory(len)?;
        // SAFETY: the memory is zeroed, and nothing writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), len) };
        let block = Runs::of(&[(0, len)], &[(0, len)]);
        let blocks = [TransferBlock { to: 1 - self.me, bytes, block: &block, element: 1 }];
        let start = Instant::now();
        for id in 0..times {
            for sender in 0..2 {
                let (blocks, from) = if self.me == sender { (&blocks[..], &[][..]) } else { (&[][..], &[sender][..]) };
                self.transport.rendezvous(self.me, id, blocks, from, &mut |_, block| {
                    std::hint::black_box(block.bytes);
                })?;
            }
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(times) / 2.0 * 1e6)
    }

    /// Microseconds of a sum of floats over all ranks, which all get.
    fn all_reduce(&self, len: usize, times: u32, how: AllReduce) -> Result<f64, Box<dyn Error>> {
        let (from, to) = (vec![AxisLayout::of(LayoutKind::Sum)], vec![AxisLayout::of(LayoutKind::Broadcast)]);
        let whole = Transfer { id: 1, axes: vec![0], dims: vec![len as i64 / 4], from, to, ..Transfer::default() };
        let transport = Arc::clone(&self.transport) as Arc<dyn Transport>;
        let context = RankContext::new(self.me, vec![self.count as usize], transport);
        let of = |transfer: &Transfer| RankTransfer::new(transfer, &context, ElementType::F32).ok_or("no transfer");
        let rounds: Vec<RankTransfer> = how.transfers(&whole, self.count).iter().map(of).collect::<Result<_, _>>()?;
        // The source, and the target of each round.
        let lengths = [len].into_iter().chain(rounds.iter().map(|round| round.bytes().1));
        let buffers: Vec<_> =
            lengths.map(|len| Ok((self.transport.memory(len)?, len))).collect::<std::io::Result<_>>()?;
        let run = || -> Outcome {
            for (i, round) in rounds.iter().enumerate() {
                let ((source, source_len), (target, target_len)) = (&buffers[i], &buffers[i + 1]);
                // SAFETY: the memory is zeroed and lives as long as `buffers`, and only this round uses it: source and target are two buffers.
                let (source, target) = unsafe {
                    let target = std::slice::from_raw_parts_mut(target.as_mut_ptr(), *target_len);
                    (std::slice::from_raw_parts(source.as_ptr(), *source_len), target)
                };
                round.run(source, target)?;
            }
            Ok(())
        };
        // The first two touch the memory of all ranks.
        run()?;
        run()?;
        let start = Instant::now();
        for _ in 0..times {
            run()?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(times) * 1e6)
    }
}
