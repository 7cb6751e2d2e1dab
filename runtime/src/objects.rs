//! The values of object registers, which the runtime owns, and reuse of their memory.
//!
//! Freed buffers go to a free list, from which the next values are allocated.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use of_plan::{Program, binary_size};

use crate::device::AlignedBytes;
use crate::sync::{Mutex, lock};
use crate::{ExecError, Tensor, Value};

/// The values of a program's object registers, one slot for each copy of a register. The locks are never contended for
/// writing: the register tokens keep producers and consumers apart.
#[derive(Debug)]
pub(crate) struct Objects {
    /// For each register, its copies; none unless it is an object.
    slots: Vec<Vec<Slot>>,
    /// For each register, how many consumers it has.
    consumers: Vec<u32>,
    any: bool,
    memory: Mutex<Memory>,
    /// The bytes that live values may take.
    budget: u64,
}

/// Free memory of dead values, for reuse.
#[derive(Debug, Default)]
struct Memory {
    /// The free blocks, the longest first.
    free: VecDeque<AlignedBytes>,
    /// Bytes of the free blocks.
    bytes: usize,
    /// Bytes of the live values, and their maximum so far.
    live: usize,
    most: usize,
    /// Bytes of values that are laid out.
    laid_out: u64,
}

/// Tensors of up to this many bytes stay with their register: a search for memory costs more than they are worth.
const SMALL: usize = 4096;

/// The most free blocks that are kept. Beyond it, the longest free blocks are returned to the system first.
const MAX_FREE: usize = 256;

/// Free memory up to this many bytes is always kept.
const MAX_FREE_BYTES: usize = 1 << 20;

/// Free memory may take this many times what values took when they took most: values of different sizes come and go, and
/// a run that finds the blocks of the one before it touches no new page.
const SPARE: usize = 2;

impl Memory {
    /// The smallest free block that holds so many bytes and is not much larger. Of several, the one that was freed last: it
    /// is most likely in a cache.
    fn take(&mut self, len: usize) -> Option<AlignedBytes> {
        let fits = |bytes: &AlignedBytes| bytes.capacity() >= len && bytes.capacity() / 2 <= len.max(4096);
        let best =
            (0..self.free.len()).rev().filter(|&i| fits(&self.free[i])).min_by_key(|&i| self.free[i].capacity())?;
        let block = self.free.remove(best)?;
        self.bytes -= block.capacity();
        Some(block.with_len(len))
    }

    /// Keeps a block of memory. Free memory has a limit: a loop whose value grows leaves many blocks that are too small for what
    /// comes.
    fn keep(&mut self, block: AlignedBytes) {
        self.bytes += block.capacity();
        self.free.push_back(block);
        while self.free.len() > MAX_FREE || self.bytes > (SPARE * self.most).max(MAX_FREE_BYTES) {
            let Some(oldest) = self.free.pop_front() else { break };
            self.bytes -= oldest.capacity();
        }
    }
}

/// The bytes of a value that may be reused.
fn size(value: &Value) -> usize {
    value.as_tensor().and_then(Tensor::bytes).map_or(0, <[u8]>::len)
}

#[derive(Debug, Default)]
struct Slot {
    value: RwLock<Option<Value>>,
    /// The tensor of an earlier iteration, when it is small: to be filled again.
    spare: Mutex<Option<Tensor>>,
    /// Whether small tensors stay with it: not with each of very many registers.
    keeps_small: bool,
    /// Consumers that have not acted on the value yet.
    readers: AtomicU32,
}

impl Slot {
    fn take(&self) -> Option<Value> {
        self.value.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Objects {
    /// No values yet; all together may take `budget` bytes.
    pub fn new(program: &Program, budget: u64) -> Self {
        let mut made = 0;
        let mut slot = || {
            made += 1;
            Slot { keeps_small: made <= MAX_FREE, ..Slot::default() }
        };
        let copies = |register: &of_plan::Register| if register.is_object() { register.copies } else { 0 };
        let slots = program.registers.iter().map(|register| (0..copies(register)).map(|_| slot()).collect());
        let consumers = program.registers.iter().map(|register| register.consumers.len() as u32);
        let any = program.registers.iter().any(of_plan::Register::is_object);
        Self { slots: slots.collect(), consumers: consumers.collect(), any, memory: Mutex::default(), budget }
    }

    /// Uninitialised memory of this size: a free block if there is one, else a new allocation.
    pub fn allocate(&self, len: usize) -> Result<AlignedBytes, ExecError> {
        let mut memory = lock(&self.memory);
        if let Some(free) = memory.take(len) {
            return Ok(free);
        }
        let needed = (memory.live as u64 + memory.laid_out).saturating_add(len as u64);
        if needed > self.budget {
            let (own, live) = (binary_size(len as u64), binary_size(memory.live as u64));
            let budget = binary_size(self.budget);
            let what =
                format!("a value takes {own} in addition to live values of {live}, and the memory budget is {budget}");
            return Err(ExecError::Memory(what));
        }
        drop(memory);
        AlignedBytes::try_zeroed(len)
            .map_err(|e| ExecError::Memory(format!("a value takes {} of memory: {e}", binary_size(len as u64))))
    }

    /// Accounts for this many bytes of values that are laid out, in the place of those before; `false`, and none, where the
    /// budget has no room for them. The memory of values that had their own goes.
    pub fn lay_out(&self, bytes: u64) -> bool {
        let mut memory = lock(&self.memory);
        let fits = (memory.live as u64).saturating_add(bytes) <= self.budget;
        memory.laid_out = if fits { bytes } else { 0 };
        if bytes > 0 {
            (memory.free, memory.bytes, memory.most) = Default::default();
            self.slots.iter().flatten().for_each(|slot| *lock(&slot.spare) = None);
        }
        fits
    }

    /// A tensor with these extents that the register had in an earlier iteration, to be filled again.
    pub fn spare(&self, register: u32, iteration: u64, dims: &[i64]) -> Option<Tensor> {
        let spare = lock(&self.slot(register, iteration)?.spare).take()?;
        (spare.dims() == dims).then_some(spare)
    }

    /// Takes the caller's tensor of an earlier iteration, to be filled again.
    pub fn give_back(&self, register: u32, iteration: u64, mut tensor: Tensor) {
        if let Some(slot) = self.slot(register, iteration).filter(|_| tensor.is_own()) {
            *lock(&slot.spare) = Some(tensor);
        }
    }

    /// Keeps the memory of a slot's dead value for reuse.
    fn recycle(&self, slot: &Slot) {
        let Some(value) = slot.take() else { return };
        let bytes = size(&value);
        let mut memory = lock(&self.memory);
        memory.live = memory.live.saturating_sub(bytes);
        let Some(mut tensor) = value.into_tensor() else { return };
        if !tensor.is_own() {
            return;
        }
        if bytes <= SMALL && slot.keeps_small {
            drop(memory);
            *lock(&slot.spare) = Some(tensor);
        } else if let Some(bytes) = tensor.into_bytes() {
            memory.keep(bytes);
        }
    }

    /// Whether the program has any object register.
    pub fn any(&self) -> bool {
        self.any
    }

    fn slot(&self, register: u32, iteration: u64) -> Option<&Slot> {
        let copies = self.slots.get(register as usize).filter(|copies| !copies.is_empty())?;
        copies.get((iteration % copies.len() as u64) as usize)
    }

    /// The value of a register, to be looked at while the guard lives.
    pub fn read(&self, register: u32, iteration: u64) -> Option<RwLockReadGuard<'_, Option<Value>>> {
        Some(self.slot(register, iteration)?.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the value of a register.
    pub fn write(&self, register: u32, iteration: u64, value: Value) {
        if let Some(slot) = self.slot(register, iteration) {
            let mut memory = lock(&self.memory);
            memory.live += size(&value);
            memory.most = memory.most.max(memory.live);
            drop(memory);
            *slot.value.write().unwrap_or_else(PoisonError::into_inner) = Some(value);
        }
    }

    /// Takes the value for the caller: moved out for its last consumer, a copy otherwise.
    pub fn fetch(&self, register: u32, iteration: u64) -> Option<Value> {
        let slot = self.slot(register, iteration)?;
        if slot.readers.load(Ordering::Acquire) == 1 {
            let value = slot.take();
            let mut memory = lock(&self.memory);
            memory.live = memory.live.saturating_sub(value.as_ref().map_or(0, size));
            return value;
        }
        slot.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that the producer has acted, before its consumers are notified.
    pub fn produced(&self, register: u32, iteration: u64) {
        if let Some(slot) = self.slot(register, iteration) {
            let consumers = self.consumers[register as usize];
            slot.readers.store(consumers, Ordering::Release);
            if consumers == 0 {
                self.recycle(slot);
            }
        }
    }

    /// Records that a consumer has acted. The last one frees the value.
    pub fn consumed(&self, register: u32, iteration: u64) {
        if let Some(slot) = self.slot(register, iteration)
            && slot.readers.fetch_sub(1, Ordering::AcqRel) == 1
        {
            self.recycle(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_used_again_and_bounded() {
        let mut memory = Memory { most: 2 * MAX_FREE_BYTES, ..Memory::default() };
        let block = AlignedBytes::zeroed(MAX_FREE_BYTES);
        let at = block.as_ptr();
        memory.keep(block);
        assert_eq!(memory.take(MAX_FREE_BYTES / 4), None, "much larger than what is asked for");
        assert_eq!(memory.take(MAX_FREE_BYTES - 100).map(|b| (b.as_ptr(), b.len())), Some((at, MAX_FREE_BYTES - 100)));
        // A value that grows: each block is too small for the next.
        for n in 1..20 {
            assert_eq!(memory.take(n * MAX_FREE_BYTES / 2), None);
            memory.keep(AlignedBytes::zeroed(n * MAX_FREE_BYTES / 4));
            assert!(memory.bytes <= 4 * MAX_FREE_BYTES);
            assert_eq!(memory.bytes, memory.free.iter().map(AlignedBytes::capacity).sum::<usize>());
        }
    }
}
