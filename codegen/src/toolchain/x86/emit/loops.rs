//! Values that have a register in a loop and another place outside.

use crate::toolchain::x86::allocate::{Place, Split, Stores};
use crate::toolchain::x86::asm::{Args, Rm};
use crate::toolchain::x86::emit::{ALL, Emitter};
use crate::toolchain::x86::ir::{Class, Reg};
use crate::toolchain::x86::opcode::one;

impl Emitter<'_> {
    /// Loads what has a register in the loop that begins here.
    pub(super) fn enter_loop(&mut self) {
        while let Some(split) = self.splits.next_if(|s| s.span.0 == self.at).copied() {
            let outside = self.place(split.value);
            match self.p.classes[split.value as usize] {
                Class::Int => {
                    let to = ALL[split.register as usize];
                    let from = self.int(split.value, to);
                    if from != to {
                        self.asm.mov(to, from);
                    }
                }
                Class::Vector => self.load_vector(split.register, split.value),
            }
            self.places[split.value as usize] = Place::Register(split.register);
            self.inside.push((split, outside));
        }
    }

    /// Puts what had a register in the loop that ends here back in its place.
    pub(super) fn leave_loop(&mut self) {
        while let Some((split, outside)) = self.inside.pop_if(|(s, _)| s.span.1 == self.at) {
            if split.stores == Stores::AtEnd {
                self.store_split(&split, outside);
            }
            self.places[split.value as usize] = outside;
        }
    }

    /// Stores what an instruction changes in a loop that jumps leave.
    pub(super) fn store_changed(&mut self, value: Reg) {
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
            Class::Int => self.asm.store(to, ALL[split.register as usize], 8),
            Class::Vector => self.asm.vector(one::STORE, Args::new(split.register, 0, Rm::Mem(to))),
        }
    }
}
