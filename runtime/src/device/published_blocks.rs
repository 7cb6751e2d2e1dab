//! Zero-copy exchange between threads: a rank publishes blocks, and others read them in place while it waits.

use of_plan::Runs;

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};
use crate::transport::{Stopped, TransferBlock};

/// The blocks that a thread publishes: at most one list at a time, each block for one other thread.
#[derive(Debug, Default)]
pub(crate) struct PublishedBlocks {
    state: Mutex<State>,
    changed: Condvar,
    /// The rendezvous number of the blocks, readable without the lock; 0 where there are none.
    open: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    /// The rendezvous number.
    id: u32,
    /// Blocks that are not taken yet.
    blocks: Vec<RawBlock>,
    /// Threads that are reading a block.
    reading: usize,
}

/// A block without its lifetime.
#[derive(Clone, Copy, Debug)]
struct RawBlock {
    to: u32,
    bytes: *const [u8],
    block: *const Runs,
    element: usize,
}

// SAFETY: what the pointers name may be read by any thread, and is read only while the publisher waits in `publish`.
unsafe impl Send for RawBlock {}

impl PublishedBlocks {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        wait(&self.changed, state)
    }

    /// Wakes all waiting threads, so that they see the stop flag.
    pub fn wake(&self) {
        // With the lock, so that a thread that has checked the flag is waiting by now.
        let _state = self.lock();
        self.changed.notify_all();
    }

    /// Publishes `blocks` for a rendezvous while `body` runs and until all are read, or `stopped` is set.
    pub fn publish(
        &self,
        id: u32,
        blocks: &[TransferBlock<'_>],
        stopped: &AtomicBool,
        spins: u32,
        body: impl FnOnce() -> Result<(), Stopped>,
    ) -> Result<(), Stopped> {
        let lent = |o: &TransferBlock<'_>| RawBlock { to: o.to, bytes: o.bytes, block: o.block, element: o.element };
        {
            let mut state = self.lock();
            assert!(state.blocks.is_empty() && state.reading == 0, "a rank is in two rendezvous");
            state.id = id;
            state.blocks.extend(blocks.iter().map(lent));
            self.open.store(id, Ordering::Release);
            self.changed.notify_all();
        }
        // Withdraws the rest and waits for readers, also when the body unwinds.
        let close = Close(self);
        body()?;
        if !blocks.is_empty() {
            spin(spins, || self.open.load(Ordering::Acquire) == 0);
        }
        let mut state = self.lock();
        while !(state.blocks.is_empty() && state.reading == 0) {
            if stopped.load(Ordering::SeqCst) {
                drop(state);
                drop(close);
                return Err(Stopped);
            }
            state = self.wait(state);
        }
        drop(state);
        drop(close);
        if stopped.load(Ordering::SeqCst) { Err(Stopped) } else { Ok(()) }
    }

    /// Waits for the block for `me` of a rendezvous and reads it.
    pub fn receive(
        &self,
        id: u32,
        me: u32,
        stopped: &AtomicBool,
        spins: u32,
        read: &mut dyn FnMut(TransferBlock<'_>),
    ) -> Result<(), Stopped> {
        spin(spins, || self.open.load(Ordering::Acquire) == id);
        let mut state = self.lock();
        let lent = loop {
            if stopped.load(Ordering::SeqCst) {
                return Err(Stopped);
            }
            let mine = if state.id == id { state.blocks.iter().position(|o| o.to == me) } else { None };
            if let Some(at) = mine {
                break state.blocks.swap_remove(at);
            }
            state = self.wait(state);
        };
        state.reading += 1;
        drop(state);
        let _done = Read(self);
        // SAFETY: the block was still there, so its publisher is in `publish`, which returns only when `reading` is back at
        // zero; until then it borrows both, and writes to neither.
        let (bytes, block) = unsafe { (&*lent.bytes, &*lent.block) };
        read(TransferBlock { to: me, bytes, block, element: lent.element });
        Ok(())
    }
}

/// Polls a condition a few times before the thread sleeps.
fn spin(spins: u32, mut done: impl FnMut() -> bool) {
    for _ in 0..spins {
        if done() {
            return;
        }
        crate::sync::spin_loop();
    }
}

/// Ends a read, even one that unwinds.
struct Read<'a>(&'a PublishedBlocks);

impl Drop for Read<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.reading -= 1;
        if state.reading == 0 && state.blocks.is_empty() {
            self.0.open.store(0, Ordering::Release);
            self.0.changed.notify_all();
        }
    }
}

/// Withdraws the blocks.
struct Close<'a>(&'a PublishedBlocks);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.blocks.clear();
        while state.reading > 0 {
            state = self.0.wait(state);
        }
        state.id = 0;
        self.0.open.store(0, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two ranks: what each publishes, and whether they stopped.
    #[derive(Default)]
    struct Ranks([PublishedBlocks; 2], AtomicBool);

    /// A rank gives its number to the other one. Returns what it got.
    fn exchange(ranks: &Ranks, me: usize, id: u32) -> Result<u8, Stopped> {
        let (own, whole) = ([me as u8 + 10 * id as u8], Runs::of(&[(0, 1)], &[(0, 1)]));
        let in_use = AtomicBool::new(true);
        let to = 1 - me;
        let block = TransferBlock { to: to as u32, bytes: &own, block: &whole, element: 1 };
        let mut got = 0;
        let done = ranks.0[me].publish(id, &[block], &ranks.1, 0, || {
            ranks.0[to].receive(id, me as u32, &ranks.1, 0, &mut |block| {
                assert!(in_use.load(Ordering::SeqCst));
                got = block.bytes[0];
            })
        });
        in_use.store(false, Ordering::SeqCst);
        done.map(|()| got)
    }

    #[test]
    fn ranks_exchange_blocks() {
        loom::model(|| {
            let ranks = Arc::new(Ranks::default());
            let own = Arc::clone(&ranks);
            let other = thread::spawn(move || [1, 2].map(|id| exchange(&own, 1, id)));
            assert_eq!([1, 2].map(|id| exchange(&ranks, 0, id)), [Ok(11), Ok(21)]);
            assert_eq!(other.join().unwrap(), [Ok(10), Ok(20)]);
        });
    }

    #[test]
    fn a_stop_ends_the_wait() {
        loom::model(|| {
            let ranks = Arc::new(Ranks::default());
            let own = Arc::clone(&ranks);
            let other = thread::spawn(move || {
                own.1.store(true, Ordering::SeqCst);
                own.0.iter().for_each(PublishedBlocks::wake);
            });
            assert_eq!(exchange(&ranks, 0, 1), Err(Stopped));
            other.join().unwrap();
        });
    }
}
