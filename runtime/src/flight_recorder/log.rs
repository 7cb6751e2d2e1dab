//! Reads recordings: of ranks that run, and of those that ended in whatever way.

use std::io;
use std::path::{Path, PathBuf};

use super::RecordingOf;
use super::layout::{self, Event, HEADER, Phase, RECORD, word};
use super::ring;

/// Why a file is no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("it is not a recording of a rank")]
    Other,
    /// Another version wrote it.
    #[error("it has version {0} of the format, and this program reads version {ours}", ours = layout::VERSION)]
    Version(u64),
    /// It is shorter than it says.
    #[error("it is shorter than its header says")]
    Short,
}

/// The recording of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct FlightLog {
    /// Whose it is.
    pub of: RecordingOf,
    /// Its process.
    pub pid: u32,
    /// When that began, in the unit of `/proc/PID/stat`.
    pub started: u64,
    /// The mesh and the program of the plan, once there is a session.
    pub program: Option<(usize, usize)>,
    /// How far the rank is.
    pub phase: Phase,
    /// Why it failed.
    pub failure: Option<String>,
    /// Steps that began and that ended.
    pub steps: (u64, u64),
    /// Steps, and acts of tasks, of programs that the rank ran before and that are not in the table of tasks.
    pub of_others: (u64, u64),
    /// Bytes and messages that were sent.
    pub sent: (u64, u64),
    /// Bytes and messages that were received.
    pub received: (u64, u64),
    /// How often the rank slept because it waited for another.
    pub waits: u64,
    /// For each task how often it acted.
    pub tasks: Vec<TaskState>,
    /// The last records, the oldest first.
    pub records: Vec<Record>,
    /// Records that were not written whole.
    pub torn: usize,
}

/// How often a task has acted, and whether it is acting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskState {
    /// Acts that ended.
    pub acts: u64,
    /// Whether it is in another.
    pub acting: bool,
}

/// An event with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Nanoseconds since 1970, by the clock of the rank's host.
    pub at: u64,
    /// What happened.
    pub event: Event,
}

impl FlightLog {
    /// Reads a file.
    ///
    /// # Errors
    /// When it is no recording. Records that are torn are left out.
    pub fn read(path: &Path) -> Result<FlightLog, LogError> {
        Self::parse(&std::fs::read(path)?)
    }

    /// Steps of the rank's program that began and that ended.
    pub fn steps_of_program(&self) -> (u64, u64) {
        let own = |steps: u64| steps.saturating_sub(self.of_others.0);
        (own(self.steps.0), own(self.steps.1))
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<FlightLog, LogError> {
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
        let get = |at: usize| words.get(at).copied().ok_or(LogError::Short);
        if words.first() != Some(&layout::MAGIC) {
            return Err(LogError::Other);
        }
        if get(word::VERSION)? != layout::VERSION {
            return Err(LogError::Version(get(word::VERSION)?));
        }
        let size = |at: usize| Ok::<_, LogError>(usize::try_from(get(at)?).unwrap_or(usize::MAX));
        let (tasks, capacity) = (size(word::TASKS)?, size(word::CAPACITY)?);
        let ring = HEADER.checked_add(tasks).ok_or(LogError::Short)?;
        let end = capacity.checked_mul(RECORD).and_then(|n| n.checked_add(ring));
        if end.is_none_or(|end| end > words.len()) {
            return Err(LogError::Short);
        }
        let text = |at: usize, max: usize| {
            let len = (words[at] as usize).min(max);
            let start = (at + 1) * 8;
            Some(String::from_utf8_lossy(&bytes[start..start + len]).into_owned()).filter(|text| !text.is_empty())
        };
        let mut plan_hash = [0; 32];
        plan_hash.copy_from_slice(&bytes[word::PLAN_HASH * 8..word::PLAN_HASH * 8 + 32]);
        let of = RecordingOf {
            rank: words[word::RANK] as u32,
            ranks: (words[word::RANK] >> 32) as u32,
            host: text(word::HOST, layout::MAX_HOST).unwrap_or_default(),
            plan_hash,
            plan: text(word::PLAN, layout::MAX_PLAN).map(PathBuf::from),
        };
        let state = |word: &u64| TaskState { acts: word >> 1, acting: word & 1 == 1 };
        let (records, torn) = records(&words, ring, capacity);
        let half = |word: u64| (word as u32).checked_sub(1).map(|n| n as usize);
        Ok(FlightLog {
            of,
            pid: words[word::PID] as u32,
            started: words[word::STARTED],
            program: half(words[word::PROGRAM] >> 32).zip(half(words[word::PROGRAM])),
            phase: Phase::from_word(words[word::PHASE]).ok_or(LogError::Other)?,
            failure: text(word::FAILURE, layout::MAX_FAILURE),
            steps: (words[word::STEPS_BEGUN], words[word::STEPS_ENDED]),
            of_others: (words[word::OTHER_STEPS], words[word::OTHER_ACTS]),
            sent: (words[word::BYTES_SENT], words[word::MESSAGES_SENT]),
            received: (words[word::BYTES_RECEIVED], words[word::MESSAGES_RECEIVED]),
            waits: words[word::WAITS],
            tasks: words[HEADER..ring].iter().map(state).collect(),
            records,
            torn,
        })
    }
}

/// The records of a ring that are whole, and the number of those that are not.
fn records(words: &[u64], ring: usize, capacity: usize) -> (Vec<Record>, usize) {
    let clock = &words[word::CLOCK..word::CLOCK + 4];
    // Without a second pair, the clock is that of nanoseconds; the difference is small, as little was recorded.
    let (ticks, ns) = (clock[2].saturating_sub(clock[0]), clock[3].saturating_sub(clock[1]));
    let rate = if ticks > 0 && ns > 0 { ns as f64 / ticks as f64 } else { 1.0 };
    let time = |at: u64| clock[1].saturating_add_signed((at.wrapping_sub(clock[0]) as i64 as f64 * rate) as i64);
    let (mut records, mut torn) = (Vec::new(), 0);
    for record in ring::read(words[word::NEXT], &words[ring..ring + capacity * RECORD]) {
        match record {
            Some((at, event)) => records.push(Record { at: time(at), event }),
            None => torn += 1,
        }
    }
    (records, torn)
}

#[cfg(test)]
mod tests {
    use super::super::FlightRecorder;
    use super::*;

    fn recorded(events: u64) -> (tempfile::TempDir, PathBuf, FlightRecorder) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-1.flight");
        let of = RecordingOf {
            rank: 1,
            ranks: 4,
            host: "host".into(),
            plan_hash: [7; 32],
            plan: Some("/tmp/of.plan".into()),
        };
        let recorder = FlightRecorder::create(&path, &of, 3).unwrap();
        for act in 0..events {
            recorder.act_begins(2, act);
        }
        (dir, path, recorder)
    }

    #[test]
    fn a_recording_is_read_while_it_is_written() {
        let (_dir, path, recorder) = recorded(5);
        recorder.act_ends(2, 4);
        recorder.sent(3, 2, 1 << 33);
        recorder.runs(0, 6, 0, &[0, 0, 5]);
        let log = FlightLog::read(&path).unwrap();
        assert_eq!((log.of.rank, log.of.ranks, log.of.host.as_str(), log.pid), (1, 4, "host", std::process::id()));
        assert_eq!((log.of.plan_hash, log.of.plan, log.program), ([7; 32], Some("/tmp/of.plan".into()), Some((0, 6))));
        assert_eq!(log.tasks[2], TaskState { acts: 5, acting: false });
        assert_eq!((log.records.len(), log.torn, log.sent), (7, 0, (1 << 33, 1)));
        assert_eq!(log.records[4].event, Event::ActBegins { task: 2, act: 4 });
        assert_eq!(log.records[6].event, Event::Sent { transfer: 3, peer: 2, bytes: u32::MAX });
        assert!(log.records.is_sorted_by_key(|r| r.at));
        recorder.failed("no memory", Phase::Failed);
        recorder.failed("another reason", Phase::EndedByAnother);
        let log = FlightLog::read(&path).unwrap();
        assert_eq!((log.phase, log.failure.as_deref()), (Phase::Failed, Some("no memory")));
    }

    #[test]
    fn the_table_of_tasks_is_that_of_the_program_that_runs() {
        let (_dir, path, recorder) = recorded(0);
        let run = |act: u64| {
            let step = recorder.step_begins();
            (0..3).for_each(|task| (recorder.act_begins(task, act), recorder.act_ends(task, act)).1);
            recorder.step_ends(step);
        };
        recorder.runs(0, 6, 0, &[0; 3]);
        (0..4).for_each(run);
        assert!(recorder.is_of(0, 6) && !recorder.is_of(1, 6));
        // Another program of two tasks runs once, then the first again.
        recorder.runs(1, 7, 0, &[0; 2]);
        recorder.act_begins(1, 0);
        let log = FlightLog::read(&path).unwrap();
        assert_eq!((log.program, log.steps, log.steps_of_program()), (Some((1, 7)), (4, 4), (0, 0)));
        assert_eq!(log.tasks, [(0, false), (0, true), (0, false)].map(|(acts, acting)| TaskState { acts, acting }));
        recorder.act_ends(1, 0);
        recorder.runs(0, 6, 4, &[4; 3]);
        run(4);
        let log = FlightLog::read(&path).unwrap();
        assert_eq!((log.steps, log.steps_of_program(), log.of_others), ((5, 5), (5, 5), (0, 1)));
        assert_eq!(log.tasks, [TaskState { acts: 5, acting: false }; 3]);
    }

    #[test]
    fn a_ring_keeps_the_last_records() {
        let (_dir, path, _recorder) = recorded(200_000);
        let log = FlightLog::read(&path).unwrap();
        assert_eq!(log.records.len(), super::super::CAPACITY);
        assert_eq!(log.records.last().unwrap().event, Event::ActBegins { task: 2, act: 199_999 });
        assert_eq!(log.tasks[2], TaskState { acts: 199_999, acting: true });
    }

    #[test]
    fn torn_records_are_left_out() {
        let (_dir, path, _recorder) = recorded(100_000);
        let bytes = std::fs::read(&path).unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..20 {
            // A word of a record is as it was before, or zero.
            let mut torn = bytes.clone();
            let record = (HEADER + 3) * 8 + rng.usize(..super::super::CAPACITY) * RECORD * 8 + 8 * rng.usize(..RECORD);
            let old = u64::from_le_bytes(torn[record..record + 8].try_into().unwrap());
            let other = if rng.bool() { 0 } else { old.wrapping_sub(super::super::CAPACITY as u64) };
            torn[record..record + 8].copy_from_slice(&other.to_le_bytes());
            let log = FlightLog::parse(&torn).unwrap();
            assert_eq!((log.torn, log.records.len()), (usize::from(other != old), 65536 - usize::from(other != old)));
        }
    }

    #[test]
    fn damaged_files_are_errors_or_logs() {
        let (_dir, path, _recorder) = recorded(10);
        let bytes = std::fs::read(&path).unwrap();
        assert!(matches!(FlightLog::parse(b"something else"), Err(LogError::Other)));
        for len in [0, 8, 100, HEADER * 8, HEADER * 8 + 1000, bytes.len() - 1] {
            assert!(FlightLog::parse(&bytes[..len]).is_err(), "{len} bytes");
        }
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..200 {
            let mut damaged = bytes.clone();
            for _ in 0..rng.usize(1..20) {
                let at = rng.usize(8..HEADER * 8 + 400);
                damaged[at] = rng.u8(..);
            }
            // Whatever it says, it is read without a panic.
            let _ = FlightLog::parse(&damaged);
        }
    }

    #[test]
    fn threads_record_at_the_same_time() {
        let (_dir, path, recorder) = recorded(0);
        std::thread::scope(|scope| {
            for task in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || (0..10_000).for_each(|act| recorder.record(Event::ActEnds { task, act })));
            }
        });
        let log = FlightLog::read(&path).unwrap();
        assert_eq!((log.records.len(), log.torn), (40_000, 0));
        for task in 0..4 {
            let acts = log.records.iter().filter_map(|r| match r.event {
                Event::ActEnds { task: of, act } if of == task => Some(act),
                _ => None,
            });
            assert!(acts.eq(0..10_000));
        }
    }
}
