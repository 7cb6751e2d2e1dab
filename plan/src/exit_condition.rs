//! How a run of a program ends.

use std::collections::BTreeSet;
use std::fmt;

use crate::Program;

/// The exit condition of a program's runs. A run begins with a command to the tasks that consume nothing, and ends when every task has acted as often as
/// the plan says: neither an input nor a clock ends it. A session has no number of runs; its owner ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCondition {
    /// Acts of all tasks in a run.
    pub acts: usize,
    /// Outputs, which then are there.
    pub outputs: usize,
    /// Variables that then have their next values.
    pub updates: usize,
    /// Transfers with other ranks in a run. A rank that fails ends the runs of all others in the next one.
    pub transfers: usize,
}

impl Program {
    /// How its runs end.
    pub fn exit_condition(&self) -> ExitCondition {
        let updated: BTreeSet<usize> = self.tasks.iter().flat_map(|task| self.variables_written(task)).collect();
        let transfers = self.tasks.iter().enumerate().map(|(i, task)| {
            let with_others = self.transfers(task).filter(|(transfer, _)| !transfer.is_local()).count();
            with_others * self.times(i) as usize
        });
        ExitCondition {
            acts: self.acts(),
            outputs: self.outputs.len(),
            updates: updated.len(),
            transfers: transfers.sum(),
        }
    }
}

/// For people: `a run ends after 3 acts, with 1 output`.
impl fmt::Display for ExitCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        write!(f, "a run ends after {}, with {}", count(self.acts, "act"), count(self.outputs, "output"))?;
        if self.updates > 0 {
            write!(f, " and the next values of {}", count(self.updates, "variable"))?;
        }
        match self.transfers {
            0 => Ok(()),
            n => write!(f, "; a rank that fails ends it at the next of {}", count(n, "transfer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AxisLayout, BoxingExec, Exec, LayoutKind, Phase, Port, Task, Transfer};

    #[test]
    fn a_run_ends_after_all_acts() {
        let task = |exec: Option<Exec>| Task { exec, ..Task::default() };
        let exec = |layout| {
            let (from, to) = (vec![layout], vec![AxisLayout::of(LayoutKind::Broadcast)]);
            let transfer = Transfer { axes: vec![0], dims: vec![4], from, to, ..Transfer::default() };
            Some(Exec::Boxing(BoxingExec { transfer, ..BoxingExec::default() }))
        };
        // The second transfer is within the rank.
        let tasks =
            vec![task(None), task(exec(AxisLayout::split(0))), task(exec(AxisLayout::of(LayoutKind::Broadcast)))];
        let phases = vec![Phase { first: 0, tasks: 2, times: 4 }, Phase { first: 2, tasks: 1, times: 1 }];
        let program = Program { tasks, outputs: vec![Port::default()], ..Program::default() };
        let once = program.exit_condition();
        assert_eq!(once, ExitCondition { acts: 3, outputs: 1, updates: 0, transfers: 1 });
        assert_eq!(
            once.to_string(),
            "a run ends after 3 acts, with 1 output; a rank that fails ends it at the next of 1 transfer"
        );
        let often = Program { phases, ..program }.exit_condition();
        assert_eq!(often, ExitCondition { acts: 9, outputs: 1, updates: 0, transfers: 4 });
    }
}
