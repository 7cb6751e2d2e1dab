//! Errors: their kind and text, and the boundary that no panic crosses.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use of_plan::{FindError, OpenError};
use of_runtime::{ExecError, LoadError, RunError, SessionError, ValueError};

use crate::abi::{OF_RUNTIME_ABI_VERSION, Status};

/// Why a call failed.
pub struct Error {
    pub status: Status,
    pub text: String,
}

/// An error of this kind.
pub fn error(status: Status, text: impl Into<String>) -> Error {
    Error { status, text: text.into() }
}

/// The error for a null pointer.
pub fn null(what: &str) -> Error {
    error(Status::InvalidArgument, format!("`{what}` is null"))
}

/// The error for an index.
pub fn unknown(what: &str, index: usize, count: usize) -> Error {
    error(Status::InvalidArgument, format!("there is no {what} number {index}; there are {count}"))
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Executes a call and keeps the text of its error for this thread.
pub fn guarded(call: impl FnOnce() -> Result<(), Error>) -> Status {
    let result = catch_unwind(AssertUnwindSafe(call));
    let result = result.unwrap_or_else(|_| Err(error(Status::Internal, "the library panicked; this is a bug")));
    match result {
        Ok(()) => Status::Ok,
        Err(Error { status, text }) => {
            // A zero cannot occur in the text that C reads.
            let text = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
            // While a thread ends, its text may be gone; the status is returned all the same.
            let _ = LAST.try_with(|last| last.replace(text));
            status
        }
    }
}

/// `of_error_text`.
#[unsafe(no_mangle)]
pub extern "C" fn of_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// `of_runtime_abi_version`.
#[unsafe(no_mangle)]
pub extern "C" fn of_runtime_abi_version() -> u32 {
    OF_RUNTIME_ABI_VERSION
}

/// `of_runtime_version`.
#[unsafe(no_mangle)]
pub extern "C" fn of_runtime_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

impl From<OpenError> for Error {
    fn from(e: OpenError) -> Self {
        let status = if matches!(e, OpenError::Io { .. }) { Status::Io } else { Status::Plan };
        error(status, e.to_string())
    }
}

impl From<FindError> for Error {
    fn from(e: FindError) -> Self {
        error(Status::Input, e.to_string())
    }
}

impl From<ValueError> for Error {
    fn from(e: ValueError) -> Self {
        error(Status::InvalidArgument, e.to_string())
    }
}

impl From<SessionError> for Error {
    fn from(e: SessionError) -> Self {
        let status = match &e {
            SessionError::Arch { .. }
            | SessionError::CpuFeature { .. }
            | SessionError::Module { .. }
            | SessionError::Ranks { .. }
            | SessionError::Backend { .. }
            | SessionError::Alone
            | SessionError::Load { source: LoadError::Unsupported(_), .. } => Status::Unsupported,
            SessionError::MemoryBudget { .. } | SessionError::Memory { .. } => Status::Memory,
            SessionError::Thread(_) => Status::Run,
            _ => Status::Plan,
        };
        error(status, e.to_string())
    }
}

impl From<RunError> for Error {
    fn from(e: RunError) -> Self {
        let status = match &e {
            RunError::InputCount { .. }
            | RunError::Input { .. }
            | RunError::Variable { .. }
            | RunError::Task { source: ExecError::Input(_), .. } => Status::Input,
            RunError::Task { source: ExecError::Unsupported(_), .. } => Status::Unsupported,
            RunError::Task { source: ExecError::Memory(_), .. } => Status::Memory,
            RunError::Cancelled => Status::Cancelled,
            RunError::Internal(_) | RunError::Panic { .. } => Status::Internal,
            _ => Status::Run,
        };
        error(status, e.to_string())
    }
}
