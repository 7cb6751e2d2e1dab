//! Ops that combine elements along axes.

mod arg;
mod build;
mod composites;
mod cumulative;
mod reduce;
mod softmax;
mod top_k;

pub use arg::{ArgMax, ArgMin};
pub use composites::{ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp, ReduceMean, ReduceSumSquare};
pub use cumulative::{CumProd, CumSum};
pub use reduce::{ReduceMax, ReduceMin, ReduceProd, ReduceSum, reduced_axes, unbroadcast};
pub use softmax::{Hardmax, LogSoftmax, Softmax};
pub use top_k::TopK;
