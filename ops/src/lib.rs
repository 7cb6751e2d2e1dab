//! Every op: one file each, or a row of a family's table, and the one list of them ([`list::ALL`]).
//!
//! An op is a struct whose fields are its attributes; it implements [`Op`]: inference, reference evaluation or
//! expansion, SBP signatures, gradient. Libraries and programs add ops at run time ([`op_registry`]). The tests in `tests/list_wide.rs` run over the whole list.

mod build;
mod declare;
pub mod division;
mod estimate;
pub mod exactness;
pub mod interpret;
pub mod list;
pub mod maps;
mod op;
pub mod op_registry;
pub mod sample;
pub mod scalar;
pub mod scalar_eval;
pub mod shape;

pub mod boxing;
pub mod contraction;
pub mod control;
pub mod elementwise;
pub mod image;
pub mod ml;
pub mod movement;
pub mod nn;
pub mod random;
pub mod recurrent;
pub mod reduction;
pub mod signal;
pub mod string;
pub mod structural;
pub mod time;
pub mod training;
pub mod work;

pub use declare::{attr_name, is_option};
pub use list::{decl, get, registry};
pub use op::{
    CudaKernel, Decl, Evaluated, Expanded, GradCx, Inferred, Inputs, Kind, Launch, Op, OpDecl, OpSpec, Sample, Value,
};
