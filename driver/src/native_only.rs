//! Models for programs that have the runtime alone: every op is native code.

use of_codegen::{Compiled, NotNative};
use of_diag::{Code, Diagnostic, Diagnostics};
use of_plan::Exec;

use crate::error::error;

/// What a program with other backends does.
const HINT: &str = "of-opt, the Python package and the server have an interpreter for such ops; the C library and programs with of-runtime \
                    alone have none";

/// Checks that no task of the plan needs a backend.
///
/// # Errors
/// An error for each op without native code, and for each subgraph that was placed on a backend.
pub fn check(code: &Compiled) -> Result<(), Diagnostics> {
    let interpreted = &code.summary.not_native;
    let op = |l: &NotNative| {
        let what = format!("'{}' needs the backend '{}': {}", l.op, l.backend, l.reason);
        Diagnostic::error(Code::UNSUPPORTED, l.location.clone(), what).hint(HINT)
    };
    let mut errors: Vec<Diagnostic> = interpreted.iter().map(op).collect();
    for task in code.plan().programs.iter().flat_map(|program| &program.tasks) {
        let Some(Exec::Backend(exec)) = &task.exec else { continue };
        if interpreted.iter().all(|l| l.backend != exec.backend) {
            let what = format!("task '{}' runs on the backend '{}'", task.name, exec.backend);
            errors.push(error(Code::UNSUPPORTED, what).hint("leave out --backend and --pin"));
        }
    }
    Diagnostics(errors).into_result(())
}
