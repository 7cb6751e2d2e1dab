//! Variables: the values that sessions keep between runs.

use std::ffi::c_void;
use std::sync::Arc;

use of_runtime::{Tensor as OwnTensor, Variables};

use crate::abi::{Port, SessionOptions, Status, Tensor};
use crate::error::{Error, error, guarded, null, unknown};
use crate::memory::{external, put, reference, shape};
use crate::plan::Plan;
use crate::session::{Executor, Session, State, give_session};

/// `of_plan_variable_count`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_variable_count(plan: *const Plan, program: usize, count: *mut usize) -> Status {
    // SAFETY: the caller passes a plan and memory for a number.
    guarded(|| unsafe { put(count, "count", reference(plan, "plan")?.entry_point(program)?.variables.len()) })
}

/// `of_plan_variable`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_plan_variable(plan: *const Plan, program: usize, index: usize, port: *mut Port) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a plan.
        let variables = &unsafe { reference(plan, "plan") }?.entry_point(program)?.variables;
        let found = variables.get(index).ok_or_else(|| unknown("variable", index, variables.len()))?;
        // SAFETY: the caller passes memory for a port.
        unsafe { put(port, "port", found.port()) }
    })
}

/// The variables of a session, and the name of one.
fn variable(session: &Session, index: usize) -> Result<(&Arc<Variables>, &str), Error> {
    let variables = session.variables.as_ref().ok_or_else(|| unknown("variable", index, 0))?;
    let found = variables.list().get(index).ok_or_else(|| unknown("variable", index, variables.list().len()))?;
    Ok((variables, &found.name))
}

fn value(session: &Session, state: &mut State, index: usize) -> Result<OwnTensor, Error> {
    match &mut state.executor {
        Executor::One(_) => {
            let (variables, name) = variable(session, index)?;
            Ok(variables.get(name)?)
        }
        #[cfg(feature = "ranks")]
        Executor::Ranks(ranks) => ranks.variable(index),
    }
}

fn set(session: &Session, state: &mut State, index: usize, value: &OwnTensor) -> Result<(), Error> {
    match &mut state.executor {
        Executor::One(_) => {
            let (variables, name) = variable(session, index)?;
            Ok(variables.set(name, value)?)
        }
        #[cfg(feature = "ranks")]
        Executor::Ranks(ranks) => ranks.set_variable(index, value),
    }
}

fn reset(session: &Session, state: &mut State) -> Result<(), Error> {
    match &mut state.executor {
        Executor::One(_) => session.variables.iter().for_each(|variables| variables.reset()),
        #[cfg(feature = "ranks")]
        Executor::Ranks(ranks) => ranks.reset_variables()?,
    }
    Ok(())
}

/// `of_session_new_sharing`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_new_sharing(
    plan: *const Plan,
    options: *const SessionOptions,
    other: *const Session,
    session: *mut *mut Session,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a plan, a session, and options or null.
        unsafe { give_session(plan, options, Some(reference(other, "other")?), session) }
    })
}

/// `of_session_get_variable`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_get_variable(
    session: *const Session,
    index: usize,
    data: *mut c_void,
    bytes: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session.
        let session = unsafe { reference(session, "session") }?;
        let mut state = session.state()?;
        let value = value(session, &mut state, index)?;
        let from = value.bytes().unwrap_or_default();
        if from.len() != bytes {
            let what = format!("variable number {index} has {} bytes, and its buffer {bytes}", from.len());
            return Err(error(Status::Buffer, what));
        }
        if data.is_null() && bytes > 0 {
            return Err(null("data"));
        }
        // SAFETY: the caller passes memory of this size; the value is a copy of our own.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), data.cast(), bytes) };
        Ok(())
    })
}

/// `of_session_set_variable`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_set_variable(
    session: *const Session,
    index: usize,
    tensor: *const Tensor,
) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session and a tensor with its extents.
        let (session, tensor) = unsafe { (reference(session, "session")?, reference(tensor, "tensor")?) };
        let mut state = session.state()?;
        // SAFETY: as above.
        let (dtype, dims) = unsafe { shape(tensor) }?;
        // SAFETY: the elements are valid during this call, which copies them.
        let bytes = unsafe { external(tensor.data, tensor.bytes, dtype, false) }?;
        set(session, &mut state, index, &OwnTensor::new(dtype, dims, bytes)?)
    })
}

/// `of_session_reset_variables`.
///
/// # Safety
/// As `of_runtime.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn of_session_reset_variables(session: *const Session) -> Status {
    guarded(|| {
        // SAFETY: the caller passes a session.
        let session = unsafe { reference(session, "session") }?;
        reset(session, &mut *session.state()?)
    })
}
