//! The types of the interface, as in `of_runtime.h`.

use std::ffi::{c_char, c_void};

/// The version of the interface.
pub const OF_RUNTIME_ABI_VERSION: u32 = 1;

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// A null pointer, an unknown index or type, a wrong size.
    InvalidArgument = 1,
    /// A file cannot be read.
    Io = 2,
    /// A plan is damaged, of another version, or does not verify.
    Plan = 3,
    /// This machine or this interface cannot do it.
    Unsupported = 4,
    /// A value does not fit the plan.
    Input = 5,
    /// The memory budget or the system's memory is exhausted.
    Memory = 6,
    /// A task failed.
    Run = 7,
    /// The run was cancelled.
    Cancelled = 8,
    /// Another thread uses the session.
    Busy = 9,
    /// A result does not fit into the caller's buffer.
    Buffer = 10,
    /// A bug of the library.
    Internal = 11,
    /// The signature of a plan is refused.
    #[cfg_attr(not(feature = "signature"), expect(dead_code, reason = "this build opens no signed plans"))]
    Signature = 12,
}

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ValueKind {
    /// A tensor.
    Tensor = 0,
    /// A sequence of values.
    Sequence = 1,
    /// A value that may be absent.
    Optional = 2,
}

/// A row-major tensor.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Tensor {
    /// Element type.
    pub dtype: u32,
    /// Number of extents.
    pub rank: u32,
    /// Extents.
    pub dims: *const i64,
    /// Elements.
    pub data: *mut c_void,
    /// Size of `data`.
    pub bytes: usize,
}

/// An input or output.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Port {
    /// Name.
    pub name: *const c_char,
    /// Element type.
    pub dtype: u32,
    /// Number of extents; -1 for any.
    pub rank: i32,
    /// Extents; -1 where one is open.
    pub dims: *const i64,
    /// What the plan calls each open extent.
    pub dim_names: *const *const c_char,
    /// The type for people.
    pub type_text: *const c_char,
}

/// How a session is made.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SessionOptions {
    /// Which program of the plan.
    pub program: usize,
    /// Workers; 0 takes as many as the plan was compiled for.
    pub threads: u32,
    /// The most bytes that values may take; 0 is this machine's memory.
    pub memory: u64,
}

/// How ranks are started as processes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RankOptions {
    /// As many as the plan's mesh has.
    pub ranks: u32,
    /// What starts a rank; null is the program of this process.
    pub program: *const c_char,
    /// How long ranks wait for one another in the beginning, in milliseconds; 0 is a minute.
    pub join_timeout: u32,
    /// After how many milliseconds a silent rank counts as lost; 0 is 10 s.
    pub peer_timeout: u32,
    /// 1 encrypts connections over TCP, with a key that follows from the job's token.
    pub tls: u32,
}
