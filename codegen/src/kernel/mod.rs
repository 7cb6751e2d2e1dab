//! The kernel IR: loops over tiles of typed buffers, on scalars and vectors, for no machine in particular.
//!
//! A [`Kernel`] has typed buffers, scratch arrays and a body that runs for every value of an outermost counter, in any
//! order. Indices are affine; other index arithmetic is named by a statement first. Vectors have a fixed number of
//! lanes, which the schedule takes from the target, and partial accesses serve the tails. [`print_c()`] prints it for
//! CPUs; nothing in the IR is particular to C.

mod builder;
mod c_expr;
mod c_math;
mod c_math64;
mod c_prelude;
mod c_text;
mod check;
mod ir;
mod print_c;
mod types;

pub use builder::Builder;
pub use check::{CheckError, check};
pub use ir::{Access, Compare, Cond, Expr, IndexExpr, Kernel, LaneOp, Lit, Param, Scratch, Stmt};
pub use print_c::{ENTRY, PrintError, print_c};
pub use types::{Affine, Mem, Ty, Var};
