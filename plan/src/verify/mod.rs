//! The plan verifier: proofs before the run of structure, deadlock freedom and memory safety.

mod checker;
mod deadlock;
mod exec;
mod finding;
mod happens_before;
mod memory;
mod mesh;
mod schedule;
mod structure;
mod variables;

pub use finding::{Finding, FindingKind};
pub(crate) use happens_before::HappensBefore;
pub use memory::overlapping_blocks;
pub(crate) use memory::successive_blocks;
pub use structure::structure;

pub(crate) use mesh::{check as verify_meshes, check_rank as verify_rank};

use crate::{Plan, Program, TaskGraph};

/// Proves that every program of the plan can run:
/// - its structure holds: unique ids, indexes in range, one producer a register, buffers inside their blocks and
///   aligned, ports fed and fetched;
/// - each kernel is called as it was compiled: its arguments have the bytes, the alignment and the owner, and its loop the
///   iterations, that the compiler declared for it. The machine code itself is trusted;
/// - the register tokens cannot deadlock;
/// - two registers that share memory are never live at the same time;
/// - each variable has its own memory, is read before it is written, and is written once;
/// - chunks and blocks fit, and the declared peak memory is right;
/// - the ranks of a mesh cannot deadlock, and each has the data that others receive from it.
///
/// Otherwise it returns all findings, with a counterexample by task names where there is one.
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
    let Some(graph) = TaskGraph::of(program) else {
        return Vec::new();
    };
    if let Some(finding) = deadlock::find(program, &graph) {
        return vec![finding];
    }
    if !program.phases.is_empty() || !program.schedule.is_empty() {
        return schedule::check(program, &graph);
    }
    memory::check(program, &graph)
}
