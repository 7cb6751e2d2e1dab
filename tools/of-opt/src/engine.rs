//! A plan, ready to run: by one session, or by the ranks of a mesh.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use of_diag::{Code, Diagnostics};
use of_plan::{InputDims, MeshPort, PlanFile, Port, Program};
use of_runtime::{MeshSession, Session, Value};

use crate::backends::Backends;
use crate::{driver, exit};

/// What runs a plan.
pub enum Engine {
    /// One session.
    One(Box<Session>),
    /// A session for each rank.
    Ranks(Box<MeshSession>),
}

/// The first entry point of a plan as callers see it: of a mesh, the whole inputs and outputs.
///
/// # Errors
/// When there is none.
pub fn entry(plan: &PlanFile) -> Result<Cow<'_, Program>, Diagnostics> {
    let plan = plan.plan();
    if let Some(mesh) = plan.meshes.first() {
        let port =
            |p: &MeshPort| Port { name: p.name.clone(), dtype: p.dtype, dims: p.dims.clone(), ..Port::default() };
        let (inputs, outputs) = (mesh.inputs.iter().map(port).collect(), mesh.outputs.iter().map(port).collect());
        return Ok(Cow::Owned(Program { name: mesh.name.clone(), inputs, outputs, ..Program::default() }));
    }
    let program = plan.programs.first().ok_or_else(|| exit::error(Code::PLAN, "the plan holds no program"))?;
    Ok(Cow::Borrowed(program))
}

impl Engine {
    /// For the program of a plan that takes these inputs.
    ///
    /// # Errors
    /// When none does, or this machine cannot run it.
    pub fn open(
        plan: Arc<PlanFile>,
        inputs: &[Value],
        threads: usize,
        backends: &Backends,
    ) -> Result<Engine, Diagnostics> {
        if plan.plan().meshes.is_empty() {
            let program = driver::find_program(&plan, inputs)?;
            return Ok(Engine::One(Box::new(driver::session(plan, program, Some(threads), false, backends)?)));
        }
        let dims: Vec<InputDims<'_>> = inputs.iter().map(Value::input_dims).collect();
        let fits: Vec<_> = plan.plan().meshes.iter().map(|mesh| mesh.accepts(&dims)).collect();
        let Some(mesh) = fits.iter().position(Result::is_ok) else {
            let why = fits.into_iter().find_map(Result::err).map(|e| e.to_string());
            return Err(exit::error(Code::INPUT, why.unwrap_or_default()).into());
        };
        Ok(Engine::Ranks(Box::new(driver::mesh_session(plan, mesh, Some(threads), false, backends)?)))
    }

    /// Runs it.
    ///
    /// # Errors
    /// When a task fails.
    pub fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>, Diagnostics> {
        match self {
            Engine::One(session) => session.run(inputs),
            Engine::Ranks(session) => session.run(&inputs),
        }
        .map_err(|e| driver::run_error(&e))
    }

    /// Room for the outputs of [`Engine::timed`].
    pub fn new_outputs(&self) -> Vec<Value> {
        match self {
            Engine::One(session) => session.new_outputs(),
            Engine::Ranks(_) => Vec::new(),
        }
    }

    /// Runs it into `outputs` and says how long it took; ranks without the cutting of inputs and the putting together
    /// of outputs.
    ///
    /// # Errors
    /// When a task fails.
    pub fn timed(&mut self, inputs: &mut [Value], outputs: &mut [Value]) -> Result<Duration, Diagnostics> {
        match self {
            Engine::One(session) => {
                let start = Instant::now();
                session.run_into(inputs, outputs).map_err(|e| driver::run_error(&e))?;
                Ok(start.elapsed())
            }
            Engine::Ranks(session) => {
                session.run(inputs).map_err(|e| driver::run_error(&e))?;
                Ok(session.step())
            }
        }
    }

    /// Names of the outputs.
    pub fn output_names(&self) -> Vec<String> {
        match self {
            Engine::One(session) => session.program().outputs.iter().map(|p| p.name.clone()).collect(),
            Engine::Ranks(session) => session.program().outputs.iter().map(|p| p.name.clone()).collect(),
        }
    }
}
