//! The polling thread that detects completion of device work. There is one for the process; it sleeps while nothing is in
//! flight.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use of_runtime::OnComplete;

use crate::driver::{Completion, DriverError};

/// Work enqueued on a device, and its completion callback.
struct Watched {
    work: Arc<dyn Completion>,
    over: OnComplete,
    through: bool,
}

/// The queue of work to poll.
#[derive(Default)]
pub struct Poller {
    come: Mutex<Vec<Watched>>,
    wake: Condvar,
}

impl Poller {
    /// The poller of this process.
    ///
    /// # Errors
    /// When the machine cannot start a thread.
    pub fn get() -> Result<&'static Poller, DriverError> {
        static POLLER: OnceLock<Result<&'static Poller, String>> = OnceLock::new();
        let start = || {
            let poller: &'static Poller = Box::leak(Box::default());
            let thread = std::thread::Builder::new().name("of-cuda-poller".into());
            thread.spawn(|| poller.serve()).map(|_| poller).map_err(|e| e.to_string())
        };
        let failed = |words: &String| DriverError::Call { call: "starting a thread", words: words.clone() };
        POLLER.get_or_init(start).as_ref().copied().map_err(failed)
    }

    /// Calls `over` when the work enqueued on a device has completed.
    pub fn watch(&self, work: Arc<dyn Completion>, over: OnComplete) {
        self.lock().push(Watched { work, over, through: false });
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.come.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut watched: Vec<Watched> = Vec::new();
        loop {
            let mut come = self.lock();
            while watched.is_empty() && come.is_empty() {
                come = self.wake.wait(come).unwrap_or_else(PoisonError::into_inner);
            }
            watched.append(&mut come);
            drop(come);
            // Work that waits for other work on the device was enqueued later. It is polled first, so if it has completed,
            // its dependencies are seen as complete too. Callbacks run in the order of enqueuing.
            watched.iter_mut().rev().for_each(|w| w.through = w.work.is_complete());
            watched.iter().filter(|w| w.through).for_each(|w| (w.over)());
            watched.retain(|w| !w.through);
            std::thread::yield_now();
        }
    }
}
