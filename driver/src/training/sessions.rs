//! The sessions of a training: one for steps, and one for evaluations of each number of samples.
//!
//! On one rank they share their variables. On a mesh the step alone is cut; evaluations run on one rank, on copies of the
//! variables that an evaluation begins with.

use std::sync::Arc;

use of_diag::{Code, Diagnostics};
use of_plan::{Plan, PlanFile, Program};
use of_runtime::{RankVariables, TaskTiming, Transport, Value, Variables};

use crate::backends::Backends;
use crate::error::error;
use crate::options::SessionOptions;
use crate::session::{Session, SessionVariables, program_session, run_error, sharing_session};

/// Connects this process to the others of a job, each of which is a rank of the plan's mesh; gives its rank. `None` where the
/// ranks are threads of this process.
pub type Join<'j> = &'j dyn Fn(&PlanFile) -> Result<Option<(usize, Arc<dyn Transport>)>, Diagnostics>;

pub(super) struct Sessions {
    /// None while this rank joins the others again.
    steps: Option<Session>,
    /// By the number of samples.
    evaluations: Vec<(usize, of_runtime::Session)>,
    /// The plan of evaluations, and the number of the first.
    evaluation_plan: (Arc<PlanFile>, usize),
    /// The variables of evaluations that do not share those of the steps.
    copies: Option<Arc<Variables>>,
    /// The connection to the other ranks, where they are processes.
    transport: Option<Arc<dyn Transport>>,
}

impl Sessions {
    /// Sessions of a plan whose first program is the step, and whose others are evaluations of so many samples.
    pub fn of_one_rank(
        plan: &Arc<PlanFile>,
        sizes: &[usize],
        options: &SessionOptions,
        backends: &Backends,
    ) -> Result<Sessions, Diagnostics> {
        let steps = Session::for_program(Arc::clone(plan), 0, options, backends)?;
        let Some(SessionVariables::One(shared)) = steps.variables() else { return Err(no_variables()) };
        let evaluations = evaluations(plan, 1, sizes, options, backends, shared)?;
        let evaluation_plan = (Arc::clone(plan), 1);
        Ok(Sessions { steps: Some(steps), evaluations, evaluation_plan, copies: None, transport: None })
    }

    /// Sessions of a plan for a mesh, and of a plan with evaluations of so many samples.
    pub fn of_ranks(
        plan: &Arc<PlanFile>,
        evaluation: &Arc<PlanFile>,
        sizes: &[usize],
        options: &SessionOptions,
        backends: &Backends,
        join: Join<'_>,
    ) -> Result<Sessions, Diagnostics> {
        let (steps, transport) = joined(plan, options, backends, join)?;
        let first = program_session(Arc::clone(evaluation), 0, options, backends)?;
        let copies = Arc::clone(first.variables().ok_or_else(no_variables)?);
        let evaluations = evaluations(evaluation, 0, sizes, options, backends, &copies)?;
        Ok(Sessions {
            steps: Some(steps),
            evaluations,
            evaluation_plan: (Arc::clone(evaluation), 0),
            copies: Some(copies),
            transport,
        })
    }

    /// Ends the session of steps, and opens one with the ranks that `join` finds. Its variables have their initial values.
    pub fn rejoin(
        &mut self,
        plan: &Arc<PlanFile>,
        options: &SessionOptions,
        backends: &Backends,
        join: Join<'_>,
    ) -> Result<(), Diagnostics> {
        (self.steps, self.transport) = (None, None);
        let (steps, transport) = joined(plan, options, backends, join)?;
        (self.steps, self.transport) = (Some(steps), transport);
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

    /// The programs of evaluations, and their plan.
    pub fn evaluation_programs(&self) -> (&Plan, &[Program]) {
        let (plan, first) = (self.evaluation_plan.0.plan(), self.evaluation_plan.1);
        (plan, plan.programs.get(first..first + self.evaluations.len()).unwrap_or_default())
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

    /// Makes the variables of evaluations those of the last step.
    pub fn begin_evaluation(&self) -> Result<(), Diagnostics> {
        let (Some(copies), steps) = (&self.copies, self.variables()?) else { return Ok(()) };
        let copy = |variable: &of_plan::Variable| copies.set(&variable.name, &steps.get(&variable.name)?);
        copies.list().iter().try_for_each(copy).map_err(|e| run_error(&e))
    }

    /// Evaluates so many samples.
    pub fn evaluate(&mut self, samples: usize, inputs: Vec<Value>) -> Result<Vec<Value>, Diagnostics> {
        if let Some(variables) = self.of_rank() {
            // An evaluation has no transfers, by which the end of another rank would be noticed.
            variables.check_others().map_err(|e| run_error(&e))?;
        }
        let session = self.evaluations.iter_mut().find(|(size, _)| *size == samples).map(|(_, session)| session);
        let session = session.ok_or_else(|| {
            error(Code::INPUT, format!("the evaluation of {samples} samples was not compiled: name it in `rests`"))
        })?;
        session.run(inputs).map_err(|e| run_error(&e))
    }
}

/// The session of steps on the ranks that `join` finds, which may be threads, and the connection to those that are processes.
fn joined(
    plan: &Arc<PlanFile>,
    options: &SessionOptions,
    backends: &Backends,
    join: Join<'_>,
) -> Result<(Session, Option<Arc<dyn Transport>>), Diagnostics> {
    let (steps, transport) = match join(plan)? {
        Some((rank, transport)) => {
            let shared = Arc::clone(&transport);
            (Session::as_rank(Arc::clone(plan), 0, rank, shared, options, backends)?, Some(transport))
        }
        None => (Session::first(Arc::clone(plan), options, backends)?, None),
    };
    if steps.variables().is_some() { Ok((steps, transport)) } else { Err(no_variables()) }
}

/// Sessions of the programs of a plan from `first` on, which share variables.
fn evaluations(
    plan: &Arc<PlanFile>,
    first: usize,
    sizes: &[usize],
    options: &SessionOptions,
    backends: &Backends,
    variables: &Arc<Variables>,
) -> Result<Vec<(usize, of_runtime::Session)>, Diagnostics> {
    let session =
        |(size, program): (&usize, usize)| Ok((*size, sharing_session(plan, program, options, backends, variables)?));
    sizes.iter().zip(first..).map(session).collect()
}

fn no_variables() -> Diagnostics {
    error(Code::PLAN, "a training plan has no variables").into()
}
