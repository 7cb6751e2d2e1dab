//! Attributes.

use super::ast::{Attr, Ty};
use super::lexer::Kind;
use super::{Parsed, Parser};

impl Parser<'_> {
    /// `{a = 1, b}`, with the brackets that are given.
    pub(super) fn dictionary(&mut self, open: u8, close: u8) -> Parsed<Vec<(String, Attr)>> {
        self.list(open, close, Self::entry)
    }

    /// `a = 1`, or `a` alone.
    pub(super) fn entry(&mut self) -> Parsed<(String, Attr)> {
        let key = match self.token.kind {
            Kind::Str => {
                let t = self.next();
                Self::unquote(self.slice(t))
            }
            _ => self.expect_kind(Kind::Ident, "the name of an attribute")?.to_owned(),
        };
        let value = if self.eat(b'=') { self.attr()? } else { Attr::Unit };
        Ok((key, value))
    }

    /// The value of an attribute.
    pub(super) fn attr(&mut self) -> Parsed<Attr> {
        self.enter()?;
        let attr = self.attr_inner();
        self.leave();
        attr
    }

    fn attr_inner(&mut self) -> Parsed<Attr> {
        let pos = self.token.start;
        Ok(match self.token.kind {
            Kind::Str => {
                let t = self.next();
                Attr::Str(Self::unquote(self.slice(t)))
            }
            Kind::Symbol => {
                let t = self.next();
                Attr::Symbol(Self::unquote(self.slice(t).trim_start_matches('@')))
            }
            Kind::Int | Kind::Float | Kind::Punct(b'-') => {
                let number = self.scalar()?;
                if self.eat(b':') {
                    self.ty()?;
                }
                number
            }
            Kind::Punct(b'[') => self.lists()?,
            Kind::Punct(b'{') => Attr::Dict(self.dictionary(b'{', b'}')?),
            Kind::Punct(b'(') => {
                let before = self.types()?;
                let after = match self.is(Kind::Arrow) {
                    true => {
                        self.next();
                        self.types()?
                    }
                    false => Vec::new(),
                };
                Attr::Types(before, after)
            }
            // `algorithm = <…>`.
            Kind::Punct(b'<') => Attr::Str(self.angle_text()?.to_owned()),
            Kind::Hash => self.dialect()?,
            Kind::Bang => Attr::Types(vec![self.ty()?], Vec::new()),
            Kind::Ident => match self.here() {
                "true" => (self.next(), Attr::Bool(true)).1,
                "false" => (self.next(), Attr::Bool(false)).1,
                "unit" => (self.next(), Attr::Unit).1,
                "dense" => {
                    self.next();
                    let start = self.token.start;
                    match self.dense()? {
                        Ok(value) => Attr::Dense(value),
                        // Layouts, which no importer reads.
                        Err(_) => Attr::Str(self.text[start..self.token.start].trim().to_owned()),
                    }
                }
                "array" => {
                    self.next();
                    self.array()?
                }
                "tensor" => Attr::Types(vec![self.ty()?], Vec::new()),
                word => {
                    let word = word.to_owned();
                    self.next();
                    Attr::Word(word)
                }
            },
            _ => return Err(self.error(pos, "this is no attribute")),
        })
    }

    /// A number without its type.
    pub(super) fn scalar(&mut self) -> Parsed<Attr> {
        let negative = self.eat(b'-');
        let (kind, text) = (self.token.kind, self.here());
        let wrong = || self.unexpected("a number");
        let attr = match kind {
            Kind::Int if text.starts_with("0x") => {
                Attr::Int(u64::from_str_radix(&text[2..], 16).map_err(|_| wrong())? as i64)
            }
            Kind::Int => {
                let i: i128 = text.parse().map_err(|_| wrong())?;
                Attr::Int(if negative { -i } else { i } as i64)
            }
            Kind::Float => {
                let x: f64 = text.parse().map_err(|_| wrong())?;
                Attr::Float(if negative { -x } else { x })
            }
            _ => return Err(wrong()),
        };
        self.next();
        Ok(attr)
    }

    /// `[1, 2]`; `[0] x [1]` and `[b, 0, f]x[0, i, o]->[b, 0, f]` are lists of lists.
    fn lists(&mut self) -> Parsed<Attr> {
        let first = self.list(b'[', b']', Self::attr)?;
        let mut all = vec![Attr::List(first)];
        while self.is_word("x") || self.is(Kind::Arrow) {
            self.next();
            all.push(Attr::List(self.list(b'[', b']', Self::attr)?));
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Attr::List(all) })
    }

    /// What follows `array`: `<i64: 1, 2>`.
    fn array(&mut self) -> Parsed<Attr> {
        self.expect(b'<')?;
        let ty = self.ty()?;
        let mut list = Vec::new();
        if self.eat(b':') {
            while !self.is_punct(b'>') {
                list.push(self.attr()?);
                self.eat(b',');
            }
        }
        self.expect(b'>')?;
        match ty {
            Ty::Tensor(_) => Ok(Attr::List(list)),
            Ty::Other(t) => Err(self.unexpected(&format!("an array of numbers, not of {t},"))),
        }
    }

    /// `#stablehlo.gather<offset_dims = [1]>`, `#stablehlo<precision DEFAULT>`, `#loc`.
    fn dialect(&mut self) -> Parsed<Attr> {
        let t = self.next();
        let name = self.slice(t)[1..].to_owned();
        if !self.is_punct(b'<') {
            return Ok(Attr::Dialect(name, Box::new(Attr::Unit)));
        }
        let start = self.token.start;
        let end = self.closing(start + 1)?;
        // Other dialects may write anything.
        let known = name.starts_with("stablehlo") || name.starts_with("chlo");
        let body = match self.dialect_body(known, end) {
            Some(body) => body,
            None => Attr::Str(self.text[start + 1..end].to_owned()),
        };
        self.seek(end + 1);
        Ok(Attr::Dialect(name, Box::new(body)))
    }

    /// A dictionary, lists, or words; `None` for anything else.
    fn dialect_body(&mut self, known: bool, end: usize) -> Option<Attr> {
        if !known {
            return None;
        }
        self.next();
        if self.is_punct(b'[') {
            return self.attr().ok().filter(|_| self.token.start == end);
        }
        let (mut entries, mut words) = (Vec::new(), Vec::new());
        while self.token.start < end {
            let (key, value) = self.entry().ok()?;
            match value {
                Attr::Unit => words.push(Attr::Word(key)),
                value => entries.push((key, value)),
            }
            self.eat(b',');
        }
        Some(if entries.is_empty() && !words.is_empty() { Attr::List(words) } else { Attr::Dict(entries) })
    }
}
