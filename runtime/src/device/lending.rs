//! Memory that one thread lends to others while it waits for them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use of_plan::Runs;

use crate::transport::{Offer, Stopped};

/// What a thread lends: at most one list of offers at a time, each to be taken by one other thread.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    state: Mutex<State>,
    changed: Condvar,
    /// The number of what is lent, to look at without the lock; 0 where nothing is.
    open: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    /// The number under which it is lent.
    id: u32,
    /// What nobody has taken yet.
    offers: Vec<Lent>,
    /// Threads that read what they took.
    reading: usize,
}

/// An offer without its lifetime.
#[derive(Clone, Copy, Debug)]
struct Lent {
    to: u32,
    bytes: *const [u8],
    block: *const Runs,
    element: usize,
}

// SAFETY: what the pointers name may be read by any thread, and is read only while the lender waits in `lend`.
unsafe impl Send for Lent {}

impl Lending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all that wait for a change, so that they see that they are to stop.
    pub fn wake(&self) {
        // With the lock, so that whoever looked at the flag before is waiting by now.
        let _state = self.lock();
        self.changed.notify_all();
    }

    /// Lends `offers` under a number while `body` runs and until all of them are taken and read, or `stopped` is set.
    pub fn lend(
        &self,
        id: u32,
        offers: &[Offer<'_>],
        stopped: &AtomicBool,
        spins: u32,
        body: impl FnOnce() -> Result<(), Stopped>,
    ) -> Result<(), Stopped> {
        let lent = |o: &Offer<'_>| Lent { to: o.to, bytes: o.bytes, block: o.block, element: o.element };
        {
            let mut state = self.lock();
            assert!(state.offers.is_empty() && state.reading == 0, "a rank is in two rendezvous");
            state.id = id;
            state.offers.extend(offers.iter().map(lent));
            self.open.store(id, Ordering::Release);
            self.changed.notify_all();
        }
        // Takes back what is left and waits for readers, also when the body unwinds.
        let close = Close(self);
        body()?;
        if !offers.is_empty() {
            spin(spins, || self.open.load(Ordering::Acquire) == 0);
        }
        let mut state = self.lock();
        while !(state.offers.is_empty() && state.reading == 0) {
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

    /// Reads what is lent to `me` under a number, as soon as it is.
    pub fn borrow(
        &self,
        id: u32,
        me: u32,
        stopped: &AtomicBool,
        spins: u32,
        read: &mut dyn FnMut(Offer<'_>),
    ) -> Result<(), Stopped> {
        spin(spins, || self.open.load(Ordering::Acquire) == id);
        let mut state = self.lock();
        let lent = loop {
            if stopped.load(Ordering::SeqCst) {
                return Err(Stopped);
            }
            let mine = if state.id == id { state.offers.iter().position(|o| o.to == me) } else { None };
            if let Some(at) = mine {
                break state.offers.swap_remove(at);
            }
            state = self.wait(state);
        };
        state.reading += 1;
        drop(state);
        let _done = Read(self);
        // SAFETY: the offer was still there, so its lender is in `lend`, which returns only when `reading` is back at
        // zero; until then it borrows both, and writes to neither.
        let (bytes, block) = unsafe { (&*lent.bytes, &*lent.block) };
        read(Offer { to: me, bytes, block, element: lent.element });
        Ok(())
    }
}

/// Looks a few times whether something is so before it is waited for.
fn spin(spins: u32, mut done: impl FnMut() -> bool) {
    for _ in 0..spins {
        if done() {
            return;
        }
        std::hint::spin_loop();
    }
}

/// Ends a reading, even one that unwinds.
struct Read<'a>(&'a Lending);

impl Drop for Read<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.reading -= 1;
        if state.reading == 0 && state.offers.is_empty() {
            self.0.open.store(0, Ordering::Release);
            self.0.changed.notify_all();
        }
    }
}

/// Takes back what was lent.
struct Close<'a>(&'a Lending);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.offers.clear();
        while state.reading > 0 {
            state = self.0.wait(state);
        }
        state.id = 0;
        self.0.open.store(0, Ordering::Release);
    }
}
