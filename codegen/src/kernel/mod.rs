//! The kernel IR: loop nests over scalar expressions, and a specification for each kind of kernel.
//!
//! The kernel IR is independent of languages and of the other folders of this crate. The properties of an instruction set
//! (lanes, registers) come from [`crate::isa`].

pub mod attention;
pub mod axis_scan;
pub mod body;
pub mod columnwise;
pub mod contraction;
pub mod copy;
pub mod corrected;
pub mod depthwise_weight_gradient;
pub mod expr;
pub mod extent;
pub mod few_columns;
pub mod float;
pub mod indexed;
pub mod matrix_tiles;
pub mod max_pool_gradient;
pub mod nest;
pub mod panels;
pub mod prologue;
pub mod recurrence;
pub mod roi_align;
pub mod rowwise;
pub mod schedule;
pub mod score_matrix;
pub mod space;
pub mod tile_choice;
pub mod user_kernel;
pub mod window;
pub mod winograd;
pub mod zero_filled;

pub use extent::Extent;
pub use nest::Nest;
pub use zero_filled::ZeroFilled;
