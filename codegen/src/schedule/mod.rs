//! Schedules: from what is to be computed to the loops of a kernel.
//!
//! Specs say what: shapes, views of buffers, fused scalar functions. They know nothing of machines; the functions here
//! make kernels of them for an instruction set.

mod contraction;
mod dag;
mod elementwise;
mod error;
mod rowwise;
mod view;

pub use contraction::{
    Conv, Epilogue, Gemm, GemmRight, PackStrides, PackedB, Prologue, Scheduled, Spatial, conv, gemm,
};
pub use dag::{Dag, Node};
pub use elementwise::{Elementwise, Piece, Source, elementwise};
pub use rowwise::{RowInput, Rowwise, Stage, StageKind, rowwise};
pub use error::{ScheduleError, supported};
pub use view::{View, row_major};
