//! Import errors and unsupported operations, collected until the import ends.

use of_diag::{Code, Diagnostic, Diagnostics, Location, Severity};
use of_ir::OpError;

/// Why an operation could not be imported.
#[derive(Debug)]
pub(crate) enum ImportError {
    /// It is valid but not supported, for this reason.
    Unsupported(String),
    /// It is invalid.
    Invalid(Diagnostic),
    /// An operand failed to import; the error is reported there.
    Poisoned,
}

impl ImportError {
    /// A valid operation that is not supported.
    pub fn unsupported(reason: impl Into<String>) -> ImportError {
        ImportError::Unsupported(reason.into())
    }

    /// Not valid.
    pub fn invalid(message: impl Into<String>) -> ImportError {
        ImportError::Invalid(Diagnostic::error(Code::MODEL, Location::Unknown, message))
    }
}

impl From<Diagnostic> for ImportError {
    fn from(d: Diagnostic) -> ImportError {
        if d.code == Code::UNSUPPORTED { ImportError::Unsupported(d.message) } else { ImportError::Invalid(d) }
    }
}

impl From<OpError> for ImportError {
    fn from(e: OpError) -> ImportError {
        Diagnostic::from(e).into()
    }
}

/// Operations that are not supported for the same reason.
struct Unsupported {
    op: String,
    reason: String,
    places: Vec<Location>,
}

/// The errors so far.
#[derive(Default)]
pub(crate) struct Report {
    unsupported: Vec<Unsupported>,
    errors: Vec<Diagnostic>,
}

/// How many places a note names.
const MAX_NAMED: usize = 8;
/// How many errors are kept: reports are read by people.
const MAX_ERRORS: usize = 32;

impl Report {
    /// Adds an error.
    pub fn error(&mut self, d: Diagnostic) {
        if self.errors.len() < MAX_ERRORS && !self.errors.contains(&d) {
            self.errors.push(d);
        }
    }

    /// Adds an operation that is not supported.
    pub fn unsupported(&mut self, op: &str, reason: String, place: Location) {
        match self.unsupported.iter_mut().find(|u| u.op == op && u.reason == reason) {
            Some(u) if u.places.contains(&place) => {}
            Some(u) => u.places.push(place),
            None => self.unsupported.push(Unsupported { op: op.to_owned(), reason, places: vec![place] }),
        }
    }

    /// Whether nothing was reported.
    pub fn is_empty(&self) -> bool {
        self.unsupported.is_empty() && self.errors.is_empty()
    }

    /// Everything that was reported.
    pub fn finish(self) -> Diagnostics {
        let mut all = Vec::new();
        let count: usize = self.unsupported.iter().map(|u| u.places.len()).sum();
        let mut names: Vec<String> = self.unsupported.iter().map(|u| u.op.clone()).collect();
        names.dedup();
        for u in self.unsupported {
            let mut places = u.places.into_iter();
            let message = format!("operation {} is not supported: {}", u.op, u.reason);
            let mut d = Diagnostic::error(Code::UNSUPPORTED, places.next().unwrap_or_default(), message)
                .hint("docs/stablehlo.md lists what is supported");
            if places.len() > 0 {
                let more = places.len();
                let shown: Vec<String> = places.take(MAX_NAMED).map(|l| l.to_string()).collect();
                let rest = if more > MAX_NAMED { ", …" } else { "" };
                d = d.note(format!("the same at {more} more places: {}{rest}", shown.join(", ")));
            }
            all.push(d);
        }
        if count > 1 {
            let message = format!("{count} operations are not supported: {}", names.join(", "));
            let mut d = Diagnostic::warning(Code::UNSUPPORTED, Location::Unknown, message);
            d.severity = Severity::Note;
            all.push(d);
        }
        all.extend(self.errors);
        Diagnostics(all)
    }
}
