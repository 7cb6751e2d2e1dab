//! The flight recorder: what the ranks of a job did last, and the state of every actor, for whoever asks why they are stuck.
//!
//! A recording has a table with a word for each task (how often it acted, and whether it is acting), and a ring of records. A rank
//! that is a process has it in a mapped file, so it can be read while the rank runs, and after it was killed. Every other session
//! has the table alone, in memory. A record is written without locks; one that was not written whole is known by its last word.

mod actors;
mod layout;
mod live;
mod log;
mod ring;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::UNIX_EPOCH;

pub use actors::{ActorState, RegisterState, Wait, actors, describe, registers};
pub use layout::{Event, Phase};
pub use live::{LiveSession, live_sessions};
pub use log::{FlightLog, LogError, Record, TaskState};

pub(crate) use live::register;

use crate::clock::{Instant, SystemTime, process_id};
use crate::device::EventMemory;
use layout::{HEADER, RECORD, word};

/// Records of a ring in a file: 2 MiB.
const CAPACITY: usize = 1 << 16;

/// Whose recording it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingOf {
    /// The rank.
    pub rank: u32,
    /// Ranks of its job.
    pub ranks: u32,
    /// The name of its host.
    pub host: String,
    /// The hash of its plan.
    pub plan_hash: [u8; 32],
    /// The file of its plan.
    pub plan: Option<PathBuf>,
}

/// Records what a rank does.
#[derive(Debug)]
pub struct FlightRecorder {
    memory: EventMemory,
    tasks: usize,
    /// Records of the ring less one; `None` where there is no ring.
    mask: Option<u64>,
    clock: Clock,
}

/// What records take their time from.
#[derive(Debug)]
enum Clock {
    /// The processor's counter, where it counts at one rate.
    #[cfg(target_arch = "x86_64")]
    TimeStamp,
    /// Nanoseconds since the recorder was made.
    Since(Instant),
}

impl Clock {
    fn new() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
            let has = |name: &str| flags.split_whitespace().any(|flag| flag == name);
            if has("constant_tsc") && has("nonstop_tsc") {
                return Clock::TimeStamp;
            }
        }
        Clock::Since(Instant::now())
    }

    #[inline]
    fn now(&self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Clock::TimeStamp => crate::device::time_stamp(),
            Clock::Since(start) => start.elapsed().as_nanos() as u64,
        }
    }
}

impl FlightRecorder {
    /// A recording in a file of a rank, which replaces an older one, for programs of up to so many tasks.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: &Path, of: &RecordingOf, tasks: usize) -> io::Result<FlightRecorder> {
        let memory = EventMemory::file(path, HEADER + tasks + CAPACITY * RECORD)?;
        let recorder = Self::with(memory, tasks, CAPACITY, of);
        recorder.synchronize(word::CLOCK);
        Ok(recorder)
    }

    /// The table of a session's tasks, in memory.
    pub(crate) fn in_memory(tasks: usize) -> io::Result<FlightRecorder> {
        Ok(Self::with(EventMemory::anonymous(HEADER + tasks)?, tasks, 0, &RecordingOf::default()))
    }

    fn with(memory: EventMemory, tasks: usize, capacity: usize, of: &RecordingOf) -> FlightRecorder {
        let set = |at: usize, value: u64| memory.word(at).store(value, Relaxed);
        set(word::VERSION, layout::VERSION);
        set(word::CAPACITY, capacity as u64);
        set(word::TASKS, tasks as u64);
        set(word::RANK, u64::from(of.rank) | u64::from(of.ranks) << 32);
        set(word::PID, u64::from(process_id()));
        set(word::STARTED, process_start(process_id()).unwrap_or(0));
        memory.store_bytes(word::PLAN_HASH, &of.plan_hash);
        text(&memory, word::HOST, layout::MAX_HOST, &of.host);
        let plan = of.plan.as_deref().and_then(Path::to_str).filter(|plan| plan.len() <= layout::MAX_PLAN);
        text(&memory, word::PLAN, layout::MAX_PLAN, plan.unwrap_or_default());
        memory.word(word::MAGIC).store(layout::MAGIC, Release);
        let mask = (capacity > 0).then(|| capacity as u64 - 1);
        let clock = if mask.is_some() { Clock::new() } else { Clock::Since(Instant::now()) };
        FlightRecorder { memory, tasks, mask, clock }
    }

    /// Notes what the record's clock says now, next to the time of day.
    fn synchronize(&self, at: usize) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.memory.word(at).store(self.clock.now(), Relaxed);
        self.memory.word(at + 1).store(now.as_nanos() as u64, Relaxed);
    }

    /// Says which program of the plan the rank runs from now on, and of which mesh. It has run so many steps before, and each of its tasks
    /// has acted so often.
    pub(crate) fn runs(&self, mesh: usize, program: usize, steps: u64, acts: &[u64]) {
        let load = |at: usize| self.memory.word(at).load(Relaxed);
        let table = || HEADER..HEADER + self.tasks;
        let of_all: u64 = load(word::OTHER_ACTS) + table().map(|at| load(at) >> 1).sum::<u64>();
        table().for_each(|at| self.memory.word(at).store(0, Relaxed));
        acts.iter().enumerate().for_each(|(task, acts)| self.note(task, acts << 1));
        self.memory.word(word::OTHER_ACTS).store(of_all.saturating_sub(acts.iter().sum()), Relaxed);
        self.memory.word(word::OTHER_STEPS).store(load(word::STEPS_BEGUN).saturating_sub(steps), Relaxed);
        self.memory.word(word::PROGRAM).store(layout::program(mesh, program), Relaxed);
        self.phase(Phase::Runs);
        self.synchronize(word::CLOCK + 2);
    }

    /// Whether the rank runs this program of this mesh.
    pub(crate) fn is_of(&self, mesh: usize, program: usize) -> bool {
        self.memory.word(word::PROGRAM).load(Relaxed) == layout::program(mesh, program)
    }

    /// Says how far the rank is.
    pub fn phase(&self, phase: Phase) {
        self.memory.word(word::PHASE).store(phase as u64, Release);
    }

    /// Says why the rank failed, by itself or because of another. The first reason counts.
    pub fn failed(&self, why: &str, phase: Phase) {
        if self.memory.word(word::FAILURE).load(Relaxed) == 0 {
            text(&self.memory, word::FAILURE, layout::MAX_FAILURE, why);
            self.phase(phase);
        }
    }

    /// A run begins. Returns its number.
    pub(crate) fn step_begins(&self) -> u64 {
        let step = self.memory.word(word::STEPS_BEGUN).fetch_add(1, Relaxed);
        if self.mask.is_some() {
            self.synchronize(word::CLOCK + 2);
            self.record(Event::StepBegins { step });
        }
        step
    }

    /// A run ended.
    pub(crate) fn step_ends(&self, step: u64) {
        self.memory.word(word::STEPS_ENDED).fetch_add(1, Relaxed);
        self.record(Event::StepEnds { step });
    }

    /// A task begins its work.
    #[inline]
    pub(crate) fn act_begins(&self, task: usize, act: u64) {
        self.note(task, act << 1 | 1);
        self.record(Event::ActBegins { task: task as u32, act });
    }

    /// A task has ended its work, or left it out in a run that fails.
    #[inline]
    pub(crate) fn act_ends(&self, task: usize, act: u64) {
        self.note(task, (act + 1) << 1);
        self.record(Event::ActEnds { task: task as u32, act });
    }

    #[inline]
    fn note(&self, task: usize, state: u64) {
        if task < self.tasks {
            self.memory.word(HEADER + task).store(state, Relaxed);
        }
    }

    /// Writes a record. Where there is no ring, this does nothing.
    #[inline]
    pub fn record(&self, event: Event) {
        let Some(mask) = self.mask else { return };
        let (next, words) = (self.memory.word(word::NEXT), |at| self.memory.word(HEADER + self.tasks + at));
        ring::write(next, words, mask, || self.clock.now(), event);
    }

    /// Records that a block was sent, and counts it.
    pub fn sent(&self, transfer: u32, peer: u32, bytes: usize) {
        self.memory.word(word::BYTES_SENT).fetch_add(bytes as u64, Relaxed);
        self.memory.word(word::MESSAGES_SENT).fetch_add(1, Relaxed);
        self.record(Event::Sent { transfer, peer, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) });
    }

    /// Records that a block was received, and counts it.
    pub fn received(&self, transfer: u32, peer: u32, bytes: usize) {
        self.memory.word(word::BYTES_RECEIVED).fetch_add(bytes as u64, Relaxed);
        self.memory.word(word::MESSAGES_RECEIVED).fetch_add(1, Relaxed);
        self.record(Event::Received { transfer, peer, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) });
    }

    /// Records what the rank waits for in a transfer, and counts it.
    pub fn waits(&self, event: Event) {
        self.memory.word(word::WAITS).fetch_add(1, Relaxed);
        self.record(event);
    }

    /// What it has recorded so far.
    pub(crate) fn snapshot(&self) -> Result<FlightLog, LogError> {
        FlightLog::parse(&self.memory.copy())
    }
}

/// When a process began, in the unit of `/proc/PID/stat`; `None` where there is no such process.
pub fn process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may hold anything. Source: proc(5).
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(19)?.parse().ok()
}

fn text(memory: &EventMemory, at: usize, max: usize, text: &str) {
    let text = &text[..text.floor_char_boundary(max)];
    memory.store_bytes(at + 1, text.as_bytes());
    memory.word(at).store(text.len() as u64, Release);
}
