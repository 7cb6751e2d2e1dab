//! Ops that are part of the IR's structure.

mod alternatives;
mod constant;
mod none;
mod optimization_barrier;
mod shape_of;
mod size;
mod terminators;
mod trap;

use of_ir::{OpView, Sbp, SbpSignature};

pub use alternatives::Alternatives;
pub use constant::Constant;
pub use none::NoneValue;
pub use optimization_barrier::OptimizationBarrier;
pub use shape_of::ShapeOf;
pub use size::Size;
pub use terminators::{Return, Yield};
pub use trap::Trap;

/// Signatures of an op that reads nothing but the extents of its operand: it may have any part, from which the extents of the whole
/// follow. Known extents are constants before a graph is sharded.
fn of_any_part(cx: &OpView<'_>) -> Vec<SbpSignature> {
    let Some(shape) = cx.tensor(0).ok().and_then(|t| t.shape.as_ref()) else { return Vec::new() };
    if shape.iter().all(|d| d.as_const().is_some()) {
        return Vec::new();
    }
    let axes = (0..shape.len()).filter_map(|axis| u8::try_from(axis).ok()).map(Sbp::Split);
    axes.map(|part| SbpSignature::new(&[part], &[Sbp::Broadcast])).collect()
}
