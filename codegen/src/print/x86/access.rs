//! Loads and stores of vectors: elements are widened to 32-bit lanes, narrowed again, and at the end of a row only some lanes exist.
//!
//! With AVX-512 a mask selects these lanes. With AVX2 it does so for 32-bit elements; other elements, and those that are not
//! contiguous, go through a buffer on the stack, one by one.

use of_ir::DType;

use crate::print::x86::asm::Gp::{R11, Rax, Rcx, Rdx};
use crate::print::x86::asm::{Alu, Args, Asm, Cond, Gp, Mem, Op, Rm, op};
use crate::print::x86::block::two;
use crate::print::x86::frame::{Frame, Var};

/// The mask register that selects the lanes at the end of a row.
pub const TAIL: u8 = 2;

const LOAD: Op = op(0, 1, 0x10);
const STORE: Op = op(0, 1, 0x11);
const BROADCAST: Op = op(1, 2, 0x18);
const BROADCAST_8: Op = op(1, 2, 0x78);
const BROADCAST_16: Op = op(1, 2, 0x79);
const MASKED_LOAD: Op = op(1, 2, 0x2c);
const MASKED_STORE: Op = op(1, 2, 0x2e);
const WIDEN_F16: Op = op(1, 2, 0x13);
const NARROW_F16: Op = op(1, 3, 0x1d);
const NARROW_8: Op = op(2, 2, 0x31);
const NARROW_16: Op = op(2, 2, 0x33);
const SHUFFLE_BYTES: Op = op(1, 2, 0x00);
const PERMUTE_64: Op = Op { prefix: 1, map: 3, code: 0x00, wide: true };
const UPPER_HALF: Op = op(1, 3, 0x39);
const STORE_WORD: Op = op(1, 1, 0x7e);
const SHIFT: Op = op(1, 1, 0x72);

/// Where the row of an access begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// In a register.
    Register(Gp),
    /// In the frame.
    Frame(Var),
}

/// The distance of neighbouring elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// One element for the whole row.
    Same,
    /// Neighbours.
    Next,
    /// So many bytes.
    Bytes(i32),
    /// So many bytes, known at run time.
    Open(Var),
}

/// An access to memory in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Address of the first element of the row.
    pub base: Base,
    /// Type of the elements.
    pub dtype: DType,
    /// Distance of the elements.
    pub step: Step,
}

/// The lanes that a statement computes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All.
    All,
    /// The first ones: their number, and the vector on the stack with the mask for AVX2.
    First(Var, usize),
    /// One, whose value all lanes hold.
    One,
}

/// Bytes of an element.
pub fn bytes(dtype: DType) -> usize {
    dtype.bits().map_or(1, |b| b.div_ceil(8))
}

/// Emits loads and stores at the element whose index in the row is rax. Changes rcx, rdx, r11 and the vector `spare`.
pub struct Memory<'f> {
    /// The kernel.
    pub frame: &'f mut Frame,
    /// A vector register that holds nothing.
    pub spare: u8,
    /// The lanes.
    pub part: Part,
}

impl Memory<'_> {
    fn asm(&mut self) -> &mut Asm {
        &mut self.frame.asm
    }

    fn lanes(&self) -> i32 {
        if self.frame.asm.evex() { 16 } else { 8 }
    }

    /// The register of a base.
    fn base(&mut self, base: Base) -> Gp {
        match base {
            Base::Register(r) => r,
            Base::Frame(var) => {
                self.asm().load(R11, var.mem());
                R11
            }
        }
    }

    /// Loads into the register `to`.
    pub fn load(&mut self, to: u8, access: &Access) {
        match access.step {
            Step::Same => self.same(to, access),
            Step::Next => self.next(to, access),
            Step::Bytes(_) => self.strided(to, access),
            Step::Open(var) => {
                // Most unknown strides are one element.
                let (strided, done) = (self.asm().label(), self.asm().label());
                self.asm().load(Rcx, var.mem());
                self.asm().alu_imm(Alu::Cmp, Rcx, bytes(access.dtype) as i32);
                self.asm().jump_if(Cond::NotEqual, strided);
                self.next(to, access);
                self.asm().jmp(done);
                self.asm().bind(strided);
                self.strided(to, access);
                self.asm().bind(done);
            }
        }
    }

    /// One element in all lanes.
    fn same(&mut self, to: u8, access: &Access) {
        let (at, spare) = (Rm::Mem(Mem::at(self.base(access.base), 0)), self.spare);
        match bytes(access.dtype) {
            4 => self.asm().vector(BROADCAST, Args::new(to, 0, at)),
            n => {
                let broadcast = if n == 1 { BROADCAST_8 } else { BROADCAST_16 };
                self.asm().vector(broadcast, Args::new(spare, 0, at));
                self.widen(to, access.dtype, Rm::Reg(spare), false);
            }
        }
    }

    /// Neighbouring elements.
    fn next(&mut self, to: u8, access: &Access) {
        let size = bytes(access.dtype);
        match self.part {
            Part::First(_, mask) if !self.frame.asm.evex() => {
                if size < 4 {
                    return self.strided(to, access);
                }
                let spare = self.spare;
                self.asm().vector(LOAD, Args::new(spare, 0, Rm::Mem(Frame::vector_mem(mask))));
                let at = Rm::Mem(Mem::At(self.base(access.base), Some((Rax, 4)), 0));
                self.asm().vector(MASKED_LOAD, Args::new(to, spare, at));
            }
            part => {
                let at = Rm::Mem(Mem::At(self.base(access.base), Some((Rax, size as u8)), 0));
                self.widen(to, access.dtype, at, matches!(part, Part::First(..)));
            }
        }
    }

    /// Widens elements to lanes, only those of the tail if `masked`.
    fn widen(&mut self, to: u8, dtype: DType, from: Rm, masked: bool) {
        let load = match dtype {
            DType::U8 | DType::Bool => op(1, 2, 0x31),
            DType::I8 => op(1, 2, 0x21),
            DType::U16 | DType::BF16 => op(1, 2, 0x33),
            DType::I16 => op(1, 2, 0x23),
            DType::F16 => WIDEN_F16,
            _ => LOAD,
        };
        let mask = if masked { TAIL } else { 0 };
        self.asm().vector(load, Args { mask, zero: masked, ..Args::new(to, 0, from) });
        match dtype {
            // The upper half of f32.
            DType::BF16 => self.asm().vector(SHIFT, Args { imm: Some(16), ..Args::new(6, to, Rm::Reg(to)) }),
            // Booleans are bytes of 0 and 1, masks 0 and -1.
            DType::Bool => {
                let spare = self.spare;
                self.asm().vector(two::XOR, Args::new(spare, spare, Rm::Reg(spare)));
                self.asm().vector(two::ISUB, Args::new(to, spare, Rm::Reg(to)));
            }
            _ => {}
        }
    }

    /// Elements at a distance, through the buffer.
    fn strided(&mut self, to: u8, access: &Access) {
        let (base, size) = (self.base(access.base), bytes(access.dtype));
        self.asm().mov(Rcx, Rax);
        match access.step {
            Step::Bytes(n) => self.asm().imul_imm(Rcx, n),
            Step::Open(var) => self.asm().imul(Rcx, Rm::Mem(var.mem())),
            _ => self.asm().imul_imm(Rcx, size as i32),
        }
        self.asm().lea(R11, Mem::At(base, Some((Rcx, 1)), 0));
        self.one_by_one(|m, index| {
            m.asm().load_element(Rdx, Mem::at(R11, 0), size);
            m.asm().store_element(Mem::At(Gp::Rsp, Some((index, size as u8)), 0), Rdx, size);
            match access.step {
                Step::Bytes(n) => m.asm().alu_imm(Alu::Add, R11, n),
                Step::Open(var) => m.asm().alu(Alu::Add, R11, Rm::Mem(var.mem())),
                _ => m.asm().alu_imm(Alu::Add, R11, size as i32),
            }
        });
        self.widen(to, access.dtype, Rm::Mem(Frame::vector_mem(0)), false);
    }

    /// A loop over the lanes that exist; the index is in rcx.
    fn one_by_one(&mut self, each: impl FnOnce(&mut Self, Gp)) {
        let (top, lanes, part) = (self.asm().label(), self.lanes(), self.part);
        self.asm().mov_imm(Rcx, 0);
        self.asm().bind(top);
        each(self, Rcx);
        self.asm().alu_imm(Alu::Add, Rcx, 1);
        match part {
            Part::All | Part::One => self.asm().alu_imm(Alu::Cmp, Rcx, lanes),
            Part::First(count, _) => self.asm().alu(Alu::Cmp, Rcx, Rm::Mem(count.mem())),
        }
        self.asm().jump_if(Cond::Less, top);
    }

    /// Stores the register `from` as elements of type `dtype`, which are neighbours.
    pub fn store(&mut self, from: u8, dtype: DType, base: Base) {
        let (base, size) = (self.base(base), bytes(dtype));
        let at = Mem::At(base, Some((Rax, size as u8)), 0);
        match self.part {
            Part::One => {
                self.narrow(from, dtype, Frame::vector_mem(0), false);
                self.asm().load_element(Rdx, Frame::vector_mem(0), size);
                self.asm().store_element(Mem::at(base, 0), Rdx, size);
            }
            Part::First(_, mask) if !self.frame.asm.evex() && size == 4 => {
                let spare = self.spare;
                self.asm().vector(LOAD, Args::new(spare, 0, Rm::Mem(Frame::vector_mem(mask))));
                self.asm().vector(MASKED_STORE, Args::new(from, spare, Rm::Mem(at)));
            }
            Part::First(..) if !self.frame.asm.evex() => {
                self.narrow(from, dtype, Frame::vector_mem(0), false);
                self.asm().lea(R11, at);
                self.one_by_one(|m, index| {
                    m.asm().load_element(Rdx, Mem::At(Gp::Rsp, Some((index, size as u8)), 0), size);
                    m.asm().store_element(Mem::At(R11, Some((index, size as u8)), 0), Rdx, size);
                });
            }
            part => self.narrow(from, dtype, at, part != Part::All),
        }
    }

    /// Stores lanes as elements, only those of the tail if `masked`.
    fn narrow(&mut self, from: u8, dtype: DType, at: Mem, masked: bool) {
        let mask = if masked { TAIL } else { 0 };
        let args = Args { mask, ..Args::new(from, 0, Rm::Mem(at)) };
        match (dtype, bytes(dtype)) {
            (DType::F16, _) => self.asm().vector(NARROW_F16, Args { imm: Some(0), ..args }),
            (_, 4) => self.asm().vector(STORE, args),
            (_, n) if self.frame.asm.evex() => {
                self.asm().vector(if n == 1 { NARROW_8 } else { NARROW_16 }, args);
            }
            (_, n) => self.pack(from, n, at),
        }
    }

    /// Stores the low bytes of lanes with AVX2.
    fn pack(&mut self, from: u8, size: usize, at: Mem) {
        const NONE: u32 = 0x8080_8080;
        let half = if size == 1 { [0x0c08_0400, NONE, NONE, NONE] } else { [0x0504_0100, 0x0d0c_0908, NONE, NONE] };
        let (order, spare) = (self.asm().data(&[half, half].concat()), self.spare);
        self.asm().vector(SHUFFLE_BYTES, Args::new(spare, from, Rm::Mem(Mem::Data(order))));
        if size == 2 {
            const EVEN: u8 = 0b1000;
            self.asm().vector(PERMUTE_64, Args { imm: Some(EVEN), ..Args::new(spare, 0, Rm::Reg(spare)) });
            self.asm().vector(STORE, Args { short: true, ..Args::new(spare, 0, Rm::Mem(at)) });
            return;
        }
        self.asm().vector(STORE_WORD, Args { short: true, ..Args::new(spare, 0, Rm::Mem(at)) });
        self.asm().vector(UPPER_HALF, Args { imm: Some(1), ..Args::new(spare, 0, Rm::Reg(spare)) });
        let Mem::At(base, index, disp) = at else { return };
        let next = Rm::Mem(Mem::At(base, index, disp + 4));
        self.asm().vector(STORE_WORD, Args { short: true, ..Args::new(spare, 0, next) });
    }
}
