//! Tests of the whole text form, with ops of their own.

mod data;
mod errors;
mod forms;
mod fuzz;
pub(crate) mod ops;
pub(crate) mod random;
mod roundtrip;
mod source_index;
mod upstream;

use std::path::Path;

use super::{CheckedData, Indexed, PrintOptions, parse_indexed, parse_module, print_module};
use crate::Module;

/// Parses with the test ops.
pub(crate) fn read(text: &str) -> Result<Module, of_diag::Diagnostics> {
    parse_module(text, "t.of", &ops::registry(), None::<&Path>)
}

/// Parses what must parse.
pub(crate) fn module(text: &str) -> Module {
    read(text).unwrap_or_else(|e| panic!("{e}\n--- in\n{text}"))
}

/// Prints without locations.
pub(crate) fn show(m: &Module, generic: bool) -> String {
    print_module(m, &PrintOptions { generic, ..PrintOptions::default() })
}

/// Parses with the test ops and an index.
pub(crate) fn read_indexed(text: &str) -> Indexed {
    parse_indexed(text, "t.of", &ops::registry(), None, &CheckedData::default())
}
