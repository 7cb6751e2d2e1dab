//! Tokens of the kernel language.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A name: its number in [`Names`].
pub type Name = u32;

/// A token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Token {
    /// A name or keyword.
    Name(Name),
    /// A 64-bit integer, and whether it is unsigned.
    Int(i64, bool),
    /// A number with a fraction, and whether it is an f32.
    Float(f64, bool),
    /// An operator or separator: its characters, the first in the low byte.
    Mark(u32),
    /// The end of the text.
    End,
}

/// The code of an operator or separator in [`Token::Mark`].
pub const fn mark(text: &str) -> u32 {
    let bytes = text.as_bytes();
    let (mut i, mut out) = (0, 0);
    while i < bytes.len() {
        out |= (bytes[i] as u32) << (8 * i);
        i += 1;
    }
    out
}

/// A hash of few words.
#[derive(Default)]
pub struct Fast(u64);

impl Hasher for Fast {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

/// The names of a text, after those that all texts share.
#[derive(Default)]
pub struct Names {
    shared: Option<&'static Names>,
    numbers: HashMap<String, Name, BuildHasherDefault<Fast>>,
    list: Vec<String>,
}

impl Names {
    /// No names yet but these.
    pub fn after(shared: &'static Names) -> Names {
        Names { shared: Some(shared), ..Names::default() }
    }

    /// The number of a name.
    pub fn number(&mut self, text: &str) -> Name {
        if let Some(n) = self.find(text) {
            return n;
        }
        let n = (self.shared.map_or(0, |s| s.list.len()) + self.list.len()) as Name;
        self.list.push(text.into());
        self.numbers.insert(text.into(), n);
        n
    }

    /// The text of a name.
    pub fn text(&self, name: Name) -> &str {
        let shared = self.shared.map_or(&[][..], |s| &s.list);
        shared.get(name as usize).unwrap_or_else(|| &self.list[name as usize - shared.len()])
    }

    /// The number of a name that occurred.
    pub fn find(&self, text: &str) -> Option<Name> {
        self.shared.and_then(|s| s.find(text)).or_else(|| self.numbers.get(text).copied())
    }
}

/// The tokens of a text, after those that all texts share.
pub struct Tokens {
    shared: &'static [Token],
    own: Vec<Token>,
}

impl Tokens {
    /// The tokens of a text, and the end.
    ///
    /// # Errors
    /// As [`tokens`].
    pub fn after(shared: &'static [Token], text: &str, names: &mut Names) -> Result<Tokens, String> {
        let mut own = Vec::new();
        tokens(text, names, &mut own)?;
        own.push(Token::End);
        Ok(Tokens { shared, own })
    }

    /// The token at a position.
    pub fn at(&self, i: usize) -> Token {
        match i.checked_sub(self.shared.len()) {
            Some(i) => self.own[i],
            None => self.shared[i],
        }
    }

    /// The tokens between positions that are both in the text, or both before it.
    pub fn between(&self, from: usize, to: usize) -> &[Token] {
        match from.checked_sub(self.shared.len()) {
            Some(start) => &self.own[start..to - self.shared.len()],
            None => &self.shared[from..to.min(self.shared.len())],
        }
    }

    /// The position after the last token.
    pub fn end(&self) -> usize {
        self.shared.len() + self.own.len()
    }
}

/// Operators of several characters, the longest first.
const LONG: &[&str] = &[
    "<<=", ">>=", "...", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "|=", "&=", "^=",
    "++", "--", "##",
];

/// Appends the tokens of `text`. Comments and lines of the preprocessor are skipped.
///
/// # Errors
/// The text that is no token.
pub fn tokens(text: &str, names: &mut Names, out: &mut Vec<Token>) -> Result<(), String> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        match bytes[at] {
            b' ' | b'\n' | b'\t' => at += 1,
            b'#' => {
                while at < bytes.len() && (bytes[at] != b'\n' || bytes[at - 1] == b'\\') {
                    at += 1;
                }
            }
            b'/' if rest.starts_with("/*") => at += rest.find("*/").map_or(rest.len(), |n| n + 2),
            c if c.is_ascii_alphabetic() || c == b'_' => {
                let n = rest.bytes().take_while(|c| c.is_ascii_alphanumeric() || *c == b'_').count();
                out.push(Token::Name(names.number(&rest[..n])));
                at += n;
            }
            c if c.is_ascii_digit() => {
                let (token, n) = number(rest).ok_or_else(|| format!("no number: {}", &rest[..rest.len().min(20)]))?;
                out.push(token);
                at += n;
            }
            c if c.is_ascii() => {
                let long = LONG.iter().find(|m| rest.starts_with(**m));
                let n = long.map_or(1, |m| m.len());
                out.push(Token::Mark(mark(&rest[..n])));
                at += n;
            }
            _ => return Err(format!("no token: {}", rest.chars().next().unwrap_or(' '))),
        }
    }
    Ok(())
}

/// A number at the start of `text`, and its length.
fn number(text: &str) -> Option<(Token, usize)> {
    let bytes = text.as_bytes();
    let hex = text.starts_with("0x");
    let mut n = if hex { 2 } else { 0 };
    let mut float = false;
    while n < bytes.len() {
        match bytes[n] {
            c if hex && c.is_ascii_hexdigit() || c.is_ascii_digit() => {}
            b'.' if !hex => float = true,
            b'e' | b'E' if !hex => {
                float = true;
                n += usize::from(matches!(bytes.get(n + 1), Some(b'-' | b'+')));
            }
            _ => break,
        }
        n += 1;
    }
    let digits = &text[..n];
    let suffix = bytes[n..].iter().take_while(|c| matches!(c, b'f' | b'L' | b'U')).count();
    let letters = &text[n..n + suffix];
    let token = if float || letters == "f" {
        Token::Float(digits.parse().ok()?, letters == "f")
    } else {
        let value = if hex { u64::from_str_radix(&digits[2..], 16) } else { digits.parse() }.ok()?;
        Token::Int(value as i64, letters.contains('U'))
    };
    Some((token, n + suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_into_tokens() {
        let (mut names, mut out) = (Names::default(), Vec::new());
        tokens("#define X\n a1 += 0x1fULL * -1e-3f; /* b */ a1 <<= 2.5", &mut names, &mut out).unwrap();
        let m = |t| Token::Mark(mark(t));
        let a = Token::Name(0);
        let want = [
            a,
            m("+="),
            Token::Int(31, true),
            m("*"),
            m("-"),
            Token::Float(1e-3, true),
            m(";"),
            a,
            m("<<="),
            Token::Float(2.5, false),
        ];
        assert_eq!(out, want);
    }
}
