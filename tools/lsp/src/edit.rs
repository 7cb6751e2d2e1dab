//! The edits that make a changed module of a text.

use std::ops::Range;

use lsp_types::TextEdit;
use of_ir::text::{Span, tokens};
use of_passes::unified_diff;

use crate::text::Text;

/// What passes change in a part of a text, as printed.
pub struct Change {
    /// The part.
    pub span: Span,
    /// How it is printed before the passes.
    pub before: String,
    /// How it is printed after them.
    pub after: String,
}

/// The edits of a change. Where the text is as it would be printed, but for comments and empty lines, only the changed
/// lines are replaced; otherwise everything from the first line that differs to the last one.
pub fn edits(text: &Text, change: &Change) -> Vec<TextEdit> {
    let written = lines_with_tokens(text, change.span);
    let (before, after): (Vec<&str>, Vec<&str>) = (change.before.lines().collect(), change.after.lines().collect());
    let printed = || before.iter().map(|l| l.trim()).filter(|l| !l.is_empty());
    if !written.iter().map(|w| text.get(w.tokens)).eq(printed()) {
        return vec![between(text, change.span, &change.after)];
    }
    // Of the printed lines before the n-th, those that are not empty.
    let mut not_empty = vec![0];
    for line in &before {
        not_empty.push(not_empty.last().unwrap_or(&0) + usize::from(!line.is_empty()));
    }
    let place = |line: usize| not_empty.get(line).copied().unwrap_or(written.len());
    let mut all = Vec::new();
    for (old, new) in changes(&unified_diff(&change.before, &change.after)) {
        let mut new_text: String = after[new].iter().map(|l| format!("{l}\n")).collect();
        let (start, end) = (place(old.start), place(old.end));
        let span = match (written.get(start), end.checked_sub(1).and_then(|last| written.get(last))) {
            // Comments after the last line stay.
            (Some(first), Some(last)) if start < end => {
                if new_text.is_empty() && last.end < change.span.end {
                    Span { start: first.start, end: (last.end + 1).min(change.span.end) }
                } else {
                    new_text.truncate(new_text.trim_end_matches('\n').len());
                    Span { start: first.start, end: last.tokens.end }
                }
            }
            (Some(next), _) => Span { start: next.start, end: next.start },
            _ => {
                if !text.get(change.span).ends_with('\n') {
                    new_text.insert(0, '\n');
                    new_text.truncate(new_text.trim_end_matches('\n').len());
                }
                Span { start: change.span.end, end: change.span.end }
            }
        };
        all.push(TextEdit { range: text.range(span), new_text });
    }
    all
}

/// A line of a text that is not empty and no comment.
struct Line {
    start: usize,
    /// Its end, without the line feed.
    end: usize,
    /// From its first to its last token.
    tokens: Span,
}

fn lines_with_tokens(text: &Text, span: Span) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    for t in tokens(text.as_str(), span.start).take_while(|t| t.end <= span.end) {
        match all.last_mut().filter(|l| t.start <= l.end) {
            Some(line) => line.tokens.end = t.end,
            None => {
                let line = text.line_of(t.start);
                let start = text.line_start(line).max(span.start);
                let end = (text.line_start(line) + text.line(line).len()).min(span.end);
                all.push(Line { start, end, tokens: t.into() });
            }
        }
    }
    all
}

/// The ranges of lines that a unified diff replaces with others.
fn changes(diff: &str) -> Vec<(Range<usize>, Range<usize>)> {
    let mut all: Vec<(Range<usize>, Range<usize>)> = Vec::new();
    let (mut old, mut new) = (0, 0);
    let mut open = false;
    for line in diff.lines() {
        let sign = line.as_bytes().first();
        match sign {
            Some(b'-' | b'+') => {
                if !open {
                    all.push((old..old, new..new));
                    open = true;
                }
                let (a, b) = if sign == Some(&b'-') { (1, 0) } else { (0, 1) };
                (old, new) = (old + a, new + b);
                if let Some((o, n)) = all.last_mut() {
                    (o.end, n.end) = (old, new);
                }
            }
            Some(b'@') => {
                open = false;
                let mut numbers = line.split(' ').skip(1).filter_map(|part| {
                    let (start, count) = part.get(1..)?.split_once(',')?;
                    let start: usize = start.parse().ok()?;
                    // A hunk without lines of a text names the line before it.
                    Some(if count == "0" { start } else { start.saturating_sub(1) })
                });
                (old, new) = (numbers.next().unwrap_or(old), numbers.next().unwrap_or(new));
            }
            _ => {
                open = false;
                (old, new) = (old + 1, new + 1);
            }
        }
    }
    all
}

/// The edit that replaces a span, without the lines at its beginning and end that stay.
fn between(old: &Text, span: Span, new: &str) -> TextEdit {
    let text = old.get(span);
    let same = |(a, b): &(&str, &str)| a == b;
    let start: usize =
        text.split_inclusive('\n').zip(new.split_inclusive('\n')).take_while(same).map(|(line, _)| line.len()).sum();
    let (text, new) = (&text[start..], &new[start..]);
    let lines = text.rsplit('\n').zip(new.rsplit('\n')).take_while(same);
    // The first line has no end before it.
    let end = lines.map(|(line, _)| line.len() + 1).sum::<usize>().min(text.len()).min(new.len());
    let range = old.range(Span { start: span.start + start, end: span.end - end });
    TextEdit { range, new_text: new[..new.len() - end].to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Encoding;

    /// A text with edits, which do not overlap and are in order.
    fn applied(text: &Text, edits: &[TextEdit]) -> String {
        let mut text = text.clone();
        edits.iter().rev().for_each(|e| text.replace(e.range, &e.new_text));
        text.as_str().to_owned()
    }

    #[test]
    fn edits_leave_out_lines_that_stay() {
        let lines = |s: &str| s.replace('|', "\n");
        for (old, new) in [
            ("a|b|c", "a|x|c"),
            ("a|b|c", "a|c"),
            ("a|c", "a|b|c"),
            ("a", "b"),
            ("a|a", "a|a|a"),
            ("a|a|a", "a|a"),
            ("xa", "a"),
            ("a|b", "a|b|"),
            ("", "a"),
            ("a|b", ""),
            ("é|b", "é|c"),
        ] {
            let (old, new) = (lines(old), lines(new));
            let text = Text::new(format!("first\n{old}\nlast"), Encoding::Utf16);
            let edit = between(&text, Span { start: 6, end: 6 + old.len() }, &new);
            assert_eq!(applied(&text, &[edit]), format!("first\n{new}\nlast"), "{old:?} {new:?}");
        }
        let text = Text::new("a\nb\nc\n".into(), Encoding::Utf8);
        assert_eq!(between(&text, Span { start: 0, end: 6 }, "a\nx\nc\n").new_text, "x");
    }

    #[test]
    fn comments_stay() {
        let text = "// before\n{ // open\n  a\n\n  // of b\n  b // also of b\n  c // of c\n  d\n} // after\n";
        let span = Span { start: 10, end: text.rfind('}').unwrap() + 1 };
        for (after, want) in [
            ("{\n  a\n  x\n  c\n  d\n}", text.replace("  b ", "  x ")),
            ("{\n  a\n  c\n  d\n}", text.replace("  b // also of b\n", "")),
            ("{\n  a\n  b\n  c\n  n\n  m\n  d\n}", text.replace("  d\n", "  n\n  m\n  d\n")),
            ("{\n  a\n  b\n  c\n  d\n}\ne", text.replace("} ", "}\ne ")),
            ("{\n  y\n  b\n  d\n}", text.replace("  a\n", "  y\n").replace("  c // of c\n", "")),
            ("{\n  a\n  b\n  c\n  d\n}", text.to_string()),
        ] {
            let change = Change { span, before: "{\n  a\n  b\n  c\n  d\n}".into(), after: after.into() };
            let t = Text::new(text.into(), Encoding::Utf8);
            assert_eq!(applied(&t, &edits(&t, &change)), want);
        }
        // Empty lines are where they were.
        let t = Text::new("a\nb\n\n// of c\nc\n".into(), Encoding::Utf8);
        let whole = Span { start: 0, end: t.as_str().len() };
        let change = Change { span: whole, before: "a\n\nb\nc\n".into(), after: "a\n\nc\nd\n".into() };
        assert_eq!(applied(&t, &edits(&t, &change)), "a\n\n// of c\nc\nd\n");
        // Text that is written in another way is replaced.
        let t = Text::new("{ a b\n}".into(), Encoding::Utf8);
        let change =
            Change { span: Span { start: 0, end: 7 }, before: "{\n  a\n  b\n}".into(), after: "{\n  a\n}".into() };
        assert_eq!(applied(&t, &edits(&t, &change)), "{\n  a\n}");
    }
}
