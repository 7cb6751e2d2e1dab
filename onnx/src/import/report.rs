//! Import errors and unsupported operators, collected until the import ends.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Diagnostics, Location, Severity};
use of_ir::OpError;

/// Why a node could not be imported.
#[derive(Debug)]
pub(crate) enum ImportError {
    /// It is valid but not supported, for this reason.
    Unsupported(String),
    /// It is invalid.
    Invalid(Diagnostic),
    /// An operand failed to import; the error is reported there.
    Poisoned,
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

impl ImportError {
    /// A valid node that is not supported.
    pub fn unsupported(reason: impl Into<String>) -> ImportError {
        ImportError::Unsupported(reason.into())
    }

    /// Not valid.
    pub fn invalid(message: impl Into<String>) -> ImportError {
        ImportError::Invalid(Diagnostic::error(Code::MODEL, Location::Unknown, message))
    }
}

/// An operator as reports name it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OpName {
    /// `ai.onnx` where the model leaves it out.
    pub domain: String,
    /// The operator.
    pub op: String,
    /// Version of the operator set; `None` where the model imports none of the domain.
    pub opset: Option<i64>,
}

/// Nodes that are not supported for the same reason.
struct Unsupported {
    name: OpName,
    reason: String,
    nodes: Vec<Location>,
}

enum Item {
    /// An error, and the other places that have the same.
    Error(Diagnostic, Vec<Location>),
    Unsupported(Unsupported),
}

/// The errors so far.
#[derive(Default)]
pub(crate) struct Report {
    items: Vec<Item>,
    /// Where in `items` an error of this code and message is.
    errors: HashMap<(Code, String), usize>,
    /// Errors so far, those at other places included.
    count: usize,
    warnings: Vec<Diagnostic>,
    more_warnings: usize,
}

/// How many nodes a note names, and how many warnings are kept: reports are read by people.
const MAX_NAMED: usize = 16;
const MAX_WARNINGS: usize = 32;

impl Report {
    /// Adds an error. The same error at another place is a note of the first.
    pub fn error(&mut self, d: Diagnostic) {
        let key = (d.code, d.message.clone());
        if let Some(first) = self.errors.get(&key)
            && let Some(Item::Error(_, places)) = self.items.get_mut(*first)
        {
            places.push(d.location);
            self.count += 1;
            return;
        }
        self.errors.insert(key, self.items.len());
        self.push(Item::Error(d, Vec::new()));
    }

    fn push(&mut self, item: Item) {
        self.count += 1;
        self.items.push(item);
    }

    /// Adds a node that is not supported.
    pub fn unsupported(&mut self, name: OpName, reason: String, node: Location) {
        for item in &mut self.items {
            if let Item::Unsupported(u) = item
                && u.name == name
                && u.reason == reason
            {
                u.nodes.push(node);
                self.count += 1;
                return;
            }
        }
        self.push(Item::Unsupported(Unsupported { name, reason, nodes: vec![node] }));
    }

    /// Adds a warning.
    pub fn warning(&mut self, d: Diagnostic) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(d);
        } else {
            self.more_warnings += 1;
        }
    }

    /// Number of errors so far, nodes that are not supported included.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The warnings if the import succeeded, everything otherwise.
    pub fn finish(mut self) -> Result<Diagnostics, Diagnostics> {
        if self.more_warnings > 0 {
            let message = format!("{} further warnings are not shown", self.more_warnings);
            self.warnings.push(Diagnostic::warning(Code::MODEL, Location::Unknown, message));
        }
        if self.items.is_empty() {
            return Ok(Diagnostics(self.warnings));
        }
        let (mut ops, mut nodes) = (Vec::new(), 0);
        let mut all: Vec<Diagnostic> = Vec::new();
        for item in self.items {
            all.push(match item {
                Item::Error(d, places) => with_places(d, places),
                Item::Unsupported(u) => {
                    nodes += u.nodes.len();
                    if !ops.contains(&u.name) {
                        ops.push(u.name.clone());
                    }
                    u.diagnostic()
                }
            });
        }
        if nodes > 1 {
            let message = format!("{} operators in {nodes} nodes are not supported", ops.len());
            let mut d = Diagnostic::warning(Code::UNSUPPORTED, Location::Unknown, message);
            d.severity = Severity::Note;
            all.push(d);
        }
        all.extend(self.warnings);
        Err(Diagnostics(all))
    }
}

impl Unsupported {
    fn diagnostic(self) -> Diagnostic {
        let OpName { domain, op, opset } = self.name;
        let opset = opset.map_or("of no imported operator set".into(), |v| format!("opset {v}"));
        let mut nodes = self.nodes.into_iter();
        let first = nodes.next().unwrap_or_default();
        let message = format!("operator {op} of {domain} ({opset}) is not supported: {}", self.reason);
        with_places(Diagnostic::error(Code::UNSUPPORTED, first, message), nodes.collect())
    }
}

/// The diagnostic with a note that names further places.
fn with_places(d: Diagnostic, places: Vec<Location>) -> Diagnostic {
    if places.is_empty() {
        return d;
    }
    let name = |l: &Location| match l {
        Location::Onnx { node, index, .. } => format!("'{node}' (#{index})"),
        other => other.to_string(),
    };
    let shown: Vec<String> = places.iter().take(MAX_NAMED).map(name).collect();
    let rest = match places.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let of_nodes =
        |l: &Location| matches!(l, Location::Onnx { op, .. } if !matches!(&**op, "Initializer" | "Input" | "Output"));
    let what = match (places.iter().all(of_nodes), places.len()) {
        (true, 1) => "node",
        (true, _) => "nodes",
        (false, 1) => "place",
        (false, _) => "places",
    };
    d.note(format!("the same for {} more {what}: {}{rest}", places.len(), shown.join(", ")))
}
