//! What the programs `of-opt` and `of-opt-serve` have in common: flags of messages and traces, logs, exit codes, quantities on the
//! command line, and what a panic says.

#![forbid(unsafe_code)]

pub mod exit;
pub mod logging;
pub mod messages;
pub mod panics;
pub mod quantity;
#[cfg(feature = "traces")]
pub mod traces;
