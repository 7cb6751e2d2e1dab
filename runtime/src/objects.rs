//! Runtime-owned values of object registers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use of_plan::Program;

use crate::device::AlignedBytes;
use crate::io::lock;
use crate::{Tensor, Value};

/// The values of a program's object registers, one slot for each copy of a register. The locks are never contended for
/// writing: the register tokens keep producers and consumers apart.
#[derive(Debug)]
pub(crate) struct Objects {
    /// For each register, its copies; none unless it is an object.
    slots: Vec<Vec<Slot>>,
    /// For each register, how many consumers it has.
    consumers: Vec<u32>,
    any: bool,
    /// Memory of values that are gone, for values to come.
    free: Mutex<Vec<AlignedBytes>>,
}

/// More pieces of free memory than this are given back to the system, the smallest first.
const MAX_FREE: usize = 256;

#[derive(Debug, Default)]
struct Slot {
    value: RwLock<Option<Value>>,
    /// Consumers that have not acted on the value yet.
    readers: AtomicU32,
}

impl Slot {
    fn take(&self) -> Option<Value> {
        self.value.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Objects {
    pub fn new(program: &Program) -> Self {
        let copies = |regst: &of_plan::Regst| if regst.is_object() { regst.num } else { 0 };
        let slots = program.regsts.iter().map(|regst| (0..copies(regst)).map(|_| Slot::default()).collect());
        let consumers = program.regsts.iter().map(|regst| regst.consumers.len() as u32);
        let any = program.regsts.iter().any(of_plan::Regst::is_object);
        Self { slots: slots.collect(), consumers: consumers.collect(), any, free: Mutex::default() }
    }

    /// Memory for so many bytes, which are whatever they were: the smallest piece of free memory that holds them and is
    /// not much larger, else new memory.
    pub fn allocate(&self, len: usize) -> AlignedBytes {
        let mut free = lock(&self.free);
        let fits = |bytes: &AlignedBytes| bytes.capacity() >= len && bytes.capacity() / 2 <= len.max(4096);
        let best = (0..free.len()).filter(|&i| fits(&free[i])).min_by_key(|&i| free[i].capacity());
        match best {
            Some(i) => free.swap_remove(i).with_len(len),
            None => AlignedBytes::zeroed(len),
        }
    }

    /// Keeps the memory of a value that nobody needs any more.
    fn recycle(&self, value: Option<Value>) {
        let Some(bytes) = value.and_then(Value::into_tensor).and_then(Tensor::into_bytes) else { return };
        let mut free = lock(&self.free);
        free.push(bytes);
        if free.len() > MAX_FREE
            && let Some(smallest) = (0..free.len()).min_by_key(|&i| free[i].capacity())
        {
            free.swap_remove(smallest);
        }
    }

    /// Whether the program has any object register.
    pub fn any(&self) -> bool {
        self.any
    }

    fn slot(&self, regst: u32, piece: u64) -> Option<&Slot> {
        let copies = self.slots.get(regst as usize).filter(|copies| !copies.is_empty())?;
        copies.get((piece % copies.len() as u64) as usize)
    }

    /// The value of a register, to be looked at while the guard lives.
    pub fn read(&self, regst: u32, piece: u64) -> Option<RwLockReadGuard<'_, Option<Value>>> {
        Some(self.slot(regst, piece)?.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives a register its value.
    pub fn write(&self, regst: u32, piece: u64, value: Value) {
        if let Some(slot) = self.slot(regst, piece) {
            *slot.value.write().unwrap_or_else(PoisonError::into_inner) = Some(value);
        }
    }

    /// Takes the value for the caller: moved out for its last consumer, a copy otherwise.
    pub fn fetch(&self, regst: u32, piece: u64) -> Option<Value> {
        let slot = self.slot(regst, piece)?;
        if slot.readers.load(Ordering::Acquire) == 1 {
            return slot.take();
        }
        slot.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says that the producer has acted, before its consumers hear of it.
    pub fn produced(&self, regst: u32, piece: u64) {
        if let Some(slot) = self.slot(regst, piece) {
            let consumers = self.consumers[regst as usize];
            slot.readers.store(consumers, Ordering::Release);
            if consumers == 0 {
                self.recycle(slot.take());
            }
        }
    }

    /// Says that a consumer has acted. The last one frees the value.
    pub fn consumed(&self, regst: u32, piece: u64) {
        if let Some(slot) = self.slot(regst, piece)
            && slot.readers.fetch_sub(1, Ordering::AcqRel) == 1
        {
            self.recycle(slot.take());
        }
    }
}
