//! Values that variables had between two runs. They can be read while later runs update the variables.
//!
//! To freeze values copies nothing. A task that is about to update a variable first saves the value that a frozen one has to give
//! (copy on write), so a reader that comes before it reads the variable's own memory.

use std::sync::Arc;

use of_plan::Variable;

use crate::RunError;
use crate::device::Buffer;
use crate::frozen_place::FrozenPlace;
use crate::sync::{Mutex, lock};

/// The most bytes that a reader has at a time: an update waits for it.
const PIECE: usize = 1 << 20;

/// The values of variables between two runs.
#[derive(Debug)]
pub struct FrozenVariables {
    list: Arc<[Variable]>,
    update_order: Arc<[usize]>,
    /// The variables' own memory, and that for values that are saved.
    memory: (Arc<[Buffer]>, Shadow),
    places: Vec<FrozenPlace<Buffer>>,
    /// Who gets that memory in the end.
    shadows: Arc<Mutex<Vec<Shadow>>>,
}

/// A second place for each variable.
pub(crate) type Shadow = Vec<Buffer>;

impl FrozenVariables {
    pub(crate) fn new(
        list: Arc<[Variable]>,
        update_order: Arc<[usize]>,
        memory: (Arc<[Buffer]>, Shadow),
        shadows: Arc<Mutex<Vec<Shadow>>>,
    ) -> FrozenVariables {
        let places = list.iter().map(|_| FrozenPlace::default()).collect();
        FrozenVariables { list, update_order, memory, places, shadows }
    }

    /// The variables: names, types, initial values.
    pub fn list(&self) -> &[Variable] {
        &self.list
    }

    /// The numbers of the variables, in the order in which a run updates them: who reads them in this order leaves the least to save.
    pub fn update_order(&self) -> &[usize] {
        &self.update_order
    }

    /// Passes the value of variable `index` to `take` piece by piece. A run that is about to update the variable goes on as soon as
    /// `take` returns.
    ///
    /// # Errors
    /// When there is no such variable, or its value was released.
    pub fn read(&self, index: usize, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError> {
        let (place, own) = self.places.get(index).zip(self.memory.0.get(index)).ok_or_else(|| odd(index))?;
        let whole = own.bytes(0).len();
        for start in (0..whole).step_by(PIECE) {
            let range = start..whole.min(start + PIECE);
            let read = place.read(|saved| take(&saved.unwrap_or(own).bytes(0)[range]));
            read.ok_or_else(|| odd(index))?;
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
            place.release();
        }
    }

    /// Saves the value of a variable that is about to be updated, if it is still needed.
    pub(crate) fn save(&self, index: usize) {
        let memory = self.memory.0.get(index).zip(self.memory.1.get(index));
        if let (Some(place), Some((own, room))) = (self.places.get(index), memory) {
            place.save(|| {
                room.copy_from(own, own.bytes(0).len(), 0);
                room.clone()
            });
        }
    }
}

impl Drop for FrozenVariables {
    fn drop(&mut self) {
        lock(&self.shadows).push(std::mem::take(&mut self.memory.1));
    }
}

fn odd(index: usize) -> RunError {
    RunError::Internal(format!("variable {index} has no frozen value"))
}
