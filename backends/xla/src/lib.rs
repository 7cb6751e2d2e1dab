//! XLA as a backend: subgraphs become StableHLO text, which a PJRT plugin compiles and runs.

mod backend;
mod clique;
pub mod emit;
mod ffi;
mod options;
mod payload;
pub mod plugin;

pub use backend::{Evaluator, NAME, NAME_SERIALIZED, Serialized, Xla};
pub use ffi::{Client, PluginError};
