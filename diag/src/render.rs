//! Printing diagnostics with the offending line and a caret.

use std::collections::HashMap;
use std::fmt::Write;

use crate::{Diagnostic, Location, escaped, escaped_lines};

/// The texts of the files that locations name.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: HashMap<String, String>,
}

impl SourceMap {
    /// Remembers the text of `file`.
    pub fn add(&mut self, file: impl Into<String>, text: impl Into<String>) {
        self.files.insert(file.into(), text.into());
    }

    fn line(&self, file: &str, line: u32) -> Option<&str> {
        self.files.get(file)?.lines().nth(line.checked_sub(1)? as usize)
    }
}

/// Renders diagnostics as text for a terminal or a log.
#[derive(Clone, Debug, Default)]
pub struct Renderer {
    /// Where the offending lines are taken from.
    pub sources: SourceMap,
    /// ANSI colours.
    pub color: bool,
}

impl Renderer {
    /// `file:line:col: error[E0101]: message`, the line with a caret under it, notes and the hint.
    pub fn render(&self, d: &Diagnostic) -> String {
        let (bold, red, cyan, off) = if self.color {
            (
                "\x1b[1m",
                if d.severity == crate::Severity::Error { "\x1b[1;31m" } else { "\x1b[1;33m" },
                "\x1b[1;36m",
                "\x1b[0m",
            )
        } else {
            ("", "", "", "")
        };
        let mut out = String::new();
        if d.location != Location::Unknown {
            let _ = write!(out, "{bold}{}{off}: ", d.location);
        }
        let _ = writeln!(out, "{red}{}[{}]{off}: {bold}{}{off}", d.severity.as_str(), d.code.0, escaped(&d.message));
        let at = d.location.roots().into_iter().find_map(|l| match l {
            Location::Source { file, line, col } => Some((self.sources.line(file, *line)?, *line, *col)),
            _ => None,
        });
        if let Some((text, line, col)) = at {
            let gutter = line.to_string();
            let pad = " ".repeat(gutter.len());
            // Tabs stay tabs under the line, so that the caret is below the right character.
            let lead: String =
                text.chars().take(col.saturating_sub(1) as usize).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            let text = escaped_lines(text);
            let _ = writeln!(out, "{cyan}{gutter} |{off} {text}\n{cyan}{pad} |{off} {lead}{red}^{off}");
        }
        for n in &d.notes {
            let _ = writeln!(out, "  {cyan}note{off}: {}", escaped(n));
        }
        if let Some(h) = &d.hint {
            let _ = writeln!(out, "  {cyan}hint{off}: {}", escaped(h));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn caret_points_at_the_column() {
        let mut r = Renderer::default();
        r.sources.add("x.of", "first\n\tsecond line\n");
        let d = Diagnostic::error(Code::SYNTAX, Location::source("x.of", 2, 9), "unexpected 'line'").hint("remove it");
        assert_eq!(
            r.render(&d),
            "x.of:2:9: error[E0101]: unexpected 'line'\n2 | \tsecond line\n  | \t       ^\n  hint: remove it\n"
        );
    }
}
