//! The time of messages and reductions between two ranks on this machine: `cargo run --release -p of-transport --example speed`,
//! with the names of links to measure some.
//! Ranks are processes, as in a job. `mpirun -n 2 target/release/examples/speed` measures MPI.

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use of_plan::{AxisLayout, ElementType, LayoutKind, Runs, Transfer};
use of_runtime::{RankContext, RankTransfer, TransferBlock, Transport};
use of_transport::{Identity, JoinOptions, LinkChoice, Mpi, Placement, ProcessTransport, RendezvousServer, Tls};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a message, and how often it is sent.
const SIZES: [(usize, u32); 5] = [(8, 20_000), (4096, 20_000), (1 << 16, 5000), (1 << 20, 500), (64 << 20, 10)];

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().collect();
    if let [_, link, address, rank] = &args[..] {
        return Ranks::join(link, address, rank.parse()?, None)?.measure();
    }
    if let Some(placement) = Placement::of_environment(&|name| std::env::var(name).ok())? {
        return measure_mpi(&placement);
    }
    let named = |link: &&str| args.len() == 1 || args[1..].iter().any(|name| name == link);
    for link in ["shared-memory", "tcp", "tls"].iter().filter(|link| named(link)).copied() {
        println!("{link}, microseconds:");
        let server = RendezvousServer::bind((Ipv4Addr::LOCALHOST, 0).into(), 2, "token")?.with_tls(tls(link)?);
        let address = server.address()?.to_string();
        let start = |rank: &str| {
            let out = if rank == "0" { Stdio::inherit() } else { Stdio::null() };
            Command::new(&args[0]).args([link, &address, rank]).stdout(out).spawn()
        };
        let ranks = [start("0")?, start("1")?];
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
    Ranks::join("mpi", &invitation.rendezvous, placement.rank, Some((&mpi, &invitation.token)))?.measure()?;
    Ok(mpi.finalize()?)
}

/// This rank's view of both.
struct Ranks {
    me: u32,
    transport: Arc<ProcessTransport>,
}

impl Ranks {
    fn join(link: &str, address: &str, me: u32, mpi: Option<(&Arc<Mpi>, &str)>) -> Result<Ranks, Box<dyn Error>> {
        let token = mpi.map_or("token", |(_, token)| token);
        let identity = Identity::new(me, 2, [0; 32], token).with_tls(tls(link)?);
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
            recorder: None,
        };
        let transport = ProcessTransport::join(&identity, &options)?;
        Ok(Ranks { me, transport: Arc::new(transport) })
    }

    fn measure(&self) -> Outcome {
        let report = |text: String| {
            if self.me == 0 {
                println!("{text}")
            }
        };
        report(format!("{:>12}{:>16}{:>16}", "bytes", "one way", "all-reduce"));
        for (len, times) in SIZES {
            let (mut one_way, mut sum) = (f64::INFINITY, f64::INFINITY);
            for _ in 0..5 {
                one_way = one_way.min(self.ping_pong(len, times / 5)?);
                sum = sum.min(self.all_reduce(len, times / 5)?);
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

    /// Microseconds of a sum of floats over both ranks, which both get.
    fn all_reduce(&self, len: usize, times: u32) -> Result<f64, Box<dyn Error>> {
        let (from, to) = (vec![AxisLayout::of(LayoutKind::Sum)], vec![AxisLayout::of(LayoutKind::Broadcast)]);
        let transfer = Transfer { id: 1, axes: vec![0], dims: vec![len as i64 / 4], from, to };
        let transport = Arc::clone(&self.transport) as Arc<dyn Transport>;
        let context = RankContext::new(self.me, vec![2], transport);
        let transfer = RankTransfer::new(&transfer, &context, ElementType::F32).ok_or("no transfer")?;
        let (source, target) = (self.transport.memory(len)?, self.transport.memory(len)?);
        // SAFETY: both are zeroed, and only the transfer uses them.
        let (source, target) = unsafe {
            let target = std::slice::from_raw_parts_mut(target.as_mut_ptr(), len);
            (std::slice::from_raw_parts(source.as_ptr(), len), target)
        };
        // The first two touch the memory of both ranks.
        transfer.run(source, target)?;
        transfer.run(source, target)?;
        let start = Instant::now();
        for _ in 0..times {
            transfer.run(source, target)?;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(times) * 1e6)
    }
}
