//! The 64-bit id of a task: where it runs is part of its name.

use std::fmt;

/// A task id: rank (10 bits), thread (11), local stream (21), task (21), from high to low; the top bit is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(u64);

const TASK_BITS: u32 = 21;
const STREAM_BITS: u32 = 21;
const THREAD_BITS: u32 = 11;
const RANK_BITS: u32 = 10;

impl TaskId {
    /// Packs the parts; `None` when one does not fit its bits.
    pub fn new(rank: u32, thread: u32, stream: u32, task: u32) -> Option<Self> {
        let fits = rank >> RANK_BITS == 0
            && thread >> THREAD_BITS == 0
            && stream >> STREAM_BITS == 0
            && task >> TASK_BITS == 0;
        let high = (u64::from(rank) << THREAD_BITS) | u64::from(thread);
        let low = (u64::from(stream) << TASK_BITS) | u64::from(task);
        fits.then_some(Self((high << (STREAM_BITS + TASK_BITS)) | low))
    }

    /// Reads a packed id; `None` when the reserved top bit is set.
    pub fn from_raw(raw: u64) -> Option<Self> {
        (raw >> 63 == 0).then_some(Self(raw))
    }

    /// The packed form.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The rank that runs the task.
    pub fn rank(self) -> u32 {
        part(self.0, TASK_BITS + STREAM_BITS + THREAD_BITS, RANK_BITS)
    }

    /// The thread that owns the task's actor.
    pub fn thread(self) -> u32 {
        part(self.0, TASK_BITS + STREAM_BITS, THREAD_BITS)
    }

    /// The stream of the thread.
    pub fn stream(self) -> u32 {
        part(self.0, TASK_BITS, STREAM_BITS)
    }

    /// The number of the task on its stream.
    pub fn task(self) -> u32 {
        part(self.0, 0, TASK_BITS)
    }
}

fn part(raw: u64, shift: u32, bits: u32) -> u32 {
    ((raw >> shift) & ((1 << bits) - 1)) as u32
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.rank(), self.thread(), self.stream(), self.task())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_unpacks() {
        let id = TaskId::new(1023, 2047, (1 << 21) - 1, (1 << 21) - 1).unwrap();
        assert_eq!(id.raw(), (1 << 63) - 1);
        let id = TaskId::new(3, 5, 7, 9).unwrap();
        assert_eq!((id.rank(), id.thread(), id.stream(), id.task()), (3, 5, 7, 9));
        assert_eq!(id.to_string(), "3.5.7.9");
        assert_eq!(TaskId::new(1024, 0, 0, 0), None);
        assert_eq!(TaskId::new(0, 0, 0, 1 << 21), None);
        assert_eq!(TaskId::from_raw(1 << 63), None);
    }
}
