//! The core of the printers for MLIR's dialects: a function as text, op by op.
//!
//! A printer ([`Printer`]) has a table of the ops that its dialect supports. Each row is a function that prints the op, or
//! returns the reason why it cannot. A backend claims an op if it can be printed, so claims and text never differ.
//! Composites without a row are expanded before (`of_codegen::expand`). An op whose result follows from shapes alone is
//! printed as a constant. The printed type of each result must equal the op's result type.

mod printer;
mod text;
mod value;
mod values;

pub use printer::{Function, Print, Printer, find};
pub use text::{Text, element_bytes, hex, list};
pub use value::{Port, Val, port_of_word, port_word, shaped, tensor_type};
pub use values::Values;
