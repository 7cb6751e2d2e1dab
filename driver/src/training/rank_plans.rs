//! The plan of a training on ranks that are processes: one rank of a host compiles it into a folder, and each rank opens its part.

use std::path::PathBuf;
use std::time::Duration;

use of_codegen::Compiled;
use of_diag::{Code, Diagnostics};
use of_plan::PlanFile;

use crate::error::{error, io_error};
use crate::model::open_plan_for_rank;

/// The time between two looks for the plan.
const PAUSE: Duration = Duration::from_millis(10);

/// A folder for the plan, which the ranks of a host have in common.
#[derive(Clone, Debug)]
pub struct RankPlans {
    /// The folder, which exists, and is empty in the beginning.
    pub folder: PathBuf,
    /// This rank.
    pub rank: usize,
    /// The rank that compiles.
    pub compiler: usize,
}

impl RankPlans {
    /// The file of the plan. It appears whole.
    fn plan(&self) -> PathBuf {
        self.folder.join("training.plan")
    }

    /// Says that there will be no plan.
    fn failed(&self) -> PathBuf {
        self.folder.join("failed")
    }

    /// The part of the plan that this rank needs. The rank that compiles does so now, and the others wait.
    ///
    /// # Errors
    /// When the model cannot be compiled, or a file cannot be written or read.
    pub(super) fn open(
        &self,
        compile: impl FnOnce() -> Result<Compiled, Diagnostics>,
    ) -> Result<PlanFile, Diagnostics> {
        // A rank that was started again finds the plan of the job.
        if self.rank == self.compiler && !self.plan().exists() {
            tracing::debug!("this rank compiles");
            compile().and_then(|compiled| Ok(compiled.write(&self.plan())?)).inspect_err(|_| {
                // Where this fails as well, the others end when this rank does.
                let _ = std::fs::write(self.failed(), []);
            })?;
        }
        self.wait()?;
        let plan = open_plan_for_rank(&self.plan(), self.rank)?;
        let plan = plan.ok_or_else(|| error(Code::PLAN, "the plan of the training is for one rank"))?;
        tracing::debug!(read = plan.verified_len(), whole = plan.file_len(), "the part of the plan of this rank");
        Ok(plan)
    }

    /// Waits for the rank that compiles.
    fn wait(&self) -> Result<(), Diagnostics> {
        while !self.plan().exists() {
            if self.failed().exists() || !self.folder.exists() {
                let what = format!("rank {} did not compile the plan of the training", self.compiler);
                return Err(error(Code::RUN, what).into());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Copies the plan.
    pub(super) fn copy(&self, to: &std::path::Path) -> Result<(), Diagnostics> {
        let plan = std::fs::read(self.plan()).map_err(|e| io_error(&self.plan(), "read", &e))?;
        of_files::write(to, plan).map_err(|e| io_error(to, "write", &e).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_wait_for_the_one_that_compiles() {
        let folder = tempfile::tempdir().unwrap();
        let rank = |rank| RankPlans { folder: folder.path().to_owned(), rank, compiler: 0 };
        let failed = std::thread::scope(|scope| {
            let second = scope.spawn(|| rank(1).open(|| panic!("this rank does not compile")));
            let first = rank(0).open(|| Err(error(Code::UNSUPPORTED, "no such op").into()));
            [first, second.join().unwrap()].map(|opened| opened.err().unwrap().to_string())
        });
        assert!(failed[0].contains("no such op"), "{failed:?}");
        assert!(failed[1].contains("rank 0 did not compile the plan of the training"), "{failed:?}");
    }
}
