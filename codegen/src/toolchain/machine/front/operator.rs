//! Operators and conversions on values.

use crate::toolchain::machine::front::{Front, Operand, Value, Variable};
use crate::toolchain::machine::ir::{Address, Class, Comparison, Form, Inst, Lanes, NONE, Op, Reg, Vector};
use crate::toolchain::machine::linear::Linear;
use crate::toolchain::machine::operation::{Alu, Cond, FloatCond, Shift, ShiftInt, VectorOp};
use crate::toolchain::machine::types::{Base, F32, I32, I64, Type, VD, VF, VI, VL};

/// The lanes of a float type.
fn lanes_of(ty: Type) -> Lanes {
    match ty {
        VD => Lanes::All64,
        _ if ty.is_vector() => Lanes::All,
        _ if ty.is_double() => Lanes::One64,
        _ => Lanes::One32,
    }
}

impl Front {
    pub(super) fn lanes(&self) -> usize {
        self.b.target.lanes
    }

    pub(super) fn vector_bytes(&self) -> usize {
        4 * self.lanes()
    }

    // ---- memory ----

    /// Loads a value of a type.
    pub(super) fn load(&mut self, ty: Type, at: &Linear) -> Result<Operand, String> {
        let mem = Some(self.b.address(at));
        if ty.is_int() {
            let op = Op::Load(ty.size(0) as u8, ty.is_signed());
            let r = self.b.here(Class::Int, Inst { mem, ..Inst::new(op, NONE, &[]) });
            return Ok(Operand::int(ty, Linear::register(r)));
        }
        let lanes = match ty.base {
            Base::F32 => Lanes::One32,
            Base::F64 => Lanes::One64,
            Base::Void => return Err("a value of no type".into()),
            _ => Lanes::All,
        };
        Ok(Operand::reg(ty, self.load_vector(VectorOp::Load, lanes, at)))
    }

    /// Loads with an instruction.
    pub(super) fn load_vector(&mut self, op: VectorOp, lanes: Lanes, at: &Linear) -> Reg {
        let mem = Some(self.b.address(at));
        let v = Op::Vector(Vector { op, form: Form::One, lanes });
        self.b.here(Class::Vector, Inst { mem, ..Inst::new(v, NONE, &[]) })
    }

    /// Stores a value.
    pub(super) fn store(&mut self, ty: Type, at: &Linear, value: &Operand) -> Result<(), String> {
        let from = self.register(value)?;
        if ty.is_int() {
            let mem = Some(self.b.address(at));
            self.b.effect(Inst { mem, ..Inst::new(Op::Store(ty.size(0) as u8), NONE, &[from]) });
            return Ok(());
        }
        let lanes = match ty.base {
            Base::F32 => Lanes::One32,
            Base::F64 => Lanes::One64,
            _ => Lanes::All,
        };
        self.store_vector(VectorOp::Store, lanes, at, from);
        Ok(())
    }

    /// Stores with an instruction.
    pub(super) fn store_vector(&mut self, op: VectorOp, lanes: Lanes, at: &Linear, from: Reg) {
        let mem = Some(self.b.address(at));
        let v = Op::Vector(Vector { op, form: Form::Store, lanes });
        self.b.effect(Inst { mem, ..Inst::new(v, NONE, &[from]) });
    }

    // ---- vector instructions ----

    pub(super) fn two(&mut self, op: VectorOp, lanes: Lanes, a: Reg, b: Reg) -> Reg {
        // Constants are second: those may be in memory.
        use VectorOp::{Add, And, IntAdd, IntMul, Mul, Or, Xor};
        const COMMUTE: [VectorOp; 7] = [Add, Mul, And, Or, Xor, IntAdd, IntMul];
        let first_is_constant = self.b.definition(a).is_some_and(|i| i.op == Op::Const);
        let (a, b) = if first_is_constant && lanes == Lanes::All && COMMUTE.contains(&op) { (b, a) } else { (a, b) };
        self.b.vector(Op::Vector(Vector { op, form: Form::Two, lanes }), &[a, b])
    }

    pub(super) fn one(&mut self, op: VectorOp, a: Reg) -> Reg {
        self.b.vector(Op::Vector(Vector { op, form: Form::One, lanes: Lanes::All }), &[a])
    }

    /// An f64 that is known, in the first lane.
    pub(super) fn double(&mut self, x: f64) -> Reg {
        let bits = self.b.imm(x.to_bits() as i64);
        self.b.vector(Op::ToLane(8), &[bits])
    }

    /// A single number in all lanes.
    pub(super) fn splat(&mut self, x: Operand) -> Result<Operand, String> {
        let x = self.convert(x, F32)?;
        let r = match x.value {
            Value::Number(n) => self.b.float(n as f32),
            Value::Reg(r) => match self.loaded(r) {
                Some(mem) => self.broadcast(mem),
                None => self.one(VectorOp::Broadcast, r),
            },
            _ => return Err("no number to broadcast".into()),
        };
        Ok(Operand::reg(VF, r))
    }

    /// An integer of 32 bits in all lanes.
    pub(super) fn splat_int(&mut self, x: Operand) -> Result<Operand, String> {
        let x = self.convert(x, I32)?;
        let form = self.form(&x)?;
        if let Some(n) = form.as_number() {
            return Ok(Operand::reg(VI, self.b.constant(n as u32)));
        }
        let r = self.b.value(&form);
        let v = match self.b.definition(r).copied() {
            Some(Inst { op: Op::Load(4, _), mem: Some(mem), .. }) if self.b.is_last(r) => self.broadcast(mem),
            _ => {
                let first = self.b.vector(Op::ToLane(4), &[r]);
                self.one(VectorOp::Broadcast, first)
            }
        };
        Ok(Operand::reg(VI, v))
    }

    /// An f64 in all lanes.
    pub(super) fn splat_double(&mut self, x: Operand) -> Result<Operand, String> {
        let x = self.convert(x, Type::of(Base::F64))?;
        let r = self.register(&x)?;
        Ok(Operand::reg(VD, self.one(VectorOp::BroadcastLong, r)))
    }

    /// A 64-bit integer in all lanes.
    fn splat_long(&mut self, x: Operand) -> Result<Operand, String> {
        let x = self.convert(x, Type::of(Base::U64))?;
        let form = self.form(&x)?;
        let r = self.b.value(&form);
        let first = self.b.vector(Op::ToLane(8), &[r]);
        Ok(Operand::reg(VL, self.one(VectorOp::BroadcastLong, first)))
    }

    /// Where a single float was just loaded from.
    fn loaded(&self, r: Reg) -> Option<Address> {
        match self.b.definition(r) {
            Some(Inst {
                op: Op::Vector(Vector { op: VectorOp::Load, form: Form::One, lanes: Lanes::One32 }),
                mem,
                ..
            }) if self.b.is_last(r) => *mem,
            _ => None,
        }
    }

    fn broadcast(&mut self, mem: Address) -> Reg {
        let v = Op::Vector(Vector { op: VectorOp::Broadcast, form: Form::One, lanes: Lanes::All });
        self.b.here(Class::Vector, Inst { mem: Some(mem), ..Inst::new(v, NONE, &[]) })
    }

    /// A lane of a vector. Lanes other than the first are read through memory.
    pub(super) fn lane(&mut self, v: Operand, index: Operand) -> Result<Operand, String> {
        let index = self.form(&index)?;
        let r = self.register(&v)?;
        if index.as_number() != Some(0) {
            let at = self.buffer();
            self.store_vector(VectorOp::Store, Lanes::All, &at, r);
            return self.load(if v.ty.is_int_vector() { I32 } else { F32 }, &at.plus(&index, 4));
        }
        if v.ty.is_int_vector() {
            let n = self.b.pure(Class::Int, Inst::new(Op::FromLane(4), NONE, &[r]));
            return Ok(Operand::int(I32, Linear::register(n)));
        }
        Ok(Operand::reg(F32, r))
    }

    /// Replaces a lane of a variable, through memory.
    pub(super) fn set_lane(&mut self, variable: usize, index: &Linear, x: Operand) -> Result<(), String> {
        let v = self.read(Operand { ty: VF, value: Value::Variable(variable) })?;
        let x = self.convert(x, if v.ty.is_int_vector() { I32 } else { F32 })?;
        let (at, r) = (self.buffer(), self.register(&v)?);
        self.store_vector(VectorOp::Store, Lanes::All, &at, r);
        self.store(x.ty, &at.plus(index, 4), &x)?;
        let r = self.load_vector(VectorOp::Load, Lanes::All, &at);
        self.vars[variable].1 = Variable::One(Operand::reg(v.ty, r));
        Ok(())
    }

    /// Half a vector at the start of one.
    pub(super) fn half(&mut self, v: &Operand, index: &Operand) -> Result<Operand, String> {
        let (r, index, half) = (self.register(v)?, self.form(index)?, self.vector_bytes() as i64 / 2);
        let at = self.buffer();
        self.store_vector(VectorOp::Store, Lanes::All, &at, r);
        Ok(Operand::reg(VF, self.load_vector(VectorOp::Load, Lanes::All, &at.plus(&index, half))))
    }

    /// A vector with one half replaced.
    pub(super) fn with_half(&mut self, v: &Operand, index: &Operand, part: &Operand) -> Result<Operand, String> {
        let (r, part, index) = (self.register(v)?, self.register(part)?, self.form(index)?);
        let (at, bytes) = (self.buffer(), self.vector_bytes());
        self.store_vector(VectorOp::Store, Lanes::All, &at, r);
        self.store_vector(VectorOp::Store, Lanes::Half, &at.plus(&index, bytes as i64 / 2), part);
        Ok(Operand::reg(VF, self.load_vector(VectorOp::Load, Lanes::All, &at)))
    }

    // ---- conversions ----

    /// A value as one of another type, converted.
    pub(super) fn convert(&mut self, x: Operand, to: Type) -> Result<Operand, String> {
        let x = self.read(x)?;
        if x.ty == to || to.is_vector() && x.ty.is_vector() || x.ty.pointers > 0 && to.pointers > 0 {
            return Ok(Operand { ty: to, ..x });
        }
        if to == VL {
            return self.splat_long(x);
        }
        if to.is_vector() {
            return if to == VF { self.splat(x) } else { self.splat_int(x) };
        }
        match (x.value, to) {
            (Value::Int(form), _) if to.is_int() => Ok(self.narrow(form, x.ty, to)),
            (Value::Int(form), _) if to.is_float() => match form.as_number() {
                Some(n) if x.ty == Type::of(Base::U64) => Ok(Operand { ty: to, value: Value::Number(n as u64 as f64) }),
                Some(n) => Ok(Operand { ty: to, value: Value::Number(n as f64) }),
                None if x.ty == Type::of(Base::U64) => Err("conversions of u64 to floats have no translation".into()),
                None => {
                    let r = self.b.value(&form);
                    Ok(Operand::reg(to, self.b.vector(Op::IntToFloat(to.size(0) as u8), &[r])))
                }
            },
            (Value::Number(n), _) if to == F32 => Ok(Operand { ty: to, value: Value::Number((n as f32).into()) }),
            (Value::Number(n), _) if to.is_float() => Ok(Operand { ty: to, value: Value::Number(n) }),
            (Value::Number(n), _) if to.is_int() => Ok(Operand::int(to, Linear::number(n as i64))),
            (Value::Reg(r), _) if to.is_float() => {
                let (op, lanes) = match to.is_double() {
                    true => (VectorOp::ToDouble, Lanes::One64),
                    false => (VectorOp::FromDouble, Lanes::One32),
                };
                Ok(Operand::reg(to, self.two(op, lanes, r, r)))
            }
            (Value::Reg(_), _) if to == Type::of(Base::U64) => {
                Err("conversions of floats to u64 have no translation".into())
            }
            (Value::Reg(r), _) if to.is_int() => {
                let n = self.b.pure(Class::Int, Inst::new(Op::FloatToInt(x.ty.size(0) as u8), NONE, &[r]));
                Ok(self.narrow(Linear::register(n), I64, to))
            }
            _ => Err("a value of no type".into()),
        }
    }

    /// An integer as one of another type.
    fn narrow(&mut self, form: Linear, from: Type, to: Type) -> Operand {
        let (size, old) = (to.size(0), from.size(0));
        if size == 8
            || size > old && (from.is_signed() == to.is_signed() || !from.is_signed())
            || size == old && from.is_signed() == to.is_signed()
        {
            return Operand::int(to, form);
        }
        let r = match form.as_number() {
            Some(n) => {
                let shift = 64 - 8 * size as u32;
                let n = if to.is_signed() { n << shift >> shift } else { ((n << shift) as u64 >> shift) as i64 };
                return Operand::int(to, Linear::number(n));
            }
            None => self.b.value(&form),
        };
        let r = self.b.pure(Class::Int, Inst::new(Op::Extend(size as u8, to.is_signed()), NONE, &[r]));
        Operand::int(to, Linear::register(r))
    }

    /// `(type)value`: a conversion of numbers, the same bits of vectors.
    pub(super) fn cast(&mut self, x: Operand, to: Type) -> Result<Operand, String> {
        self.convert(x, to)
    }

    /// Converts lanes between floats and integers.
    pub(super) fn convert_lanes(&mut self, x: Operand, to: Type) -> Result<Operand, String> {
        let r = self.register(&x)?;
        let v = match (x.ty, to) {
            (from, VF) if from.is_int_vector() => self.one(VectorOp::ToFloat, r),
            (VF, to) if to.is_int_vector() => self.one(VectorOp::TruncateToInt, r),
            _ => return Err("this conversion of lanes has no translation".into()),
        };
        Ok(Operand::reg(to, v))
    }

    // ---- operators ----

    /// An operator before its operand.
    pub(super) fn prefix(&mut self, op: &str, x: Operand) -> Result<Operand, String> {
        match (op, &x.value) {
            ("!", _) => self.binary("==", x, Operand::int(I32, Linear::number(0))),
            ("-", Value::Number(n)) => Ok(Operand { ty: x.ty, value: Value::Number(-n) }),
            ("-", Value::Int(form)) => {
                let ty = x.ty.promoted();
                let negative = form.times(-1);
                Ok(self.wrapped(ty, negative))
            }
            ("-", Value::Reg(r)) if x.ty == VF || x.ty == F32 => {
                let sign = self.b.constant(1 << 31);
                Ok(Operand::reg(x.ty, self.two(VectorOp::Xor, Lanes::All, *r, sign)))
            }
            ("-", Value::Reg(_)) if x.ty.is_double() => {
                let zero = Operand { ty: x.ty, value: Value::Number(-0.0) };
                self.binary("-", zero, x)
            }
            ("-", Value::Reg(r)) => {
                let zero = self.b.constant(0);
                Ok(Operand::reg(x.ty, self.two(VectorOp::IntSub, Lanes::All, zero, *r)))
            }
            ("~", Value::Reg(r)) => {
                let ones = self.b.constant(!0);
                Ok(Operand::reg(x.ty, self.two(VectorOp::Xor, Lanes::All, *r, ones)))
            }
            ("~", Value::Int(form)) => {
                let ty = x.ty.promoted();
                let inverse = form.times(-1).plus(&Linear::number(1), -1);
                Ok(self.wrapped(ty, inverse))
            }
            _ => Err(format!("the operator '{op}' has no translation here")),
        }
    }

    /// A result of 32-bit unsigned arithmetic wraps; that of signed arithmetic does not overflow.
    fn wrapped(&mut self, ty: Type, form: Linear) -> Operand {
        if ty == Type::of(Base::U32) { self.narrow(form, I64, ty) } else { Operand::int(ty, form) }
    }

    /// A binary operator.
    pub(super) fn binary(&mut self, op: &str, a: Operand, b: Operand) -> Result<Operand, String> {
        let (a, b) = (self.read(a)?, self.read(b)?);
        if a.ty.is_vector() || b.ty.is_vector() {
            return self.vectors(op, a, b);
        }
        if a.ty.is_float() || b.ty.is_float() {
            let ty = a.ty.common(b.ty);
            let (a, b) = (self.convert(a, ty)?, self.convert(b, ty)?);
            return self.floats(op, ty, a, b);
        }
        if let Some(to) = a.ty.pointee() {
            let (at, by) = (self.form(&a)?, self.form(&b)?);
            let size = to.size(self.vector_bytes()) as i64;
            return match op {
                "+" => Ok(Operand::int(a.ty, at.plus(&by, size))),
                "-" => Ok(Operand::int(a.ty, at.plus(&by, -size))),
                _ => Err("pointers are only moved".into()),
            };
        }
        self.ints(op, a, b)
    }

    fn ints(&mut self, op: &str, a: Operand, b: Operand) -> Result<Operand, String> {
        let ty = if matches!(op, "<<" | ">>") { a.ty.promoted() } else { a.ty.common(b.ty) };
        if matches!(op, "&&" | "||") {
            let (a, b) = (self.truth(a)?, self.truth(b)?);
            let alu = if op == "&&" { Alu::And } else { Alu::Or };
            return match (a.as_number(), b.as_number(), op) {
                (Some(0), ..) | (_, Some(0), "&&") if op == "&&" => Ok(Operand::int(I32, Linear::number(0))),
                (Some(1), _, "||") | (_, Some(1), "||") => Ok(Operand::int(I32, Linear::number(1))),
                (Some(_), ..) => Ok(Operand::int(I32, b)),
                (_, Some(_), _) => Ok(Operand::int(I32, a)),
                _ => {
                    let (a, b) = (self.b.value(&a), self.b.value(&b));
                    let r = self.b.pure(Class::Int, Inst::new(Op::Alu(alu), NONE, &[a, b]));
                    Ok(Operand::int(I32, Linear::register(r)))
                }
            };
        }
        let (a, b) = (self.convert(a, ty)?, if matches!(op, "<<" | ">>") { b } else { self.convert(b, ty)? });
        let (x, y) = (self.form(&a)?, self.form(&b)?);
        let form = match op {
            "+" => x.plus(&y, 1),
            "-" => x.plus(&y, -1),
            "*" => self.product(x, y),
            "==" | "!=" | "<" | ">" | "<=" | ">=" => return Ok(Operand::int(I32, self.comparison(op, ty, &x, &y))),
            _ => match (x.as_number(), y.as_number()) {
                (Some(m), Some(n)) => Linear::number(folded(op, ty, m, n).ok_or("a division by zero")?),
                (_, n) => self.int_operation(op, ty, &x, &y, n)?,
            },
        };
        Ok(self.wrapped(ty, form))
    }

    /// Whether an integer is not 0, as 0 or 1.
    fn truth(&mut self, x: Operand) -> Result<Linear, String> {
        let form = self.form(&x)?;
        if let Some(n) = form.as_number() {
            return Ok(Linear::number(i64::from(n != 0)));
        }
        if let Some(r) = form.as_register()
            && matches!(self.b.definition(r), Some(Inst { op: Op::Set(_), .. }))
        {
            return Ok(form);
        }
        Ok(self.comparison("!=", I64, &form, &Linear::number(0)))
    }

    fn product(&mut self, x: Linear, y: Linear) -> Linear {
        match (x.as_number(), y.as_number()) {
            (Some(n), _) => y.times(n),
            (_, Some(n)) => x.times(n),
            _ => {
                let (x, y) = if y.terms.len() > 1 { (y, x) } else { (x, y) };
                // A sum is multiplied term by term, so that what does not change is computed once.
                let y = self.b.value(&y);
                let mut out = Linear::register(y).times(x.constant);
                for (r, n) in &x.terms {
                    let (a, b) = (*r.min(&y), *r.max(&y));
                    let p = self.b.pure(Class::Int, Inst::new(Op::Mul, NONE, &[a, b]));
                    out = out.plus(&Linear::register(p), *n);
                }
                out
            }
        }
    }

    fn comparison(&mut self, op: &str, ty: Type, x: &Linear, y: &Linear) -> Linear {
        let unsigned = ty == Type::of(Base::U64);
        if let Some(n) = x.plus(y, -1).as_number().filter(|_| !unsigned) {
            let holds = match op {
                "==" => n == 0,
                "!=" => n != 0,
                "<" => n < 0,
                ">" => n > 0,
                "<=" => n <= 0,
                _ => n >= 0,
            };
            return Linear::number(holds.into());
        }
        let cond = match (op, unsigned) {
            ("==", _) => Cond::Equal,
            ("!=", _) => Cond::NotEqual,
            ("<", false) => Cond::Less,
            (">", false) => Cond::Greater,
            ("<=", false) => Cond::LessEqual,
            (_, false) => Cond::NotLess,
            ("<", _) => Cond::Below,
            (">", _) => Cond::Above,
            ("<=", _) => Cond::NotAbove,
            _ => Cond::NotBelow,
        };
        let (cond, x, y) = if x.as_number().is_some() { (cond.swapped(), y, x) } else { (cond, x, y) };
        let a = self.b.value(x);
        Linear::register(self.b.int(Op::Set(cond), a, y))
    }

    /// Operations other than sums and products.
    fn int_operation(&mut self, op: &str, ty: Type, x: &Linear, y: &Linear, n: Option<i64>) -> Result<Linear, String> {
        let signed = ty.is_signed();
        let power = n.filter(|n| *n > 0 && n.count_ones() == 1).map(|n| i64::from(n.trailing_zeros()));
        let shift = |how| Op::Shift(how);
        let a = self.b.value(x);
        if let ("/" | "%", Some(d), None, true) = (op, n.filter(|n| *n > 1), power, signed) {
            let quotient = self.quotient(a, d);
            return Ok(if op == "/" { quotient } else { x.plus(&quotient, -d) });
        }
        Ok(Linear::register(match (op, power) {
            ("/", Some(0)) => a,
            ("%", Some(0)) => return Ok(Linear::number(0)),
            ("/" | "%", Some(k)) => {
                // Rounds towards zero.
                let up = if signed {
                    let sign =
                        if k == 1 { a } else { self.b.int(shift(ShiftInt::RightSigned), a, &Linear::number(63)) };
                    let low = self.b.int(shift(ShiftInt::Right), sign, &Linear::number(64 - k));
                    self.b.value(&Linear::register(a).plus(&Linear::register(low), 1))
                } else {
                    a
                };
                let how = if signed { ShiftInt::RightSigned } else { ShiftInt::Right };
                let quotient = self.b.int(shift(how), up, &Linear::number(k));
                if op == "/" {
                    quotient
                } else {
                    return Ok(x.plus(&Linear::register(quotient), -(1 << k)));
                }
            }
            ("/" | "%", _) => {
                let b = self.b.value(y);
                let inst = Inst::new(Op::Divide(op == "%", signed), NONE, &[a, b]);
                match n {
                    // No division by a number that is not 0 fails.
                    Some(n) if n != 0 => self.b.pure(Class::Int, inst),
                    _ => self.b.here(Class::Int, inst),
                }
            }
            ("&", _) => self.b.int(Op::Alu(Alu::And), a, y),
            ("|", _) => self.b.int(Op::Alu(Alu::Or), a, y),
            ("^", _) => self.b.int(Op::Alu(Alu::Xor), a, y),
            ("<<", _) => self.b.int(shift(ShiftInt::Left), a, y),
            _ => self.b.int(shift(if signed { ShiftInt::RightSigned } else { ShiftInt::Right }), a, y),
        }))
    }

    /// A signed number divided by a constant that is no power of two, rounded towards zero: the high half of its product with the
    /// reciprocal. Source: Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994, figure 5.2.
    fn quotient(&mut self, a: Reg, d: i64) -> Linear {
        let (factor, shift) = reciprocal(d);
        let by = self.b.imm(factor as i64);
        let mut high = self.b.pure(Class::Int, Inst::new(Op::MulHigh, NONE, &[a, by]));
        // The factor is taken as a signed number.
        if factor > i64::MAX as u64 {
            high = self.b.value(&Linear::register(high).plus(&Linear::register(a), 1));
        }
        let right = Op::Shift(ShiftInt::RightSigned);
        let quotient = if shift > 0 { self.b.int(right, high, &Linear::number(shift)) } else { high };
        let sign = self.b.int(right, a, &Linear::number(63));
        Linear::register(self.b.value(&Linear::register(quotient).plus(&Linear::register(sign), -1)))
    }

    // ---- floats and vectors ----

    /// The factors of a product that may be fused into a sum.
    fn factors(&self, r: Reg, lanes: Lanes) -> Option<[Reg; 2]> {
        match self.b.definition(r)? {
            Inst { op: Op::Vector(v), args, mem: None, .. } if v.op == VectorOp::Mul && v.lanes == lanes => {
                Some([args[0], args[1]])
            }
            _ => None,
        }
    }

    fn floats(&mut self, op: &str, ty: Type, a: Operand, b: Operand) -> Result<Operand, String> {
        let lanes = lanes_of(ty);
        if let (Value::Number(x), Value::Number(y)) = (&a.value, &b.value) {
            let value = match op {
                "+" => x + y,
                "-" => x - y,
                "*" => x * y,
                "/" => x / y,
                _ => {
                    let holds = match op {
                        "==" => x == y,
                        "!=" => x != y,
                        "<" => x < y,
                        ">" => x > y,
                        "<=" => x <= y,
                        _ => x >= y,
                    };
                    return Ok(Operand::int(I32, Linear::number(holds.into())));
                }
            };
            let value = if ty == F32 { f64::from(value as f32) } else { value };
            return Ok(Operand { ty, value: Value::Number(value) });
        }
        let (x, y) = (self.register(&a)?, self.register(&b)?);
        if let Some(how) = FloatCond::named(op) {
            let mask = self.b.vector(Op::Compare(Comparison::Float(how, lanes)), &[x, y]);
            let bits = self.b.pure(Class::Int, Inst::new(Op::FromLane(4), NONE, &[mask]));
            let one = self.b.int(Op::Alu(Alu::And), bits, &Linear::number(1));
            return Ok(Operand::int(I32, Linear::register(one)));
        }
        Ok(Operand::reg(ty, self.arithmetic(op, lanes, x, y)?))
    }

    /// What a vector of floats is the negation of.
    fn negated(&self, r: Reg) -> Option<Reg> {
        match self.b.definition(r)? {
            Inst { op: Op::Vector(v), args: [x, sign, ..], .. } if v.op == VectorOp::Xor => {
                self.b.definition(*sign).is_some_and(|s| s.op == Op::Const && s.imm == 1 << 31).then_some(*x)
            }
            _ => None,
        }
    }

    /// Arithmetic on floats.
    fn arithmetic(&mut self, op: &str, lanes: Lanes, x: Reg, y: Reg) -> Result<Reg, String> {
        // A sum with a negated number is a difference.
        if op == "+"
            && lanes == Lanes::All
            && let Some(x) = self.negated(x)
        {
            return self.arithmetic("-", lanes, y, x);
        }
        let (fx, fy) = (self.factors(x, lanes), self.factors(y, lanes));
        let fma = |s: &mut Self, kind: u8, [a, b]: [Reg; 2], c: Reg| s.b.vector(Op::Fma(kind, lanes), &[a, b, c]);
        let op = match (op, fx, fy) {
            ("+", Some(f), _) => return Ok(fma(self, 0, f, y)),
            ("+", _, Some(f)) => return Ok(fma(self, 0, f, x)),
            ("-", _, Some(f)) => return Ok(fma(self, 1, f, x)),
            ("-", Some(f), _) => return Ok(fma(self, 2, f, y)),
            ("+", ..) => VectorOp::Add,
            ("-", ..) => VectorOp::Sub,
            ("*", ..) => VectorOp::Mul,
            ("/", ..) => VectorOp::Div,
            _ => return Err(format!("the operator '{op}' of floats has no translation")),
        };
        Ok(self.two(op, lanes, x, y))
    }

    fn vectors(&mut self, op: &str, a: Operand, b: Operand) -> Result<Operand, String> {
        let ty = if a.ty.is_vector() { a.ty } else { b.ty };
        if matches!(op, "<<" | ">>") {
            let n = self.form(&b)?.as_number().ok_or("shifts of lanes by numbers that are not known")?;
            let how = match (op, ty.base) {
                ("<<", _) => Shift::Left,
                (_, Base::Vu) => Shift::Right,
                _ => Shift::RightSigned,
            };
            let x = self.register(&a)?;
            let how = if ty == VL && op == ">>" { Shift::Right } else { how };
            let r = self.b.pure(Class::Vector, Inst { imm: n, ..Inst::new(Op::ShiftLanes(how, ty == VL), NONE, &[x]) });
            return Ok(Operand::reg(ty, r));
        }
        let (a, b) = (self.convert(a, ty)?, self.convert(b, ty)?);
        let (x, y) = (self.register(&a)?, self.register(&b)?);
        if matches!(ty, VF | VD) {
            let lanes = lanes_of(ty);
            if let Some(how) = FloatCond::named(op) {
                let mask = self.b.vector(Op::Compare(Comparison::Float(how, lanes)), &[x, y]);
                return Ok(Operand::reg(if ty == VF { VI } else { VL }, mask));
            }
            return Ok(Operand::reg(ty, self.arithmetic(op, lanes, x, y)?));
        }
        let opcode = match op {
            "+" if ty == VL => VectorOp::LongAdd,
            "-" if ty == VL => VectorOp::LongSub,
            "+" => VectorOp::IntAdd,
            "-" => VectorOp::IntSub,
            "*" => VectorOp::IntMul,
            "&" => VectorOp::And,
            "|" => VectorOp::Or,
            "^" => VectorOp::Xor,
            _ => return self.compare_ints(op, x, y),
        };
        let (opcode, x, y) = match self.sum_of_constants(opcode, x, y) {
            Some((x, 0)) => return Ok(Operand::reg(ty, x)),
            Some((x, c)) => (VectorOp::IntAdd, x, self.b.constant(c)),
            None => (opcode, x, y),
        };
        Ok(Operand::reg(ty, self.two(opcode, Lanes::All, x, y)))
    }

    /// The constant in all lanes of a register.
    fn constant_lanes(&self, r: Reg) -> Option<u32> {
        self.b.definition(r).filter(|i| i.op == Op::Const).map(|i| i.imm as u32)
    }

    /// `x` plus a constant, for a sum or difference with a constant of what is one itself.
    fn sum_of_constants(&self, opcode: VectorOp, x: Reg, y: Reg) -> Option<(Reg, u32)> {
        let signed = |opcode: VectorOp, c: u32| match opcode {
            VectorOp::IntAdd => Some(c),
            VectorOp::IntSub => Some(c.wrapping_neg()),
            _ => None,
        };
        let second = signed(opcode, self.constant_lanes(y)?)?;
        let Inst { op: Op::Vector(inner), args: [x, y, ..], .. } = *self.b.definition(x)? else { return None };
        if inner.form != Form::Two || inner.lanes != Lanes::All || y == NONE {
            return None;
        }
        Some((x, signed(inner.op, self.constant_lanes(y)?)?.wrapping_add(second)))
    }

    fn compare_ints(&mut self, op: &str, x: Reg, y: Reg) -> Result<Operand, String> {
        let (x, y, how) = match op {
            "==" | "!=" => (x, y, Comparison::IntEqual),
            ">" | "<=" => (x, y, Comparison::IntGreater),
            "<" | ">=" => (y, x, Comparison::IntGreater),
            _ => return Err(format!("the operator '{op}' of integer lanes has no translation")),
        };
        let mask = self.b.vector(Op::Compare(how), &[x, y]);
        if matches!(op, "==" | ">" | "<") {
            return Ok(Operand::reg(VI, mask));
        }
        let ones = self.b.constant(!0);
        Ok(Operand::reg(VI, self.two(VectorOp::Xor, Lanes::All, mask, ones)))
    }
}

/// The factor and shift that divide signed numbers of 64 bits by `d > 1`: `n * factor >> (64 + shift)`, rounded down.
fn reciprocal(d: i64) -> (u64, i64) {
    let mut shift = 64 - (d - 1).leading_zeros();
    let d = d as u128;
    let power = 1 << (64 + shift);
    let (mut low, mut high) = (power / d, (power + (1 << (shift + 1))) / d);
    while shift > 0 && low / 2 < high / 2 {
        (low, high, shift) = (low / 2, high / 2, shift - 1);
    }
    (high as u64, shift.into())
}

/// An operation on known numbers; `None` for a division by zero.
fn folded(op: &str, ty: Type, m: i64, n: i64) -> Option<i64> {
    let by = n as u32;
    Some(match (op, ty.is_signed()) {
        ("/", true) => m.checked_div(n)?,
        ("/", false) => (m as u64).checked_div(n as u64)? as i64,
        ("%", true) => m.checked_rem(n)?,
        ("%", false) => (m as u64).checked_rem(n as u64)? as i64,
        ("&", _) => m & n,
        ("|", _) => m | n,
        ("^", _) => m ^ n,
        ("<<", _) => m.wrapping_shl(by),
        (_, true) => m.wrapping_shr(by),
        _ => (m as u64).wrapping_shr(by) as i64,
    })
}

#[cfg(test)]
mod tests {
    use super::reciprocal;

    #[test]
    fn products_with_reciprocals_are_quotients() {
        let edges = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
        for d in (3..2000).chain([i64::MAX, i64::MAX / 2, (1 << 40) + 1, 1_000_000_007]).filter(|d| d.count_ones() > 1)
        {
            let (factor, shift) = reciprocal(d);
            let near = (-4..4).flat_map(|k| [-1, 0, 1].map(|by| (i64::MAX / 4 / d * d * k).wrapping_add(by)));
            for n in edges.into_iter().chain(near).chain(-3 * d.min(9)..3 * d.min(9)) {
                let mut high = ((i128::from(n) * i128::from(factor as i64)) >> 64) as i64;
                if factor > i64::MAX as u64 {
                    high = high.wrapping_add(n);
                }
                assert_eq!((high >> shift) - (n >> 63), n / d, "{n} / {d}");
            }
        }
    }
}
