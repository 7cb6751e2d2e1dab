//! Diagnostics and source locations.
//!
//! A [`Location`] says where an operation comes from: source text, an ONNX node, or other locations that a pass derived it
//! from. A [`Diagnostic`] has a severity, code, message, location and hint. Every error that a user can see is one.

mod closest;
mod diagnostic;
mod escape;
mod location;
mod render;

pub use closest::closest;
pub use diagnostic::{Code, Diagnostic, Diagnostics, Severity};
pub use escape::{escaped, escaped_lines};
pub use location::Location;
pub use render::{Renderer, SourceMap};
