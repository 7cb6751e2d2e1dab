//! Interruption of long calls: Ctrl-C in Python's main thread, and `Session.cancel`.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How often signals are looked for.
pub const INTERVAL: Duration = Duration::from_millis(20);

thread_local! {
    /// Whether this is Python's main thread, which alone handles signals.
    static IS_MAIN: std::cell::OnceCell<bool> = const { std::cell::OnceCell::new() };
}

/// Whether the caller is Python's main thread.
///
/// # Errors
/// When Python's threads cannot be asked.
pub fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    if let Some(known) = IS_MAIN.with(|cell| cell.get().copied()) {
        return Ok(known);
    }
    let threading = py.import("threading")?;
    let main = threading.call_method0("current_thread")?.is(&threading.call_method0("main_thread")?);
    IS_MAIN.with(|cell| cell.set(main)).ok();
    Ok(main)
}

/// What ends the runs of a session.
pub struct Interrupt {
    start: Instant,
    /// Whether `Session.cancel` was called during a run.
    cancelled: AtomicBool,
    /// Runs in progress.
    running: AtomicUsize,
    /// Whether Python's main thread executes the run.
    main: AtomicBool,
    /// When signals are looked for next, in milliseconds after the start.
    next: AtomicU64,
    /// What a signal raised.
    raised: Mutex<Option<PyErr>>,
}

impl Default for Interrupt {
    fn default() -> Self {
        let (cancelled, main) = (AtomicBool::new(false), AtomicBool::new(false));
        let (running, next) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { start: Instant::now(), cancelled, running, main, next, raised: Mutex::new(None) }
    }
}

impl Interrupt {
    /// Executes a run.
    pub fn during<T>(&self, run: impl FnOnce() -> T) -> T {
        self.running.fetch_add(1, Ordering::AcqRel);
        let result = run();
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.cancelled.store(false, Ordering::Release);
        }
        result
    }

    /// Says which thread executes the next run of a session; its lock is held.
    pub fn executed_by_main(&self, main: bool) {
        self.main.store(main, Ordering::Release);
        if main {
            self.next.store(self.now() + INTERVAL.as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Ends the runs in progress. Without one, this has no effect.
    pub fn cancel(&self) {
        if self.running.load(Ordering::Acquire) > 0 {
            self.cancelled.store(true, Ordering::Release);
        }
    }

    /// What a signal raised in the last run.
    pub fn take_raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Whether a run must end. Called before each task, without Python's lock.
    pub fn ends_run(&self) -> bool {
        if self.cancelled.load(Ordering::Acquire) {
            return true;
        }
        if !self.main.load(Ordering::Acquire) || self.now() < self.next.load(Ordering::Relaxed) {
            return false;
        }
        self.next.store(self.now() + INTERVAL.as_millis() as u64, Ordering::Relaxed);
        let signals = Python::attach(|py| py.check_signals());
        let Err(e) = signals else { return false };
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        true
    }
}
