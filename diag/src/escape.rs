//! Text from files, made safe for terminals and logs.

use std::borrow::Cow;

/// `text` in one line: control characters, line breaks and characters that change the direction of text become
/// `\u{1b}`. Names that come from a file must not move the cursor, forge a line or reorder what stands around them.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe)
}

/// As [`escaped`], for text of several lines: line breaks and tabs stay.
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_unsafe(c) && c != '\n' && c != '\t')
}

fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(text: &str, unsafe_char: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&unsafe_char) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if unsafe_char(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, Diagnostic, Location, Renderer};

    #[test]
    fn control_characters_are_escaped() {
        assert!(matches!(escaped("plain é漢"), Cow::Borrowed(_)));
        assert_eq!(escaped("a\x1b[2J\nb\r\x07\u{9b}\u{202e}"), "a\\u{1b}[2J\\u{a}b\\u{d}\\u{7}\\u{9b}\\u{202e}");
        assert_eq!(escaped_lines("a\n\tb\x1b\r"), "a\n\tb\\u{1b}\\u{d}");
    }

    #[test]
    fn no_part_of_a_diagnostic_reaches_the_terminal_unescaped() {
        const NAME: &str = "n\x1b[31m\nerror: fake\r";
        let at = Location::derived(NAME, [&Location::onnx(NAME, 0, NAME), &Location::source(NAME, 1, 1)]);
        let mut d = Diagnostic::error(Code::MODEL, at, NAME);
        d = d.note(NAME).hint(NAME);
        let mut renderer = Renderer::default();
        renderer.sources.add(NAME, "text \x1b[31m\r of the file");
        for text in [d.to_string(), renderer.render(&d)] {
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
            assert!(text.lines().all(|line| !line.starts_with("error: fake")), "{text:?}");
        }
    }
}
