//! The sessions of this process, for a dump of their actors while they run.

use std::sync::{Arc, LazyLock, Weak};

use of_plan::Program;

use super::{FlightLog, actors};
use crate::sync::{Mutex, lock};
use crate::thread::Shared;

/// Sessions that exist. A dump comes from a thread that knows none of them.
static SESSIONS: LazyLock<Mutex<Sessions>> = LazyLock::new(Mutex::default);

type Sessions = Vec<(Option<u32>, Weak<Shared>)>;

/// A session, as it was a moment ago.
pub struct LiveSession {
    /// The rank, where it is one of several.
    pub rank: Option<u32>,
    shared: Arc<Shared>,
    log: FlightLog,
}

/// Notes a session.
pub(crate) fn register(rank: Option<u32>, session: &Arc<Shared>) {
    let mut sessions = lock(&SESSIONS);
    sessions.retain(|(_, session)| session.strong_count() > 0);
    sessions.push((rank, Arc::downgrade(session)));
}

/// The sessions of this process, without the programs of branches and loops, which run inside of tasks.
pub fn live_sessions() -> Vec<LiveSession> {
    let sessions = lock(&SESSIONS).clone();
    let session = |(rank, session): (Option<u32>, Weak<Shared>)| {
        let shared = session.upgrade()?;
        let log = shared.recorder.snapshot().ok()?;
        Some(LiveSession { rank, shared, log })
    };
    sessions.into_iter().filter_map(session).collect()
}

impl LiveSession {
    /// Its program.
    pub fn program(&self) -> &Program {
        self.shared.program()
    }

    /// Its recording; the table of tasks alone, where its rank is not a process.
    pub fn log(&self) -> &FlightLog {
        &self.log
    }

    /// Every actor, register and credit as text.
    pub fn describe(&self) -> String {
        let rank = self.rank.map_or(String::new(), |rank| format!("rank {rank}, "));
        let program = self.program();
        match self.log.program {
            Some((_, other)) if other != self.shared.program => {
                format!("{rank}program `{}` is idle: the rank runs another\n", program.name)
            }
            _ => rank + &actors::describe(program, &self.log.tasks, self.log.steps_of_program()),
        }
    }
}
