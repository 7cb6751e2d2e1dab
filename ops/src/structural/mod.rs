//! Ops that are part of the IR's structure.

mod alternatives;
mod constant;
mod none;
mod optimization_barrier;
mod shape_of;
mod size;
mod terminators;
mod trap;

pub use alternatives::Alternatives;
pub use constant::Constant;
pub use none::NoneValue;
pub use optimization_barrier::OptimizationBarrier;
pub use shape_of::ShapeOf;
pub use size::Size;
pub use terminators::{Return, Yield};
pub use trap::Trap;
