//! StableHLO modules, in the text that JAX prints, into the IR.
//!
//! - `parse` makes a module of functions and operations of text. It reads the pretty form and MLIR's generic form.
//! - `import` walks the operations of `main`. Calls are inlined, and regions become regions of the IR's control flow.
//! - `ops` has one table of operations (`ops/table.rs`), and an importer for each that makes ops of the IR.
//! - Whatever is not supported is collected, and reported all at once, with its place in the text.
//!
//! The list of operations is [`operations`].

mod import;
mod ops;
mod parse;

use std::collections::BTreeMap;
use std::sync::Arc;

use of_diag::Diagnostics;
use of_ir::{Module, Tensor};

pub use ops::{Operation, operations};

/// Whether a text is a StableHLO module rather than the IR's own text: the first function decides. Modules begin alike.
pub fn is_stablehlo(text: &str) -> bool {
    let by_function = |line: &str| {
        let line = line.trim_start();
        let starts = |with: [&str; 2]| with.iter().any(|w| line.starts_with(w));
        let ours = starts(["func @", "\"of.func\"("]);
        (ours || starts(["func.func ", "\"func.func\"("])).then_some(!ours)
    };
    text.lines().find_map(by_function).unwrap_or(false)
}

/// Imports a StableHLO module; `file` names the text in diagnostics. The entry is `@main`, or the only public function.
///
/// # Errors
/// Everything that is wrong with the text or not supported, in the order of the text.
pub fn import_text(text: &str, file: &str) -> Result<Module, Diagnostics> {
    import_with_constants(text, file, &BTreeMap::new())
}

/// As [`import_text`]; arguments of the entry with a value in `constants`, by number, are constants instead of inputs.
///
/// # Errors
/// As [`import_text`], and when a value does not fit its argument.
pub fn import_with_constants(
    text: &str,
    file: &str,
    constants: &BTreeMap<usize, Tensor>,
) -> Result<Module, Diagnostics> {
    let lines = Arc::new(parse::Lines::new(text, file));
    let parsed = parse::parse(text, &lines)?;
    import::module(&parsed, &lines, constants)
}
