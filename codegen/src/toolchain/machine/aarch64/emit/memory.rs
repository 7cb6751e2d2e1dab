//! Loads and stores: of vectors, of narrow elements, and of a part of a vector.

use crate::toolchain::machine::aarch64::asm::{self, Asm, Mem, X, neon};
use crate::toolchain::machine::aarch64::emit::{FIRST, SECOND};
use crate::toolchain::machine::emitter::Emitter;
use crate::toolchain::machine::ir::{Address, Inst, Lanes, NONE, Vector};
use crate::toolchain::machine::operation::{Cond, VectorOp};

/// How an instruction widens elements to lanes, or narrows lanes to elements: the bytes of an element, and the steps.
fn conversion(op: VectorOp) -> Option<(u8, &'static [u32])> {
    Some(match op {
        VectorOp::Load | VectorOp::Store => (4, &[]),
        VectorOp::WidenI8 => (1, &[neon::SXTL_8, neon::SXTL_16]),
        VectorOp::WidenU8 => (1, &[neon::UXTL_8, neon::UXTL_16]),
        VectorOp::WidenI16 => (2, &[neon::SXTL_16]),
        VectorOp::WidenU16 => (2, &[neon::UXTL_16]),
        VectorOp::WidenF16 => (2, &[neon::FCVTL]),
        VectorOp::NarrowBytes => (1, &[neon::XTN_16, neon::XTN_8]),
        VectorOp::NarrowWords => (2, &[neon::XTN_16]),
        VectorOp::NarrowF16 => (2, &[neon::FCVTN]),
        _ => return None,
    })
}

impl Emitter<'_, Asm> {
    /// A place in memory as an access of so many bytes takes it.
    pub(super) fn memory(&mut self, m: Address, bytes: u8) -> Mem {
        let mut base = self.int(m.base, FIRST);
        if m.index != NONE {
            let (index, shift) = (self.integer(m.index, SECOND), m.scale.trailing_zeros() as u8);
            if m.disp == 0 && (shift == 0 || 1 << shift == bytes) {
                return Mem::Index(base, index, shift);
            }
            self.asm.add_shifted(FIRST, base, index, shift);
            base = FIRST;
        }
        if asm::fits(m.disp, bytes) {
            return Mem::At(base, m.disp);
        }
        self.asm.add_imm(FIRST, base, m.disp.into());
        Mem::At(FIRST, 0)
    }

    /// The address of a place in memory, in the first temporary, which may change.
    fn address(&mut self, m: Address) -> X {
        match self.memory(m, 1) {
            Mem::At(base, 0) if base == FIRST => {}
            Mem::At(base, offset) => self.asm.add_imm(FIRST, base, offset.into()),
            Mem::Index(base, index, shift) => self.asm.add_shifted(FIRST, base, index, shift),
        }
        FIRST
    }

    /// Loads lanes.
    pub(super) fn load_lanes(&mut self, inst: &Inst, v: Vector) -> Result<(), String> {
        let Some(m) = inst.mem else { return Ok(()) };
        let to = self.vector_target(inst)?;
        if v.op == VectorOp::Broadcast {
            let mem = self.memory(m, 4);
            match mem {
                _ if self.own.first_lane[inst.dst as usize] => self.asm.access(asm::load_vector(4), to, mem),
                Mem::At(base, 0) => self.asm.load_broadcast(to, base),
                mem => {
                    self.asm.access(asm::load_vector(4), to, mem);
                    self.asm.two(neon::DUP, to, to);
                }
            }
            self.put_vector(inst, to);
            return Ok(());
        }
        let (bytes, steps) = conversion(v.op).ok_or_else(|| format!("{:?} of memory has no code for AArch64", v.op))?;
        let bytes = self.bytes(bytes, v.lanes);
        let mem = self.memory(m, bytes);
        self.asm.access(asm::load_vector(bytes), to, mem);
        steps.iter().for_each(|step| self.asm.two(*step, to, to));
        self.put_vector(inst, to);
        Ok(())
    }

    /// The bytes of an access to elements.
    fn bytes(&self, element: u8, lanes: Lanes) -> u8 {
        match lanes {
            Lanes::All | Lanes::All64 => 4 * element,
            Lanes::Half | Lanes::One64 => 2 * element,
            Lanes::One32 => element,
        }
    }

    /// Stores lanes.
    pub(super) fn store_lanes(&mut self, inst: &Inst, v: Vector) -> Result<(), String> {
        let Some(m) = inst.mem else { return Ok(()) };
        let (element, from) = self.narrowed(inst, v.op)?;
        let bytes = self.bytes(element, v.lanes);
        let mem = self.memory(m, bytes);
        self.asm.access(asm::store_vector(bytes), from, mem);
        Ok(())
    }

    /// The first operand as elements that are stored, and the bytes of one.
    fn narrowed(&mut self, inst: &Inst, op: VectorOp) -> Result<(u8, u8), String> {
        let (element, steps) = conversion(op).ok_or_else(|| format!("{op:?} to memory has no code for AArch64"))?;
        let mut from = self.vector(inst.args[0], inst)?;
        if !steps.is_empty() {
            let narrow = self.temporary(inst)?;
            for step in steps {
                self.asm.two(*step, narrow, from);
                from = narrow;
            }
        }
        Ok((element, from))
    }

    /// Loads the first lanes; the others are 0.
    pub(super) fn load_part(&mut self, inst: &Inst, op: VectorOp) -> Result<(), String> {
        let Some(m) = inst.mem else { return Ok(()) };
        let (element, steps) = conversion(op).ok_or_else(|| format!("a part by {op:?} has no code for AArch64"))?;
        let to = self.vector_target(inst)?;
        let at = self.address(m);
        let load = |asm: &mut Asm, elements: u8| asm.access(asm::load_vector(elements * element), to, Mem::At(at, 0));
        let two = |asm: &mut Asm| asm.access_and_move(asm::load_vector(2 * element), to, at, 2 * i32::from(element));
        let third = |asm: &mut Asm| asm.third(true, element, to, at);
        let none = |asm: &mut Asm| asm.lanes(to, 0);
        self.part(inst.args[0], inst.imm, [&none, &|asm| load(asm, 1), &two, &third, &|asm| load(asm, 4)]);
        steps.iter().for_each(|step| self.asm.two(*step, to, to));
        self.put_vector(inst, to);
        Ok(())
    }

    /// Stores the first lanes of the first operand.
    pub(super) fn store_part(&mut self, inst: &Inst, op: VectorOp) -> Result<(), String> {
        let Some(m) = inst.mem else { return Ok(()) };
        let (element, from) = self.narrowed(inst, op)?;
        let at = self.address(m);
        let store = |asm: &mut Asm, n: u8| asm.access(asm::store_vector(n * element), from, Mem::At(at, 0));
        let two = |asm: &mut Asm| asm.access_and_move(asm::store_vector(2 * element), from, at, 2 * i32::from(element));
        let third = |asm: &mut Asm| asm.third(false, element, from, at);
        self.part(inst.args[1], inst.imm, [&|_| {}, &|asm| store(asm, 1), &two, &third, &|asm| store(asm, 4)]);
        Ok(())
    }

    /// An access to as many elements as a register or else a number says: what is done before one or none, for one, for two, for the
    /// third, and for all.
    fn part(&mut self, count: u32, known: i64, [none, one, two, third, all]: [&dyn Fn(&mut Asm); 5]) {
        if count == NONE {
            let asm = &mut self.asm;
            match known {
                ..=0 => none(asm),
                1 => one(asm),
                2 => two(asm),
                3 => {
                    two(asm);
                    third(asm);
                }
                _ => all(asm),
            }
            return;
        }
        let n = self.integer(count, SECOND);
        let asm = &mut self.asm;
        let (less, few, end) = (asm.label(), asm.label(), asm.label());
        asm.cmp_imm(n, 4, SECOND);
        asm.jump_if(Cond::Less, less);
        all(asm);
        asm.jmp(end);
        asm.bind(less);
        asm.jump_if_clear(n, 1, few);
        two(asm);
        asm.jump_if_clear(n, 0, end);
        third(asm);
        asm.jmp(end);
        asm.bind(few);
        none(asm);
        asm.jump_if_clear(n, 0, end);
        one(asm);
        asm.bind(end);
    }
}
