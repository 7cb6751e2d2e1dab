//! The sessions of a training: one for steps, and one for evaluations of each number of samples. They share their variables, on one rank
//! and on the ranks of a mesh.

use std::sync::Arc;

use of_diag::{Code, Diagnostics};
use of_plan::PlanFile;
use of_runtime::{RankVariables, TaskTiming, Transport, Value};

use crate::backends::Backends;
use crate::error::error;
use crate::options::SessionOptions;
use crate::session::{Session, SessionVariables, run_error};

/// Connects this process to the others of a job, each of which is a rank of the plan's mesh; gives its rank. `None` where the
/// ranks are threads of this process.
pub type Join<'j> = &'j dyn Fn(&PlanFile) -> Result<Option<(usize, Arc<dyn Transport>)>, Diagnostics>;

#[derive(Default)]
pub(super) struct Sessions {
    /// None before this rank has joined the others, and while it joins them again.
    steps: Option<Session>,
    /// By the number of samples.
    evaluations: Vec<(usize, Session)>,
    /// The connection to the other ranks, where they are processes.
    transport: Option<Arc<dyn Transport>>,
}

impl Sessions {
    /// Sessions of a plan whose first entry point is the step, and whose others are evaluations of so many samples.
    pub fn open(
        plan: &Arc<PlanFile>,
        sizes: &[usize],
        options: &SessionOptions,
        backends: &Backends,
        join: Join<'_>,
    ) -> Result<Sessions, Diagnostics> {
        let (steps, transport) = match join(plan)? {
            Some((rank, transport)) => {
                let shared = Arc::clone(&transport);
                (Session::as_rank(Arc::clone(plan), 0, rank, shared, options, backends)?, Some(transport))
            }
            None => (Session::first(Arc::clone(plan), options, backends)?, None),
        };
        steps.variables().ok_or_else(no_variables)?;
        let evaluation = |(size, entry_point): (&usize, usize)| {
            Ok::<_, Diagnostics>((*size, steps.sharing(plan, entry_point, options, backends)?))
        };
        let evaluations = sizes.iter().zip(1..).map(evaluation).collect::<Result<_, _>>()?;
        Ok(Sessions { steps: Some(steps), evaluations, transport })
    }

    /// Ends the sessions, and opens others with the ranks that `join` finds. Their variables have their initial values.
    pub fn rejoin(
        &mut self,
        plan: &Arc<PlanFile>,
        options: &SessionOptions,
        backends: &Backends,
        join: Join<'_>,
    ) -> Result<(), Diagnostics> {
        let sizes: Vec<usize> = self.evaluations.drain(..).map(|(size, _)| size).collect();
        (self.steps, self.transport) = (None, None);
        *self = Sessions::open(plan, &sizes, options, backends, join)?;
        Ok(())
    }

    /// The variables of the steps.
    pub fn variables(&self) -> Result<SessionVariables<'_>, Diagnostics> {
        self.steps.as_ref().and_then(Session::variables).ok_or_else(no_variables)
    }

    /// The variables of this process' rank; `None` where the ranks are threads.
    pub fn of_rank(&self) -> Option<&RankVariables> {
        match self.steps.as_ref()?.variables()? {
            SessionVariables::Rank(variables) => Some(variables),
            _ => None,
        }
    }

    /// The entry point that evaluates so many samples.
    pub fn evaluation(&self, samples: usize) -> Result<usize, Diagnostics> {
        let found = self.evaluations.iter().position(|(size, _)| *size == samples);
        let unknown = || format!("the evaluation of {samples} samples was not compiled: name it in `rests`");
        Ok(1 + found.ok_or_else(|| error(Code::INPUT, unknown()))?)
    }

    /// How many entry points evaluate.
    pub fn evaluations(&self) -> usize {
        self.evaluations.len()
    }

    /// Ends the other ranks, where they are processes, because of an error of this one.
    pub fn fail(&self, why: &Diagnostics) {
        let what = why.0.first().map(|first| first.message.as_str()).unwrap_or_default();
        self.transport.iter().for_each(|transport| transport.fail(what));
    }

    /// Whether this process reports results: of ranks that are processes, the first one does.
    pub fn reports(&self) -> bool {
        self.steps.as_ref().is_none_or(Session::reports)
    }

    /// Runs a step.
    pub fn step(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>, Diagnostics> {
        self.steps.as_mut().ok_or_else(no_variables)?.run_values(inputs)
    }

    /// As [`Session::set_profiling`], for steps.
    pub fn set_profiling(&self, on: bool) {
        self.steps.iter().for_each(|session| session.set_profiling(on));
    }

    /// As [`Session::timings`], of steps.
    pub fn timings(&self) -> Vec<(Option<usize>, Vec<TaskTiming>)> {
        self.steps.as_ref().map_or(Vec::new(), Session::timings)
    }

    /// Evaluates so many samples.
    pub fn evaluate(&mut self, samples: usize, inputs: Vec<Value>) -> Result<Vec<Value>, Diagnostics> {
        if let Some(variables) = self.of_rank() {
            // An evaluation may have no transfers, by which the end of another rank would be noticed.
            variables.check_others().map_err(|e| run_error(&e))?;
        }
        let number = self.evaluation(samples)? - 1;
        self.evaluations[number].1.run_values(inputs)
    }
}

fn no_variables() -> Diagnostics {
    error(Code::PLAN, "a training plan has no variables").into()
}
