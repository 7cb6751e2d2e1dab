//! The reference interpreter. It evaluates functions, and runs ops without native code in plans.

mod backend;
mod evaluate;
mod values;

pub use backend::{NAME, Reference};
pub use evaluate::evaluate;
pub use values::{ConvertError, from_runtime, to_runtime};
