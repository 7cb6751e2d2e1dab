//! The ring of records. Threads write without locks, and a reader copies the words at any moment. The last word of a record says whether
//! the other three are of the same record.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::layout::{Event, RECORD, check};

/// A word that is read and written as a whole.
pub(super) trait Word {
    fn add(&self, value: u64) -> u64;
    fn store(&self, value: u64);
}

impl Word for AtomicU64 {
    #[inline]
    fn add(&self, value: u64) -> u64 {
        self.fetch_add(value, Relaxed)
    }

    #[inline]
    fn store(&self, value: u64) {
        self.store(value, Relaxed);
    }
}

/// Writes a record. `next` counts records that were begun, `word` is a word of the ring by its number, and `mask` is one less than the
/// records of the ring.
#[inline]
pub(super) fn write<'w, W: Word + 'w>(
    next: &W,
    word: impl Fn(usize) -> &'w W,
    mask: u64,
    clock: impl FnOnce() -> u64,
    event: Event,
) {
    let number = next.add(1);
    let (clock, (kind, value)) = (clock(), event.encode());
    let words = [clock, kind, value, check(number, clock, kind, value)];
    let first = (number & mask) as usize * RECORD;
    words.into_iter().zip(first..).for_each(|(value, at)| word(at).store(value));
}

/// Clock and event of the last records, the oldest first, where so many were begun; `None` for each that is not whole.
pub(super) fn read(next: u64, words: &[u64]) -> impl Iterator<Item = Option<(u64, Event)>> {
    let records = words.as_chunks::<RECORD>().0;
    let count = records.len() as u64;
    (next.saturating_sub(count)..next).map(move |number| {
        let [clock, kind, value, last] = records[(number % count) as usize];
        let is_whole = last == check(number, clock, kind, value);
        Event::decode(kind, value).filter(|_| is_whole).map(|event| (clock, event))
    })
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    use super::*;

    impl Word for AtomicU64 {
        fn add(&self, value: u64) -> u64 {
            self.fetch_add(value, Ordering::Relaxed)
        }

        fn store(&self, value: u64) {
            self.store(value, Ordering::Relaxed);
        }
    }

    /// A ring of one record.
    struct Ring {
        next: AtomicU64,
        words: [AtomicU64; RECORD],
    }

    /// The clock of an act, which no other act has.
    fn clock(task: u32, act: u64) -> u64 {
        100 * u64::from(task + 1) + act
    }

    impl Ring {
        fn new() -> Arc<Self> {
            Arc::new(Self { next: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) })
        }

        fn record(&self, task: u32, act: u64) {
            write(&self.next, |at| &self.words[at], 0, || clock(task, act), Event::ActEnds { task, act });
        }

        /// Task and act of the record, if it is whole, as a reader sees it that copies the words in their order.
        fn read(&self) -> Option<(u32, u64)> {
            let load = |word: &AtomicU64| word.load(Ordering::Acquire);
            let next = load(&self.next);
            let words: Vec<u64> = self.words.iter().map(load).collect();
            match read(next, &words).last().flatten()? {
                (at, Event::ActEnds { task, act }) if at == clock(task, act) => Some((task, act)),
                other => panic!("{other:?} was not written"),
            }
        }
    }

    #[test]
    fn a_record_that_replaces_another_is_seen_whole_or_not_at_all() {
        loom::model(|| {
            let ring = Ring::new();
            let own = Arc::clone(&ring);
            let writer = thread::spawn(move || (0..2).for_each(|act| own.record(0, act)));
            ring.read();
            writer.join().unwrap();
            assert_eq!(ring.read(), Some((0, 1)));
        });
    }

    #[test]
    fn two_threads_that_write_to_one_place_leave_a_whole_record_or_none() {
        loom::model(|| {
            let ring = Ring::new();
            let own = Arc::clone(&ring);
            let writer = thread::spawn(move || own.record(0, 0));
            ring.record(1, 0);
            writer.join().unwrap();
            ring.read();
        });
    }
}
