//! Where a frozen value is: in the variable's memory, until an update saves it.

use crate::sync::{Condvar, Mutex, lock, wait};

/// The place of a frozen value. Readers read the variable's memory in pieces, and an update waits for a piece at most.
#[derive(Debug)]
pub(crate) struct FrozenPlace<S> {
    state: Mutex<State<S>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<S> {
    value: Value<S>,
    /// How many pieces are being read from the variable's memory.
    readers: usize,
    /// Whether an update waits to save the value.
    wanted: bool,
}

#[derive(Debug)]
enum Value<S> {
    /// In the variable's own memory.
    Current,
    Saved(S),
    /// Not needed any more.
    Released,
}

impl<S> Default for FrozenPlace<S> {
    fn default() -> Self {
        Self { state: Mutex::new(State { value: Value::Current, readers: 0, wanted: false }), changed: Condvar::new() }
    }
}

impl<S: Clone> FrozenPlace<S> {
    /// Reads a piece: of what was saved, or else of the variable's memory, which is not updated until this returns. `None` when the value
    /// was released.
    pub fn read<R>(&self, read: impl FnOnce(Option<&S>) -> R) -> Option<R> {
        let mut state = lock(&self.state);
        // A reader that comes again and again must not keep the update waiting.
        while state.wanted {
            state = wait(&self.changed, state);
        }
        match &state.value {
            Value::Released => None,
            Value::Saved(saved) => {
                let saved = saved.clone();
                drop(state);
                Some(read(Some(&saved)))
            }
            Value::Current => {
                state.readers += 1;
                drop(state);
                let _reading = Reading(self);
                Some(read(None))
            }
        }
    }

    /// Says that the value is not needed any more.
    pub fn release(&self) {
        lock(&self.state).value = Value::Released;
    }

    /// Saves the value before an update, if it is still needed. `copy` runs while others read.
    pub fn save(&self, copy: impl FnOnce() -> S) {
        let mut state = lock(&self.state);
        let needed = matches!(state.value, Value::Current);
        if needed {
            state.wanted = true;
            drop(state);
            let saved = copy();
            state = lock(&self.state);
            if matches!(state.value, Value::Current) {
                state.value = Value::Saved(saved);
            }
            state.wanted = false;
        }
        // Who reads the variable's memory began before the value was saved or released.
        while state.readers > 0 {
            state = wait(&self.changed, state);
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// The end of reading a piece, even if the reader panics.
struct Reading<'p, S>(&'p FrozenPlace<S>);

impl<S> Drop for Reading<'_, S> {
    fn drop(&mut self) {
        lock(&self.0.state).readers -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::atomic::{AtomicU32, Ordering};

    /// A frozen value, and the memory of its variable.
    struct Variable(FrozenPlace<u32>, AtomicU32);

    fn variable() -> Arc<Variable> {
        Arc::new(Variable(FrozenPlace::default(), AtomicU32::new(1)))
    }

    fn current(variable: &Variable) -> u32 {
        variable.1.load(Ordering::Relaxed)
    }

    fn update(variable: &Variable) {
        variable.0.save(|| current(variable));
        variable.1.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn readers_see_the_value_as_it_was_frozen() {
        loom::model(|| {
            let variable = variable();
            let own = Arc::clone(&variable);
            let updates = thread::spawn(move || {
                update(&own);
                update(&own);
            });
            for _ in 0..2 {
                let read = variable.0.read(|saved| saved.copied().unwrap_or_else(|| current(&variable)));
                assert_eq!(read, Some(1));
            }
            variable.0.release();
            assert_eq!(variable.0.read(|_| ()), None);
            updates.join().unwrap();
        });
    }

    #[test]
    fn a_value_that_is_released_while_it_is_read_is_not_updated_before_that_ends() {
        loom::model(|| {
            let variable = variable();
            let own = Arc::clone(&variable);
            let reads = thread::spawn(move || own.0.read(|saved| saved.copied().unwrap_or_else(|| current(&own))));
            let own = Arc::clone(&variable);
            let updates = thread::spawn(move || update(&own));
            variable.0.release();
            let read = reads.join().unwrap();
            assert!(matches!(read, None | Some(1)), "{read:?}");
            updates.join().unwrap();
        });
    }
}
