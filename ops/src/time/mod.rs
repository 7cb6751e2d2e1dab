//! Time in a graph: ops that run once for each microbatch of a step, while others run once.
//!
//! [`Unpack`] gives the slices of a tensor, one in each microbatch. What reads them runs in each microbatch, too.
//! [`Accumulate`] sums the values of all microbatches, and [`Pack`] stacks them; what reads these runs once, after the
//! microbatches. What depends on no microbatch runs once, before them, and each microbatch reads it. This is the time
//! shape of OneFlow (Yuan et al., "OneFlow: Redesign the Distributed Deep Learning Framework from Scratch", 2021), and
//! synchronous dataflow with two rates (Lee and Messerschmitt, "Synchronous Data Flow", 1987).

mod accumulate;
mod pack;
pub mod schedule;
mod time_shape;
mod unpack;

pub use accumulate::{Accumulate, partial_kind};
pub use pack::Pack;
pub(crate) use pack::pack;
pub use time_shape::{TimeShape, is_in_microbatches, readers, transfer_of};
pub use unpack::Unpack;
pub(crate) use unpack::unpack;

/// The attribute of a function that is cut into pipeline stages: the number of stages, whether there is a backward pass (1 or 0),
/// and in the function of a rank its stage.
pub const PIPELINE: &str = "of.pipeline";

/// The attribute of such a function, `true`, where transfers between stages overlap with computation.
pub const OVERLAPPED_PIPELINE: &str = "of.overlapped_pipeline";
