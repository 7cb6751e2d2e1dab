//! Matrix products and convolutions: one family of schedules.
//!
//! Tiles of accumulators in registers, as tall and wide as the register file allows and as evenly divided as the shape
//! allows; the right-hand matrix in panels as wide as a tile; the left-hand operand read in place, or copied where it
//! is padded, strided, changed first, or badly placed for the cache. Long sums are cut; the epilogue works on the
//! accumulators before they are stored.

mod conv;
mod emit;
mod gemm;
mod normal;
mod operand;
mod pack;
mod pad;
mod tile;

pub use conv::{Conv, conv};
pub use gemm::{Gemm, GemmRight, Prologue, gemm};
pub use normal::Epilogue;
pub use pack::{PackStrides, PackedB};
pub use pad::Spatial;

pub(super) use conv::lift;

use crate::kernel::Kernel;

/// A contraction's kernel, and how its constant right-hand matrix is to be packed.
#[derive(Clone, PartialEq, Debug)]
pub struct Scheduled {
    /// The kernel.
    pub kernel: Kernel,
    /// The layout of the packed operand, if it has one.
    pub packed: Option<PackedB>,
}
