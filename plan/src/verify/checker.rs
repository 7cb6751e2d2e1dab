//! Findings of the checks of one plan, collected with the place of each.

use super::{Finding, FindingKind};
use crate::{Plan, Program};

/// Collects findings; each names the program under check.
pub(super) struct Checker<'a> {
    pub plan: &'a Plan,
    pub program: Option<&'a Program>,
    pub findings: Vec<Finding>,
}

impl Checker<'_> {
    /// Adds a finding; without a place it is about the whole program.
    pub fn report(&mut self, kind: FindingKind, place: &str, message: impl Into<String>) {
        let program = self.program.map_or("", |program| &program.name);
        let place =
            if place.is_empty() { format!("program `{program}`") } else { format!("program `{program}`, {place}") };
        self.findings.push(Finding::new(kind, place, message));
    }
}
