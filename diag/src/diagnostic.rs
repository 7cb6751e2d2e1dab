//! Diagnostics: what is wrong, where, and what to do about it.

use std::fmt;

use crate::{Location, escaped};

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Probably not what was meant; work goes on.
    Warning,
    /// Work cannot go on.
    Error,
}

impl Severity {
    /// Lower-case name as printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A stable identifier of a kind of diagnostic, e.g. `E0103`. The hundreds name the area.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Code(pub &'static str);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Code = Code($code);)*
            /// Every code with its name, for the documentation and its test.
            pub const ALL: &'static [(Code, &'static str)] = &[$((Code::$name, stringify!($name)),)*];
        }
    };
}

codes! {
    /// Text of the IR that does not parse.
    SYNTAX = "E0101";
    /// A name that is used and not defined, or defined twice.
    NAME = "E0102";
    /// An operation that no registered op declares.
    UNKNOWN_OP = "E0103";
    /// An attribute that is missing, unknown or of the wrong kind.
    ATTRIBUTE = "E0201";
    /// Wrong number of operands, results or regions.
    ARITY = "E0202";
    /// Types that the op does not accept.
    TYPE = "E0203";
    /// Shapes that do not fit each other.
    SHAPE = "E0204";
    /// SBP annotations that do not fit the op or the mesh.
    SBP = "E0205";
    /// A value used before or outside the place where it is defined.
    DOMINANCE = "E0206";
    /// A region that does not end as its op demands.
    REGION = "E0207";
    /// A model file that is damaged or not what it claims to be.
    MODEL = "E0301";
    /// Something in a model that is not supported.
    UNSUPPORTED = "E0302";
    /// External data that is missing, out of bounds or outside the model's folder.
    EXTERNAL_DATA = "E0303";
    /// A pass or pipeline that is unknown or wrongly configured.
    PIPELINE = "E0401";
    /// A pass panicked or left a module that does not verify: a bug of the pass.
    PASS_BUG = "E0402";
    /// Code generation failed.
    CODEGEN = "E0501";
    /// A limit on time or memory is exceeded.
    LIMIT = "E0502";
    /// A plan file that is damaged, newer or does not verify.
    PLAN = "E0601";
    /// Inputs that do not fit the model.
    INPUT = "E0701";
    /// The run failed.
    RUN = "E0702";
    /// A file cannot be read or written.
    IO = "E0801";
    /// A value could not be computed at compile time or in the reference backend.
    EVAL = "E0802";
}

/// One message to the user.
#[derive(Clone, PartialEq, Debug)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What kind it is.
    pub code: Code,
    /// What is wrong, one sentence without a full stop.
    pub message: String,
    /// Where.
    pub location: Location,
    /// Further facts, one line each.
    pub notes: Vec<String>,
    /// What the user can do.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// An error.
    pub fn error(code: Code, location: Location, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, code, message: message.into(), location, notes: Vec::new(), hint: None }
    }

    /// A warning.
    pub fn warning(code: Code, location: Location, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, location, message) }
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a note.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Replaces an unknown location.
    pub fn or_at(mut self, location: &Location) -> Self {
        if self.location == Location::Unknown {
            self.location = location.clone();
        }
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.location != Location::Unknown {
            write!(f, "{}: ", self.location)?;
        }
        write!(f, "{}[{}]: {}", self.severity.as_str(), self.code.0, escaped(&self.message))?;
        for n in &self.notes {
            write!(f, "\n  note: {}", escaped(n))?;
        }
        if let Some(h) = &self.hint {
            write!(f, "\n  hint: {}", escaped(h))?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

/// Several diagnostics: everything that is wrong, not only the first thing.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// Whether any of them is an error.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|d| d.severity == Severity::Error)
    }

    /// `Ok(value)` without errors, all diagnostics otherwise.
    pub fn into_result<T>(self, value: T) -> Result<T, Diagnostics> {
        if self.has_errors() { Err(self) } else { Ok(value) }
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(d: Diagnostic) -> Self {
        Diagnostics(vec![d])
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{d}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique() {
        let mut seen = std::collections::HashSet::new();
        for (c, n) in Code::ALL {
            assert!(seen.insert(c.0), "{n} uses {} again", c.0);
        }
    }
}
