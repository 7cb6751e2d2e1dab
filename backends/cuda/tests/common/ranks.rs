//! Helpers shared by the tests of ranks on GPUs.

use std::sync::Arc;

use of_codegen::{Backend, place};
use of_cuda::Device;
use of_ir::Module;
use of_plan::{Exec, PlanFile, Task};
use of_runtime::{Loader, MeshSession, SessionError};

use of_test_support::ranks as of_ranks;
#[allow(unused_imports, reason = "each test uses its part")]
pub use of_test_support::ranks::{
    NETWORK, all_pairs, close, embedded, inputs, layers, module, moved, numbers, plan, rank_3_fails, transfers,
};

fn device() -> Arc<dyn Loader> {
    Arc::new(Device::default())
}

/// A session of all ranks of a plan.
pub fn session(plan: &Arc<PlanFile>) -> Result<MeshSession, SessionError> {
    of_ranks::session(plan, &device())
}

/// Runs a plan of a module on several inputs, and compares with the interpreter.
pub fn compare(what: &str, module: &Module, plan: &Arc<PlanFile>) {
    of_ranks::compare(what, module, plan, &device());
}

/// The plan of ranks that run everything on their GPUs.
pub fn whole(module: &Module, mesh: &str, backend: &dyn Backend) -> Arc<PlanFile> {
    let plan = of_ranks::planned(module, mesh, (1, 1), backend, |funcs| {
        place::entirely(funcs, backend).unwrap_or_else(|d| panic!("{d}"));
    });
    for program in &plan.plan().programs {
        let on_device = |t: &&Task| matches!(t.exec, Some(Exec::Backend(_)));
        let passes = |t: &Task| matches!(t.exec, None | Some(Exec::Feed(_) | Exec::Fetch(_)));
        assert_eq!(program.tasks.iter().filter(on_device).count(), 1);
        assert!(program.tasks.iter().all(|t| on_device(&t) || passes(t)), "{:?}", program.tasks);
    }
    plan
}
