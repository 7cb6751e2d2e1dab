//! Rust text without its comments, and with its strings apart.

/// The code of a Rust text: comments, strings and characters are blanks, so that places stay as they were.
pub struct Stripped {
    /// The code.
    pub code: String,
    /// Each string with the line that it begins on.
    pub strings: Vec<(usize, String)>,
}

/// Splits a Rust text. Good enough for searching: it need not be valid.
pub fn strip(text: &str) -> Stripped {
    let chars: Vec<char> = text.chars().collect();
    let mut s = Stripper { chars: &chars, at: 0, line: 1, out: Stripped { code: String::new(), strings: Vec::new() } };
    while s.at < chars.len() {
        s.step();
    }
    s.out
}

struct Stripper<'a> {
    chars: &'a [char],
    at: usize,
    line: usize,
    out: Stripped,
}

impl Stripper<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Passes over `n` characters, which stay or become blanks.
    fn pass(&mut self, n: usize, keep: bool) {
        for _ in 0..n {
            let Some(c) = self.peek(0) else { return };
            self.line += usize::from(c == '\n');
            self.out.code.push(if keep || c == '\n' { c } else { ' ' });
            self.at += 1;
        }
    }

    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => {
                let n = self.chars[self.at..].iter().take_while(|c| **c != '\n').count();
                self.pass(n, false);
            }
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(),
            (Some('r'), Some('"' | '#')) if !self.inside_word() => self.raw_string(),
            (Some('\''), _) => self.character(),
            _ => self.pass(1, true),
        }
    }

    fn inside_word(&self) -> bool {
        self.at > 0 && (self.chars[self.at - 1].is_alphanumeric() || self.chars[self.at - 1] == '_')
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                (None, _) => return,
                _ => {
                    self.pass(1, false);
                    continue;
                }
            }
            self.pass(2, false);
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        let (start, line) = (self.at + 1, self.line);
        self.pass(1, false);
        loop {
            match self.peek(0) {
                Some('\\') => self.pass(2, false),
                Some('"') | None => break,
                _ => self.pass(1, false),
            }
        }
        self.keep(start, line);
        self.pass(1, false);
    }

    fn raw_string(&mut self) {
        let hashes = self.chars[self.at + 1..].iter().take_while(|c| **c == '#').count();
        if self.peek(1 + hashes) != Some('"') {
            return self.pass(1, true);
        }
        let line = self.line;
        self.pass(2 + hashes, false);
        let start = self.at;
        let ends = |s: &Self| s.peek(0) == Some('"') && (1..=hashes).all(|i| s.peek(i) == Some('#'));
        while self.at < self.chars.len() && !ends(self) {
            self.pass(1, false);
        }
        self.keep(start, line);
        self.pass(1 + hashes, false);
    }

    fn keep(&mut self, start: usize, line: usize) {
        let end = self.at.min(self.chars.len());
        self.out.strings.push((line, self.chars[start.min(end)..end].iter().collect()));
    }

    /// A character, or the quote of a lifetime.
    fn character(&mut self) {
        let n = match (self.peek(1), self.peek(2)) {
            (Some('\\'), _) => self.chars[self.at + 3..].iter().position(|c| *c == '\'').map_or(1, |i| i + 4),
            (Some(_), Some('\'')) => 3,
            _ => return self.pass(1, true),
        };
        self.pass(n, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_vanish_and_places_stay() {
        let text = "a // unsafe\nb /* x /* y */ z */ c \"un\\\"safe\" r#\"q\"r\"# 'u' '\\n' &'a d\nfor r in";
        let s = strip(text);
        assert_eq!(s.code.chars().count(), text.chars().count());
        let words: Vec<&str> = s.code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "c", "&'a", "d", "for", "r", "in"]);
        assert_eq!(s.strings, [(2, "un\\\"safe".to_string()), (2, "q\"r".to_string())]);
        assert_eq!(s.code.lines().count(), 3);
    }
}
