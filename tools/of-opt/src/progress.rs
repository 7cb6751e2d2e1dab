//! The progress line on a terminal. It is absent for work below a second. Without a terminal, `-v` logs the progress of long work.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// Shorter work shows no line.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often progress is logged without a terminal.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// How often the line is written again.
const REFRESH: Duration = Duration::from_millis(150);

/// The line that may be on the terminal now.
static CURRENT: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values are replaced as a whole, so a panic leaves no half of one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clears the line while `print` writes something else.
pub fn suspend<T>(print: impl FnOnce() -> T) -> T {
    let bar = lock(&CURRENT).clone();
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Stderr, where a line of progress makes room first.
pub struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A piece of work with a progress line, which is cleared on drop.
pub struct Progress(Reporter);

/// Reports to a [`Progress`] how far the work is; may go to other threads.
#[derive(Clone)]
pub struct Reporter {
    bar: ProgressBar,
    what: Arc<Mutex<String>>,
    /// When progress was logged last; `None` on a terminal.
    logged: Option<Arc<Mutex<Instant>>>,
}

impl Progress {
    /// Begins a piece of work.
    pub fn begin(what: &str, quiet: bool) -> Progress {
        tracing::info!("{what}");
        let what = Arc::new(Mutex::new(what.to_owned()));
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(style(Arc::clone(&what)));
        if !quiet && std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(REFRESH);
            *lock(&CURRENT) = Some(bar.clone());
        }
        let logged = (!std::io::stderr().is_terminal()).then(|| Arc::new(Mutex::new(Instant::now())));
        Progress(Reporter { bar, what, logged })
    }

    /// Something that reports how far the work is.
    pub fn reporter(&self) -> Reporter {
        self.0.clone()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *lock(&CURRENT) = None;
        self.0.bar.finish_and_clear();
    }
}

impl Reporter {
    /// The work is now `what`, and `done` of `all` of it is over.
    pub fn at(&self, what: &str, done: usize, all: usize) {
        let mut current = lock(&self.what);
        if *current != what {
            *current = what.into();
        }
        // The ticker locks the bar first.
        drop(current);
        if let Some(mut last) = self.logged.as_deref().map(lock)
            && last.elapsed() >= LOG_INTERVAL
        {
            *last = Instant::now();
            tracing::info!("{what} {done}/{all}");
        }
        self.bar.update(|s| {
            s.set_len(all as u64);
            s.set_pos(done as u64);
        });
    }
}

/// One line, empty at first.
fn style(what: Arc<Mutex<String>>) -> ProgressStyle {
    let write = move |s: &ProgressState, out: &mut dyn Write| {
        if s.elapsed() >= PATIENCE {
            // Writing to a string cannot fail.
            let _ = out.write_str(&line(&lock(&what), s.len().map(|all| (s.pos(), all)), s.elapsed()));
        }
    };
    ProgressStyle::with_template("{line}").unwrap_or_else(|_| ProgressStyle::default_spinner()).with_key("line", write)
}

fn line(what: &str, done: Option<(u64, u64)>, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    match done {
        Some((done, all)) => format!("{what} {done}/{all}  {seconds:.1} s"),
        None => format!("{what} …  {seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer of logs that keeps them.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn long_work_is_logged_at_intervals_without_a_terminal() {
        let kept = Kept::default();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer({
            let kept = kept.clone();
            move || kept.clone()
        });
        tracing::subscriber::with_default(log.finish(), || {
            let begun = Instant::now().checked_sub(LOG_INTERVAL).unwrap();
            let logged = Some(Arc::new(Mutex::new(begun)));
            let reporter = Reporter { bar: ProgressBar::hidden(), what: Arc::default(), logged };
            reporter.at("compiling kernels", 3, 7);
            reporter.at("compiling kernels", 4, 7);
        });
        let text = String::from_utf8(lock(&kept.0).clone()).unwrap();
        assert!(text.contains("INFO") && text.trim_end().ends_with("compiling kernels 3/7"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn progress_lines_show_the_fraction_done() {
        assert_eq!(
            line("compiling kernels", Some((3, 7)), Duration::from_millis(1250)),
            "compiling kernels 3/7  1.2 s"
        );
        assert_eq!(line("importing", None, Duration::from_secs(2)), "importing …  2.0 s");
    }
}
