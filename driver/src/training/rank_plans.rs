//! The plans of a training on ranks that are processes: one rank of a host compiles them into a folder, and each rank opens its part.

use std::path::PathBuf;
use std::time::Duration;

use of_codegen::Compiled;
use of_diag::{Code, Diagnostics};
use of_plan::PlanFile;

use super::sessions::Join;
use crate::error::{error, io_error};
use crate::model::{open_plan, open_plan_for_rank};

/// The time between two looks for the plans.
const PAUSE: Duration = Duration::from_millis(10);

/// How the ranks of a training are processes.
pub struct Ranks<'j> {
    /// Connects this process to the others.
    pub join: Join<'j>,
    /// Where the plans are; `None` where this process compiles them for itself.
    pub plans: Option<RankPlans>,
}

/// A folder of plans, which the ranks of a host have in common.
#[derive(Clone, Debug)]
pub struct RankPlans {
    /// The folder, which exists, and is empty in the beginning.
    pub folder: PathBuf,
    /// This rank.
    pub rank: usize,
    /// The rank that compiles.
    pub compiler: usize,
}

/// The plan of a step, and that of evaluations.
pub(super) struct Plans<T> {
    pub step: T,
    pub evaluation: T,
}

impl RankPlans {
    /// The file of the plan of a step. It appears after that of evaluations, whole.
    pub fn step(&self) -> PathBuf {
        self.folder.join("step.plan")
    }

    fn evaluation(&self) -> PathBuf {
        self.folder.join("evaluation.plan")
    }

    /// Says that there will be no plans.
    fn failed(&self) -> PathBuf {
        self.folder.join("failed")
    }

    /// The plans of this rank: of a step its part. The rank that compiles does so now, and the others wait.
    ///
    /// # Errors
    /// When the model cannot be compiled, or a file cannot be written or read.
    pub(super) fn open(
        &self,
        compile: impl FnOnce() -> Result<Plans<Compiled>, Diagnostics>,
    ) -> Result<Plans<PlanFile>, Diagnostics> {
        // A rank that was started again finds the plans of the job.
        if self.rank == self.compiler && !self.step().exists() {
            tracing::debug!("this rank compiles");
            compile().and_then(|plans| self.write(&plans)).inspect_err(|_| {
                // Where this fails as well, the others end when this rank does.
                let _ = std::fs::write(self.failed(), []);
            })?;
        }
        self.wait()?;
        let step = open_plan_for_rank(&self.step(), self.rank)?;
        let step = step.ok_or_else(|| error(Code::PLAN, "the plan of a step is for one rank"))?;
        tracing::debug!(read = step.verified_len(), whole = step.file_len(), "the part of the plan of this rank");
        Ok(Plans { step, evaluation: open_plan(&self.evaluation())? })
    }

    fn write(&self, plans: &Plans<Compiled>) -> Result<(), Diagnostics> {
        plans.evaluation.write(&self.evaluation())?;
        Ok(plans.step.write(&self.step())?)
    }

    /// Waits for the rank that compiles.
    fn wait(&self) -> Result<(), Diagnostics> {
        while !self.step().exists() {
            if self.failed().exists() || !self.folder.exists() {
                let what = format!("rank {} did not compile the plan of the training", self.compiler);
                return Err(error(Code::RUN, what).into());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Copies the plan of a step.
    pub(super) fn copy_step(&self, to: &std::path::Path) -> Result<(), Diagnostics> {
        let plan = std::fs::read(self.step()).map_err(|e| io_error(&self.step(), "read", &e))?;
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
