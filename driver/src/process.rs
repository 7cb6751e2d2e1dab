//! What this process took from the machine.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process.
pub fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Resident memory of this process without mapped files, in bytes; `None` where the system does not report it.
pub fn anonymous_bytes() -> Option<u64> {
    Some(status_kib("RssAnon:")? * 1024)
}

/// Resets the peak of resident memory, and returns the bytes that are resident now; `None` where the system supports neither.
///
/// Source: proc(5), `clear_refs`.
pub fn restart_peak() -> Option<u64> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    resident_bytes()
}

/// Resident memory of this process, in bytes; `None` where the system does not report it.
pub fn resident_bytes() -> Option<u64> {
    Some(status_kib("VmRSS:")? * 1024)
}

/// The most bytes that this process had resident, since [`restart_peak`] if that was called.
pub fn peak_bytes() -> Option<u64> {
    Some(status_kib("VmHWM:")? * 1024)
}

fn status_kib(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(field))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// The most memory that this process had resident, in MB of 2^20 bytes; `None` where the system does not report it.
pub fn peak_rss_mb() -> Option<f64> {
    Some((peak_bytes()? as f64 / 1_048_576.0 * 10.0).round() / 10.0)
}

/// The name of the processor, as the system gives it.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|(_, n)| n.trim().to_owned()));
    name.unwrap_or_else(|| std::env::consts::ARCH.into())
}
