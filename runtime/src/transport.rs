//! How ranks reach one another: one small trait, of which shared memory is one kind.

use std::sync::atomic::{AtomicBool, Ordering};

use of_plan::Runs;

use crate::device::Lending;

/// A block that a rank gives to another.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// To whom.
    pub to: u32,
    /// The bytes of the whole part that the block lies in.
    pub bytes: &'a [u8],
    /// The block, in elements.
    pub block: &'a Runs,
    /// Bytes of an element.
    pub element: usize,
}

/// Another rank failed, so that this one waits for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another rank stopped")]
pub struct Stopped;

/// A way for ranks to reach one another. Transfers know nothing of how bytes travel: between threads they are read
/// where they lie; a transport between processes packs a block, sends it, and hands over what came.
pub trait Transport: Send + Sync {
    /// Rank `me` meets others at number `id`: gives them `offers`, and hands what each of the ranks `from` gives it to
    /// `take`, in that order, with its place in `from`. Nobody reads the offers any more when this returns.
    ///
    /// # Errors
    /// When a rank stopped, now or before.
    fn rendezvous(
        &self,
        me: u32,
        id: u32,
        offers: &[Offer<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, Offer<'_>),
    ) -> Result<(), Stopped>;

    /// Ends every meeting that ranks wait in, and all to come.
    fn stop(&self);

    /// Whether that was done.
    fn stopped(&self) -> bool;
}

/// Ranks that are threads of one process: they read one another's parts in place.
#[derive(Debug)]
pub struct SharedMemory {
    ranks: Vec<Lending>,
    stopped: AtomicBool,
    /// How often a rank looks before it sleeps.
    spins: u32,
}

impl SharedMemory {
    /// For so many ranks. They spin for a moment before they sleep where each has a core of its own.
    pub fn new(ranks: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // About a millisecond: a rank that slept is late by what waking takes, and then the others sleep until it comes.
        let spins = if ranks <= cores { 1 << 16 } else { 0 };
        Self { ranks: (0..ranks).map(|_| Lending::default()).collect(), stopped: AtomicBool::new(false), spins }
    }

    /// Lets ranks meet again after they were stopped. Only while none is in a meeting.
    pub fn restart(&self) {
        self.stopped.store(false, Ordering::SeqCst);
    }
}

impl Transport for SharedMemory {
    fn rendezvous(
        &self,
        me: u32,
        id: u32,
        offers: &[Offer<'_>],
        from: &[u32],
        take: &mut dyn FnMut(usize, Offer<'_>),
    ) -> Result<(), Stopped> {
        let own = self.ranks.get(me as usize).ok_or(Stopped)?;
        own.lend(id, offers, &self.stopped, self.spins, || {
            for (place, peer) in from.iter().enumerate() {
                let peer = self.ranks.get(*peer as usize).ok_or(Stopped)?;
                peer.borrow(id, me, &self.stopped, self.spins, &mut |offer| take(place, offer))?;
            }
            Ok(())
        })
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.ranks.iter().for_each(Lending::wake);
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of `ranks` threads gives the others its number `rounds` times and adds up what it gets.
    fn sums(transport: &SharedMemory, ranks: u32, rounds: u32) -> Vec<Result<u32, Stopped>> {
        let run = |me: u32| {
            let block = Runs::of(&[(0, 1)], &[(0, 1)]);
            let others: Vec<u32> = (0..ranks).filter(|r| *r != me).collect();
            let mut sum = 0;
            for round in 0..rounds {
                let bytes = [me as u8 + round as u8];
                let offer = |to: &u32| Offer { to: *to, bytes: &bytes, block: &block, element: 1 };
                let offers: Vec<_> = others.iter().map(offer).collect();
                let mut order = Vec::new();
                transport.rendezvous(me, round + 1, &offers, &others, &mut |place, offer| {
                    order.push(place);
                    sum += u32::from(offer.bytes[0]);
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
    fn everybody_gets_what_everybody_gives() {
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
    fn a_rank_that_stops_frees_all_that_wait() {
        let transport = SharedMemory::new(3);
        let (bytes, block) = ([1u8], Runs::of(&[(0, 1)], &[(0, 1)]));
        std::thread::scope(|scope| {
            let waits = |me: u32| {
                let offers = [Offer { to: 2, bytes: &bytes, block: &block, element: 1 }];
                transport.rendezvous(me, 1, &offers, &[2], &mut |_, _| ())
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
