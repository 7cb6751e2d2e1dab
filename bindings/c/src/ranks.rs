//! Sessions whose ranks are processes.

#[cfg(feature = "ranks")]
use std::{sync::Arc, time::Duration};

#[cfg(feature = "ranks")]
use of_plan::Program;
#[cfg(feature = "ranks")]
use of_runtime::{RunError, Tensor, Value};
#[cfg(feature = "ranks")]
use of_transport::{GroupCanceller, GroupError, GroupOptions, RankGroup};

use crate::abi::{RankOptions, SessionOptions, Status};
#[cfg(feature = "ranks")]
use crate::error::unknown;
use crate::error::{Error, error, guarded};
use crate::memory::put;
#[cfg(feature = "ranks")]
use crate::memory::reference;
use crate::plan::Plan;
use crate::session::Session;

/// The ranks of a session.
#[cfg(feature = "ranks")]
pub struct Ranks {
    group: RankGroup,
    program: Program,
}

#[cfg(feature = "ranks")]
impl Ranks {
    pub fn program(&self) -> &Program {
        &self.program
    }

    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, RunError> {
        self.group.run(inputs)
    }

    pub fn canceller(&self) -> GroupCanceller {
        self.group.canceller()
    }

    fn check(&self, index: usize) -> Result<(), Error> {
        let count = self.program.variables.len();
        if index < count { Ok(()) } else { Err(unknown("variable", index, count)) }
    }

    pub fn variable(&mut self, index: usize) -> Result<Tensor, Error> {
        self.check(index)?;
        Ok(self.group.get_variable(index)?)
    }

    pub fn set_variable(&mut self, index: usize, value: &Tensor) -> Result<(), Error> {
        self.check(index)?;
        Ok(self.group.set_variable(index, value)?)
    }

    pub fn reset_variables(&mut self) -> Result<(), Error> {
        if self.program.variables.is_empty() { Ok(()) } else { Ok(self.group.reset_variables()?) }
    }
}

#[cfg(feature = "ranks")]
impl From<GroupError> for Error {
    fn from(e: GroupError) -> Self {
        let status = match e {
            GroupError::Session(e) => return e.into(),
            GroupError::Ranks { .. } | GroupError::Launcher(_) | GroupError::IsWorker | GroupError::Tls(_) => {
                Status::InvalidArgument
            }
            _ => Status::Run,
        };
        error(status, e.to_string())
    }
}

/// `of_session_new_ranks`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_new_ranks(
    plan: *const Plan,
    options: *const SessionOptions,
    ranks: *const RankOptions,
    session: *mut *mut Session,
) -> Status {
    // SAFETY: the caller passes a plan, options or null, ranks, and memory for a pointer.
    guarded(|| unsafe { give_ranks(plan, options, ranks, session) })
}

/// Gives the caller a session of ranks.
///
/// # Safety
/// The pointers are null, or a plan, options, ranks with text, and memory for a pointer.
#[cfg(feature = "ranks")]
unsafe fn give_ranks(
    plan: *const Plan,
    options: *const SessionOptions,
    ranks: *const RankOptions,
    session: *mut *mut Session,
) -> Result<(), Error> {
    if session.is_null() {
        return Err(crate::error::null("session"));
    }
    // SAFETY: the caller promises it.
    let (plan, ranks) = unsafe { (reference(plan, "plan")?, reference(ranks, "ranks")?) };
    // SAFETY: as above.
    let given = unsafe { options.as_ref() }.copied().unwrap_or_default();
    let mesh = plan.entry_point(given.program)?.program;
    let program = match ranks.program.is_null() {
        true => std::env::current_exe()
            .map_err(|e| error(Status::Run, format!("this process does not know its program: {e}")))?,
        // SAFETY: as above.
        false => unsafe { crate::plan::path_of(ranks.program) }?.to_owned(),
    };
    let duration = |ms: u32, otherwise: u64| match ms {
        0 => Duration::from_secs(otherwise),
        ms => Duration::from_millis(u64::from(ms)),
    };
    let options = GroupOptions {
        ranks: ranks.ranks,
        mesh,
        worker: vec![program],
        threads: given.threads as usize,
        memory: Some(given.memory).filter(|&bytes| bytes > 0),
        join_timeout: duration(ranks.join_timeout, 60),
        peer_timeout: duration(ranks.peer_timeout, 10),
        tls: ranks.tls != 0,
    };
    let group = RankGroup::new(&plan.file, &options, &[])?;
    let program = plan.file.plan().meshes.get(mesh).map(crate::plan::mesh_program).unwrap_or_default();
    let made = Box::new(Session::of_ranks(Arc::clone(&plan.file), Ranks { group, program }));
    // SAFETY: as above.
    unsafe { put(session, "session", Box::into_raw(made)) }
}

/// Refuses to give the caller a session of ranks.
///
/// # Safety
/// The pointers are not read.
#[cfg(not(feature = "ranks"))]
unsafe fn give_ranks(
    _: *const Plan,
    _: *const SessionOptions,
    _: *const RankOptions,
    _: *mut *mut Session,
) -> Result<(), Error> {
    Err(error(Status::Unsupported, "this library was built without the feature `ranks`"))
}

/// `of_serve_rank`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_serve_rank(served: *mut i32) -> Status {
    guarded(|| {
        #[cfg(feature = "ranks")]
        let is_worker = of_transport::is_worker();
        #[cfg(not(feature = "ranks"))]
        let is_worker = false;
        // SAFETY: the caller passes memory for a number.
        unsafe { put(served, "served", i32::from(is_worker)) }?;
        #[cfg(feature = "ranks")]
        if is_worker {
            of_transport::serve_rank(&[]).map_err(|why| error(Status::Run, why))?;
        }
        Ok(())
    })
}
