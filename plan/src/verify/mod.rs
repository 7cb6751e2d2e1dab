//! Proving before the run that a plan can run.

mod exec;
mod finding;
mod memory;
mod mesh;
mod order;
mod structure;
mod tokens;

pub use finding::{Finding, FindingKind};
pub use memory::overlapping_blocks;
pub(crate) use memory::successive_blocks;
pub(crate) use order::Reach;
pub use structure::structure;

pub(crate) use mesh::check as verify_meshes;

use crate::{Links, Plan, Program};

/// Proves that every program of the plan can run:
/// - its structure holds: unique ids, indexes in range, one producer a register, buffers inside their blocks and
///   aligned, ports fed and fetched;
/// - the register tokens cannot deadlock;
/// - two registers that share memory are never live at once;
/// - chunks and blocks fit and the declared peak is true;
/// - the ranks of a mesh cannot deadlock, and each has what the others take from it.
///
/// Otherwise it returns everything that was found, with a counterexample by task names where there is one.
pub fn verify(plan: &Plan) -> Result<(), Vec<Finding>> {
    let mut findings = structure(plan);
    // The proofs walk the graph by index, so they need a sound structure.
    if findings.is_empty() {
        for program in &plan.programs {
            findings.extend(verify_program(program));
        }
    }
    if findings.is_empty() {
        findings = mesh::check(plan);
    }
    if findings.is_empty() { Ok(()) } else { Err(findings) }
}

/// The proofs for one program whose structure holds.
pub(crate) fn verify_program(program: &Program) -> Vec<Finding> {
    let Some(links) = Links::of(program) else {
        return Vec::new();
    };
    if let Some(finding) = tokens::deadlock(program, &links) {
        return vec![finding];
    }
    memory::check(program, &links)
}
