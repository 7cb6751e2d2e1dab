//! The ranks of a session whose plan is for a mesh: threads of this process, or processes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use of_diag::{Code, Diagnostics};
use of_driver::session::{SessionVariables, run_error};
use of_driver::{Backends, SessionOptions, error};
use of_plan::{MeshPort, PlanFile};
use of_runtime::{RunError, Tensor, Value};
use of_transport::{GroupError, GroupOptions, RankGroup};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::interrupt::{INTERVAL, Interrupt};
use crate::session::Failure;

/// The ranks of a session.
pub struct Ranks {
    plan: Arc<PlanFile>,
    /// The number of its mesh among the plan's entry points.
    mesh: usize,
    executor: Mutex<Executor>,
}

enum Executor {
    /// Threads, which the first use starts, and what ends their runs.
    NotStarted(SessionOptions, Arc<Interrupt>),
    /// Threads, and whether the last run was ended.
    Threads(of_driver::Session, Arc<AtomicBool>),
    Processes(Box<RankGroup>),
}

/// How long ranks that are processes wait, and whether their connections are encrypted.
pub struct Connections {
    pub join: Duration,
    pub peer: Duration,
    pub tls: bool,
}

impl Connections {
    /// Of seconds.
    pub fn of(join: f64, peer: f64, tls: bool) -> PyResult<Connections> {
        let duration = |name: &str, seconds: f64| {
            let is_duration = seconds > 0.0 && seconds.is_finite();
            let duration = is_duration.then(|| Duration::try_from_secs_f64(seconds).ok()).flatten();
            duration.ok_or_else(|| PyValueError::new_err(format!("{name} is a positive number of seconds")))
        };
        Ok(Connections { join: duration("join_timeout", join)?, peer: duration("peer_timeout", peer)?, tls })
    }
}

impl Ranks {
    /// Threads of this mesh of the plan, whose runs `interrupt` ends.
    pub fn threads(plan: &Arc<PlanFile>, mesh: usize, options: &SessionOptions, interrupt: &Arc<Interrupt>) -> Ranks {
        let executor = Executor::NotStarted(*options, Arc::clone(interrupt));
        Ranks { plan: Arc::clone(plan), mesh, executor: Mutex::new(executor) }
    }

    /// So many processes of this mesh of the plan, of which this is one. `worker` starts another.
    ///
    /// # Errors
    /// When the plan is for another number of ranks, or they do not start.
    pub fn processes(
        plan: &Arc<PlanFile>,
        mesh: usize,
        options: &SessionOptions,
        (ranks, worker): (u32, Vec<PathBuf>),
        connections: &Connections,
    ) -> Result<Ranks, Diagnostics> {
        let options = GroupOptions {
            ranks,
            mesh,
            worker,
            threads: options.threads,
            memory: options.memory,
            join_timeout: connections.join,
            peer_timeout: connections.peer,
            tls: connections.tls,
        };
        let group = RankGroup::new(plan, &options, &Backends::builtin().loaders).map_err(|e| {
            let code = match e {
                GroupError::Ranks { .. } | GroupError::Launcher(_) | GroupError::IsWorker | GroupError::Tls(_) => {
                    Code::INPUT
                }
                GroupError::Session(_) => Code::UNSUPPORTED,
                _ => Code::RUN,
            };
            Diagnostics::from(error(code, e.to_string()))
        })?;
        Ok(Ranks { plan: Arc::clone(plan), mesh, executor: Mutex::new(Executor::Processes(Box::new(group))) })
    }

    /// The executor, which is this call's until it ends.
    fn executor(&self) -> Result<MutexGuard<'_, Executor>, Diagnostics> {
        let mut executor = self.executor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Executor::NotStarted(options, interrupt) = &*executor {
            let mut session = of_driver::Session::at(Arc::clone(&self.plan), self.mesh, options, &Backends::builtin())?;
            let (interrupt, ended) = (Arc::clone(interrupt), Arc::<AtomicBool>::default());
            let ends = Arc::clone(&ended);
            let condition = move || {
                let end = interrupt.ends_run();
                ends.fetch_or(end, Ordering::AcqRel);
                end
            };
            session.poll_with(INTERVAL, Box::new(condition));
            *executor = Executor::Threads(session, ended);
        }
        Ok(executor)
    }

    /// Runs the plan on whole inputs. `interrupt` ends a run on all ranks; those that are processes cannot run again then.
    pub fn run(&self, inputs: Vec<Value>, interrupt: &Interrupt) -> Result<Vec<Value>, Failure> {
        match &mut *self.executor()? {
            Executor::Processes(group) => match run_processes(group, &inputs, interrupt)? {
                Err(RunError::Cancelled) => Err(Failure::Cancelled),
                result => Ok(result.map_err(|e| run_error(&e))?),
            },
            Executor::Threads(session, ended) => {
                ended.store(false, Ordering::Release);
                match session.run_values(inputs) {
                    Err(_) if ended.load(Ordering::Acquire) => Err(Failure::Cancelled),
                    result => Ok(result?),
                }
            }
            Executor::NotStarted(..) => Err(not_started().into()),
        }
    }

    /// The variables, whole.
    pub fn list(&self) -> &[MeshPort] {
        self.plan.plan().meshes.get(self.mesh).map_or(&[], |mesh| &mesh.variables)
    }

    fn index(&self, name: &str) -> Result<usize, Diagnostics> {
        let found = self.list().iter().position(|port| port.name == name);
        found.ok_or_else(|| error(Code::INPUT, format!("the plan has no variable '{name}'")).into())
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Result<Tensor, Diagnostics> {
        let index = self.index(name)?;
        match &mut *self.executor()? {
            Executor::Processes(group) => group.get_variable(index).map_err(|e| run_error(&e)),
            Executor::Threads(session, _) => variables(session)?.get(name).map_err(|e| run_error(&e)),
            Executor::NotStarted(..) => Err(not_started()),
        }
    }

    /// Sets the value of a variable.
    pub fn set(&self, name: &str, value: &Tensor) -> Result<(), Diagnostics> {
        let index = self.index(name)?;
        match &mut *self.executor()? {
            Executor::Processes(group) => group.set_variable(index, value).map_err(|e| run_error(&e)),
            Executor::Threads(session, _) => variables(session)?.set(name, value).map_err(|e| run_error(&e)),
            Executor::NotStarted(..) => Err(not_started()),
        }
    }

    /// Gives every variable its initial value.
    pub fn reset(&self) -> Result<(), Diagnostics> {
        match &mut *self.executor()? {
            Executor::Processes(group) => group.reset_variables().map_err(|e| run_error(&e)),
            Executor::Threads(session, _) => variables(session).map(SessionVariables::reset),
            Executor::NotStarted(..) => Err(not_started()),
        }
    }
}

/// Runs on a thread of its own, while the caller, who may be Python's main thread, looks for signals: the rank waits for the others.
fn run_processes(
    group: &mut RankGroup,
    inputs: &[Value],
    interrupt: &Interrupt,
) -> Result<Result<Vec<Value>, RunError>, Diagnostics> {
    let canceller = group.canceller();
    let (done, outcome) = channel();
    std::thread::scope(|scope| {
        let work = move || {
            // The caller waits for the outcome.
            let _ = done.send(group.run(inputs));
        };
        let started = std::thread::Builder::new().name("of-rank".into()).spawn_scoped(scope, work);
        started.map_err(|e| error(Code::RUN, format!("cannot start a thread: {e}")))?;
        loop {
            match outcome.recv_timeout(INTERVAL) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) if interrupt.ends_run() => canceller.cancel(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(error(Code::RUN, "the run panicked").into()),
            }
        }
    })
}

fn variables(session: &of_driver::Session) -> Result<SessionVariables<'_>, Diagnostics> {
    session.variables().ok_or_else(|| error(Code::INPUT, "the plan has no variables").into())
}

fn not_started() -> Diagnostics {
    error(Code::RUN, "the ranks are not started").into()
}

/// The program and arguments that start a rank: this interpreter, with the paths that it has for modules now.
pub fn worker(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    let sys = py.import("sys")?;
    let program: Option<PathBuf> = sys.getattr("executable")?.extract()?;
    let program = program.filter(|program| !program.as_os_str().is_empty()).ok_or_else(|| {
        PyValueError::new_err("this program does not say which Python interpreter it is (sys.executable)")
    })?;
    let path = sys.getattr("path")?.repr()?.to_string();
    let code = format!("import sys; sys.path[:] = {path}; from of_opt import _native; _native.serve_rank()");
    Ok(vec![program, "-c".into(), code.into()])
}

/// Serves a rank of a session of another process.
#[pyfunction]
pub fn serve_rank(py: Python<'_>) -> PyResult<()> {
    let served = py.detach(|| of_transport::serve_rank(&Backends::builtin().loaders));
    served.map_err(|why| crate::error::raised(py, &error(Code::RUN, why).into()))
}
