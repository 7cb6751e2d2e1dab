//! Statements: declarations, branches and loops.

use crate::toolchain::machine::builder::Closed;
use crate::toolchain::machine::front::{Front, Loop, Operand, Test, Value, Variable};
use crate::toolchain::machine::ir::{Class, Inst, NONE, Op, Reg};
use crate::toolchain::machine::language::Word;
use crate::toolchain::machine::lexer::{Token, mark};
use crate::toolchain::machine::linear::Linear;
use crate::toolchain::machine::operation::Cond;
use crate::toolchain::machine::types::{Base, Type};

/// The most tokens of the iterations of a loop that are translated one after the other.
const MAX_UNROLLED_TOKENS: usize = 160;

impl Front {
    /// One statement.
    pub(super) fn statement(&mut self) -> Result<(), String> {
        if self.take("{") {
            let mark = self.vars.len();
            while !self.take("}") {
                self.statement()?;
            }
            self.vars.truncate(mark);
            return Ok(());
        }
        if self.take(";") {
            return Ok(());
        }
        match self.word() {
            Some(Word::If) => return self.if_(),
            Some(Word::For) => return self.for_(),
            Some(Word::While) => return Err("while loops have no translation".into()),
            Some(Word::Return) => {
                self.at += 1;
                return self.return_();
            }
            Some(Word::Continue) => return self.continue_(),
            Some(Word::Break) => return self.break_(),
            _ => {}
        }
        if self.is_type() {
            return self.declaration();
        }
        self.expressions()?;
        self.expect(";")
    }

    /// Expressions separated by commas.
    fn expressions(&mut self) -> Result<(), String> {
        loop {
            self.expression()?;
            if !self.take(",") {
                return Ok(());
            }
        }
    }

    /// Declarations of variables.
    fn declaration(&mut self) -> Result<(), String> {
        let base = self.ty()?;
        loop {
            let ty = self.pointers(base);
            let name = self.name()?;
            let variable = if self.is("[") {
                self.array_variable(ty)?
            } else if self.take("=") {
                let value = if self.is("{") { self.list(ty)? } else { self.expression()? };
                Variable::One(self.convert(value, ty)?)
            } else {
                // Read before it is written nowhere.
                let value = if ty.is_int() { Value::Int(Linear::number(0)) } else { Value::Reg(self.b.constant(0)) };
                Variable::One(Operand { ty, value })
            };
            self.vars.push((name, variable));
            if !self.take(",") {
                return self.expect(";");
            }
        }
    }

    /// An array in the frame, or a table of constants.
    fn array_variable(&mut self, ty: Type) -> Result<Variable, String> {
        let mut extents = Vec::new();
        while self.take("[") {
            if self.take("]") {
                extents.push(0);
                continue;
            }
            let n = self.expression()?;
            let n = self.form(&n)?.as_number().ok_or("an array of unknown size")?;
            extents.push(n as usize);
            self.expect("]")?;
        }
        if !self.take("=") {
            let bytes = extents.iter().product::<usize>() * ty.size(self.vector_bytes());
            let at = self.array(bytes);
            return Ok(Variable::Array(ty, extents, at));
        }
        let mut bytes = Vec::new();
        self.expect("{")?;
        while !self.take("}") {
            let value = self.expression()?;
            let value = self.convert(value, ty)?;
            let size = ty.size(0);
            match value.value {
                Value::Int(form) => {
                    let n = form.as_number().ok_or("a table of unknown numbers")?;
                    bytes.extend_from_slice(&n.to_le_bytes()[..size]);
                }
                Value::Number(x) if ty.is_double() => bytes.extend_from_slice(&x.to_le_bytes()),
                Value::Number(x) => bytes.extend_from_slice(&(x as f32).to_le_bytes()),
                _ => return Err("a table of unknown numbers".into()),
            }
            self.take(",");
        }
        self.b.data.push(bytes);
        let number = self.b.data.len() as i64 - 1;
        let r = self.b.pure(Class::Int, Inst { imm: number, ..Inst::new(Op::Data, NONE, &[]) });
        Ok(Variable::Array(ty, extents, Linear::register(r)))
    }

    /// Skips a statement.
    fn skip(&mut self) {
        if self.take("{") {
            return self.skip_closed();
        }
        match self.word() {
            Some(Word::If | Word::For) => {
                let is_if = self.word() == Some(Word::If);
                self.at += 2;
                self.skip_closed();
                self.skip();
                if is_if && self.take_word(Word::Else) {
                    self.skip();
                }
            }
            _ => self.skip_to(";"),
        }
    }

    /// Skips to after the next such mark outside of brackets.
    fn skip_to(&mut self, text: &str) {
        let end = mark(text);
        while self.peek() != Token::End {
            match self.next() {
                Token::Mark(m) if m == end => return,
                Token::Mark(m) if m == mark("(") || m == mark("{") || m == mark("[") => self.skip_closed(),
                _ => {}
            }
        }
    }

    // ---- branches ----

    fn if_(&mut self) -> Result<(), String> {
        self.at += 1;
        self.expect("(")?;
        let condition = self.expression()?;
        let test = self.test(condition)?;
        self.expect(")")?;
        let tests = match test {
            Test::Known(holds) => return self.if_known(holds),
            Test::Compare(cond, a, b) => match (cond, b.as_number(), self.conjuncts(a)) {
                (Cond::NotEqual, Some(0), Some(all)) => all,
                _ => vec![(cond, a, b)],
            },
        };
        let count = self.vars.len();
        let before = self.values(count);
        let was_dead = std::mem::take(&mut self.dead);
        self.nesting += 1;
        self.b.begin(false);
        self.statement()?;
        let (then, then_dead) = (self.b.end(), std::mem::take(&mut self.dead));
        let then_values = self.values(count);
        self.set_values(&before);
        self.b.begin(false);
        let has_else = self.take_word(Word::Else);
        if has_else {
            self.statement()?;
        }
        let (other, other_dead) = (self.b.end(), std::mem::take(&mut self.dead));
        self.nesting -= 1;
        let sides = [(then, then_values, then_dead), (other, self.values(count), other_dead)];
        self.dead = was_dead || then_dead && other_dead;
        let [then, other] = self.merge(sides)?;
        let (no, end) = (self.b.label(), self.b.label());
        for (cond, a, b) in tests {
            self.branch(cond.opposite(), a, &b, no);
        }
        self.b.append(then.0);
        if !other.0.is_empty() && !then_dead {
            self.jump(end);
        }
        self.place(no);
        self.b.append(other.0);
        self.place(end);
        Ok(())
    }

    fn if_known(&mut self, holds: bool) -> Result<(), String> {
        if holds {
            self.statement()?;
        } else {
            self.skip();
        }
        if self.take_word(Word::Else) {
            if holds {
                self.skip();
            } else {
                self.statement()?;
            }
        }
        Ok(())
    }

    /// Merges the values of variables after two branches.
    pub(super) fn merge(&mut self, [then, other]: [(Closed, Vec<Variable>, bool); 2]) -> Result<[Closed; 2], String> {
        match (then.2, other.2) {
            (true, _) => {
                self.set_values(&other.1);
                return Ok([then.0, other.0]);
            }
            (_, true) => {
                self.set_values(&then.1);
                return Ok([then.0, other.0]);
            }
            _ => {}
        }
        let mut merged: Vec<(usize, Reg)> = Vec::new();
        for i in (0..then.1.len()).filter(|i| then.1[*i] != other.1[*i]) {
            let Variable::One(o) = &then.1[i] else { continue };
            merged.push((i, self.b.merge(Self::class(o.ty))));
        }
        let mut closed = Vec::with_capacity(2);
        for (side, values, _) in [then, other] {
            self.b.reopen(side);
            for (i, r) in &merged {
                if let Variable::One(o) = &values[*i] {
                    self.copy_to(*r, o)?;
                }
            }
            closed.push(self.b.end());
        }
        for (i, r) in merged {
            if let Variable::One(o) = &self.vars[i].1 {
                self.vars[i].1 = Variable::One(Self::of_register(o.ty, r));
            }
        }
        let other = closed.pop().unwrap_or_default();
        Ok([closed.pop().unwrap_or_default(), other])
    }

    // ---- loops ----

    /// The variables that tokens assign to.
    fn assigned(&self, from: usize, to: usize) -> Vec<usize> {
        let ops = ["=", "+=", "-=", "*=", "/=", "|=", "&=", "^=", "++", "--", "<<=", ">>="].map(mark);
        let mut out = Vec::new();
        for i in from..to {
            let (Token::Name(mut n), Token::Mark(m)) = (self.tokens.at(i), self.tokens.at(i + 1)) else { continue };
            let lane = Word::of(n) == Some(Word::Lane);
            if let (true, Token::Name(of)) = (lane, self.tokens.at((i + 2).min(to))) {
                n = of;
            }
            if (lane || ops.contains(&m))
                && let Some(v) = self.find(n)
                && matches!(self.vars[v].1, Variable::One(_))
                && !out.contains(&v)
            {
                out.push(v);
            }
        }
        out
    }

    fn for_(&mut self) -> Result<(), String> {
        self.at += 1;
        self.expect("(")?;
        let mark = self.vars.len();
        if self.is_type() {
            self.declaration()?;
        } else if !self.take(";") {
            self.expressions()?;
            self.expect(";")?;
        }
        let condition = self.at;
        self.skip_to(";");
        let step = self.at;
        self.skip_closed();
        let body = self.at;
        self.skip();
        let end = self.at;
        if !self.unrolled(condition, step, body, end)? {
            self.loop_(condition, step, body, end)?;
        }
        self.vars.truncate(mark);
        self.at = end;
        Ok(())
    }

    /// Translates the few iterations of a short loop one after the other, where only known numbers decide how many there are.
    fn unrolled(&mut self, condition: usize, step: usize, body: usize, end: usize) -> Result<bool, String> {
        let number = |v: usize| matches!(&self.vars[v].1, Variable::One(Operand { value: Value::Int(form), .. }) if form.as_number().is_some());
        let known = |t: &Token| match t {
            Token::Name(n) => Word::of(*n) == Some(Word::Lanes) || self.find(*n).is_some_and(number),
            _ => true,
        };
        let simple = |t: &Token| match t {
            Token::Name(n) => {
                !matches!(Word::of(*n), Some(Word::Continue | Word::Break | Word::Return))
                    && !self.language.functions.contains_key(n)
            }
            _ => true,
        };
        let counters = self.assigned(step, body);
        if !self.tokens.between(condition, body).iter().all(known)
            || !self.tokens.between(body, end).iter().all(simple)
            || self.assigned(body, end).iter().any(|v| counters.contains(v))
        {
            return Ok(false);
        }
        let before = self.values(self.vars.len());
        let mut count = 0;
        while matches!(self.condition(condition)?, Test::Known(true)) {
            count += 1;
            if count * (end - body) > MAX_UNROLLED_TOKENS {
                self.set_values(&before);
                return Ok(false);
            }
            self.step(step)?;
        }
        self.set_values(&before);
        for _ in 0..count {
            self.at = body;
            self.statement()?;
            self.step(step)?;
        }
        Ok(true)
    }

    /// What a loop does after an iteration.
    fn step(&mut self, at: usize) -> Result<(), String> {
        self.at = at;
        if self.is(")") { Ok(()) } else { self.expressions() }
    }

    /// The condition at a position.
    fn condition(&mut self, at: usize) -> Result<Test, String> {
        self.at = at;
        if self.is(";") {
            return Ok(Test::Known(true));
        }
        let o = self.expression()?;
        self.test(o)
    }

    /// A loop whose parts are at these positions.
    fn loop_(&mut self, condition: usize, step: usize, body: usize, end: usize) -> Result<(), String> {
        let assigned = self.assigned(step, end);
        let (top, exit) = (self.b.label(), self.b.label());
        let first = self.condition(condition)?;
        if matches!(first, Test::Known(false)) {
            return Ok(());
        }
        let changed = self.enter(&assigned)?;
        if let Test::Compare(cond, a, b) = first {
            self.branch(cond.opposite(), a, &b, exit);
        }
        let jumps = self
            .tokens
            .between(body, end)
            .iter()
            .any(|t| matches!(t, Token::Name(n) if Word::of(*n) == Some(Word::Continue)));
        let next = jumps.then(|| {
            let registers = changed.iter().map(|(_, r)| (self.b.class(*r), self.b.label())).collect::<Vec<_>>();
            (self.b.label(), registers.into_iter().map(|(class, _)| self.b.merge(class)).collect())
        });
        // What is moved out of the loop is computed only if the loop begins.
        self.b.begin(false);
        self.b.begin(true);
        self.b.effect(Inst::new(Op::Loop(true), NONE, &[]));
        self.place(top);
        for (i, r) in &changed {
            self.b.redefine(*r);
            self.set(*i, *r);
        }
        self.loops.push(Loop { changed: changed.clone(), next, end: exit });
        self.nesting += 1;
        self.at = body;
        self.statement()?;
        self.join_next()?;
        self.step(step)?;
        self.carry(&changed, false)?;
        self.b.forget_all();
        let again = self.condition(condition)?;
        match again {
            Test::Known(true) => self.jump(top),
            Test::Known(false) => {}
            Test::Compare(cond, a, b) => self.branch(cond, a, &b, top),
        }
        self.b.effect(Inst::new(Op::Loop(false), NONE, &[]));
        self.nesting -= 1;
        self.loops.pop();
        let (insts, _) = self.b.end();
        self.b.append(insts);
        let (insts, _) = self.b.end();
        self.b.append(insts);
        self.place(exit);
        for (i, r) in changed {
            self.b.redefine(r);
            self.set(i, r);
        }
        self.dead = false;
        Ok(())
    }

    fn set(&mut self, variable: usize, r: Reg) {
        if let Variable::One(o) = &self.vars[variable].1 {
            self.vars[variable].1 = Variable::One(Self::of_register(o.ty, r));
        }
    }

    /// Registers for the variables that a loop changes, with their first values. A vector that the loop around carries stays in its
    /// register.
    fn enter(&mut self, assigned: &[usize]) -> Result<Vec<(usize, Reg)>, String> {
        let mut changed = Vec::new();
        for i in assigned {
            let Variable::One(o) = self.vars[*i].1.clone() else { continue };
            if let Value::Reg(r) = o.value
                && self.loops.last().is_some_and(|l| l.changed.contains(&(*i, r)))
                && self.vars.iter().filter(|v| matches!(&v.1, Variable::One(x) if x.value == o.value)).count() == 1
            {
                self.b.forget(r);
                changed.push((*i, r));
                continue;
            }
            let r = self.b.merge(Self::class(o.ty));
            self.copy_to(r, &o)?;
            changed.push((*i, r));
        }
        Ok(changed)
    }

    /// The values that the next iteration begins with, or that the loop ends with, in the registers of the loop.
    fn carry(&mut self, changed: &[(usize, Reg)], ends: bool) -> Result<(), String> {
        let mut values = Vec::new();
        for (i, r) in changed {
            let Variable::One(o) = self.vars[*i].1.clone() else { continue };
            let mut from = self.register(&o)?;
            // All copies happen at once: a register that another copy replaces is saved.
            if from != *r && changed.iter().any(|(_, other)| *other == from) {
                let saved = self.b.merge(Self::class(o.ty));
                self.b.effect(Inst::new(Op::Copy, saved, &[from]));
                from = saved;
            }
            values.push((*i, *r, from));
        }
        for (i, r, from) in values {
            // At the end of the loop, a copy to itself says that the value is read here.
            if from != r || ends {
                self.b.effect(Inst::new(Op::Copy, r, &[from]));
            }
            self.set(i, r);
        }
        Ok(())
    }

    /// Where the next iteration begins: merges the values of those that jump there.
    fn join_next(&mut self) -> Result<(), String> {
        let Some(l) = self.loops.last() else { return Ok(()) };
        let Some((label, registers)) = l.next.clone() else {
            return Ok(());
        };
        let changed = l.changed.clone();
        if !self.dead {
            self.copy_all(&changed, &registers)?;
        }
        self.place(label);
        for ((i, _), r) in changed.iter().zip(&registers) {
            self.b.redefine(*r);
            self.set(*i, *r);
        }
        self.b.forget_all();
        self.dead = false;
        Ok(())
    }

    fn copy_all(&mut self, changed: &[(usize, Reg)], to: &[Reg]) -> Result<(), String> {
        for ((i, _), r) in changed.iter().zip(to) {
            if let Variable::One(o) = self.vars[*i].1.clone() {
                self.copy_to(*r, &o)?;
            }
        }
        Ok(())
    }

    fn continue_(&mut self) -> Result<(), String> {
        self.at += 1;
        self.expect(";")?;
        let Some(l) = self.loops.last() else { return Err("'continue' outside of a loop".into()) };
        let (changed, next) = (l.changed.clone(), l.next.clone());
        let Some((label, registers)) = next else { return Err("'continue' was not expected".into()) };
        self.copy_all(&changed, &registers)?;
        self.jump(label);
        self.dead = true;
        Ok(())
    }

    fn break_(&mut self) -> Result<(), String> {
        self.at += 1;
        self.expect(";")?;
        let Some(l) = self.loops.last() else { return Err("'break' outside of a loop".into()) };
        let (changed, end) = (l.changed.clone(), l.end);
        let before = self.values(self.vars.len());
        self.carry(&changed, true)?;
        self.set_values(&before);
        self.jump(end);
        self.dead = true;
        Ok(())
    }

    /// Whether a declaration begins here.
    pub(super) fn is_type(&self) -> bool {
        match self.peek() {
            Token::Name(n) => {
                matches!(Word::of(n), Some(Word::Const | Word::Static | Word::Ptr))
                    || self.language.types.contains_key(&n)
            }
            _ => false,
        }
    }

    /// A type without pointers of its own, or `PTR(type)`.
    pub(super) fn ty(&mut self) -> Result<Type, String> {
        while self.take_word(Word::Const) || self.take_word(Word::Static) {}
        if self.take_word(Word::Ptr) {
            self.expect("(")?;
            let ty = self.declared_type()?;
            self.expect(")")?;
            return Ok(ty.pointer());
        }
        let name = self.name()?;
        let ty = self.language.types.get(&name).copied();
        let ty = ty.ok_or_else(|| format!("the type '{}' is unknown", self.names.text(name)))?;
        while self.take_word(Word::Const) {}
        Ok(ty)
    }

    /// The pointers of a declarator.
    pub(super) fn pointers(&mut self, mut ty: Type) -> Type {
        loop {
            if self.take("*") {
                ty = ty.pointer();
            } else if !(self.take_word(Word::Const) || self.take_word(Word::Restrict)) {
                return ty;
            }
        }
    }

    /// A type with its pointers.
    pub(super) fn declared_type(&mut self) -> Result<Type, String> {
        let ty = self.ty()?;
        Ok(self.pointers(ty))
    }

    /// A list of the lanes of a vector, all 0.
    pub(super) fn list(&mut self, ty: Type) -> Result<Operand, String> {
        self.expect("{")?;
        let value = self.expression()?;
        self.expect("}")?;
        let zero = match &value.value {
            Value::Int(form) => form.as_number() == Some(0),
            Value::Number(x) => *x == 0.0,
            _ => false,
        };
        if !ty.is_vector() && ty.base != Base::Void {
            return Ok(value);
        }
        if !zero {
            return Err("a list of lanes that are not 0".into());
        }
        Ok(Operand::reg(ty, self.b.constant(0)))
    }
}
