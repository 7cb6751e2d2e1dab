//! The functions that are instructions.

use crate::toolchain::x86::asm;
use crate::toolchain::x86::asm::op;
use crate::toolchain::x86::front::{Front, Operand, Value};
use crate::toolchain::x86::ir::{Address, Class, Form, Inst, NONE, Op, Reg, Vector};
use crate::toolchain::x86::language::Word;
use crate::toolchain::x86::linear::Linear;
use crate::toolchain::x86::opcode::{FROM_F64, TO_F64, matrix, one, two};
use crate::toolchain::x86::types::{Base, F32, I32, I64, Type, VD, VF, VI};

/// The instruction that loads narrow integers to lanes, and the function for a part of them where no mask selects it.
fn narrow_load(word: Word) -> Option<(asm::Op, &'static str)> {
    Some(match word {
        Word::LoadI8 | Word::LoadPartI8 => (one::WIDEN_I8, "narrow_load_i8"),
        Word::LoadU8 | Word::LoadPartU8 => (one::WIDEN_U8, "narrow_load_u8"),
        Word::LoadI16 | Word::LoadPartI16 => (one::WIDEN_I16, "narrow_load_i16"),
        Word::LoadU16 | Word::LoadPartU16 => (one::WIDEN_U16, "narrow_load_u16"),
        _ => return None,
    })
}

impl Front {
    /// The result of a function that is an instruction, or a few.
    pub(super) fn builtin(&mut self, word: Word, args: Vec<Operand>) -> Result<Operand, String> {
        use Word::*;
        let count = args.len();
        let arg = |i: usize| args.get(i).cloned().ok_or_else(|| format!("{count} arguments are too few"));
        match word {
            Splat => self.splat(arg(0)?),
            SplatInt => self.splat_int(arg(0)?),
            Inff => Ok(Operand { ty: F32, value: Value::Number(f64::INFINITY) }),
            Load | LoadI32 | Store | StoreI32 | LoadF16 | StoreF16 | LoadI8 | LoadU8 | LoadI16 | LoadU16 | StoreI8
            | StoreU8 | StoreI16 | StoreU16 => self.whole_access(word, &arg(0)?, args.get(1)),
            LoadPart | LoadPartI32 | LoadPartI8 | LoadPartU8 | LoadPartI16 | LoadPartU16 => {
                self.load_part(word, arg(0)?, arg(1)?)
            }
            StorePart | StorePartI32 | StorePartI8 | StorePartU8 | StorePartI16 | StorePartU16 => {
                self.store_part(word, arg(0)?, arg(1)?, arg(2)?)
            }
            Word4 => {
                let at = self.form(&arg(0)?)?;
                self.load(I32, &at)
            }
            FirstLanes => {
                let n = self.convert(arg(0)?, I64)?;
                let n = self.form(&n)?;
                let r = match n.as_number() {
                    Some(n) => self.b.pure(Class::Vector, Inst { imm: n, ..Inst::new(Op::FirstLanes, NONE, &[]) }),
                    None => {
                        let n = self.b.value(&n);
                        self.b.vector(Op::FirstLanes, &[n])
                    }
                };
                Ok(Operand::reg(VI, r))
            }
            Shuffle => self.shuffle(&args),
            Permute => {
                let (x, lanes) = (self.register(&arg(0)?)?, self.register(&arg(1)?)?);
                let op = Op::Vector(Vector { op: two::PERMUTE, imm: None, form: Form::Two, bits: 0 });
                Ok(Operand::reg(VF, self.b.vector(op, &[lanes, x])))
            }
            Exchange => {
                let (v, w) = (self.register(&arg(0)?)?, self.form(&arg(1)?)?);
                Ok(Operand::reg(VF, self.exchange(v, w.as_number().unwrap_or(1))))
            }
            Spare => {
                let at = self.buffer();
                Ok(Operand::int(Type::of(Base::Void).pointer(), at))
            }
            Part => self.half(&arg(0)?, &arg(1)?),
            WithPart => self.with_half(&arg(0)?, &arg(1)?, &arg(2)?),
            LanesOfF64 => self.splat_double(arg(0)?),
            Bits => self.convert(arg(0)?, VI),
            Float => self.convert(arg(0)?, VF),
            ToInt => self.convert_lanes(arg(0)?, VI),
            ToFloat => self.convert_lanes(arg(0)?, VF),
            Prefetch => {
                let at = self.form(&arg(0)?)?;
                let mem = Some(self.b.address(&at));
                self.b.effect(Inst { mem, ..Inst::new(Op::Prefetch(count > 2), NONE, &[]) });
                Ok(Self::nothing())
            }
            TileConfig | TileRelease | TileZero | TileLoad | TileStore | TileDotSigned | TileDotUnsigned => {
                self.matrix(word, &args)
            }
            Any | AnyLane => {
                let m = self.register(&arg(0)?)?;
                let r = self.b.pure(Class::Int, Inst::new(Op::Any, NONE, &[m]));
                Ok(Operand::int(I32, Linear::register(r)))
            }
            BitsOfF32 | BitsOfF64 => {
                let r = self.register(&arg(0)?)?;
                let (bytes, ty) = if word == BitsOfF32 { (4, I32) } else { (8, I64) };
                let r = self.b.pure(Class::Int, Inst::new(Op::FromLane(bytes), NONE, &[r]));
                Ok(Operand::int(ty, Linear::register(r)))
            }
            OneSum | OneDifference => {
                let (a, b) = (self.rounded(arg(0)?)?, self.rounded(arg(1)?)?);
                self.binary(if word == OneSum { "+" } else { "-" }, a, b)
            }
            Rounded => self.rounded(arg(0)?),
            _ => self.lanes_function(word, &args),
        }
    }

    /// An instruction of matrix registers.
    fn matrix(&mut self, word: Word, args: &[Operand]) -> Result<Operand, String> {
        let op = match word {
            Word::TileConfig => matrix::CONFIG,
            Word::TileRelease => matrix::RELEASE,
            Word::TileZero => matrix::ZERO,
            Word::TileLoad => matrix::LOAD,
            Word::TileStore => matrix::STORE,
            Word::TileDotSigned => matrix::DOT_SIGNED,
            _ => matrix::DOT_UNSIGNED,
        };
        let forms = args.iter().map(|a| self.form(a)).collect::<Result<Vec<_>, _>>()?;
        let mem = match (word, &forms[..]) {
            (Word::TileConfig, [at]) => Some(self.b.address(at)),
            (Word::TileLoad | Word::TileStore, [_, at, stride]) => {
                let (base, index) = (self.b.value(at), self.b.value(stride));
                Some(Address { base, index, scale: 1, disp: 0 })
            }
            _ => None,
        };
        let mut numbers = [0; 3];
        let count = if word == Word::TileConfig {
            0
        } else if mem.is_some() {
            1
        } else {
            forms.len()
        };
        for (number, form) in numbers.iter_mut().zip(&forms[..count]) {
            let n = form.as_number().and_then(|n| u8::try_from(n).ok()).filter(|n| *n < 8);
            *number = n.ok_or("the number of a matrix register is not known")?;
        }
        self.b.effect(Inst { mem, ..Inst::new(Op::Matrix(op, numbers), NONE, &[]) });
        Ok(Self::nothing())
    }

    /// A value that no sum is fused with.
    fn rounded(&mut self, x: Operand) -> Result<Operand, String> {
        let Value::Reg(r) = x.value else { return Ok(x) };
        let copy = self.b.merge(Class::Vector);
        self.b.effect(Inst::new(Op::Copy, copy, &[r]));
        Ok(Operand::reg(x.ty, copy))
    }

    /// A function of vectors.
    fn lanes_function(&mut self, word: Word, args: &[Operand]) -> Result<Operand, String> {
        let mut r = [NONE; 4];
        for (r, a) in r.iter_mut().zip(args) {
            *r = self.register(a)?;
        }
        let ty = |r: Reg, ty: Type| Ok(Operand::reg(ty, r));
        const QUIET_NEAREST: u8 = 8;
        const QUIET_DOWN: u8 = 9;
        const QUIET_UP: u8 = 10;
        match word {
            Word::Pick => ty(self.b.vector(Op::Blend, &r[..3]), VF),
            Word::PickInt => ty(self.b.vector(Op::Blend, &r[..3]), VI),
            Word::MaxInt => ty(self.two(two::IMAX, 0, r[0], r[1]), VI),
            Word::MinInt => ty(self.two(two::IMIN, 0, r[0], r[1]), VI),
            Word::HwMax => ty(self.two(two::MAX, 0, r[0], r[1]), VF),
            Word::HwMin => ty(self.two(two::MIN, 0, r[0], r[1]), VF),
            Word::Sqrt => ty(self.one(one::SQRT, None, 0, r[0]), VF),
            Word::Round => ty(self.one(one::ROUND, Some(QUIET_NEAREST), 0, r[0]), VF),
            Word::Floor => ty(self.one(one::ROUND, Some(QUIET_DOWN), 0, r[0]), VF),
            Word::Ceil => ty(self.one(one::ROUND, Some(QUIET_UP), 0, r[0]), VF),
            Word::RoundToInt => ty(self.one(one::ROUND_TO_INT, None, 0, r[0]), VI),
            Word::Estimate => ty(self.one(one::RECIPROCAL, None, 0, r[0]), VF),
            Word::Scale => ty(self.b.vector(Op::Scale, &r), VF),
            Word::Dot2 if self.vnni => ty(self.b.vector(Op::Dot(op(1, 2, 0x52)), &r[..3]), VI),
            Word::Dot2 => {
                let products = self.two(two::DOT_WORDS, 0, r[1], r[2]);
                ty(self.two(two::IADD, 0, r[0], products), VI)
            }
            Word::BytePairs => ty(self.two(two::BYTE_PAIRS, 0, r[0], r[1]), VI),
            Word::DotBytes => ty(self.b.vector(Op::Dot(op(1, 2, 0x50)), &r[..3]), VI),
            Word::DotBf16 => ty(self.b.vector(Op::Dot(op(2, 2, 0x52)), &r[..3]), VF),
            Word::WidenF16 => {
                // The low words of lanes, packed.
                let packed = self.packed_words(r[0])?;
                ty(self.one(one::WIDEN_F16, None, 0, packed), VF)
            }
            Word::NarrowF16 => {
                let packed = self.b.vector(
                    Op::Vector(Vector { op: one::NARROW_F16, imm: Some(0), form: Form::Narrow, bits: 0 }),
                    &[r[0]],
                );
                ty(self.one(one::WIDEN_U16, None, 0, packed), VI)
            }
            Word::ToF64 => ty(self.one(TO_F64, None, 0, r[0]), VD),
            Word::FromF64 => ty(self.one(FROM_F64, None, 0, r[0]), VF),
            _ => Err(format!("{word:?} is no function")),
        }
    }

    /// The low words of lanes in half a vector.
    fn packed_words(&mut self, r: Reg) -> Result<Reg, String> {
        let narrow = |op| Op::Vector(Vector { op, imm: None, form: Form::Narrow, bits: 0 });
        if self.b.avx512 {
            return Ok(self.b.vector(narrow(one::NARROW_16), &[r]));
        }
        // Words of both operands alternate by 128 bits; the second permutation joins them.
        const PACK_WORDS: asm::Op = op(1, 2, 0x2b);
        const PERMUTE_64: asm::Op = asm::Op { wide: true, ..op(1, 3, 0x00) };
        const EVEN: u8 = 0b1000;
        let low = self.b.constant(0xffff);
        let words = self.two(two::AND, 0, r, low);
        let packed = self.two(PACK_WORDS, 0, words, words);
        Ok(self.one(PERMUTE_64, Some(EVEN), 0, packed))
    }

    // ---- memory ----

    /// Loads or stores all lanes.
    fn whole_access(&mut self, word: Word, at: &Operand, value: Option<&Operand>) -> Result<Operand, String> {
        let at = self.form(at)?;
        let value = value.map(|v| self.register(v)).transpose()?;
        if let Some((op, _)) = narrow_load(word) {
            return Ok(Operand::reg(VI, self.load_vector(op, 0, &at)));
        }
        match (word, value) {
            (Word::Load, _) => Ok(Operand::reg(VF, self.load_vector(one::LOAD, 0, &at))),
            (Word::LoadI32, _) => Ok(Operand::reg(VI, self.load_vector(one::LOAD, 0, &at))),
            (Word::LoadF16, _) => Ok(Operand::reg(VF, self.load_vector(one::WIDEN_F16, 0, &at))),
            (Word::Store | Word::StoreI32, Some(v)) => {
                self.store_vector(one::STORE, None, 0, &at, v);
                Ok(Self::nothing())
            }
            (Word::StoreF16, Some(v)) => {
                self.store_vector(one::NARROW_F16, Some(0), 0, &at, v);
                Ok(Self::nothing())
            }
            (_, Some(v)) => {
                self.store_narrow(matches!(word, Word::StoreI8 | Word::StoreU8), &at, v)?;
                Ok(Self::nothing())
            }
            _ => Err("an argument is missing".into()),
        }
    }

    /// Stores the low bytes of lanes.
    fn store_narrow(&mut self, bytes: bool, at: &Linear, v: Reg) -> Result<(), String> {
        if self.b.avx512 {
            self.store_vector(if bytes { one::NARROW_8 } else { one::NARROW_16 }, None, 0, at, v);
            return Ok(());
        }
        let words = self.packed_words(v)?;
        if !bytes {
            self.store_vector(one::STORE, None, 128, at, words);
            return Ok(());
        }
        const PACK_BYTES: asm::Op = op(1, 1, 0x67);
        const STORE_64: asm::Op = op(1, 1, 0xd6);
        let low = self.b.constant(0x00ff_00ff);
        let words = self.two(two::AND, 0, words, low);
        let packed = self.two(PACK_BYTES, 0, words, words);
        self.store_vector(STORE_64, None, 128, at, packed);
        Ok(())
    }

    /// Calls a function by its name.
    fn helper(&mut self, name: &str, args: Vec<Operand>) -> Result<Operand, String> {
        let at = self.names.find(name).and_then(|n| self.language.functions.get(&n).copied());
        self.call(at.ok_or_else(|| format!("the function '{name}' is unknown"))?, args)
    }

    fn load_part(&mut self, word: Word, at: Operand, n: Operand) -> Result<Operand, String> {
        let ty = if word == Word::LoadPart { VF } else { VI };
        let (op, helper) = narrow_load(word).unwrap_or((one::LOAD, ""));
        if !self.b.avx512 && !helper.is_empty() {
            return self.helper(helper, vec![at, n]);
        }
        let n = self.convert(n, I64)?;
        let (at, n) = (self.form(&at)?, self.form(&n)?);
        let mem = Some(self.b.address(&at));
        let inst = match n.as_number() {
            Some(imm) => Inst { mem, imm, ..Inst::new(Op::LoadPart(op), NONE, &[]) },
            None => {
                let n = self.b.value(&n);
                Inst { mem, ..Inst::new(Op::LoadPart(op), NONE, &[n]) }
            }
        };
        Ok(Operand::reg(ty, self.b.here(Class::Vector, inst)))
    }

    fn store_part(&mut self, word: Word, at: Operand, v: Operand, n: Operand) -> Result<Operand, String> {
        let (op, helper) = match word {
            Word::StorePartI8 | Word::StorePartU8 => (one::NARROW_8, "narrow_store_bytes"),
            Word::StorePartI16 | Word::StorePartU16 => (one::NARROW_16, "narrow_store_words"),
            _ => (one::STORE, ""),
        };
        if !self.b.avx512 && !helper.is_empty() {
            return self.helper(helper, vec![at, v, n]);
        }
        let n = self.convert(n, I64)?;
        let (at, v, n) = (self.form(&at)?, self.register(&v)?, self.form(&n)?);
        let mem = Some(self.b.address(&at));
        let inst = match n.as_number() {
            Some(imm) => Inst { mem, imm, ..Inst::new(Op::StorePart(op), NONE, &[v]) },
            None => {
                let n = self.b.value(&n);
                Inst { mem, ..Inst::new(Op::StorePart(op), NONE, &[v, n]) }
            }
        };
        self.b.effect(inst);
        Ok(Self::nothing())
    }

    // ---- lanes ----

    /// Exchanges groups of so many lanes with their neighbours.
    fn exchange(&mut self, v: Reg, lanes: i64) -> Reg {
        const OPPOSITE: u8 = 0b0100_1110;
        const NEXT: u8 = 0b1011_0001;
        let (op, imm) = match lanes {
            1 => (two::SHUFFLE, NEXT),
            2 => (two::SHUFFLE, OPPOSITE),
            4 if self.b.avx512 => (two::SHUFFLE_PARTS, NEXT),
            4 => (two::EXCHANGE_PARTS, 1),
            _ => (two::SHUFFLE_PARTS, OPPOSITE),
        };
        self.b.vector(Op::Vector(Vector { op, imm: Some(imm), form: Form::Two, bits: 0 }), &[v, v])
    }

    /// Lanes of two vectors: those that swap blocks of lanes, as a transposition does.
    fn shuffle(&mut self, args: &[Operand]) -> Result<Operand, String> {
        let (a, b) = match args {
            [a, b, ..] => (self.register(a)?, self.register(b)?),
            _ => return Err("a shuffle of no vectors".into()),
        };
        let mut lanes = Vec::with_capacity(args.len() - 2);
        for x in &args[2..] {
            lanes.push(self.form(x)?.as_number().ok_or("a shuffle by unknown numbers")? as usize);
        }
        let n = self.lanes();
        // Blocks of `s` lanes: those of both operands at the low or high position.
        for s in (0..n.trailing_zeros()).map(|k| 1 << k) {
            let low = (0..n).map(|l| if l & s > 0 { n + l - s } else { l });
            let high = (0..n).map(|l| if l & s > 0 { n + l } else { l + s });
            if lanes.iter().copied().eq(low) {
                return Ok(Operand::reg(VF, self.blocks(a, b, s, false)));
            }
            if lanes.iter().copied().eq(high) {
                return Ok(Operand::reg(VF, self.blocks(a, b, s, true)));
            }
        }
        Err("this shuffle has no translation".into())
    }

    /// The low or high blocks of `s` lanes of each pair of blocks: the first operand's at even positions, the second's at odd ones.
    fn blocks(&mut self, a: Reg, b: Reg, s: usize, high: bool) -> Reg {
        let imm = |s: &mut Self, op, imm: u8, args: &[Reg]| {
            s.b.vector(Op::Vector(Vector { op, imm: Some(imm), form: Form::Two, bits: 0 }), args)
        };
        // Of four blocks each operand gives the first two or last two, or the even or odd ones; then these are put in order.
        let (pairs, picked) = if high { (0b1110_1110, 0b1101_1101) } else { (0b0100_0100, 0b1000_1000) };
        const IN_ORDER: u8 = 0b1101_1000;
        match (s, self.b.avx512) {
            (4, false) => imm(self, two::EXCHANGE_PARTS, if high { 0x31 } else { 0x20 }, &[a, b]),
            (2, _) => imm(self, two::SHUFFLE, pairs, &[a, b]),
            (8, _) => imm(self, two::SHUFFLE_PARTS, pairs, &[a, b]),
            (s, _) => {
                let op = if s == 1 { two::SHUFFLE } else { two::SHUFFLE_PARTS };
                let both = imm(self, op, picked, &[a, b]);
                imm(self, op, IN_ORDER, &[both, both])
            }
        }
    }
}
