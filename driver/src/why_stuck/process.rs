//! What the process of a rank does, by the system.

use of_runtime::flight_recorder::{FlightLog, process_start};

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs, or sleeps.
    Runs,
    /// A signal or a debugger stopped it.
    Stopped,
    /// There is no such process any more.
    Gone,
    /// The rank is on another host, or has no recording.
    Unknown,
}

impl ProcessState {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            ProcessState::Runs => "runs",
            ProcessState::Stopped => "stopped",
            ProcessState::Gone => "gone",
            ProcessState::Unknown => "unknown",
        }
    }
}

/// The state of the process that wrote a recording.
pub fn state(log: &FlightLog) -> ProcessState {
    if log.of.host != rustix::system::uname().nodename().to_string_lossy() {
        return ProcessState::Unknown;
    }
    if process_start(log.pid) != Some(log.started) {
        return ProcessState::Gone;
    }
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", log.pid)).unwrap_or_default();
    // Source: proc(5): the state follows the name of the program, which is in parentheses.
    match stat.rsplit_once(')').and_then(|(_, behind)| behind.trim_start().chars().next()) {
        Some('T' | 't') => ProcessState::Stopped,
        Some('Z' | 'X') | None => ProcessState::Gone,
        Some(_) => ProcessState::Runs,
    }
}
