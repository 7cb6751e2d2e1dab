//! Ops that are part of the IR's structure.

mod constant;
mod either;
mod fail;
mod hold;
mod none;
mod shape_of;
mod size;
mod terminators;

pub use constant::Constant;
pub use either::Either;
pub use fail::Fail;
pub use hold::Hold;
pub use none::NoneValue;
pub use shape_of::ShapeOf;
pub use size::Size;
pub use terminators::{Return, Yield};
