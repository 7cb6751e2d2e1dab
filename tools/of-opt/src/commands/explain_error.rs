//! `of-opt explain-error`: what codes of errors and warnings mean.

use std::collections::BTreeSet;
use std::fmt::Write;

use clap::Args;
use of_diag::{Code, Diagnostic, Diagnostics, Severity, closest};
use of_driver::error;
use serde_json::{Value, json};

use crate::console::Console;
use crate::error_page::{Explanation, number};
use crate::exit;

/// Flags.
#[derive(Args, Debug)]
pub struct ExplainError {
    /// Explain these codes (E0501, e501 or 501); without one, list all
    #[arg(value_name = "CODE")]
    pub codes: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Executes the subcommand.
///
/// # Errors
/// When there is no such code.
pub fn explain_error(c: &ExplainError, console: &Console) -> Result<(), Diagnostics> {
    let mut unknown = Diagnostics::default();
    let mut chosen = Vec::new();
    for code in &c.codes {
        match Explanation::find(code) {
            Some(e) => chosen.push(e),
            None => unknown.0.push(no_code(code)),
        }
    }
    let chosen = unknown.into_result(chosen)?;
    console.print(&match (c.codes.is_empty(), c.json) {
        (true, true) => as_json(Explanation::all()),
        (true, false) => list(),
        (false, true) => as_json(chosen.into_iter()),
        (false, false) => chosen.iter().map(in_full).collect::<Vec<_>>().join("\n"),
    })
}

/// The line after errors that says where their codes are explained.
pub fn more(errors: &Diagnostics) -> Option<String> {
    let errors = errors.0.iter().filter(|d| d.severity == Severity::Error);
    let codes: BTreeSet<&str> = errors.map(|d| d.code.0).collect();
    let codes = codes.into_iter().collect::<Vec<_>>().join(" ");
    (!codes.is_empty()).then(|| format!("for more: of-opt explain-error {codes}"))
}

fn no_code(code: &str) -> Diagnostic {
    let known = || Code::ALL.iter().map(|(known, _)| known.0);
    // The next number is of the same area, which the code with the fewest different digits need not be.
    let near = match number(code) {
        Some(n) => known().min_by_key(|k| number(k).map(|k| k.abs_diff(n))),
        None => closest(&code.to_uppercase(), known()),
    };
    let hint = near.map_or_else(String::new, |near| format!("did you mean '{near}'? "));
    error(Code::INPUT, format!("there is no error code '{code}'")).hint(hint + "'of-opt explain-error' lists all codes")
}

fn list() -> String {
    let mut out = String::new();
    for e in Explanation::all() {
        let _ = writeln!(out, "{}  {}", e.code.0, e.title);
    }
    out.push_str("'of-opt explain-error CODE' explains one, with an example and the cure\n");
    out
}

/// The text for a terminal: listings are indented instead of fenced.
fn in_full(e: &Explanation) -> String {
    let mut out = format!("{}: {}\n\n", e.code.0, e.title);
    let mut code = false;
    for line in e.text.lines() {
        if line.starts_with("```") {
            code = !code;
        } else if code {
            let _ = writeln!(out, "    {line}");
        } else {
            let _ = writeln!(out, "{}", line.replacen("**Cure.**", "Cure:", 1));
        }
    }
    let _ = writeln!(out, "\nExit code: {}", exit::number_of(e.code));
    out
}

fn as_json(all: impl Iterator<Item = Explanation>) -> String {
    let one = |e: Explanation| json!({"code": e.code.0, "title": e.title, "exit_code": exit::number_of(e.code), "text": e.text});
    format!("{:#}\n", Value::Array(all.map(one).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_errors_are_named_once_and_warnings_are_not() {
        let warning = Diagnostic::warning(Code::SHAPE, of_diag::Location::Unknown, "x");
        let errors = vec![error(Code::TYPE, "x"), error(Code::NAME, "x"), warning.clone(), error(Code::TYPE, "y")];
        assert_eq!(more(&Diagnostics(errors)).as_deref(), Some("for more: of-opt explain-error E0102 E0203"));
        assert_eq!(more(&warning.into()), None);
        assert_eq!(more(&Diagnostics::default()), None);
    }

    #[test]
    fn an_unknown_code_has_a_closest_one() {
        let hint = |code| no_code(code).hint.unwrap();
        for (wrong, near) in [("e0504", "E0502"), ("511", "E0502"), ("EO501", "E0501"), ("9999", "E0802")] {
            assert!(hint(wrong).starts_with(&format!("did you mean '{near}'?")), "{}", hint(wrong));
        }
        assert_eq!(hint("nothing"), "'of-opt explain-error' lists all codes");
    }
}
