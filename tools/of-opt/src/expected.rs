//! `--verify-diagnostics`: diagnostics that a test file expects, written on the lines that they are about.
//!
//! `// expected-error {{text}}` is on the line of the error; `@+1`, `@-2`, `@above` and `@below` move it, and
//! `expected-warning` and `expected-note` are for the others. The text must be part of the message.

use of_diag::{Code, Diagnostic, Diagnostics, Location, Severity};

use of_driver::error;

#[derive(PartialEq, Eq, Debug)]
struct Expected {
    severity: Severity,
    line: u32,
    text: String,
}

/// Compares what was found with what `text`, the content of `file`, expects.
///
/// # Errors
/// Everything that is found and not expected, or expected and not found.
pub fn compare(file: &str, text: &str, found: &Diagnostics) -> Result<(), Diagnostics> {
    let (mut expected, mut wrong) = read(file, text);
    for d in &found.0 {
        let line = line_in(file, &d.location);
        let hit = expected
            .iter()
            .position(|e| e.severity == d.severity && line.is_none_or(|l| l == e.line) && d.message.contains(&e.text));
        match hit {
            Some(i) => drop(expected.remove(i)),
            None => wrong.0.push(Diagnostic {
                severity: Severity::Error,
                message: format!("unexpected: {}", d.message),
                ..d.clone()
            }),
        }
    }
    for e in expected {
        let what = format!("expected {} was not found: {}", e.severity.as_str(), e.text);
        wrong.0.push(Diagnostic::error(Code::INPUT, Location::source(file, e.line, 1), what));
    }
    wrong.into_result(())
}

fn line_in(file: &str, location: &Location) -> Option<u32> {
    location.roots().into_iter().find_map(|l| match l {
        Location::Source { file: f, line, .. } if &**f == file => Some(*line),
        _ => None,
    })
}

fn read(file: &str, text: &str) -> (Vec<Expected>, Diagnostics) {
    let (mut list, mut wrong) = (Vec::new(), Diagnostics::default());
    for (n, line) in (1u32..).zip(text.lines()) {
        let mut rest = line.find("//").map_or("", |at| &line[at..]);
        while let Some(at) = rest.find("expected-") {
            rest = &rest[at + "expected-".len()..];
            match one(rest, n) {
                Some((e, left)) => {
                    list.push(e);
                    rest = left;
                }
                None => {
                    let what = "this expectation is none: write expected-error {{text}}";
                    wrong.0.push(error(Code::SYNTAX, what).or_at(&Location::source(file, n, 1)));
                }
            }
        }
    }
    (list, wrong)
}

/// `error@+1 {{text}}` and what follows it.
fn one(text: &str, line: u32) -> Option<(Expected, &str)> {
    let kinds = [Severity::Error, Severity::Warning, Severity::Note];
    let severity = *kinds.iter().find(|s| text.starts_with(s.as_str()))?;
    let (head, rest) = text[severity.as_str().len()..].split_once("{{")?;
    let (message, rest) = rest.split_once("}}")?;
    let offset = match head.trim() {
        "" => 0,
        "@above" => -1,
        "@below" => 1,
        other => other.strip_prefix('@')?.parse().ok()?,
    };
    let line = line.checked_add_signed(offset)?;
    Some((Expected { severity, line, text: message.into() }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "a // expected-error {{wrong}}\n// expected-warning@below {{odd}} expected-error@+1 {{bad}}\nb\n";

    fn at(line: u32, severity: Severity, what: &str) -> Diagnostic {
        Diagnostic { severity, ..Diagnostic::error(Code::SYNTAX, Location::source("t", line, 2), what) }
    }

    #[test]
    fn expected_diagnostics_pass() {
        let found = Diagnostics(vec![
            at(3, Severity::Error, "very bad"),
            at(3, Severity::Warning, "odd"),
            at(1, Severity::Error, "all wrong"),
        ]);
        compare("t", TEXT, &found).unwrap();
    }

    #[test]
    fn missing_and_unexpected_diagnostics_are_reported() {
        let found = Diagnostics(vec![at(1, Severity::Error, "bad"), at(3, Severity::Warning, "odd")]);
        let messages: Vec<String> = compare("t", TEXT, &found).unwrap_err().0.into_iter().map(|d| d.message).collect();
        assert_eq!(
            messages,
            ["unexpected: bad", "expected error was not found: wrong", "expected error was not found: bad"]
        );
        assert!(compare("t", "// expected-error missing braces\n", &Diagnostics::default()).is_err());
    }
}
