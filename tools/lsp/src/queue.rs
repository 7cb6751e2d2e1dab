//! A queue between threads. The standard library's channels are 20 kB of code for each type of message.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A queue with any number of writers and readers.
pub struct Queue<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    waiting: VecDeque<T>,
    closed: bool,
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Queue(Arc::clone(&self.0))
    }
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new() -> Queue<T> {
        let state = Mutex::new(State { waiting: VecDeque::new(), closed: false });
        Queue(Arc::new(Shared { state, changed: Condvar::new() }))
    }

    /// Adds an item; says whether someone may still take it.
    pub fn push(&self, item: T) -> bool {
        let mut state = self.lock();
        if !state.closed {
            state.waiting.push_back(item);
            self.0.changed.notify_one();
        }
        !state.closed
    }

    /// Takes the oldest item, and waits for one; `None` once the queue is closed.
    pub fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(item) = state.waiting.pop_front() {
                return Some(item);
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the oldest item if there is one.
    pub fn try_pop(&self) -> Option<T> {
        self.lock().waiting.pop_front()
    }

    /// Ends all waiting. Items that were not taken are dropped.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiting.clear();
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
