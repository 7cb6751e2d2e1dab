//! Analyses of the graph: the role of each op, and the specification of its kernel if it has a separate one.
//!
//! A claim is a pure function from an op to a specification of the kernel IR, or to the reason why there is none.

pub mod constant;
pub mod indexed;
pub mod loop_around;
pub mod movement;
pub(crate) mod phases;
pub mod pool;
pub mod reduction;
pub mod resize;
pub mod roi_align;
pub mod roles;
pub mod score_matrix;
pub mod user_kernel;
pub mod view;
