//! Text to tokens. A token is a span of the text; nothing is copied.

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// End of the text.
    Eof,
    /// `stablehlo.add`, `dense`, `f32`.
    Ident,
    /// `%name`, with the `#1` of a result group.
    Value,
    /// `@name`, `@"name"`.
    Symbol,
    /// `#stablehlo.gather`, `#loc3`.
    Hash,
    /// `!stablehlo.token`.
    Bang,
    /// `^bb0`.
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
    /// No token.
    Bad,
}

/// A token and its place in the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
}

/// Cuts tokens off a text.
#[derive(Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    /// The next byte.
    pub pos: usize,
}

fn is_ident(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'$')
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Lexer { text, pos: 0 }
    }

    fn at(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.pos + ahead).copied()
    }

    fn skip_while(&mut self, f: impl Fn(u8) -> bool) {
        while self.at(0).is_some_and(&f) {
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
        let kind = match self.at(0) {
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
            b'%' => {
                self.pos += 1;
                self.skip_while(|b| is_ident(b) || b == b'-');
                // `%a->` ends before the arrow.
                if self.text.as_bytes()[self.pos - 1] == b'-' {
                    self.pos -= 1;
                }
                if self.at(0) == Some(b'#') && self.at(1).is_some_and(|b| b.is_ascii_digit()) {
                    self.pos += 1;
                    self.skip_while(|b| b.is_ascii_digit());
                }
                Kind::Value
            }
            b'@' if self.at(1) == Some(b'"') => {
                self.pos += 1;
                if self.string() == Kind::Str { Kind::Symbol } else { Kind::Bad }
            }
            b'@' => self.sigil(Kind::Symbol),
            b'#' => self.sigil(Kind::Hash),
            b'!' => self.sigil(Kind::Bang),
            b'^' => self.sigil(Kind::Block),
            b'-' if self.at(1) == Some(b'>') => {
                self.pos += 2;
                Kind::Arrow
            }
            b'(' | b')' | b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b',' | b':' | b'=' | b'-' | b'+' | b'*' | b'?' => {
                self.pos += 1;
                Kind::Punct(first)
            }
            _ => {
                self.pos += self.text[self.pos..].chars().next().map_or(1, char::len_utf8);
                Kind::Bad
            }
        }
    }

    fn sigil(&mut self, kind: Kind) -> Kind {
        self.pos += 1;
        self.skip_while(is_ident);
        kind
    }

    fn string(&mut self) -> Kind {
        self.pos += 1;
        loop {
            match self.at(0) {
                None => return Kind::Bad,
                Some(b'"') => {
                    self.pos += 1;
                    return Kind::Str;
                }
                Some(b'\\') => self.pos = (self.pos + 2).min(self.text.len()),
                Some(_) => self.pos += 1,
            }
            // An escape cannot end inside of a character.
            while !self.text.is_char_boundary(self.pos) {
                self.pos += 1;
            }
        }
    }

    fn number(&mut self) -> Kind {
        if self.at(0) == Some(b'0') && self.at(1) == Some(b'x') && self.at(2).is_some_and(|b| b.is_ascii_hexdigit()) {
            self.pos += 2;
            self.skip_while(|b| b.is_ascii_hexdigit());
            return Kind::Int;
        }
        self.skip_while(|b| b.is_ascii_digit());
        let mut kind = Kind::Int;
        if self.at(0) == Some(b'.') {
            self.pos += 1;
            self.skip_while(|b| b.is_ascii_digit());
            kind = Kind::Float;
        }
        let sign = usize::from(matches!(self.at(1), Some(b'+' | b'-')));
        if kind == Kind::Float
            && matches!(self.at(0), Some(b'e' | b'E'))
            && self.at(1 + sign).is_some_and(|b| b.is_ascii_digit())
        {
            self.pos += 1 + sign;
            self.skip_while(|b| b.is_ascii_digit());
        }
        kind
    }
}
