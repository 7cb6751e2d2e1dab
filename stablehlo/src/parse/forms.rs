//! The pretty forms of operations. One grammar serves most of them: operands, words, `name = attribute`, brackets.

use super::ast::{Arg, Attr, Op, Region};
use super::lexer::Kind;
use super::ops::{has, result_types};
use super::{Parsed, Parser};

impl<'a> Parser<'a> {
    /// An operation in its pretty form, from behind its name on.
    pub(super) fn pretty(&mut self, op: &mut Op<'a>) -> Parsed<()> {
        match op.name.as_str() {
            "call" | "func.call" => op.name = "func.call".into(),
            "return" | "func.return" => op.name = "func.return".into(),
            "stablehlo.constant" => return self.constant(op),
            "stablehlo.while" => return self.while_(op),
            "stablehlo.reduce" => return self.reduce(op),
            _ => {}
        }
        self.items(op)?;
        self.typed(op)
    }

    /// The signature, where there is one.
    fn typed(&mut self, op: &mut Op<'a>) -> Parsed<()> {
        if self.eat(b':') {
            let (before, after) = self.signature()?;
            op.types = after.unwrap_or_else(|| result_types(before, op.result_count()));
        }
        Ok(())
    }

    /// Everything before the signature.
    fn items(&mut self, op: &mut Op<'a>) -> Parsed<()> {
        loop {
            match self.token.kind {
                Kind::Value => {
                    let t = self.next();
                    op.operands.push(self.slice(t));
                }
                Kind::Punct(b'(') => {
                    self.next();
                    // Regions stand in brackets, too.
                    while self.is_punct(b'{') {
                        op.regions.push(self.region()?);
                        self.eat(b',');
                    }
                    self.items(op)?;
                    self.expect(b')')?;
                }
                Kind::Punct(b',') => {
                    self.next();
                }
                Kind::Punct(b'{') => op.attrs.extend(self.dictionary(b'{', b'}')?),
                Kind::Punct(b'<') if self.text[self.token.end..].starts_with('{') => {
                    self.next();
                    op.attrs.extend(self.dictionary(b'{', b'}')?);
                    self.expect(b'>')?;
                }
                // `sdy.sharding_constraint %x <@mesh, [{"x"}]>`.
                Kind::Punct(b'<') => {
                    self.angle_text()?;
                }
                Kind::Punct(b'[') => {
                    let bounds = self.bounds()?;
                    op.attrs.push(("bounds".into(), bounds));
                }
                Kind::Symbol => {
                    let name = self.symbol()?;
                    op.attrs.push(("callee".into(), Attr::Symbol(name)));
                }
                Kind::Str => {
                    let t = self.next();
                    op.attrs.push(("name".into(), Attr::Str(Self::unquote(self.slice(t)))));
                }
                Kind::Hash => {
                    let attr = self.attr()?;
                    op.attrs.push((String::new(), attr));
                }
                // A location, or the next operation, of one without types.
                Kind::Ident if self.here() == "loc" || self.here().contains('.') => return Ok(()),
                Kind::Ident => {
                    let word = self.here().to_owned();
                    self.next();
                    if self.eat(b'=') {
                        // The colon behind a number is that of the signature.
                        let number = matches!(self.token.kind, Kind::Int | Kind::Float | Kind::Punct(b'-'));
                        let value = if number { self.scalar()? } else { self.attr()? };
                        op.attrs.push((word, value));
                    } else {
                        op.words.push(word);
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// `[0:1, 0:4:2]` of a slice: triples.
    fn bounds(&mut self) -> Parsed<Attr> {
        let triples = self.list(b'[', b']', |p| {
            let mut numbers = vec![p.natural()?];
            while p.eat(b':') {
                numbers.push(p.natural()?);
            }
            if numbers.len() == 2 {
                numbers.push(Attr::Int(1));
            }
            Ok(Attr::List(numbers))
        })?;
        Ok(Attr::List(triples))
    }

    fn natural(&mut self) -> Parsed<Attr> {
        let text = self.expect_kind(Kind::Int, "a number")?;
        text.parse().map(Attr::Int).map_err(|_| self.unexpected("a smaller number"))
    }

    /// `dense<…> : type`.
    fn constant(&mut self, op: &mut Op<'a>) -> Parsed<()> {
        if self.is_punct(b'{') {
            op.attrs.extend(self.dictionary(b'{', b'}')?);
        }
        let pos = self.token.start;
        if !self.eat_word("dense") {
            return Err(self.error(pos, "a constant must be dense<…>").hint("dense_resource<…> is not supported"));
        }
        let value = self.dense()??;
        op.types = vec![super::ast::Ty::Tensor(value.ty())];
        op.attrs.push(("value".into(), Attr::Dense(value)));
        Ok(())
    }

    /// `(%a = %x, …) : types attributes {…} cond {…} do {…}`.
    fn while_(&mut self, op: &mut Op<'a>) -> Parsed<()> {
        let pairs = self.list(b'(', b')', |p| {
            let pos = p.token.start;
            let name = p.expect_kind(Kind::Value, "an argument")?;
            p.expect(b'=')?;
            Ok((name, p.expect_kind(Kind::Value, "an operand")?, pos))
        })?;
        if self.eat(b':') {
            op.types = self.signature()?.0;
        }
        if op.types.len() != pairs.len() {
            return Err(self.error(op.pos, format!("{} values of {} types", pairs.len(), op.types.len())));
        }
        let args = pairs.iter().zip(&op.types);
        let args: Vec<Arg<'a>> =
            args.map(|((name, _, pos), ty)| Arg { name, ty: ty.clone(), label: None, pos: *pos }).collect();
        op.operands = pairs.iter().map(|p| p.1).collect();
        if self.eat_word("attributes") {
            op.attrs = self.dictionary(b'{', b'}')?;
        }
        self.expect_word("cond")?;
        op.regions.push(Region { args: args.clone(), ops: self.block()? });
        self.expect_word("do")?;
        op.regions.push(Region { args, ops: self.block()? });
        Ok(())
    }

    /// `(%x init: %i), … applies stablehlo.add across dimensions = [0] : types reducer(…) {…}`.
    fn reduce(&mut self, op: &mut Op<'a>) -> Parsed<()> {
        let (mut values, mut starts) = (Vec::new(), Vec::new());
        while self.eat(b'(') {
            values.push(self.expect_kind(Kind::Value, "an operand")?);
            self.expect_word("init")?;
            self.expect(b':')?;
            starts.push(self.expect_kind(Kind::Value, "an initial value")?);
            self.expect(b')')?;
            self.eat(b',');
        }
        values.extend(starts);
        op.operands = values;
        if self.eat_word("applies") {
            let name = self.expect_kind(Kind::Ident, "an operation")?;
            op.attrs.push(("applies".into(), Attr::Word(name.to_owned())));
        }
        self.expect_word("across")?;
        self.items(op)?;
        self.typed(op)?;
        if has(&op.attrs, "applies") {
            return Ok(());
        }
        self.expect_word("reducer")?;
        let (mut left, mut right) = (Vec::new(), Vec::new());
        while self.is_punct(b'(') {
            let pair = self.list(b'(', b')', Self::arg)?;
            let [a, b]: [Arg<'a>; 2] = pair.try_into().map_err(|_| self.unexpected("a pair of arguments"))?;
            left.push(a);
            right.push(b);
        }
        left.extend(right);
        let ops = self.block()?;
        op.regions.push(Region { args: left, ops });
        Ok(())
    }
}
