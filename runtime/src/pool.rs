//! The worker pool for parallelism inside of a task.
//!
//! Each worker begins with its own contiguous share of a loop, so that it finds in its own cache what it wrote in the loop
//! before. It takes parts of the share from an atomic counter, then parts of the shares of others.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::device::{JobSlot, Subnormals};
use crate::sync::{Mutex, lock};

/// How long a worker spins for the next job before it sleeps. Kernels follow one another within microseconds; anything
/// longer is a pause, in which the core belongs to others.
const SPIN: Duration = Duration::from_micros(60);
/// Parts for each worker, so that one which is late or slow leaves work to the others.
const PARTS_PER_WORKER: i64 = 4;

/// Threads that share loops. The calling thread takes part as worker 0.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    sleepers: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    /// Held by the caller whose loop the workers share; others run their loops alone.
    busy: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    slot: JobSlot,
    /// The next iteration of each worker's share.
    next: Vec<Cursor>,
    asleep: Vec<AtomicBool>,
    quit: AtomicBool,
    keep_subnormals: bool,
}

/// A counter in cache lines of its own: processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cursor(AtomicI64);

impl Pool {
    /// A pool of so many workers, the caller included; 0 counts as 1. Unless `keep_subnormals`, the workers read and write
    /// subnormal numbers as zeros; callers do so while they hold [`Pool::subnormals`].
    pub fn new(threads: usize, keep_subnormals: bool) -> std::io::Result<Self> {
        let others = threads.saturating_sub(1);
        let asleep = (0..others).map(|_| AtomicBool::new(false)).collect();
        let next = (0..=others).map(|_| Cursor::default()).collect();
        let quit = AtomicBool::new(false);
        let shared = Arc::new(Shared { slot: JobSlot::new(), next, asleep, quit, keep_subnormals });
        let mut pool = Self { shared, sleepers: Vec::new(), handles: Vec::new(), busy: AtomicBool::new(false) };
        for number in 0..others {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("of-worker-{}", number + 1));
            let handle = thread.spawn(move || shared.work(number))?;
            pool.sleepers.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// The workers' treatment of subnormal numbers, in the calling thread until the result is dropped.
    pub(crate) fn subnormals(&self) -> Subnormals {
        self.shared.subnormals()
    }

    /// Workers, the caller included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `f(begin, end, worker)` for parts that together make up `[0, iterations)`, each once. Parts begin at
    /// multiples of `grain`. No two parts of a call run with the same worker number at the same time. When the pool is
    /// busy with another caller's loop, the caller runs the whole loop itself. A panic of `f` is passed on to the caller.
    #[inline]
    pub fn parallel_for<F: Fn(i64, i64, usize) + Sync>(&self, iterations: i64, grain: i64, f: F) {
        if iterations <= 0 {
            return;
        }
        let grain = grain.max(1);
        let alone = self.handles.is_empty() || iterations <= grain || self.busy.swap(true, Ordering::Acquire);
        if alone {
            return f(0, iterations, 0);
        }
        let _unlock = Unlock(&self.busy);
        self.share(iterations, grain, &f);
    }

    fn share<F: Fn(i64, i64, usize) + Sync>(&self, iterations: i64, grain: i64, f: &F) {
        let grains = iterations / grain + i64::from(iterations % grain != 0);
        let (next, workers) = (&self.shared.next, self.threads() as i64);
        let part = (grains / (workers * PARTS_PER_WORKER)).max(1);
        let first = |worker: i64| grains / workers * worker + grains % workers * worker / workers;
        for (worker, cursor) in next.iter().enumerate() {
            cursor.0.store(first(worker as i64), Ordering::Relaxed);
        }
        let panic = Mutex::new(None);
        let job = |worker: usize| {
            let parts = AssertUnwindSafe(|| {
                for owner in (worker..next.len()).chain(0..worker) {
                    let end = first(owner as i64 + 1);
                    loop {
                        let begin = next[owner].0.fetch_add(part, Ordering::Relaxed);
                        if begin >= end {
                            break;
                        }
                        let end = (begin + part).min(end).saturating_mul(grain).min(iterations);
                        f(begin * grain, end, worker);
                    }
                }
            });
            if let Err(payload) = catch_unwind(parts) {
                // The rest of the loop is not needed.
                next.iter().for_each(|cursor| cursor.0.store(grains, Ordering::Relaxed));
                lock(&panic).get_or_insert(payload);
            }
        };
        let helpers = (grains / part).min(self.handles.len() as i64) as usize;
        self.shared.slot.share(&job, || self.wake(helpers), || job(0));
        if let Some(payload) = panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(payload);
        }
    }

    fn wake(&self, helpers: usize) {
        for (asleep, thread) in self.shared.asleep.iter().zip(&self.sleepers).take(helpers) {
            if asleep.load(Ordering::SeqCst) && asleep.swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A worker catches every panic of its jobs, so there is nothing to learn from its end.
            let _ = handle.join();
        }
    }
}

impl Shared {
    fn subnormals(&self) -> Subnormals {
        if self.keep_subnormals { Subnormals::keep() } else { Subnormals::flush() }
    }

    fn work(&self, number: usize) {
        let _mode = self.subnormals();
        // The slot's first job has generation 1.
        let mut seen = 0;
        while let Some(generation) = self.next_job(number, seen) {
            seen = generation;
            self.slot.join(generation, number + 1);
        }
    }

    /// Waits for a job other than `seen`; `None` when the pool ends.
    fn next_job(&self, number: usize, seen: u64) -> Option<u64> {
        loop {
            let start = Instant::now();
            while start.elapsed() < SPIN {
                // The clock is read seldom, so that the wait ends within nanoseconds of the job.
                for _ in 0..64 {
                    if let Some(generation) = self.slot.open_job(seen) {
                        return Some(generation);
                    }
                    std::hint::spin_loop();
                }
            }
            self.asleep[number].store(true, Ordering::SeqCst);
            // A job that was opened before the flag was up wakes no worker, so look again.
            while self.slot.open_job(seen).is_none() && !self.quit.load(Ordering::SeqCst) {
                std::thread::park();
                if !self.asleep[number].load(Ordering::SeqCst) {
                    break;
                }
            }
            self.asleep[number].store(false, Ordering::SeqCst);
            if self.quit.load(Ordering::SeqCst) {
                return None;
            }
        }
    }
}

/// Releases the pool, even when the loop unwinds.
struct Unlock<'a>(&'a AtomicBool);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers_once(pool: &Pool, iterations: i64, grain: i64) {
        let hits: Vec<AtomicI64> = (0..iterations).map(|_| AtomicI64::new(0)).collect();
        pool.parallel_for(iterations, grain, |begin, end, worker| {
            assert!(worker < pool.threads() && begin % grain.max(1) == 0 && begin < end);
            for hit in &hits[begin as usize..end as usize] {
                hit.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn every_iteration_runs_once() {
        for threads in [0, 1, 2, 3, 8] {
            let pool = Pool::new(threads, false).unwrap();
            for iterations in [0, 1, 2, 7, 64, 1000] {
                for grain in [0, 1, 3, 64, 2000] {
                    covers_once(&pool, iterations, grain);
                }
            }
        }
    }

    #[test]
    fn many_small_jobs_with_pauses() {
        let pool = Pool::new(4, false).unwrap();
        for round in 0..3000 {
            covers_once(&pool, 16, 1);
            if round % 500 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn callers_contend() {
        let pool = Pool::new(3, false).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| covers_once(&pool, 33, 2)));
            }
        });
    }

    #[test]
    fn loops_nest() {
        let pool = Pool::new(2, false).unwrap();
        let count = AtomicI64::new(0);
        pool.parallel_for(10, 1, |begin, end, _| {
            pool.parallel_for(5, 1, |b, e, _| {
                count.fetch_add((end - begin) * (e - b), Ordering::Relaxed);
            });
        });
        assert_eq!(count.into_inner(), 50);
    }

    #[test]
    fn panics_reach_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3, false).unwrap();
        for _ in 0..20 {
            let run = || pool.parallel_for(100, 1, |begin, _, _| assert!(begin < 50, "boom"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            covers_once(&pool, 100, 1);
        }
    }

    #[test]
    fn idle_workers_sleep() {
        let pool = Pool::new(3, false).unwrap();
        covers_once(&pool, 100, 1);
        let asleep = || pool.shared.asleep.iter().all(|flag| flag.load(Ordering::SeqCst));
        let start = Instant::now();
        while !asleep() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(asleep());
    }
}
