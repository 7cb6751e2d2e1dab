//! The runtime: actors that run a plan.
//!
//! [`Session`] opens a program of a [`of_plan::PlanFile`], allocates its memory arena once, maps its kernels and lets
//! backends load their executables. It then runs the program any number of times without allocation. Every task is an
//! [`actor::Actor`], a pure state machine over messages. Threads own actors and exchange messages over a message bus. The
//! seeded [`simulator`] drives the same actors; it checks the runtime's invariants and predicts a timeline.
//!
//! A [`MeshSession`] runs a program of several ranks: a session for each, on its own thread. Ranks exchange data in
//! rendezvous over a [`Transport`]. A [`RankSession`] is one rank of several processes. A [`SessionPool`] serves concurrent
//! requests with several sessions of one program.
//!
//! The runtime does not depend on the compiler: the plan is its only input. All `unsafe` code is in `device/`.

#![deny(unsafe_code)]

pub mod actor;
mod binder;
mod bound_task;
mod boxing;
mod bus;
mod cancel;
mod clock;
mod combine;
mod control;
mod cpu;
#[allow(unsafe_code, reason = "memory, machine code and shared jobs; no other module has unsafe code")]
mod device;
mod device_variables;
mod error;
mod executable;
pub mod flight_recorder;
mod frozen_parts;
mod frozen_place;
mod frozen_variables;
mod index_operands;
mod io;
mod launch_notifications;
mod memory_budget;
mod mesh_ports;
mod mesh_session;
mod mesh_variables;
mod objects;
mod pool;
mod profile;
mod rank_context;
mod rank_exchange;
mod rank_session;
mod rank_variables;
mod session;
mod session_pool;
mod shared_memory;
pub mod simulator;
mod state_copies;
mod static_schedule;
mod symbols;
mod sync;
mod task_context;
mod thread;
mod transfer_thread;
mod transport;
mod value;
mod value_layout;
mod variables;
mod workers;

pub use boxing::RankTransfer;
pub use cancel::Canceller;
pub use combine::identity_element;
pub use device::{AlignedBytes, ExternalBytes};
pub use error::{RunError, SessionError};
pub use executable::{
    AsyncExecutable, DeviceVariable, ExecError, Executable, Handle, LoadContext, LoadError, Loader, OnComplete,
    Readers, StepTime, TensorMut, TensorRef, ValueMut, ValueRef,
};
pub use flight_recorder::FlightRecorder;
pub use frozen_parts::FrozenPart;
pub use frozen_variables::FrozenVariables;
pub use memory_budget::{check_memory, machine_memory};
pub use mesh_session::MeshSession;
pub use mesh_variables::MeshVariables;
pub use pool::Pool;
#[cfg(not(target_family = "wasm"))]
pub use profile::clock_origin;
pub use profile::{StepTiming, TaskTiming};
pub use rank_context::RankContext;
pub use rank_exchange::INPUT_EXTENTS;
pub use rank_session::RankSession;
pub use rank_variables::RankVariables;
pub use session::{Options, Session, find_program};
pub use session_pool::SessionPool;
pub use shared_memory::SharedMemory;
pub use simulator::{
    CacheLevel, Link, Machine, RankClass, RanksOptions, RanksTimeline, SimError, SimOptions, Timeline, simulate,
    simulate_ranks,
};
pub use state_copies::{Note, Recovery, StateCopies};
pub use static_schedule::StaticSchedule;
pub use transport::{Chunk, StopReason, Stopped, TransferBlock, Transport};
pub use value::{Element, Tensor, TensorData, Value, ValueError};
pub use variables::Variables;
pub use workers::Workers;
