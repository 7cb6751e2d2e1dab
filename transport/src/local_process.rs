//! The process of a rank on this host, as the system sees it: a rank that is silent may only wait for a core.

use of_runtime::flight_recorder::process_start;

use crate::peer::{PeerInfo, host_name};

/// A process of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalProcess {
    pid: u32,
    /// When it started, by the clock of the system: a process with the same number that starts later is another.
    started: u64,
}

impl LocalProcess {
    /// The process of a rank; `None` where it is on another host, or in a container whose processes this one does not see.
    pub fn of(peer: &PeerInfo) -> Option<LocalProcess> {
        if peer.host != host_name() {
            return None;
        }
        // In a container of the same name, the number is that of another process. One that another user started cannot be read.
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        if namespace("self")? != namespace(&peer.pid.to_string())? {
            return None;
        }
        Some(LocalProcess { pid: peer.pid, started: process_start(peer.pid)? })
    }

    /// Whether it runs, sleeps or waits for a core: no signal or debugger has stopped it, and it has not ended.
    pub fn is_going(self) -> bool {
        if process_start(self.pid) != Some(self.started) {
            return false;
        }
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // Source: proc(5): the state follows the name of the program, which is in parentheses.
        let state = stat.rsplit_once(')').and_then(|(_, behind)| behind.trim_start().chars().next());
        !matches!(state, Some('T' | 't' | 'Z' | 'X' | 'x') | None)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    #[test]
    fn stopped_and_ended_processes_do_not_go_on() {
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let address = (Ipv4Addr::LOCALHOST, 1).into();
        let peer = PeerInfo { rank: 1, address, host: host_name(), pid: child.id() };
        let process = LocalProcess::of(&peer).unwrap();
        assert!(process.is_going());
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        // Until it is stopped.
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
        assert!(!process.is_going());
        kill_process(pid, Signal::CONT).unwrap();
        waitpid(Some(pid), WaitOptions::CONTINUED).unwrap();
        assert!(process.is_going());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_going());
        assert!(LocalProcess::of(&peer).is_none());
        assert!(LocalProcess::of(&PeerInfo { host: "elsewhere".into(), pid: std::process::id(), ..peer }).is_none());
    }
}
