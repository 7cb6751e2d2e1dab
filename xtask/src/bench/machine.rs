//! The machine and the date of measurements.

use std::process::Command;

use serde_json::{Value, json};

/// Processor, cores, memory, system and date, as far as the system provides them.
pub fn describe() -> Value {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    json!({
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": cores,
        "memory": field("/proc/meminfo", "MemTotal"),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "date": said("date", &["-u", "+%F"]),
        "commit": said("git", &["rev-parse", "--short", "HEAD"]),
    })
}

/// The first line `key : value` of a file.
fn field(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn said(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
