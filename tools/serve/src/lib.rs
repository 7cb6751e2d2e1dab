//! The command line of a model server. `of-opt serve` and the program `of-opt-serve` share it: the first compiles models, the second
//! serves plans alone and is small.

#![forbid(unsafe_code)]

mod flags;
mod plans;
mod run;

pub use flags::{ControlModeArg, ServeFlags};
pub use plans::{open_signed, opener};
pub use run::run;
