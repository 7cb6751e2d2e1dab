//! Text to tokens. A token is a span of the text; nothing is copied.

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// End of the text.
    Eof,
    /// `of.matmul`, `func`, `f32`.
    Ident,
    /// `%name`, `%12`.
    Value,
    /// `@name`, `@"name"`.
    Symbol,
    /// `#of.sbp`, `#loc3`, and the `#1` of `%0#1`.
    Hash,
    /// `!of.string`.
    Bang,
    /// `^bb0`, or `^` alone.
    Block,
    /// `"text"`.
    Str,
    /// Digits, or `0x` and hexadecimal digits; never a sign.
    Int,
    /// Digits with a point or an exponent; never a sign.
    Float,
    /// `->`.
    Arrow,
    /// One character.
    Punct(u8),
    /// No token, and why.
    Bad(&'static str),
}

/// A token and its place in the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Its first byte.
    pub start: usize,
    /// The byte after its last one.
    pub end: usize,
}

/// Cuts tokens off a text.
#[derive(Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    pos: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Lexer { text, pos: 0 }
    }

    /// Continues at byte `pos`, which must be a boundary of a character.
    pub fn seek(&mut self, pos: usize) {
        self.pos = pos;
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    fn peek_at(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.pos + ahead).copied()
    }

    fn skip_while(&mut self, f: impl Fn(u8) -> bool) {
        while self.peek().is_some_and(&f) {
            self.pos += 1;
        }
    }

    fn skip_space(&mut self) {
        loop {
            self.skip_while(|b| b.is_ascii_whitespace());
            if self.text.as_bytes()[self.pos..].starts_with(b"//") {
                self.skip_while(|b| b != b'\n');
            } else {
                return;
            }
        }
    }

    /// The next token.
    pub fn next(&mut self) -> Token {
        self.skip_space();
        let start = self.pos;
        let kind = match self.peek() {
            None => Kind::Eof,
            Some(b) => self.token(b),
        };
        Token { kind, start, end: self.pos }
    }

    fn token(&mut self, first: u8) -> Kind {
        match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                self.skip_while(is_ident);
                Kind::Ident
            }
            b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'%' => self.sigil(Kind::Value, "a value name follows '%'"),
            b'@' if self.peek_at(1) == Some(b'"') => {
                self.pos += 1;
                match self.string() {
                    Kind::Str => Kind::Symbol,
                    bad => bad,
                }
            }
            b'@' => self.sigil(Kind::Symbol, "a symbol name follows '@'"),
            b'#' => self.sigil(Kind::Hash, "an attribute name follows '#'"),
            b'!' => self.sigil(Kind::Bang, "a type name follows '!'"),
            b'^' => {
                self.pos += 1;
                self.skip_while(is_suffix);
                Kind::Block
            }
            b'-' if self.peek_at(1) == Some(b'>') => {
                self.pos += 2;
                Kind::Arrow
            }
            b'(' | b')' | b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b',' | b':' | b'=' | b'-' | b'+' | b'*' | b'?' => {
                self.pos += 1;
                Kind::Punct(first)
            }
            _ => {
                self.pos += self.text[self.pos..].chars().next().map_or(1, char::len_utf8);
                Kind::Bad("this character begins nothing")
            }
        }
    }

    fn sigil(&mut self, kind: Kind, why: &'static str) -> Kind {
        self.pos += 1;
        let start = self.pos;
        // `%a->` would otherwise swallow the arrow's dash.
        let dash = |b: u8| b == b'-' && kind == Kind::Value;
        while let Some(b) = self.peek()
            && (is_ident(b) || (dash(b) && self.peek_at(1) != Some(b'>')))
        {
            self.pos += 1;
        }
        if self.pos == start { Kind::Bad(why) } else { kind }
    }

    fn number(&mut self) -> Kind {
        if self.peek() == Some(b'0')
            && self.peek_at(1) == Some(b'x')
            && self.peek_at(2).is_some_and(|b| b.is_ascii_hexdigit())
        {
            self.pos += 2;
            self.skip_while(|b| b.is_ascii_hexdigit());
            return Kind::Int;
        }
        self.skip_while(|b| b.is_ascii_digit());
        let mut kind = Kind::Int;
        if self.peek() == Some(b'.') {
            self.pos += 1;
            self.skip_while(|b| b.is_ascii_digit());
            kind = Kind::Float;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(self.peek_at(1), Some(b'+' | b'-')));
            if self.peek_at(1 + sign).is_some_and(|b| b.is_ascii_digit()) {
                self.pos += 1 + sign;
                self.skip_while(|b| b.is_ascii_digit());
                kind = Kind::Float;
            }
        }
        kind
    }

    fn string(&mut self) -> Kind {
        self.pos += 1;
        loop {
            self.skip_while(|b| !matches!(b, b'"' | b'\\' | b'\n'));
            match self.peek() {
                Some(b'"') => {
                    self.pos += 1;
                    return Kind::Str;
                }
                // The escape is checked when the string is read; here only `\"` and `\\` matter.
                Some(b'\\') if matches!(self.peek_at(1), Some(b'"' | b'\\')) => self.pos += 2,
                Some(b'\\') => self.pos += 1,
                _ => return Kind::Bad("this string is not closed on its line"),
            }
        }
    }
}

fn is_ident(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'.')
}

fn is_suffix(b: u8) -> bool {
    is_ident(b) || b == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        let mut l = Lexer::new(text);
        std::iter::from_fn(|| {
            let t = l.next();
            (t.kind != Kind::Eof).then(|| (t.kind, &text[t.start..t.end]))
        })
        .collect()
    }

    #[test]
    fn lexer_reads_every_token_kind() {
        let t = kinds("%a.1 = \"of.x\"(%0#1) // note\n -> -1.5e-3 0xFF 7 @m @\"a b\" ^bb0 ^ !of.t #of.a");
        let k: Vec<Kind> = t.iter().map(|(k, _)| *k).collect();
        let p = Kind::Punct;
        use Kind::{Arrow, Bang, Block, Float, Hash, Int, Str, Symbol, Value};
        let want = [
            Value,
            p(b'='),
            Str,
            p(b'('),
            Value,
            Hash,
            p(b')'),
            Arrow,
            p(b'-'),
            Float,
            Int,
            Int,
            Symbol,
            Symbol,
            Block,
            Block,
            Bang,
            Hash,
        ];
        assert_eq!(k, want);
        assert_eq!(t[9].1, "1.5e-3");
    }

    #[test]
    fn invalid_tokens_report_the_reason() {
        for (text, why) in
            [("\"a", "closed"), ("\"a\\", "closed"), ("% ", "value name"), ("é", "begins nothing"), ("@\"a", "closed")]
        {
            match kinds(text)[0].0 {
                Kind::Bad(w) => assert!(w.contains(why), "{w}"),
                k => panic!("{text}: {k:?}"),
            }
        }
    }

    #[test]
    fn arrow_terminates_value_name() {
        assert_eq!(kinds("%a-b->").iter().map(|t| t.1).collect::<Vec<_>>(), ["%a-b", "->"]);
    }
}
