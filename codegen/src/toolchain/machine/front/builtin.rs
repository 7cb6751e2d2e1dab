//! The functions that are instructions.

use crate::toolchain::machine::front::{Front, Operand, Value};
use crate::toolchain::machine::ir::{Address, Class, Form, Inst, Lanes, NONE, Op, Reg, Vector};
use crate::toolchain::machine::language::Word;
use crate::toolchain::machine::linear::Linear;
use crate::toolchain::machine::operation::{Dot, Matrix, VectorOp};
use crate::toolchain::machine::types::{Base, F32, I32, I64, Type, VD, VF, VI};

/// The instruction that loads narrow integers to lanes, and the function for a part of them where no mask selects it.
fn narrow_load(word: Word) -> Option<(VectorOp, &'static str)> {
    Some(match word {
        Word::LoadI8 | Word::LoadPartI8 => (VectorOp::WidenI8, "narrow_load_i8"),
        Word::LoadU8 | Word::LoadPartU8 => (VectorOp::WidenU8, "narrow_load_u8"),
        Word::LoadI16 | Word::LoadPartI16 => (VectorOp::WidenI16, "narrow_load_i16"),
        Word::LoadU16 | Word::LoadPartU16 => (VectorOp::WidenU16, "narrow_load_u16"),
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
            Word::TileConfig => Matrix::Config,
            Word::TileRelease => Matrix::Release,
            Word::TileZero => Matrix::Zero,
            Word::TileLoad => Matrix::Load,
            Word::TileStore => Matrix::Store,
            Word::TileDotSigned => Matrix::DotSigned,
            _ => Matrix::DotUnsigned,
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
        match word {
            Word::Permute => ty(self.permute(r[0], r[1]), VF),
            Word::Pick => ty(self.b.vector(Op::Blend, &r[..3]), VF),
            Word::PickInt => ty(self.b.vector(Op::Blend, &r[..3]), VI),
            Word::MaxInt => ty(self.two(VectorOp::IntMax, Lanes::All, r[0], r[1]), VI),
            Word::MinInt => ty(self.two(VectorOp::IntMin, Lanes::All, r[0], r[1]), VI),
            Word::HwMax => ty(self.two(VectorOp::Max, Lanes::All, r[0], r[1]), VF),
            Word::HwMin => ty(self.two(VectorOp::Min, Lanes::All, r[0], r[1]), VF),
            Word::Sqrt => ty(self.one(VectorOp::Sqrt, r[0]), VF),
            Word::Round => ty(self.one(VectorOp::Round, r[0]), VF),
            Word::Floor => ty(self.one(VectorOp::Floor, r[0]), VF),
            Word::Ceil => ty(self.one(VectorOp::Ceil, r[0]), VF),
            Word::RoundToInt => ty(self.one(VectorOp::RoundToInt, r[0]), VI),
            Word::Estimate => ty(self.one(VectorOp::Reciprocal, r[0]), VF),
            Word::Scale => ty(self.b.vector(Op::Scale, &r), VF),
            Word::Dot2 if self.b.target.byte_products => ty(self.b.vector(Op::Dot(Dot::Words), &r[..3]), VI),
            Word::Dot2 => {
                let products = self.two(VectorOp::DotWords, Lanes::All, r[1], r[2]);
                ty(self.two(VectorOp::IntAdd, Lanes::All, r[0], products), VI)
            }
            Word::BytePairs => ty(self.two(VectorOp::BytePairs, Lanes::All, r[0], r[1]), VI),
            Word::DotBytes => ty(self.b.vector(Op::Dot(Dot::Bytes), &r[..3]), VI),
            Word::DotBf16 => ty(self.b.vector(Op::Dot(Dot::Bf16), &r[..3]), VF),
            Word::WidenF16 => {
                // The low words of lanes, packed.
                let packed = self.packed_words(r[0])?;
                ty(self.one(VectorOp::WidenF16, packed), VF)
            }
            Word::NarrowF16 => {
                let packed = self.narrowed(VectorOp::NarrowF16, r[0]);
                ty(self.one(VectorOp::WidenU16, packed), VI)
            }
            Word::ToF64 => ty(self.one(VectorOp::ToDoubles, r[0]), VD),
            Word::FromF64 => ty(self.one(VectorOp::FromDoubles, r[0]), VF),
            _ => Err(format!("{word:?} is no function")),
        }
    }

    /// The low words of lanes in half a vector.
    fn packed_words(&mut self, r: Reg) -> Result<Reg, String> {
        if self.b.target.narrow_elements {
            return Ok(self.narrowed(VectorOp::NarrowWords, r));
        }
        // Words of both operands alternate by 128 bits; the second permutation joins them.
        const EVEN: u8 = 0b1000;
        let low = self.b.constant(0xffff);
        let words = self.two(VectorOp::And, Lanes::All, r, low);
        let packed = self.two(VectorOp::PackWords, Lanes::All, words, words);
        Ok(self.one(VectorOp::ShuffleLongs(EVEN), packed))
    }

    /// Lanes, narrowed to a part of a vector.
    fn narrowed(&mut self, op: VectorOp, r: Reg) -> Reg {
        self.b.vector(Op::Vector(Vector { op, form: Form::Narrow, lanes: Lanes::All }), &[r])
    }

    // ---- memory ----

    /// Loads or stores all lanes.
    fn whole_access(&mut self, word: Word, at: &Operand, value: Option<&Operand>) -> Result<Operand, String> {
        let at = self.form(at)?;
        let value = value.map(|v| self.register(v)).transpose()?;
        if let Some((op, _)) = narrow_load(word) {
            return Ok(Operand::reg(VI, self.load_vector(op, Lanes::All, &at)));
        }
        match (word, value) {
            (Word::Load, _) => Ok(Operand::reg(VF, self.load_vector(VectorOp::Load, Lanes::All, &at))),
            (Word::LoadI32, _) => Ok(Operand::reg(VI, self.load_vector(VectorOp::Load, Lanes::All, &at))),
            (Word::LoadF16, _) => Ok(Operand::reg(VF, self.load_vector(VectorOp::WidenF16, Lanes::All, &at))),
            (Word::Store | Word::StoreI32, Some(v)) => {
                self.store_vector(VectorOp::Store, Lanes::All, &at, v);
                Ok(Self::nothing())
            }
            (Word::StoreF16, Some(v)) => {
                self.store_vector(VectorOp::NarrowF16, Lanes::All, &at, v);
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
        if self.b.target.narrow_elements {
            self.store_vector(if bytes { VectorOp::NarrowBytes } else { VectorOp::NarrowWords }, Lanes::All, at, v);
            return Ok(());
        }
        let words = self.packed_words(v)?;
        if !bytes {
            self.store_vector(VectorOp::Store, Lanes::Half, at, words);
            return Ok(());
        }
        let low = self.b.constant(0x00ff_00ff);
        let words = self.two(VectorOp::And, Lanes::All, words, low);
        let packed = self.two(VectorOp::PackBytes, Lanes::All, words, words);
        self.store_vector(VectorOp::StoreLow, Lanes::Half, at, packed);
        Ok(())
    }

    /// Calls a function by its name.
    fn helper(&mut self, name: &str, args: Vec<Operand>) -> Result<Operand, String> {
        let at = self.names.find(name).and_then(|n| self.language.functions.get(&n).copied());
        self.call(at.ok_or_else(|| format!("the function '{name}' is unknown"))?, args)
    }

    fn load_part(&mut self, word: Word, at: Operand, n: Operand) -> Result<Operand, String> {
        let ty = if word == Word::LoadPart { VF } else { VI };
        let (op, helper) = narrow_load(word).unwrap_or((VectorOp::Load, ""));
        if !self.b.target.narrow_elements && !helper.is_empty() {
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
            Word::StorePartI8 | Word::StorePartU8 => (VectorOp::NarrowBytes, "narrow_store_bytes"),
            Word::StorePartI16 | Word::StorePartU16 => (VectorOp::NarrowWords, "narrow_store_words"),
            _ => (VectorOp::Store, ""),
        };
        if !self.b.target.narrow_elements && !helper.is_empty() {
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

    /// The lanes of a vector with these numbers.
    fn permute(&mut self, x: Reg, mut lanes: Reg) -> Reg {
        if self.b.target.neon {
            // The bytes of a lane, from those of its number.
            const BYTES: u32 = 0x0302_0100;
            let [last, four, bytes] = [3, 0x0404_0404, BYTES].map(|n| self.b.constant(n));
            lanes = self.two(VectorOp::And, Lanes::All, lanes, last);
            lanes = self.two(VectorOp::IntMul, Lanes::All, lanes, four);
            lanes = self.two(VectorOp::IntAdd, Lanes::All, lanes, bytes);
        }
        self.two(VectorOp::Permute, Lanes::All, lanes, x)
    }

    /// Exchanges groups of so many lanes with their neighbours.
    fn exchange(&mut self, v: Reg, lanes: i64) -> Reg {
        const OPPOSITE: u8 = 0b0100_1110;
        const NEXT: u8 = 0b1011_0001;
        let op = match lanes {
            _ if self.b.target.neon => VectorOp::Exchange(lanes as u8),
            1 => VectorOp::ShuffleLanes(NEXT),
            2 => VectorOp::ShuffleLanes(OPPOSITE),
            4 if self.b.target.avx512 => VectorOp::ShuffleParts(NEXT),
            4 => VectorOp::ExchangeParts(1),
            _ => VectorOp::ShuffleParts(OPPOSITE),
        };
        self.b.vector(Op::Vector(Vector { op, form: Form::Two, lanes: Lanes::All }), &[v, v])
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
        let two = |s: &mut Self, op, args: &[Reg]| {
            s.b.vector(Op::Vector(Vector { op, form: Form::Two, lanes: Lanes::All }), args)
        };
        // Of four blocks each operand gives the first two or last two, or the even or odd ones; then these are put in order.
        let (pairs, picked) = if high { (0b1110_1110, 0b1101_1101) } else { (0b0100_0100, 0b1000_1000) };
        const IN_ORDER: u8 = 0b1101_1000;
        match (s, self.b.target.avx512) {
            _ if self.b.target.neon => two(self, VectorOp::Blocks(s as u8, high), &[a, b]),
            (4, false) => two(self, VectorOp::ExchangeParts(if high { 0x31 } else { 0x20 }), &[a, b]),
            (2, _) => two(self, VectorOp::ShuffleLanes(pairs), &[a, b]),
            (8, _) => two(self, VectorOp::ShuffleParts(pairs), &[a, b]),
            (s, _) => {
                let op = if s == 1 { VectorOp::ShuffleLanes } else { VectorOp::ShuffleParts };
                let both = two(self, op(picked), &[a, b]);
                two(self, op(IN_ORDER), &[both, both])
            }
        }
    }
}
