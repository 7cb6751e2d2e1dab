//! Locations and diagnostics.
//!
//! Two concepts: a [`Location`] (source text, ONNX node, or derived by a pass from other locations) and a
//! [`Diagnostic`] (severity, code, message, location, hint). Every error that a user can see passes through here.

mod diagnostic;
mod location;
mod render;

pub use diagnostic::{Code, Diagnostic, Diagnostics, Severity};
pub use location::Location;
pub use render::{Renderer, SourceMap};
