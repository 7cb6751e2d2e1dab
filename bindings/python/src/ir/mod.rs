//! The IR for Python: modules, functions, regions, ops and values.
//!
//! Handles name a place in a module that they share. A pass may remove what a handle names, so handles from before a pass are
//! refused afterwards.

mod attributes;
mod constants;
mod function;
mod locations;
mod module;
mod op;
mod region;
mod shared;
mod types;
mod value;

pub use function::Function;
pub use module::Module;
pub use op::Op;
pub use region::Region;
pub use types::tensor_type;
pub use value::Value;
