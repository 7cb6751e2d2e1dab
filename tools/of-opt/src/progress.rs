//! One line on a terminal that says what takes long. Nothing elsewhere, and nothing for work below a second.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Work that takes less is not worth a line.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the line is written again.
const REFRESH: Duration = Duration::from_millis(150);

/// Whether the line is on the terminal now.
static VISIBLE: AtomicBool = AtomicBool::new(false);

/// Takes the line away, so that something else can be printed.
pub fn clear_line() {
    if VISIBLE.swap(false, Ordering::AcqRel) {
        // What cannot be written to a terminal that is gone does not matter.
        let _ = std::io::stderr().write_all(b"\r\x1b[K");
    }
}

/// What is going on; the line vanishes when this is dropped.
pub struct Progress {
    shared: Arc<Shared>,
    ticker: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    what: String,
    done: Option<(usize, usize)>,
    since: Instant,
    over: bool,
}

/// Tells a [`Progress`] how far the work is; may go to other threads.
#[derive(Clone)]
pub struct Reporter(Arc<Shared>);

impl Progress {
    /// Begins a piece of work.
    pub fn begin(what: &str, quiet: bool) -> Progress {
        tracing::info!("{what}");
        let state = State { what: what.into(), done: None, since: Instant::now(), over: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let on = !quiet && std::io::stderr().is_terminal();
        let for_ticker = Arc::clone(&shared);
        // Without a thread there is no line, which is no reason to stop.
        let ticker = on.then(|| std::thread::Builder::new().spawn(move || for_ticker.tick()).ok()).flatten();
        Progress { shared, ticker }
    }

    /// Something that reports how far the work is.
    pub fn reporter(&self) -> Reporter {
        Reporter(Arc::clone(&self.shared))
    }
}

impl Reporter {
    /// The work is now `what`, and `done` of `all` of it is over.
    pub fn at(&self, what: &str, done: usize, all: usize) {
        let mut s = self.0.lock();
        if s.what != what {
            s.what = what.into();
        }
        s.done = Some((done, all));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is replaced field by field and never left half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) {
        let mut s = self.lock();
        while !s.over {
            let wait = if s.since.elapsed() < PATIENCE { PATIENCE - s.since.elapsed() } else { REFRESH };
            s = self.changed.wait_timeout(s, wait).unwrap_or_else(PoisonError::into_inner).0;
            if !s.over && s.since.elapsed() >= PATIENCE {
                let line = line(&s);
                VISIBLE.store(true, Ordering::Release);
                let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
            }
        }
    }
}

fn line(s: &State) -> String {
    let seconds = s.since.elapsed().as_secs_f64();
    match s.done {
        Some((done, all)) => format!("{} {done}/{all}  {seconds:.1} s", s.what),
        None => format!("{} …  {seconds:.1} s", s.what),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
        if let Some(t) = self.ticker.take() {
            // The ticker cannot panic; if it did, the line stays and that is all.
            let _ = t.join();
        }
        clear_line();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_how_far_the_work_is() {
        let p = Progress::begin("working", true);
        p.reporter().at("compiling kernels", 3, 7);
        let text = line(&p.shared.lock());
        assert!(text.starts_with("compiling kernels 3/7  0."), "{text}");
    }
}
