//! Text to [`ast::Module`]: the pretty form of StableHLO and MLIR's generic form.

pub(crate) mod ast;
mod attrs;
mod dense;
mod forms;
mod lexer;
mod ops;
mod types;

use std::collections::HashMap;
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Location};

use ast::Pos;
use lexer::{Kind, Lexer, Token};

/// A parser's result.
pub(crate) type Parsed<T> = Result<T, Diagnostic>;

/// Operations within each other; more than any program has, and few enough for the stack.
const DEEPEST: usize = 200;

/// The state of the parser.
pub(crate) struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    token: Token,
    lines: Arc<Lines>,
    /// `#loc1 = loc("x")`: names of locations.
    labels: HashMap<&'a str, String>,
    depth: usize,
}

/// Lines of a text, to name places.
pub(crate) struct Lines {
    file: Arc<str>,
    starts: Vec<usize>,
    text: String,
}

impl Lines {
    pub fn new(text: &str, file: &str) -> Lines {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        Lines { file: file.into(), starts, text: text.to_owned() }
    }

    /// The location of a byte.
    pub fn location(&self, pos: Pos) -> Location {
        let line = self.starts.partition_point(|s| *s <= pos).saturating_sub(1);
        let start = self.starts[line];
        let col = self.text.get(start..pos).map_or(0, |s| s.chars().count());
        Location::source(self.file.clone(), line as u32 + 1, col as u32 + 1)
    }
}

/// Parses a module.
pub(crate) fn parse<'a>(text: &'a str, lines: &Arc<Lines>) -> Parsed<ast::Module<'a>> {
    let mut lexer = Lexer::new(text);
    let token = lexer.next();
    let mut p = Parser { text, lexer, token, lines: lines.clone(), labels: labels(text), depth: 0 };
    p.module()
}

/// The names that lines `#loc1 = loc("x")` give. They may follow the module.
fn labels(text: &str) -> HashMap<&str, String> {
    let line = |line: &'_ str| {
        let (name, rest) = line.strip_prefix('#')?.split_once(" = loc(\"")?;
        let label = rest.strip_suffix("\")")?;
        (!label.contains('"')).then(|| (name.len() + 1, label.to_owned()))
    };
    text.lines().filter_map(|l| line(l).map(|(end, label)| (&l[..end], label))).collect()
}

impl<'a> Parser<'a> {
    fn slice(&self, t: Token) -> &'a str {
        &self.text[t.start..t.end]
    }

    /// What the next token is, as text.
    fn here(&self) -> &'a str {
        self.slice(self.token)
    }

    fn next(&mut self) -> Token {
        let t = self.token;
        self.token = self.lexer.next();
        t
    }

    /// Continues at byte `pos`.
    fn seek(&mut self, pos: usize) {
        self.lexer.pos = pos;
        self.token = self.lexer.next();
    }

    fn is(&self, kind: Kind) -> bool {
        self.token.kind == kind
    }

    fn is_punct(&self, c: u8) -> bool {
        self.token.kind == Kind::Punct(c)
    }

    fn is_word(&self, word: &str) -> bool {
        self.token.kind == Kind::Ident && self.here() == word
    }

    fn eat(&mut self, c: u8) -> bool {
        let found = self.is_punct(c);
        if found {
            self.next();
        }
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    fn expect(&mut self, c: u8) -> Parsed<()> {
        if self.eat(c) { Ok(()) } else { Err(self.unexpected(&format!("'{}'", char::from(c)))) }
    }

    fn expect_word(&mut self, word: &str) -> Parsed<()> {
        if self.eat_word(word) { Ok(()) } else { Err(self.unexpected(&format!("'{word}'"))) }
    }

    fn expect_kind(&mut self, kind: Kind, what: &str) -> Parsed<&'a str> {
        if self.is(kind) {
            let t = self.next();
            return Ok(self.slice(t));
        }
        Err(self.unexpected(what))
    }

    fn error(&self, pos: Pos, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(Code::SYNTAX, self.lines.location(pos), message)
            .hint("print the module with jax.jit(f).lower(…).as_text()")
    }

    fn unexpected(&self, wanted: &str) -> Diagnostic {
        let got = match self.token.kind {
            Kind::Eof => "the text ends".to_owned(),
            _ => format!("'{}' follows", self.here().chars().take(40).collect::<String>()),
        };
        self.error(self.token.start, format!("{wanted} is expected, {got}"))
    }

    /// One level deeper.
    fn enter(&mut self) -> Parsed<()> {
        if self.depth == DEEPEST {
            return Err(self.error(self.token.start, format!("more than {DEEPEST} levels within each other")));
        }
        self.depth += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Items between brackets, separated by commas.
    fn list<T>(&mut self, open: u8, close: u8, mut item: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.expect(open)?;
        let mut out = Vec::new();
        while !self.eat(close) {
            out.push(item(self)?);
            if !self.eat(b',') {
                self.expect(close)?;
                break;
            }
        }
        Ok(out)
    }

    /// The text of a string token.
    fn unquote(quoted: &str) -> String {
        let inner = quoted.strip_prefix('"').and_then(|s| s.strip_suffix('"')).unwrap_or(quoted);
        if !inner.contains('\\') {
            return inner.to_owned();
        }
        let (bytes, mut out, mut i) = (inner.as_bytes(), Vec::new(), 0);
        while let Some(b) = bytes.get(i) {
            let hex = bytes.get(i + 1..i + 3).and_then(|h| std::str::from_utf8(h).ok());
            match (b, bytes.get(i + 1)) {
                (b'\\', Some(b'n')) => (out.push(b'\n'), i += 2).1,
                (b'\\', Some(b't')) => (out.push(b'\t'), i += 2).1,
                (b'\\', Some(c)) if !c.is_ascii_hexdigit() => (out.push(*c), i += 2).1,
                (b'\\', Some(_)) => match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
                    Some(byte) => (out.push(byte), i += 3).1,
                    None => i += 1,
                },
                _ => (out.push(*b), i += 1).1,
            }
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Passes over `loc(…)`; the name that it gives, if it gives one.
    fn skip_location(&mut self) -> Parsed<Option<String>> {
        if !self.eat_word("loc") {
            return Ok(None);
        }
        self.expect(b'(')?;
        let first = self.token;
        let mut depth = 1;
        let mut count = 0;
        while depth > 0 {
            match self.next().kind {
                Kind::Punct(b'(') => depth += 1,
                Kind::Punct(b')') => depth -= 1,
                Kind::Eof => return Err(self.error(first.start, "the location does not end")),
                _ => {}
            }
            count += 1;
        }
        // One token and the bracket.
        Ok(match first.kind {
            Kind::Str if count == 2 => Some(Self::unquote(self.slice(first))),
            Kind::Hash => self.labels.get(self.slice(first)).cloned(),
            _ => None,
        })
    }
}
