//! The protocol of a channel's ring: numbers of messages, what the reader has taken, and sleep.
//!
//! The writer fills an entry and then stores the message's number in it. The reader takes the entry when it has the number that comes
//! next, and then stores how many messages it has taken, so that the writer may fill the entry again. Each end has a flag that says that
//! it sleeps. It alone writes that flag: if the other end cleared it on waking this one, it could clear what this one has set since, for
//! the next message, and nothing would wake it then.
//!
//! The protocol does not know where its words are. In a channel they are in shared memory, and loom explores it over words of its own
//! (`cargo xtask loom`).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

/// A word that both ends access, and on which one of them can sleep.
pub trait Word {
    /// The value, with all that was written before it was stored.
    fn load(&self) -> u32;

    /// The value, in one order with all other accesses of this kind.
    fn load_in_order(&self) -> u32;

    /// Stores a value after all that was written before, in one order with all other accesses of this kind.
    fn store_in_order(&self, value: u32);

    /// Stores a value that orders nothing.
    fn store(&self, value: u32);

    /// Sleeps until it is woken, at most for `timeout`, if the word still has the value `seen`. It may also wake for no reason.
    fn wait(&self, seen: u32, timeout: Duration);

    /// Wakes the end that sleeps on the word.
    fn wake(&self);
}

impl Word for AtomicU32 {
    fn load(&self) -> u32 {
        AtomicU32::load(self, Ordering::Acquire)
    }

    fn load_in_order(&self) -> u32 {
        AtomicU32::load(self, Ordering::SeqCst)
    }

    fn store_in_order(&self, value: u32) {
        AtomicU32::store(self, value, Ordering::SeqCst);
    }

    fn store(&self, value: u32) {
        AtomicU32::store(self, value, Ordering::Relaxed);
    }

    fn wait(&self, seen: u32, timeout: Duration) {
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        // The caller looks again, whatever woke this thread.
        let _ = futex::wait(self, futex::Flags::empty(), seen, Some(&timeout));
    }

    fn wake(&self) {
        // An error means that nothing waits.
        let _ = futex::wake(self, futex::Flags::empty(), 1);
    }
}

/// The words of a ring. All are 0 at first.
pub trait Ring {
    /// The kind of its words.
    type Word: Word;

    /// Entries of the ring.
    const ENTRIES: u32;

    /// The number of the message in the entry that this message has.
    fn number(&self, message: u32) -> &Self::Word;

    /// How many messages the reader has taken.
    fn taken(&self) -> &Self::Word;

    /// Whether the reader sleeps.
    fn reader_sleeps(&self) -> &Self::Word;

    /// Whether the writer sleeps.
    fn writer_sleeps(&self) -> &Self::Word;
}

/// The position of the end that writes.
#[derive(Debug, Default)]
pub struct WriterPosition {
    /// Messages so far.
    written: u32,
    /// Messages that the reader has taken, when this end looked last: to look costs a cache miss.
    taken: u32,
}

impl WriterPosition {
    /// The number of the last message.
    pub fn written(&self) -> u32 {
        self.written
    }

    /// The number of the next message.
    pub fn next(&self) -> u32 {
        self.written.wrapping_add(1)
    }

    /// Whether the ring has an entry free.
    pub fn has_room<R: Ring>(&mut self, ring: &R) -> bool {
        if self.written.wrapping_sub(self.taken) >= R::ENTRIES {
            self.taken = ring.taken().load();
        }
        self.written.wrapping_sub(self.taken) < R::ENTRIES
    }

    /// Whether the reader has taken a message.
    pub fn is_taken(&self, ring: &impl Ring, message: u32) -> bool {
        reaches(ring.taken().load(), message)
    }

    /// Publishes the next message, which is in its entry.
    pub fn publish(&mut self, ring: &impl Ring) {
        self.written = self.next();
        store(ring.number(self.written), self.written, ring.reader_sleeps());
    }

    /// Sleeps until the reader takes a message, at most for `timeout`.
    pub fn sleep(&self, ring: &impl Ring, until_taken: u32, timeout: Duration) {
        sleep(ring.taken(), |taken| reaches(taken, until_taken), ring.writer_sleeps(), timeout);
    }

    /// The message that must be taken for another to have room.
    pub fn oldest<R: Ring>(&self) -> u32 {
        self.written.wrapping_sub(R::ENTRIES - 1)
    }
}

/// The position of the end that reads.
#[derive(Debug, Default)]
pub struct ReaderPosition {
    /// Messages so far.
    taken: u32,
}

impl ReaderPosition {
    /// The number of the next message.
    pub fn next(&self) -> u32 {
        self.taken.wrapping_add(1)
    }

    /// Whether there is a message.
    pub fn has_message(&self, ring: &impl Ring) -> bool {
        ring.number(self.next()).load() == self.next()
    }

    /// Gives the entry of the next message, which was read, back to the writer.
    pub fn take(&mut self, ring: &impl Ring) {
        self.taken = self.next();
        store(ring.taken(), self.taken, ring.writer_sleeps());
    }

    /// Sleeps until the next message comes, at most for `timeout`.
    pub fn sleep(&self, ring: &impl Ring, timeout: Duration) {
        let next = self.next();
        sleep(ring.number(next), |number| number == next, ring.reader_sleeps(), timeout);
    }
}

/// Whether a count of messages includes one. Numbers wrap around.
fn reaches(taken: u32, message: u32) -> bool {
    taken.wrapping_sub(message) as i32 >= 0
}

/// Stores a number that the other end waits for, and wakes it if it sleeps.
fn store<W: Word>(number: &W, value: u32, sleeps: &W) {
    // In one order with `sleep`: either the other end sees the number, or this one sees that it sleeps.
    number.store_in_order(value);
    if sleeps.load_in_order() != 0 {
        number.wake();
    }
}

/// Sleeps on a number until it is one that `there` accepts.
fn sleep<W: Word>(number: &W, there: impl Fn(u32) -> bool, sleeps: &W, timeout: Duration) {
    sleeps.store_in_order(1);
    let seen = number.load_in_order();
    if !there(seen) {
        number.wait(seen, timeout);
    }
    sleeps.store(0);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicU32, fence};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    const NO_LIMIT: Duration = Duration::MAX;

    /// A word of loom. The mutex and the condition stand for the kernel's queue: a futex compares and sleeps as one step.
    #[derive(Default)]
    struct LoomWord {
        value: AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Word for LoomWord {
        fn load(&self) -> u32 {
            self.value.load(Ordering::Acquire)
        }

        // Loom orders accesses as acquire and release at most, but knows fences that are sequentially consistent.
        fn load_in_order(&self) -> u32 {
            fence(Ordering::SeqCst);
            self.value.load(Ordering::Acquire)
        }

        fn store_in_order(&self, value: u32) {
            self.value.store(value, Ordering::Release);
            fence(Ordering::SeqCst);
        }

        fn store(&self, value: u32) {
            self.value.store(value, Ordering::Relaxed);
        }

        // Nothing ends a sleep but the other end, so loom reports a deadlock where a wake-up is lost.
        fn wait(&self, seen: u32, _: Duration) {
            let queue = self.queue.lock().unwrap();
            if self.value.load(Ordering::Acquire) == seen {
                drop(self.woken.wait(queue).unwrap());
            }
        }

        fn wake(&self) {
            let _queue = self.queue.lock().unwrap();
            self.woken.notify_one();
        }
    }

    /// A ring of two entries. Loom reports an access to an entry that nothing orders with a write to it.
    #[derive(Default)]
    struct LoomRing {
        numbers: [LoomWord; 2],
        entries: [(UnsafeCell<()>, AtomicU32); 2],
        taken: LoomWord,
        reader_sleeps: LoomWord,
        writer_sleeps: LoomWord,
    }

    impl Ring for LoomRing {
        type Word = LoomWord;
        const ENTRIES: u32 = 2;

        fn number(&self, message: u32) -> &LoomWord {
            &self.numbers[(message % 2) as usize]
        }

        fn taken(&self) -> &LoomWord {
            &self.taken
        }

        fn reader_sleeps(&self) -> &LoomWord {
            &self.reader_sleeps
        }

        fn writer_sleeps(&self) -> &LoomWord {
            &self.writer_sleeps
        }
    }

    impl LoomRing {
        fn fill(&self, message: u32) {
            let (access, value) = &self.entries[(message % 2) as usize];
            access.with_mut(|_| value.store(message, Ordering::Relaxed));
        }

        fn read(&self, message: u32) -> u32 {
            let (access, value) = &self.entries[(message % 2) as usize];
            access.with(|_| value.load(Ordering::Relaxed))
        }
    }

    /// Sends messages; where `each` is set, it waits until one is taken before it sends the next.
    fn exchange(messages: u32, each: bool) {
        loom::model(move || {
            let ring = Arc::new(LoomRing::default());
            let other = Arc::clone(&ring);
            let writer = thread::spawn(move || {
                let mut at = WriterPosition::default();
                for _ in 0..messages {
                    while !at.has_room(&*other) {
                        at.sleep(&*other, at.oldest::<LoomRing>(), NO_LIMIT);
                    }
                    other.fill(at.next());
                    at.publish(&*other);
                    while each && !at.is_taken(&*other, at.written()) {
                        at.sleep(&*other, at.written(), NO_LIMIT);
                    }
                }
            });
            let mut at = ReaderPosition::default();
            for message in 1..=messages {
                while !at.has_message(&*ring) {
                    at.sleep(&*ring, NO_LIMIT);
                }
                assert_eq!(ring.read(message), message);
                at.take(&*ring);
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn no_wake_up_is_lost() {
        exchange(2, false);
    }

    /// The third message has the entry of the first.
    #[test]
    fn an_entry_is_filled_again_when_it_was_read() {
        exchange(3, false);
    }

    #[test]
    fn a_writer_that_waits_for_each_message_is_woken() {
        exchange(2, true);
    }
}
