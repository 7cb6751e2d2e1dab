//! A job that borrows from its caller's stack and is shared with worker threads.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Cell, spin_loop, yield_now};

/// The place through which a caller shares a job. The state word holds a generation (high half), whether the job is
/// open, and how many workers are inside. Workers enter only while it is open; the caller closes it and waits until
/// none is inside before its borrow ends. A worker that wakes up late finds the job closed and touches nothing, so the
/// caller never waits for threads that the system has not scheduled.
#[derive(Debug)]
pub(crate) struct JobSlot {
    state: AtomicU64,
    job: Cell<Option<JobRef>>,
}

/// A job without its lifetime.
#[derive(Clone, Copy, Debug)]
struct JobRef {
    data: *const (),
    run: unsafe fn(*const (), usize),
}

const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;
const GENERATION: u64 = 1 << 32;

// SAFETY: `job` is written only by `share`, while the slot is closed with no thread inside, and read only by workers that
// entered while it was open; the state word orders the two.
unsafe impl Sync for JobSlot {}
// SAFETY: the reference in a closed slot is never used.
unsafe impl Send for JobSlot {}

impl JobSlot {
    pub fn new() -> Self {
        Self { state: AtomicU64::new(0), job: Cell::new(None) }
    }

    /// Shares `job` with the workers while `body` runs, and returns (or unwinds) when no worker is in it any more.
    /// Panics when another caller shares at this time; the pool's lock rules that out.
    pub fn share<J: Fn(usize) + Sync>(&self, job: &J, wake: impl FnOnce(), body: impl FnOnce()) {
        let closed = self.state.load(Ordering::Acquire);
        // Claiming the slot by counting oneself in makes two callers at once impossible, whoever holds which lock.
        assert!(closed & (OPEN | INSIDE) == 0, "a job is shared already");
        let claimed = self.state.compare_exchange(closed, closed + 1, Ordering::AcqRel, Ordering::Relaxed);
        assert!(claimed.is_ok(), "a job is shared already");
        // SAFETY: the slot was closed and empty, and only this caller is inside now, so no other thread accesses the job.
        self.job.with_mut(|own| unsafe { *own = Some(JobRef { data: (&raw const *job).cast(), run: run::<J> }) });
        self.state.store(closed.wrapping_add(GENERATION) | OPEN, Ordering::SeqCst);
        let close = Close(self);
        wake();
        body();
        drop(close);
    }

    /// The generation of the job that is open now, if it is not `seen`.
    pub fn open_job(&self, seen: u64) -> Option<u64> {
        let state = self.state.load(Ordering::SeqCst);
        (state & OPEN != 0 && state / GENERATION != seen).then_some(state / GENERATION)
    }

    /// Runs the open job of that generation as a worker; returns at once when it is closed by now.
    pub fn join(&self, generation: u64, worker: usize) {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & OPEN == 0 || state / GENERATION != generation {
                return;
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        let leave = Leave(self);
        // SAFETY: this worker entered while the job was open, so `share` has written the job before (acquired with the
        // state) and will not return, nor will anybody write to it, until this worker leaves.
        if let Some(job) = self.job.with(|own| unsafe { *own }) {
            // SAFETY: `data` is the `J` that `run` was made for, alive and shared as `share` is still in its body.
            unsafe { (job.run)(job.data, worker) };
        }
        drop(leave);
    }
}

/// Calls a job of type `J`.
///
/// # Safety
/// `data` must point to a live `J`.
unsafe fn run<J: Fn(usize) + Sync>(data: *const (), worker: usize) {
    // SAFETY: the caller's promise.
    let job = unsafe { &*data.cast::<J>() };
    job(worker);
}

/// Closes the job and waits for the workers, even when the body unwinds.
struct Close<'a>(&'a JobSlot);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        const SPINS: u32 = 1 << 12;
        self.0.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.0.state.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            // A worker inside may have lost its core to someone else.
            if spins < SPINS { spin_loop() } else { yield_now() }
        }
    }
}

/// Leaves the job, even when it unwinds.
struct Leave<'a>(&'a JobSlot);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A job's data: an access after the job has ended would not be ordered.
    struct Data(Cell<u32>);

    // SAFETY: loom reports accesses that are not ordered.
    unsafe impl Sync for Data {}

    impl Data {
        fn check(&self, round: u32) {
            // SAFETY: loom reports a write at the same time.
            self.0.with(|value| assert_eq!(unsafe { *value }, round));
        }
    }

    #[test]
    fn a_job_ends_before_its_data() {
        loom::model(|| {
            let slot = Arc::new(JobSlot::new());
            let own = Arc::clone(&slot);
            let worker = thread::spawn(move || {
                let mut seen = 0;
                for _ in 0..2 {
                    if let Some(generation) = own.open_job(seen) {
                        own.join(generation, 1);
                        seen = generation;
                    }
                }
            });
            for round in 0..2 {
                let data = Data(Cell::new(round));
                let job = |_: usize| data.check(round);
                slot.share(&job, || (), || job(0));
                // SAFETY: loom reports another access at the same time.
                data.0.with_mut(|value| unsafe { *value = 9 });
            }
            worker.join().unwrap();
        });
    }
}
