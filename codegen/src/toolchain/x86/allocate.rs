//! Register allocation by linear scan: a register is live from its first definition to its last reader, or to the end of the
//! loop that it lives through. Where registers do not suffice, the value that is used least, weighted by loops, moves to memory.

use crate::toolchain::x86::asm::Gp;
use crate::toolchain::x86::ir::{Class, FRAME, Inst, NONE, Op, Program, Reg};

/// How much more a value counts that is used in a loop.
const LOOP_WEIGHT: f32 = 16.0;
/// How much a constant counts: most instructions read it from memory as well.
const AGAIN_WEIGHT: f32 = 0.1;

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Nowhere: it is not used.
    None,
    /// In a general-purpose or vector register.
    Register(u8),
    /// In the frame, at this slot of its class.
    Slot(u32),
    /// Computed again where it is read: a number or constant.
    Again(i64),
}

/// General-purpose registers that hold values. The others are temporaries: rax, rcx and rdx; rsp points to the frame.
pub const GENERAL: [Gp; 12] =
    [Gp::Rbx, Gp::Rsi, Gp::Rdi, Gp::R8, Gp::R9, Gp::R10, Gp::R11, Gp::Rbp, Gp::R12, Gp::R13, Gp::R14, Gp::R15];

/// The places of all values.
pub struct Allocation {
    /// By register of the program.
    pub places: Vec<Place>,
    /// Slots of 8 bytes.
    pub slots: u32,
    /// Slots of a vector.
    pub vectors: u32,
    /// For each vector register the ranges in which it holds a value, in order.
    pub busy: Vec<Vec<(u32, u32)>>,
}

/// A live range.
#[derive(Clone, Copy)]
struct Range {
    register: Reg,
    start: u32,
    end: u32,
    weight: f32,
}

/// A loop: its first and last instruction, and the loop around it.
type Loop = (u32, u32, Option<u32>);

/// The innermost loop around each instruction, as an index into the loops, and the loops.
fn loops(p: &Program) -> (Vec<Option<u32>>, Vec<Loop>) {
    let (mut around, mut all): (Vec<Option<u32>>, Vec<Loop>) = Default::default();
    let mut now = None;
    for (i, inst) in p.insts.iter().enumerate() {
        if inst.op == Op::Loop(true) {
            all.push((i as u32, 0, now));
            now = Some(all.len() as u32 - 1);
        }
        around.push(now);
        if inst.op == Op::Loop(false)
            && let Some(l) = now
        {
            all[l as usize].1 = i as u32;
            now = all[l as usize].2;
        }
    }
    (around, all)
}

/// The live ranges of all registers, by their start.
fn ranges(p: &Program) -> Vec<Range> {
    let (around, loops) = loops(p);
    let mut depths = vec![0u8; loops.len()];
    for (i, l) in loops.iter().enumerate() {
        depths[i] = 1 + l.2.map_or(0, |outer| depths[outer as usize]);
    }
    let empty = Range { register: NONE, start: u32::MAX, end: 0, weight: 0.0 };
    let mut out = vec![empty; p.classes.len()];
    let weights: Vec<f32> = (0..12).map(|d| LOOP_WEIGHT.powi(d)).collect();
    for (i, inst) in p.insts.iter().enumerate() {
        let at = i as u32;
        let weight = around[i].map_or(1.0, |l| weights[depths[l as usize].min(11) as usize]);
        for r in inst.reads() {
            let range = &mut out[r as usize];
            range.weight += weight;
            range.end = range.end.max(at);
            // It lives through loops that begin after its definition.
            let mut inner = around[i];
            while let Some(l) = inner {
                let (begin, end, outer) = loops[l as usize];
                if begin <= range.start {
                    break;
                }
                range.end = range.end.max(end);
                inner = outer;
            }
        }
        if inst.dst != NONE {
            let range = &mut out[inst.dst as usize];
            range.register = inst.dst;
            range.start = range.start.min(at);
            range.end = range.end.max(at);
            range.weight += weight;
        }
    }
    let mut out: Vec<Range> = out.into_iter().filter(|r| r.register != NONE && r.register != FRAME).collect();
    out.sort_by_key(|r| r.start);
    out
}

/// Chooses the places of all values.
pub fn allocate(p: &Program) -> Allocation {
    let mut places = vec![Place::None; p.classes.len()];
    places[FRAME as usize] = Place::Register(Gp::Rsp as u8);
    let mut again: Vec<Option<i64>> = vec![None; p.classes.len()];
    let mut known = vec![true; p.classes.len()];
    for Inst { op, dst, imm, .. } in &p.insts {
        let dst = *dst as usize;
        // Merged registers have several definitions.
        known[dst] &= matches!(op, Op::Imm | Op::Const) && again[dst].is_none();
        again[dst] = Some(*imm);
    }
    again.iter_mut().zip(known).filter(|(_, known)| !known).for_each(|(n, _)| *n = None);
    let vectors = if p.avx512 { 32 } else { 16 };
    let free = [GENERAL.iter().rev().map(|r| *r as u8).collect::<Vec<_>>(), (0..vectors).rev().collect()];
    let [mut general, mut vector] = free.map(|free| Scan { free, active: Vec::new(), slots: Slots::default() });
    for range in ranges(p) {
        let scan = if p.classes[range.register as usize] == Class::Int { &mut general } else { &mut vector };
        scan.assign(range, &again, &mut places);
    }
    let mut busy = vec![Vec::new(); vectors as usize];
    for range in ranges(p) {
        if let (Place::Register(r), Class::Vector) =
            (places[range.register as usize], p.classes[range.register as usize])
        {
            busy[r as usize].push((range.start, range.end));
        }
    }
    Allocation { places, slots: general.slots.count, vectors: vector.slots.count, busy }
}

/// Slots in the frame, which are used again.
#[derive(Default)]
struct Slots {
    count: u32,
    /// The end of the range that has each slot.
    ends: Vec<u32>,
}

impl Slots {
    fn take(&mut self, range: Range) -> u32 {
        if let Some(i) = self.ends.iter().position(|end| *end < range.start) {
            self.ends[i] = range.end;
            return i as u32;
        }
        self.ends.push(range.end);
        self.count += 1;
        self.count - 1
    }
}

/// The state of one class of registers.
struct Scan {
    free: Vec<u8>,
    active: Vec<(Range, u8)>,
    slots: Slots,
}

impl Scan {
    fn assign(&mut self, range: Range, again: &[Option<i64>], places: &mut [Place]) {
        let free = &mut self.free;
        self.active.retain(|(r, register)| {
            let lives = r.end > range.start;
            if !lives {
                free.push(*register);
            }
            lives
        });
        let cost = |r: &Range| {
            let length = f32::from(u16::try_from(r.end - r.start + 1).unwrap_or(u16::MAX));
            let weight = if again[r.register as usize].is_some() { r.weight * AGAIN_WEIGHT } else { r.weight };
            weight / length
        };
        if let Some(register) = free.pop() {
            places[range.register as usize] = Place::Register(register);
            self.active.push((range, register));
            return;
        }
        let cheapest =
            (0..self.active.len()).min_by(|a, b| cost(&self.active[*a].0).total_cmp(&cost(&self.active[*b].0)));
        let mut out = range;
        if let Some(i) = cheapest.filter(|i| cost(&self.active[*i].0) < cost(&range)) {
            let (old, register) = self.active[i];
            places[range.register as usize] = Place::Register(register);
            self.active[i] = (range, register);
            out = old;
        }
        places[out.register as usize] = match again[out.register as usize] {
            Some(n) => Place::Again(n),
            None => Place::Slot(self.slots.take(out)),
        };
    }
}
