//! Compares a text with the check lines of a file, as LLVM's FileCheck does.
//!
//! | line | asks for |
//! |---|---|
//! | `CHECK: p` | `p`, anywhere after what was found last |
//! | `CHECK-NEXT: p` | `p`, on the line after it |
//! | `CHECK-SAME: p` | `p`, on the same line after it |
//! | `CHECK-EMPTY:` | an empty line after it |
//! | `CHECK-DAG: p` | like its neighbours of this kind, in any order |
//! | `CHECK-NOT: p` | no `p` between what is found before and after |
//! | `CHECK-LABEL: p` | `p`; the checks up to the next label look no further than there |
//!
//! Runs of spaces and tabs are equal to one space. `{{…}}` is a regex, `[[V:…]]` one whose match is remembered,
//! `[[V]]` what was remembered, `[[@LINE+1]]` a line number of the check file.

use std::ops::Range;

use crate::pattern::{Found, Pattern, Vars};

/// How to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// The words that begin check lines.
    pub prefixes: Vec<String>,
    /// Whether an empty text may be compared at all.
    pub allow_empty: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { prefixes: vec!["CHECK".into()], allow_empty: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Plain,
    Next,
    Same,
    Empty,
    Dag,
    Not,
    Label,
}

const SUFFIXES: [(&str, Kind); 7] = [
    (":", Kind::Plain),
    ("-NEXT:", Kind::Next),
    ("-SAME:", Kind::Same),
    ("-EMPTY:", Kind::Empty),
    ("-DAG:", Kind::Dag),
    ("-NOT:", Kind::Not),
    ("-LABEL:", Kind::Label),
];

/// One check line.
struct Check {
    kind: Kind,
    pattern: Pattern,
    line: usize,
    /// The line as written, for messages.
    text: String,
}

/// Compares `input` with the check lines in `checks`, which was read from `file`.
///
/// # Errors
/// What does not fit, with the check line and the text.
pub fn check(file: &str, checks: &str, input: &str, options: &Options) -> Result<(), String> {
    let list = read_checks(file, checks, options)?;
    if input.trim().is_empty() && !options.allow_empty {
        return Err(format!("{file}: the text to check is empty (--allow-empty allows that)"));
    }
    let text = single_spaced(input);
    let mut m = Matcher { file, text: &text, vars: Vars::new(), at: 0, nots: Vec::new() };
    m.run(&list)
}

/// Runs of spaces and tabs become one space, and `\r\n` a newline.
fn single_spaced(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.replace("\r\n", "\n").chars() {
        match c {
            ' ' | '\t' if out.ends_with(' ') => {}
            ' ' | '\t' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn read_checks(file: &str, text: &str, options: &Options) -> Result<Vec<Check>, String> {
    let mut all: Vec<Check> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let Some((kind, rest)) = options.prefixes.iter().find_map(|p| directive(line, p)) else {
            continue;
        };
        let at = |why: String| format!("{file}:{}: {why}\n  {}", i + 1, line.trim());
        let pattern = Pattern::parse(&single_spaced(rest.trim()), i + 1).map_err(at)?;
        if pattern.is_empty() != (kind == Kind::Empty) {
            return Err(at("only -EMPTY, and always -EMPTY, has nothing after it".into()));
        }
        if matches!(kind, Kind::Next | Kind::Same | Kind::Empty) && all.iter().all(|c| c.kind == Kind::Not) {
            return Err(at("there is no check before this one that it could follow".into()));
        }
        all.push(Check { kind, pattern, line: i + 1, text: line.trim().to_owned() });
    }
    if all.is_empty() {
        return Err(format!("{file}: there is no check line with {}", options.prefixes.join(" or ")));
    }
    Ok(all)
}

/// The directive on a line, if it has this prefix.
fn directive<'a>(line: &'a str, prefix: &str) -> Option<(Kind, &'a str)> {
    let mut from = 0;
    while let Some(found) = line[from..].find(prefix) {
        let at = from + found;
        let before = line[..at].chars().next_back();
        // `NOCHECK:` and `MY-CHECK:` are other prefixes.
        let whole = !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '_'));
        let rest = &line[at + prefix.len()..];
        if whole && let Some(found) = SUFFIXES.iter().find_map(|(s, k)| Some((*k, rest.strip_prefix(s)?))) {
            return Some(found);
        }
        from = at + prefix.len();
    }
    None
}

struct Matcher<'a> {
    file: &'a str,
    text: &'a str,
    vars: Vars,
    /// Where the last match ends.
    at: usize,
    /// What must not occur between the last match and the next.
    nots: Vec<&'a Check>,
}

impl<'a> Matcher<'a> {
    fn run(&mut self, list: &'a [Check]) -> Result<(), String> {
        // Labels first: they cut the text into parts.
        let mut labels = Vec::new();
        let mut from = 0;
        for c in list.iter().filter(|c| c.kind == Kind::Label) {
            let found = self.find(c, from..self.text.len())?.ok_or_else(|| self.missing(c, from))?;
            from = found.range.end;
            labels.push(found);
        }
        let mut labels = labels.into_iter().peekable();
        for part in list.chunk_by(|_, next| next.kind != Kind::Label) {
            let mut part = part;
            if let [first, rest @ ..] = part
                && first.kind == Kind::Label
                && let Some(found) = labels.next()
            {
                // What the part before forbids has been looked for up to here.
                self.take(found);
                part = rest;
            }
            let end = labels.peek().map_or(self.text.len(), |l| l.range.start);
            self.part(part, end)?;
        }
        Ok(())
    }

    /// The checks between two labels.
    fn part(&mut self, checks: &'a [Check], end: usize) -> Result<(), String> {
        let mut i = 0;
        while i < checks.len() {
            let c = &checks[i];
            i += 1;
            match c.kind {
                Kind::Not => self.nots.push(c),
                Kind::Dag => {
                    let more = checks[i..].iter().take_while(|c| c.kind == Kind::Dag).count();
                    self.dags(&checks[i - 1..i + more], end)?;
                    i += more;
                }
                _ => {
                    let found = self.one(c, end)?;
                    self.check_nots(found.range.start)?;
                    self.take(found);
                }
            }
        }
        self.check_nots(end)
    }

    fn one(&self, c: &Check, end: usize) -> Result<Found, String> {
        let line_end = |from: usize| self.text[from..end].find('\n').map(|n| from + n);
        let within = match c.kind {
            Kind::Same => self.at..line_end(self.at).unwrap_or(end),
            Kind::Next | Kind::Empty => {
                let next = line_end(self.at).map(|n| n + 1).ok_or_else(|| self.missing(c, self.at))?;
                next..line_end(next).unwrap_or(end)
            }
            _ => self.at..end,
        };
        if c.kind == Kind::Empty {
            let empty = within.is_empty();
            return if empty {
                Ok(Found { range: within, vars: Vec::new() })
            } else {
                Err(self.missing(c, within.start))
            };
        }
        if let Some(found) = self.find(c, within.clone())? {
            return Ok(found);
        }
        let mut message = self.missing(c, within.start);
        if matches!(c.kind, Kind::Next | Kind::Same)
            && let Some(later) = self.find(c, self.at..end)?
        {
            message.push_str(&format!("\nnote: it is on line {} of the text", line_of(self.text, later.range.start)));
        }
        Err(message)
    }

    /// Neighbouring `-DAG` lines: any order, no overlap.
    fn dags(&mut self, group: &[Check], end: usize) -> Result<(), String> {
        let mut taken: Vec<Range<usize>> = Vec::new();
        for c in group {
            let mut from = self.at;
            let found = loop {
                let found = self.find(c, from..end)?.ok_or_else(|| self.missing(c, self.at))?;
                let r = &found.range;
                match taken.iter().find(|t| t.start < r.end && r.start < t.end) {
                    Some(t) => from = t.end,
                    None => break found,
                }
            };
            taken.push(found.range.clone());
            self.vars.extend(found.vars);
        }
        let start = taken.iter().map(|r| r.start).min().unwrap_or(self.at);
        self.check_nots(start)?;
        self.at = taken.iter().map(|r| r.end).max().unwrap_or(self.at);
        Ok(())
    }

    fn check_nots(&mut self, end: usize) -> Result<(), String> {
        for c in std::mem::take(&mut self.nots) {
            if let Some(found) = self.find(c, self.at..end.max(self.at))? {
                let what = "this must not occur here, and it does";
                return Err(self.report(c, what, found.range.start));
            }
        }
        Ok(())
    }

    fn take(&mut self, found: Found) {
        self.at = found.range.end;
        self.vars.extend(found.vars);
    }

    fn find(&self, c: &Check, within: Range<usize>) -> Result<Option<Found>, String> {
        let start = within.start;
        c.pattern.find(self.text, within, &self.vars).map_err(|why| self.report(c, &why, start))
    }

    fn missing(&self, c: &Check, from: usize) -> String {
        let what = match c.kind {
            Kind::Next => "this is not on the next line",
            Kind::Same => "this is not on the rest of the line",
            Kind::Empty => "the next line is not empty",
            _ => "this is not found",
        };
        self.report(c, what, from)
    }

    /// The check line, and the text with a mark where the search began.
    fn report(&self, c: &Check, what: &str, from: usize) -> String {
        let mut out = format!("{}:{}: {what}\n  {}\n", self.file, c.line, c.text);
        for (name, value) in self.vars.iter().filter(|(n, _)| c.text.contains(&format!("[[{n}]]"))) {
            out.push_str(&format!("  with {name} = \"{value}\"\n"));
        }
        out.push_str("the text, from the marked line on:\n");
        let first = line_of(self.text, from);
        for (i, line) in self.text.lines().enumerate().map(|(i, l)| (i + 1, l)) {
            // Enough before the mark to know the place, and after it to see what is there instead.
            if i + 8 > first && i < first + 40 {
                out.push_str(&format!("{} {i:4} | {line}\n", if i == first { '>' } else { ' ' }));
            }
        }
        out.trim_end().to_owned()
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}
