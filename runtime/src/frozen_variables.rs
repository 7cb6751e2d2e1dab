//! Values that variables had between two runs. They can be read while later runs update the variables.
//!
//! To freeze values copies nothing. A task that is about to update a variable first saves the value that a frozen one has to give
//! (copy on write), so a reader that comes before it reads the variable's own memory.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use of_plan::Variable;

use crate::device::Buffer;
use crate::io::lock;
use crate::variables::Shadow;
use crate::{RunError, Variables};

/// The most bytes that a reader has at a time: an update waits for it.
const PIECE: usize = 1 << 20;

/// The values of variables between two runs.
#[derive(Debug)]
pub struct FrozenVariables {
    variables: Arc<Variables>,
    places: Vec<Place>,
    /// Memory for values that are saved, which the variables get back.
    shadow: Shadow,
}

/// Where a value is.
#[derive(Debug, Default)]
struct Place {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    value: Value,
    /// Whether a piece is being read from the variable's memory.
    reads: bool,
    /// Whether an update waits to save the value.
    wanted: bool,
}

#[derive(Clone, Debug, Default)]
enum Value {
    /// In the variable's own memory.
    #[default]
    Current,
    Saved(Buffer),
    /// Not needed any more.
    Released,
}

impl FrozenVariables {
    pub(crate) fn new(variables: &Arc<Variables>, shadow: Shadow) -> FrozenVariables {
        let places = variables.list().iter().map(|_| Place::default()).collect();
        FrozenVariables { variables: Arc::clone(variables), places, shadow }
    }

    /// The variables: names, types, initial values.
    pub fn list(&self) -> &[Variable] {
        self.variables.list()
    }

    /// The numbers of the variables, in the order in which a run updates them: who reads them in this order leaves the least to save.
    pub fn update_order(&self) -> &[usize] {
        self.variables.update_order()
    }

    /// Passes the value of variable `index` to `take` piece by piece. A run that is about to update the variable goes on as soon as
    /// `take` returns.
    ///
    /// # Errors
    /// When there is no such variable, or its value was released.
    pub fn read(&self, index: usize, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError> {
        let (place, own) = self.places.get(index).zip(self.variables.buffer(index)).ok_or_else(|| odd(index))?;
        let mut start = 0;
        while start < own.bytes(0).len() {
            let end = own.bytes(0).len().min(start + PIECE);
            let mut state = lock(&place.state);
            while state.wanted {
                state = wait(&place.changed, state);
            }
            match state.value.clone() {
                Value::Released => return Err(odd(index)),
                Value::Saved(saved) => {
                    drop(state);
                    take(&saved.bytes(0)[start..end]);
                }
                Value::Current => {
                    state.reads = true;
                    drop(state);
                    let _reading = Reading(place);
                    take(&own.bytes(0)[start..end]);
                }
            }
            start = end;
        }
        Ok(())
    }

    /// The value of variable `index`, copied.
    ///
    /// # Errors
    /// As [`FrozenVariables::read`].
    pub fn copy(&self, index: usize) -> Result<Vec<u8>, RunError> {
        let mut bytes = Vec::new();
        self.read(index, &mut |piece| bytes.extend_from_slice(piece))?;
        Ok(bytes)
    }

    /// Says that the value of a variable is not needed any more.
    pub fn release(&self, index: usize) {
        if let Some(place) = self.places.get(index) {
            lock(&place.state).value = Value::Released;
        }
    }

    /// Saves the value of a variable that is about to be updated, if it is still needed.
    pub(crate) fn save(&self, index: usize) {
        let (place, own, room) = match (self.places.get(index), self.variables.buffer(index), self.shadow.get(index)) {
            (Some(place), Some(own), Some(room)) => (place, own, room),
            _ => return,
        };
        let mut state = lock(&place.state);
        if !matches!(state.value, Value::Current) {
            return;
        }
        state.wanted = true;
        drop(state);
        // Whoever reads a piece meanwhile reads on.
        room.copy_from(own, own.bytes(0).len(), 0);
        let mut state = lock(&place.state);
        while state.reads {
            state = wait(&place.changed, state);
        }
        state.wanted = false;
        if let Value::Current = state.value {
            state.value = Value::Saved(room.clone());
        }
        drop(state);
        place.changed.notify_all();
    }
}

impl Drop for FrozenVariables {
    fn drop(&mut self) {
        self.variables.give_shadow(std::mem::take(&mut self.shadow));
    }
}

/// The end of reading a piece, even if the reader panics.
struct Reading<'p>(&'p Place);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).reads = false;
        self.0.changed.notify_all();
    }
}

fn wait<'s>(changed: &Condvar, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
    changed.wait(state).unwrap_or_else(PoisonError::into_inner)
}

fn odd(index: usize) -> RunError {
    RunError::Internal(format!("variable {index} has no frozen value"))
}
