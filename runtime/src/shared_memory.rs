//! The transport between ranks that are threads of one process.

use crate::device::PublishedBlocks;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::transport::{Chunk, Stopped, TransferBlock, Transport};

/// Ranks that are threads of one process: they read one another's parts in place.
#[derive(Debug)]
pub struct SharedMemory {
    ranks: Vec<PublishedBlocks>,
    stopped: AtomicBool,
    /// How often a rank polls before it sleeps.
    spins: u32,
}

impl SharedMemory {
    /// A transport for so many ranks. They spin for a moment before they sleep if each has a core.
    pub fn new(ranks: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // About a millisecond: a rank that slept arrives later by the time of waking, and then the others sleep too.
        let spins = if ranks <= cores { 1 << 16 } else { 0 };
        Self { ranks: (0..ranks).map(|_| PublishedBlocks::default()).collect(), stopped: AtomicBool::new(false), spins }
    }

    /// Allows rendezvous again after a stop. Only while no rank is in one.
    pub fn restart(&self) {
        self.stopped.store(false, Ordering::SeqCst);
    }

    fn exchange(
        &self,
        (me, id): (u32, u32),
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
        spins: u32,
    ) -> Result<(), Stopped> {
        let own = self.ranks.get(me as usize).ok_or(Stopped)?;
        own.publish(id, blocks, &self.stopped, spins, || {
            for (index, peer) in from.iter().enumerate() {
                let peer = self.ranks.get(*peer as usize).ok_or(Stopped)?;
                peer.receive(id, me, &self.stopped, spins, &mut |block| take(index, block))?;
            }
            Ok(())
        })
    }
}

impl Transport for SharedMemory {
    fn rendezvous(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, TransferBlock<'_>),
    ) -> Result<(), Stopped> {
        self.exchange((me, id), blocks, from, take, self.spins)
    }

    fn rendezvous_in_chunks(
        &self,
        me: u32,
        id: u32,
        blocks: &[TransferBlock<'_>],
        from: &[u32],
        concurrently: bool,
        take: &mut dyn FnMut(Chunk<'_>),
    ) -> Result<(), Stopped> {
        let mut whole = |sender, block: TransferBlock<'_>| take(Chunk::whole(sender, block));
        self.exchange((me, id), blocks, from, &mut whole, if concurrently { 0 } else { self.spins })
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.ranks.iter().for_each(PublishedBlocks::wake);
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use of_plan::Runs;

    use super::*;

    /// Each of `ranks` threads gives the others its number `rounds` times and adds up what it gets.
    fn sums(transport: &SharedMemory, ranks: u32, rounds: u32) -> Vec<Result<u32, Stopped>> {
        let run = |me: u32| {
            let block = Runs::of(&[(0, 1)], &[(0, 1)]);
            let others: Vec<u32> = (0..ranks).filter(|r| *r != me).collect();
            let mut sum = 0;
            for round in 0..rounds {
                let bytes = [me as u8 + round as u8];
                let send = |to: &u32| TransferBlock { to: *to, bytes: &bytes, block: &block, element: 1 };
                let blocks: Vec<_> = others.iter().map(send).collect();
                let mut order = Vec::new();
                transport.rendezvous(me, round + 1, &blocks, &others, &mut |index, received| {
                    order.push(index);
                    sum += u32::from(received.bytes[0]);
                })?;
                assert_eq!(order, (0..others.len()).collect::<Vec<_>>());
            }
            Ok(sum)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..ranks).map(|me| scope.spawn(move || run(me))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_receives_every_block() {
        for ranks in [1, 2, 3, 8] {
            let transport = SharedMemory::new(ranks as usize);
            let all: u32 = (0..ranks).sum();
            let rounds = 100;
            let extra: u32 = (0..rounds).sum();
            let want = |me: u32| Ok((all - me) * rounds + extra * (ranks - 1));
            assert_eq!(sums(&transport, ranks, rounds), (0..ranks).map(want).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_stopped_rank_releases_all_waiting_ranks() {
        let transport = SharedMemory::new(3);
        let (bytes, block) = ([1u8], Runs::of(&[(0, 1)], &[(0, 1)]));
        std::thread::scope(|scope| {
            let waits = |me: u32| {
                let blocks = [TransferBlock { to: 2, bytes: &bytes, block: &block, element: 1 }];
                transport.rendezvous(me, 1, &blocks, &[2], &mut |_, _| ())
            };
            let threads = [0, 1].map(|me| scope.spawn(move || waits(me)));
            std::thread::sleep(std::time::Duration::from_millis(5));
            transport.stop();
            threads.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), Err(Stopped)));
        });
        assert_eq!(transport.rendezvous(2, 1, &[], &[0], &mut |_, _| ()), Err(Stopped));
        transport.restart();
        assert_eq!(sums(&transport, 3, 2), vec![Ok(2 * 3 + 2), Ok(2 * 2 + 2), Ok(2 + 2)]);
    }
}
