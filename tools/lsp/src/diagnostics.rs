//! Diagnostics as the protocol has them.

use of_diag::Severity;
use serde_json::{Value, json};

use crate::analysis::Analysis;

/// A client shows no more with profit.
const MAX_DIAGNOSTICS: usize = 500;

/// Errors and warnings with their ranges. Notes and the hint are lines of the message.
pub fn diagnostics(analysis: &Analysis, found: &[of_diag::Diagnostic]) -> Vec<Value> {
    let more = found.len().saturating_sub(MAX_DIAGNOSTICS);
    let shown = found.iter().take(MAX_DIAGNOSTICS).enumerate();
    let note = |i: usize| match i + 1 == MAX_DIAGNOSTICS && more > 0 {
        true => format!("\nnote: {more} more errors are not shown"),
        false => String::new(),
    };
    shown.map(|(i, d)| one(analysis, d, &note(i))).collect()
}

fn one(analysis: &Analysis, d: &of_diag::Diagnostic, more: &str) -> Value {
    let mut message = d.message.clone();
    d.notes.iter().for_each(|n| message += &format!("\nnote: {n}"));
    d.hint.iter().for_each(|h| message += &format!("\nhint: {h}"));
    message += more;
    let severity = match d.severity {
        Severity::Error => 1,
        Severity::Warning => 2,
        Severity::Note => 3,
    };
    let range = analysis.text.range(analysis.place(&d.location));
    json!({"range": range, "severity": severity, "code": d.code.0, "source": "of-opt", "message": message})
}
