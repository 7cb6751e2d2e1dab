//! The state that all parsing functions share: the current token, positions, errors, the depth of nesting.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Location};

use super::data::Loader;
use super::lexer::{Kind, Lexer, Token};
use super::quote;

/// The result of a parsing function. The error is boxed because a diagnostic is much larger than most results.
pub(super) type ParseResult<T> = Result<T, Box<Diagnostic>>;

/// Types, attributes, locations and regions nested deeper than this are refused rather than overflow the stack.
pub(super) const DEEPEST: usize = 96;

/// A position in the text whose line and column are known.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    line: u32,
    col: u32,
}

const START: Place = Place { offset: 0, line: 1, col: 1 };

/// Reads tokens of one text.
pub(super) struct Parser<'a> {
    pub text: &'a str,
    pub file: Arc<str>,
    lexer: Lexer<'a>,
    /// The token that comes next.
    pub tok: Token,
    /// Where the last token that was taken ends.
    pub end: usize,
    depth: usize,
    /// Positions are mostly asked for in order, so counting goes on from the last one.
    place: Cell<Place>,
    /// Where lines begin, for positions before the last one.
    lines: OnceCell<Vec<usize>>,
    /// Reads constants of data files.
    pub data: Loader<'a>,
}

impl<'a> Parser<'a> {
    pub fn new(text: &'a str, file: &str, base: Option<&'a Path>) -> Self {
        let mut lexer = Lexer::new(text);
        let tok = lexer.next();
        let place = Cell::new(START);
        let (file, data) = (file.into(), Loader::new(base));
        Parser { text, file, lexer, tok, end: 0, depth: 0, place, lines: OnceCell::new(), data }
    }

    // ---- tokens ----

    /// The text of a token.
    pub fn str_of(&self, t: Token) -> &'a str {
        &self.text[t.start..t.end]
    }

    /// The text of the next token.
    pub fn peek(&self) -> &'a str {
        self.str_of(self.tok)
    }

    /// Takes the next token.
    pub fn bump(&mut self) -> Token {
        let t = self.tok;
        self.end = t.end;
        self.tok = self.lexer.next();
        t
    }

    /// Consumes the next token and returns its text.
    pub fn word(&mut self) -> &'a str {
        let t = self.bump();
        self.str_of(t)
    }

    /// Goes on at byte `pos`, to read part of a token again.
    pub fn seek(&mut self, pos: usize) {
        self.lexer.seek(pos);
        self.tok = self.lexer.next();
    }

    /// Looks ahead at the tokens after the next one without consuming them.
    pub fn ahead(&self) -> impl Iterator<Item = Token> + use<'a> {
        let mut lexer = self.lexer;
        std::iter::from_fn(move || Some(lexer.next()))
    }

    /// Whether the next token is this character.
    pub fn at(&self, punct: u8) -> bool {
        self.tok.kind == Kind::Punct(punct)
    }

    /// Whether the next token is this word.
    pub fn at_word(&self, word: &str) -> bool {
        self.tok.kind == Kind::Ident && self.peek() == word
    }

    /// Takes the next token if it is this character.
    pub fn eat(&mut self, punct: u8) -> bool {
        let yes = self.at(punct);
        if yes {
            self.bump();
        }
        yes
    }

    /// Takes the next token if it is this word.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let yes = self.at_word(word);
        if yes {
            self.bump();
        }
        yes
    }

    /// Takes this character or fails.
    pub fn expect(&mut self, punct: u8, after: &str) -> ParseResult<()> {
        if self.eat(punct) { Ok(()) } else { Err(self.expected(&format!("'{}' {after}", punct as char))) }
    }

    /// Takes a token of this kind or fails.
    pub fn expect_kind(&mut self, kind: Kind, what: &str) -> ParseResult<Token> {
        if self.tok.kind == kind { Ok(self.bump()) } else { Err(self.expected(what)) }
    }

    /// Consumes a string and returns its text.
    pub fn string(&mut self, what: &str) -> ParseResult<Arc<str>> {
        let t = self.expect_kind(Kind::Str, what)?;
        self.unquote(t)
    }

    /// The unescaped text of a string token.
    pub fn unquote(&self, t: Token) -> ParseResult<Arc<str>> {
        quote::unquote(self.str_of(t)).map(Into::into).map_err(|why| self.error(t, why))
    }

    /// Consumes a symbol and returns its name.
    pub fn symbol(&mut self, what: &str) -> ParseResult<Arc<str>> {
        let t = self.expect_kind(Kind::Symbol, what)?;
        let name = Token { start: t.start + 1, ..t };
        if self.str_of(name).starts_with('"') { self.unquote(name) } else { Ok(self.str_of(name).into()) }
    }

    /// Takes a number without sign.
    pub fn number<T: std::str::FromStr>(&mut self, what: &str) -> ParseResult<T> {
        let t = self.expect_kind(Kind::Int, what)?;
        self.str_of(t).parse().map_err(|_| self.error(t, format!("{what} is out of range")))
    }

    /// Items between `open` and `close` with commas between them.
    pub fn list(
        &mut self,
        open: u8,
        close: u8,
        what: &str,
        mut item: impl FnMut(&mut Self) -> ParseResult<()>,
    ) -> ParseResult<()> {
        self.expect(open, &format!("before {what}"))?;
        if self.eat(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.eat(close) {
                return Ok(());
            }
            if !self.eat(b',') {
                return Err(self.expected(&format!("',' or '{}' in {what}", close as char)));
            }
        }
    }

    /// Runs `f` one level deeper, unless that is too deep.
    pub fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        self.enter()?;
        let r = f(self);
        self.leave();
        r
    }

    /// One level deeper, unless that is too deep.
    pub fn enter(&mut self) -> ParseResult<()> {
        if self.depth == DEEPEST {
            return Err(self.error(self.tok, format!("this is nested more than {DEEPEST} levels deep")));
        }
        self.depth += 1;
        Ok(())
    }

    /// Back from [`Parser::enter`].
    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    // ---- errors ----

    /// A syntax error at a token.
    pub fn error(&self, at: Token, message: impl Into<String>) -> Box<Diagnostic> {
        self.error_of(Code::SYNTAX, at, message)
    }

    /// An error of another kind at a token.
    pub fn error_of(&self, code: Code, at: Token, message: impl Into<String>) -> Box<Diagnostic> {
        Box::new(Diagnostic::error(code, self.location(at), message))
    }

    /// "expected …, found …" at the next token.
    pub fn expected(&self, what: &str) -> Box<Diagnostic> {
        // A long token would bury the message.
        const MAX_LENGTH: usize = 40;
        let message = match self.tok.kind {
            Kind::Bad(why) => format!("expected {what}, but {why}"),
            Kind::Eof => format!("expected {what}, found the end of the text"),
            _ if self.peek().chars().nth(MAX_LENGTH).is_some() => {
                format!("expected {what}, found '{}…'", self.peek().chars().take(MAX_LENGTH).collect::<String>())
            }
            _ => format!("expected {what}, found '{}'", self.peek()),
        };
        self.error(self.tok, message)
    }

    /// The beginning of the line that byte `at` is in.
    fn line_start(&self, at: usize) -> Place {
        let lines = self.lines.get_or_init(|| {
            let ends = self.text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
            std::iter::once(0).chain(ends.map(|(i, _)| i + 1)).collect()
        });
        let line = lines.partition_point(|start| *start <= at);
        Place { offset: lines[line - 1], line: u32::try_from(line).unwrap_or(u32::MAX), col: 1 }
    }

    /// Whether a token is the first of its line.
    pub fn begins_line(&self, t: Token) -> bool {
        let before = self.text.as_bytes()[..t.start].iter().rev().find(|b| !matches!(b, b' ' | b'\t' | b'\r'));
        before.is_none_or(|b| *b == b'\n')
    }

    /// Whether a token is the last of its line.
    pub fn ends_line(&self, t: Token) -> bool {
        let after = self.text.as_bytes()[t.end..].iter().find(|b| !matches!(b, b' ' | b'\t' | b'\r'));
        after.is_none_or(|b| *b == b'\n')
    }

    /// The location of a token.
    pub fn location(&self, at: Token) -> Location {
        let mut p = self.place.get();
        if at.start < p.offset {
            p = self.line_start(at.start);
        }
        // Columns count characters: bytes that continue a character do not count.
        for b in &self.text.as_bytes()[p.offset..at.start] {
            if *b == b'\n' {
                p.line += 1;
                p.col = 1;
            } else if *b & 0xC0 != 0x80 {
                p.col += 1;
            }
        }
        p.offset = at.start;
        self.place.set(p);
        Location::source(self.file.clone(), p.line, p.col)
    }
}

/// Adds a hint to a boxed diagnostic.
pub(super) trait WithHint {
    /// The same error with the hint.
    fn with_hint(self, hint: &str) -> Self;
}

impl WithHint for Box<Diagnostic> {
    fn with_hint(mut self, hint: &str) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
