//! Import errors and unsupported operators, collected until the import ends.

use of_diag::{Code, Diagnostic, Diagnostics, Location, Severity};
use of_ir::OpError;

/// Why a node gives no values.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It is valid, and not supported for this reason.
    Unsupported(String),
    /// It is not valid.
    Invalid(Diagnostic),
    /// Something that it needs has a fault, which is reported there.
    Poisoned,
}

impl From<Diagnostic> for Fault {
    fn from(d: Diagnostic) -> Fault {
        if d.code == Code::UNSUPPORTED { Fault::Unsupported(d.message) } else { Fault::Invalid(d) }
    }
}

impl From<OpError> for Fault {
    fn from(e: OpError) -> Fault {
        let mut d = Diagnostic::error(e.code, Location::Unknown, e.message);
        d.hint = e.hint;
        d.into()
    }
}

impl Fault {
    /// Valid, and not supported.
    pub fn unsupported(reason: impl Into<String>) -> Fault {
        Fault::Unsupported(reason.into())
    }

    /// Not valid.
    pub fn invalid(message: impl Into<String>) -> Fault {
        Fault::Invalid(Diagnostic::error(Code::MODEL, Location::Unknown, message))
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

/// Nodes that are not supported for one and the same reason.
struct Unsupported {
    name: OpName,
    reason: String,
    nodes: Vec<Location>,
}

enum Item {
    Error(Diagnostic),
    Unsupported(Unsupported),
}

/// What is wrong so far.
#[derive(Default)]
pub(crate) struct Report {
    items: Vec<Item>,
    warnings: Vec<Diagnostic>,
    more_warnings: usize,
}

/// How many nodes a note names, and how many warnings are kept: reports are read by people.
const MOST_NAMED: usize = 16;
const MOST_WARNINGS: usize = 32;

impl Report {
    /// Adds an error.
    pub fn error(&mut self, d: Diagnostic) {
        self.items.push(Item::Error(d));
    }

    /// Adds a node that is not supported.
    pub fn unsupported(&mut self, name: OpName, reason: String, node: Location) {
        for item in &mut self.items {
            if let Item::Unsupported(u) = item
                && u.name == name
                && u.reason == reason
            {
                u.nodes.push(node);
                return;
            }
        }
        self.items.push(Item::Unsupported(Unsupported { name, reason, nodes: vec![node] }));
    }

    /// Adds a warning.
    pub fn warning(&mut self, d: Diagnostic) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(d);
        } else {
            self.more_warnings += 1;
        }
    }

    /// Number of errors so far, nodes that are not supported included.
    pub fn len(&self) -> usize {
        self.items.len()
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
                Item::Error(d) => d,
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
        let mut d = Diagnostic::error(Code::UNSUPPORTED, first, message);
        let names: Vec<String> = nodes
            .map(|l| match l {
                Location::Onnx { node, index, .. } => format!("'{node}' (#{index})"),
                other => other.to_string(),
            })
            .collect();
        if !names.is_empty() {
            let shown = names[..names.len().min(MOST_NAMED)].join(", ");
            let rest = match names.len().saturating_sub(MOST_NAMED) {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            let plural = if names.len() == 1 { "node" } else { "nodes" };
            d = d.note(format!("the same for {} more {plural}: {shown}{rest}", names.len()));
        }
        d
    }
}
