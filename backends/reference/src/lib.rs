//! The oracle: slow, plain, right. It evaluates functions, and runs in plans what has no native code.

mod backend;
mod evaluate;
mod values;

pub use backend::{NAME, Reference};
pub use evaluate::evaluate;
pub use values::{ConvertError, from_runtime, to_runtime};
