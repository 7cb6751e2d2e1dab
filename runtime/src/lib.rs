//! The runtime: actors that run a plan.
//!
//! [`Session`] opens a program of a [`of_plan::PlanFile`], lays out its memory once, maps its kernels, lets backends
//! load their executables, and then runs it any number of times without allocating or choosing anything. Every task is
//! an [`actor::Actor`], a pure state machine over messages; threads own actors and pass messages over a bus. The same
//! actors are driven by the seeded [`simulator`], which checks the runtime's promises and predicts a timeline.
//!
//! A [`MeshSession`] runs what several ranks run together: a session for each, on a thread of its own; where they meet,
//! they reach one another through a [`Transport`].
//!
//! Nothing here knows the compiler: the plan is all there is. All `unsafe` code lies in `device/`.

#![deny(unsafe_code)]

pub mod actor;
mod boxing;
mod bus;
mod combine;
mod control;
mod cpu;
#[allow(unsafe_code, reason = "memory, machine code and shared jobs; nothing else has any")]
mod device;
mod error;
mod executable;
mod io;
mod launch_notifications;
mod load;
mod mesh;
mod objects;
mod pool;
mod profile;
mod rank_context;
mod session;
mod session_pool;
pub mod simulator;
mod symbols;
mod thread;
mod transport;
mod value;
mod work;

pub use boxing::Share;
pub use combine::neutral;
pub use device::AlignedBytes;
pub use error::{RunError, SessionError};
pub use executable::{
    AsyncExecutable, ExecError, Executable, Handle, LoadContext, LoadError, Loader, OnComplete, Readers, TensorMut,
    TensorRef, ValueMut, ValueRef,
};
pub use mesh::MeshSession;
pub use pool::Pool;
pub use profile::TaskTiming;
pub use rank_context::RankContext;
pub use session::{Options, Session, find_program};
pub use session_pool::SessionPool;
pub use simulator::{
    Link, Machine, Near, RankClass, RanksOptions, RanksTimeline, SimError, SimOptions, Timeline, simulate,
    simulate_ranks,
};
pub use transport::{Offer, SharedMemory, Stopped, Transport};
pub use value::{Element, Tensor, TensorData, Value, ValueError};
