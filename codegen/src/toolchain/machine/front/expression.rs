//! Expressions: operators by precedence, casts, places in memory, calls.

use crate::toolchain::machine::builder::Closed;
use crate::toolchain::machine::front::{Front, Operand, Test, Value, Variable};
use crate::toolchain::machine::ir::{Inst, NONE, Op};
use crate::toolchain::machine::language::Word;
use crate::toolchain::machine::lexer::{Name, Token, mark};
use crate::toolchain::machine::linear::Linear;
use crate::toolchain::machine::types::{Base, F32, I32, I64, Type, VOID};

/// The most instructions of a side of a choice that is computed although it may not be chosen.
const MAX_SPECULATED: usize = 12;

/// A binary operator and how tightly it binds.
fn binary(m: u32) -> Option<(&'static str, u8)> {
    const ALL: &[(u32, &str, u8)] = &[
        (mark("||"), "||", 1),
        (mark("&&"), "&&", 2),
        (mark("|"), "|", 3),
        (mark("^"), "^", 4),
        (mark("&"), "&", 5),
        (mark("=="), "==", 6),
        (mark("!="), "!=", 6),
        (mark("<"), "<", 7),
        (mark(">"), ">", 7),
        (mark("<="), "<=", 7),
        (mark(">="), ">=", 7),
        (mark("<<"), "<<", 8),
        (mark(">>"), ">>", 8),
        (mark("+"), "+", 9),
        (mark("-"), "-", 9),
        (mark("*"), "*", 10),
        (mark("/"), "/", 10),
        (mark("%"), "%", 10),
    ];
    ALL.iter().find(|(code, ..)| *code == m).map(|(_, text, binds)| (*text, *binds))
}

/// The operator of a compound assignment.
fn compound(m: u32) -> Option<&'static str> {
    const ALL: &[(u32, &str)] = &[
        (mark("+="), "+"),
        (mark("-="), "-"),
        (mark("*="), "*"),
        (mark("/="), "/"),
        (mark("|="), "|"),
        (mark("&="), "&"),
        (mark("^="), "^"),
        (mark("<<="), "<<"),
        (mark(">>="), ">>"),
    ];
    ALL.iter().find(|(code, _)| *code == m).map(|(_, op)| *op)
}

impl Front {
    /// An expression, read: an assignment or a choice.
    pub(super) fn expression(&mut self) -> Result<Operand, String> {
        let place = self.unary()?;
        let Token::Mark(m) = self.peek() else { return self.read(place) };
        if m == mark("=") {
            self.at += 1;
            let value = self.expression()?;
            return self.assign(place, value);
        }
        if let Some(op) = compound(m) {
            self.at += 1;
            let old = self.read(place.clone())?;
            let by = self.expression()?;
            let new = self.binary(op, old, by)?;
            return self.assign(place, new);
        }
        let first = self.read(place)?;
        let value = self.operators(first, 1)?;
        if self.take("?") { self.choice(value) } else { Ok(value) }
    }

    /// Stores a value to a variable or to memory.
    pub(super) fn assign(&mut self, to: Operand, value: Operand) -> Result<Operand, String> {
        let value = self.convert(value, to.ty)?;
        match to.value {
            Value::Variable(i) => self.vars[i].1 = Variable::One(value.clone()),
            Value::Memory(at) => self.store(to.ty, &at, &value)?,
            Value::Lane(i, index) => self.set_lane(i, &index, value.clone())?,
            _ => return Err("an assignment to a value".into()),
        }
        Ok(value)
    }

    /// Operators that bind at least as tightly as `least`.
    fn operators(&mut self, mut left: Operand, least: u8) -> Result<Operand, String> {
        while let Token::Mark(m) = self.peek()
            && let Some((op, binds)) = binary(m)
            && binds >= least
        {
            self.at += 1;
            let right = self.unary()?;
            let right = self.read(right)?;
            let right = self.operators(right, binds + 1)?;
            left = self.binary(op, left, right)?;
        }
        Ok(left)
    }

    /// A value in a sequence of its own.
    fn side(&mut self) -> Result<(Operand, Closed), String> {
        self.b.begin(false);
        self.nesting += 1;
        let value = self.expression()?;
        self.nesting -= 1;
        Ok((value, self.b.end()))
    }

    /// `condition ? a : b`.
    fn choice(&mut self, condition: Operand) -> Result<Operand, String> {
        let test = self.test(condition)?;
        let assigns = self.choice_assigns();
        let before = self.values(if assigns { self.vars.len() } else { 0 });
        let (cond, x, y) = match test {
            // The side that is not chosen is dropped.
            Test::Known(true) => {
                let a = self.expression()?;
                self.expect(":")?;
                let after = self.values(before.len());
                self.side()?;
                self.restore(&after);
                return Ok(a);
            }
            Test::Known(false) => {
                self.side()?;
                self.restore(&before);
                self.expect(":")?;
                return self.expression();
            }
            Test::Compare(cond, x, y) => (cond, x, y),
        };
        let (a, first) = self.side()?;
        let after_first = self.values(before.len());
        self.restore(&before);
        self.expect(":")?;
        let (b, second) = self.side()?;
        let after = [after_first, self.values(before.len())];
        let ty = if a.ty.pointers > 0 || a.ty == b.ty { a.ty } else { a.ty.common(b.ty) };
        let pure = |c: &Closed| c.0.len() <= MAX_SPECULATED && c.0.iter().all(Self::speculated);
        if ty.is_int() && !assigns && pure(&first) && pure(&second) {
            self.b.adopt(first.0);
            self.b.adopt(second.0);
            let (a, b) = (self.convert(a, ty)?, self.convert(b, ty)?);
            let (a, b) = (self.register(&a)?, self.register(&b)?);
            let select = match y.as_number().filter(|n| i32::try_from(*n).is_ok()) {
                Some(n) => Inst { imm: n, ..Inst::new(Op::Select(cond), NONE, &[x, NONE, a, b]) },
                None => {
                    let y = self.b.value(&y);
                    Inst::new(Op::Select(cond), NONE, &[x, y, a, b])
                }
            };
            let r = self.b.pure(Self::class(ty), select);
            return Ok(Self::of_register(ty, r));
        }
        // The result is as one more variable.
        let result = self.b.merge(Self::class(ty));
        let mut sides = Vec::with_capacity(2);
        for ((value, closed), values) in [(a, first), (b, second)].into_iter().zip(after) {
            self.b.reopen(closed);
            let value = self.convert(value, ty)?;
            self.copy_to(result, &value)?;
            sides.push((self.b.end(), values, false));
        }
        let Ok(sides) = <[_; 2]>::try_from(sides) else { return Err("a choice of two".into()) };
        let [first, second] = self.merge(sides)?;
        let (no, end) = (self.b.label(), self.b.label());
        self.branch(cond.opposite(), x, &y, no);
        self.b.append(first.0);
        self.jump(end);
        self.place(no);
        self.b.append(second.0);
        self.place(end);
        Ok(Self::of_register(ty, result))
    }

    /// Whether a side of the choice that begins here assigns to variables.
    fn choice_assigns(&self) -> bool {
        let (mut depth, mut open) = (0, 1);
        for token in self.tokens.between(self.at, self.tokens.end()) {
            let Token::Mark(m) = token else { continue };
            match *m {
                m if m == mark("(") || m == mark("[") => depth += 1,
                m if m == mark(")") || m == mark("]") => depth -= 1,
                m if m == mark("?") => open += 1,
                m if m == mark(":") => open -= 1,
                m if m == mark("++") || m == mark("--") || m == mark("=") || compound(m).is_some() => return true,
                m if depth == 0 && (m == mark(";") || m == mark(",") && open == 0) => return false,
                _ => {}
            }
            if depth < 0 {
                return false;
            }
        }
        false
    }

    /// Gives variables the values that they had.
    fn restore(&mut self, values: &[Variable]) {
        if !values.is_empty() {
            self.set_values(values);
        }
    }

    /// Whether an instruction may run although its result is not needed.
    fn speculated(i: &Inst) -> bool {
        i.is_pure()
            && !matches!(i.op, Op::Load(..) | Op::Divide(..) | Op::LoadPart(_))
            && i.mem.is_none_or(|_| i.op == Op::Lea)
    }

    // ---- operands ----

    /// An operand with its prefixes and suffixes; not read.
    fn unary(&mut self) -> Result<Operand, String> {
        let Token::Mark(m) = self.peek() else {
            let value = self.primary()?;
            return self.suffixes(value);
        };
        for op in ["-", "~", "!", "*", "&", "+"] {
            if m == mark(op) {
                self.at += 1;
                let value = self.unary()?;
                if op == "&" {
                    return Err("addresses of variables have no translation".into());
                }
                let value = self.read(value)?;
                return match op {
                    "*" => self.pointed(value, Linear::number(0)),
                    "+" => Ok(value),
                    _ => self.prefix(op, value),
                };
            }
        }
        if m != mark("(") {
            return Err("an operand is missing".into());
        }
        self.at += 1;
        if self.is_type() {
            let ty = self.declared_type()?;
            self.expect(")")?;
            if self.is("{") {
                return self.list(ty);
            }
            let value = self.unary()?;
            let value = self.read(value)?;
            return self.cast(value, ty);
        }
        let value = self.expression()?;
        self.expect(")")?;
        self.suffixes(value)
    }

    /// What a pointer points to, some elements further.
    fn pointed(&mut self, pointer: Operand, by: Linear) -> Result<Operand, String> {
        let ty = pointer.ty.pointee().ok_or("no pointer")?;
        let at = self.form(&pointer)?;
        let size = ty.size(self.vector_bytes()) as i64;
        Ok(Operand { ty, value: Value::Memory(at.plus(&by, size)) })
    }

    /// Indices and increments after an operand.
    fn suffixes(&mut self, mut value: Operand) -> Result<Operand, String> {
        loop {
            if self.take("[") {
                let index = self.expression()?;
                self.expect("]")?;
                if let Value::Variable(i) = value.value
                    && let Variable::Array(ty, extents, at) = self.vars[i].1.clone()
                {
                    value = self.element(ty, &extents, at, index)?;
                    continue;
                }
                let base = self.read(value)?;
                if base.ty.is_vector() {
                    value = self.lane(base, index)?;
                    continue;
                }
                let index = self.convert(index, I64)?;
                let by = self.form(&index)?;
                value = self.pointed(base, by)?;
            } else if self.is("++") || self.is("--") {
                let op = if self.take("++") { "+" } else { "-" };
                self.take("--");
                let old = self.read(value.clone())?;
                let new = self.binary(op, old.clone(), Operand::int(I32, Linear::number(1)))?;
                self.assign(value, new)?;
                return Ok(old);
            } else {
                return Ok(value);
            }
        }
    }

    /// An element of an array of one or two extents.
    fn element(&mut self, ty: Type, extents: &[usize], at: Linear, index: Operand) -> Result<Operand, String> {
        let size = ty.size(self.vector_bytes()) as i64;
        let index = self.convert(index, I64)?;
        let mut offset = self.form(&index)?;
        if let [_, columns] = extents {
            self.expect("[")?;
            let second = self.expression()?;
            let second = self.convert(second, I64)?;
            self.expect("]")?;
            offset = offset.times(*columns as i64).plus(&self.form(&second)?, 1);
        }
        Ok(Operand { ty, value: Value::Memory(at.plus(&offset, size)) })
    }

    /// A number, variable or call.
    fn primary(&mut self) -> Result<Operand, String> {
        match self.next() {
            Token::Int(n, unsigned) => {
                let base = match (unsigned, i32::try_from(n).is_ok()) {
                    (true, _) if n < 0 || n > i64::from(u32::MAX) => Base::U64,
                    (true, _) => Base::U64,
                    (_, true) => Base::I32,
                    _ if (0..=i64::from(u32::MAX)).contains(&n) => Base::U32,
                    _ => Base::I64,
                };
                Ok(Operand::int(Type::of(base), Linear::number(n)))
            }
            Token::Float(x, single) => {
                let ty = if single { F32 } else { Type::of(Base::F64) };
                Ok(Operand { ty, value: Value::Number(x) })
            }
            Token::Name(name) => self.named(name),
            _ => {
                self.at -= 1;
                Err("an operand is missing".into())
            }
        }
    }

    fn named(&mut self, name: Name) -> Result<Operand, String> {
        if let Some(i) = self.find(name) {
            let ty = match &self.vars[i].1 {
                Variable::One(o) => o.ty,
                Variable::Array(ty, ..) => ty.pointer(),
            };
            return Ok(Operand { ty, value: Value::Variable(i) });
        }
        let single = |x: f64| Ok(Operand { ty: F32, value: Value::Number(x) });
        let double = |x: f64| Ok(Operand { ty: Type::of(Base::F64), value: Value::Number(x) });
        let flag = |holds: bool| Ok(Operand::int(I32, Linear::number(holds.into())));
        match Word::of(name) {
            Some(Word::Lanes) => Ok(Operand::int(I32, Linear::number(self.lanes() as i64))),
            Some(Word::HasAvx512) => flag(self.b.target.avx512),
            Some(Word::HasVnni) => flag(self.b.target.byte_products),
            Some(Word::Inf32) => single(f64::INFINITY),
            Some(Word::Nan32) => single(f64::NAN),
            Some(Word::Inf64) => double(f64::INFINITY),
            Some(Word::Nan64) => double(f64::NAN),
            Some(Word::Parts) => Ok(Operand::int(I32, Linear::number(2))),
            Some(Word::Arg) => self.argument(),
            Some(Word::Lane) => self.lane_of(),
            Some(Word::Sizeof) => {
                self.expect("(")?;
                let ty = self.declared_type()?;
                self.expect(")")?;
                Ok(Operand::int(I64, Linear::number(ty.size(self.vector_bytes()) as i64)))
            }
            word if self.is("(") => {
                self.at += 1;
                self.called(name, word)
            }
            _ => Err(format!("'{}' is unknown", self.names.text(name))),
        }
    }

    /// `ARG(type, number)`: an argument of the kernel as a pointer.
    fn argument(&mut self) -> Result<Operand, String> {
        self.expect("(")?;
        let ty = self.declared_type()?.pointer();
        self.expect(",")?;
        let number = self.expression()?;
        self.expect(")")?;
        let number = self.form(&number)?;
        let Variable::One(args) = self.vars[0].1.clone() else { return Err("no arguments".into()) };
        let value = self.pointed(args, number)?;
        let value = self.read(value)?;
        Ok(Operand { ty, ..value })
    }

    /// `LANE(vector, number)`; that of a variable may be assigned to.
    fn lane_of(&mut self) -> Result<Operand, String> {
        self.expect("(")?;
        let v = self.unary()?;
        self.expect(",")?;
        let index = self.expression()?;
        self.expect(")")?;
        if let Value::Variable(i) = v.value {
            let ty = if v.ty.is_int_vector() { I32 } else { F32 };
            return Ok(Operand { ty, value: Value::Lane(i, self.form(&index)?) });
        }
        let v = self.read(v)?;
        self.lane(v, index)
    }

    /// A call whose arguments follow.
    fn called(&mut self, name: Name, word: Option<Word>) -> Result<Operand, String> {
        if word == Some(Word::Convert) {
            let value = self.expression()?;
            self.expect(",")?;
            let ty = self.declared_type()?;
            self.expect(")")?;
            return self.convert_lanes(value, ty);
        }
        let mut args = Vec::new();
        while !self.take(")") {
            args.push(self.expression()?);
            self.take(",");
        }
        if let Some(word) = word {
            return self.builtin(word, args);
        }
        if let Some(at) = self.language.functions.get(&name).copied() {
            return self.call(at, args);
        }
        // Functions of single numbers are the first lanes of those of vectors.
        let text = self.names.text(name).to_string();
        match text.strip_prefix("one_").and_then(|f| self.names.find(&format!("v{f}"))) {
            Some(vector) => {
                let args = args.into_iter().map(|a| self.splat(a)).collect::<Result<Vec<_>, _>>()?;
                let value = match Word::of(vector) {
                    Some(word) => self.builtin(word, args)?,
                    None => {
                        let at = self.language.functions.get(&vector).copied();
                        self.call(at.ok_or_else(|| format!("the function '{text}' is unknown"))?, args)?
                    }
                };
                Ok(Operand { ty: F32, ..value })
            }
            None => Err(format!("the function '{text}' is unknown")),
        }
    }

    /// No value.
    pub(super) fn nothing() -> Operand {
        Operand { ty: VOID, value: Value::Nothing }
    }
}
