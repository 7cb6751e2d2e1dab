//! What emitters of all targets share: where values are while instructions are emitted, temporary registers, and values that have a
//! register in a loop and another place outside.

use std::iter::Peekable;
use std::slice::Iter;

use crate::toolchain::machine::allocate::{Allocation, Place, Split, Stores};
use crate::toolchain::machine::ir::{Class, Inst, Op, Program, Reg};

/// The assembler of a target: the instructions that move values between places.
pub trait Assembler {
    /// A general-purpose register.
    type Gp: Copy + PartialEq;
    /// What the emitter of the target knows besides.
    type State;
    /// Bytes of a slot of a vector in the frame.
    const SLOT: i32;

    /// The general-purpose register with this number.
    fn gp(number: u8) -> Self::Gp;
    /// Copies an integer.
    fn move_int(&mut self, to: Self::Gp, from: Self::Gp);
    /// A number.
    fn number(&mut self, to: Self::Gp, n: i64);
    /// Loads 8 bytes at an offset in the frame.
    fn load_int(&mut self, to: Self::Gp, at: i32);
    /// Stores 8 bytes at an offset in the frame.
    fn store_int(&mut self, at: i32, from: Self::Gp);
    /// Copies a vector.
    fn move_vector(&mut self, to: u8, from: u8);
    /// Loads a vector at an offset in the frame.
    fn load_vector(&mut self, to: u8, at: i32);
    /// Stores a vector at an offset in the frame.
    fn store_vector(&mut self, at: i32, from: u8);
    /// A word in all lanes.
    fn constant(&mut self, to: u8, bits: u32);
}

/// The most registers whose values are put aside for an instruction.
const BORROWED: u32 = 4;

/// A program whose instructions are emitted in their order.
pub struct Emitter<'a, A: Assembler> {
    /// The program.
    pub p: &'a Program,
    /// The instructions so far.
    pub asm: A,
    /// What the target knows besides.
    pub own: A::State,
    /// The position of the instruction.
    pub at: u32,
    /// Where the frame has the stack pointer of the caller; none without a frame.
    pub frame: Option<i32>,
    /// The vector registers that were temporaries, one bit each.
    pub touched: u32,
    /// Where values are now.
    places: Vec<Place>,
    allocation: &'a Allocation,
    /// For each vector register the first range that has not ended.
    cursors: Vec<usize>,
    /// Offsets in the frame: slots of vectors, slots of integers.
    vectors: i32,
    slots: i32,
    /// Vector registers that the instruction uses as temporaries.
    taken: Vec<u8>,
    /// Those among them whose values are in the frame meanwhile.
    borrowed: Vec<(u8, i32)>,
    /// Registers that hold constants for now, and the position from which on they hold values again.
    held: Vec<(u8, Reg, u32)>,
    /// Where constants without a register are read, by register of the program.
    constant_reads: Vec<Vec<u32>>,
    /// The position of the next label.
    next_label: u32,
    /// Loops ahead in which values have registers.
    splits: Peekable<Iter<'a, Split>>,
    /// The same of the loops around the instruction, with the places outside of them.
    inside: Vec<(Split, Place)>,
}

/// Whether a program needs a frame, temporaries apart.
pub fn needs_frame(p: &Program, allocation: &Allocation) -> bool {
    let parameter = |i: &Inst| i.op == Op::Param && !matches!(allocation.places[i.dst as usize], Place::Register(_));
    p.frame > 0 || allocation.slots > 0 || allocation.vectors > 0 || p.insts.iter().any(parameter)
}

/// Where constants without a register are read.
fn constant_reads(p: &Program, places: &[Place]) -> Vec<Vec<u32>> {
    let mut out = vec![Vec::new(); places.len()];
    for (i, inst) in p.insts.iter().enumerate() {
        for r in inst.reads() {
            if p.classes[r as usize] == Class::Vector && matches!(places[r as usize], Place::Again(_)) {
                out[r as usize].push(i as u32);
            }
        }
    }
    out
}

impl<'a, A: Assembler> Emitter<'a, A> {
    /// Before the first instruction, with a frame or without.
    pub fn new(p: &'a Program, allocation: &'a Allocation, asm: A, own: A::State, frame: bool) -> Emitter<'a, A> {
        let vectors = p.frame.next_multiple_of(64) as i32;
        let slots = vectors + A::SLOT * (allocation.vectors + BORROWED) as i32;
        let (taken, borrowed, held, inside) = Default::default();
        Emitter {
            p,
            asm,
            own,
            at: 0,
            frame: frame.then_some(slots + 8 * allocation.slots as i32),
            touched: 0,
            places: allocation.places.clone(),
            allocation,
            cursors: vec![0; allocation.busy.len()],
            vectors,
            slots,
            taken,
            borrowed,
            held,
            constant_reads: constant_reads(p, &allocation.places),
            next_label: 0,
            splits: allocation.splits.iter().peekable(),
            inside,
        }
    }

    /// Begins the instruction at a position; whether that is a label, where it is not known what temporaries hold.
    pub fn begin(&mut self, at: usize) -> bool {
        self.at = at as u32;
        let label = self.at >= self.next_label;
        if label {
            self.held.clear();
            let rest = self.p.insts[at + 1..].iter().position(|x| matches!(x.op, Op::Label(_)));
            self.next_label = rest.map_or(u32::MAX, |n| (at + 1 + n) as u32);
        }
        label
    }

    /// Ends an instruction: values that were put aside come back.
    pub fn end(&mut self, inst: &Inst) {
        self.store_changed(inst.dst);
        self.taken.clear();
        while let Some((register, home)) = self.borrowed.pop() {
            self.asm.load_vector(register, home);
        }
    }

    /// Moves the parameters, which come in registers, where they belong.
    pub fn parameters(&mut self, spare: A::Gp, exchange: fn(&mut A, A::Gp, A::Gp)) {
        let mut moves: Vec<(A::Gp, Reg)> = Vec::new();
        for inst in self.p.insts.iter().filter(|i| i.op == Op::Param) {
            let from = A::gp(self.p.target.parameters[inst.imm as usize]);
            match self.place(inst.dst) {
                Place::Register(to) if A::gp(to) == from => {}
                Place::Register(_) => moves.push((from, inst.dst)),
                _ => self.put(inst.dst, from),
            }
        }
        while let Some(i) = (0..moves.len()).find(|i| {
            let to = self.target(moves[*i].1, spare);
            !moves.iter().any(|(from, _)| *from == to)
        }) {
            let (from, value) = moves.swap_remove(i);
            self.put(value, from);
        }
        // What is left are exchanges of two.
        if let [(a, value), _] = moves[..] {
            let b = self.target(value, spare);
            exchange(&mut self.asm, a, b);
        }
    }

    // ---- integers ----

    /// Where a value is now.
    pub fn place(&self, r: Reg) -> Place {
        self.places[r as usize]
    }

    /// The offset in the frame of a value in a slot.
    pub fn home(&self, r: Reg, slot: u32) -> i32 {
        match self.p.classes[r as usize] {
            Class::Int => self.slots + 8 * slot as i32,
            Class::Vector => self.vectors + A::SLOT * slot as i32,
        }
    }

    /// An integer in a register: its own, or else the temporary.
    pub fn int(&mut self, r: Reg, temporary: A::Gp) -> A::Gp {
        match self.place(r) {
            Place::Register(n) => return A::gp(n),
            Place::Slot(s) => {
                let from = self.home(r, s);
                self.asm.load_int(temporary, from);
            }
            Place::Again(n) => self.asm.number(temporary, n),
            Place::None => {}
        }
        temporary
    }

    /// The register of an integer result: its own, or else the temporary, which [`Emitter::put`] stores.
    pub fn target(&self, r: Reg, temporary: A::Gp) -> A::Gp {
        match self.place(r) {
            Place::Register(n) => A::gp(n),
            _ => temporary,
        }
    }

    /// Puts an integer result where it belongs.
    pub fn put(&mut self, r: Reg, from: A::Gp) {
        match self.place(r) {
            Place::Register(n) if A::gp(n) != from => self.asm.move_int(A::gp(n), from),
            Place::Slot(s) => {
                let to = self.home(r, s);
                self.asm.store_int(to, from);
            }
            _ => {}
        }
    }

    // ---- vectors ----

    /// The position from which on a vector register holds a value; now or earlier if it does already.
    fn next_value(&mut self, r: u8) -> u32 {
        let ranges = &self.allocation.busy[r as usize];
        let cursor = &mut self.cursors[r as usize];
        while ranges.get(*cursor).is_some_and(|range| range.1 < self.at) {
            *cursor += 1;
        }
        ranges.get(*cursor).map_or(u32::MAX, |range| range.0)
    }

    /// Says that the instruction uses a vector register as a temporary.
    fn take(&mut self, register: u8) {
        self.touched |= 1 << register;
        self.taken.push(register);
    }

    /// A register with a constant, if one is free until the next reader, which comes before the next label.
    pub fn hold(&mut self, r: Reg, bits: i64) -> Option<u8> {
        self.held.retain(|h| h.2 > self.at);
        if let Some((register, ..)) = self.held.iter().find(|h| h.1 == r) {
            self.taken.push(*register);
            return Some(*register);
        }
        let reads = &self.constant_reads[r as usize];
        let next = *reads.get(reads.partition_point(|i| *i <= self.at)).filter(|next| **next < self.next_label)?;
        let free =
            |s: &mut Self, r: u8| s.next_value(r) > next && !s.taken.contains(&r) && s.held.iter().all(|h| h.0 != r);
        let register = self.p.target.temporaries.iter().copied().find(|r| free(self, *r))?;
        self.asm.constant(register, bits as u32);
        let until = self.next_value(register);
        self.held.push((register, r, until));
        self.take(register);
        Some(register)
    }

    /// A vector register that holds nothing, or whose value is put aside.
    ///
    /// # Errors
    /// When none can be put aside.
    pub fn temporary(&mut self, inst: &Inst) -> Result<u8, String> {
        // Those with constants last.
        for holds in [false, true] {
            for r in self.p.target.temporaries.iter().copied() {
                let holds_constant = self.held.iter().any(|h| h.0 == r);
                if holds_constant == holds && self.next_value(r) > self.at && !self.taken.contains(&r) {
                    self.held.retain(|h| h.0 != r);
                    self.take(r);
                    return Ok(r);
                }
            }
        }
        let used: Vec<Place> = inst.reads().chain([inst.dst]).map(|r| self.place(r)).collect();
        let all = 0..self.cursors.len() as u8;
        let other = all.into_iter().find(|r| !used.contains(&Place::Register(*r)) && !self.taken.contains(r));
        let register = other.ok_or("an instruction has too many operands")?;
        let home = self.vectors + A::SLOT * (self.allocation.vectors as i32 + self.borrowed.len() as i32);
        if self.borrowed.len() == BORROWED as usize || self.frame.is_none() {
            return Err("an instruction needs too many temporary registers".into());
        }
        self.asm.store_vector(home, register);
        self.borrowed.push((register, home));
        self.take(register);
        Ok(register)
    }

    /// A vector in a register: its own, or a temporary.
    ///
    /// # Errors
    /// When there is no temporary.
    pub fn vector(&mut self, r: Reg, inst: &Inst) -> Result<u8, String> {
        match self.place(r) {
            Place::Register(n) => return Ok(n),
            Place::Again(bits) => {
                if let Some(n) = self.hold(r, bits) {
                    return Ok(n);
                }
            }
            _ => {}
        }
        let to = self.temporary(inst)?;
        self.load_vector(to, r);
        Ok(to)
    }

    /// Loads a vector from where it is.
    pub fn load_vector(&mut self, to: u8, r: Reg) {
        match self.place(r) {
            Place::Register(n) if n != to => self.asm.move_vector(to, n),
            Place::Slot(s) => {
                let from = self.home(r, s);
                self.asm.load_vector(to, from);
            }
            Place::Again(bits) => match self.held.iter().find(|h| h.1 == r && h.2 > self.at).map(|h| h.0) {
                Some(n) if n != to => self.asm.move_vector(to, n),
                _ => self.asm.constant(to, bits as u32),
            },
            _ => {}
        }
    }

    /// The register of a vector result: its own, or a temporary, which [`Emitter::put_vector`] stores.
    ///
    /// # Errors
    /// When there is no temporary.
    pub fn vector_target(&mut self, inst: &Inst) -> Result<u8, String> {
        match self.place(inst.dst) {
            Place::Register(n) => Ok(n),
            _ => self.temporary(inst),
        }
    }

    /// Stores a vector result that has no register.
    pub fn put_vector(&mut self, inst: &Inst, from: u8) {
        if let Place::Slot(s) = self.place(inst.dst) {
            let to = self.home(inst.dst, s);
            self.asm.store_vector(to, from);
        }
    }

    // ---- loops ----

    /// Whether no other loop begins before this one ends.
    pub fn is_innermost(&self) -> bool {
        let rest = &self.p.insts[self.at as usize + 1..];
        rest.iter().find_map(|i| if let Op::Loop(begin) = i.op { Some(!begin) } else { None }).unwrap_or(false)
    }

    /// Loads what has a register in the loop that begins here.
    pub fn enter_loop(&mut self) {
        while let Some(split) = self.splits.next_if(|s| s.span.0 == self.at).copied() {
            let outside = self.place(split.value);
            match self.p.classes[split.value as usize] {
                Class::Int => {
                    let to = A::gp(split.register);
                    let from = self.int(split.value, to);
                    if from != to {
                        self.asm.move_int(to, from);
                    }
                }
                Class::Vector => self.load_vector(split.register, split.value),
            }
            self.places[split.value as usize] = Place::Register(split.register);
            self.inside.push((split, outside));
        }
    }

    /// Puts what had a register in the loop that ends here back in its place.
    pub fn leave_loop(&mut self) {
        while let Some((split, outside)) = self.inside.pop_if(|(s, _)| s.span.1 == self.at) {
            if split.stores == Stores::AtEnd {
                self.store_split(&split, outside);
            }
            self.places[split.value as usize] = outside;
        }
    }

    /// Stores what an instruction changes in a loop that jumps leave.
    fn store_changed(&mut self, value: Reg) {
        let split = self.inside.iter().rev().find(|(s, _)| s.value == value && s.stores == Stores::AtChanges);
        if let Some((split, place)) = split.copied() {
            self.store_split(&split, place);
        }
    }

    /// Stores a value that has a register in a loop, if its place outside is a slot.
    fn store_split(&mut self, split: &Split, outside: Place) {
        let Place::Slot(slot) = outside else { return };
        let to = self.home(split.value, slot);
        match self.p.classes[split.value as usize] {
            Class::Int => self.asm.store_int(to, A::gp(split.register)),
            Class::Vector => self.asm.store_vector(to, split.register),
        }
    }
}
