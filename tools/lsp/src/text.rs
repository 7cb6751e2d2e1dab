//! The text of a document, and positions in it as the client counts them.

use lsp_types::{Position, PositionEncodingKind, Range};
use of_ir::text::Span;

/// What a client counts in a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// Bytes of UTF-8.
    Utf8,
    /// Units of UTF-16, which every client can.
    Utf16,
}

impl Encoding {
    /// The name in the protocol.
    pub fn kind(self) -> PositionEncodingKind {
        match self {
            Encoding::Utf8 => PositionEncodingKind::UTF8,
            Encoding::Utf16 => PositionEncodingKind::UTF16,
        }
    }

    fn length(self, c: char) -> usize {
        match self {
            Encoding::Utf8 => c.len_utf8(),
            Encoding::Utf16 => c.len_utf16(),
        }
    }
}

/// A text with its lines.
#[derive(Clone)]
pub struct Text {
    text: String,
    /// Where lines begin.
    lines: Vec<usize>,
    encoding: Encoding,
    /// Whether all characters are ASCII, so that columns are bytes.
    ascii: bool,
}

impl Text {
    /// A text whose positions are counted in `encoding`.
    pub fn new(text: String, encoding: Encoding) -> Text {
        let lines = std::iter::once(0).chain(line_starts(&text)).collect();
        Text { ascii: text.is_ascii(), text, lines, encoding }
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The part at a span, empty where it is outside.
    pub fn get(&self, span: Span) -> &str {
        self.text.get(span.start..span.end).unwrap_or_default()
    }

    /// The byte at which a line begins, from 0; that of the end for lines after the last.
    pub fn line_start(&self, line: usize) -> usize {
        self.lines.get(line).copied().unwrap_or(self.text.len())
    }

    /// The line of a byte, from 0.
    pub fn line_of(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at).saturating_sub(1)
    }

    /// A line without its end.
    pub fn line(&self, line: usize) -> &str {
        let text = self.text.get(self.line_start(line)..self.line_start(line + 1)).unwrap_or_default();
        text.trim_end_matches(['\n', '\r'])
    }

    /// The byte at a position. Positions after the end of their line are that end, as the protocol demands.
    pub fn offset(&self, at: Position) -> usize {
        let (number, column) = (at.line as usize, at.character as usize);
        let (start, line) = (self.line_start(number), self.line(number));
        if self.ascii {
            return start + column.min(line.len());
        }
        let mut left = column;
        for (i, c) in line.char_indices() {
            let length = self.encoding.length(c);
            if left < length {
                return start + i;
            }
            left -= length;
        }
        start + line.len()
    }

    /// The position of a byte.
    pub fn position(&self, at: usize) -> Position {
        let at = at.min(self.text.len());
        let line = self.line_of(at);
        let start = self.line_start(line);
        let column = match self.text.get(start..at) {
            Some(before) if !self.ascii => before.chars().map(|c| self.encoding.length(c)).sum(),
            _ => at - start,
        };
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Position { line: number(line), character: number(column) }
    }

    /// The range of a span.
    pub fn range(&self, span: Span) -> Range {
        Range { start: self.position(span.start), end: self.position(span.end) }
    }

    /// The byte at a line and a column in characters, both from 1, as diagnostics count them.
    pub fn offset_of_place(&self, line: u32, column: u32) -> usize {
        let line = (line as usize).saturating_sub(1);
        let column = (column as usize).saturating_sub(1);
        let text = self.line(line);
        let inside = if self.ascii {
            column.min(text.len())
        } else {
            text.char_indices().nth(column).map_or(text.len(), |(i, _)| i)
        };
        self.line_start(line) + inside
    }

    /// Replaces a range.
    pub fn replace(&mut self, range: Range, with: &str) {
        let (start, end) = (self.offset(range.start), self.offset(range.end));
        let (start, end) = (start.min(end), start.max(end));
        self.text.replace_range(start..end, with);
        self.ascii = (self.ascii && with.is_ascii()) || self.text.is_ascii();
        // Lines after the change move; those that begin in it are new.
        let (first, last) = (self.lines.partition_point(|l| *l <= start), self.lines.partition_point(|l| *l <= end));
        let (removed, added) = (end - start, with.len());
        for l in &mut self.lines[last..] {
            *l = *l - removed + added;
        }
        let new: Vec<usize> = line_starts(with).map(|l| start + l).collect();
        self.lines.splice(first..last, new);
    }
}

/// The bytes after the ends of lines.
fn line_starts(text: &str) -> impl Iterator<Item = usize> + '_ {
    text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: u32, character: u32) -> Position {
        Position { line, character }
    }

    #[test]
    fn positions_count_units_of_the_encoding() {
        for (encoding, column) in [(Encoding::Utf8, 6), (Encoding::Utf16, 3)] {
            let t = Text::new("a\r\né𝄞b\n".into(), encoding);
            let b = t.as_str().find('b').unwrap();
            assert_eq!(t.position(b), at(1, column));
            assert_eq!(t.offset(at(1, column)), b);
            // Inside a character is its beginning, after a line its end.
            assert_eq!(t.offset(at(1, column - 1)), b - 4);
            assert_eq!((t.offset(at(0, 99)), t.offset(at(7, 0))), (1, t.as_str().len()));
            assert_eq!(t.offset_of_place(2, 3), b);
        }
    }

    #[test]
    fn changes_keep_lines_and_text() {
        let pieces = ["", "x", "\n", "é", "a\nb\n\nc", "𝄞\r\n"];
        let mut seed = 7u32;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as usize % n
        };
        let mut t = Text::new("one\ntwo é\nthree".into(), Encoding::Utf16);
        for _ in 0..2000 {
            let mut place = || at(random(6) as u32, random(8) as u32);
            let range = Range { start: place(), end: place() };
            t.replace(range, pieces[random(pieces.len())]);
            let fresh = Text::new(t.text.clone(), t.encoding);
            assert_eq!((&fresh.lines, fresh.ascii), (&t.lines, t.ascii));
            if t.text.len() > 200 {
                t = Text::new("again\n".into(), Encoding::Utf16);
            }
        }
    }
}
