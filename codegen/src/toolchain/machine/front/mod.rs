//! Translates the text of a kernel to a [`Program`], in one pass over its tokens: there is no tree. Functions are inlined by
//! reading their tokens again.

mod builtin;
mod expression;
mod operator;
mod statement;

use crate::toolchain::machine::builder::Builder;
use crate::toolchain::machine::ir::{Class, FRAME, Inst, NONE, Op, Program, Reg};
use crate::toolchain::machine::language::{Language, Word};
use crate::toolchain::machine::lexer::{Name, Names, Token, Tokens, mark};
use crate::toolchain::machine::linear::Linear;
use crate::toolchain::machine::operation::{Alu, Cond};
use crate::toolchain::machine::target::Target;
use crate::toolchain::machine::types::{I32, I64, Type, VOID};

/// A value.
#[derive(Clone, PartialEq, Debug)]
enum Value {
    /// An integer or address.
    Int(Linear),
    /// A vector or single float.
    Reg(Reg),
    /// A single float that is known.
    Number(f64),
    /// What is in memory at an address.
    Memory(Linear),
    /// The variable with this index.
    Variable(usize),
    /// A lane of the variable with this index.
    Lane(usize, Linear),
    /// None.
    Nothing,
}

/// A value and its type.
#[derive(Clone, PartialEq, Debug)]
struct Operand {
    ty: Type,
    value: Value,
}

impl Operand {
    fn int(ty: Type, form: Linear) -> Operand {
        Operand { ty, value: Value::Int(form) }
    }

    fn reg(ty: Type, r: Reg) -> Operand {
        Operand { ty, value: Value::Reg(r) }
    }
}

/// A variable.
#[derive(Clone, PartialEq, Debug)]
enum Variable {
    /// One value.
    One(Operand),
    /// An array: the type of its elements, its extents, and its address.
    Array(Type, Vec<usize>, Linear),
}

/// A condition.
enum Test {
    Known(bool),
    /// A comparison of a register with a number or register.
    Compare(Cond, Reg, Linear),
}

/// A loop that is being translated.
struct Loop {
    /// Variables that change, and the registers that hold them.
    changed: Vec<(usize, Reg)>,
    /// The same where the next iteration begins, if the body jumps there.
    next: Option<(u32, Vec<Reg>)>,
    end: u32,
}

/// A function that is being inlined.
struct Call {
    ty: Type,
    /// The first of its variables: those of its caller have other scopes, even with equal names.
    variables: usize,
    /// Open branches and loops when it began.
    nesting: usize,
    result: Option<Operand>,
    /// Where early returns jump to, and the register of their results.
    early: Option<(u32, Reg)>,
}

/// The most calls within calls.
const MAX_CALLS: usize = 32;

/// The translation of a kernel.
struct Front {
    language: &'static Language,
    names: Names,
    tokens: Tokens,
    at: usize,
    b: Builder,
    vars: Vec<(Name, Variable)>,
    loops: Vec<Loop>,
    calls: Vec<Call>,
    /// Open branches and loops.
    nesting: usize,
    /// Whether the statement before does not end.
    dead: bool,
    /// A buffer in the frame, once it is needed.
    buffer: Option<Linear>,
}

/// Translates the statements of a kernel.
///
/// # Errors
/// What has no translation.
pub fn translate(text: &str, language: &'static Language, target: &'static Target) -> Result<Program, String> {
    let mut names = Names::after(&language.names);
    let tokens = Tokens::after(&language.tokens, text, &mut names)?;
    let b = Builder::new(target);
    let (vars, loops, calls) = Default::default();
    let mut f = Front {
        language,
        names,
        tokens,
        at: language.tokens.len(),
        b,
        vars,
        loops,
        calls,
        nesting: 0,
        dead: false,
        buffer: None,
    };
    for (i, (name, ty)) in
        [("args", VOID.pointer().pointer()), ("begin", I64), ("end", I64), ("scratch", VOID.pointer())]
            .into_iter()
            .enumerate()
    {
        let r = f.b.merge(Class::Int);
        f.b.effect(Inst { imm: i as i64, ..Inst::new(Op::Param, r, &[]) });
        let name = f.names.number(name);
        f.vars.push((name, Variable::One(Operand::int(ty, Linear::register(r)))));
    }
    while f.peek() != Token::End {
        f.statement().map_err(|e| format!("{e}, at '{}'", f.near()))?;
    }
    f.exit(&Linear::number(0));
    Ok(f.b.finish())
}

impl Front {
    // ---- tokens ----

    fn peek(&self) -> Token {
        self.tokens.at(self.at)
    }

    fn next(&mut self) -> Token {
        let token = self.peek();
        self.at += usize::from(token != Token::End);
        token
    }

    fn is(&self, text: &str) -> bool {
        self.peek() == Token::Mark(mark(text))
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.is(text);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        if self.take(text) { Ok(()) } else { Err(format!("'{text}' is missing")) }
    }

    fn word(&self) -> Option<Word> {
        if let Token::Name(n) = self.peek() { Word::of(n) } else { None }
    }

    fn take_word(&mut self, word: Word) -> bool {
        let found = self.word() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn name(&mut self) -> Result<Name, String> {
        match self.next() {
            Token::Name(n) => Ok(n),
            _ => Err("a name is missing".into()),
        }
    }

    /// The tokens around the current one, for messages.
    fn near(&self) -> String {
        let text = |t: &Token| match t {
            Token::Name(n) => self.names.text(*n).to_string(),
            Token::Int(n, _) => n.to_string(),
            Token::Float(x, _) => x.to_string(),
            Token::Mark(m) => m.to_le_bytes().iter().filter(|b| **b > 0).map(|b| *b as char).collect(),
            Token::End => String::new(),
        };
        // In the text, or in a function.
        let inside = self.at >= self.language.tokens.len();
        let (start, end) = if inside { (self.language.tokens.len(), self.tokens.end()) } else { (0, usize::MAX) };
        let near = self.tokens.between(self.at.saturating_sub(8).max(start), (self.at + 4).min(end));
        near.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    /// Skips to after the mark that closes the one before the current token.
    fn skip_closed(&mut self) {
        let mut depth = 1;
        while depth > 0 && self.peek() != Token::End {
            match self.next() {
                Token::Mark(m) if m == mark("(") || m == mark("{") || m == mark("[") => depth += 1,
                Token::Mark(m) if m == mark(")") || m == mark("}") || m == mark("]") => depth -= 1,
                _ => {}
            }
        }
    }

    // ---- values ----

    /// The value of an operand, loaded if it is in memory.
    fn read(&mut self, o: Operand) -> Result<Operand, String> {
        match o.value {
            Value::Variable(i) => match &self.vars[i].1 {
                Variable::One(v) => Ok(v.clone()),
                Variable::Array(ty, _, at) => Ok(Operand::int(ty.pointer(), at.clone())),
            },
            Value::Memory(at) => self.load(o.ty, &at),
            Value::Lane(i, index) => {
                let v = self.read(Operand { ty: o.ty, value: Value::Variable(i) })?;
                self.lane(v, Operand::int(I32, index))
            }
            _ => Ok(o),
        }
    }

    /// An integer operand as a form.
    fn form(&mut self, o: &Operand) -> Result<Linear, String> {
        match &o.value {
            Value::Int(form) => Ok(form.clone()),
            _ => Err("an integer is missing".into()),
        }
    }

    /// An operand in a register.
    fn register(&mut self, o: &Operand) -> Result<Reg, String> {
        match &o.value {
            Value::Int(form) => Ok(self.b.value(form)),
            Value::Reg(r) => Ok(*r),
            Value::Number(x) if o.ty.is_double() => Ok(self.double(*x)),
            Value::Number(x) => Ok(self.b.float(*x as f32)),
            _ => Err("a value is missing".into()),
        }
    }

    fn class(ty: Type) -> Class {
        if ty.is_int() { Class::Int } else { Class::Vector }
    }

    /// A value of a register.
    fn of_register(ty: Type, r: Reg) -> Operand {
        if ty.is_int() { Operand::int(ty, Linear::register(r)) } else { Operand::reg(ty, r) }
    }

    /// Copies an operand to a merged register.
    fn copy_to(&mut self, to: Reg, o: &Operand) -> Result<(), String> {
        let from = self.register(o)?;
        if from != to {
            self.b.effect(Inst::new(Op::Copy, to, &[from]));
        }
        Ok(())
    }

    /// The end of the kernel.
    fn exit(&mut self, status: &Linear) {
        let r = self.b.value(status);
        self.b.effect(Inst::new(Op::Exit, NONE, &[r]));
    }

    /// An array in the frame.
    fn array(&mut self, bytes: usize) -> Linear {
        let at = self.b.frame;
        self.b.frame += bytes.next_multiple_of(64);
        Linear::register(FRAME).plus(&Linear::number(at as i64), 1)
    }

    /// A buffer of two vectors in the frame, which is read right after it is written.
    fn buffer(&mut self) -> Linear {
        if self.buffer.is_none() {
            self.buffer = Some(self.array(128));
        }
        self.buffer.clone().unwrap_or_default()
    }

    /// A condition as a comparison.
    fn test(&mut self, o: Operand) -> Result<Test, String> {
        let o = self.read(o)?;
        let form = match &o.value {
            Value::Int(form) => form.clone(),
            _ => return Err("a condition is no integer".into()),
        };
        if let Some(n) = form.as_number() {
            return Ok(Test::Known(n != 0));
        }
        let r = self.b.value(&form);
        if let Some([(cond, a, b)]) = self.conjuncts(r).as_deref() {
            return Ok(Test::Compare(*cond, *a, b.clone()));
        }
        Ok(Test::Compare(Cond::NotEqual, r, Linear::number(0)))
    }

    /// The comparisons that must all hold for a register to be other than 0: those that `&&` joins.
    fn conjuncts(&self, r: Reg) -> Option<Vec<(Cond, Reg, Linear)>> {
        let Inst { op, args: [a, b, ..], imm, .. } = *self.b.definition(r)?;
        match op {
            Op::Set(cond) => {
                let b = if b == NONE { Linear::number(imm) } else { Linear::register(b) };
                Some(vec![(cond, a, b)])
            }
            Op::Alu(Alu::And) if b != NONE => Some([self.conjuncts(a)?, self.conjuncts(b)?].concat()),
            _ => None,
        }
    }

    /// Jumps if a comparison holds.
    fn branch(&mut self, cond: Cond, a: Reg, b: &Linear, to: u32) {
        let inst = match b.as_number().filter(|n| i32::try_from(*n).is_ok()) {
            Some(n) => Inst { imm: n, ..Inst::new(Op::Branch(cond, to), NONE, &[a]) },
            None => {
                let b = self.b.value(b);
                Inst::new(Op::Branch(cond, to), NONE, &[a, b])
            }
        };
        self.b.effect(inst);
    }

    fn jump(&mut self, to: u32) {
        self.b.effect(Inst::new(Op::Jump(to), NONE, &[]));
    }

    fn place(&mut self, label: u32) {
        self.b.effect(Inst::new(Op::Label(label), NONE, &[]));
    }

    /// The values of all variables.
    fn values(&self, count: usize) -> Vec<Variable> {
        self.vars[..count].iter().map(|v| v.1.clone()).collect()
    }

    fn set_values(&mut self, values: &[Variable]) {
        self.vars.truncate(values.len());
        for (v, value) in self.vars.iter_mut().zip(values) {
            v.1 = value.clone();
        }
    }

    fn find(&self, name: Name) -> Option<usize> {
        let own = self.calls.last().map_or(0, |c| c.variables);
        self.vars[own..].iter().rposition(|v| v.0 == name).map(|i| own + i)
    }

    /// Inlines a function whose parameters are at `at`.
    fn call(&mut self, at: usize, args: Vec<Operand>) -> Result<Operand, String> {
        if self.calls.len() > MAX_CALLS {
            return Err("a function calls itself".into());
        }
        let (back, mark_) = (self.at, self.vars.len());
        self.at = at;
        let ty = self.declared_type()?;
        self.name()?;
        self.expect("(")?;
        for arg in args {
            let ty = self.declared_type()?;
            let name = self.name()?;
            let arg = self.convert(arg, ty)?;
            self.vars.push((name, Variable::One(arg)));
            if !self.take(",") {
                break;
            }
        }
        self.expect(")")?;
        self.calls.push(Call { ty, variables: mark_, nesting: self.nesting, result: None, early: None });
        let done = self.statement();
        let call = self.calls.pop();
        done?;
        self.vars.truncate(mark_);
        self.at = back;
        self.dead = false;
        let Some(call) = call else { return Err("a call is missing".into()) };
        match (call.early, call.result) {
            (Some((label, r)), result) => {
                if let Some(result) = result {
                    self.copy_to(r, &result)?;
                }
                self.place(label);
                self.b.redefine(r);
                // Early returns skipped some of it.
                self.b.forget_all();
                Ok(Self::of_register(ty, r))
            }
            (None, Some(result)) => Ok(result),
            (None, None) => Ok(Operand { ty: VOID, value: Value::Nothing }),
        }
    }

    /// A return from a function or from the kernel.
    fn return_(&mut self) -> Result<(), String> {
        if self.calls.is_empty() {
            let status = self.expression()?;
            let status = self.convert(status, I32)?;
            let form = self.form(&status)?;
            self.expect(";")?;
            self.exit(&form);
            self.dead = true;
            return Ok(());
        }
        let result = if self.is(";") { None } else { Some(self.expression()?) };
        self.expect(";")?;
        let last = self.calls.len() - 1;
        let (ty, nesting) = (self.calls[last].ty, self.calls[last].nesting);
        let result = match result {
            Some(r) => Some(self.convert(r, ty)?),
            None => None,
        };
        if self.dead {
            return Ok(());
        }
        self.dead = true;
        // The body's braces are one level.
        if self.nesting == nesting {
            self.calls[last].result = result;
            return Ok(());
        }
        let (label, r) = match self.calls[last].early {
            Some(early) => early,
            None => {
                let early = (self.b.label(), self.b.merge(Self::class(ty)));
                self.calls[last].early = Some(early);
                early
            }
        };
        if let Some(result) = result {
            self.copy_to(r, &result)?;
        }
        self.jump(label);
        Ok(())
    }
}
