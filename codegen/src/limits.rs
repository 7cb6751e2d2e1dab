//! Limits on the time and memory of a compilation.
//!
//! They are checked between steps: after each pass, each function's lowering and each kernel. A compiler that runs as a child process is
//! killed at the deadline; a pass is not interrupted. Memory is what this process has more than at the start, without mapped
//! files, at the time of a check. What a step allocates and frees, and the memory of compilers, does not count.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use of_diag::{Code, Diagnostic, Location};

/// Limits of one compilation. The default has none.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    inner: Option<Arc<Inner>>,
    cancelled: Option<Arc<AtomicBool>>,
}

#[derive(Debug)]
struct Inner {
    start: Instant,
    time: Option<Duration>,
    memory: Option<u64>,
    /// Bytes at the start.
    before: u64,
    steps: Mutex<Steps>,
}

/// What the steps so far took.
#[derive(Debug, Default)]
struct Steps {
    /// When the last one ended, after the start.
    end: Duration,
    /// The longest step and its time.
    longest: (Duration, String),
}

impl Limits {
    /// Limits for a compilation that began at `start`; memory grows from now.
    pub fn new(start: Instant, time: Option<Duration>, memory: Option<u64>) -> Limits {
        if time.is_none() && memory.is_none() {
            return Limits::default();
        }
        let before = anonymous_bytes().unwrap_or(0);
        let inner = Inner { start, time, memory, before, steps: Mutex::default() };
        Limits { inner: Some(Arc::new(inner)), cancelled: None }
    }

    /// The same limits for a compilation that ends once `flag` is set.
    pub fn cancelled_by(self, flag: Arc<AtomicBool>) -> Limits {
        Limits { cancelled: Some(flag), ..self }
    }

    /// When the time is over; `None` without a limit.
    pub fn deadline(&self) -> Option<Instant> {
        let inner = self.inner.as_ref()?;
        inner.start.checked_add(inner.time?)
    }

    /// Checks the limits at the end of a step.
    ///
    /// # Errors
    /// When a limit is exceeded, or the compilation was cancelled; the error names the step.
    pub fn check(&self, step: &dyn Fn() -> String) -> Result<(), Diagnostic> {
        if self.cancelled.as_ref().is_some_and(|flag| flag.load(Ordering::Acquire)) {
            let what = format!("the compilation was cancelled after {}", step());
            return Err(Diagnostic::error(Code::LIMIT, Location::Unknown, what));
        }
        let Some(inner) = &self.inner else { return Ok(()) };
        let now = inner.start.elapsed();
        let mut steps = inner.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let took = now.saturating_sub(steps.end);
        steps.end = now;
        if took > steps.longest.0 {
            steps.longest = (took, step());
        }
        if let Some(limit) = inner.time.filter(|limit| now >= *limit) {
            let what =
                format!("the time limit of {limit:?} is over: {} ended after {:.1} s", step(), now.as_secs_f64());
            let (longest, name) = &steps.longest;
            let note = format!("the longest step was {name}, {:.1} s", longest.as_secs_f64());
            let hint = "raise --time-limit; -vv shows the time of each pass";
            return Err(Diagnostic::error(Code::LIMIT, Location::Unknown, what).note(note).hint(hint));
        }
        let grown = anonymous_bytes().unwrap_or(0).saturating_sub(inner.before);
        if let Some(limit) = inner.memory.filter(|limit| grown > *limit) {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let what = format!(
                "the memory limit of {:.1} MiB is exceeded: {:.1} MiB more than at the start after {}",
                mib(limit),
                mib(grown),
                step()
            );
            return Err(Diagnostic::error(Code::LIMIT, Location::Unknown, what).hint("raise --memory-limit"));
        }
        Ok(())
    }
}

/// Resident memory of this process without mapped files. Source: proc(5), `/proc/[pid]/statm`, in pages.
fn anonymous_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut fields = text.split_whitespace().skip(1).map_while(|f| f.parse::<u64>().ok());
    let (resident, shared) = (fields.next()?, fields.next()?);
    Some(resident.saturating_sub(shared) * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_name_the_step_that_exceeds_them() {
        let pass = |name: &'static str| move || format!("pass '{name}'");
        Limits::default().check(&pass("a")).unwrap();
        let long_ago = Instant::now() - Duration::from_secs(60);
        Limits::new(long_ago, Some(Duration::from_secs(90)), Some(1 << 40)).check(&pass("a")).unwrap();
        let over = Limits::new(long_ago, Some(Duration::from_secs(30)), None);
        let e = over.check(&pass("optimize")).unwrap_err();
        assert_eq!(e.code, Code::LIMIT);
        assert!(e.message.contains("30s is over: pass 'optimize'") && e.notes[0].contains("'optimize', 60"), "{e}");

        let flag = Arc::new(AtomicBool::new(false));
        let cancelled = Limits::default().cancelled_by(Arc::clone(&flag));
        cancelled.check(&pass("a")).unwrap();
        flag.store(true, Ordering::Release);
        assert!(cancelled.check(&pass("b")).unwrap_err().message.ends_with("cancelled after pass 'b'"));

        let small = Limits::new(Instant::now(), None, Some(16 << 20));
        small.check(&pass("a")).unwrap();
        let held = vec![1u8; 64 << 20];
        let e = small.check(&pass("b")).unwrap_err();
        assert!(e.message.contains("16.0 MiB is exceeded") && e.message.ends_with("pass 'b'"), "{e}");
        drop(std::hint::black_box(held));
    }
}
