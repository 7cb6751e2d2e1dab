//! The runtime's locks, and atomics of what loom explores: with `--cfg loom` they are loom's, and its model of memory decides what
//! threads see.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread::yield_now,
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread::yield_now,
};

/// The guard of a mutex whose holder may have panicked: what it protects is always whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits until another thread says that something changed.
pub(crate) fn wait<'s, T>(changed: &Condvar, state: MutexGuard<'s, T>) -> MutexGuard<'s, T> {
    changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A cell whose accesses other code orders.
#[derive(Debug)]
#[cfg(not(loom))]
pub(crate) struct Cell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> Cell<T> {
    pub fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Passes the address of the value, for reading.
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Passes the address of the value, for writing.
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell as Cell;
