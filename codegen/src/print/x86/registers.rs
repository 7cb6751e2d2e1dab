//! Register allocation of a block: which vector registers hold which values.
//!
//! One pass over the straight-line program. Where all registers are taken, the value whose next use is farthest moves to the stack.
//! Constants and slots are read from memory where they are used, unless a register remains for them during the whole loop.

use crate::print::x86::block::{Block, Inst, Value};

/// Registers that a loop keeps: values of constants and slots.
pub type Pins = Vec<(Value, u8)>;

/// Uses of each value, the first last.
fn uses(block: &Block) -> Vec<Vec<usize>> {
    let mut out = vec![Vec::new(); block.insts.len()];
    for (i, inst) in block.insts.iter().enumerate().rev() {
        for v in inst.operands() {
            if out[v].last() != Some(&i) {
                out[v].push(i);
            }
        }
    }
    out
}

/// Registers that an instruction needs besides those of its values.
const TEMPORARIES: usize = 3;

/// The most values that are live at once, apart from those that memory holds anyway.
fn pressure(block: &Block, uses: &[Vec<usize>]) -> usize {
    let lives = |v: Value| !block.insts[v].in_memory() && !uses[v].is_empty();
    let mut change = vec![0isize; block.insts.len() + 1];
    for v in (0..block.insts.len()).filter(|v| lives(*v)) {
        change[v] += 1;
        change[uses[v][0]] -= 1;
    }
    let (mut now, mut most) = (0, 0);
    for c in change {
        now += c;
        most = most.max(now);
    }
    most.max(0) as usize
}

/// Chooses the constants and slots that stay in registers, the most used first; `free` are the registers that may be used.
pub fn pins(block: &Block, free: &[u8]) -> Pins {
    let uses = uses(block);
    let spare = free.len().saturating_sub(pressure(block, &uses) + TEMPORARIES);
    let mut wanted: Vec<Value> =
        (0..block.insts.len()).filter(|v| block.insts[*v].in_memory() && !uses[*v].is_empty()).collect();
    wanted.sort_by_key(|v| (std::cmp::Reverse(uses[*v].len()), *v));
    wanted.into_iter().take(spare).zip(free.iter().rev().copied()).collect()
}

/// Moves a value between a register and the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spill {
    /// The value.
    pub value: Value,
    /// The register that held it.
    pub register: u8,
}

/// The registers during a block.
pub struct Registers<'b> {
    block: &'b Block,
    uses: Vec<Vec<usize>>,
    place: Vec<Option<u8>>,
    pinned: Vec<bool>,
    holder: Vec<(u8, Option<Value>)>,
    locked: Vec<u8>,
}

impl<'b> Registers<'b> {
    /// The registers `free` at the start of a block, of which some are pinned.
    pub fn new(block: &'b Block, free: &[u8], pins: &Pins) -> Registers<'b> {
        let n = block.insts.len();
        let mut out = Registers {
            block,
            uses: uses(block),
            place: vec![None; n],
            pinned: vec![false; n],
            holder: Vec::new(),
            locked: Vec::new(),
        };
        for (v, r) in pins {
            out.place[*v] = Some(*r);
            out.pinned[*v] = true;
        }
        out.holder = free.iter().filter(|r| !pins.iter().any(|(_, p)| p == *r)).map(|r| (*r, None)).collect();
        out
    }

    /// The register of a value, if it has one. It is locked until the instruction ends.
    pub fn find(&mut self, v: Value) -> Option<u8> {
        self.locked.extend(self.place[v]);
        self.place[v]
    }

    /// Whether the instruction `at` is the last that reads `v`, and its register may be overwritten.
    pub fn dies(&self, v: Value, at: usize) -> bool {
        !self.pinned[v] && self.uses[v].first().is_none_or(|last| *last <= at)
    }

    /// Takes a register for `v`, and says which value must be stored first, if any.
    pub fn take(&mut self, v: Option<Value>, at: usize) -> (u8, Option<Spill>) {
        let free = self.holder.iter().position(|(r, h)| h.is_none() && !self.locked.contains(r));
        let next = |h: &Option<Value>| h.and_then(|h| self.uses[h].iter().rev().find(|u| **u >= at).copied());
        let farthest = || {
            (0..self.holder.len())
                .filter(|i| !self.locked.contains(&self.holder[*i].0))
                .max_by_key(|i| next(&self.holder[*i].1).map_or(usize::MAX, |n| n))
        };
        let index = free.or_else(farthest).unwrap_or(0);
        let (register, old) = self.holder[index];
        let spill = old.and_then(|value| {
            self.place[value] = None;
            (!self.block.insts[value].in_memory()).then_some(Spill { value, register })
        });
        self.holder[index].1 = v;
        if let Some(v) = v {
            self.place[v] = Some(register);
        }
        self.locked.push(register);
        (register, spill)
    }

    /// Gives the register of `from`, which dies, to `to`.
    pub fn hand_over(&mut self, from: Value, to: Value) {
        let Some(register) = self.place[from].take() else { return };
        self.place[to] = Some(register);
        if let Some(h) = self.holder.iter_mut().find(|(r, _)| *r == register) {
            h.1 = Some(to);
        }
    }

    /// Frees the registers of values that the instruction `at` reads last.
    pub fn release(&mut self, at: usize, operands: &[Value]) {
        for v in operands {
            if self.dies(*v, at)
                && let Some(register) = self.place[*v].take()
            {
                self.holder.iter_mut().filter(|(r, _)| *r == register).for_each(|h| h.1 = None);
            }
        }
    }

    /// Unlocks everything: an instruction ends.
    pub fn unlock(&mut self) {
        self.locked.clear();
    }

    /// Whether a value is read at all.
    pub fn is_used(&self, v: Value) -> bool {
        !self.uses[v].is_empty()
    }
}

impl Inst {
    /// Whether it computes a value.
    pub fn has_value(&self) -> bool {
        !matches!(self, Inst::Store(..) | Inst::Accumulate(..) | Inst::Keep(..))
    }
}
